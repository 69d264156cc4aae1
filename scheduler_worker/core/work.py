"""Work in hand: batches from the dispatcher, their runs, and outcomes until they are sent."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hoss.model.conflicts import DEFAULT_CONFLICT_RULE, ConflictRule
from hoss.wire.columns import NONE_U16, NONE_U32, Uids
from scheduler_worker.core.classes import PodClass
from scheduler_worker.core.framework.extension_points import NO_REASON, Diagnosis
from scheduler_worker.core.messages import Outcome

MAX_PRIORITY = 2**31 - 1

Positions = NDArray[np.intp]  # (m,): rows of a work batch


@dataclass(frozen=True, slots=True)
class OutcomeColumns:
    """Outcomes of n pods of one work batch (see Outcomes in the proto)."""

    batch_id: int
    positions: NDArray[np.uint32]  # (n,)
    codes: NDArray[np.uint8]  # (n,)
    nodes: NDArray[np.uint32]  # (n,)
    reasons: NDArray[np.uint16] | None  # (n,): index into reason_texts; None: no reasons
    reason_texts: tuple[str, ...]
    refused_by: tuple[frozenset[str], ...]  # beside reason_texts
    failed: tuple[bool, ...]  # likewise: a plugin failed
    commits: tuple[tuple[int, int], ...]  # (shard, seq)
    seen: tuple[tuple[int, int], ...]  # (shard, seq) of the view that had no node for the unschedulable ones
    # (n,): for how long a pod's victims may still be there; None: no victims
    leaving_ms: NDArray[np.uint32] | None
    deciding_seconds: float  # of the latest verdict: from the batch's arrival to the proposal
    committing_seconds: float  # and from the proposal to the verdict; both 0.0 before the first
    received_at: float  # when the batch arrived, on the scheduler's clock
    refused: NDArray[np.uint32] | None  # rows that the ledger refused, once for each refusal; None: none


@dataclass(frozen=True, slots=True)
class GangInHand:
    """A gang's terms: at least `minimum` of the work batch's pods are bound, or none."""

    name: str
    minimum: int


@dataclass(slots=True, eq=False)
class Work:
    """One work batch, and its outcomes that are not yet sent."""

    batch_id: int
    uids: Uids  # (n, 16)
    gang: GangInHand | None = None
    lowest_priority: int = MAX_PRIORITY  # of any pod in the cluster: pods up to this cannot preempt
    conflicts: ConflictRule = DEFAULT_CONFLICT_RULE
    received_at: float = 0.0  # on the scheduler's clock
    unplaced: "list[Run]" = field(default_factory=list)  # of a gang: what fits nowhere, until the verdict
    _reserved: int = 0
    _answers: list[tuple[Positions, Outcome, NDArray[np.uint32] | None, Diagnosis]] = field(
        default_factory=list
    )
    _commits: dict[tuple[int, int], None] = field(default_factory=dict)
    _seen: dict[int, int] | None = None
    _leaving_ms: dict[int, int] = field(default_factory=dict)  # by row
    _refused: list[Positions] = field(default_factory=list)
    _deciding_seconds: float = 0.0
    _committing_seconds: float = 0.0

    def answer(
        self,
        rows: Positions,
        code: Outcome,
        *,
        nodes: NDArray[np.uint32] | None = None,
        why: Diagnosis = NO_REASON,
    ) -> None:
        """The outcome of these pods; `nodes` where they are bound."""
        if len(rows):
            self._answers.append((rows, code, nodes, why))

    def reserved(self, pods: int) -> None:
        """So many more pods are reserved in the ledger."""
        self._reserved += pods

    def unreserved(self, pods: int) -> None:
        """So many of the reserved pods go back."""
        self._reserved -= pods

    @property
    def missing(self) -> int:
        """How many pods must be reserved at once; 0 for work that is no gang, and for a gang with its
        minimum."""
        return self.still_needed(0)

    def still_needed(self, of_reserved: int) -> int:
        """The same, if so many of the reserved pods do not count."""
        return 0 if self.gang is None else max(0, self.gang.minimum - self._reserved + of_reserved)

    @property
    def transactional(self) -> bool:
        """Whether the ledger commits a run's pods all or not at all, so that the run needs its own
        proposal."""
        return self.conflicts.all_or_nothing and not self.missing

    def take_unplaced(self) -> "list[Run]":
        """Take out the runs of a gang that fitted nowhere."""
        unplaced, self.unplaced = self.unplaced, []
        return unplaced

    def refuse(self, rows: Positions, why: Diagnosis, seqs: Mapping[int, int]) -> None:
        """No node fits these pods in the view at `seqs`, by shard."""
        self._answers.append((rows, Outcome.UNSCHEDULABLE, None, why))
        before = self._seen or seqs  # one message carries the seqs of all refusals, so the lowest
        self._seen = {shard: min(seq, before.get(shard, seq)) for shard, seq in seqs.items()}

    def committed_in(self, shard: int, seq: int) -> None:
        """Pods are bound by this entry of the shard's feed, which the dispatcher has to confirm."""
        self._commits[shard, seq] = None

    def victims_leave(self, row: int, milliseconds: int) -> None:
        """The victims of this bound pod may still be there for so long."""
        if milliseconds:
            self._leaving_ms[row] = milliseconds

    def decided(self, proposed_at: float, now: float) -> None:
        """The ledger's verdict has come on what was proposed at `proposed_at`."""
        self._deciding_seconds = proposed_at - self.received_at
        self._committing_seconds = now - proposed_at

    def refused(self, rows: Positions) -> None:
        """The ledger refused these pods; they may still be placed again."""
        self._refused.append(rows)

    def take_outcomes(self) -> OutcomeColumns | None:
        """Outcomes since the last call, None if there are none."""
        answers, self._answers = self._answers, []
        commits, self._commits = tuple(self._commits), {}
        seen, self._seen = tuple((self._seen or {}).items()), None
        if not answers:
            return None
        refused, self._refused = self._refused, []
        reasons_given = tuple(dict.fromkeys(reason for _, _, _, reason in answers if reason.text))
        numbers = {reason: number for number, reason in enumerate(reasons_given)}
        sizes = [len(rows) for rows, _, _, _ in answers]
        nodes = [
            np.full(n, NONE_U32, np.uint32) if a[2] is None else a[2]
            for a, n in zip(answers, sizes, strict=True)
        ]
        reasons = np.repeat([numbers.get(reason, NONE_U16) for _, _, _, reason in answers], sizes)
        positions = np.concatenate([rows for rows, _, _, _ in answers]).astype(np.uint32)
        return OutcomeColumns(
            batch_id=self.batch_id,
            positions=positions,
            codes=np.repeat(np.array([code for _, code, _, _ in answers], np.uint8), sizes),
            nodes=np.concatenate(nodes),
            reasons=reasons.astype(np.uint16) if reasons_given else None,
            reason_texts=tuple(reason.text for reason in reasons_given),
            refused_by=tuple(reason.refused_by for reason in reasons_given),
            failed=tuple(reason.failed for reason in reasons_given),
            commits=commits,
            seen=seen,
            # Of pods that are not answered yet it is told later.
            leaving_ms=np.array([self._leaving_ms.pop(row, 0) for row in positions.tolist()], np.uint32)
            if self._leaving_ms
            else None,
            deciding_seconds=self._deciding_seconds,
            committing_seconds=self._committing_seconds,
            received_at=self.received_at,
            refused=np.concatenate(refused).astype(np.uint32) if refused else None,
        )


