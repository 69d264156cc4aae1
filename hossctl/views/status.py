"""What `hoss status` and `hoss top` print: services, pods by phase or queue, workers, and every problem as a
sentence."""

import time
from collections.abc import Mapping
from dataclasses import dataclass

import grpc.aio
from grpc_health.v1.health_pb2 import HealthCheckRequest
from grpc_health.v1.health_pb2_grpc import HealthStub

from hoss.contexts import home
from hoss.errors import counted
from hoss.model.resources import written_amount
from hoss.v1 import dispatcher_pb2, resolver_pb2
from hossctl.console import Column, Document, table_lines
from hossctl.endpoints import Endpoints, clients_of
from hossctl.figures import written_duration
from hossctl.local import platform_state
from hossctl.views.documents.conflicts import overlap_control_document, written_overlap_control
from hossctl.views.documents.objects import worker_document, written_labels, written_worker_state
from hossctl.views.policy import policy_document, written_policy

_EVENTS_SHOWN = 5
_HEALTH_SECONDS = 2.0

# Phases of pods that are not bound, and the names of their queues.
_QUEUES = {
    "QUEUED": "active",
    "BACKOFF": "backoff",
    "UNSCHEDULABLE": "unschedulable",
    "SCHEDULING": "with workers",
    "FAILED": "failed",
}

TOP_COLUMNS = (
    Column("WORKER", lambda worker: worker["name"]),
    Column("STATE", lambda worker: worker["state"]),
    Column("PODS/S", lambda worker: f"{worker['podsPerSecond']:,.0f}"),
    Column("OUTSTANDING", lambda worker: f"{worker['outstanding']}/{worker['window']}"),
    Column("WORK", lambda worker: written_duration(worker["estimatedWorkMs"] / 1000)),
    Column("BUSY", lambda worker: f"{worker['busyShare']:.0%}"),
    Column("CONFLICTS", lambda worker: f"{worker['conflictShare']:.1%}"),
    Column("BOUND", lambda worker: f"{worker['bound']:,}"),
)


@dataclass(frozen=True, slots=True)
class Status:
    """What the services report, and the processes of the local platform where it is the one asked."""

    dispatcher: dispatcher_pb2.DispatcherStatus
    resolver: resolver_pb2.ResolverStatus
    workers: list[dispatcher_pb2.WorkerInfo]
    local: platform_state.PlatformState | None
    standbys: dict[str, bool]  # by address: whether it answers

    @property
    def problems(self) -> list[str]:
        """Sentences; empty when all is well."""
        problems = list(self.dispatcher.problems)
        if not self.resolver.serving:
            problems.append(f"the resolver does not serve: {self.resolver.problem or 'no reason given'}")
        problems += self.resolver.quarantined
        problems += [
            f"dispatcher {address} does not answer" for address, well in self.standbys.items() if not well
        ]
        problems += [f"worker {worker.name} is lost" for worker in self.workers if worker.state == "Lost"]
        problems += [
            f"worker {worker.name} fails at everything: {worker.failing}"
            for worker in self.workers
            if worker.failing
        ]
        if self.local is not None:
            dead = [record for record in self.local.processes if record.find() is None]
            problems += [
                f"process {record.name} (pid {record.pid}) has ended; see {record.log}" for record in dead
            ]
        return problems

    def lines(self) -> list[tuple[str, object]]:
        """`hoss status` for people: names and values."""
        dispatcher, resolver = self.dispatcher, self.resolver
        phases = sorted(dispatcher.pods_by_phase.items())
        about_dispatcher = (
            dispatcher.address or "address unknown",
            f"version {dispatcher.version}",
            f"up {written_duration(dispatcher.uptime_ms / 1000)}",
            f"term {dispatcher.term}",
        )
        policy = written_policy(dispatcher.policy) if dispatcher.HasField("policy") else "not told"
        serving = "serving" if resolver.serving else "NOT SERVING"
        ledger = ", ".join(
            counted(number, one)
            for number, one in (
                (resolver.nodes, "node"),
                (resolver.reservations, "reservation"),
                (resolver.shards, "shard"),
            )
        )
        lines: list[tuple[str, object]] = [
            ("dispatcher", ", ".join(about_dispatcher)),
            *((f"standby {a}", "well" if well else "DOES NOT ANSWER") for a, well in self.standbys.items()),
            ("pods", ", ".join(f"{n:,} {phase.lower()}" for phase, n in phases if n) or "none"),
            ("jobs", f"{dispatcher.jobs:,}"),
            ("policy", policy),
            ("conflicts", written_overlap_control(overlap_control_document(dispatcher.steering))),
            *(("policy warning", text) for text in dispatcher.policy.warnings),
            ("resolver", f"version {resolver.version}, {serving}"),
            ("ledger", ledger),
            ("redis", _written_redis(resolver.redis)),
        ]
        if not self.workers:  # the dispatcher names it a problem where pods wait; the guard alone has none
            lines.append(("workers", "none"))
        for worker in self.workers:
            document = worker_document(worker)
            labels, state = written_labels(document["labels"]), written_worker_state(document)
            text = f"{state}, {worker.bound:,} bound{f', {labels}' if labels else ''}"
            lines.append((f"worker {worker.name}", text))
        lines += [
            ("event", f"{_clock(e.unix_ms)} node {e.node}: {e.text}")
            for e in resolver.events[-_EVENTS_SHOWN:]
        ]
        if self.local is not None:
            running = self.local.living()
            lines += [("dashboard", url) for url in self.local.dashboards]
            lines.append(("processes", ", ".join(f"{record.name} {record.pid}" for record in running)))
            lines += [
                (f"metrics {record.name}", f"http://{record.metrics}/metrics")
                for record in running
                if record.metrics
            ]
        return lines + [("PROBLEM", text) for text in self.problems]

    def as_json(self) -> Document:
        """`hoss status` for programs."""
        return {
            "dispatcher": {
                "version": self.dispatcher.version,
                "address": self.dispatcher.address,
                "term": self.dispatcher.term,
                "standbys": [
                    {"address": address, "answers": well} for address, well in self.standbys.items()
                ],
                "uptimeMs": self.dispatcher.uptime_ms,
                "revision": self.dispatcher.revision,
                "jobs": self.dispatcher.jobs,
                "podsByPhase": dict(self.dispatcher.pods_by_phase),
                "counters": dict(self.dispatcher.counters),
                "steering": overlap_control_document(self.dispatcher.steering),
                "policy": policy_document(self.dispatcher.policy),
            },
            "resolver": {
                "version": self.resolver.version,
                "serving": self.resolver.serving,
                "ledgerEpoch": self.resolver.ledger_epoch,
                "shards": self.resolver.shards,
                "nodes": self.resolver.nodes,
                "reservations": self.resolver.reservations,
                "counters": dict(self.resolver.counters),
                "redis": dict(self.resolver.redis),
                "events": [
                    {"unixMs": e.unix_ms, "node": e.node, "text": e.text} for e in self.resolver.events
                ],
            },
            "workers": [worker_document(worker) for worker in self.workers],
            "local": state_document(self.local) if self.local else None,
            "problems": self.problems,
        }


