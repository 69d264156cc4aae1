"""What-if of nodes that are not there: so many more of one shape, in a plan's snapshot only.

A copy of a node of the platform has its labels, taints, amounts and cards, under a name of its own, and it
loses what only that very machine has: its cordon, its images, and taints and labels that tell of its state.
The pods that each node gets anyway (those of DaemonSets and static ones) take as much room on the copy as on
the node. A node from a file is taken as it is written."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from hoss.errors import InvalidInput, NotFound
from hoss.model.node import NOISY_LABEL, NodeSpec
from hoss.model.resources import PODS
from hossctl.console import Document
from hossctl.load.nodes import HOSTNAME_LABEL, read_nodes_file
from hossctl.rebalance.gathering import Fixed, Gathered
from scheduler_worker.core.cache.node_info import NodeInfoCache

# The prefixes of taints that controllers set by a node's state (not-ready, memory-pressure, unschedulable).
_STATE_TAINTS = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/")


@dataclass(frozen=True, slots=True)
class NewNodes:
    """Which nodes a what-if adds."""

    count: int
    like: str  # as it was given: a node's name, or a file
    spec: NodeSpec | None = None  # the one in the file; None: `like` names a node of the platform


@dataclass(frozen=True, slots=True)
class AddedNodes:
    """New nodes in a snapshot."""

    like: str
    indexes: Sequence[int]
    pods_before: int  # on each of them before the plan


def read_new_nodes(count: int, like: str) -> NewNodes:
    """The shape in the file `like`, or that of the node `like`, which is looked up later. Raises
    InvalidInput."""
    path = Path(like)
    if not path.is_file():
        return NewNodes(count, like)
    specs = read_nodes_file(path)
    if len(specs) != 1:
        raise InvalidInput(
            f"holds {len(specs)} nodes; write the one that the new nodes are like", where=f"--like: {like}"
        )
    return NewNodes(count, like, specs[0])


def add_new_nodes(gathered: Gathered, new: NewNodes) -> AddedNodes:
    """Add them to the snapshot. Raises NotFound where there is no such node."""
    snapshot, pods = gathered.snapshot, gathered.pods
    known = {
        spec.name: index for index, spec in enumerate(snapshot.cache.catalogue.specs) if spec is not None
    }
    shape, rows = new.spec, np.zeros(0, np.intp)
    if shape is None:
        index = known.get(new.like)
        original = None if index is None else snapshot.cache.catalogue.specs[index]
        if original is None:
            raise NotFound(f"no node and no file is named {new.like}; `hoss get nodes` lists the nodes")
        shape = _without_state(original)
        rows = np.flatnonzero((pods.nodes == index) & (pods.fixed == Fixed.DAEMON))
    held = [(pods.specs[pods.classes[row]], int(pods.card_masks[row])) for row in rows.tolist()]
    names: list[str] = []
    number = 0
    while len(names) < new.count:
        number += 1
        name = f"{shape.name}-new-{number}"
        if name not in known:
            names.append(name)
    indexes = snapshot.with_nodes([_named(shape, name) for name in names], held)
    return AddedNodes(new.like, indexes, len(held))


def new_nodes_document(cache: NodeInfoCache, added: AddedNodes) -> Document:
    """What a plan puts on the new nodes: see hossctl/rebalance/plans.py."""
    used = [node for node in added.indexes if cache.requested[PODS, node] > added.pods_before]
    allocatable = cache.accounts.allocatable[:, used].sum(axis=1).tolist()
    requested = cache.requested[:, used].sum(axis=1).tolist()
    names = cache.schema.names
    return {
        "like": added.like,
        "nodes": len(added.indexes),
        "pods": requested[PODS] - added.pods_before * len(used),
        "resources": [
            {"resource": name, "allocatable": offered, "requested": asked}
            for name, offered, asked in zip(names, allocatable, requested, strict=True)
            if offered
        ],
        "used": [
            {
                "name": cache.catalogue.name(node),
                "pods": int(cache.requested[PODS, node]) - added.pods_before,
                "requested": {
                    name: amount
                    for name, amount in zip(names, cache.requested[:, node].tolist(), strict=True)
                    if amount
                },
            }
            for node in used
        ],
    }


def new_nodes_sentence(document: Document) -> str:
    """The same in words."""
    used = len(document["used"])
    if not used:
        return f"none of {document['nodes']} like {document['like']} gets a pod"
    shares = [
        f"{entry['resource']} {entry['requested'] / entry['allocatable']:.0%}"
        for entry in document["resources"]
    ]
    return (
        f"{used} of {document['nodes']} like {document['like']} {'gets' if used == 1 else 'get'} pods,"
        f" {document['pods']} in all;"
        f" requested of these nodes: {', '.join(shares)}"
    )


def _without_state(spec: NodeSpec) -> NodeSpec:
    return replace(
        spec,
        labels=tuple((key, value) for key, value in spec.labels if key != NOISY_LABEL),
        taints=tuple(taint for taint in spec.taints if not taint.key.startswith(_STATE_TAINTS)),
        unschedulable=False,
        images=(),
    )


def _named(shape: NodeSpec, name: str) -> NodeSpec:
    """The shape with this name, as its hostname too."""
    labels = {**dict(shape.labels), HOSTNAME_LABEL: name}
    return replace(shape, name=name, labels=tuple(sorted(labels.items())))
