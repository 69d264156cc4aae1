"""A whole platform whose parts can be killed, frozen, and started again at the address they had."""

import contextlib
import json
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import psutil
import redis
from typing_extensions import Self
from waiting import DEADLINE_SECONDS, wait_until

from hoss.redis.accounts import DISPATCHER, RESOLVER, RedisAccount
from hossctl.endpoints import Endpoints
from hossctl.local.ports import free_ports
from hossctl.local.process import ServiceProcess, stop_all
from hossctl.local.redis_server import RedisServer

READY_SECONDS = DEADLINE_SECONDS
# Of several dispatchers, beside each other: one that the machine holds up for some seconds stays the active
# one.
LEASE_SECONDS = 4.0

ClusterT = TypeVar("ClusterT", bound="Cluster")


def denied(server: RedisServer) -> list[Any]:
    """What Redis has refused to an account for want of a right; empty of a server that does not answer."""
    with (
        contextlib.suppress(redis.RedisError, OSError),
        redis.Redis(port=server.port, socket_timeout=5.0) as client,
    ):
        return list(client.acl_log())
    return []


class Cluster:
    """Redis with an append-only file, resolvers, dispatchers, and workers; every service its own process.

    Of two dispatchers the first, named `dispatcher`, is the active one at the start; the other is
    `dispatcher-2`. Of two resolvers the second is `resolver-2`. Workers that are named at the start are
    started side by side."""

    def __init__(
        self,
        directory: Path,
        *,
        shards: int = 1,
        dispatchers: int = 1,
        resolvers: int = 1,
        redis_url: str = "",
        policy: Path | None = None,
        fsync: str = "everysec",
        kubeconfig: Path | None = None,
        resolver_port: int = 0,
        webhook_ports: Sequence[int] = (),
        resolver_flags: Sequence[str] = (),
        dispatcher_flags: Sequence[str] = (),
        workers: Sequence[str] = (),
        worker_flags: Sequence[str] = (),
    ) -> None:
        """`redis_url`: of one that is there, instead of a server of its own. `fsync`: Redis' appendfsync.
        `kubeconfig`: of the cluster that it is to schedule. `resolver_port`: where the resolver listens; 0
        takes a free one. `webhook_ports`: of each resolver, where it serves the binding webhook."""
        self._resolver_flags = resolver_flags
        self._worker_flags = worker_flags
        lease = ("--lease-seconds", str(LEASE_SECONDS)) if dispatchers > 1 else ()
        self._dispatcher_flags = (*lease, *dispatcher_flags)
        self._of_cluster = [] if kubeconfig is None else ["--kubeconfig", str(kubeconfig)]
        self._directory = directory
        self._shards = shards
        self._fsync = fsync
        self._policy = policy
        self._services: dict[str, ServiceProcess] = {}
        self.redis: RedisServer | None = None
        self._dispatchers = ["dispatcher", "dispatcher-2"][:dispatchers]
        self._resolvers = ["resolver", "resolver-2"][:resolvers]
        self._webhook_ports = dict(zip(self._resolvers, webhook_ports, strict=False))
        listening = ("redis", *self._resolvers, *self._dispatchers)
        self._ports = dict(zip(listening, free_ports(len(listening)), strict=True))
        self._ports["resolver"] = resolver_port or self._ports["resolver"]
        self._redis_url = redis_url
        if not redis_url:
            self.start_redis()
        for name in self._resolvers:
            self.start_resolver(name)
        for name in self._dispatchers[:1]:
            self.start_dispatcher(name)
        for name in self._dispatchers[1:]:
            self.start_standby(name)
        for name in workers:
            self._launch_worker(name)
        for name in workers:
            self._await_ready(name)

    @property
    def endpoints(self) -> Endpoints:
        return Endpoints(self._dispatcher_addresses, self._resolver_addresses)

    def start_redis(self) -> None:
        self.redis = RedisServer.start(
            self._directory / "redis",
            port=self._ports["redis"],
            append_only=True,
            options={"appendfsync": self._fsync},
            accounts=self._accounts,
        )

    @property
    def _accounts(self) -> Path:
        return self._directory / "accounts"

    def _redis_url_of(self, account: RedisAccount) -> str:
        """Each service has its own account, as with `hoss up`."""
        if self._redis_url:
            return self._redis_url
        file = quote(str(self._accounts / account.password_file))
        return f"redis://{account.name}@{self.address('redis')}/0?password_file={file}"

    def start_resolver(self, name: str = "resolver") -> None:
        arguments = ["--listen", self.address(name), "--redis-url", self._redis_url_of(RESOLVER)]
        flags = ["--shards", str(self._shards), *self._of_cluster, *self._resolver_flags]
        if name in self._webhook_ports:
            flags += ["--webhook-listen", f"127.0.0.1:{self._webhook_ports[name]}"]
            flags += ["--webhook-host", "127.0.0.1"]
        self._launch(name, "resolver", *arguments, *flags)
        self._await_ready(name)

    def start_dispatcher(self, name: str = "dispatcher", *flags: str) -> None:
        self._launch_dispatcher(name, *flags)
        self._await_ready(name)

    def start_standby(self, name: str) -> None:
        """A dispatcher beside an active one. It calls itself ready only when a lease of a dead one would have
        run out; it stands by from the moment that it listens."""
        self._launch_dispatcher(name)
        wait_until(lambda: self._listens(name), f"{name} to listen")

    def start_worker(self, name: str, *labels: str, options: Sequence[str] = ()) -> None:
        self._launch_worker(name, *labels, options=options)
        self._await_ready(name)

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

    def events(self, name: str, event: str) -> list[dict[str, Any]]:
        """What a service has logged of one kind, in order."""
        lines = (json.loads(line) for line in self.log(name).splitlines() if line.startswith("{"))
        return [line for line in lines if line["event"] == event]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        stop_all([service.record for service in reversed(self._services.values())])
        if self.redis is not None:
            refused = denied(self.redis)
            self.redis.kill()
            assert refused == []

    def address(self, name: str) -> str:
        """Where a service listens."""
        return f"127.0.0.1:{self._ports[name]}"

    def start_dashboard(self, *flags: str) -> str:
        """A dashboard; returns its URL."""
        arguments = ["--dispatcher", self._dispatcher_addresses, "--resolver", self._resolver_addresses]
        listen = [] if "--listen" in flags else ["--listen", "127.0.0.1:0"]
        self._launch("dashboard", "hossctl", "dashboard", *listen, *arguments, *flags)
        return self.dashboard()

    def dashboard(self) -> str:
        """The URL of the dashboard that was started."""
        self._await_ready("dashboard")
        return self._services["dashboard"].record.dashboard

    def metrics(self, name: str) -> str:
        """Where a service that was told to listen for Prometheus does."""
        self._await_ready(name)
        return self._services[name].record.metrics

    def _launch_dispatcher(self, name: str, *flags: str) -> None:
        arguments = ["--listen", self.address(name), "--redis-url", self._redis_url_of(DISPATCHER)]
        if self._policy is not None:
            arguments += ["--policy", str(self._policy)]
        arguments += ["--resolver", self._resolver_addresses, *self._of_cluster, *self._dispatcher_flags]
        self._launch(name, "dispatcher", *arguments, *flags)

    def _launch_worker(self, name: str, *labels: str, options: Sequence[str] = ()) -> None:
        arguments = [
            "--name",
            name,
            "--dispatcher",
            self._dispatcher_addresses,
            "--seed",
            str(len(self._services)),
        ]
        arguments += ["--resolver", self._resolver_addresses, *self._worker_flags, *options]
        self._launch(
            name, "scheduler_worker", *arguments, *(part for label in labels for part in ("--label", label))
        )

    def _launch(self, name: str, module: str, *arguments: str) -> None:
        self._services[name] = ServiceProcess(name, module, arguments, self._directory)

    def _await_ready(self, name: str) -> None:
        self._services[name].wait_ready(time.monotonic() + READY_SECONDS)

    def _listens(self, name: str) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self._ports[name])) == 0

    @property
    def _dispatcher_addresses(self) -> str:
        return ",".join(map(self.address, self._dispatchers))

    @property
    def _resolver_addresses(self) -> str:
        return ",".join(map(self.address, self._resolvers))
