"""Fetches the one object that `hoss describe` prints: its document, what belongs to it, and its history."""

from collections import Counter

from hoss.errors import NotFound
from hoss.v1 import dispatcher_pb2 as pb
from hossctl.console import Document
from hossctl.endpoints import Endpoints, dispatcher_of
from hossctl.kinds import Kind, Query
from hossctl.load.runner import reason_kinds
from hossctl.views.documents.conflicts import fetch_conflicts
from hossctl.views.documents.objects import (
    decision_document,
    job_transition_document,
    phase_name,
    pod_document,
    pod_transition_document,
    queue_document,
    worker_transition_document,
)
from hossctl.views.history import grouped
from hossctl.views.listing import fetch
from hossctl.views.node import node_details

_MOST_PODS = 200  # of a node that are listed one by one; the others are counted


async def describe(endpoints: Endpoints, query: Query) -> Document:
    """The object that the query names. Raises NotFound."""
    if query.kind is Kind.PODS:
        return await _pod(endpoints, query)
    document = (await fetch(endpoints, query))[0]
    if query.kind is Kind.NODES:
        document |= node_details(document, await _pods_on(endpoints, document["name"]), most=_MOST_PODS)
    elif query.kind is Kind.WORKERS:
        document |= await _conflicts_of(endpoints, document["name"])
        async with dispatcher_of(endpoints) as dispatcher:
            workers = await dispatcher.list_workers(steps=True)
        document["steps"] = [
            worker_transition_document(transition)
            for worker in workers
            if worker.name == document["name"]
            for transition in worker.steps
        ]
    elif query.kind is Kind.JOBS:
        document |= await _pods_of(endpoints, query)
    return document


async def _pod(endpoints: Endpoints, query: Query) -> Document:
    async with dispatcher_of(endpoints) as dispatcher:
        pod = await dispatcher.get_pod(
            query.namespace, query.names[0], queue=True, decisions=True, steps=True
        )
    document = pod_document(pod)
    if pod.phase == pb.FAILED:
        document["whatToDo"] = _after_failure(document)
    if pod.HasField("queue"):
        document["queue"] = queue_document(pod.queue)
    if pod.queue.behind:
        document["waitsBehind"] = pod.queue.behind
    if pod.decisions:
        document["decisions"] = [decision_document(decision) for decision in pod.decisions]
    document["steps"] = list(map(pod_transition_document, pod.steps))
    document["stepsSinceUnixMs"] = pod.steps_since_unix_ms
    return document


def _after_failure(pod: Document) -> str:
    again = f"`hoss retry pod {pod['name']} -n {pod['namespace']}`"
    if any(fault["final"] for fault in pod.get("faults", [])):
        return (
            "no worker can place it as it is: correct and submit it anew, or give a worker what it lacks and "
            f"{again}"
        )
    workers = ", ".join(sorted({fault["worker"] for fault in pod.get("faults", [])}))
    return f"see why {workers} died, in their logs; once that is mended, {again}"


async def _pods_on(endpoints: Endpoints, node: str) -> list[Document]:
    async with dispatcher_of(endpoints) as dispatcher:
        return [pod_document(pod) async for pod in dispatcher.list_pods(node=node, templates=True)]


async def _conflicts_of(endpoints: Endpoints, worker: str) -> Document:
    """The workers for whose pods its own were refused, and the workers that were refused for its pods."""
    pairs = (await fetch_conflicts(endpoints))["pairs"]
    return {
        "refusedFor": [
            {"worker": p["winner"] or "nobody", "reason": p["reason"], "pods": p["pods"]}
            for p in pairs
            if p["loser"] == worker
        ],
        "othersRefusedForIt": [
            {"worker": p["loser"], "reason": p["reason"], "pods": p["pods"]}
            for p in pairs
            if p["winner"] == worker
        ],
    }


async def _pods_of(endpoints: Endpoints, query: Query) -> Document:
    """The transitions of the job's pods, and what the pods wait for that are not bound. `reasons` counts pods
    by phase and kind of reason; a gang's reason is given in full, because it holds for all of its pods."""
    name = query.names[0]
    counts: Counter[str] = Counter()
    waiting: list[tuple[str, str, int]] = []
    async with dispatcher_of(endpoints) as dispatcher:
        jobs = await dispatcher.list_jobs(query.namespace, name, steps=True)
        async for pod in dispatcher.list_pods(query.namespace, job=name):
            phase = phase_name(pod.phase)
            reason = pod.reason if pod.reason.startswith("gang ") else reason_kinds(pod.reason)
            if pod.reason:
                counts[f"{phase}: {reason}"] += 1
            if pod.phase != pb.BOUND:
                waiting.append((phase, reason, pod.phase_since_unix_ms))
    if not jobs:
        raise NotFound("was there a moment ago; it has been deleted", where=f"job {name!r}")
    return {
        "reasons": dict(counts),
        "waiting": grouped(waiting),
        "steps": list(map(job_transition_document, jobs[0].steps)),
        "stepsSinceUnixMs": jobs[0].steps_since_unix_ms,
    }
