"""Scheduler workers: who is there, in what state, and how much each has in hand.

A name is a worker; a *link* is one stream of it, numbered by the dispatcher. What comes over an older link is not that
worker's any more.
"""

import math
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dispatcher.core.costs import ClassCosts
from dispatcher.core.podtable import Rows
from dispatcher.core.rate import Rate
from hoss.model.overlap import DEFAULT_PREFERENCE, Preference

# Class definitions that a worker keeps; as many again may be on their way out of use.
KNOWN_CLASSES = 4096

# A worker's busy share is of the last seconds: what is older than this weighs a third.
_BUSY_SECONDS = 1.5

MOST_STEPS = 50  # of a worker, that are remembered


class WorkerState(str, Enum):
    """READY takes work; CORDONED and DRAINING get none; JOINING waits for its epoch; LOST and LEFT are gone until they register
    anew, LEFT having said so and answered for everything."""

    JOINING = "Joining"
    READY = "Ready"
    CORDONED = "Cordoned"
    DRAINING = "Draining"
    LOST = "Lost"
    LEFT = "Left"


LIVING = frozenset({WorkerState.READY, WorkerState.CORDONED, WorkerState.DRAINING})
GONE = frozenset({WorkerState.LOST, WorkerState.LEFT})


@dataclass(slots=True)
class Batch:
    """Pods sent to a worker in one message. A row is unanswered while the pod table's `batch` column says `serial`."""

    serial: int
    rows: Rows
    unanswered: int
    change: int  # changes of the cluster seen when it was sent
    classes: NDArray[np.uint32]  # of its runs
    counts: NDArray[np.uint32]  # pods of each
    new_classes: int = 0  # classes that the worker had not met
    micros: float = 0.0  # what all of it is estimated to take

    @property
    def micros_left(self) -> float:
        """What the unanswered part is estimated to take, if all its pods take the same."""
        return self.micros * self.unanswered / len(self.rows)


class WorkerStep(NamedTuple):
    """What happened to a worker, and the state that it was in from then on."""

    at: float  # monotonic
    state: WorkerState
    epoch: int
    text: str  # "" where the state says it all


class Vitals(NamedTuple):
    """What a heartbeat says. Microseconds are by the worker's clock, not of CPU time."""

    busy_seconds: float = 0.0
    micros_per_pod: float = 0.0
    backlog: int = 0
    ready: bool = False
    conflicts: int = 0
    proposed: int = 0
    first_micros: float = 0.0  # more for the first pod of a class
    seen_micros: float = 0.0  # per pod of a class seen before
    synchronisation: str = ""
    lags: tuple[tuple[int, int, float], ...] = ()  # by shard: entries of its history not seen, and for how many seconds
    fill_seconds: float = 0.0
    working_seconds: float = 0.0  # scheduling by the clock, so with what it waited for a core
    clock_seconds: float = 0.0  # of the worker's own clock, when it said so


UNHEARD = Vitals()


class KnownClasses:
    """Which class definitions the other end of a link has. The least recently used give way."""

    def __init__(self, limit: int = KNOWN_CLASSES) -> None:
        self._limit = limit
        self._known: OrderedDict[int, None] = OrderedDict()

    def introduce(self, class_ids: Iterable[int]) -> tuple[list[int], list[int]]:
        """Note that a batch uses these classes; returns those to define in it and those to declare forgotten."""
        new = []
        for class_id in class_ids:
            if class_id in self._known:
                self._known.move_to_end(class_id)
            else:
                self._known[class_id] = None
                new.append(class_id)
        forgotten = [self._known.popitem(last=False)[0] for _ in range(len(self._known) - self._limit)]
        return new, forgotten


