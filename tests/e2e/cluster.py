"""A whole platform whose parts can be killed, frozen, and started again at the address they had."""

import time
from collections.abc import Sequence
from pathlib import Path

import psutil
from waiting import DEADLINE_SECONDS

from hossctl.endpoints import Endpoints
from hossctl.ports import free_ports
from hossctl.process import Service, stop_all
from hossctl.redis_server import RedisServer

READY_SECONDS = DEADLINE_SECONDS
# Of several dispatchers, beside each other: one that the machine holds up for some seconds stays the active one.
LEASE_SECONDS = 4.0


class Cluster:
    """Redis with an append-only file, one resolver, dispatchers, and workers; every service its own process.

    Of two dispatchers the first, named `dispatcher`, is the active one at the start; the other is `dispatcher-2`.
    """

    def __init__(
        self,
        directory: Path,
        *,
        shards: int = 1,
        dispatchers: int = 1,
        redis_url: str = "",
        policy: Path | None = None,
        fsync: str = "everysec",
        kubeconfig: Path | None = None,
        resolver_flags: Sequence[str] = (),
        dispatcher_flags: Sequence[str] = (),
    ) -> None:
        """`redis_url`: of one that is there, instead of a server of its own. `fsync`: Redis' appendfsync. `kubeconfig`: of the
        cluster that it is to schedule."""
        self._resolver_flags = resolver_flags
        lease = ("--lease-seconds", str(LEASE_SECONDS)) if dispatchers > 1 else ()
        self._dispatcher_flags = (*lease, *dispatcher_flags)
        self._of_cluster = [] if kubeconfig is None else ["--kubeconfig", str(kubeconfig)]
        self._directory = directory
        self._shards = shards
        self._fsync = fsync
        self._policy = policy
        self._services: dict[str, Service] = {}
        self.redis: RedisServer | None = None
        self._dispatchers = ["dispatcher", "dispatcher-2"][:dispatchers]
        listening = ("redis", "resolver", *self._dispatchers)
        self._ports = dict(zip(listening, free_ports(len(listening)), strict=True))
        self._redis_url = redis_url or f"redis://{self.address('redis')}/0"
        if not redis_url:
            self.start_redis()
        self.start_resolver()
        for name in self._dispatchers:
            self.start_dispatcher(name)

    @property
    def endpoints(self) -> Endpoints:
        return Endpoints(self._dispatcher_addresses, self.address("resolver"))

    def start_redis(self) -> None:
        self.redis = RedisServer.start(
            self._directory / "redis", port=self._ports["redis"], append_only=True, options={"appendfsync": self._fsync}
        )

    def start_resolver(self) -> None:
        arguments = ["--listen", self.address("resolver"), "--redis-url", self._redis_url]
        self._start(
            "resolver", "resolver", *arguments, "--shards", str(self._shards), *self._of_cluster, *self._resolver_flags
        )

    def start_dispatcher(self, name: str = "dispatcher", *flags: str) -> None:
        arguments = ["--listen", self.address(name), "--redis-url", self._redis_url]
        if self._policy is not None:
            arguments += ["--policy", str(self._policy)]
        arguments += ["--resolver", self.address("resolver"), *self._of_cluster, *self._dispatcher_flags]
        self._start(name, "dispatcher", *arguments, *flags)

    def start_worker(self, name: str, *labels: str, options: Sequence[str] = ()) -> None:
        arguments = ["--name", name, "--dispatcher", self._dispatcher_addresses, "--seed", str(len(self._services))]
        arguments += ["--resolver", self.address("resolver"), *options]
        self._start(name, "scheduler_worker", *arguments, *(part for label in labels for part in ("--label", label)))

    def pid(self, name: str) -> int:
        """Of a service that was started."""
        return self._services[name].record.pid

    def runs(self, name: str) -> bool:
        """Whether a service that was started has not ended."""
        return self._services[name].record.find() is not None

    def kill(self, name: str) -> None:
        """As kill -9, and wait until it is gone."""
        process = psutil.Process(self._services[name].record.pid)
        process.kill()
        psutil.wait_procs([process], timeout=READY_SECONDS)

    def end(self, name: str) -> None:
        """As SIGTERM, and wait until it is gone, however long it takes to write what it has to say."""
        stop_all([self._services[name].record], grace_seconds=READY_SECONDS)

    def terminate(self, name: str) -> None:
        """As SIGTERM, without waiting."""
        psutil.Process(self._services[name].record.pid).terminate()

    def await_end(self, name: str, *, seconds: float) -> None:
        """Return when it is gone; fails the test when it is not in time."""
        process = self._services[name].record.find()
        if process is not None:
            gone, _ = psutil.wait_procs([process], timeout=seconds)
            assert gone, f"{name} has not ended within {seconds:g} s"

    def freeze(self, name: str) -> None:
        """As a machine that stalls: it does nothing, and its connections stay open."""
        psutil.Process(self._services[name].record.pid).suspend()

    def thaw(self, name: str) -> None:
        """It goes on as if nothing had happened."""
        psutil.Process(self._services[name].record.pid).resume()

    def log(self, name: str) -> str:
        """What a service has said."""
        return self._services[name].log.read_text()

    def stop(self) -> None:
        stop_all([service.record for service in reversed(self._services.values())])
        if self.redis is not None:
            self.redis.kill()

    def _start(self, name: str, module: str, *arguments: str) -> None:
        service = self._services[name] = Service(name, module, arguments, self._directory)
        service.wait_ready(time.monotonic() + READY_SECONDS)

    @property
    def _dispatcher_addresses(self) -> str:
        return ",".join(map(self.address, self._dispatchers))

    def address(self, name: str) -> str:
        """Where a service listens."""
        return f"127.0.0.1:{self._ports[name]}"

    def dashboard(self, name: str) -> str:
        """The URL of a dispatcher's dashboard."""
        return self._services[name].record.dashboard
