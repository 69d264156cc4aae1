"""Pods that are done with here: what is said of them, until it is taken to be sent."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from scheduler_worker.core.codes import Outcome
from scheduler_worker.core.diagnosis import Diagnosis
from scheduler_worker.core.work import OutcomeColumns, Positions, Work


class Answers:
    """Of all work in hand."""

    def __init__(self) -> None:
        self._works: dict[Work, None] = {}  # with answers to take, an ordered set
        self._news_wanted = False

    def give(
        self,
        work: Work,
        rows: Positions,
        code: Outcome,
        *,
        nodes: NDArray[np.uint32] | None = None,
        reason: str = "",
    ) -> None:
        """These pods are done with; `nodes` where they are bound."""
        if len(rows):
            work.answer(rows, code, nodes=nodes, reason=reason)
            self._works[work] = None

    def refuse(self, work: Work, rows: Positions, why: Diagnosis, seqs: Mapping[int, int]) -> None:
        """No node fits these pods in a view that stands at `seqs`, by shard."""
        work.refuse(rows, why, seqs)
        self._works[work] = None
        self.want_news()

    def want_news(self) -> None:
        """A newer view would have helped some pod."""
        self._news_wanted = True

    def take(self) -> list[OutcomeColumns]:
        """Answers since the last time, one message a work batch."""
        works, self._works = self._works, {}
        return [outcomes for work in works if (outcomes := work.take_outcomes()) is not None]

    def take_news_wanted(self) -> bool:
        """Whether a newer view would have helped some pod since the last time."""
        wanted, self._news_wanted = self._news_wanted, False
        return wanted

    def clear(self) -> None:
        """Nobody waits for them any more."""
        self._works.clear()
