"""Classes of others are imported and made in a limited time, whatever their code does meanwhile."""

import signal
import subprocess
import sys
import textwrap
import threading
import time
from functools import partial

import pytest

from hoss import imports
from hoss.errors import ConfigError
from hoss.imports import loading, named_object
from hoss.sdk.__main__ import main as main_of_sdk
from scheduler_worker.config import chosen_algorithm, factory

# After twice as long the process ends, and the tests with it: a machine may hold up what interrupts.
LIMIT = 1.0


@pytest.fixture
def _impatient(monkeypatch):
    monkeypatch.setattr(imports, "LOADING_SECONDS", LIMIT)


@pytest.fixture
def written(tmp_path):
    """The target `Mine` of a file with this source."""

    def write(source):
        file = tmp_path / "mine.py"
        file.write_text(textwrap.dedent(source))
        return f"{file}:Mine"

    return write


HANGING = {
    "import": "import time\ntime.sleep(60)\nclass Mine: pass\n",
    "import that catches exceptions": """
        import time
        while True:
            try:
                time.sleep(60)
            except Exception:
                pass
    """,
    "constructor": """
        class Mine:
            def __init__(self):
                while True:
                    pass
    """,
}
SLEEPS_WHILE_IT_IS_MADE = """
    import time
    class Mine:
        def __init__(self):
            time.sleep(60)
"""


@pytest.mark.usefixtures("_impatient")
@pytest.mark.parametrize("where", HANGING)
def test_a_class_that_hangs_while_it_is_loaded_is_named_in_time(written, where):
    target = written(HANGING[where])
    before = signal.getsignal(signal.SIGALRM)
    with pytest.raises(ConfigError) as raised:
        factory(target, partial(named_object, target))()
    assert raised.value.text == (
        f"cannot be loaded from {target}: its import and its constructor did not end within 1 s; let them "
        "wait for nothing"
    )
    assert signal.getsignal(signal.SIGALRM) == before


@pytest.mark.usefixtures("_impatient")
def test_an_algorithm_that_hangs_while_it_is_made_keeps_its_worker_from_starting(written):
    target = written(SLEEPS_WHILE_IT_IS_MADE)
    with pytest.raises(ConfigError, match=r"mine.py:Mine: .*did not end within 1 s"):
        chosen_algorithm(target)


@pytest.mark.parametrize(
    "source",
    ["raise SystemExit('bye')", "import sys\nclass Mine:\n    def __init__(self):\n        sys.exit('bye')"],
)
def test_a_class_that_exits_is_named_as_well(written, source):
    target = written(source)
    with pytest.raises(ConfigError, match=f"cannot be loaded from {target}: SystemExit: bye"):
        factory(target, partial(named_object, target))()


@pytest.mark.usefixtures("_impatient")
def test_a_scheduler_of_ones_own_that_hangs_while_it_is_made_ends_its_process(written, capsys):
    assert main_of_sdk([written(SLEEPS_WHILE_IT_IS_MADE)]) == 1
    assert "did not end within 1 s" in capsys.readouterr().err


def test_what_loads_in_time_is_not_interrupted_afterwards(written):
    target = written("class Mine:\n    pass\n")
    before = signal.getsignal(signal.SIGALRM)
    assert type(factory(target, partial(named_object, target))()).__name__ == "Mine"
    assert not [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]
    assert signal.getsignal(signal.SIGALRM) == before


def test_other_threads_load_without_a_limit(monkeypatch):
    monkeypatch.setattr(imports, "LOADING_SECONDS", 0.05)
    loaded = []

    def load():
        with loading("mine:Mine"):
            time.sleep(0.1)
            loaded.append(True)

    thread = threading.Thread(target=load)
    thread.start()
    thread.join()
    assert loaded


def test_what_cannot_be_interrupted_ends_the_process_and_shows_where_it_is(written):
    target = written("""
        import time
        while True:
            try:
                time.sleep(60)
            except BaseException:
                pass
    """)
    source = f"""
        from hoss import imports
        imports.LOADING_SECONDS = 0.2
        with imports.loading("x"):
            imports.named_object({target!r})
    """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 1
    assert f'File "{target.removesuffix(":Mine")}"' in ended.stderr
