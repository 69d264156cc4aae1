"""The certificates of all services are renewed while they place pods: every new connection shows the renewed
ones, and nothing is lost."""

import asyncio
import socket
import ssl
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509
from e2e.cluster import Cluster
from e2e.loads import all_bound, assert_clean, counts, prepare, some_bound, submit
from waiting import DEADLINE_SECONDS, until

from hoss.host import THIS_HOST
from hoss.interceptor import RECHECK_SECONDS
from hoss.security.authority import CERTIFICATE_LIFETIME, Authority, Issued
from hoss.security.identity import CallerKind, Identity, Role
from hoss.security.transport import CERTIFICATE_FILE
from hossctl.endpoints import Clients, clients_of
from hossctl.local.ports import free_ports

WORKERS = ("w1", "w2")
IDENTITIES = {
    "dispatcher": Identity(CallerKind.DISPATCHER),
    "resolver": Identity(CallerKind.RESOLVER),
    **{name: Identity(CallerKind.WORKER, name) for name in WORKERS},
    "operator": Identity(CallerKind.CLIENT, "operator", Role.ADMIN),
}
ROTATIONS = 3
JOB_PODS = 20
WAITING_PODS = 5 * JOB_PODS  # at most, so that the load lasts
PLACED_AFTER = 5 * JOB_PODS  # each rotation
LAST_PODS = 2_000


class Secured:
    """A platform with TLS, and the authority of its certificates."""

    def __init__(self, directory: Path) -> None:
        self.authority = Authority.create(directory / "authority", now=THIS_HOST.utc_now())
        self.held = {name: self._issued(identity) for name, identity in IDENTITIES.items()}
        ports = dict(zip(WORKERS, free_ports(len(WORKERS)), strict=True))
        self.cluster = Cluster(
            directory,
            resolver_flags=("--tls-dir", self._directory("resolver")),
            dispatcher_flags=("--tls-dir", self._directory("dispatcher")),
        )
        self._addresses = {name: self.cluster.address(name) for name in ("dispatcher", "resolver")}
        self._addresses |= {name: f"127.0.0.1:{port}" for name, port in ports.items()}
        for name in WORKERS:
            options = ("--tls-dir", self._directory(name), "--listen", self._addresses[name])
            self.cluster.start_worker(name, options=options)
        self.endpoints = replace(self.cluster.endpoints, tls_dir=self._directory("operator"))

    def renew(self, lifetime: timedelta = CERTIFICATE_LIFETIME) -> dict[str, Issued]:
        """All certificates; those that they replace."""
        replaced, now = self.held, THIS_HOST.utc_now()
        self.held = {
            name: self.authority.renew(issued, now=now, lifetime=lifetime)
            for name, issued in replaced.items()
        }
        return replaced

    def check_handshakes(self) -> None:
        """What each service shows to a new connection is its present certificate, by the serial number."""
        for name, address in self._addresses.items():
            present = (self.held[name].directory / CERTIFICATE_FILE).read_bytes()
            expected = x509.load_pem_x509_certificate(present).serial_number
            assert self._serial_shown(address) == expected, name

    def _serial_shown(self, address: str) -> int:
        host, _, port = address.rpartition(":")
        client = self.held["operator"].directory
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.load_verify_locations(client / "ca.crt")
        context.load_cert_chain(client / "tls.crt", client / "tls.key")
        context.set_alpn_protocols(["h2"])
        with (
            socket.create_connection((host, int(port)), timeout=DEADLINE_SECONDS) as plain,
            context.wrap_socket(plain) as secured,
        ):
            shown = secured.getpeercert(binary_form=True)
        assert shown
        return x509.load_der_x509_certificate(shown).serial_number

    def _issued(self, identity: Identity) -> Issued:
        return self.authority.issue(identity, now=THIS_HOST.utc_now())

    def _directory(self, name: str) -> str:
        return str(self.held[name].directory)


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[Secured]:
    made = Secured(tmp_path)
    yield made
    made.cluster.stop()


class Load:
    """One job after another, of which some pods always wait."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._ending = False
        self.pods = 0  # submitted

    async def run(self) -> None:
        while not self._ending:
            await submit(self._clients, jobs=1, replicas=JOB_PODS, name=f"load-{self.pods}")
            self.pods += JOB_PODS
            await until(lambda: some_bound(self._clients, self.pods - WAITING_PODS), "the load to go on")

    def end(self) -> None:
        """After the present job."""
        self._ending = True


async def test_certificates_are_renewed_under_load_and_nothing_is_lost(secured: Secured) -> None:
    cluster = secured.cluster
    replaced: list[Issued] = []
    async with clients_of(secured.endpoints) as clients:
        await prepare(clients, workers=len(WORKERS))
        load = Load(clients)
        loading = asyncio.create_task(load.run())
        for _ in range(ROTATIONS):
            replaced += (await asyncio.to_thread(secured.renew)).values()
            await asyncio.to_thread(secured.check_handshakes)
            bound = sum(job.bound for job in await counts(clients))
            await until(lambda least=bound + PLACED_AFTER: some_bound(clients, least), "further pods")
        load.end()
        await loading

        # Everybody has to connect anew, and the former certificates are not good any more.
        await submit(clients, jobs=1, replicas=LAST_PODS, name="last")
        cluster.kill("resolver")
        for issued in replaced:
            secured.authority.revoke_certificate(issued, now=THIS_HOST.utc_now())
        cluster.start_resolver()
        cluster.kill("dispatcher")
        cluster.start_dispatcher()
        pods = load.pods + LAST_PODS
        await until(lambda: all_bound(clients, pods), "all pods to be bound")
        await assert_clean(clients, bound=pods)

    for name in ("dispatcher", "resolver"):
        assert cluster.events(name, "caller_refused") == []
    for name in WORKERS:
        assert cluster.events(name, "certificate_taken")[-1]["fingerprint"] == secured.held[name].fingerprint


@pytest.mark.thorough
async def test_certificates_that_are_renewed_seconds_before_their_end_lose_nothing(secured: Secured) -> None:
    short, before_the_end = timedelta(seconds=9), 2.0
    async with clients_of(secured.endpoints) as clients:
        await prepare(clients, workers=len(WORKERS))
        load = Load(clients)
        loading = asyncio.create_task(load.run())
        for _ in range(ROTATIONS):
            await asyncio.to_thread(secured.renew, short)
            ends = secured.held["dispatcher"].not_after.timestamp()
            await until(lambda ends=ends: THIS_HOST.unix() >= ends - before_the_end, "its last seconds")
        await asyncio.to_thread(secured.renew)
        # Also streams that were begun with the certificates of then go on.
        await until(lambda: THIS_HOST.unix() >= ends + 2 * RECHECK_SECONDS, "the end of those, and a look")
        await asyncio.to_thread(secured.check_handshakes)
        load.end()
        await loading
        await until(lambda: all_bound(clients, load.pods), "all pods to be bound")
        await assert_clean(clients, bound=load.pods)
