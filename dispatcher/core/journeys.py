"""How pods came where they are: their moves of late from phase to phase, for whoever asks of one.

A step is one move of any number of pods, noted once and without looking at them. The oldest go when there are many: of what was
before `forgotten_ms`, nobody knows whether it is all that happened.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dispatcher.core.podtable import NO_REASON, Phase, PodTable, Reasons, Rows
from hoss.wire.columns import NONE_U16, NONE_U32

# Why pods moved where their phase does not say it. Those of queues have kube-scheduler's names where it has them.
ATTEMPT_FAILURE = "ScheduleAttemptFailure"
BINDING_REFUSED = "BindingRefused"
EVICTED = "Evicted"
GATED = "Gated"
GATHERING = "Gathering"  # more pods of its gang have to come first
GIVEN_BACK = "GivenBack"  # its reservation: a gang was too small, or the pod has changed
GIVEN_UP = "GivenUp"
RESERVATION_LOST = "ReservationLost"
RETURNED = "Returned"  # by its worker, untried
WORKER_LOST = "WorkerLost"
ASSIGNED = "Assigned"  # the API server has it there
CONFIRMED = "Confirmed"  # its reservation stands until it is released
VICTIMS_LEFT = "VictimsLeft"

# Of these the pod's reason in the table speaks; of others it is that of an earlier move.
_TOLD_BY_REASON = frozenset(
    (ATTEMPT_FAILURE, BINDING_REFUSED, EVICTED, GATED, GATHERING, GIVEN_BACK, GIVEN_UP, RESERVATION_LOST)
)

LIMIT_PODS = 1_000_000  # some 8 bytes each
_STEP_PODS = 32  # what a step takes beside its pods, and a text of it, in pods


class Told(NamedTuple):
    """One pod's part in a step."""

    at_ms: int  # Unix
    phase: Phase
    event: str  # "" where the phase says it all
    worker: int  # number of the one that got it or had it, NONE_U16 where the step is no worker's
    node: int  # where it was bound, NONE_U32 otherwise
    reason: str


@dataclass(slots=True)
class Passage:
    """How many of some pods took a step of one kind, each as often as it did, and when the first and the last of them."""

    pods: int
    first_ms: int
    last_ms: int


class _Step(NamedTuple):
    at_ms: int
    phase: Phase
    event: str
    rows: Rows
    worker: int
    nodes: NDArray[np.uint32] | None
    reasons: NDArray[np.intp] | None  # positions in `texts`
    texts: tuple[str, ...]

    @property
    def cost(self) -> int:
        """In pods."""
        return len(self.rows) + _STEP_PODS * (1 + len(self.texts))


class Journeys:
    """The latest steps. Rows are given to others in time: whoever asks says after which step theirs begin (`noted`)."""

    def __init__(self, pods: PodTable, reasons: Reasons, limit: int = LIMIT_PODS) -> None:
        self._pods = pods
        self._reasons = reasons
        self._limit = limit
        self._steps: deque[_Step] = deque()
        self._cost = 0
        self.noted = 0  # steps, ever
        self.forgotten_ms = 0  # when the latest step happened that is not kept any more; 0: all are

    def note(self, rows: Rows, phase: Phase, now_ms: int, event: str = "") -> None:
        """These pods are in this phase now; the table says what goes with it."""
        if not len(rows):
            return
        nodes = self._pods.node[rows] if phase is Phase.BOUND and event != CONFIRMED else None
        by_worker = phase is Phase.SCHEDULING or event in (RETURNED, WORKER_LOST)
        worker = int(self._pods.worker[rows[0]]) if by_worker else NONE_U16
        reasons, texts = self._texts(rows) if event in _TOLD_BY_REASON else (None, ())
        step = _Step(now_ms, phase, event, rows, worker, nodes, reasons, texts)
        self._steps.append(step)
        self._cost += step.cost
        self.noted += 1
        while self._cost > self._limit and len(self._steps) > 1:
            gone = self._steps.popleft()
            self._cost -= gone.cost
            self.forgotten_ms = gone.at_ms

    def of(self, row: int, after: int = 0) -> list[Told]:
        """The steps of the pod in a row since step `after`, oldest first. Looks through all of them: milliseconds."""
        told = []
        for step, at in self._parts(after, lambda rows: rows == row):
            node = NONE_U32 if step.nodes is None else int(step.nodes[at[0]])
            reason = "" if step.reasons is None else step.texts[int(step.reasons[at[0]])]
            told.append(Told(step.at_ms, step.phase, step.event, step.worker, node, reason))
        return told

    def passages(self, rows: slice, after: int = 0) -> dict[tuple[Phase, str], Passage]:
        """What the pods of a range of rows went through since step `after`, in the order in which it was first met. As long."""
        found: dict[tuple[Phase, str], Passage] = {}
        for step, at in self._parts(after, lambda all_rows: (all_rows >= rows.start) & (all_rows < rows.stop)):
            passage = found.setdefault((step.phase, step.event), Passage(0, step.at_ms, step.at_ms))
            passage.pods += len(at)
            passage.last_ms = step.at_ms
        return found

    def _parts(
        self, after: int, wanted: Callable[[Rows], NDArray[np.bool_]]
    ) -> Iterator[tuple[_Step, NDArray[np.intp]]]:
        """Steps since step `after` that some of the wanted pods took, and their positions in each. Judges all rows at once: step by step it
        would take twenty times as long."""
        steps = list(islice(self._steps, max(0, after - (self.noted - len(self._steps))), None))
        if not steps:
            return
        hits = np.flatnonzero(wanted(np.concatenate([step.rows for step in steps])))
        if not len(hits):
            return
        begins = np.cumsum([0, *(len(step.rows) for step in steps)])
        which = np.searchsorted(begins, hits, side="right") - 1
        numbers, firsts = np.unique(which, return_index=True)
        for number, first, end in zip(
            numbers.tolist(), firsts.tolist(), [*firsts[1:].tolist(), len(hits)], strict=True
        ):
            yield steps[number], hits[first:end] - begins[number]

    def _texts(self, rows: Rows) -> tuple[NDArray[np.intp] | None, tuple[str, ...]]:
        """The reasons of these pods, as positions in a tuple of texts: the table's numbers change."""
        numbers = self._pods.reason[rows]
        if not (numbers != NO_REASON).any():
            return None, ()
        distinct, which = np.unique(numbers, return_inverse=True)
        return which.ravel(), tuple(self._reasons.texts[i] for i in distinct.tolist())
