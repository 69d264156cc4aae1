"""What a running platform says of a pod: where it stands and why, node by node, and what would have it tried again.

The nodes are judged here, by the code and from the feed that workers go by.
"""

import time
from collections.abc import Iterable

from hoss.errors import InvalidInput
from hoss.model.cluster import Cluster
from hoss.model.fields import Object
from hoss.model.pod import PodSpec
from hoss.v1 import dispatcher_pb2 as pb
from hoss.wire.columns import U16, decode, decode_uids
from hoss.wire.convert import labels_from_proto, pod_spec_from_proto
from hossctl.console import Document, Format, print_document, print_summary, say
from hossctl.endpoints import Clients, Endpoints, clients_of
from hossctl.eventloop import run_async
from hossctl.explain import judgement_document, pending_pods, preset
from hossctl.explain_table import print_nodes, verdict
from hossctl.figures import written_duration
from hossctl.kinds import Kind, read_kind
from hossctl.live_ground import LiveGround, live_ground
from hossctl.objects import phase_name, queue_document
from hossctl.remedies import remedies
from scheduler_worker.config import STRATEGY_LABEL
from scheduler_worker.core.judge import judge, subject_of
from scheduler_worker.core.profiles import DEFAULT_PROFILE, PRESETS


async def explain_live(endpoints: Endpoints, namespace: str, name: str, profile: str = "") -> Document:
    """The explanation of a pod that the platform has. Raises NotFound. Times are Unix milliseconds, 0 where there is none.

    `nodes` is what the judge says of every node; of a bound pod, as if it had just been released. The profile is the
    one that is named, else the preset that its worker's label chooses.
    """
    async with clients_of(endpoints) as clients:
        pod = await clients.dispatcher.get_pod(namespace, name, queue=True)
        ground = await live_ground(clients)
        spec = pod_spec_from_proto(pod.template.spec)
        if pod.phase == pb.BOUND:
            ground.without(spec, pod.node, await _card_mask(clients, pod) if spec.devices is not None else 0)
        chosen = profile or await _profile_of(clients, pod.worker)
    document: Document = {
        "kind": "PodExplanation",
        "namespace": pod.namespace,
        "name": pod.name,
        "phase": phase_name(pod.phase),
        "attempts": pod.attempts,
        "reason": pod.reason,
        "eviction": pod.eviction,
        "worker": pod.worker,
        "rule": pod.rule,
    }
    if pod.phase == pb.BOUND:
        document["node"] = pod.node
    if pod.HasField("queue"):
        document["queue"] = queue_document(pod.queue)
        document["wouldHelp"] = _would_help(pod, spec, ground)
    return {**document, "profile": chosen, "nodes": _judged(spec, ground, chosen)}


async def explain_manifest(
    endpoints: Endpoints, objects: Iterable[tuple[str, Object]], profile: str = ""
) -> list[Document]:
    """What would become of each pod of a manifest if it were submitted now. Raises InvalidInput."""
    pending = pending_pods(objects, Cluster())
    async with clients_of(endpoints) as clients:
        ground = await live_ground(clients)
    chosen = profile or DEFAULT_PROFILE
    return [{**pod.document(chosen), **_judged(pod.spec, ground, chosen)} for pod in pending]


def print_live(
    kind: str, name: str, namespace: str, endpoints: Endpoints, output: Format, *, profile: str, all_nodes: bool
) -> None:
    """Fetch and print the explanation of one pod."""
    read_kind(kind, Kind.PODS)
    if not name:
        raise InvalidInput("is missing; write hoss explain pod NAME", where="NAME")
    document = run_async(explain_live(endpoints, namespace, name, profile))
    if not output.for_people:
        print_document(document, output)
        return
    print_summary(f"Pod {namespace}/{name}", _lines(document, time.time()))
    if "prefilter" not in document["nodes"]:
        say("")
        print_nodes(document["nodes"], all_nodes=all_nodes)


def _judged(spec: PodSpec, ground: LiveGround, name: str) -> Document:
    profile = preset(name)
    return judgement_document(judge(subject_of(spec, ground, profile), ground, profile))


async def _profile_of(clients: Clients, worker: str) -> str:
    """The preset that a worker's label asks for. A profile of its configuration is not known here."""
    for info in await clients.dispatcher.list_workers() if worker else ():
        strategy = dict(labels_from_proto(info.labels)).get(STRATEGY_LABEL, "")
        if info.name == worker and strategy in PRESETS:
            return strategy
    return DEFAULT_PROFILE


async def _card_mask(clients: Clients, pod: pb.PodInfo) -> int:
    """The cards that the pod's reservation names; none where it is gone."""
    async for chunk in clients.resolver.reservations():
        held = list(map(bytes, decode_uids(chunk.uids)))
        if pod.uid in held:
            return int(decode(chunk.card_masks, U16, name="card_masks")[held.index(pod.uid)])
    return 0


def _would_help(pod: pb.PodInfo, spec: PodSpec, ground: LiveGround) -> list[str]:
    queue = pod.queue
    if queue.name == "active":
        return (
            [f"that this ends: {pod.reason}"]
            if pod.rule == "" and pod.reason
            else [f"that these had their turn: {queue.behind}" if queue.behind else "its turn, by priority and arrival"]
        )
    if queue.name == "backoff":
        return ["nothing needs to: it is tried again when its backoff ends"]
    return remedies(spec, list(queue.refused_by), ground.nodes())


def _lines(document: Document, now: float) -> list[tuple[str, object]]:
    lines: list[tuple[str, object]] = [("phase", document["phase"]), ("attempts", document["attempts"])]
    lines += [(key, document[key]) for key in ("node", "worker", "rule", "reason") if document.get(key)]
    if document["eviction"] not in ("", document["reason"]):
        lines.append(("lost its place", document["eviction"]))
    queue = document.get("queue")
    if queue is not None:
        lines += _queue_lines(queue, now)
        lines += [("would help" if i == 0 else "", sentence) for i, sentence in enumerate(document["wouldHelp"])]
    return [*lines, ("now", _now(document)), ("profile", document["profile"])]


def _queue_lines(queue: Document, now: float) -> list[tuple[str, object]]:
    waits = written_duration(max(0.0, now - queue["sinceUnixMs"] / 1000))
    lines: list[tuple[str, object]] = [("queue", f"{queue['name']}, for {waits}")]
    if queue["refusedBy"]:
        lines.append(("refused by", ", ".join(queue["refusedBy"])))
    for key, words in (("notBeforeUnixMs", "not before"), ("atLatestUnixMs", "at the latest")):
        ahead = queue[key] / 1000 - now
        if queue[key] and ahead > 0:
            lines.append((words, f"in {written_duration(ahead)}"))
    return lines


def _now(document: Document) -> str:
    nodes = document["nodes"]
    said, own = verdict(nodes), document.get("node")
    if own is None:
        return said
    if own not in nodes["totals"]:
        return f"placed anew, {said}; its own node cannot any more"
    total, best = nodes["totals"][own], max(nodes["totals"].values())
    return f"placed anew, {said}; its own node scores {total}, the best {best}"
