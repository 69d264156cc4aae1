"""When certificates and authorities are renewed and published, and in which order."""

import asyncio
import base64
import copy
import random
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
import structlog
from cryptography import x509

from hoss.certificates import KeyPair, issue, new_authority, validity
from hoss.errors import InvalidInput
from hoss.kube.api import Object, Reply
from hoss.tasks import background
from resolver.config import WebhookConfig
from resolver.kubernetes.webhook.callers import WebhookCallers
from resolver.kubernetes.webhook.certificates import (
    Certificates,
    CertificateSecret,
    authorities,
    renewed,
)
from resolver.kubernetes.webhook.server import (
    CertificateFiles,
    LiveCertificate,
    refresh_periodically,
    wait_for_certificate,
)

_NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)
_LIFETIME = timedelta(days=90)
_HOSTS = ("hoss.svc",)


def _renewed(
    held: Certificates | None, *, after_days: float, published: bytes, hosts: tuple[str, ...] = _HOSTS
) -> Certificates:
    return renewed(held, hosts, _LIFETIME, now=_NOW + timedelta(days=after_days), published=published)


def test_what_is_not_due_stays_the_very_same() -> None:
    first = _renewed(None, after_days=0, published=b"")
    assert _renewed(first, after_days=59, published=first.trusted) is first


def test_a_certificate_is_renewed_by_the_same_authority_when_a_third_of_its_life_is_left() -> None:
    first = _renewed(None, after_days=0, published=b"")
    second = _renewed(first, after_days=61, published=first.trusted)
    assert second.trusted == first.trusted
    assert validity(second.serving.certificate)[1] == _NOW + timedelta(days=151)


def test_other_names_are_another_certificate() -> None:
    first = _renewed(None, after_days=0, published=b"")
    second = _renewed(first, after_days=1, published=first.trusted, hosts=("other.svc",))
    assert second.hosts == ("other.svc",)
    assert second.serving != first.serving


def test_a_new_authority_issues_only_when_it_is_trusted_and_the_old_one_counts_until_its_end() -> None:
    ending = new_authority("old", now=_NOW, lifetime=timedelta(days=100))
    serving = issue(ending, _HOSTS, now=_NOW, lifetime=_LIFETIME)
    held = Certificates(ending.key, ending.certificate, serving, _HOSTS)

    announced = _renewed(held, after_days=11, published=held.trusted)
    assert announced.serving == held.serving
    assert authorities(announced.trusted)[1:] == [ending.certificate]

    # Due, and the API server has not heard of it.
    waiting = _renewed(announced, after_days=62, published=held.trusted)
    assert waiting is announced

    issued = _renewed(announced, after_days=62, published=announced.trusted)
    assert issued.serving != held.serving
    assert _signed_by(issued.serving, issued.authority)

    later = _renewed(issued, after_days=62 + 61, published=issued.trusted)
    assert authorities(later.trusted) == [issued.authority.certificate]


def test_an_authority_that_has_ended_is_replaced_at_once() -> None:
    """Nothing is lost by it: nobody believes the old one any more."""
    ended = new_authority("old", now=_NOW, lifetime=timedelta(days=1))
    held = Certificates(
        ended.key, ended.certificate, issue(ended, _HOSTS, now=_NOW, lifetime=timedelta(days=1)), _HOSTS
    )
    fresh = _renewed(held, after_days=2, published=held.trusted)
    assert authorities(fresh.trusted) == [fresh.authority.certificate]
    assert _signed_by(fresh.serving, fresh.authority)


def _signed_by(serving: KeyPair, authority: KeyPair) -> bool:
    issuer = x509.load_pem_x509_certificate(authority.certificate)
    x509.load_pem_x509_certificate(serving.certificate).verify_directly_issued_by(issuer)
    return True


def test_resolvers_whose_clocks_differ_by_minutes_serve_by_one_certificate_that_counts_for_both() -> None:
    minutes = timedelta(minutes=5)
    # By the one whose clock is ahead.
    made = renewed(None, _HOSTS, _LIFETIME, now=_NOW + minutes, published=b"")
    for now in (_NOW, _NOW + minutes, _NOW + 2 * minutes):
        assert renewed(made, _HOSTS, _LIFETIME, now=now, published=made.trusted) is made
        for certificate in (made.serving.certificate, made.trusted):
            begins, ends = validity(certificate)
            assert begins <= now < ends


