"""The nodes as the feed last told of them, by index; and which of them bound pods may not stay on just as they like."""

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from dispatcher.core.messages import KnownNode
from hoss.model.taints import Taint


class KnownNodes:
    """*Unfit* are nodes that are gone, and nodes with NoExecute taints. A node that comes back under its name has its index again."""

    def __init__(self) -> None:
        self._nodes: dict[int, KnownNode] = {}
        self._gone: dict[int, str] = {}  # and what it was called, if that was ever told
        self._unfit: set[int] = set()
        self._is_unfit = np.zeros(0, np.bool_)  # by index

    def __contains__(self, index: int) -> bool:
        return index in self._nodes

    def get(self, index: int) -> KnownNode | None:
        """The node; None if it is gone, or was not told of yet."""
        return self._nodes.get(index)

    def gone(self, index: int) -> str | None:
        """The name of a node that is gone, "" where nobody knows it; None for every other."""
        return self._gone.get(index)

    @property
    def any_unfit(self) -> bool:
        """Whether there is one."""
        return bool(self._unfit)

    def unfit(self, indexes: NDArray[np.uint32]) -> NDArray[np.bool_]:
        """Which of these nodes are: (n,)."""
        found = np.zeros(len(indexes), np.bool_)
        inside = indexes < len(self._is_unfit)
        found[inside] = self._is_unfit[indexes[inside]]
        return found

    def learn(self, nodes: Mapping[int, KnownNode], now_ms: int) -> set[int]:
        """They are so now. Returns those that have other NoExecute taints than before, and any."""
        changed = set()
        for index, told in nodes.items():
            before = self._nodes.get(index)
            known = told._replace(expelling=_dated(told, before, now_ms)) if told.expelling else told
            if known.expelling and (before is None or before.expelling != known.expelling):
                changed.add(index)
            self._nodes[index] = known
            self._gone.pop(index, None)
            self._mark(index, unfit=bool(known.expelling))
        return changed

    def forget(self, indexes: Iterable[int]) -> None:
        """They are gone."""
        for index in indexes:
            known = self._nodes.pop(index, None)
            self._gone[index] = known.name if known is not None else self._gone.get(index, "")
            self._mark(index, unfit=True)

    def _mark(self, index: int, *, unfit: bool) -> None:
        if unfit == (index in self._unfit):
            return
        if index >= len(self._is_unfit):
            longer = np.zeros(max(2 * len(self._is_unfit), index + 1), np.bool_)
            longer[: len(self._is_unfit)] = self._is_unfit
            self._is_unfit = longer
        self._is_unfit[index] = unfit
        (self._unfit.add if unfit else self._unfit.discard)(index)


def _dated(told: KnownNode, before: KnownNode | None, now_ms: int) -> tuple[tuple[Taint, int], ...]:
    """Taints that say nothing of their time are there since they were first told of."""
    earlier = dict(before.expelling) if before is not None else {}
    return tuple((taint, since_ms or earlier.get(taint, now_ms)) for taint, since_ms in told.expelling)
