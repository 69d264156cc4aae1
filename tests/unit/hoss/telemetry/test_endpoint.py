"""The endpoint that Prometheus reads, over a real socket."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
from waiting import DEADLINE_SECONDS, until

from hoss import certificates
from hoss.errors import ConfigError
from hoss.host import THIS_HOST
from hoss.security.authority import Authority, Issued
from hoss.security.identity import CallerKind, Identity, Role
from hoss.security.options import SecuredHost, SecurityConfig, host_of, metrics_door
from hoss.security.transport import server_name
from hoss.telemetry import endpoint
from hoss.telemetry.endpoint import MetricsDoor, metrics_endpoint
from hoss.telemetry.metrics import GAUGE, Metric, Metrics, process_source


async def response_to(port: int, request: str) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request.encode())
    answer = await asyncio.wait_for(reader.read(), DEADLINE_SECONDS)
    writer.close()
    return answer.decode()


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        ("GET /metrics HTTP/1.1", "200 OK"),
        ("GET /metrics?x=1 HTTP/1.0", "200 OK"),
        ("GET / HTTP/1.1", "404 Not Found"),
        ("POST /metrics HTTP/1.1", "405 Method Not Allowed"),
        ("nonsense", "404 Not Found"),
    ],
)
async def test_metrics_are_read_with_get_at_one_path(request_line: str, status: str) -> None:
    async with metrics_endpoint("127.0.0.1:0", Metrics(process_source("tests"))) as port:
        answer = await response_to(port, f"{request_line}\r\nHost: x\r\n\r\n")
    assert answer.startswith(f"HTTP/1.1 {status}\r\n")
    head, _, body = answer.partition("\r\n\r\n")
    assert f"Content-Length: {len(body.encode())}" in head
    assert ("process_cpu_seconds_total" in body) == (status == "200 OK")


async def test_head_has_no_content_and_garbage_does_no_harm() -> None:
    async with metrics_endpoint("127.0.0.1:0", Metrics(process_source("tests"))) as port:
        assert (await response_to(port, "HEAD /metrics HTTP/1.1\r\n\r\n")).endswith("\r\n\r\n")
        assert await response_to(port, "x" * 100_000) == ""
        assert (await response_to(port, "GET /metrics HTTP/1.1\r\n\r\n")).startswith("HTTP/1.1 200")


async def test_the_accept_header_chooses_the_format() -> None:
    async with metrics_endpoint("127.0.0.1:0", Metrics(process_source("tests"))) as port:
        accept = "accept: application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
        answer = await response_to(port, f"GET /metrics HTTP/1.1\r\n{accept}\r\n\r\n")
    assert "Content-Type: application/openmetrics-text; version=1.0.0" in answer
    assert answer.endswith("# EOF\n")


async def test_without_an_address_nobody_listens() -> None:
    async with metrics_endpoint("", Metrics()) as port:
        assert port == 0


@pytest.mark.parametrize(
    "listen", ["9100", "127.0.0.1:", "127.0.0.1:http", "127.0.0.1:70000", "192.0.2.1:9100"]
)
async def test_an_address_that_cannot_be_listened_on_is_an_error(listen: str) -> None:
    with pytest.raises(ConfigError, match="metrics_listen"):
        async with metrics_endpoint(listen, Metrics()):
            pass


async def test_a_port_in_use_is_an_error() -> None:
    async with metrics_endpoint("127.0.0.1:0", Metrics()) as port:
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}"):
            async with metrics_endpoint(f"127.0.0.1:{port}", Metrics()):
                pass


class Door:
    """A platform's resolver with an endpoint of metrics, and clients of it."""

    def __init__(self, directory: Path) -> None:
        self.now = THIS_HOST.utc_now()
        self.authority = Authority.create(directory / "authority", now=self.now)
        self.served = self.authority.issue(Identity(CallerKind.RESOLVER), now=self.now)
        config = SecurityConfig(tls_dir=self.served.directory)
        self.door = metrics_door("0.0.0.0:9100", False, config, SecuredHost(self.served.directory))

    def client(self, name: str, role: Role = Role.NONE, tenant: str = "") -> Issued:
        return self.authority.issue(Identity(CallerKind.CLIENT, name, role, tenant), now=self.now)

    async def scrape(self, port: int, directory: Path | None, headers: str = "") -> tuple[str, bytes]:
        """What a client with the certificate in the directory reads, and the certificate that it was
        shown."""
        tls = ssl.create_default_context(cafile=self.served.directory / "ca.crt")
        if directory is not None:
            tls.load_cert_chain(directory / "tls.crt", directory / "tls.key")
        name = server_name("resolver")
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls, server_hostname=name)
        shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.write(f"GET /metrics HTTP/1.1\r\n{headers}\r\n".encode())
        try:
            return (await reader.read()).decode(), shown
        finally:
            writer.close()


