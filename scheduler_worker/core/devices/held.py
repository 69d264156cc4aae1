"""Which claims pods of the ledger hold devices for, and a log of what changed."""

from collections import deque
from collections.abc import Iterator
from typing import Generic, TypeVar

from hoss.model.devices import Allocation, HeldClaim

ClaimKey = tuple[str, str]  # namespace, name
_Item = TypeVar("_Item")
_KEPT = 4096


class RecentChanges(Generic[_Item]):
    """The last changes. `position` counts all ever made; each reader keeps its own."""

    def __init__(self) -> None:
        self.position = 0
        self._items: deque[_Item] = deque(maxlen=_KEPT)

    def add(self, item: _Item) -> None:
        """One more change."""
        self._items.append(item)
        self.position += 1

    def since(self, position: int) -> list[_Item] | None:
        """The changes since then; None: some are not known any more."""
        count = self.position - position
        if count > len(self._items):
            return None
        return [self._items[i] for i in range(len(self._items) - count, len(self._items))]


class HeldClaims:
    """Claims for which pods hold devices. Several pods may hold one; the pod index adds and removes them."""

    def __init__(self) -> None:
        self.changes: RecentChanges[ClaimKey] = RecentChanges()
        self._pods: dict[ClaimKey, dict[Allocation, int]] = {}

    def __len__(self) -> int:
        return len(self._pods)

    def __iter__(self) -> Iterator[ClaimKey]:
        return iter(self._pods)

    def allocation(self, key: ClaimKey) -> Allocation | None:
        """The claim's devices; None: no pod holds any. The first that a pod got counts."""
        found = self._pods.get(key)
        return None if found is None else next(iter(found))

    def change(self, held: tuple[HeldClaim, ...], pods: int) -> None:
        """So many pods more, or less, hold these claims."""
        for claim in held:
            key = claim.namespace, claim.name
            by_allocation = self._pods.setdefault(key, {})
            left = by_allocation.get(claim.allocation, 0) + pods
            if left:
                by_allocation[claim.allocation] = left
            else:
                del by_allocation[claim.allocation]
                if not by_allocation:
                    del self._pods[key]
            self.changes.add(key)
