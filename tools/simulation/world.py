"""A platform in one event loop: real composition roots on simulated hosts, one network, one Redis.

A service is started by the `serve` of its `__main__`, so everything that it does on a real machine happens
here as well. What it gets from its host is virtual: clocks that may jump and drift, randomness from the seed,
the network and Redis of the simulation."""

import asyncio
import random
import traceback
from collections.abc import Callable, Coroutine, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import structlog

import dispatcher.__main__
import resolver.__main__
import scheduler_worker.__main__
from dispatcher.config import ClusterSection, DispatcherConfig
from hoss.host import ApiT, Host, ReviewServer
from hoss.kube.config import KubernetesConfig
from resolver.config import ResolverConfig, WebhookConfig
from scheduler_worker.config import WorkerConfig, chosen_profile
from scheduler_worker.core.plugins import REGISTRY
from tools.simulation.api_connection import SimulatedApiServer
from tools.simulation.api_model import ApiModel
from tools.simulation.loop import Process, SimulationLoop, current_process
from tools.simulation.network import Event, Network
from tools.simulation.plan import ClusterPlan
from tools.simulation.redis import Observation, SimulatedRedis
from tools.simulation.redis_backend import DrivenRedis

if TYPE_CHECKING:
    import grpc.aio

    from hoss.redis.access import RedisAccess
    from hoss.serving import Server

ResultT = TypeVar("ResultT")

EPOCH_UNIX = 1_700_000_000.0  # the virtual time 0
URL = "redis://simulated:6379/0"

DISPATCHER, RESOLVER, WORKER = "dispatcher", "resolver", "worker"


class Entry(NamedTuple):
    """A line of the timeline. `kind`: log, network, redis, kube, fault, client."""

    at: float
    who: str
    kind: str
    text: str


class SimulatedHost(Host):
    """The machine of one process. Its clocks may be off: they go at a rate of their own, and `jumped` is by
    how many seconds the clock of the day was set."""

    def __init__(self, world: "World", process: Process, rng: random.Random) -> None:
        self.rng = rng
        self.jumped = 0.0
        self._rate = 1.0
        self._since, self._passed = (
            0.0,
            0.0,
        )  # virtual time of the last change of the rate; seconds until then
        self.stopped = asyncio.Event()
        self._world = world
        self._process = process
        self._booted = rng.uniform(100.0, 100_000.0)
        self._started = f"{world.loop.time():.6f}"

    def monotonic(self) -> float:
        return self._booted + self._elapsed()

    def unix(self) -> float:
        return EPOCH_UNIX + self._elapsed() + self.jumped

    def drift(self, rate: float) -> None:
        """From now on the clocks go so many times as fast as the virtual time."""
        self._passed, self._since, self._rate = self._elapsed(), self._world.loop.time(), rate

    def _elapsed(self) -> float:
        return self._passed + (self._world.loop.time() - self._since) * self._rate

    def thread_seconds(self) -> float:
        return self._world.loop.time() / 10

    def channel(
        self, addresses: Sequence[str], *, kind: str = "", service: str = "", retried: Sequence[str] = ()
    ) -> "grpc.aio.Channel":
        return self._world.network.channel(
            self._process.name, addresses, kind=kind, service=service, retried=retried
        )

    def server(self, interceptors: "Sequence[grpc.aio.ServerInterceptor]" = ()) -> "Server":  # noqa: ARG002
        return self._world.network.server(self._process.name)

    def redis(self, url: str, *, timeout_seconds: float, connections: int | None = None) -> "RedisAccess":
        opened = self._world.redis.opener(self._process.name)
        return opened(url, timeout_seconds=timeout_seconds, connections=connections)

    def kube_api(self, connect: Callable[[], ApiT]) -> ApiT:  # noqa: ARG002 - there is one cluster
        api = self._world.required_api().client(self._process, self.monotonic, self.rng)
        return cast("ApiT", api)

    def review_server(self) -> ReviewServer | None:
        return partial(self._world.required_api().reviewed_by, self._process)

    def process_name(self) -> str:
        return f"{self._process.name}:{self._started}"

    async def beside_the_loop(self, work: Callable[[], ResultT]) -> ResultT:
        return work()

    async def until_stopped(self) -> None:
        await self.stopped.wait()


