"""Work in hand: batches from the dispatcher, and what is answered of them."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hoss.wire.columns import NONE_U16, NONE_U32, Uids
from scheduler_worker.core.classes import PodClass
from scheduler_worker.core.codes import Outcome

Positions = NDArray[np.intp]  # (m,): rows of a work batch


@dataclass(frozen=True, slots=True)
class OutcomeColumns:
    """Answers for n pods of one work batch (see Outcomes)."""

    batch_id: int
    positions: NDArray[np.uint32]  # (n,)
    codes: NDArray[np.uint8]  # (n,)
    nodes: NDArray[np.uint32]  # (n,)
    reasons: NDArray[np.uint16] | None  # (n,): index into reason_texts; None: no reasons
    reason_texts: tuple[str, ...]
    commits: tuple[tuple[int, int], ...]  # (shard, seq)


@dataclass(slots=True, eq=False)
class Work:
    """One work batch, and the answers not yet sent."""

    batch_id: int
    uids: Uids  # (n, 16)
    _answers: list[tuple[Positions, Outcome, NDArray[np.uint32] | None, str]] = field(default_factory=list)
    _commits: dict[tuple[int, int], None] = field(default_factory=dict)

    def answer(
        self, rows: Positions, code: Outcome, *, nodes: NDArray[np.uint32] | None = None, reason: str = ""
    ) -> None:
        """These pods are done with; `nodes` where they are bound."""
        if len(rows):
            self._answers.append((rows, code, nodes, reason))

    def committed_in(self, shard: int, seq: int) -> None:
        """Bound pods lie in this entry of the shard's history, which the dispatcher is to confirm."""
        self._commits[shard, seq] = None

    def take_outcomes(self) -> OutcomeColumns | None:
        """The answers since the last time, None if there are none."""
        answers, self._answers = self._answers, []
        commits, self._commits = tuple(self._commits), {}
        if not answers:
            return None
        texts = tuple(dict.fromkeys(reason for _, _, _, reason in answers if reason))
        numbers = {text: number for number, text in enumerate(texts)}
        sizes = [len(rows) for rows, _, _, _ in answers]
        nodes = [np.full(n, NONE_U32, np.uint32) if a[2] is None else a[2] for a, n in zip(answers, sizes, strict=True)]
        reasons = np.repeat([numbers.get(reason, NONE_U16) for _, _, _, reason in answers], sizes)
        return OutcomeColumns(
            batch_id=self.batch_id,
            positions=np.concatenate([rows for rows, _, _, _ in answers]).astype(np.uint32),
            codes=np.repeat(np.array([code for _, code, _, _ in answers], np.uint8), sizes),
            nodes=np.concatenate(nodes),
            reasons=reasons.astype(np.uint16) if texts else None,
            reason_texts=texts,
            commits=commits,
        )


@dataclass(frozen=True, slots=True)
class Run:
    """Pods of one work batch that are equal in class and attempt, to be placed one after the other."""

    work: Work
    pod_class: PodClass
    attempt: int  # how often they were dispatched before
    rows: Positions
    tries: int = 0  # how often the ledger refused them here


def runs_of(work: Work, classes: list[PodClass], counts: NDArray[np.uint32], attempts: NDArray[np.uint16]) -> list[Run]:
    """The batch's runs, highest priority first, else in the order given; runs of one class and attempt become one.

    Pods of one batch count as having come at the same time, so joining them changes no one's turn that matters, and
    placing a run costs little more than placing one pod of it.
    """
    ends = np.cumsum(counts)
    joined: dict[tuple[int, int], list[int]] = {}
    for index, pod_class in enumerate(classes):
        joined.setdefault((id(pod_class), int(attempts[index])), []).append(index)
    runs = []
    for (_, attempt), members in joined.items():
        parts = [np.arange(ends[i] - counts[i], ends[i], dtype=np.intp) for i in members]
        runs.append(Run(work, classes[members[0]], attempt, np.concatenate(parts) if len(parts) > 1 else parts[0]))
    runs.sort(key=lambda run: -run.pod_class.priority)
    return runs


def mixed_runs_of(
    work: Work,
    classes: list[PodClass],
    counts: NDArray[np.uint32],
    attempts: NDArray[np.uint16],
    rng: np.random.Generator,
) -> list[Run]:
    """The batch's runs, highest priority first, else pod by pod in an order drawn anew for each batch."""
    entries = np.repeat(np.arange(len(classes)), counts)
    priorities = np.array([pod_class.priority for pod_class in classes], np.int64)[entries]
    order = np.lexsort((rng.permutation(len(entries)), -priorities))
    return [
        Run(work, classes[entry], int(attempts[entry]), order[place : place + 1])
        for place, entry in enumerate(entries[order].tolist())
    ]
