"""By how much a pod changes the fragmentation of nodes, for the pods that usually come.

What pods usually come is learnt. What they can use of a node is computed once for equal nodes, and looked up:
a *state* is what one node has free on its cards, whichever of them has it. Few states occur among many nodes,
and each pod takes a node from one state to another. The results are those of
scheduler_worker.core.plugins.devices.fragmentation, to the bit."""

from array import array
from collections import Counter
from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from hoss.model.resources import WHOLE_CARD_MILLI
from hoss.wire.columns import CARD_SLOTS
from scheduler_worker.core.plugins.devices.fragmentation import Popularity, TaskClass, free_after

# Popularity is computed again when the number of pods has grown by half: all scores change with it.
_GROWTH = 1.5
# From this number on older pods count half, so that popularity follows the workload.
_MEMORY_PODS = 200_000
# Beyond so many states all are forgotten: most were seen once. They take some ten megabytes.
_MOST_STATES = 1 << 15
_FIRST_CAPACITY = 64
# Up to so many new states are computed one at a time, each in a few microseconds.
_FEW_STATES = 8


class FragmentationGradient:
    """The gradient for the pods that were observed."""

    def __init__(self) -> None:
        self.version = 0  # grows whenever the gradient changes
        self._counts: Counter[TaskClass] = Counter()
        self._seen = 0  # the sum of these
        self._next = 1.0  # popularity is computed again at so many pods
        self._states = CardStates(Popularity.of(self._counts))

    @property
    def counts(self) -> Mapping[TaskClass, int]:
        """How many pods of each class were observed; older ones count less."""
        return self._counts

    def observe(self, pods: Mapping[TaskClass, int]) -> None:
        """So many pods of these classes have come."""
        self._counts.update(pods)
        self._seen += sum(pods.values())
        if self._seen < self._next:
            return
        if self._seen > _MEMORY_PODS:
            self._counts = Counter({task: count // 2 for task, count in self._counts.items() if count > 1})
            self._seen = self._counts.total()
        self._next = self._seen * _GROWTH
        self._states.set_popularity(Popularity.of(self._counts))
        self.version += 1

    def growth(
        self,
        task: TaskClass,
        cards_used: NDArray[np.uint16],
        cpu: NDArray[np.int64],
        memory: NDArray[np.int64],
    ) -> NDArray[np.float64]:
        """See CardStates."""
        return self._states.growth(task, cards_used, cpu, memory)

    def growth_of_one(self, task: TaskClass, cards_used: Iterable[int], cpu: int, memory: int) -> float:
        """See CardStates."""
        return self._states.growth_of_one(task, cards_used, cpu, memory)


class CardStates:
    """The states that nodes were seen in, numbered, and what the popular classes can use of each."""

    def __init__(self, popularity: Popularity, most: int = _MOST_STATES) -> None:
        """`most`: states that are kept at once, besides those of one call."""
        self._popularity = popularity
        self._most = most
        self._numbers: dict[bytes, int] = {}  # by how much is used of each card, sorted
        self._after: dict[tuple[int, int], NDArray[np.intp]] = {}  # by (cards, milli) and state; -1: unknown
        self._free: NDArray[np.int16] = np.zeros((_FIRST_CAPACITY, CARD_SLOTS), np.int16)  # by state
        self._total: NDArray[np.float64] = np.zeros(_FIRST_CAPACITY)  # what is free on all cards
        self._usable = self._usable_of(self._free)  # (s, states)
        # F by state and cell of the table of weights: of a node it is the same for every class of pods.
        self._known: dict[tuple[int, int], float] = {}

    def __len__(self) -> int:
        return len(self._numbers)

    def set_popularity(self, popularity: Popularity) -> None:
        """What classes of pods usually come, from now on."""
        self._popularity = popularity
        self._usable = self._usable_of(self._free)
        self._known.clear()

    def growth(
        self,
        task: TaskClass,
        cards_used: NDArray[np.uint16],
        cpu: NDArray[np.int64],
        memory: NDArray[np.int64],
    ) -> NDArray[np.float64]:
        """By how much a pod of this class, on the cards that the ledger would pick, changes the fragmentation
        of n nodes: (n,), thousandths of a card.

        `cards_used` is (n, 16), 0xFFFF for an absent card; `cpu` and `memory`, (n,), are free."""
        self._forget_if_many()
        before = self._states_of(cards_used)
        after = self._states_after(before, task.cards, task.milli) if task.cards else before
        # Both in one: for a few nodes numpy's calls take as long as for twice as many.
        lost = self._lost(
            np.concatenate((before, after)),
            np.concatenate((cpu, cpu - task.cpu)),
            np.concatenate((memory, memory - task.memory)),
        )
        return lost[len(before) :] - lost[: len(before)]

    def growth_of_one(self, task: TaskClass, cards_used: Iterable[int], cpu: int, memory: int) -> float:
        """`growth` for one node, to the bit. `cards_used` has 16."""
        self._forget_if_many()
        used = sorted([min(used, WHOLE_CARD_MILLI) for used in cards_used])
        before = after = self._number(array("H", used).tobytes())
        if task.cards:
            known = self._known_after(task.cards, task.milli)
            after = int(known[before])
            if after < 0:
                after = known[before] = self._state_after(before, task.cards, task.milli)
        lost = self._lost_of_one(before, cpu, memory)
        return self._lost_of_one(after, cpu - task.cpu, memory - task.memory) - lost

    def _lost_of_one(self, state: int, cpu: int, memory: int) -> float:
        table = self._popularity.weights_table
        if table is None:
            # Two: NumPy adds up the rows of a single column in another order.
            twice = self._lost(np.array((state, state)), np.array((cpu, cpu)), np.array((memory, memory)))
            return float(twice[0])
        place = state, table.cell(cpu, memory)
        lost = self._known.get(place)
        if lost is None:
            usable = table.weights[:, place[1]] * self._usable[:, state]
            lost = float(self._total[state] - np.add.accumulate(usable)[-1])
            self._known[place] = lost
        return lost

    def _forget_if_many(self) -> None:
        if len(self._numbers) > self._most:
            self._numbers.clear()
            self._after.clear()
            self._known.clear()
        elif len(self._known) > self._most:
            self._known.clear()

    def _lost(
        self, states: NDArray[np.intp], cpu: NDArray[np.int64], memory: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """F of n nodes in these states with this much free."""
        lost: NDArray[np.float64] = self._total.take(states)
        if len(self._popularity.first):
            weights = self._popularity.weights_for(cpu, memory)
            weights *= self._usable.take(states, axis=1)
            lost -= weights.sum(axis=0)
        return lost

    def _states_of(self, cards_used: NDArray[np.uint16]) -> NDArray[np.intp]:
        """The states of n nodes, (n,), numbered if they are new. `cards_used` is (n, 16)."""
        used = np.minimum(cards_used, WHOLE_CARD_MILLI)
        used.sort(axis=1)
        rows: list[bytes] = used.view(f"V{used.dtype.itemsize * CARD_SLOTS}").ravel().tolist()
        numbers = self._numbers
        try:
            return np.array([numbers[row] for row in rows], np.intp)
        except KeyError:
            self._add({row: None for row in rows if row not in numbers})
            return np.array([numbers[row] for row in rows], np.intp)

    def _states_after(self, states: NDArray[np.intp], count: int, milli: int) -> NDArray[np.intp]:
        """The states after a pod took `milli` of `count` cards of each node."""
        after = self._known_after(count, milli)
        found: NDArray[np.intp] = after.take(states)
        if len(found) and found.min() < 0:
            new = list(set(states[found < 0].tolist()))
            if len(new) <= _FEW_STATES:
                for state in new:
                    after[state] = self._state_after(state, count, milli)
            else:
                free = free_after(self._free[new].astype(np.int64), count, milli)
                after[new] = self._states_of((WHOLE_CARD_MILLI - free).astype(np.uint16))
            found = after.take(states)
        return found

    def _known_after(self, count: int, milli: int) -> NDArray[np.intp]:
        """By state, the state after such a pod; -1: not computed yet."""
        after = self._after.get((count, milli))
        if after is None or len(after) < len(self._total):
            known = np.empty(0, np.intp) if after is None else after
            after = np.concatenate((known, np.full(len(self._total) - len(known), -1, np.intp)))
            self._after[count, milli] = after
        return after

    def _state_after(self, state: int, count: int, milli: int) -> int:
        """The same for one, numbered if it is new. By the rule of free_after."""
        free = self._free[state].tolist()  # descending
        left = count
        for slot in range(CARD_SLOTS - 1, -1, -1):
            if left and free[slot] >= milli:
                free[slot] -= milli
                left -= 1
        used = array("H", sorted([WHOLE_CARD_MILLI - part for part in free]))
        return self._number(used.tobytes())

    def _number(self, row: bytes) -> int:
        if row not in self._numbers:
            self._add({row: None})
        return self._numbers[row]

    def _add(self, rows: dict[bytes, None]) -> None:
        """Number these states."""
        used = np.frombuffer(b"".join(rows), np.uint16).reshape(-1, CARD_SLOTS)
        start, end = len(self._numbers), len(self._numbers) + len(used)
        while end > len(self._total):
            self._free = np.concatenate((self._free, np.zeros_like(self._free)))
            self._total = np.concatenate((self._total, np.zeros_like(self._total)))
            self._usable = np.concatenate((self._usable, np.zeros_like(self._usable)), axis=1)
        self._numbers.update(zip(rows, range(start, end), strict=True))
        self._free[start:end] = WHOLE_CARD_MILLI - used
        self._total[start:end] = self._free[start:end].sum(axis=1)
        self._usable[:, start:end] = self._usable_of(self._free[start:end])

    def _usable_of(self, free: NDArray[np.int16]) -> NDArray[np.float64]:
        """What pods of each shape can use of n states: (s, n), in thousandths of a card."""
        return self._popularity.usable(free).astype(np.float64)
