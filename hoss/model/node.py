"""A node as schedulers see it."""

from dataclasses import dataclass

from hoss.model.pod import Amounts, Pairs
from hoss.model.taints import Taint


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """`allocatable` is the total for pods (capacity less what the node keeps for itself), never what is left."""

    name: str
    labels: Pairs = ()
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False
    allocatable: Amounts = ()
    cards: int = 0
    images: tuple[tuple[str, int], ...] = ()  # (name, bytes) for each name of each image, sorted
