"""Where a client's token comes from."""

import base64
import json
import sys
from pathlib import Path

import pytest

from hoss.client.access import ClientAccess, PrintedToken, found_access, token_of_file
from hoss.contexts import Context, Contexts, save_contexts
from hoss.errors import ConfigError

ADDRESS = "127.0.0.1:7100"


def command(directory: Path, text: str) -> str:
    """A program that counts its runs in a file and prints a text."""
    program = directory / "prints.py"
    program.write_text(f"open({str(directory / 'runs')!r}, 'a').write('x')\nprint({text!r})\n")
    return f"{sys.executable} '{program}'"


def runs(directory: Path) -> int:
    return len((directory / "runs").read_text())


def expiring(at: float) -> str:
    body = base64.urlsafe_b64encode(json.dumps({"exp": at}).encode()).decode().rstrip("=")
    return f"head.{body}.signature"


def test_a_printed_token_is_kept_until_it_is_about_to_expire(tmp_path) -> None:
    now = 1000.0
    token = PrintedToken(command(tmp_path, expiring(2000)), lambda: now)
    assert token() == token() == expiring(2000)
    assert runs(tmp_path) == 1
    now = 1969.0
    token()
    assert runs(tmp_path) == 1
    now = 1970.0
    token()
    assert runs(tmp_path) == 2


def test_a_printed_token_that_does_not_say_when_it_ends_is_renewed_each_minute(tmp_path) -> None:
    now = 1000.0
    token = PrintedToken(command(tmp_path, "opaque"), lambda: now)
    assert token() == "opaque"
    now = 1060.0
    token()
    assert runs(tmp_path) == 2


def test_a_credential_plugin_of_kubectl_will_do(tmp_path) -> None:
    credential = {"kind": "ExecCredential", "status": {"token": "from-a-plugin"}}
    assert PrintedToken(command(tmp_path, json.dumps(credential)))() == "from-a-plugin"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("none-such-command", "cannot be run"),
        ("'", "is no command"),
        (f"{sys.executable} -c 'raise SystemExit(3)'", "exit code 3"),
        (f"{sys.executable} -c pass", "prints no token"),
        (f"{sys.executable} -c 'print(\"please log in\")'", "prints no token"),
        (f"{sys.executable} -c 'print({{}})'", "prints no token"),
    ],
)
def test_a_command_without_a_token_is_named_with_the_reason(text, problem) -> None:
    with pytest.raises(ConfigError, match=problem):
        PrintedToken(text)()


def test_a_file_with_a_token_is_followed(tmp_path) -> None:
    file = tmp_path / "token"
    token = token_of_file(file)
    with pytest.raises(ConfigError, match="has no token"):
        token()
    file.write_text("first\n")
    assert token() == "first"
    file.write_text("second\n")
    assert token() == "second"


def test_the_environment_comes_before_the_context(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("HOSS_HOME", str(tmp_path))
    held = Context(ADDRESS, "", "/tls", token_command="print it")
    save_contexts(tmp_path, Contexts("there", {"there": held}))
    assert found_access([ADDRESS], {}) == ClientAccess(Path("/tls"), token_command="print it")
    by_file = {"HOSS_TOKEN_FILE": "/var/run/token"}
    assert found_access([ADDRESS], by_file) == ClientAccess(Path("/tls"), token_file=Path("/var/run/token"))
    by_token = {**by_file, "HOSS_TOKEN": "t", "HOSS_TLS_DIR": "/other"}
    assert found_access([ADDRESS], by_token) == ClientAccess(Path("/other"), "t")
    assert found_access(["elsewhere:1"], by_file) == ClientAccess(None, token_file=Path("/var/run/token"))


@pytest.mark.parametrize(
    "access",
    [ClientAccess(token="t"), ClientAccess(token_file=Path("/t")), ClientAccess(token_command="t")],
)
def test_no_token_travels_in_plain_text(access) -> None:
    with pytest.raises(ConfigError, match="over TLS alone"):
        access.channel([ADDRESS])


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"\xff\xfe\x00", "has spaces or characters that no token has"),
        ("tök\u00ebn".encode(), "has spaces or characters"),
        (b"one two", "has spaces"),
        (b"first\nsecond", "has spaces or characters"),
        (b"a" * 8193, "has 8,193 bytes, and no service takes more than 8,192"),
        (b" \n", "has no token"),
    ],
)
def test_what_cannot_travel_as_a_token_is_refused_by_name_and_not_shown(tmp_path, text, problem):
    (tmp_path / "token").write_bytes(text)
    with pytest.raises(ConfigError, match=problem) as caught:
        token_of_file(tmp_path / "token")()
    assert "token file" in str(caught.value)
    assert "aaaa" not in str(caught.value)
