"""One object in full: what is known of it, and what belongs to it."""

from collections import Counter

from hoss.v1 import dispatcher_pb2 as pb
from hossctl.conflicts import fetch_conflicts
from hossctl.console import Document
from hossctl.endpoints import Endpoints, dispatcher_of
from hossctl.listing import Kind, Query, fetch
from hossctl.node_story import story
from hossctl.objects import decision_document, phase_name, pod_document
from hossctl.tracking import reason_kinds

_MOST_PODS = 200  # listed one by one; of the others, how many


async def describe(endpoints: Endpoints, query: Query) -> Document:
    """The one object that the query names, with more. Raises NotFound."""
    document = (await fetch(endpoints, query))[0]
    if query.kind is Kind.NODES:
        document |= story(document, await _pods_on(endpoints, document["name"]), most=_MOST_PODS)
    elif query.kind is Kind.WORKERS:
        document |= await _conflicts_of(endpoints, document["name"])
    elif query.kind is Kind.PODS and document["phase"] == phase_name(pb.FAILED):
        document["whatToDo"] = _after_failure(document)
    elif query.kind is Kind.PODS:
        async with dispatcher_of(endpoints) as dispatcher:
            pod = await dispatcher.get_pod(query.namespace, query.names[0], queue=True, decisions=True)
        if pod.queue.behind:
            document["waitsBehind"] = pod.queue.behind
        if pod.decisions:
            document["decisions"] = [decision_document(decision) for decision in pod.decisions]
    elif query.kind is Kind.JOBS:
        document["reasons"] = await _reasons(endpoints, query)
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


async def _reasons(endpoints: Endpoints, query: Query) -> Document:
    """Reasons of the job's pods that are not bound, by phase and kind; a gang's in full, as they count for all of it."""
    counts: Counter[str] = Counter()
    async with dispatcher_of(endpoints) as dispatcher:
        async for pod in dispatcher.list_pods(query.namespace, job=query.names[0]):
            if pod.reason:
                told = pod.reason if pod.reason.startswith("gang ") else reason_kinds(pod.reason)
                counts[f"{phase_name(pod.phase)}: {told}"] += 1
    return dict(counts)
