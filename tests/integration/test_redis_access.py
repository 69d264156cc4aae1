"""Connections to Redis: how they write, and who gets one."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from hoss.redis.access import Redis, reach

MORE_THAN_SOCKETS_HOLD = 32 * 2**20


@pytest_asyncio.fixture
async def client(empty_redis: Callable[[str], str]) -> AsyncIterator[Redis]:
    """A client that has one connection at most."""
    access = reach(empty_redis("server"), timeout_seconds=60.0, connections=1)
    yield await access.at("key")
    await access.close()


@pytest.fixture
def timers(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[float]]:
    """From its call on, the timers that are set."""

    def begin() -> list[float]:
        loop, found = asyncio.get_running_loop(), list[float]()
        make = loop.call_at

        def call_at(when: float, *rest: Any, **options: Any) -> asyncio.TimerHandle:
            found.append(when)
            return make(when, *rest, **options)

        monkeypatch.setattr(loop, "call_at", call_at)
        return found

    return begin


async def test_a_write_sets_no_timer(client: Redis, timers: Callable[[], list[float]]) -> None:
    connection = await client.connection_pool.get_connection()
    made = timers()
    await connection.send_packed_command(connection.pack_command("PING"))
    assert made == []
    assert await connection.read_response() == b"PONG"
    await client.connection_pool.release(connection)


async def test_a_free_connection_is_taken_without_a_timer(
    client: Redis, timers: Callable[[], list[float]]
) -> None:
    pool = client.connection_pool
    await pool.release(await pool.get_connection())
    made = timers()
    connection = await pool.get_connection()
    assert made == []
    await pool.release(connection)


async def test_a_command_longer_than_sockets_hold_arrives_whole(client: Redis) -> None:
    script = "--" + MORE_THAN_SOCKETS_HOLD * "x"
    # Its name is its digest: what any account may send, and Redis tells whether all of it came.
    assert await client.script_load(script) == hashlib.sha1(script.encode()).hexdigest()


class Unread:
    """Reader, writer and its transport of a connection to a server that does not read. `lost`: it has
    closed."""

    def __init__(self, *, lost: bool = False) -> None:
        self.transport = self
        self.written: list[bytes] = []
        self.lost = lost

    def at_eof(self) -> bool:
        return self.lost

    def exception(self) -> None:
        """None was raised."""

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        if self.lost:  # as TLS of Python 3.10 does
            raise AttributeError("the transport is gone")
        return sum(map(len, self.written))

    def writelines(self, parts: list[bytes]) -> None:
        self.written += parts

    async def drain(self) -> None:
        await asyncio.get_running_loop().create_future()

    def close(self) -> None:
        """Nothing to close."""


@pytest.mark.parametrize("earlier", [[], [b"of an earlier command"]])
async def test_a_server_that_does_not_read_is_given_up_after_the_timeout(earlier: list[bytes]) -> None:
    access = reach("redis://127.0.0.1:1", timeout_seconds=0.01, connections=1)
    connection: Any = (await access.at("key")).connection_pool.make_connection()
    writer = connection._writer = connection._reader = Unread()
    writer.written += earlier
    with pytest.raises(RedisTimeoutError):
        await connection.send_packed_command([b"PING"])
    assert writer.written == [*earlier, b"PING"]
    assert not connection.is_connected
    await access.close()


async def test_on_a_connection_that_was_lost_redis_py_writes_as_it_would() -> None:
    access = reach("redis://127.0.0.1:1", timeout_seconds=0.01, connections=1)
    connection: Any = (await access.at("key")).connection_pool.make_connection()
    connection._writer = connection._reader = Unread(lost=True)
    with pytest.raises(RedisTimeoutError):
        await connection.send_packed_command([b"PING"])
    await access.close()


async def test_who_waits_gets_the_connection_that_is_released(client: Redis) -> None:
    pool = client.connection_pool
    first = await pool.get_connection()
    waiter = asyncio.ensure_future(pool.get_connection())
    await asyncio.sleep(0)
    assert not waiter.done()
    await pool.release(first)
    assert await waiter is first
    await pool.release(first)


async def test_a_connection_that_cannot_be_made_is_not_lost_to_the_pool() -> None:
    access = reach("unix:///there/is/no/redis", timeout_seconds=60.0, connections=1)
    pool = (await access.at("key")).connection_pool
    for _ in range(2):
        with pytest.raises(RedisConnectionError, match="/there/is/no/redis"):
            await pool.get_connection()
    assert pool.can_get_connection()
    await access.close()
