"""Fragmentation and the rebalance controller as metrics. The figures are those of `hoss fragmentation`, as
they were measured last; labels are bounded by the number of pools that are shown and by the ledger's
resources."""

from collections import Counter
from collections.abc import Iterator, Mapping

from hoss.telemetry.metrics import COUNTER, GAUGE, Family, Metric
from hossctl.choices import RebalanceGoal
from hossctl.console import Document

MOST_POOLS = 32  # the largest; a label with more values makes no more series

FREE = Metric(
    "hoss_fragmentation_free",
    GAUGE,
    "Amounts that are not requested, on nodes that take pods, in units of the ledger.",
    ("pool", "resource"),
)
USABLE = Metric(
    "hoss_fragmentation_usable",
    GAUGE,
    "Of that, what pods can use: those that are bound (mix usual), or those that wait (mix waiting).",
    ("pool", "resource", "mix"),
)
STRANDED = Metric(
    "hoss_fragmentation_stranded",
    GAUGE,
    "Free amounts on nodes where another resource is full.",
    ("pool", "resource", "beside"),
)
EMPTIABLE = Metric(
    "hoss_fragmentation_emptiable_nodes", GAUGE, "Nodes that could be emptied at most, by amounts.", ("pool",)
)
CARD_FRAGMENTS = Metric(
    "hoss_fragmentation_card_fragments",
    GAUGE,
    "Free cards that the bound pods' mix cannot use, by FGD's measure, in cards.",
    ("pool",),
)
MEASURED = Metric("hoss_fragmentation_measured_total", COUNTER, "How often fragmentation was measured.")
MOVES = Metric(
    "hoss_rebalance_moves_total", COUNTER, "Pods that the rebalance controller has moved.", ("goal",)
)
MOVES_LAST_HOUR = Metric(
    "hoss_rebalance_moves_last_hour", GAUGE, "Of these, in the last hour: what its budget is about."
)
PAUSED = Metric("hoss_rebalance_paused", GAUGE, "1: the rebalance controller is paused by hand.")

METRICS = (
    FREE, USABLE, STRANDED, EMPTIABLE, CARD_FRAGMENTS, MEASURED, MOVES, MOVES_LAST_HOUR, PAUSED,
)  # fmt: skip


class MeasuredRoom:
    """The last measure, and moves by goal since the process began."""

    def __init__(self) -> None:
        self.moves: Counter[RebalanceGoal] = Counter()
        self._pools: list[Document] = []
        self._measured = 0

    def take(self, document: Document) -> None:
        """Show this measure from now on (hossctl/rebalance/room.py has the form)."""
        by_size = sorted(document["pools"], key=lambda pool: -pool["nodes"])
        self._pools, self._measured = by_size[:MOST_POOLS], self._measured + 1

    def families(self) -> Iterator[Family]:
        """The measure as metrics; of one that never was, only that it was not."""
        pools = [(pool["name"], pool) for pool in self._pools]
        yield FREE.by(((name, entry["resource"]), entry["free"]) for name, entry in _resources(pools))
        yield USABLE.by(
            ((name, entry["resource"], mix), entry[key])
            for name, entry in _resources(pools)
            for mix, key in (("usual", "usable"), ("waiting", "usableByWaiting"))
            if entry[key] is not None
        )
        yield STRANDED.by(
            ((name, entry["resource"], entry["beside"]), entry["amount"])
            for name, pool in pools
            for entry in pool["stranded"]
        )
        yield EMPTIABLE.by((name, pool["emptiable"]) for name, pool in pools)
        yield CARD_FRAGMENTS.by(
            (name, pool["cards"]["fragmentsMilli"] / 1000) for name, pool in pools if pool["cards"]
        )
        yield MEASURED.single(self._measured)


def controller_families(
    moves_last_hour: int, moves: Mapping[RebalanceGoal, int], *, paused: bool
) -> Iterator[Family]:
    """The controller's own metrics."""
    yield MOVES.by((goal.value, moves.get(goal, 0)) for goal in RebalanceGoal)
    yield MOVES_LAST_HOUR.single(moves_last_hour)
    yield PAUSED.single(int(paused))


def _resources(pools: list[tuple[str, Document]]) -> Iterator[tuple[str, Document]]:
    return ((name, entry) for name, pool in pools for entry in pool["resources"])
