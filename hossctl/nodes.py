"""Nodes to schedule on: simulated ones from a seed, or read from a file; and their way into the ledger."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hoss.client.resolver import ResolverClient
from hoss.errors import InvalidInput
from hoss.model.node import NodeSpec
from hoss.model.resources import DEVICE_RESOURCE
from hoss.model.taints import Taint
from hoss.wire.manifests import read_manifest, read_objects
from hossctl import node_pools
from hossctl.node_pools import HOSTNAME_LABEL, ZONE_LABEL
from hossctl.openb import read_nodes

GIB = 2**30
NODES_PER_CALL = 500  # some 200 KB a message
ZONES = ("zone-a", "zone-b", "zone-c")
CARD_MODELS = ("A10", "T4", "V100")
MODEL_LABEL = "nvidia.com/gpu.product"
DEDICATED = Taint("dedicated", "batch")
CARD_TAINT = Taint(DEVICE_RESOURCE, "present")  # as cloud providers do: pods that need no card stay away


@dataclass(frozen=True, slots=True)
class Shape:
    """A kind of machine and how often it occurs among `sum(weights)`."""

    name: str
    weight: int
    cpu_milli: int
    memory_bytes: int
    cards: int = 0


# Two sizes of ordinary machine and one with accelerators, in about the proportions of the Alibaba GPU trace's
# ordinary and eight-card nodes turned round: most loads ask for no card.
SHAPES = (
    Shape("standard", 60, 32_000, 128 * GIB),
    Shape("large", 25, 64_000, 256 * GIB),
    Shape("gpu", 15, 96_000, 384 * GIB, cards=8),
)
UNIFORM = (SHAPES[0],)
PODS_PER_NODE = 110  # the kubelet's default


def simulated(count: int, *, seed: int = 1, shapes: Sequence[Shape] = SHAPES, prefix: str = "node") -> list[NodeSpec]:
    """`count` nodes named `<prefix>-00000` and on, the same for the same seed.

    Zones take turns. Nodes with cards are tainted for those who need cards, one in ten of the others dedicated=batch; four
    in ten have disk=ssd, the others disk=hdd.
    """
    chance = random.Random(seed)
    weights = [shape.weight for shape in shapes]
    return [_node(f"{prefix}-{i:05d}", i, chance.choices(shapes, weights)[0], chance) for i in range(count)]


def read_nodes_file(path: Path) -> list[NodeSpec]:
    """Nodes of a file: manifests of kind Node, a SimulatedNodes document, or the openb trace's node list when the name
    ends in .csv.

    Raises InvalidInput naming the file and the place in it.
    """
    if path.suffix == ".csv":
        return read_nodes(path)
    try:
        content = path.read_bytes()
    except OSError as exc:
        raise InvalidInput(f"cannot be read: {exc.strerror}", where=str(path)) from exc
    first = next(read_objects(content, where=str(path)), None)
    if first is not None and first[1].get("kind") == node_pools.KIND:
        return node_pools.read_pools(path)
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
    """Add or change nodes in the ledger, some hundreds a call; `done` hears of each call's count.

    Returns the names of nodes that now offer less than what is requested on them.
    """
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
