"""`hoss fragmentation`: which of the free room pods can use, as documents.

The document (camel case; amounts in schema units, cards in thousandths of a card):

    kind                  "Fragmentation"
    label                 the node label that makes the pools; empty: one pool of all nodes
    pools[]               name, nodes, emptiable (nodes that could be emptied, an estimate from above), and
        resources[]       resource, allocatable, free, usable (by the pods that are bound now),
                          usableByWaiting (by those that wait; null: none of them requests it)
        stranded[]        resource, beside (the resource that is full), amount, nodes
        cards             null, or cards, freeMilli, wholeFree, inPieces, freeInPiecesMilli, fragmentsMilli
                          and fragmentsOfWaitingMilli (FGD's measure; null: no waiting pod requests cards)
    morePools             how many smaller pools are left out
    waiting[]             of all nodes: name, pods, fitting (how many fit in all, each class alone), share
                          (how much of one pod fits on the node that comes closest), node, limitedBy
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hoss.model.pod import DeviceRequest, PodSpec
from hoss.model.resources import written_amount
from hoss.wire.columns import FLAGS_CLOSED
from hossctl.console import Column, Document
from hossctl.explain.live import LiveSnapshot
from hossctl.rebalance.gathering import Gathered
from scheduler_worker.core.framework.profile import Profile
from scheduler_worker.core.nodes import Mask
from scheduler_worker.core.offline.scheduler import examine
from scheduler_worker.core.placement.diagnosis import rejection_of
from scheduler_worker.core.plugins.devices.fragmentation import Popularity
from scheduler_worker.core.rebalance.usable_room import (
    NodeRoom,
    RequestMix,
    UsableRoom,
    emptiable_nodes,
    largest_pods,
    measure,
)

_WITHOUT_LABEL = "-"


def fragmentation_document(
    gathered: Gathered, profile: Profile, label: str = "", *, most_pools: int | None = None
) -> Document:
    """The measure of a platform, by pools of nodes with equal values of a label; of the largest pools, if
    there is a bound."""
    cache = gathered.snapshot.cache
    nodes = np.flatnonzero(cache.present & ((cache.accounts.flags[: cache.size] & FLAGS_CLOSED) == 0))
    room = NodeRoom(
        tuple(cache.schema.names),
        cache.accounts.allocatable[:, nodes],
        cache.requested[:, nodes],
        cache.cards.used[nodes],
    )
    placed = _requests(gathered.snapshot, gathered.pods.specs)
    usual, waiting = _mix(gathered, *placed), _waiting_mix(gathered, profile, nodes)
    names, codes = _pools(gathered.snapshot, nodes, label)
    largest = np.argsort(-np.bincount(codes, minlength=len(names)), kind="stable")[:most_pools]
    pools = []
    for code in np.sort(largest).tolist():
        name, at = names[code], codes == code
        measured = measure(room.at(at), usual, waiting.on(at))
        pools.append(
            {
                "name": name,
                "emptiable": _emptiable(gathered, placed, room, nodes, at),
                **_room_document(measured),
            }
        )
    return {
        "kind": "Fragmentation",
        "label": label,
        "pools": pools,
        "morePools": len(names) - len(pools),
        "waiting": _waiting_documents(gathered, room, waiting, nodes),
    }


def popularity_of(gathered: Gathered) -> Popularity:
    """The bound pods with cards, as the workload of FGD's measure for moves. Pods without cards count all
    free cards as lost, which no move changes; where they are many the gain of each move would be small."""
    requests, devices = _requests(gathered.snapshot, gathered.pods.specs)
    return _mix(gathered, requests, devices, with_cards=True).popularity()


def _mix(
    gathered: Gathered,
    requests: NDArray[np.int64],
    devices: Sequence[DeviceRequest | None],
    *,
    with_cards: bool = False,
) -> RequestMix:
    """The bound pods as a mix of classes; `with_cards`: those that request cards."""
    counts = np.bincount(gathered.pods.classes, minlength=len(devices))
    if with_cards:
        counts[np.array([device is None for device in devices], np.bool_)] = 0
    return RequestMix.of(requests, devices, counts)


def _waiting_mix(gathered: Gathered, profile: Profile, nodes: NDArray[np.intp]) -> RequestMix:
    specs = [entry.spec for entry in gathered.waiting]
    requests, devices = _requests(gathered.snapshot, specs)
    admitted = [_admitting(gathered.snapshot, spec, profile)[nodes] for spec in specs]
    return RequestMix.of(
        requests,
        devices,
        np.array([entry.pods for entry in gathered.waiting], np.int64),
        admitted=np.array(admitted, np.bool_).reshape(len(specs), len(nodes)),
        most=max(len(specs), 1),
    )


def _admitting(snapshot: LiveSnapshot, spec: PodSpec, profile: Profile) -> Mask:
    pod = examine(spec, snapshot, profile)
    if rejection_of(pod) is not None or pod.demand.unknown:
        return np.zeros(snapshot.cache.size, np.bool_)
    # Rules about pods that are there count as well: a pod that they keep off a node fits there by amounts
    # alone.
    return pod.plugin_state.narrow(pod.static.mask.copy())


def _requests(
    snapshot: LiveSnapshot, specs: Sequence[PodSpec]
) -> tuple[NDArray[np.int64], list[DeviceRequest | None]]:
    demands = [snapshot.demands.compile(spec).demand for spec in specs]
    requests = np.array([demand.request for demand in demands], np.int64)
    return requests.reshape(len(specs), len(snapshot.cache.schema)).T, [d.devices for d in demands]


def _pools(snapshot: LiveSnapshot, nodes: NDArray[np.intp], label: str) -> tuple[list[str], NDArray[np.intp]]:
    """Names of the pools, sorted, and the number of each node's."""
    if not label:
        return ["all"], np.zeros(len(nodes), np.intp)
    specs = snapshot.cache.catalogue.specs
    values = []
    for node in nodes.tolist():
        spec = specs[node]
        values.append(_WITHOUT_LABEL if spec is None else dict(spec.labels).get(label, _WITHOUT_LABEL))
    names, codes = np.unique(np.array(values, np.str_), return_inverse=True)
    return names.tolist(), codes.reshape(-1)


