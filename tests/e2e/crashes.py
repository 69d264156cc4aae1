"""Faults that hit pods under way: a platform is brought to a moment, and stays there until something has been
killed.

An interposed server before the resolver holds back the messages that would end the moment. So what is killed
is killed with pods in hand, however quick the machine is, and a test can say what has to become of them."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from e2e.cluster import Cluster
from e2e.interposed import Gate, Interposed
from e2e.loads import all_bound, assert_clean, prepare, submit, until_agreed
from waiting import until

from hoss.v1 import dispatcher_pb2, resolver_pb2
from hoss.wire.uids import UID_BYTES
from hossctl.endpoints import Clients, clients_of
from hossctl.local.ports import free_ports

WORKERS = ("w1", "w2")
JOBS, REPLICAS = 4, 100
PODS = JOBS * REPLICAS
# Longer than a machine stands still: a worker is lost when a test kills it, and a reservation stays until it
# is confirmed.
_PATIENCE_SECONDS = 60.0
_CONFIG = """\
apiVersion: hoss.dev/v1alpha1
kind: DispatcherConfig
worker_timeout_seconds: {}
"""
_LONG_LEASES = ("--reservation-lease-seconds", "600", "--gang-hold-seconds", "600")
_FENCED = re.compile(r"fenced: of the pods it had in hand (\d+) have a place, (\d+) have none")


class Moment(Enum):
    """What has become of the pods at the moment that is held."""

    PROPOSED = "the workers have proposed them, nobody has decided"
    RESERVED = "the ledger holds them, no worker knows"
    BOUND = "they are bound, and not confirmed"


@dataclass(frozen=True)
class Scene:
    """A platform at that moment."""

    cluster: Cluster
    clients: Clients
    between: Interposed
    gate: Gate

    async def start(self, name: str) -> None:
        """Start a service again, beside the interposed server that it may need."""
        starts = {"dispatcher": self.cluster.start_dispatcher, "resolver": self.cluster.start_resolver}
        starts["redis"] = self.cluster.start_redis
        await asyncio.to_thread(starts[name] if name in starts else lambda: self.cluster.start_worker(name))

    async def laden(self) -> dispatcher_pb2.WorkerInfo:
        """The worker that was given most pods and has not answered for them: which one that is, is a matter
        of chance."""
        workers = await self.clients.dispatcher.list_workers()
        return max(workers, key=lambda worker: worker.outstanding)

    async def fenced(self, worker: str) -> tuple[int, int]:
        """Once a worker is fenced with pods in hand: how many of them were found to be reserved, how many
        not."""

        async def told() -> tuple[int, int] | None:
            workers = await self.clients.dispatcher.list_workers(steps=True)
            steps = [step.text for w in workers if w.name == worker for step in w.steps]
            found = [match for text in steps if (match := _FENCED.fullmatch(text))]
            return (int(found[-1][1]), int(found[-1][2])) if found else None

        return await until(told, f"{worker} to be fenced with pods in hand")

    async def refused_as_stale(self) -> int:
        """Pods that fenced workers have proposed all the same."""
        return (await self.clients.resolver.status()).counters["stale_epoch"]

    async def all_come_through(self, *, workers: int = len(WORKERS), pods: int = PODS) -> None:
        """The moment ends: every pod is bound, once, and the audit finds nothing."""
        self.gate.release()
        await until(lambda: all_bound(self.clients, pods), f"{pods} bound pods")
        await until_agreed(self.clients, workers)
        await assert_clean(self.clients, bound=pods)


@asynccontextmanager
async def interposed_cluster(directory: Path, **options: Any) -> AsyncIterator[tuple[Cluster, Interposed]]:
    """A platform whose dispatcher and workers reach the resolver through an interposed server. `options`: of
    Cluster; flags of the dispatcher's and the workers' come behind those that lead there."""
    (port,) = free_ports(1)
    between = Interposed(f"127.0.0.1:{port}")
    await between.serve()
    through = ("--resolver", between.address)
    for flags in ("dispatcher_flags", "worker_flags"):
        options[flags] = (*through, *options.get(flags, ()))
    cluster = await asyncio.to_thread(lambda: Cluster(directory, resolver_port=port, **options))
    try:
        yield cluster, between
    finally:
        await asyncio.to_thread(cluster.stop)
        await between.stop()


@asynccontextmanager
async def pods_under_way(
    directory: Path,
    moment: Moment,
    *,
    worker_timeout_seconds: float = _PATIENCE_SECONDS,
    gangs: bool = False,
    **options: Any,
) -> AsyncIterator[Scene]:
    """A platform with PODS pods at that moment, JOBS gangs where that is asked for. `options`: of Cluster."""
    config = directory / "dispatcher.yaml"
    config.write_text(_CONFIG.format(worker_timeout_seconds))
    settings: dict[str, Any] = {"workers": WORKERS, "resolver_flags": _LONG_LEASES}
    settings |= {"dispatcher_flags": ("--config", str(config))} | options
    async with (
        interposed_cluster(directory, **settings) as (cluster, between),
        clients_of(cluster.endpoints) as clients,
    ):
        await prepare(clients, workers=len(settings["workers"]))
        scene = Scene(cluster, clients, between, _gate(between, moment))
        scene.gate.close()
        await submit(clients, jobs=JOBS, replicas=REPLICAS, gang_minimum=REPLICAS if gangs else 0)
        await until(lambda: _reached(scene, moment), f"{PODS} pods of which {moment.value}")
        yield scene


def _gate(between: Interposed, moment: Moment) -> Gate:
    if moment is Moment.PROPOSED:
        return between.asked["Propose"]
    return between.answered["Propose"] if moment is Moment.RESERVED else between.asked["Confirm"]


async def _reached(scene: Scene, moment: Moment) -> bool:
    if moment is Moment.PROPOSED:
        return len(proposed(scene.gate)) == PODS
    if moment is Moment.RESERVED:
        return (await scene.clients.resolver.status()).reservations == PODS
    return bool(scene.gate.held) and await all_bound(scene.clients, PODS)


def proposed(gate: Gate) -> set[bytes]:
    """UIDs of the pods of all proposals that have come to a gate."""
    batches = map(resolver_pb2.ProposalBatch.FromString, gate.held)
    columns = [part.uids for batch in batches for part in (batch, *batch.parts)]
    return {column[at : at + UID_BYTES] for column in columns for at in range(0, len(column), UID_BYTES)}