@dataclass
class Service:
    """One service, whatever process it has at the moment."""

    name: str
    kind: str
    process: Process | None = None
    host: SimulatedHost | None = None
    gone: asyncio.Event = field(default_factory=asyncio.Event)  # of that process: it has ended
    starts: int = 0
    ends: list[str] = field(default_factory=list)  # why processes ended that nobody ended

    @property
    def runs(self) -> bool:
        return self.process is not None and self.process.alive


class World:
    """One platform for one seed. Close it at the end."""

    def __init__(
        self,
        seed: int,
        server: DrivenRedis,
        *,
        shards: int,
        dispatchers: int,
        resolvers: int,
        workers: int,
        lease_seconds: float = 30.0,
        cluster: ClusterPlan | None = None,
        most_waiting: int = 0,
        observe: Callable[[Entry], None] | None = None,
    ) -> None:
        """`cluster`: of Kubernetes mode; None: the platform's own mode. `most_waiting`: see Plan."""
        self._most_waiting = most_waiting
        self._seeds = random.Random(seed)
        self.loop = SimulationLoop(self._rng())  # type: ignore[abstract]
        self._observe = observe
        self.network = Network(self._rng(), loop=self.loop, observe=self._on_network)
        # Called after each command that Redis has carried out.
        self.on_command: Callable[[Observation], None] = lambda _seen: None
        self.redis = SimulatedRedis(
            server, self.loop, self._rng(), lambda: EPOCH_UNIX + self.loop.time(), observe=self._on_redis
        )
        self.shards = shards
        self.cluster = cluster
        self.api = None if cluster is None else self._api_server(cluster)
        self._lease_seconds = lease_seconds
        self.addresses = {
            f"{kind}-{number}": f"{kind}-{number}:{port}"
            for kind, port, count in ((DISPATCHER, 7100, dispatchers), (RESOLVER, 7101, resolvers))
            for number in range(1, count + 1)
        }
        self.services = {
            **{name: Service(name, name.partition("-")[0]) for name in self.addresses},
            **{f"w{number}": Service(f"w{number}", WORKER) for number in range(1, workers + 1)},
        }

    def _rng(self) -> random.Random:
        return random.Random(self._seeds.getrandbits(64))

    def _api_server(self, cluster: ClusterPlan) -> SimulatedApiServer:
        return SimulatedApiServer(
            self.loop,
            self._rng(),
            ApiModel(self._rng(), self._now, page=cluster.page),
            ignores_failures=cluster.ignores_failures,
            observe=lambda who, text: self.note(who, "kube", text),
        )

    def _now(self) -> str:
        now = datetime.fromtimestamp(EPOCH_UNIX + self.loop.time(), timezone.utc)
        return now.strftime("%Y-%m-%dT%H:%M:%SZ")

    def required_api(self) -> SimulatedApiServer:
        """The API server, for those whom only Kubernetes mode has."""
        if self.api is None:
            raise LookupError("this world has no API server")
        return self.api

    # -- processes

    def new_host(self, name: str) -> tuple[Process, SimulatedHost]:
        """A new process on a host of its own."""
        process = self.loop.process(name)
        return process, SimulatedHost(self, process, self._rng())

    def start(self, name: str) -> None:
        """Start a service that does not run."""
        service = self.services[name]
        process, host = self.new_host(name)
        service.process, service.host, service.starts = process, host, service.starts + 1
        service.gone = asyncio.Event()
        self.loop.spawn(process, self._served(service, process, host))
        self.note(name, "fault" if service.starts > 1 else "start", "started")

    async def _served(self, service: Service, process: Process, host: SimulatedHost) -> None:
        try:
            await self._serve(service, host)
        except Exception as exc:  # noqa: BLE001 - what ends a process is for the judge
            service.ends.append("".join(traceback.format_exception(exc)))
        self.note(service.name, "fault", "ended by itself" if not host.stopped.is_set() else "ended")
        # The kernel closes what is left.
        self.loop.call_soon(self._gone, process, service.name)

    def _serve(self, service: Service, host: SimulatedHost) -> Coroutine[Any, Any, None]:
        resolvers = [self.addresses[name] for name, s in self.services.items() if s.kind == RESOLVER]
        dispatchers = [self.addresses[name] for name, s in self.services.items() if s.kind == DISPATCHER]
        if service.kind == RESOLVER:
            config = ResolverConfig(
                listen=self.addresses[service.name],
                redis_url=URL,
                shards=self.shards,
                reservation_lease_seconds=self._lease_seconds,
                kubernetes=None if self.cluster is None else KubernetesConfig(),
                webhook=WebhookConfig() if self.cluster is not None and self.cluster.webhook else None,
            )
            return resolver.__main__.serve(config, None, host=host)
        if service.kind == DISPATCHER:
            leader = DispatcherConfig(
                listen=self.addresses[service.name],
                redis_url=URL,
                resolvers=tuple(resolvers),
                kubernetes=None if self.cluster is None else ClusterSection(lease=self.cluster.lease),
            )
            if self._most_waiting:
                leader = leader.model_copy(update={"max_waiting_pods": self._most_waiting})
            return dispatcher.__main__.serve(leader, None, host=host)
        worker = WorkerConfig(
            name=service.name,
            listen=f"{service.name}:0",
            dispatcher=",".join(dispatchers),
            resolvers=resolvers,
        )
        name, profile = chosen_profile(worker, REGISTRY)
        return scheduler_worker.__main__.serve(worker, name, profile, None, host=host)

    def kill(self, name: str) -> None:
        """As kill -9."""
        service = self.services[name]
        if service.process is not None and service.process.alive:
            self.note(name, "fault", "killed")
            self._gone(service.process, name)

    def _gone(self, process: Process, name: str) -> None:
        if process.alive:
            self.services[name].gone.set()
            self.loop.kill(process)
            self.network.killed(name)
            if self.api is not None:
                self.api.disconnected(name)

    def stop(self, name: str) -> None:
        """As SIGTERM."""
        service = self.services[name]
        if service.host is not None and service.runs:
            self.note(name, "fault", "told to end")
            service.host.stopped.set()

    def freeze(self, name: str) -> None:
        """As SIGSTOP."""
        process = self.services[name].process
        if process is not None and process.alive and not process.frozen:
            self.note(name, "fault", "frozen")
            self.loop.freeze(process)
            self.network.frozen(name)

    def thaw(self, name: str) -> None:
        """As SIGCONT."""
        process = self.services[name].process
        if process is not None and process.alive and process.frozen:
            self.note(name, "fault", "thawed")
            self.network.thawed(name)
            self.loop.thaw(process)

    # -- what is seen

    def note(self, who: str, kind: str, text: str) -> None:
        """Add a line to the timeline."""
        if self._observe is not None:
            self._observe(Entry(self.loop.time(), who, kind, text))

    def _on_network(self, event: Event) -> None:
        if self._observe is not None:
            text = f"{event.kind} -> {event.target} {event.method} {event.size}".rstrip(" 0")
            self._observe(Entry(event.at, event.source, "network", text))

    def _on_redis(self, seen: Observation) -> None:
        self.on_command(seen)
        if self._observe is not None:
            text = str((seen.command, seen.key, seen.reply_bytes, seen.error, seen.position))
            self._observe(Entry(self.loop.time(), seen.process, "redis", text))

    @contextmanager
    def logging(self) -> Generator[None, None, None]:
        """What services log goes to the timeline."""

        def take(
            _logger: object, method: str, event: structlog.typing.EventDict
        ) -> structlog.typing.EventDict:
            if self._observe is None:
                raise structlog.DropEvent
            process = current_process()
            name = event.pop("event")
            error = event.pop("exc_info", None)
            fields = " ".join(f"{key}={value}" for key, value in event.items())
            if isinstance(error, BaseException):
                fields += "\n" + "".join(traceback.format_exception(error))
            self.note(process.name if process else "", "log", f"{method} {name} {fields}")
            raise structlog.DropEvent

        structlog.configure(processors=[take], cache_logger_on_first_use=False)
        try:
            yield
        finally:
            structlog.reset_defaults()

    def close(self) -> None:
        """Free everything. What is said meanwhile is no part of the story."""
        self._observe = None
        self.loop.close()
