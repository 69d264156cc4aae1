"""What a plan of moves starts from: a snapshot of a running platform, with its bound and its waiting pods.

The nodes and their accounts are a worker's view, filled from the feed. The dispatcher tells which pods there
are and whether they may be moved; the reservations tell where they are and which cards they hold. What
changed between these three readings is left where it is."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from hoss.model.cluster import PodDisruptionBudget
from hoss.model.pod import Movable, PodGroup, PodSpec, PodTemplate, group_of
from hoss.model.volumes import READ_ONLY_MANY, READ_WRITE_MANY
from hoss.v1 import dispatcher_pb2 as pb
from hoss.v1 import resolver_pb2
from hoss.wire.columns import I64, U16, U32, decode, decode_uids
from hoss.wire.convert import template_from_proto
from hossctl.endpoints import Clients
from hossctl.explain.live import LiveSnapshot, take_snapshot
from scheduler_worker.core.cache.storage import StorageCatalogue
from scheduler_worker.core.classes import compile_demand
from scheduler_worker.core.pod_index.index import PodIndex
from scheduler_worker.core.rebalance.movable_pods import PlacedPods
from scheduler_worker.core.rebalance.plan_state import WaitingPods

_PODS_A_PAGE = 10_000
_WAITING = (pb.UNSCHEDULABLE, pb.BACKOFF)


class Fixed(IntEnum):
    """Why a pod must not be moved. 0: it may."""

    NOT = 0
    SAID_SO = 1
    BARE = 2
    GANG = 3
    DAEMON = 4
    RESIZED = 5
    SHARED = 6
    DEVICES = 7


REASONS = (
    "",
    "its annotation hoss.dev/movable says false",
    "no controller would make it anew",
    "it belongs to a gang",
    "it belongs to its node (DaemonSet)",
    "its requests have changed since it was placed",
    "another pod uses its volume, which one node at a time can attach",
    "it holds devices of resource claims, which are its node's",
)


@dataclass(frozen=True, slots=True)
class Gathered:
    """A platform, ready for measuring and planning."""

    snapshot: LiveSnapshot
    pods: PlacedPods
    waiting: tuple[WaitingPods, ...]
    budgets: tuple[str, ...]  # names of the disruption budgets, by column of `pods.covered`


@dataclass(frozen=True, slots=True)
class KnownPod:
    """A pod as the dispatcher lists it."""

    uid: bytes
    name: str  # "namespace/name"
    workload: str  # "namespace/job"; of a pod without a job its own name, or that of one like it
    template: PodTemplate
    gang: bool
    unmovable: str = ""  # why the dispatcher would not move it, by what it is


@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """The reservations of a ledger, by UID."""

    nodes: dict[bytes, int]
    card_masks: dict[bytes, int]
    requests: dict[bytes, NDArray[np.int64]]


async def gather(clients: Clients) -> Gathered:
    """Read a platform. Raises TransportError or LedgerUnavailable."""
    templates: dict[bytes, PodTemplate] = {}
    bound: list[KnownPod] = []
    waiting: dict[tuple[str, PodTemplate], int] = {}
    minimum: dict[str, int] = {}
    alike: dict[tuple[str, bytes], str] = {}
    phases = (pb.BOUND, *_WAITING)
    async for pod in clients.dispatcher.list_pods(phases=phases, page_pods=_PODS_A_PAGE, templates=True):
        written = pod.template.SerializeToString(deterministic=True)
        template = templates.get(written)
        if template is None:
            template = templates[written] = template_from_proto(pod.template)
        workload = workload_of(pod)
        if pod.phase == pb.BOUND:
            if (
                not pod.job and template.owner_kind
            ):  # a Kubernetes cluster's, whose controllers make them alike
                workload = alike.setdefault((pod.namespace, written), workload)
            name = f"{pod.namespace}/{pod.name}"
            bound.append(KnownPod(pod.uid, name, workload, template, bool(pod.gang), pod.unmovable))
        else:
            waiting[workload, template] = waiting.get((workload, template), 0) + 1
            minimum[workload] = pod.gang_lacks
    budgets = await clients.dispatcher.list_budgets()
    held = await _reservations(clients)
    snapshot = await take_snapshot(clients)
    limits = [(budget, status.disruptions_allowed) for budget, status in budgets]
    # In a thread: with many pods it takes seconds, and a dashboard or a controller answers others meanwhile.
    placed = await asyncio.to_thread(placed_pods, snapshot, bound, held, limits)
    return Gathered(
        snapshot,
        placed,
        tuple(
            WaitingPods(
                name,
                template.spec,
                pods,
                together=min(minimum[name], pods),
            )
            for (name, template), pods in waiting.items()
        ),
        tuple(f"{budget.namespace}/{budget.name}" for budget, _ in budgets),
    )


def workload_of(pod: pb.PodInfo) -> str:
    """The name of what a pod belongs to: its job or its gang; else its own. "namespace/name"."""
    return f"{pod.namespace}/{pod.job or pod.gang or pod.name}"


def placed_pods(
    snapshot: LiveSnapshot,
    bound: Iterable[KnownPod],
    held: Held,
    budgets: Iterable[tuple[PodDisruptionBudget, int]],
) -> PlacedPods:
    """The bound pods that the snapshot counts where their reservations are; the others are left out.
    `budgets` come with how many of their pods may be disrupted."""
    cache, schema = snapshot.cache, snapshot.cache.schema
    present = cache.present
    numbers: dict[tuple[PodSpec, PodGroup], int] = {}
    as_placed = _AsPlaced(cache.pod_index)
    bound = list(bound)
    shared = _shared_claims(bound, cache.storage)
    workloads: dict[str, int] = {}
    kept: list[KnownPod] = []
    classes, nodes, fixed, of_workload = [], [], [], []
    requests: list[NDArray[np.int64]] = []
    reasons = dict.fromkeys(REASONS)
    for pod in bound:
        node = held.nodes.get(pod.uid, -1)
        if not 0 <= node < cache.size or not present[node]:
            continue
        spec = pod.template.spec
        group = as_placed.group_of(spec, node)
        number = numbers.get((spec, group))
        if number is None:
            number = numbers[spec, group] = len(numbers)
            requests.append(compile_demand(spec, schema).request)
        kept.append(pod)
        classes.append(number)
        nodes.append(node)
        changed = not np.array_equal(held.requests[pod.uid], requests[number][: len(held.requests[pod.uid])])
        hindrance = Fixed.RESIZED if changed else _tie(spec, group, shared)
        fixed.append(hindrance or _reason(pod, reasons))
        of_workload.append(workloads.setdefault(pod.workload, len(workloads)))
    of_class, at = np.array(classes, np.intp), np.array(nodes, np.intp)
    specs, groups = [spec for spec, _ in numbers], [group for _, group in numbers]
    counted = _counted(snapshot, groups, of_class, at)
    rows = np.flatnonzero(counted)
    limits = list(budgets)
    covered = np.array([[budget.covers(spec) for budget, _ in limits] for spec in specs], np.bool_)
    return PlacedPods(
        names=[kept[row].name for row in rows.tolist()],
        specs=specs,
        groups=groups,
        classes=of_class[rows],
        nodes=at[rows],
        card_masks=np.array([held.card_masks[kept[row].uid] for row in rows.tolist()], np.uint16),
        workloads=np.array(of_workload, np.intp)[rows],
        fixed=np.array(fixed, np.intp)[rows],
        reasons=tuple(reasons),
        covered=covered.reshape(len(specs), len(limits)),
        allowed=np.array([allowed for _, allowed in limits], np.int64),
    )


def _reason(pod: KnownPod, reasons: dict[str, None]) -> int:
    """The number of the reason why the pod must stay; a new one is added."""
    why = why_fixed(pod)
    if why is not Fixed.NOT or not pod.unmovable:
        return why
    reasons.setdefault(pod.unmovable)
    return list(reasons).index(pod.unmovable)


class _AsPlaced:
    """Which groups pods are counted as: those of their specs, or with the volumes and devices that they got
    where they are."""

    def __init__(self, index: PodIndex) -> None:
        self._plain: dict[PodSpec, PodGroup] = {}
        # By what they were before they were placed, and their node. Of pods with devices each has a group of
        # its own, so that all those of a workload would be a long list without the node.
        self._decided: dict[tuple[PodGroup, int], list[tuple[PodGroup, int]]] = {}
        for group in index.groups:
            if (before := group.undecided) != group:
                for node, pods in index.pods_of(group).items():
                    self._decided.setdefault((before, node), []).append((group, pods))

    def group_of(self, spec: PodSpec, node: int) -> PodGroup:
        """The group of one more pod with this spec on the node."""
        plain = self._plain.get(spec)
        if plain is None:
            plain = self._plain[spec] = group_of(spec)
        left = self._decided.get((plain, node))
        if not left:
            return plain
        group, pods = left.pop()
        if pods > 1:
            left.append((group, pods - 1))
        return group


def _shared_claims(pods: Iterable[KnownPod], storage: StorageCatalogue) -> set[tuple[str, str]]:
    """Claims whose volume several of these pods use, and one node at a time attaches."""
    users: Counter[tuple[str, str]] = Counter()
    for pod in pods:
        users.update(_claims(pod.template.spec))
    return {
        key
        for key, pods_of_it in users.items()
        if pods_of_it > 1
        and (claim := storage.claims.get(key)) is not None
        and not {READ_WRITE_MANY, READ_ONLY_MANY}.intersection(claim.access_modes)
    }


def _claims(spec: PodSpec) -> set[tuple[str, str]]:
    return {(spec.namespace, mount.claim) for mount in spec.volumes.claims} if spec.volumes else set()


def _tie(spec: PodSpec, group: PodGroup, shared: set[tuple[str, str]]) -> Fixed:
    """Why its volumes or devices keep the pod on its node."""
    if group.held_claims or spec.claims is not None:
        return Fixed.DEVICES
    return Fixed.SHARED if shared and not shared.isdisjoint(_claims(spec)) else Fixed.NOT


def why_fixed(pod: KnownPod) -> Fixed:
    """Why the pod must stay on its node, by what its owner said and by what makes such pods."""
    template = pod.template
    if template.owner_kind == "DaemonSet" or template.spec.node_name:
        return Fixed.DAEMON
    if template.movable is Movable.NO:
        return Fixed.SAID_SO
    if template.movable is Movable.YES:
        return Fixed.NOT
    if not template.owner_kind:
        return Fixed.BARE
    return Fixed.GANG if pod.gang else Fixed.NOT


def _counted(
    snapshot: LiveSnapshot, groups: Sequence[PodGroup], classes: NDArray[np.intp], nodes: NDArray[np.intp]
) -> NDArray[np.bool_]:
    """Which of the pods the snapshot counts on their nodes: what was placed or left meanwhile is told by it
    or by the dispatcher alone."""
    there = {group: snapshot.cache.pod_index.pods_of(group) for group in dict.fromkeys(groups)}
    placed = [(groups[number], node) for number, node in zip(classes.tolist(), nodes.tolist(), strict=True)]
    listed = Counter(placed)
    found = [there[group].get(node, 0) >= listed[group, node] for group, node in placed]
    return np.array(found, np.bool_)


async def _reservations(clients: Clients) -> Held:
    held = Held({}, {}, {})
    async for chunk in clients.resolver.reservations():
        add_reservations(held, chunk)
    return held


def add_reservations(held: Held, chunk: resolver_pb2.ReservationChunk) -> None:
    """Take in a part of the list of reservations."""
    uids = [uid.tobytes() for uid in decode_uids(chunk.uids)]
    nodes = decode(chunk.nodes, U32, name="nodes", rows=len(uids)).tolist()
    masks = decode(chunk.card_masks, U16, name="card_masks", rows=len(uids)).tolist()
    requests = decode(chunk.requests, I64, name="requests").reshape(len(uids), -1)
    held.nodes.update(zip(uids, nodes, strict=True))
    held.card_masks.update(zip(uids, masks, strict=True))
    held.requests.update(zip(uids, requests, strict=True))
