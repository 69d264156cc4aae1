"""A platform whose every process can be killed, frozen and started again: two dispatchers, two resolvers,
three workers, and Redis with what a fault needs of it (a replica and Sentinel, a small disk, a clock that can
be set).

All processes are ended by their own process ids."""

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil
import redis

from hoss.errors import HossError
from hossctl.endpoints import Endpoints
from hossctl.local.ports import free_ports
from hossctl.local.process import READY_SECONDS, ServiceProcess, has_ended, launch_python, stop_all
from hossctl.local.redis_server import RedisServer, find_redis_server
from tools.faults.machines import Network

DISPATCHERS = ("dispatcher-1", "dispatcher-2")
RESOLVERS = ("resolver-1", "resolver-2")
WORKERS = ("w1", "w2", "w3")
SERVICES = (*DISPATCHERS, *RESOLVERS, *WORKERS)
HERE = "here"
SHARDS = 2
_MODULES = {"dispatcher": "dispatcher", "resolver": "resolver", "w": "scheduler_worker"}
_SENTINEL_NAME = "hoss"
_SILENCE_MS = 1000
_DISK_MIB = 24
_FAKETIME = (
    "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1",
    "/usr/lib/aarch64-linux-gnu/faketime/libfaketimeMT.so.1",
)


@dataclass(frozen=True, slots=True)
class Needs:
    """What a fault needs of the platform beside its processes."""

    network: bool = False
    sentinel: bool = False
    small_disk: bool = False
    clocks: bool = False
    cgroup: bool = False
    fsync: str = "everysec"


class PlacedProcess(ServiceProcess):
    """A service on a machine of its own, or with a clock of its own."""

    def __init__(
        self,
        name: str,
        module: str,
        arguments: Sequence[str],
        directory: Path,
        *,
        prefix: Sequence[str],
        environment: Mapping[str, str],
    ) -> None:
        if prefix or environment:
            self.launch = partial(launch_python, prefix=prefix, environment=environment)
        super().__init__(name, module, arguments, directory)