@pytest.fixture
def behind(tmp_path: Path) -> Door:
    return Door(tmp_path)


@contextlib.asynccontextmanager
async def served_behind(door: MetricsDoor | None) -> AsyncIterator[int]:
    async with metrics_endpoint("127.0.0.1:0", Metrics(process_source("tests")), door) as port:
        yield port


async def test_with_tls_it_takes_a_new_certificate_of_its_own(behind) -> None:
    reader = behind.client("prometheus", Role.METRICS).directory
    async with served_behind(behind.door) as port:
        answer, first = await behind.scrape(port, reader)
        assert "process_cpu_seconds_total" in answer
        behind.authority.renew(behind.served, now=behind.now)
        answer, second = await behind.scrape(port, reader)
        assert "process_cpu_seconds_total" in answer
        assert first != second


@pytest.mark.parametrize(
    ("role", "tenant", "why"),
    [
        (Role.METRICS, "", ""),
        (Role.VIEW, "", ""),
        (Role.ADMIN, "", ""),
        (Role.NONE, "", "it takes the role metrics"),
        (Role.SUBMIT, "research", "the whole platform"),
    ],
)
async def test_the_role_decides_who_reads(behind, role: Role, tenant: str, why: str) -> None:
    reader = behind.client("somebody", role, tenant).directory
    async with served_behind(behind.door) as port:
        answer, _ = await behind.scrape(port, reader)
    assert answer.startswith("HTTP/1.1 403 Forbidden" if why else "HTTP/1.1 200 OK")
    assert why in answer
    assert ("process_cpu_seconds_total" in answer) == (not why)


async def test_a_service_and_who_was_revoked_do_not_read_and_a_token_with_the_role_does(behind) -> None:
    worker = behind.authority.issue(Identity(CallerKind.WORKER, "w1"), now=behind.now)
    revoked, entry = behind.client("former", Role.METRICS), behind.client("entry")
    behind.authority.revoke_certificate(revoked, now=behind.now)
    of_token = Identity(CallerKind.CLIENT, "prometheus", Role.METRICS)
    token = behind.authority.create_token(of_token, now=behind.now, lifetime=timedelta(days=1))
    async with served_behind(behind.door) as port:
        assert "a worker may not" in (await behind.scrape(port, worker.directory))[0]
        assert "was revoked" in (await behind.scrape(port, revoked.directory))[0]
        bearer = f"authorization: Bearer {token}\r\n"
        assert (await behind.scrape(port, entry.directory, bearer))[0].startswith("HTTP/1.1 200")
        forged = bearer.replace("Bearer ", "Bearer x")
        assert "the token is refused" in (await behind.scrape(port, entry.directory, forged))[0]


@pytest.mark.parametrize("which", ["none", "self-signed", "strange", "expired", "not yet valid"])
async def test_without_a_certificate_that_is_good_nobody_gets_through_the_handshake(
    behind, tmp_path: Path, which: str
) -> None:
    prometheus = Identity(CallerKind.CLIENT, "prometheus", Role.METRICS)
    day = timedelta(days=1)
    if which == "none":
        directory = None
    elif which == "strange":
        strange = Authority.create(tmp_path / "strange", now=behind.now)
        directory = strange.issue(prometheus, now=behind.now).directory
    elif which == "self-signed":
        pair = certificates.new_authority("prometheus", now=behind.now, lifetime=day)
        directory = tmp_path / "self"
        directory.mkdir()
        (directory / "tls.crt").write_bytes(pair.certificate)
        (directory / "tls.key").write_bytes(pair.key)
    else:
        then = behind.now + (-2 * day if which == "expired" else 2 * day)
        directory = behind.authority.issue(prometheus, now=then, lifetime=day).directory
    async with served_behind(behind.door) as port:
        with contextlib.suppress(OSError):  # closed, or told what is wrong
            answer, _ = await behind.scrape(port, directory)
            assert answer == ""
        good = behind.client("good", Role.METRICS).directory
        assert (await behind.scrape(port, good))[0].startswith("HTTP/1.1 200")


