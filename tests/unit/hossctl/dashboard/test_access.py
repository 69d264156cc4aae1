"""The token that lets viewers act."""

import pytest

from hoss.errors import ConfigError
from hossctl.dashboard.access import LEAST_TOKEN_CHARACTERS, read_token


def test_a_token_is_read_without_the_space_around_it(tmp_path):
    (tmp_path / "token").write_text("  a-token-of-some-length\n")
    assert read_token(tmp_path / "token") == "a-token-of-some-length"


@pytest.mark.parametrize("text", ["", "\n", "x" * (LEAST_TOKEN_CHARACTERS - 1)])
def test_a_token_that_could_be_guessed_is_refused_with_a_remedy(tmp_path, text):
    (tmp_path / "token").write_text(text)
    with pytest.raises(ConfigError, match="/dev/urandom"):
        read_token(tmp_path / "token")


def test_a_token_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ConfigError, match="token: cannot be read: No such file"):
        read_token(tmp_path / "token")


def test_a_token_that_is_no_text_is_refused(tmp_path):
    (tmp_path / "token").write_bytes(b"\xff\xfe" * 20)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_token(tmp_path / "token")
