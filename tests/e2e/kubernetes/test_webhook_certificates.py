"""Certificates of the webhook as they come and go under a resolver that never stops."""

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path

from e2e.kubernetes.api import Api
from e2e.kubernetes.guarded import SECRET, Guarded
from waiting import wait_until

from hoss.certificates import KeyPair, issue, new_authority

_SHORT_LIVED = """
apiVersion: hoss.dev/v1alpha1
kind: ResolverConfig
webhook: {certificate_days: 0.0001, look_seconds: 0.3}  # 8.6 s, renewed after 5.8 s
"""


def test_a_certificate_is_renewed_before_it_ends_and_bindings_are_judged_all_along(
    make_guarded: Callable[..., Guarded], api: Api, tmp_path: Path
) -> None:
    config = tmp_path / "resolver.yaml"
    config.write_text(_SHORT_LIVED)
    guarded = make_guarded(failure_policy="Fail", flags=["--config", str(config)])
    guarded.add_node("n1", cpu=1000)
    first, authority = guarded.served_until(), guarded.authority()
    greedy = api.create_pod("greedy", cpu="2")

    def judged_by_another() -> bool:
        assert api.bind(greedy, "n1")[0] == 403  # by the guard: a broken connection would be 500
        return guarded.served_until() != first and datetime.now(timezone.utc) > first

    wait_until(judged_by_another, "the first certificate has ended")
    assert guarded.authority() == authority


def test_a_certificate_is_made_anew_when_somebody_deletes_its_secret(
    guarded: Guarded, api: Api, tmp_path: Path
) -> None:
    """With an authority of its own, which the API server is told of."""
    before = guarded.authority()
    guarded.kill_resolver()
    api("DELETE", SECRET)
    guarded.start_resolver()
    assert guarded.authority() != before
    assert api.bind(api.create_pod("greedy", cpu="2"), "n1")[0] == 403


def test_files_that_somebody_else_renews_are_taken_up_without_a_restart(
    make_guarded: Callable[..., Guarded], api: Api, tmp_path: Path
) -> None:
    now = datetime.now(timezone.utc)
    authority = new_authority("somebody else's", now=now, lifetime=timedelta(days=1))
    directory = tmp_path / "mounted"
    directory.mkdir()
    _write(directory, _issued(authority, hours=1))
    config = tmp_path / "resolver.yaml"
    config.write_text(_SHORT_LIVED)
    guarded = make_guarded(
        flags=["--config", str(config), "--webhook-cert-dir", str(directory)], authority=authority.certificate
    )
    guarded.add_node("n1", cpu=1000)
    first = guarded.served_until()
    # Half of a renewal: the old one serves on.
    (directory / "tls.key").write_bytes(_issued(authority, hours=3).key)
    wait_until(lambda: "certificate_not_renewed" in guarded.log(), "the mismatch is told")
    assert guarded.served_until() == first
    _write(directory, _issued(authority, hours=2))
    wait_until(lambda: guarded.served_until() > first, "the new certificate is served")
    assert api.bind(api.create_pod("greedy", cpu="2"), "n1")[0] == 403
    assert guarded.authority() == authority.certificate  # nobody but its owner publishes it


def test_a_certificate_that_nobody_renewed_fails_closed_is_told_and_works_again_once_it_is_renewed(
    make_guarded: Callable[..., Guarded], api: Api, tmp_path: Path
) -> None:
    now = datetime.now(timezone.utc)
    authority = new_authority("somebody else's", now=now, lifetime=timedelta(days=1))
    directory = tmp_path / "mounted"
    directory.mkdir()
    _write(directory, _issued(authority, hours=1))
    config = tmp_path / "resolver.yaml"
    config.write_text(_SHORT_LIVED)
    flags = ["--config", str(config), "--webhook-cert-dir", str(directory)]
    guarded = make_guarded(failure_policy="Fail", flags=flags, authority=authority.certificate)
    guarded.add_node("n1", cpu=1000)
    ending = issue(authority, ["127.0.0.1"], now=datetime.now(timezone.utc), lifetime=timedelta(seconds=2))
    _write(directory, ending)
    wait_until(lambda: "webhook_certificate_ended" in guarded.log(), "its end is told")
    pod = api.create_pod("p")
    guarded.kill_resolver()  # and with it the connections that the API server has, which stay good
    guarded.start_resolver(asked=False)
    status, answer = api.bind(pod, "n1")
    assert status == 500
    assert "certificate has expired" in answer["message"]
    _write(directory, _issued(authority, hours=1))
    wait_until(lambda: api.bind(pod, "n1")[0] == 201, "the renewed one is believed")


def _issued(authority: KeyPair, *, hours: int) -> KeyPair:
    now = datetime.now(timezone.utc)
    return issue(authority, ["127.0.0.1"], now=now, lifetime=timedelta(hours=hours))


def _write(directory: Path, pair: KeyPair) -> None:
    (directory / "tls.crt").write_bytes(pair.certificate)
    (directory / "tls.key").write_bytes(pair.key)
