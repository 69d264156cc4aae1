"""One object in full: what is known of it, what belongs to it, and how it came where it is."""

from collections import Counter

from hoss.errors import NotFound
from hoss.v1 import dispatcher_pb2 as pb
from hossctl.conflicts import fetch_conflicts
from hossctl.console import Document
from hossctl.endpoints import Endpoints, dispatcher_of
from hossctl.job_story import grouped
from hossctl.kinds import Kind, Query
from hossctl.listing import fetch
from hossctl.node_story import story
from hossctl.objects import (
    decision_document,
    job_step_document,
    phase_name,
    pod_document,
    pod_step_document,
    queue_document,
    worker_step_document,
)
from hossctl.tracking import reason_kinds

_MOST_PODS = 200  # listed one by one; of the others, how many


async def describe(endpoints: Endpoints, query: Query) -> Document:
    """The one object that the query names, with more. Raises NotFound."""
    if query.kind is Kind.PODS:
        return await _pod(endpoints, query)
    document = (await fetch(endpoints, query))[0]
    if query.kind is Kind.NODES:
        document |= story(document, await _pods_on(endpoints, document["name"]), most=_MOST_PODS)
    elif query.kind is Kind.WORKERS:
        document |= await _conflicts_of(endpoints, document["name"])
        async with dispatcher_of(endpoints) as dispatcher:
            found = [worker for worker in await dispatcher.list_workers(steps=True) if worker.name == document["name"]]
        document["steps"] = [worker_step_document(step) for worker in found for step in worker.steps]
    elif query.kind is Kind.JOBS:
        document |= await _pods_of(endpoints, query)
    return document


async def _pod(endpoints: Endpoints, query: Query) -> Document:
    async with dispatcher_of(endpoints) as dispatcher:
        pod = await dispatcher.get_pod(query.namespace, query.names[0], queue=True, decisions=True, steps=True)
    document = pod_document(pod)
    if pod.phase == pb.FAILED:
        document["whatToDo"] = _after_failure(document)
    if pod.HasField("queue"):
        document["queue"] = queue_document(pod.queue)
    if pod.queue.behind:
        document["waitsBehind"] = pod.queue.behind
    if pod.decisions:
        document["decisions"] = [decision_document(decision) for decision in pod.decisions]
    document["steps"] = list(map(pod_step_document, pod.steps))
    document["stepsSinceUnixMs"] = pod.steps_since_unix_ms
    return document


def _after_failure(pod: Document) -> str:
    again = f"`hoss retry pod {pod['name']} -n {pod['namespace']}`"
    if any(fault["final"] for fault in pod.get("faults", [])):
        return (
            f"no worker can place it as it is: correct and submit it anew, or give a worker what it lacks and {again}"
        )
    workers = ", ".join(sorted({fault["worker"] for fault in pod.get("faults", [])}))
    return f"see why {workers} died, in their logs; once that is mended, {again}"


async def _pods_on(endpoints: Endpoints, node: str) -> list[Document]:
    async with dispatcher_of(endpoints) as dispatcher:
        return [pod_document(pod) async for pod in dispatcher.list_pods(node=node, templates=True)]


async def _conflicts_of(endpoints: Endpoints, worker: str) -> Document:
    """For whom its pods were refused, and who was refused for its pods."""
    pairs = (await fetch_conflicts(endpoints))["pairs"]
    return {
        "refusedFor": [
            {"worker": p["winner"] or "nobody", "reason": p["reason"], "pods": p["pods"]}
            for p in pairs
            if p["loser"] == worker
        ],
        "othersRefusedForIt": [
            {"worker": p["loser"], "reason": p["reason"], "pods": p["pods"]} for p in pairs if p["winner"] == worker
        ],
    }


async def _pods_of(endpoints: Endpoints, query: Query) -> Document:
    """What the job's pods went through, and what those wait for that are not bound. `reasons` counts them by phase and kind; a gang's are
    told in full, as they count for all of it."""
    name = query.names[0]
    counts: Counter[str] = Counter()
    waiting: list[tuple[str, str, int]] = []
    async with dispatcher_of(endpoints) as dispatcher:
        jobs = await dispatcher.list_jobs(query.namespace, name, steps=True)
        async for pod in dispatcher.list_pods(query.namespace, job=name):
            told = pod.reason if pod.reason.startswith("gang ") else reason_kinds(pod.reason)
            if pod.reason:
                counts[f"{phase_name(pod.phase)}: {told}"] += 1
            if pod.phase != pb.BOUND:
                waiting.append((phase_name(pod.phase), told, pod.phase_since_unix_ms))
    if not jobs:
        raise NotFound("was there a moment ago; it has been deleted", where=f"job {name!r}")
    return {
        "reasons": dict(counts),
        "waiting": grouped(waiting),
        "steps": list(map(job_step_document, jobs[0].steps)),
        "stepsSinceUnixMs": jobs[0].steps_since_unix_ms,
    }
