"""The Job of deploy/ that makes certificates and accounts of Redis, with its own rights on a real API
server."""

import base64
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from e2e.kubernetes import renderers
from e2e.kubernetes.api import Api

from hoss.security.transport import TlsFiles
from hossctl.local.deployment import ACCOUNTS_SECRET, AUTHORITY_SECRET, Deployment, secret_of

pytestmark = pytest.mark.skipif(bool(renderers.missing()), reason=renderers.missing())

SECRETS = "/api/v1/namespaces/hoss-system/secrets"
NAMES = {AUTHORITY_SECRET, ACCOUNTS_SECRET, *map(secret_of, Deployment().identities())}


def content(api: Api, name: str) -> dict[str, bytes]:
    found: dict[str, Any] = api("GET", f"{SECRETS}/{name}")
    return {key: base64.b64decode(text) for key, text in (found.get("data") or {}).items()}


def mounted(api: Api, name: str, directory: Path) -> TlsFiles:
    directory.mkdir()
    for key, text in content(api, name).items():
        (directory / key).write_bytes(text)
    return TlsFiles(directory)


def test_it_makes_every_secret_once_and_mends_one_that_lost_something(
    api: Api, run_job: Callable[..., str], tmp_path: Path
) -> None:
    told = run_job()
    assert all(name in told for name in NAMES)
    before = {name: content(api, name) for name in NAMES}
    assert "nothing" in run_job()
    for folder in Deployment().identities():
        assert mounted(api, secret_of(folder), tmp_path / folder).latest().authority
        assert "ca.key" not in before[secret_of(folder)]
    assert before[ACCOUNTS_SECRET].keys() == {
        "users.acl",
        "hoss-dispatcher.password",
        "hoss-resolver.password",
    }

    api.request("DELETE", f"{SECRETS}/{secret_of('worker')}")
    lost: dict[str, Any] = api("GET", f"{SECRETS}/{ACCOUNTS_SECRET}")
    del lost["data"]["users.acl"]
    api("PUT", f"{SECRETS}/{ACCOUNTS_SECRET}", lost)
    told = run_job()
    assert secret_of("worker") in told
    assert ACCOUNTS_SECRET in told
    after = {name: content(api, name) for name in NAMES}
    # Which remembers each certificate, so that all of an identity can be revoked.
    first, then = (
        found[AUTHORITY_SECRET].pop("certificates.jsonl").splitlines() for found in (before, after)
    )
    assert then[:-1] == first
    same = NAMES - {secret_of("worker")}
    assert {name: after[name] for name in same} == {name: before[name] for name in same}
    assert after[secret_of("worker")]["ca.crt"] == before[AUTHORITY_SECRET]["ca.crt"]


def test_two_at_once_leave_one_authority_whose_certificates_all_services_have(
    api: Api, run_job: Callable[..., str]
) -> None:
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda _: run_job(), range(2)))
    authority = content(api, AUTHORITY_SECRET)["ca.crt"]
    for folder in Deployment().identities():
        assert content(api, secret_of(folder))["ca.crt"] == authority
    passwords = {name: text for name, text in content(api, AUTHORITY_SECRET).items() if "password" in name}
    assert passwords.items() <= content(api, ACCOUNTS_SECRET).items()


def test_beside_cert_manager_it_makes_accounts_of_redis_alone(api: Api, run_job: Callable[..., str]) -> None:
    told = run_job("--no-certificates")
    assert ACCOUNTS_SECRET in told
    assert "-tls" not in told
    assert "ca.key" not in content(api, AUTHORITY_SECRET)
