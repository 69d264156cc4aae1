"""Explains a pod of a running platform: its phase and queue, what each node would say to it, and which
changes would have it tried again.

The nodes are evaluated in this process, by the workers' code. Its snapshot of the cluster is a worker's node
cache, filled from the same feed, which is read once up to the present."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from hoss.errors import InvalidInput
from hoss.manifests.fields import Object
from hoss.model.cluster import Cluster, Namespace, Service
from hoss.model.node import NodeSpec
from hoss.model.pod import PodSpec, group_of
from hoss.v1 import dispatcher_pb2 as pb
from hoss.wire.columns import CARD_SLOTS, U16, account_dtype, decode, decode_uids
from hoss.wire.convert import pod_spec_from_proto
from hoss.wire.convert_selectors import labels_from_proto
from hossctl.cli import run_async
from hossctl.console import Document, Format, print_document, print_summary, say
from hossctl.endpoints import Clients, Endpoints, clients_of
from hossctl.explain.offline import NamedProfile, explanation_document, pending_pods, preset
from hossctl.explain.remedies import NodeNow, remedies
from hossctl.explain.table import print_nodes, verdict
from hossctl.figures import written_duration
from hossctl.kinds import Kind, read_kind
from hossctl.views.documents.objects import phase_name, queue_document
from scheduler_worker.config import STRATEGY_LABEL
from scheduler_worker.core.cache.node_info import NodeInfoCache
from scheduler_worker.core.classes import DemandTable, compile_demand
from scheduler_worker.core.messages import AccountBatch, FeedUpdate, PodRun
from scheduler_worker.core.offline.scheduler import examine, explain_placement
from scheduler_worker.core.plugins.profiles import DEFAULT_PROFILE, PRESETS
from scheduler_worker.messages import device_update, feed_update

_CARD_BITS = np.arange(CARD_SLOTS)


@dataclass(frozen=True, slots=True)
class LiveSnapshot:
    """A cluster as its workers see it; a ClusterView of scheduler_worker.core.offline.scheduler."""

    cache: NodeInfoCache
    demands: DemandTable

    def nodes(self) -> list[NodeNow]:
        """All nodes, with the amounts that are requested on them."""
        cache, names = self.cache, self.cache.schema.names
        return [
            NodeNow(spec, dict(zip(names, cache.requested[:, index].tolist(), strict=True)))
            for index, spec in enumerate(cache.catalogue.specs)
            if spec is not None
        ]

    def without(self, spec: PodSpec, node: str, card_mask: int = 0) -> None:
        """Release one such pod, which is bound to the node and holds these cards, in this snapshot only. Does
        nothing where the node has no such pod any more."""
        cache, group = self.cache, group_of(spec)
        found = (
            i for i, known in enumerate(cache.catalogue.specs) if known is not None and known.name == node
        )
        index = next(found, None)
        if index is None or not cache.pod_index.counts(group, np.array((index,), np.intp))[0]:
            return
        shard = index % max(cache.shards, 1)
        demand = compile_demand(spec, cache.schema)
        record = np.zeros(1, account_dtype(len(cache.schema)))
        record["seq"], record["flags"] = cache.seqs[shard] + 1, cache.accounts.flags[index]
        record["amounts"][0, :, 0] = cache.accounts.allocatable[:, index]
        record["amounts"][0, :, 1] = cache.accounts.committed[:, index] - demand.request
        cards = cache.cards.committed[index].copy()
        if demand.devices is not None:
            cards[(card_mask >> _CARD_BITS) & 1 == 1] -= demand.devices.milli
        indexes = np.array([index], np.uint32)
        cache.apply_feed(
            FeedUpdate(
                shard=shard,
                seq=cache.seqs[shard] + 1,
                accounts=AccountBatch(indexes, record, indexes, cards[None, :]),
                pods=(PodRun(group, np.array([index], np.intp), gone=True),),
            )
        )

    def with_nodes(self, specs: Sequence[NodeSpec], held: Sequence[tuple[PodSpec, int]] = ()) -> list[int]:
        """Add these nodes in this snapshot only, and return their indexes. Each holds one pod of each spec in
        `held`, with these cards of its node; these pods count in no rule about other pods."""
        cache, first = self.cache, self.cache.size
        offered = {resource for spec in specs for resource, _ in spec.allocatable}
        schema = (*cache.schema.names, *sorted(offered.difference(cache.schema.names)))
        indexes = list(range(first, first + len(specs)))
        shards = max(cache.shards, 1)
        for shard in range(shards):
            mine = {index: specs[index - first] for index in indexes if index % shards == shard}
            if not mine:
                continue
            seq = cache.seqs.get(shard, 0) + 1
            accounts = AccountBatch.of_nodes([*mine], [*mine.values()], schema, seq=seq)
            for spec_held, card_mask in held:
                demand = compile_demand(spec_held, cache.schema)
                accounts.records["amounts"][:, : len(demand.request), 1] += demand.request
                if demand.devices is not None:
                    accounts.cards[:, (card_mask >> _CARD_BITS) & 1 == 1] += demand.devices.milli
            cache.apply_feed(FeedUpdate(shard, seq, accounts, tuple(mine.items()), schema=schema))
        return indexes


async def take_snapshot(clients: Clients) -> LiveSnapshot:
    """A snapshot of the platform. Raises TransportError or LedgerUnavailable."""
    objects = await clients.dispatcher.list_objects()
    storage = await clients.dispatcher.list_storage()
    cache = NodeInfoCache()
    async for message in clients.resolver.feed_as_of_now("hoss explain"):
        cache.apply_feed(feed_update(message))
    cache.pod_index.set_namespaces(
        {item.name: item.all_labels for item in objects if isinstance(item, Namespace)}
    )
    cache.apply_objects(storage)
    cache.devices.apply(device_update(storage), time.time())
    demands = DemandTable(cache.schema, cache.catalogue.images, cache.pod_index)
    demands.set_device_resources(frozenset(cache.devices.extended_resources))
    demands.set_services(item for item in objects if isinstance(item, Service))
    return LiveSnapshot(cache, demands)


async def explain_live(
    endpoints: Endpoints, namespace: str, name: str, profile: NamedProfile | None = None
) -> Document:
    """The explanation of a pod of the platform. Times are Unix milliseconds; 0 where there is none. Raises
    NotFound.

    `nodes` has the evaluation of every node; for a bound pod, as if it had just been released. The profile is
    the one given, else the preset that its worker has."""
    async with clients_of(endpoints) as clients:
        pod = await clients.dispatcher.get_pod(namespace, name, queue=True)
        snapshot = await take_snapshot(clients)
        spec = pod_spec_from_proto(pod.template.spec)
        if pod.phase == pb.BOUND:
            snapshot.without(
                spec, pod.node, await _card_mask(clients, pod) if spec.devices is not None else 0
            )
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
        document["wouldHelp"] = _would_help(pod, spec, snapshot)
    return {**document, "profile": chosen.name, "nodes": _evaluated(spec, snapshot, chosen)}


async def explain_manifest(
    endpoints: Endpoints, objects: Iterable[tuple[str, Object]], profile: NamedProfile | None = None
) -> list[Document]:
    """The explanation of each pod of a manifest, as if it were submitted now. Raises InvalidInput."""
    pending = pending_pods(objects, Cluster())
    async with clients_of(endpoints) as clients:
        snapshot = await take_snapshot(clients)
    chosen = profile or NamedProfile(DEFAULT_PROFILE, preset(DEFAULT_PROFILE))
    return [{**pod.document(chosen.name), **_evaluated(pod.spec, snapshot, chosen)} for pod in pending]


def print_live(
    kind: str,
    name: str,
    namespace: str,
    endpoints: Endpoints,
    output: Format,
    *,
    profile: NamedProfile | None,
    all_nodes: bool,
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


def _evaluated(spec: PodSpec, snapshot: LiveSnapshot, chosen: NamedProfile) -> Document:
    profile = chosen.profile
    return explanation_document(explain_placement(examine(spec, snapshot, profile), snapshot, profile))


async def _profile_of(clients: Clients, worker: str) -> NamedProfile:
    """The preset that a worker has. Other profiles are in its configuration, which is not known here."""
    name = DEFAULT_PROFILE
    for info in await clients.dispatcher.list_workers() if worker else ():
        if info.name == worker:
            name = info.profile.partition(",")[0] or dict(labels_from_proto(info.labels)).get(
                STRATEGY_LABEL, ""
            )
    name = name if name in PRESETS else DEFAULT_PROFILE
    return NamedProfile(name, preset(name))


async def _card_mask(clients: Clients, pod: pb.PodInfo) -> int:
    """The cards of the pod's reservation; none where it is gone."""
    async for chunk in clients.resolver.reservations():
        held = list(map(bytes, decode_uids(chunk.uids)))
        if pod.uid in held:
            return int(decode(chunk.card_masks, U16, name="card_masks")[held.index(pod.uid)])
    return 0


