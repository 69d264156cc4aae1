"""Runs of pods that a worker has still to place: those that may be placed now, in their order, and those that wait for the view
or for what the worker itself has under way."""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from itertools import takewhile

import numpy as np
from numpy.typing import NDArray

from scheduler_worker.core.assumptions import Assumption
from scheduler_worker.core.work import Run, Work


class Backlog:
    """A run is *held* until the view stands where its pods were refused: only then does placing them again make sense."""

    def __init__(self) -> None:
        self._runs: deque[Run] = deque()
        self._held: list[tuple[dict[int, int], Run]] = []  # until the view stands at these seqs, by shard
        self._behind: list[tuple[Sequence[Assumption], Run]] = []  # until these have ended
        self._behind_draft: list[Run] = []  # the same for what is placed and not proposed yet

    def __bool__(self) -> bool:
        return bool(self._runs or self._held or self._behind or self._behind_draft)

    @property
    def pods(self) -> int:
        """In all runs."""
        return sum(len(run.rows) for run in self._every())

    @property
    def next(self) -> Run | None:
        """What is to be placed next; None where nothing can be placed now."""
        return self._runs[0] if self._runs else None

    def take(self) -> Run:
        """Take out what is next."""
        return self._runs.popleft()

    def of_work(self, work: Work) -> Iterable[Run]:
        """The next runs, as far as they are of this work."""
        return takewhile(lambda run: run.work is work, self._runs)

    def take_work(self, work: Work) -> list[Run]:
        """Take out the next runs, as far as they are of this work."""
        runs = []
        while self._runs and self._runs[0].work is work:
            runs.append(self._runs.popleft())
        return runs

    def add(self, runs: Iterable[Run]) -> None:
        """Behind all others."""
        self._runs.extend(runs)

    def put_first(self, runs: Iterable[Run]) -> None:
        """Before all others, in their order."""
        self._runs.extendleft(reversed(list(runs)))

    def hold(self, runs: Iterable[Run], awaited: dict[int, int]) -> None:
        """Until the view stands at these seqs, by shard."""
        self._held.extend((dict(awaited), run) for run in runs)

    def wait_for(self, assumptions: Sequence[Assumption], runs: Iterable[Run]) -> None:
        """Until none of these counts any more: then the view has seen them, or they were refused."""
        self._behind.extend((assumptions, run) for run in runs)

    def wait_for_draft(self, run: Run) -> None:
        """Until none of what is placed now counts any more. `drafted` tells as what it is proposed."""
        self._behind_draft.append(run)

    def drafted(self, assumptions: Sequence[Assumption]) -> None:
        """What was placed is proposed."""
        runs, self._behind_draft = self._behind_draft, []
        self.wait_for(assumptions, runs)

    def look_again(self) -> bool:
        """Whether a wait for assumptions has ended; what waited comes first."""
        due = [run for assumptions, run in self._behind if not any(a.live.any() for a in assumptions)]
        if due:
            self._behind = [entry for entry in self._behind if any(a.live.any() for a in entry[0])]
            self.put_first(due)
        return bool(due)

    def put_gang(self, work: Work, runs: list[Run], awaited: dict[int, int]) -> None:
        """These pods of a gang, with those that verdicts on other parts left: all once nothing is awaited."""
        waiting = next((seqs for seqs, run in self._held if run.work is work), {})
        waiting.update(awaited)
        if waiting:
            runs = [*(run for run in self._runs if run.work is work), *runs]
            self._runs = deque(run for run in self._runs if run.work is not work)
            self._held.extend((waiting, run) for run in runs)
        else:
            self.put_first(runs)

    def resume(self, shard: int, reached: Callable[[int], bool]) -> bool:
        """The view has heard of the shard; `reached` says of a seq whether it stands there. Whether a wait has ended."""
        for awaited, _ in self._held:
            if shard in awaited and reached(awaited[shard]):
                del awaited[shard]
        due = [run for awaited, run in self._held if not awaited]
        if due:
            self._held = [held for held in self._held if held[0]]
            self.put_first(due)
        return self.look_again() or bool(due)

    def take_all(self) -> list[Run]:
        """Take out everything."""
        runs = self._every()
        self._runs.clear()
        self._held.clear()
        self._behind.clear()
        self._behind_draft.clear()
        return runs

    def take_untried(self, batch_ids: Collection[int], pods: int) -> list[tuple[Work, NDArray[np.intp]]]:
        """Take out up to `pods` pods of these batches that were never tried, the last ones first; a gang only as a whole, and
        also where that is more."""
        kept: list[Run] = []
        taken: list[tuple[Work, NDArray[np.intp]]] = []
        while self._runs and pods > 0:
            run = self._runs.pop()
            if run.tries or run.work.batch_id not in batch_ids:
                kept.append(run)
                continue
            if run.work.gang is not None:  # untried, so all its runs are here, one after the other
                rows = [run.rows]
                while self._runs and self._runs[-1].work is run.work:
                    rows.append(self._runs.pop().rows)
                given = np.concatenate(rows)
            else:
                given = run.rows[-pods:]
                if len(given) < len(run.rows):
                    kept.append(replace(run, rows=run.rows[: -len(given)]))
            taken.append((run.work, given))
            pods -= len(given)
        self._runs.extend(reversed(kept))
        return taken

    def _every(self) -> list[Run]:
        return [*self._runs, *(run for _, run in (*self._held, *self._behind)), *self._behind_draft]
