"""A whole platform whose parts can be killed and started again at the address they had."""

import socket
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from hossctl.endpoints import Endpoints
from hossctl.process import Service, stop_all
from hossctl.redis_server import RedisServer

READY_SECONDS = 30.0


class Cluster:
    """Redis with an append-only file, one resolver, one dispatcher, and workers; every service its own process."""

    def __init__(self, directory: Path, *, shards: int = 1, redis_url: str = "", policy: Path | None = None) -> None:
        """`redis_url`: of one that is there, instead of a server of its own."""
        self._directory = directory
        self._shards = shards
        self._policy = policy
        self._services: dict[str, Service] = {}
        self.redis: RedisServer | None = None
        self._ports = {name: _free_port() for name in ("redis", "resolver", "dispatcher")}
        self._redis_url = redis_url or f"redis://{self._address('redis')}/0"
        if not redis_url:
            self.start_redis()
        self.start_resolver()
        self.start_dispatcher()

    @property
    def endpoints(self) -> Endpoints:
        return Endpoints(self._address("dispatcher"), self._address("resolver"))

    def start_redis(self) -> None:
        self.redis = RedisServer.start(self._directory / "redis", port=self._ports["redis"], append_only=True)

    def start_resolver(self) -> None:
        arguments = ["--listen", self._address("resolver"), "--redis-url", self._redis_url]
        self._start("resolver", "resolver", *arguments, "--shards", str(self._shards))

    def start_dispatcher(self) -> None:
        arguments = ["--listen", self._address("dispatcher"), "--redis-url", self._redis_url]
        if self._policy is not None:
            arguments += ["--policy", str(self._policy)]
        self._start("dispatcher", "dispatcher", *arguments, "--resolver", self._address("resolver"))

    def start_worker(self, name: str, *labels: str, options: Sequence[str] = ()) -> None:
        arguments = ["--name", name, "--dispatcher", self._address("dispatcher"), "--seed", str(len(self._services))]
        arguments += ["--resolver", self._address("resolver"), *options]
        self._start(name, "scheduler_worker", *arguments, *(part for label in labels for part in ("--label", label)))

    def kill(self, name: str) -> None:
        """As kill -9, and wait until it is gone."""
        process = psutil.Process(self._services[name].record.pid)
        process.kill()
        psutil.wait_procs([process], timeout=READY_SECONDS)

    def terminate(self, name: str) -> None:
        """As kill -15, without waiting."""
        psutil.Process(self._services[name].record.pid).terminate()

    def await_end(self, name: str, *, seconds: float) -> None:
        """Return when it is gone; fails the test when it is not in time."""
        process = self._services[name].record.find()
        if process is not None:
            gone, _ = psutil.wait_procs([process], timeout=seconds)
            assert gone, f"{name} has not ended within {seconds:g} s"

    def freeze(self, name: str) -> None:
        """As kill -STOP."""
        psutil.Process(self._services[name].record.pid).suspend()

    def thaw(self, name: str) -> None:
        """As kill -CONT."""
        psutil.Process(self._services[name].record.pid).resume()

    def stop(self) -> None:
        stop_all([service.record for service in reversed(self._services.values())])
        if self.redis is not None:
            self.redis.kill()

    def _start(self, name: str, module: str, *arguments: str) -> None:
        service = self._services[name] = Service(name, module, arguments, self._directory)
        service.wait_ready(time.monotonic() + READY_SECONDS)

    def _address(self, name: str) -> str:
        return f"127.0.0.1:{self._ports[name]}"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