def _would_help(pod: pb.PodInfo, spec: PodSpec, snapshot: LiveSnapshot) -> list[str]:
    queue = pod.queue
    if queue.name == "active" and not pod.rule and pod.reason:
        return [f"that this ends: {pod.reason}"]
    if queue.name == "active":
        behind = f"that these had their turn: {queue.behind}"
        return [behind if queue.behind else "its turn, by priority and arrival"]
    if queue.name == "backoff":
        return ["nothing needs to: it is tried again when its backoff ends"]
    return remedies(spec, list(queue.refused_by), snapshot.nodes())


def _lines(document: Document, now: float) -> list[tuple[str, object]]:
    lines: list[tuple[str, object]] = [("phase", document["phase"]), ("attempts", document["attempts"])]
    lines += [(key, document[key]) for key in ("node", "worker", "rule", "reason") if document.get(key)]
    if document["eviction"] not in ("", document["reason"]):
        lines.append(("lost its place", document["eviction"]))
    queue = document.get("queue")
    if queue is not None:
        lines += _queue_lines(queue, now)
        lines += [
            ("would help" if i == 0 else "", sentence) for i, sentence in enumerate(document["wouldHelp"])
        ]
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
    conclusion, own = verdict(nodes), document.get("node")
    if own is None:
        return conclusion
    if own not in nodes["totals"]:
        return f"placed anew, {conclusion}; its own node cannot any more"
    total, best = nodes["totals"][own], max(nodes["totals"].values())
    return f"placed anew, {conclusion}; its own node scores {total}, the best {best}"