def _written_redis(facts: Mapping[str, str]) -> str:
    """What a resolver tells of its Redis; facts that this release does not know as they are."""
    told = dict(facts)
    server = " ".join(filter(None, (told.pop("server", ""), told.pop("version", ""))))
    memory = told.pop("used_memory_bytes", "")
    if memory.isdecimal():
        memory = written_amount("memory", int(memory))
    known = (server, told.pop("mode", ""), told.pop("persistence", ""), memory)
    return ", ".join(filter(None, (*known, *(f"{name} {value}" for name, value in sorted(told.items())))))


def _clock(unix_ms: int) -> str:
    return time.strftime("%H:%M:%S", time.localtime(unix_ms / 1000))


@dataclass(frozen=True, slots=True)
class TopView:
    """What `hoss top` shows of one moment."""

    workers: list[Document]
    queues: dict[str, int]  # pods by queue
    pods_per_second: float
    problems: list[str]

    @classmethod
    def of(cls, status: Status) -> "TopView":
        """The part of a status that `hoss top` shows."""
        phases = status.dispatcher.pods_by_phase
        workers = [worker_document(worker) for worker in status.workers]
        return cls(
            workers=workers,
            queues={queue: phases.get(phase, 0) for phase, queue in _QUEUES.items()},
            pods_per_second=round(sum(worker["podsPerSecond"] for worker in workers), 1),
            problems=status.problems,
        )

    def lines(self) -> list[str]:
        """For people: throughput and queues in the first line, then the workers, then the problems."""
        waiting = ", ".join(f"{pods:,} {queue}" for queue, pods in self.queues.items() if pods)
        return [
            f"{self.pods_per_second:,.0f} pods/s bound; pods: {waiting or 'none waits'}",
            *table_lines(self.workers, TOP_COLUMNS),
            *(f"PROBLEM {text}" for text in self.problems),
        ]

    def as_json(self) -> Document:
        """For programs."""
        return {
            "podsPerSecond": self.pods_per_second,
            "queues": self.queues,
            "workers": self.workers,
            "problems": self.problems,
        }


async def fetch_status(endpoints: Endpoints) -> Status:
    """Ask both services. Raises TransportError or LedgerUnavailable where one does not answer."""
    async with clients_of(endpoints) as clients:
        dispatcher = await clients.dispatcher.status()
        resolver = await clients.resolver.status()
        workers = await clients.dispatcher.list_workers()
    addresses = endpoints.dispatcher_addresses()
    standbys = {
        address: await _answers(endpoints, address) for address in addresses if address != dispatcher.address
    }
    local = platform_state.load_state(home())
    if local is not None and addresses != local.dispatcher.split(","):
        local = None
    return Status(dispatcher, resolver, workers, local, standbys if len(addresses) > 1 else {})


async def _answers(endpoints: Endpoints, address: str) -> bool:
    """Whether a dispatcher answers health checks there, whatever it answers."""
    async with endpoints.open_channel()([address], kind="dispatcher") as channel:
        try:
            await HealthStub(channel).Check(HealthCheckRequest(), timeout=_HEALTH_SECONDS)
        except grpc.aio.AioRpcError:
            return False
    return True


def state_document(state: platform_state.PlatformState) -> Document:
    """A local platform's addresses and processes."""
    return {
        "dispatcher": state.dispatcher,
        "resolvers": list(state.resolvers),
        "redisUrl": state.redis_url,
        "dashboards": list(state.dashboards),
        "processes": [
            {
                "name": r.name,
                "pid": r.pid,
                "running": r.find() is not None,
                "address": r.address,
                "metrics": r.metrics,
                "log": r.log,
            }
            for r in state.processes
        ],
    }
