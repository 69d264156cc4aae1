"""What all nodes have together, followed from the node feed: what tenants' shares are shares of."""

from collections import Counter
from collections.abc import Mapping

from hoss.v1 import resolver_pb2 as pb


class NodeTotals:
    """Sums of allocatable over all nodes, by resource."""

    def __init__(self) -> None:
        self._by_node: dict[int, dict[str, int]] = {}
        self._totals: Counter[str] = Counter()

    def read(self, message: pb.FeedMessage) -> Mapping[str, int] | None:
        """The totals after this message; None where it changes none."""
        before = +self._totals
        if message.snapshot:
            for index in [i for i in self._by_node if i % max(1, message.shards) == message.shard]:
                self._totals.subtract(self._by_node.pop(index))
        for entry in message.nodes:
            self._totals.subtract(self._by_node.pop(entry.index, {}))
            if not entry.removed:
                amounts = {amount.resource: amount.amount for amount in entry.spec.allocatable}
                self._by_node[entry.index] = amounts
                self._totals.update(amounts)
        self._totals = +self._totals
        return None if self._totals == before else dict(self._totals)