@dataclass(frozen=True, slots=True)
class Run:
    """Pods of one work batch with equal class and attempt, placed one after the other."""

    work: Work
    pod_class: PodClass
    attempt: int  # earlier dispatches
    rows: Positions
    tries: int = 0  # refusals by the ledger in this dispatch
    evicting: Diagnosis | None = None  # of preemptors: why they fitted nowhere


def runs_of(
    work: Work, classes: list[PodClass], counts: NDArray[np.uint32], attempts: NDArray[np.uint16]
) -> list[Run]:
    """The batch's runs, highest priority first, else in the order given; runs of one class and attempt become
    one.

    Pods of one batch count as having arrived at the same time, so joining them is fair. Placing a run costs
    little more than placing one pod of it."""
    ends = np.cumsum(counts)
    joined: dict[tuple[int, int], list[int]] = {}
    for index, pod_class in enumerate(classes):
        joined.setdefault((id(pod_class), int(attempts[index])), []).append(index)
    runs = []
    for (_, attempt), members in joined.items():
        parts = [np.arange(ends[i] - counts[i], ends[i], dtype=np.intp) for i in members]
        runs.append(
            Run(work, classes[members[0]], attempt, np.concatenate(parts) if len(parts) > 1 else parts[0])
        )
    runs.sort(key=lambda run: -run.pod_class.priority)
    return runs


def mixed_runs_of(
    work: Work,
    classes: list[PodClass],
    counts: NDArray[np.uint32],
    attempts: NDArray[np.uint16],
    rng: np.random.Generator,
) -> list[Run]:
    """The batch's runs, highest priority first, else pod by pod in a random order."""
    entries = np.repeat(np.arange(len(classes)), counts)
    priorities = np.array([pod_class.priority for pod_class in classes], np.int64)[entries]
    order = np.lexsort((rng.permutation(len(entries)), -priorities))
    return [
        Run(work, classes[entry], int(attempts[entry]), order[place : place + 1])
        for place, entry in enumerate(entries[order].tolist())
    ]


class OutcomeCollector:
    """Outcomes of all work in hand, and whether a newer view would have helped some pod."""

    def __init__(self) -> None:
        self._works: dict[Work, None] = {}  # with answers to take, an ordered set
        self._refresh_wanted = False

    def give(
        self,
        work: Work,
        rows: Positions,
        code: Outcome,
        *,
        nodes: NDArray[np.uint32] | None = None,
        why: Diagnosis = NO_REASON,
    ) -> None:
        """See Work.answer."""
        if len(rows):
            work.answer(rows, code, nodes=nodes, why=why)
            self._works[work] = None

    def refuse(self, work: Work, rows: Positions, why: Diagnosis, seqs: Mapping[int, int]) -> None:
        """No node fits these pods in the view at `seqs`, by shard; or another worker has to place them."""
        if why.elsewhere:
            # Not unschedulable: no change of a node would wake them.
            self.give(work, rows, Outcome.CONFLICT, why=why)
            return
        work.refuse(rows, why, seqs)
        self._works[work] = None
        self.want_refresh()

    def want_refresh(self) -> None:
        """A newer view would have helped some pod."""
        self._refresh_wanted = True

    def take(self) -> list[OutcomeColumns]:
        """Outcomes since the last call, one message a work batch."""
        works, self._works = self._works, {}
        return [outcomes for work in works if (outcomes := work.take_outcomes()) is not None]

    def take_refresh_wanted(self) -> bool:
        """Whether `want_refresh` was called since the last call."""
        refresh, self._refresh_wanted = self._refresh_wanted, False
        return refresh

    def clear(self) -> None:
        """The dispatcher expects them no more."""
        self._works.clear()
