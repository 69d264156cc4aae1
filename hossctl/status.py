"""`hoss status`: services, pods by phase, and every problem as a sentence."""

import time
from dataclasses import dataclass

import grpc.aio
from grpc_health.v1.health_pb2 import HealthCheckRequest
from grpc_health.v1.health_pb2_grpc import HealthStub

from hoss.v1 import dispatcher_pb2, resolver_pb2
from hossctl import platform
from hossctl.cluster_objects import written_labels
from hossctl.conflicts import steering_document, written_steering
from hossctl.console import Document
from hossctl.endpoints import Endpoints, clients_of
from hossctl.figures import written_duration
from hossctl.objects import worker_document
from hossctl.policy_text import policy_document, written_policy

_EVENTS_SHOWN = 5
_HEALTH_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Status:
    """What the services say of themselves, and the local processes where the platform is one of ours."""

    dispatcher: dispatcher_pb2.DispatcherStatus
    resolver: resolver_pb2.ResolverStatus
    workers: list[dispatcher_pb2.WorkerInfo]
    local: platform.PlatformState | None
    standbys: dict[str, bool]  # by address: whether it answers

    @property
    def problems(self) -> list[str]:
        """Sentences; empty when all is well."""
        problems = list(self.dispatcher.problems)
        if not self.resolver.serving:
            problems.append(f"the resolver does not serve: {self.resolver.problem or 'no reason given'}")
        problems += self.resolver.quarantined
        problems += [f"dispatcher {address} does not answer" for address, well in self.standbys.items() if not well]
        if not self.workers:
            problems.append("no worker is registered: pods wait")
        problems += [f"worker {worker.name} is lost" for worker in self.workers if worker.state == "Lost"]
        if self.local is not None:
            dead = [record for record in self.local.processes if record.find() is None]
            problems += [f"process {record.name} (pid {record.pid}) has ended; see {record.log}" for record in dead]
        return problems

    def lines(self) -> list[tuple[str, object]]:
        """For people."""
        phases = self.dispatcher.pods_by_phase
        pods = ", ".join(f"{count:,} {phase.lower()}" for phase, count in sorted(phases.items()) if count)
        lines: list[tuple[str, object]] = [
            (
                "dispatcher",
                ", ".join(
                    [
                        self.dispatcher.address or "address unknown",
                        f"version {self.dispatcher.version}",
                        f"up {written_duration(self.dispatcher.uptime_ms / 1000)}",
                        f"term {self.dispatcher.term}",
                    ]
                ),
            ),
            *((f"standby {address}", "well" if well else "DOES NOT ANSWER") for address, well in self.standbys.items()),
            ("pods", pods or "none"),
            ("jobs", f"{self.dispatcher.jobs:,}"),
            ("policy", written_policy(self.dispatcher.policy) if self.dispatcher.HasField("policy") else "not told"),
            ("conflicts", written_steering(steering_document(self.dispatcher.steering))),
            *(("policy warning", text) for text in self.dispatcher.policy.warnings),
            ("resolver", f"version {self.resolver.version}, {'serving' if self.resolver.serving else 'NOT SERVING'}"),
            (
                "ledger",
                f"{self.resolver.nodes:,} nodes, {self.resolver.reservations:,} reservations, {self.resolver.shards} shard(s)",
            ),
            ("redis", ", ".join(f"{key} {value}" for key, value in sorted(self.resolver.redis.items()))),
        ]
        for worker in self.workers:
            labels = written_labels(worker_document(worker)["labels"])
            lines.append(
                (f"worker {worker.name}", f"{worker.state}, {worker.bound:,} bound{f', {labels}' if labels else ''}")
            )
        lines += [
            ("event", f"{_clock(e.unix_ms)} node {e.node}: {e.text}") for e in self.resolver.events[-_EVENTS_SHOWN:]
        ]
        if self.local is not None:
            lines += [("dashboard", url) for url in self.local.dashboards]
            lines.append(("processes", ", ".join(f"{record.name} {record.pid}" for record in self.local.living())))
            shown = [(record.name, record.metrics) for record in self.local.living() if record.metrics]
            lines += [(f"metrics {name}", f"http://{address}/metrics") for name, address in shown]
        return lines + [("PROBLEM", text) for text in self.problems]

    def as_json(self) -> Document:
        """For programs."""
        return {
            "dispatcher": {
                "version": self.dispatcher.version,
                "address": self.dispatcher.address,
                "term": self.dispatcher.term,
                "standbys": [{"address": address, "answers": well} for address, well in self.standbys.items()],
                "uptimeMs": self.dispatcher.uptime_ms,
                "revision": self.dispatcher.revision,
                "jobs": self.dispatcher.jobs,
                "podsByPhase": dict(self.dispatcher.pods_by_phase),
                "counters": dict(self.dispatcher.counters),
                "steering": steering_document(self.dispatcher.steering),
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
                "events": [{"unixMs": e.unix_ms, "node": e.node, "text": e.text} for e in self.resolver.events],
            },
            "workers": [worker_document(worker) for worker in self.workers],
            "local": state_json(self.local) if self.local else None,
            "problems": self.problems,
        }


def _clock(unix_ms: int) -> str:
    return time.strftime("%H:%M:%S", time.localtime(unix_ms / 1000))


async def look(endpoints: Endpoints) -> Status:
    """Ask both services."""
    async with clients_of(endpoints) as clients:
        dispatcher = await clients.dispatcher.status()
        resolver = await clients.resolver.status()
        workers = await clients.dispatcher.list_workers()
    addresses = endpoints.dispatcher_addresses()
    standbys = {address: await _answers(address) for address in addresses if address != dispatcher.address}
    local = platform.load_state(platform.home())
    if local is not None and addresses != local.dispatcher.split(","):
        local = None
    return Status(dispatcher, resolver, workers, local, standbys if len(addresses) > 1 else {})


async def _answers(address: str) -> bool:
    """Whether the server there is well, serving or not."""
    async with grpc.aio.insecure_channel(address) as channel:
        try:
            await HealthStub(channel).Check(HealthCheckRequest(), timeout=_HEALTH_SECONDS)
        except grpc.aio.AioRpcError:
            return False
    return True


def state_json(state: platform.PlatformState) -> Document:
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
