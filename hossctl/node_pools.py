"""Simulated nodes by the description of their pools: the configuration document SimulatedNodes.

A pool is a number of equal nodes, described once by a Node object without a name.
"""

from pathlib import Path
from typing import Any

from pydantic import Field, field_validator

from hoss.config import Document, load_document
from hoss.errors import InvalidInput
from hoss.model.fields import mapping
from hoss.model.node import NodeSpec
from hoss.model.node_manifest import read_node

KIND = "SimulatedNodes"
HOSTNAME_LABEL = "kubernetes.io/hostname"
ZONE_LABEL = "topology.kubernetes.io/zone"


class NodePool(Document):
    """Equal nodes, named `<name>-00000` and on."""

    # Begins the names of its nodes.
    name: str = Field(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")

    # How many.
    count: int = Field(ge=1, le=100_000)

    # The nodes take turns through these zones. Without any they have no zone label but the template's.
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
    """The nodes of a SimulatedNodes document. Raises InvalidInput naming the file, the pool and the field."""
    document = load_document(path, KIND, SimulatedNodes)
    return [
        _node(pool, number, where=f"{path}: pools.{position}.template")
        for position, pool in enumerate(document.pools)
        for number in range(pool.count)
    ]


def _node(pool: NodePool, number: int, *, where: str) -> NodeSpec:
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
