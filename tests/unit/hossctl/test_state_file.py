"""The file that says what `hoss up` has started."""

import stat

from hossctl.local.platform import STATE_FILE, PlatformState, load_state, save_state


def test_its_user_alone_may_read_it_also_after_a_command_that_was_killed_while_it_wrote(tmp_path):
    left = (tmp_path / STATE_FILE).with_suffix(".new")
    left.write_text("half a state")
    left.chmod(0o644)
    state = PlatformState(redis_url="redis://:secret@127.0.0.1:1")
    save_state(tmp_path, state)
    assert stat.S_IMODE((tmp_path / STATE_FILE).stat().st_mode) == 0o600
    assert load_state(tmp_path) == state