class Platform:
    """The processes, by name. Redis is `redis`, with Sentinel `redis-1` and `redis-2`."""

    def __init__(self, directory: Path, needs: Needs, network: Network | None) -> None:
        self.needs = needs
        self._network = network
        self._directory = directory
        self._services: dict[str, ServiceProcess] = {}
        self._redis: dict[str, RedisServer] = {}
        self._sentinel: subprocess.Popen[bytes] | None = None
        ports = free_ports(len(SERVICES) + 3)
        names = (*SERVICES, "redis-1", "redis-2", "sentinel")
        self._ports = dict(zip(names, ports, strict=True))

    @classmethod
    @contextlib.contextmanager
    def running(cls, directory: Path, needs: Needs) -> "Iterator[Platform]":
        """A platform for the length of the block."""
        directory.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as stack:
            network = stack.enter_context(Network.opened(SERVICES)) if needs.network else None
            if needs.small_disk:
                stack.enter_context(_small_disk(directory / "redis-1"))
            platform = cls(directory, needs, network)
            stack.callback(platform._stop)
            platform._start()
            yield platform

    @property
    def endpoints(self) -> Endpoints:
        return Endpoints(*(",".join(map(self.address, names)) for names in (DISPATCHERS, RESOLVERS)))

    def address(self, name: str) -> str:
        """Where a service listens."""
        return f"{self._host(name)}:{self._ports[name]}"

    @property
    def network(self) -> Network:
        """Of a platform that needs one."""
        if self._network is None:
            raise HossError("this platform has no network of its own")
        return self._network

    # -- services

    def start(self, name: str) -> None:
        """Start a service, or Redis, as it was; returns when it serves, or stands by."""
        if name in ("redis-1", "redis-2"):
            self._start_redis(name)
            return
        self._launch(name)
        self._await_ready(name)

    def runs(self, name: str) -> bool:
        """Whether a process that was started has not ended."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return not has_ended(self.process(name))
        return False

    def kill(self, name: str) -> None:
        """As kill -9, and wait until it is gone."""
        if name in self._redis:
            self._redis[name].kill()
            return
        process = self.process(name)
        process.kill()
        psutil.wait_procs([process], timeout=READY_SECONDS)

    def restart(self, name: str) -> None:
        """As an upgrade does: SIGTERM, and a new one when it has ended by itself."""
        if stop_all([self._services[name].record]):
            raise HossError(f"{name} has not ended by itself after SIGTERM")
        self.start(name)

    def freeze(self, name: str) -> None:
        """As SIGSTOP."""
        self.process(name).suspend()

    def thaw(self, name: str) -> None:
        """As SIGCONT."""
        with contextlib.suppress(psutil.NoSuchProcess):
            self.process(name).resume()

    def pid(self, name: str) -> int:
        return self._redis[name].pid if name in self._redis else self._services[name].record.pid

    def set_clock(self, name: str, seconds: int) -> None:
        """From now on the clock of a process is so far from the machine's."""
        self._clock_file(name).write_text(f"{seconds:+d}\n")

    def heal(self) -> None:
        """Thaw what is frozen and start what has ended; returns when all of it serves."""
        if self._network is not None:
            self._network.heal()
        for name in self._redis:
            if self.runs(name):
                self.thaw(name)
            else:
                self._start_redis(name)
        ended = [name for name in self._services if not self.runs(name)]
        for name in self._services:
            if name not in ended:
                self.thaw(name)
        for name in ended:
            self._launch(name)
        for name in ended:
            self._await_ready(name)

    # -- Redis

    def redis(self, name: str = "") -> "redis.Redis":
        """A client of a server; of the master where no name is given."""
        return redis.Redis(port=self._ports[name or self.master()], socket_timeout=5.0)

    def master(self) -> str:
        """The name of the server that is the master at present."""
        if self._sentinel is None:
            return "redis-1"
        with redis.Redis(port=self._ports["sentinel"]) as sentinel:
            _, port = sentinel.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", _SENTINEL_NAME)
        return next(name for name in self._redis if self._ports[name] == int(port))

    def redis_directory(self, name: str = "redis-1") -> Path:
        return self._directory / name

    def replica_follows(self) -> bool:
        """Whether the other server has all that the master has, and Sentinel knows both."""
        with contextlib.suppress(redis.RedisError), self.redis() as master:
            state = master.info("replication")
            return any(
                replica.get("state") == "online" and replica.get("lag", 9) <= 1
                for key, replica in state.items()
                if key.startswith("slave") and isinstance(replica, dict)
            )
        return False

    # -- inside

    def _host(self, name: str) -> str:
        return "127.0.0.1" if self._network is None else self._network.address(name)

    def _redis_url(self) -> str:
        if self.needs.sentinel:
            return f"redis+sentinel://127.0.0.1:{self._ports['sentinel']}/{_SENTINEL_NAME}/0"
        return f"redis://{self._host(HERE)}:{self._ports['redis-1']}/0"

    def process(self, name: str) -> psutil.Process:
        """Of a name."""
        return psutil.Process(self.pid(name))

    def _clock_file(self, name: str) -> Path:
        return self._directory / f"{name}.clock"

    def _clock(self, name: str) -> dict[str, str]:
        """The environment that gives a process a clock that can be set."""
        if not self.needs.clocks:
            return {}
        self._clock_file(name).write_text("+0\n")
        return {
            "LD_PRELOAD": str(faketime()),
            "FAKETIME_TIMESTAMP_FILE": str(self._clock_file(name)),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "FAKETIME_DONT_RESET": "1",
        }

    def _start(self) -> None:
        self._start_redis("redis-1")
        if self.needs.sentinel:
            self._start_redis("redis-2")
            self._start_sentinel()
        for tier in (RESOLVERS, DISPATCHERS, WORKERS):
            for name in tier:
                self._launch(name)
            for name in tier if tier != DISPATCHERS else ():
                self._await_ready(name)

    def _start_redis(self, name: str) -> None:
        options = {"appendfsync": self.needs.fsync, "repl-diskless-sync-delay": "0"}
        if self._network is not None:
            options |= {"bind": f"127.0.0.1 {self._host(HERE)}", "protected-mode": "no"}
        if self.needs.sentinel and name == "redis-2" and self._sentinel is None:
            options["replicaof"] = f"127.0.0.1 {self._ports['redis-1']}"
        with _environment(self._clock(name)):
            self._redis[name] = RedisServer.start(
                self.redis_directory(name), port=self._ports[name], append_only=True, options=options
            )

    def _start_sentinel(self) -> None:
        file = self._directory / "sentinel.conf"
        file.write_text(
            f"port {self._ports['sentinel']}\nbind 127.0.0.1\ndir {self._directory}\n"
            f"sentinel monitor {_SENTINEL_NAME} 127.0.0.1 {self._ports['redis-1']} 1\n"
            f"sentinel down-after-milliseconds {_SENTINEL_NAME} {_SILENCE_MS}\n"
            f"sentinel failover-timeout {_SENTINEL_NAME} 5000\n"
        )
        command = [str(find_redis_server()), str(file), "--sentinel"]
        nowhere = subprocess.DEVNULL
        self._sentinel = subprocess.Popen(command, stdout=nowhere, stderr=nowhere)  # noqa: S603
        wait_until(self._sentinel_knows, "Sentinel to know master and replica")

    def _sentinel_knows(self) -> bool:
        with contextlib.suppress(redis.RedisError), redis.Redis(port=self._ports["sentinel"]) as sentinel:
            replicas = sentinel.execute_command("SENTINEL", "REPLICAS", _SENTINEL_NAME)
            return len(replicas) == 1 and self.replica_follows()
        return False

    def _launch(self, name: str) -> None:
        kind = name.split("-", maxsplit=1)[0].rstrip("123")
        arguments = {"dispatcher": self._dispatcher, "resolver": self._resolver, "w": self._worker}[kind](
            name
        )
        self._services[name] = PlacedProcess(
            name,
            _MODULES[kind],
            arguments,
            self._directory,
            prefix=() if self._network is None else self._network.prefix(name),
            environment=self._clock(name),
        )

    def _await_ready(self, name: str) -> None:
        self._services[name].wait_ready(time.monotonic() + READY_SECONDS)

    def _listening(self, name: str) -> list[str]:
        # In network namespaces the addresses are not of loopback; only this program reaches them.
        return ["--listen", self.address(name), "--redis-url", self._redis_url(), "--insecure"]

    def _resolver(self, name: str) -> list[str]:
        return [*self._listening(name), "--shards", str(SHARDS)]

    def _dispatcher(self, name: str) -> list[str]:
        return [*self._listening(name), "--resolver", self.endpoints.resolver]

    def _worker(self, name: str) -> list[str]:
        arguments = ["--name", name, "--seed", name[1:], "--dispatcher", self.endpoints.dispatcher]
        return [*arguments, "--resolver", self.endpoints.resolver]

    def _stop(self) -> None:
        for name in (*self._services, *self._redis):
            self.thaw(name)
        tiers = (WORKERS, DISPATCHERS, RESOLVERS)
        for tier in tiers:
            stop_all([self._services[name].record for name in tier if name in self._services])
        if self._sentinel is not None:
            self._sentinel.kill()
            self._sentinel.wait()
        for server in self._redis.values():
            server.kill()


def faketime() -> Path | None:
    """The library that gives a process a clock of its own: of Debian's package libfaketime, or where
    HOSS_FAKETIME says."""
    candidates = (os.environ.get("HOSS_FAKETIME", ""), *_FAKETIME)
    return next((Path(path) for path in candidates if path and Path(path).is_file()), None)


def wait_until(holds: Callable[[], bool], what: str, seconds: float = READY_SECONDS) -> None:
    """Raises HossError where it does not come in time."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise HossError(f"waited {seconds:g} s for {what}")
        time.sleep(0.02)


@contextlib.contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """These variables for processes that are started meanwhile."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _small_disk(directory: Path) -> Iterator[None]:
    """A file system of some megabytes at that path."""
    directory.mkdir()
    mount, unmount = shutil.which("mount"), shutil.which("umount")
    if mount is None or unmount is None:
        raise HossError("no mount on PATH")
    options = ["-t", "tmpfs", "-o", f"size={_DISK_MIB}m", "tmpfs", str(directory)]
    subprocess.run([mount, *options], check=True)  # noqa: S603
    try:
        yield
    finally:
        subprocess.run([unmount, "--lazy", str(directory)], check=False)  # noqa: S603
