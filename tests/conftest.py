"""Fixtures that every kind of test may use."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from hossctl.redis_server import RedisServer


@pytest.fixture(scope="session")
def _session_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer.start(tmp_path_factory.mktemp("redis"))
    yield server
    server.stop()


@pytest.fixture
def redis_server(_session_redis: RedisServer) -> RedisServer:
    """A running Redis that holds nothing. One process serves the whole run: do not stop it, see `own_redis`."""
    with redis.Redis(port=_session_redis.port) as client:
        client.flushall()
        client.script_flush()
    return _session_redis


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[RedisServer]:
    """A Redis process of this test alone, append-only in `tmp_path / "redis"`, for tests that stop or freeze it."""
    server = RedisServer.start(tmp_path / "redis", append_only=True)
    yield server
    server.kill()
