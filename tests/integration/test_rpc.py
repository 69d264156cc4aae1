"""Servers and channels as every service makes them."""

import asyncio
import contextlib

import grpc
import grpc.aio
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from waiting import DEADLINE_SECONDS, until

from hoss import rpc, serving
from hoss.client.resolver import ResolverClient
from hoss.errors import ConfigError, TransportError
from hoss.host import THIS_HOST
from hoss.security.authority import Authority
from hoss.security.identity import CallerKind, Identity
from hoss.security.transport import TlsFiles, server_credentials
from hoss.v1.resolver_pb2_grpc import ResolverServicer, add_ResolverServicer_to_server
from resolver.config import ResolverConfig

LEASE_SECONDS = ResolverConfig().reservation_lease_seconds
PINGS = 6  # a server that is not told otherwise says GOAWAY at the third within five minutes
PING_SECONDS = 1.0  # above the least interval that servers allow
_PREFACE_BYTES, _FRAME_HEAD_BYTES = 24, 9
_PING, _ACK = 6, 1


class CountingProxy:
    """Between a client and a server: passes on what they say, and counts the client's HTTP/2 pings that the
    server answered."""

    def __init__(self, server_port: int) -> None:
        self.pings = 0
        self.serving: list[asyncio.Task[None] | None] = []
        self._server_port = server_port

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.serving.append(asyncio.current_task())
        there, back = await asyncio.open_connection("127.0.0.1", self._server_port)
        back.write(await reader.readexactly(_PREFACE_BYTES))
        await asyncio.gather(self._pass_on(reader, back), self._pass_on(there, writer))

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readexactly(_FRAME_HEAD_BYTES)
                self.pings += head[3] == _PING and head[4] == _ACK
                writer.write(head + await reader.readexactly(int.from_bytes(head[:3], "big")))


async def test_an_idle_stream_outlives_keepalive_pings():
    server = serving.Server()
    proxy = CountingProxy(await server.start("127.0.0.1:0", ["some.Service"], serving=False))
    listening = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    options = [
        ("grpc.keepalive_time_ms", int(PING_SECONDS * 1000)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    ]
    port = listening.sockets[0].getsockname()[1]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(
            health_pb2.HealthCheckRequest(service="some.Service")
        )
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        await until(lambda: proxy.pings >= PINGS, lambda: f"{PINGS} pings; there were {proxy.pings}")
        await server.set_serving(True, "some.Service")
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
    await server.stop(0)
    listening.close()
    await asyncio.gather(*filter(None, proxy.serving))  # else a connection may outlive the loop


async def test_a_server_that_takes_longer_than_a_second_for_a_new_connection_is_reached():
    """A busy machine, or one far away. The longest pause between two attempts is a second and a fifth: if no
    attempt lasted longer than that, none would succeed."""
    server, passing = serving.Server(), []
    port = await server.start("127.0.0.1:0", [])

    async def serve(reader, writer):
        passing.append(asyncio.current_task())
        await asyncio.sleep(1.5)
        with contextlib.closing(writer), contextlib.suppress(ConnectionError):
            there, back = await asyncio.open_connection("127.0.0.1", port)
            await asyncio.gather(_copied(reader, back), _copied(there, writer))

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with rpc.channel([f"127.0.0.1:{listening.sockets[0].getsockname()[1]}"]) as channel:
        request = health_pb2.HealthCheckRequest()
        reply = await health_pb2_grpc.HealthStub(channel).Check(
            request, wait_for_ready=True, timeout=DEADLINE_SECONDS
        )
    assert reply.status == health_pb2.HealthCheckResponse.SERVING
    await server.stop(0)
    listening.close()
    await asyncio.gather(*passing)


async def _copied(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while part := await reader.read(65_536):
            writer.write(part)
    writer.close()


async def test_a_port_in_use_is_named():
    first, second = serving.Server(), serving.Server()
    port = await first.start("127.0.0.1:0", [])
    with pytest.raises(ConfigError, match=f"listen address 127.0.0.1:{port}: .*in use"):
        await second.start(f"127.0.0.1:{port}", [])
    await first.stop(0)


async def test_one_of_several_addresses_that_is_no_name_is_said():
    with pytest.raises(TransportError, match=r"no-such-host\.invalid"):
        rpc.channel(["127.0.0.1:1", "no-such-host.invalid:2"])


async def test_of_the_servers_of_a_dns_name_only_those_get_calls_whose_service_serves():
    """As a headless Service names dispatchers, of which one is active."""
    server = serving.Server()
    port = await server.start("127.0.0.1:0", ["some.Service"], serving=False)
    async with rpc.channel([f"dns:///localhost:{port}"], service="some.Service") as channel:
        check = health_pb2_grpc.HealthStub(channel).Check
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await check(health_pb2.HealthCheckRequest(), timeout=DEADLINE_SECONDS)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        await server.set_serving(True, "some.Service")
        answer = await check(health_pb2.HealthCheckRequest(), wait_for_ready=True, timeout=DEADLINE_SECONDS)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
    await server.stop(0)


async def test_who_watches_the_health_of_a_service_is_told_of_changes_after_another_watcher_has_gone():
    """As the workers of a standby, when somebody who looked at it leaves."""
    server, name = serving.Server(), "some.Service"
    port = await server.start("127.0.0.1:0", [name], serving=False)
    request = health_pb2.HealthCheckRequest(service=name)
    async with contextlib.AsyncExitStack() as stack:
        options = [("grpc.use_local_subchannel_pool", 1)]  # a connection each, as two processes have
        channels = [grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) for _ in range(2)]
        staying, leaving = [
            health_pb2_grpc.HealthStub(await stack.enter_async_context(c)).Watch(request) for c in channels
        ]
        for watch in (staying, leaving):
            assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        await channels[1].close()
        await until(lambda: server.health_watchers(name) == 1, "the server to notice that one has left")
        await server.set_serving(True, name)
        told = await asyncio.wait_for(staying.read(), DEADLINE_SECONDS)
        assert told.status == health_pb2.HealthCheckResponse.SERVING
    await server.stop(0)


async def test_a_server_that_stops_tells_watchers_that_its_services_do_not_serve_and_keeps_to_it():
    server, name = serving.Server(), "some.Service"
    port = await server.start("127.0.0.1:0", [name])
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service=name))
        unknown = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service="no"))
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        assert (await unknown.read()).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
        stopping = asyncio.ensure_future(server.stop(DEADLINE_SECONDS))
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        await server.set_serving(True, name)
        unknown.cancel()
        watch.cancel()
        await stopping