def test_a_clock_that_is_ahead_renews_early_and_one_that_is_behind_does_not_undo_it() -> None:
    first = _renewed(None, after_days=0, published=b"")
    second = _renewed(first, after_days=61, published=first.trusted)
    assert second.serving != first.serving
    assert _renewed(second, after_days=20, published=second.trusted) is second


_CONFIGURATION = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/guard"
_SECRET = "/api/v1/namespaces/hoss/secrets/guard"
_MADE: Object = {"webhooks": [{"name": "hook", "clientConfig": {"service": {"name": "hoss-resolver"}}}]}


class OneConfigurationAndOneSecret:
    """Of an API server."""

    def __init__(self) -> None:
        self.objects: dict[str, Object] = {}

    @property
    def trusted(self) -> bytes:
        """By the API server; empty: it cannot ask."""
        return base64.b64decode(
            self.objects[_CONFIGURATION]["webhooks"][0]["clientConfig"].get("caBundle", "")
        )

    async def find(self, path: str, **_: Any) -> Object | None:
        return copy.deepcopy(self.objects.get(path))

    async def ask(self, method: str, path: str, body: Object, **_: Any) -> Reply:
        if method == "PATCH":
            (hook,), (given,) = self.objects[path]["webhooks"], body["webhooks"]
            hook["clientConfig"] |= given["clientConfig"]
        else:
            body["metadata"]["resourceVersion"] = "1"
            self.objects[_SECRET] = body
        return Reply(200, b"{}")


@pytest.mark.usefixtures("virtual_time")
async def test_a_configuration_that_comes_after_the_resolver_or_is_made_anew_is_of_use_within_seconds() -> (
    None
):
    api, rng = OneConfigurationAndOneSecret(), random.Random(7)
    source = CertificateSecret(
        api,  # type: ignore[arg-type]
        LiveCertificate(),
        secret="hoss/guard",
        configuration="guard",
        hosts=_HOSTS,
        lifetime=_LIFETIME,
        clock=lambda: _NOW,
        callers=WebhookCallers(certificate_names=None, per_second=0.0, clock=lambda: 0.0),
        rng=rng,
    )
    await wait_for_certificate(source)
    async with background(refresh_periodically(source, period_seconds=WebhookConfig().look_seconds, rng=rng)):
        await asyncio.sleep(100)
        trusted = set()
        for _ in ("made", "made anew"):
            api.objects[_CONFIGURATION] = copy.deepcopy(_MADE)
            await asyncio.sleep(5)
            trusted.add(api.trusted)
    assert len(trusted) == 1
    assert b"" not in trusted


class Failing:
    """A source that says what is wrong, in turn, and "" where nothing is."""

    def __init__(self, *problems: str) -> None:
        self._problems = iter(problems)

    async def refresh(self) -> None:
        if problem := next(self._problems, ""):
            raise InvalidInput(problem)


@pytest.mark.usefixtures("virtual_time")
async def test_what_is_wrong_is_logged_when_it_changes_and_not_at_every_look() -> None:
    source = Failing("cannot be read", "cannot be read", "has ended", "", "has ended")
    with structlog.testing.capture_logs() as lines:
        async with background(refresh_periodically(source, period_seconds=3, rng=random.Random(7))):
            await asyncio.sleep(60)
    assert [line["error"] for line in lines] == ["cannot be read", "has ended", "has ended"]


async def test_a_mounted_certificate_that_has_ended_is_told_of_once(tmp_path: Path) -> None:
    pair = issue(new_authority("own", now=_NOW, lifetime=_LIFETIME), _HOSTS, now=_NOW, lifetime=_LIFETIME)
    (tmp_path / "tls.crt").write_bytes(pair.certificate)
    (tmp_path / "tls.key").write_bytes(pair.key)
    source = CertificateFiles(
        tmp_path,
        LiveCertificate(),
        WebhookCallers(clock=lambda: 0.0),
        clock=lambda: _NOW + 2 * _LIFETIME,
    )
    with structlog.testing.capture_logs() as lines:
        await source.refresh()
        await source.refresh()
    assert [line["event"] for line in lines].count("webhook_certificate_ended") == 1