def _emptiable(
    gathered: Gathered,
    placed: tuple[NDArray[np.int64], Sequence[DeviceRequest | None]],
    room: NodeRoom,
    nodes: NDArray[np.intp],
    at: Mask,
) -> int:
    pods, (requests, devices) = gathered.pods, placed
    shapes = np.array([(d.count, d.milli) if d is not None else (0, 0) for d in devices], np.int64)
    position = np.full(gathered.snapshot.cache.size, -1, np.intp)
    position[nodes[at]] = np.arange(int(at.sum()))
    there = position[pods.nodes] >= 0
    return emptiable_nodes(
        room.at(at), requests, shapes.reshape(-1, 2).T, pods.classes[there], position[pods.nodes[there]]
    )


def _room_document(measured: UsableRoom) -> Document:
    cards = measured.cards
    return {
        "nodes": measured.nodes,
        "resources": [
            {
                "resource": entry.resource,
                "allocatable": entry.allocatable,
                "free": entry.free,
                "usable": round(entry.usable),
                "usableByWaiting": None
                if entry.usable_by_waiting is None
                else round(entry.usable_by_waiting),
            }
            for entry in measured.resources
        ],
        "stranded": [entry._asdict() for entry in measured.stranded],
        "cards": None
        if cards is None
        else {
            "cards": cards.cards,
            "freeMilli": cards.free_milli,
            "wholeFree": cards.whole_free,
            "inPieces": cards.in_pieces,
            "freeInPiecesMilli": cards.free_in_pieces_milli,
            "fragmentsMilli": round(cards.fragments_milli),
            "fragmentsOfWaitingMilli": None
            if cards.fragments_of_waiting_milli is None
            else round(cards.fragments_of_waiting_milli),
        },
    }


def _waiting_documents(
    gathered: Gathered, room: NodeRoom, waiting: RequestMix, nodes: NDArray[np.intp]
) -> list[Document]:
    # The mix has the most frequent classes first.
    order = np.argsort([-entry.pods for entry in gathered.waiting], kind="stable").tolist()
    documents = []
    for number, largest in zip(order, largest_pods(room, waiting), strict=True):
        entry = gathered.waiting[number]
        node = "" if largest.node < 0 else gathered.snapshot.cache.catalogue.name(int(nodes[largest.node]))
        documents.append(
            {
                "name": entry.name,
                "pods": entry.pods,
                "fitting": largest.pods,
                "share": round(largest.share, 3),
                "node": node,
                "limitedBy": largest.limited_by,
            }
        )
    return documents


def _part(row: Document, key: str) -> str:
    value = row[key]
    return (
        "-" if value is None else f"{written_amount(row['resource'], value)} ({_percent(value, row['free'])})"
    )


def _percent(part: float, whole: float) -> str:
    return f"{part / whole:.0%}" if whole else "-"


ROOM_COLUMNS: Sequence[Column] = (
    Column("POOL", lambda row: row["pool"]),
    Column("NODES", lambda row: row["nodes"]),
    Column("RESOURCE", lambda row: row["resource"]),
    Column("ALLOCATABLE", lambda row: written_amount(row["resource"], row["allocatable"])),
    Column("FREE", lambda row: written_amount(row["resource"], row["free"])),
    Column("USABLE", lambda row: _part(row, "usable")),
    Column("BY WAITING", lambda row: _part(row, "usableByWaiting")),
)
WAITING_COLUMNS: Sequence[Column] = (
    Column("WAITING", lambda row: row["name"]),
    Column("PODS", lambda row: row["pods"]),
    Column("FIT", lambda row: row["fitting"]),
    Column("OF ONE POD FITS", lambda row: f"{min(row['share'], 1):.0%}"),
    Column("ON", lambda row: row["node"] or "-"),
    Column("LIMITED BY", lambda row: row["limitedBy"] or "-"),
)


def room_rows(document: Document) -> list[Document]:
    """A row for each resource of each pool."""
    return [
        {"pool": pool["name"], "nodes": pool["nodes"], **resource}
        for pool in document["pools"]
        for resource in pool["resources"]
    ]


def room_sentences(document: Document) -> list[str]:
    """What the table does not show, as sentences."""
    found = []
    for pool in document["pools"]:
        name = f"pool {pool['name']}: " if document["label"] else ""
        found += [
            f"{name}{written_amount(entry['resource'], entry['amount'])} of {entry['resource']} is stranded"
            f" on {entry['nodes']} nodes whose {entry['beside']} is full"
            for entry in pool["stranded"]
        ]
        cards = pool["cards"]
        if cards is not None:
            found.append(
                f"{name}{cards['freeMilli'] / 1000:g} of {cards['cards']} cards are free:"
                f" {cards['wholeFree']} whole, and {cards['freeInPiecesMilli'] / 1000:g} in pieces on"
                f" {cards['inPieces']} cards; {cards['fragmentsMilli'] / 1000:g} are fragments, by"
                " FGD's measure for the usual pods"
            )
        found.append(
            f"{name}at most {pool['emptiable']} of {pool['nodes']} nodes could be emptied, by amounts"
        )
    return found
