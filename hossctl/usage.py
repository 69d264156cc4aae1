"""How full the pool is, and which nodes hold more than they have."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from hoss.model.fit import WHOLE_CARD_MILLI
from hoss.v1 import resolver_pb2 as pb
from hossctl.figures import share

CARDS = "cards"


@dataclass(frozen=True, slots=True)
class Usage:
    """Amounts over all nodes, schema units; cards in thousandths."""

    nodes: int
    requested: dict[str, int]
    allocatable: dict[str, int]
    overcommitted: tuple[str, ...]  # one sentence a node

    def shares(self) -> dict[str, float]:
        """The fraction in use of each resource that any node offers and any pod asked for."""
        return {name: share(used, self.allocatable[name]) for name, used in sorted(self.requested.items()) if used}


def usage_of(nodes: Sequence[pb.NodeInfo]) -> Usage:
    """Sum up the resolver's list of nodes."""
    requested: dict[str, int] = defaultdict(int)
    allocatable: dict[str, int] = defaultdict(int)
    overcommitted = []
    for node in nodes:
        for amount in node.spec.allocatable:
            allocatable[amount.resource] += amount.amount
        for amount in node.requested:
            requested[amount.resource] += amount.amount
        allocatable[CARDS] += node.spec.cards * WHOLE_CARD_MILLI
        requested[CARDS] += sum(node.cards_used_milli[: node.spec.cards])
        if problem := _overcommit(node):
            overcommitted.append(problem)
    return Usage(len(nodes), dict(requested), dict(allocatable), tuple(overcommitted))


def _overcommit(node: pb.NodeInfo) -> str:
    offered = {amount.resource: amount.amount for amount in node.spec.allocatable}
    over = [
        f"{amount.resource} {amount.amount} requested of {offered.get(amount.resource, 0)}"
        for amount in node.requested
        if amount.amount > offered.get(amount.resource, 0)
    ]
    over += [
        f"card {number} {milli} thousandths used"
        for number, milli in enumerate(node.cards_used_milli[: node.spec.cards])
        if milli > WHOLE_CARD_MILLI
    ]
    return f"{node.spec.name}: {', '.join(over)}" if over else ""
