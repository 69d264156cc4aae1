"""Nodes to schedule on: simulated from a seed, described as pools by the document SimulatedNodes, or read
from a file; and their registration in the ledger."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field, field_validator

from hoss.client.resolver import ResolverClient
from hoss.config import NAME_PATTERN, NAME_RULE, Document, load_document
from hoss.errors import InvalidInput
from hoss.manifests.documents import read_manifest, read_objects
from hoss.manifests.fields import mapping
from hoss.manifests.guarded import read_bytes
from hoss.manifests.node import read_node
from hoss.model.node import NodeSpec, Taint
from hoss.model.resources import DEVICE_RESOURCE
from hossctl.traces.openb import read_nodes

POOLS_KIND = "SimulatedNodes"
HOSTNAME_LABEL = "kubernetes.io/hostname"
ZONE_LABEL = "topology.kubernetes.io/zone"


class NodePool(Document):
    """Equal nodes, named `<name>-00000` and on."""

    # Begins the names of its nodes.
    name: str = Field(pattern=NAME_PATTERN, description=NAME_RULE)

    # How many.
    count: int = Field(ge=1, le=100_000)

    # The nodes alternate between these zones. Without zones only the template can give a zone label.
    zones: tuple[str, ...] = ()

    # A Node object as in Kubernetes; only its labels, taints and amounts are looked at.
    template: dict[str, Any]


class SimulatedNodes(Document):
    """Pools, in the order in which their nodes are registered."""

    # At least one; their names differ.
    pools: tuple[NodePool, ...] = Field(min_length=1)

    @field_validator("pools")
    @classmethod
    def _names_differ(cls, pools: tuple[NodePool, ...]) -> tuple[NodePool, ...]:
        names = [pool.name for pool in pools]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"pools must differ in name; given more than once: {', '.join(twice)}")
        return pools


def read_pools(path: Path) -> list[NodeSpec]:
    """The nodes of a SimulatedNodes document. Raises InvalidInput with file, pool and field."""
    document = load_document(path, POOLS_KIND, SimulatedNodes)
    return [
        _pool_node(pool, number, where=f"{path}: pools[{position}].template")
        for position, pool in enumerate(document.pools)
        for number in range(pool.count)
    ]


def _pool_node(pool: NodePool, number: int, *, where: str) -> NodeSpec:
    name = f"{pool.name}-{number:05d}"
    own_labels = {HOSTNAME_LABEL: name}
    if pool.zones:
        own_labels[ZONE_LABEL] = pool.zones[number % len(pool.zones)]
    try:
        metadata = mapping(pool.template, "metadata", "node")
        labels = {**mapping(metadata, "labels", "metadata"), **own_labels}
        return read_node({**pool.template, "metadata": {**metadata, "name": name, "labels": labels}})
    except InvalidInput as exc:
        raise exc.at(where) from exc


GIB = 2**30
NODES_PER_CALL = 500  # some 200 KB a message
ZONES = ("zone-a", "zone-b", "zone-c")
CARD_MODELS = ("A10", "T4", "V100")
MODEL_LABEL = "nvidia.com/gpu.product"
DEDICATED = Taint("dedicated", "batch")
CARD_TAINT = Taint(DEVICE_RESOURCE, "present")  # as cloud providers do: pods that need no card stay away


@dataclass(frozen=True, slots=True)
class Shape:
    """A kind of machine. It occurs `weight` times in the sum of all weights."""

    name: str
    weight: int
    cpu_milli: int
    memory_bytes: int
    cards: int = 0


# Two sizes of ordinary machine and one with accelerators, in about the proportions of the Alibaba GPU trace's
# ordinary and eight-card nodes turned round: most loads request no card.
SHAPES = (
    Shape("standard", 60, 32_000, 128 * GIB),
    Shape("large", 25, 64_000, 256 * GIB),
    Shape("gpu", 15, 96_000, 384 * GIB, cards=8),
)
UNIFORM = (SHAPES[0],)
PODS_PER_NODE = 110  # the kubelet's default


def simulated_nodes(
    count: int, *, seed: int = 1, shapes: Sequence[Shape] = SHAPES, prefix: str = "node"
) -> list[NodeSpec]:
    """`count` nodes named `<prefix>-00000` and on, the same for the same seed. Zones alternate. Nodes with
    cards are tainted for pods that need cards, and one in ten of the others has the taint dedicated=batch.
    Four in ten have the label disk=ssd, the others disk=hdd."""
    chance = random.Random(seed)
    weights = [shape.weight for shape in shapes]
    return [_node(f"{prefix}-{i:05d}", i, chance.choices(shapes, weights)[0], chance) for i in range(count)]


def read_nodes_file(path: Path) -> list[NodeSpec]:
    """Nodes of a file: manifests of kind Node, a SimulatedNodes document, or the openb trace's node list if
    the name ends in .csv. Raises InvalidInput with the file and the place in it."""
    if path.suffix == ".csv":
        return read_nodes(path)
    content = read_bytes(path, str(path))
    first = next(read_objects(content, where=str(path)), None)
    if first is not None and first[1].get("kind") == POOLS_KIND:
        return read_pools(path)
    nodes = list(read_manifest(content, where=str(path)).nodes)
    if not nodes:
        raise InvalidInput(
            "holds no Node; give manifests of kind Node, a SimulatedNodes document, or a .csv node list",
            where=str(path),
        )
    return nodes


async def register(
    client: ResolverClient, nodes: Sequence[NodeSpec], done: Callable[[int], None] = lambda _: None
) -> list[str]:
    """Add or change nodes in the ledger, some hundreds a call; `done` gets the number of each call. Returns
    the names of nodes that now offer less than is requested on them."""
    shrunken: list[str] = []
    for chunk in _chunks(nodes):
        reply = await client.upsert_nodes(chunk)
        shrunken += reply.overcommitted
        done(len(chunk))
    return shrunken


def _chunks(nodes: Sequence[NodeSpec]) -> Iterator[Sequence[NodeSpec]]:
    for start in range(0, len(nodes), NODES_PER_CALL):
        yield nodes[start : start + NODES_PER_CALL]


def _node(name: str, number: int, shape: Shape, chance: random.Random) -> NodeSpec:
    labels = {
        HOSTNAME_LABEL: name,
        ZONE_LABEL: ZONES[number % len(ZONES)],
        "node.kubernetes.io/instance-type": shape.name,
        "disk": "ssd" if chance.random() < 0.4 else "hdd",
    }
    allocatable = {
        "cpu": shape.cpu_milli,
        "memory": shape.memory_bytes,
        "ephemeral-storage": 200 * GIB,
        "pods": PODS_PER_NODE,
    }
    if shape.cards:
        labels[MODEL_LABEL] = CARD_MODELS[number % len(CARD_MODELS)]
        allocatable[DEVICE_RESOURCE] = shape.cards
    taints = (CARD_TAINT,) if shape.cards else (DEDICATED,) if chance.random() < 0.1 else ()
    return NodeSpec(
        name,
        labels=tuple(sorted(labels.items())),
        taints=taints,
        allocatable=tuple(sorted(allocatable.items())),
        cards=shape.cards,
    )