async def test_plain_http_at_a_port_with_tls_gets_nothing(behind) -> None:
    async with served_behind(behind.door) as port:
        with contextlib.suppress(ConnectionError):
            assert await response_to(port, "GET /metrics HTTP/1.1\r\n\r\n") == ""


def test_beyond_loopback_metrics_are_behind_a_door_or_the_service_is_told_insecure(behind, capsys) -> None:
    secured, open_, told = behind.door, SecurityConfig(), SecurityConfig(insecure=True)
    assert secured is not None
    config = SecurityConfig(tls_dir=behind.served.directory)
    assert metrics_door("127.0.0.1:9100", False, config, SecuredHost(behind.served.directory)) is None
    assert metrics_door("127.0.0.1:9100", True, config, SecuredHost(behind.served.directory)) is not None
    with pytest.raises(ConfigError, match="--tls-dir"):
        metrics_door("127.0.0.1:9100", True, open_, THIS_HOST)
    assert metrics_door("127.0.0.1:9100", False, open_, THIS_HOST) is None
    assert metrics_door("", False, open_, THIS_HOST) is None
    with pytest.raises(ConfigError, match="reached from other machines"):
        host_of(open_, "127.0.0.1:0", metrics_listen="0.0.0.0:9100")
    assert host_of(told, "127.0.0.1:0", metrics_listen="0.0.0.0:9100") is THIS_HOST
    assert "insecure" in capsys.readouterr().out


async def ended(connections: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]) -> None:
    """Return once nothing comes any more on any of these, and nothing has come."""
    for reader, writer in connections:
        with contextlib.suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), DEADLINE_SECONDS) == b""
        writer.close()


async def test_of_too_many_connections_the_oldest_without_a_request_goes_and_prometheus_reads(
    monkeypatch,
) -> None:
    monkeypatch.setattr(endpoint, "_MOST_CONNECTIONS", 2)
    monkeypatch.setattr(endpoint, "_REQUEST_SECONDS", DEADLINE_SECONDS * 10)
    async with served_behind(None) as port:
        slow = [await asyncio.open_connection("127.0.0.1", port) for _ in range(5)]
        await ended(slow[:3])
        slow[4][1].write(b"GET /metrics HTTP/1.1\r\nx: ")
        assert (await response_to(port, "GET /metrics HTTP/1.1\r\n\r\n")).startswith("HTTP/1.1 200")
        await ended(slow[3:4])
        slow[4][1].write(b"\r\n\r\n")  # its turn to go never came
        assert (await asyncio.wait_for(slow[4][0].read(), DEADLINE_SECONDS)).startswith(b"HTTP/1.1 200")
        slow[4][1].close()


async def test_who_is_slow_with_a_request_is_cut(monkeypatch) -> None:
    monkeypatch.setattr(endpoint, "_REQUEST_SECONDS", 0.2)
    async with served_behind(None) as port:
        slow = await asyncio.open_connection("127.0.0.1", port)
        slow[1].write(b"GET /metrics HTTP/1.1\r\nx: ")
        await ended([slow])


async def test_a_client_that_takes_no_answer_is_cut(monkeypatch) -> None:
    monkeypatch.setattr(endpoint, "_ANSWER_SECONDS", 0.2)
    much = Metric("hoss_much", GAUGE, "x" * 1000, ("n",))
    metrics = Metrics(lambda: [much.by((f"{n}{'x' * 1000}", 1) for n in range(8000))])
    async with metrics_endpoint("127.0.0.1:0", metrics) as port:
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            await until(lambda: is_cut(client), "the connection to be cut")


def is_cut(client: socket.socket) -> bool:
    """Whether its peer takes nothing any more."""
    try:
        client.send(b"x")
    except ConnectionError:
        return True
    return False
