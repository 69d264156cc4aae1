"""A pod that the platform has: where it stands, which queue it waits in, and what would have it tried again."""

import time

from hoss.errors import InvalidInput
from hoss.v1 import dispatcher_pb2 as pb
from hoss.v1 import resolver_pb2
from hoss.wire.convert import node_from_proto, pod_spec_from_proto
from hossctl.console import Document, Format, print_document, print_summary
from hossctl.endpoints import Endpoints, clients_of
from hossctl.eventloop import run_async
from hossctl.figures import written_duration
from hossctl.listing import Kind, read_kind
from hossctl.objects import phase_name
from hossctl.remedies import NodeNow, remedies

# Plugins whose remedies speak of nodes as they are now; for others the nodes are not asked for.
_ABOUT_NODES = frozenset({"NodeResourcesFit", "TaintToleration", "NodeUnschedulable"})


async def explain_live(endpoints: Endpoints, namespace: str, name: str) -> Document:
    """The pod's explanation. Raises NotFound. Times are Unix milliseconds, 0 where there is none."""
    async with clients_of(endpoints) as clients:
        pod = await clients.dispatcher.get_pod(namespace, name, queue=True)
        about_nodes = not _ABOUT_NODES.isdisjoint(pod.queue.refused_by)
        nodes = await clients.resolver.list_nodes() if about_nodes else []
    document: Document = {
        "kind": "PodExplanation",
        "namespace": pod.namespace,
        "name": pod.name,
        "phase": phase_name(pod.phase),
        "attempts": pod.attempts,
        "reason": pod.reason,
        "worker": pod.worker,
        "rule": pod.rule,
    }
    if pod.phase == pb.BOUND:
        document["node"] = pod.node
    if pod.HasField("queue"):
        queue = pod.queue
        document["queue"] = {
            "name": queue.name,
            "sinceUnixMs": queue.since_unix_ms,
            "notBeforeUnixMs": queue.not_before_unix_ms,
            "atLatestUnixMs": queue.at_latest_unix_ms,
            "refusedBy": list(queue.refused_by),
        }
        document["wouldHelp"] = _would_help(pod, [_node(node) for node in nodes])
    return document


def print_live(kind: str, name: str, namespace: str, endpoints: Endpoints, output: Format) -> None:
    """Fetch and print the explanation of one pod."""
    read_kind(kind, Kind.PODS)
    if not name:
        raise InvalidInput("is missing; write hoss explain pod NAME", where="NAME")
    document = run_async(explain_live(endpoints, namespace, name))
    if output.for_people:
        print_summary(f"Pod {namespace}/{name}", _lines(document, time.time()))
    else:
        print_document(document, output)


def _would_help(pod: pb.PodInfo, nodes: list[NodeNow]) -> list[str]:
    queue = pod.queue
    if queue.name == "active":
        return (
            [f"that this ends: {pod.reason}"]
            if pod.rule == "" and pod.reason
            else [f"that these had their turn: {queue.behind}" if queue.behind else "its turn, by priority and arrival"]
        )
    if queue.name == "backoff":
        return ["nothing needs to: it is tried again when its backoff ends"]
    return remedies(pod_spec_from_proto(pod.template.spec), list(queue.refused_by), nodes)


def _node(info: resolver_pb2.NodeInfo) -> NodeNow:
    return NodeNow(node_from_proto(info.spec), {amount.resource: amount.amount for amount in info.requested})


def _lines(document: Document, now: float) -> list[tuple[str, object]]:
    lines: list[tuple[str, object]] = [("phase", document["phase"]), ("attempts", document["attempts"])]
    lines += [(key, document[key]) for key in ("node", "worker", "rule", "reason") if document.get(key)]
    queue = document.get("queue")
    if queue is None:
        return lines
    waits = written_duration(max(0.0, now - queue["sinceUnixMs"] / 1000))
    lines.append(("queue", f"{queue['name']}, for {waits}"))
    if queue["refusedBy"]:
        lines.append(("refused by", ", ".join(queue["refusedBy"])))
    for key, words in (("notBeforeUnixMs", "not before"), ("atLatestUnixMs", "at the latest")):
        ahead = queue[key] / 1000 - now
        if queue[key] and ahead > 0:
            lines.append((words, f"in {written_duration(ahead)}"))
    lines += [("would help" if i == 0 else "", sentence) for i, sentence in enumerate(document["wouldHelp"])]
    return lines