async def test_a_server_describes_its_services_by_reflection_only_where_it_is_told_to():
    question = reflection_pb2.ServerReflectionRequest(list_services="")
    for reflected in (False, True):
        server = serving.Server()
        port = await server.start("127.0.0.1:0", ["some.Service"], reflected=reflected)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            call = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(
                iter([question]), timeout=DEADLINE_SECONDS
            )
            if reflected:
                answer = await call.read()
                assert "some.Service" in {s.name for s in answer.list_services_response.service}
            else:
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await call.read()
                assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
        await server.stop(0)


class SilentResolver(ResolverServicer):
    """Answers neither confirmations nor releases."""

    async def Confirm(self, _request, _context):  # noqa: N802 - gRPC's name
        await asyncio.Event().wait()

    Release = Confirm


async def test_who_waits_for_a_confirmation_or_a_release_asks_again_long_before_leases_end():
    """A confirmation may also wait for a release: of the pods of its commits that were not ready."""
    server = serving.Server()
    add_ResolverServicer_to_server(SilentResolver(), server.grpc)
    port = await server.start("127.0.0.1:0", ["some.Service"])
    client = ResolverClient([f"127.0.0.1:{port}"], open_channel=rpc.channel)
    asked = client.confirm({0: np.ones(1, np.uint64)}), client.release(np.zeros((1, 16), np.uint8))
    began = asyncio.get_running_loop().time()
    answers = await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), DEADLINE_SECONDS)
    assert [type(answer) for answer in answers] == [TransportError, TransportError]
    assert asyncio.get_running_loop().time() - began < LEASE_SECONDS / 3
    await client.close()
    await server.stop()


async def test_who_does_not_get_through_the_handshake_is_cut(tmp_path, monkeypatch):
    name, quick = "grpc.server_handshake_timeout_ms", 200
    options = dict(serving._SERVER_OPTIONS)
    assert 0 < options[name] <= 30_000
    monkeypatch.setattr(serving, "_SERVER_OPTIONS", [*{**options, name: quick}.items()])
    authority = Authority.create(tmp_path, now=THIS_HOST.utc_now())
    files = authority.issue(Identity(CallerKind.DISPATCHER), now=THIS_HOST.utc_now()).directory
    server = serving.Server(credentials=server_credentials(TlsFiles(files)))
    port = await server.start("127.0.0.1:0", ())
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    assert await asyncio.wait_for(reader.read(), DEADLINE_SECONDS) == b""
    writer.close()
    await server.stop(0)
