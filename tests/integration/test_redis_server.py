"""A Redis of one's own: found, started, stopped, and errors that say what to do."""

import pytest
import redis

from hoss.errors import ConfigError
from hossctl.redis_server import RedisServer, find_redis_server


def test_an_append_only_server_that_is_stopped_keeps_what_it_held(tmp_path):
    server = RedisServer.start(tmp_path, append_only=True)
    with redis.Redis.from_url(server.url) as client:
        client.set("kept", "yes")
    server.stop()
    again = RedisServer.start(tmp_path, port=server.port, append_only=True)
    with redis.Redis.from_url(again.url) as client:
        assert client.get("kept") == b"yes"
    again.kill()


def test_a_port_that_another_redis_holds_is_refused_by_number(own_redis, tmp_path):
    with pytest.raises(ConfigError, match=f"port {own_redis.port} is in use"):
        RedisServer.start(tmp_path / "other", port=own_redis.port)


def test_without_any_binary_the_error_says_how_to_get_one(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(ConfigError, match="apt-get install redis-server"):
        find_redis_server()
