"""What `hoss wait` waits for: pods, jobs, nodes and workers that come into a state."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from hoss.client.dispatcher import DispatcherClient
from hoss.errors import InvalidInput, NotFound
from hoss.v1 import dispatcher_pb2 as pb
from hoss.v1 import resolver_pb2
from hossctl.console import Document
from hossctl.endpoints import Clients
from hossctl.kinds import Kind, not_there
from hossctl.load.runner import reason_kinds
from hossctl.views.documents.objects import phase_name

_POLL_SECONDS = 0.2


class WaitCondition(str, Enum):
    """States that can be waited for."""

    BOUND = "bound"
    DELETED = "deleted"
    FAILED = "failed"
    READY = "ready"


CONDITIONS = {
    Kind.PODS: (WaitCondition.BOUND, WaitCondition.DELETED, WaitCondition.FAILED),
    Kind.JOBS: (WaitCondition.BOUND, WaitCondition.DELETED),
    Kind.WORKERS: (WaitCondition.READY, WaitCondition.DELETED),
    Kind.NODES: (WaitCondition.READY, WaitCondition.DELETED),
}


@dataclass(frozen=True, slots=True)
class Awaited:
    """One object that is waited for."""

    kind: Kind
    name: str

    @property
    def text(self) -> str:
        """As in `pod/web-0`."""
        return f"{self.kind.singular}/{self.name}"

    def check(self, condition: WaitCondition) -> None:
        """Raise InvalidInput for a condition that the kind does not have."""
        if condition not in CONDITIONS[self.kind]:
            names = ", ".join(known.value for known in CONDITIONS[self.kind])
            raise InvalidInput(
                f"a {self.kind.singular} is never {condition.value}; it is {names}", where="--for"
            )


@dataclass(frozen=True, slots=True)
class Progress:
    """How far an object is: `done` of `parts` (of a job its pods), and what keeps the others."""

    done: int
    parts: int
    remark: str = ""

    @property
    def reached(self) -> bool:
        """Whether nothing is missing."""
        return self.done >= self.parts


async def until(
    clients: Clients,
    objects: Sequence[Awaited],
    condition: WaitCondition,
    namespace: str,
    *,
    timeout_seconds: float,
    report: Callable[[int, str], None],
) -> list[Document]:
    """Wait until all objects are in the state, or the time is over. One document each: `reached`, and a
    `remark` on what is missing. `report` is told how many are in the state, and a remark. Raises NotFound for
    an object that is not there, unless its deletion is waited for."""
    deadline = time.monotonic() + timeout_seconds
    while True:
        states = [await _progress(clients, one, condition, namespace) for one in objects]
        report(sum(state.reached for state in states), next((s.remark for s in states if not s.reached), ""))
        if all(state.reached for state in states) or time.monotonic() >= deadline:
            return [
                {
                    "object": one.text,
                    "condition": condition.value,
                    "reached": state.reached,
                    "remark": state.remark,
                }
                for one, state in zip(objects, states, strict=True)
            ]
        await asyncio.sleep(min(_POLL_SECONDS, max(0.0, deadline - time.monotonic())))


async def _progress(clients: Clients, one: Awaited, condition: WaitCondition, namespace: str) -> Progress:
    found = await _found(clients, one, condition, namespace)
    if found is None and condition is not WaitCondition.DELETED:
        raise NotFound(f"is {not_there(one.kind, namespace)}", where=one.text)
    return found or Progress(1, 1)


async def _found(clients: Clients, one: Awaited, condition: WaitCondition, namespace: str) -> Progress | None:
    """None: it is not there."""
    if one.kind is Kind.PODS:
        try:
            return _of_pod(await clients.dispatcher.get_pod(namespace, one.name), condition)
        except NotFound:
            return None
    if one.kind is Kind.JOBS:
        return await _of_job(clients.dispatcher, one, condition, namespace)
    if one.kind is Kind.WORKERS:
        return await _of_worker(clients.dispatcher, one, condition)
    nodes = await clients.resolver.list_nodes([one.name])
    return _of_node(nodes[0], condition) if nodes else None


def _of_node(node: resolver_pb2.NodeInfo, condition: WaitCondition) -> Progress:
    if condition is WaitCondition.DELETED:
        return Progress(0, 1, "still there")
    closed = node.spec.unschedulable or node.HasField("quarantine")
    return Progress(int(not closed), 1, "cordoned or quarantined" if closed else "")


def _of_pod(pod: pb.PodInfo, condition: WaitCondition) -> Progress:
    wanted = {
        WaitCondition.BOUND: pb.BOUND,
        WaitCondition.FAILED: pb.FAILED,
        WaitCondition.DELETED: pb.DELETED,
    }[condition]
    why = f": {pod.reason}" if pod.reason else ""
    reached = pod.phase == wanted
    return Progress(int(reached), 1, "" if reached else f"{phase_name(pod.phase).lower()}{why}")


async def _of_job(
    dispatcher: DispatcherClient, one: Awaited, condition: WaitCondition, namespace: str
) -> Progress | None:
    job = next(iter(await dispatcher.list_jobs(namespace, one.name)), None)
    if job is None:
        return None
    left = job.replicas - job.deleted
    if condition is WaitCondition.DELETED:
        return Progress(0, 1, f"{left:,} pods are left")
    if job.bound >= left:
        return Progress(1, 1)
    parts = [f"{job.bound:,} of {left:,} pods are bound"]
    if job.failed:
        parts.append(f"{job.failed:,} failed")
    if job.unschedulable:
        parts.append(f"{job.unschedulable:,} unschedulable{await _why(dispatcher, namespace, one.name)}")
    return Progress(0, 1, ", ".join(parts))


async def _why(dispatcher: DispatcherClient, namespace: str, job: str) -> str:
    """The reason of one of the job's unschedulable pods."""
    async for pod in dispatcher.list_pods(namespace, job=job, phases=(pb.UNSCHEDULABLE,)):
        if pod.reason:
            return f" ({reason_kinds(pod.reason)})"
    return ""


async def _of_worker(dispatcher: DispatcherClient, one: Awaited, condition: WaitCondition) -> Progress:
    found = {worker.name: worker.state for worker in await dispatcher.list_workers()}
    state = found.get(one.name, "")
    if condition is WaitCondition.DELETED:
        return Progress(int(state in ("", "Left", "Lost")), 1, state.lower())
    # A worker that is not there yet may come: `hoss wait` often follows what starts it.
    return Progress(int(state == "Ready"), 1, state.lower() or "not registered")
