"""Redis behind TLS and with an account of few rights, under a whole platform."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest
import redis
import trustme
from e2e.cluster import Cluster
from e2e.loads import all_bound, assert_clean, healed, prepare, submit
from redis_topologies import make_account
from waiting import until

from hoss.errors import LedgerUnavailable
from hoss.redis.url import PASSWORD_VARIABLE
from hossctl.endpoints import clients_of
from hossctl.local.process import ServiceProcess, launch_python
from hossctl.local.redis_server import RedisServer
from resolver.ledger.store import RedisLedger

PASSWORD = "a secret: 100%"


@pytest.fixture
def account(own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch) -> str:
    """The user that docs/operations/redis.md has made; its password is in the environment."""
    make_account(own_redis, PASSWORD)
    monkeypatch.setenv(PASSWORD_VARIABLE, PASSWORD)
    return "hoss"


async def test_the_documented_account_is_enough_even_for_a_rebuild(
    tmp_path: Path, own_redis: RedisServer, account: str
) -> None:
    with Cluster(tmp_path, redis_url=url_of(account, own_redis), shards=2, workers=["w1"]) as cluster:
        async with clients_of(cluster.endpoints) as clients:
            await prepare(clients, workers=1)
            await submit(clients, jobs=4, replicas=100)
            await until(lambda: all_bound(clients, 400))
            await clients.dispatcher.delete("default", jobs=["job-0"])
            cluster.kill("dispatcher")
            cluster.start_dispatcher()
            await until(lambda: all_bound(clients, 300))
            await assert_clean(clients, bound=300)
            with redis.Redis(port=own_redis.port) as client:
                client.flushall()
            await until(lambda: healed(clients, 300))
            assert cluster.events("dispatcher", "ledger_rebuilt")
            await assert_clean(clients, bound=300)
    with redis.Redis(port=own_redis.port) as client:
        assert client.execute_command("ACL", "LOG") == []


def test_the_password_stands_in_no_process_list(
    tmp_path: Path, own_redis: RedisServer, account: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A forked process has its parent's command line.
    monkeypatch.setattr(ServiceProcess, "launch", staticmethod(launch_python))
    with Cluster(tmp_path, redis_url=url_of(account, own_redis)):
        children = [
            p for p in psutil.Process().children(recursive=True) if p.status() != psutil.STATUS_ZOMBIE
        ]
        arguments = [" ".join(child.cmdline()) for child in children]
        assert sum("--redis-url" in line for line in arguments) == 2
        assert not any(PASSWORD in line for line in arguments)


def url_of(account: str, server: RedisServer) -> str:
    """Without the password, which the environment has."""
    return f"redis://{account}@127.0.0.1:{server.port}/0"


@pytest.mark.parametrize(
    "command", ["FLUSHALL", "KEYS *", "CONFIG GET *", "GET another:key", "ACL LIST", "EVAL return(1) 0"]
)
def test_the_documented_account_has_no_other_rights(
    own_redis: RedisServer, account: str, command: str
) -> None:
    with (
        redis.Redis(port=own_redis.port, username=account, password=PASSWORD) as client,
        pytest.raises(redis.exceptions.NoPermissionError),
    ):
        client.execute_command(*command.split())


async def test_a_wrong_password_is_said_and_not_shown(own_redis: RedisServer, account: str) -> None:
    ledger = RedisLedger(f"redis://{account}:not-it@127.0.0.1:{own_redis.port}/0")
    with pytest.raises(LedgerUnavailable, match=r"(?i)wrongpass|invalid username-password") as refused:
        await ledger.open(1)
    await ledger.close()
    assert "not-it" not in str(refused.value)


@pytest.fixture
async def tls(tmp_path: Path, own_redis: RedisServer) -> AsyncIterator[str]:
    """The URL of the Redis behind TLS that asks for a client certificate."""
    authority = trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.verify_mode = ssl.CERT_REQUIRED
    authority.issue_cert("localhost").configure_cert(context)
    authority.configure_trust(context)
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    ours = authority.issue_cert("hoss@example.com")
    ours.private_key_pem.write_to_path(tmp_path / "key.pem")
    ours.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        onward_reader, onward_writer = await asyncio.open_connection("127.0.0.1", own_redis.port)
        await asyncio.gather(_copy(reader, onward_writer), _copy(onward_reader, writer))

    server = await asyncio.start_server(forward, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    yield f"rediss://localhost:{port}/0?ssl_ca_certs={tmp_path}/ca.pem&ssl_certfile={tmp_path}/cert.pem&ssl_keyfile={tmp_path}/key.pem"
    server.close()


async def test_the_ledger_is_reached_through_tls_with_a_client_certificate(tls: str) -> None:
    ledger = RedisLedger(tls)
    await ledger.open(1)
    granted = await ledger.grant("w1")
    assert await ledger.workers_of([granted]) == {granted: "w1"}
    await ledger.close()


async def test_a_server_that_no_known_authority_vouches_for_is_refused(tls: str) -> None:
    ledger = RedisLedger(tls.partition("?")[0])
    with pytest.raises(LedgerUnavailable, match="certificate verify failed"):
        await ledger.open(1)
    await ledger.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(2**16):
            writer.write(data)
            await writer.drain()
    writer.close()
