"""A resolver whose webhook cannot be served says why and ends, at once and in order."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from fork_server import FORK_SERVER
from waiting import DEADLINE_SECONDS

from hossctl.local.binding_webhook import make_certificate
from hossctl.local.ports import free_ports

Ended = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def ended(tmp_path: Path) -> Ended:
    """Runs a resolver that is expected to end: `ended(redis_url, "--flag", "value")`."""
    (tmp_path / "certificates").mkdir()
    (tmp_path / "kubeconfig").write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "c",
                "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
                "users": [{"name": "u", "user": {}}],
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            }
        )
    )

    def run(redis_url: str, *flags: str) -> "subprocess.CompletedProcess[str]":
        given = ["--listen", "127.0.0.1:0", "--webhook-listen", "127.0.0.1:0", "--redis-url", redis_url]
        given += [
            "--kubeconfig",
            str(tmp_path / "kubeconfig"),
            "--webhook-cert-dir",
            str(tmp_path / "certificates"),
        ]
        return FORK_SERVER.run("resolver", [*given, *flags], timeout=DEADLINE_SECONDS)

    return run


def test_a_certificate_that_is_none_ends_the_resolver_and_no_job_holds_it_up(ended, redis_server, tmp_path):
    """It fails in the first instant, while the jobs are sending their first commands to Redis."""
    for name in ("tls.crt", "tls.key"):
        (tmp_path / "certificates" / name).write_text("nothing")
    done = ended(redis_server.url)
    assert done.returncode == 2
    assert f"{tmp_path / 'certificates'}: certificate: is no PEM certificate" in done.stderr
    assert "Traceback" not in done.stderr
    assert "never awaited" not in done.stderr


def test_a_missing_key_is_named_before_anything_is_started(ended, redis_server, tmp_path):
    (tmp_path / "certificates" / "tls.crt").write_text("half of a pair")
    done = ended(redis_server.url)
    assert done.returncode == 2
    assert (
        f"webhook certificate directory {tmp_path / 'certificates'}: has no tls.key that can be read"
        in done.stderr
    )


def test_a_wrong_kubeconfig_is_said_at_once_though_the_ledger_is_away(ended, tmp_path):
    for name in ("tls.crt", "tls.key"):
        (tmp_path / "certificates" / name).write_text("x")
    (port,) = free_ports(1)
    done = ended(f"redis://127.0.0.1:{port}/0", "--kubeconfig", str(tmp_path / "nowhere"))
    assert done.returncode == 2
    assert f"{tmp_path / 'nowhere'}: there is no such file" in done.stderr


def test_a_webhook_that_anybody_could_ask_is_not_served_beyond_loopback(ended, redis_server, tmp_path):
    make_certificate(tmp_path / "certificates")
    (tmp_path / "certificates" / "path").unlink()
    done = ended(redis_server.url, "--webhook-listen", "0.0.0.0:0")
    assert done.returncode == 2
    assert "has no file 'path' and webhook.client_authority names none" in done.stderr