@dataclass(slots=True)
class Worker:
    """One worker, through all its lives under one name."""

    name: str
    number: int  # the pod table's `worker` column
    labels: dict[str, str] = field(default_factory=dict)
    incarnation: int = 0
    window: int = 0
    link: int = 0
    epoch: int = 0
    state: WorkerState = WorkerState.JOINING
    wanted: WorkerState = WorkerState.READY  # what the operator asked for; outlives its links
    last_seen: float = 0.0
    vitals: Vitals = UNHEARD
    outstanding: int = 0
    work_micros: float = 0.0  # estimate of what is outstanding
    preference: Preference = DEFAULT_PREFERENCE  # as it was told
    costs: ClassCosts = field(default_factory=ClassCosts)  # as it measured them
    recalled: bool = False  # was asked to give pods back and has not been heard since
    yields: bool = False  # others get pods before it, because some of its own were recalled
    leaves: bool = False  # is about to stop
    since: float = 0.0  # in this state
    throughput: Rate = field(default_factory=Rate)  # pods bound
    busy_share: float = 0.0  # of its time, spent scheduling lately
    returned: int = 0  # pods given back unstarted
    batches: dict[int, Batch] = field(default_factory=dict)
    classes: KnownClasses = field(default_factory=KnownClasses)
    bound: int = 0
    conflicts: int = 0
    unschedulable: int = 0
    unfenced: Rows | None = None  # pods of a link that ended, until the ledger has fenced it
    blames: bool = True  # whether those pods may have been its end
    isolating: int = 0  # serial of the last batch of suspects it was given
    steps: deque[WorkerStep] = field(default_factory=lambda: deque(maxlen=MOST_STEPS))  # oldest first

    def become(self, state: WorkerState, now: float, text: str = "") -> None:
        """It is in this state from now on. `text`: what led to it."""
        self.state, self.since = state, now
        self.note(now, text)

    def note(self, now: float, text: str) -> None:
        """Something that people may want to know of it happened."""
        self.steps.append(WorkerStep(now, self.state, self.epoch, text))

    @property
    def living(self) -> bool:
        """Whether it is registered and has its epoch."""
        return self.state in LIVING

    @property
    def takes_work(self) -> bool:
        """Whether it may get pods at all: while it has suspects in hand it gets nothing else, or that would be suspect, too."""
        return self.state is WorkerState.READY and self.vitals.ready and self.isolating not in self.batches

    @property
    def credit(self) -> int:
        """Pods that it may get now."""
        return max(0, self.window - self.outstanding)

    @property
    def waiting_micros(self) -> float:
        """Estimated work of pods that it has not started, as far as it has told."""
        return self.work_micros * min(1.0, self.vitals.backlog / self.outstanding) if self.outstanding else 0.0

    def take_on(self, batch: Batch) -> None:
        """A batch is sent to it."""
        self.batches[batch.serial] = batch
        self.outstanding += batch.unanswered
        self.work_micros += batch.micros

    def answered(self, batch: Batch, pods: int) -> None:
        """So many pods of a batch of its are answered."""
        self.work_micros -= batch.micros_left
        batch.unanswered -= pods
        self.outstanding -= pods
        self.work_micros += batch.micros_left
        if batch.unanswered == 0:
            del self.batches[batch.serial]
        if not self.batches:
            self.work_micros = 0.0  # rounding must not pile up

    def drop_batches(self) -> None:
        """What it had in hand is not its any more."""
        self.batches, self.outstanding, self.work_micros = {}, 0, 0.0
        self.recalled = self.yields = False

    def resum_work(self) -> None:
        """Its batches were priced anew."""
        self.work_micros = sum(batch.micros_left for batch in self.batches.values())

    def weight(self, label: str) -> float:
        """Its share in a weighted round robin: a label's number, 1 where it is missing or no positive number."""
        text = self.labels.get(label, "")
        number = float(text) if text.replace(".", "", 1).isdecimal() else 1.0
        return number if number > 0 else 1.0

    def batch_limit(self, batch_pods: int) -> int:
        """Its largest batch: two must fit its window, or it would idle between them."""
        return min(batch_pods, max(1, self.window // 2))


class Membership:
    """All workers by name, and by the link they have now."""

    def __init__(self) -> None:
        self._workers: dict[str, Worker] = {}
        self._by_number: list[Worker] = []
        self._by_link: dict[int, Worker] = {}
        self.generation = 0  # grows when labels or the set of living workers change

    def __iter__(self) -> Iterator[Worker]:
        return iter(self._workers.values())

    def get(self, name: str) -> Worker | None:
        """A worker by name."""
        return self._workers.get(name)

    def numbered(self, number: int) -> Worker:
        """A worker by its number."""
        return self._by_number[number]

    def on_link(self, link: int) -> Worker | None:
        """The worker whose present link that is, or None."""
        return self._by_link.get(link)

    def living(self) -> list[Worker]:
        """Workers that are registered."""
        return [worker for worker in self._workers.values() if worker.living]

    def join(
        self, name: str, labels: Mapping[str, str], *, incarnation: int, window: int, link: int, now: float
    ) -> Worker | None:
        """Begin a life on a new link, JOINING until `welcome`. None if a living or joining worker has that name."""
        worker = self._workers.get(name)
        if worker is None:
            worker = Worker(name, len(self._by_number))
            self._workers[name] = worker
            self._by_number.append(worker)
        elif worker.state not in GONE:
            return None
        worker.labels, worker.incarnation, worker.window, worker.link = dict(labels), incarnation, window, link
        worker.last_seen, worker.vitals = now, UNHEARD
        worker.become(WorkerState.JOINING, now)
        worker.drop_batches()
        worker.leaves = False
        worker.classes, worker.costs, worker.preference = KnownClasses(), ClassCosts(), DEFAULT_PREFERENCE
        self._by_link[link] = worker
        return worker

    def welcome(self, worker: Worker, epoch: int, now: float) -> None:
        """It has its epoch and is in the state the operator wanted it in."""
        worker.epoch, worker.last_seen = epoch, now
        worker.become(WorkerState.DRAINING if worker.leaves else worker.wanted, now)
        self.generation += 1

    def heard(self, worker: Worker, vitals: Vitals, now: float) -> None:
        """It has sent a heartbeat."""
        before = worker.vitals
        # By the worker's own clock: heartbeats may lie unread for a while, and then come several at once.
        elapsed = vitals.clock_seconds - before.clock_seconds
        if before is not UNHEARD and elapsed > 0:
            share = min(max((vitals.working_seconds - before.working_seconds) / elapsed, 0.0), 1.0)
            worker.busy_share += (1 - math.exp(-elapsed / _BUSY_SECONDS)) * (share - worker.busy_share)
        if vitals.ready and not before.ready:
            worker.note(now, "its view of the nodes is filled")
        worker.last_seen = now
        worker.vitals, worker.recalled = vitals, False

    def leaving(self, worker: Worker, now: float) -> None:
        """It is about to stop: it gets nothing more."""
        worker.leaves = True
        if worker.living:
            worker.become(WorkerState.DRAINING, now, "it is about to stop")

    def lose(self, worker: Worker, now: float, why: str) -> None:
        """Its link is over. Batches stay to be settled by whoever calls this."""
        left = worker.leaves and not worker.outstanding
        in_hand = "" if left else f", with {worker.outstanding} pods in hand"
        worker.become(WorkerState.LEFT if left else WorkerState.LOST, now, f"{why}{in_hand}")
        worker.busy_share = 0.0
        del self._by_link[worker.link]
        self.generation += 1

    def set_wanted(self, worker: Worker, state: WorkerState, now: float) -> None:
        """The operator's wish: Ready, Cordoned or Draining; a lost worker comes back in it."""
        worker.wanted = state
        if worker.living and not worker.leaves and worker.state is not state:
            worker.become(state, now)

    def silent_since(self, moment: float) -> list[Worker]:
        """Living workers not heard of since `moment`."""
        return [worker for worker in self._workers.values() if worker.living and worker.last_seen < moment]

    def excuse(self, seconds: float) -> None:
        """The dispatcher itself slept for `seconds`: what it did not hear then is not held against anyone."""
        for worker in self._workers.values():
            worker.last_seen += seconds
