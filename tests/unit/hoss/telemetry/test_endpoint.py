"""The endpoint that Prometheus reads, over a real socket."""

import asyncio
import ssl

import pytest
from waiting import DEADLINE_SECONDS

from hoss.errors import ConfigError
from hoss.host import THIS_HOST
from hoss.security.authority import Authority
from hoss.security.identity import CallerKind, Identity
from hoss.security.options import metrics_context
from hoss.security.transport import server_name
from hoss.telemetry.endpoint import metrics_endpoint
from hoss.telemetry.metrics import Metrics, process_source


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


async def test_with_tls_it_answers_whoever_has_a_certificate_and_takes_a_new_one_of_its_own(tmp_path):
    authority = Authority.create(tmp_path / "authority", now=THIS_HOST.utc_now())
    served = authority.issue(Identity(CallerKind.RESOLVER), now=THIS_HOST.utc_now())
    client = authority.issue(Identity(CallerKind.CLIENT, "prometheus"), now=THIS_HOST.utc_now())
    context = metrics_context(True, served.directory)

    async def scrape(port: int, certified: bool) -> tuple[bytes, bytes]:
        tls = ssl.create_default_context(cafile=client.directory / "ca.crt")
        if certified:
            tls.load_cert_chain(client.directory / "tls.crt", client.directory / "tls.key")
        name = server_name("resolver")
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls, server_hostname=name)
        shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
        try:
            return await reader.read(), shown
        finally:
            writer.close()

    async def refused(port: int) -> bool:
        try:
            answer, _ = await scrape(port, certified=False)
        except OSError:  # closed, or told that a certificate is missing
            return True
        return not answer

    async with metrics_endpoint("127.0.0.1:0", Metrics(process_source("tests")), context) as port:
        answer, first = await scrape(port, certified=True)
        assert b"process_cpu_seconds_total" in answer
        assert await refused(port)
        authority.renew(served, now=THIS_HOST.utc_now())
        answer, second = await scrape(port, certified=True)
        assert b"process_cpu_seconds_total" in answer
        assert first != second


def test_metrics_over_tls_take_a_certificate():
    with pytest.raises(ConfigError, match="--tls-dir"):
        metrics_context(True, None)
