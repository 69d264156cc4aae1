"""Scheduler workers: their states, links and outstanding batches. A worker is identified by its name. A
*link* is one stream of a worker, numbered by the dispatcher; messages of an older link are ignored.

A worker that is gone is remembered for a day, and the latest thousand of them at most: deployments bring new
names with every rollout. Then its number belongs to the next new name."""

import math
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dispatcher.core.pods.table import Rows
from dispatcher.core.workers.reports import NO_HEARTBEAT, ClassCosts, Heartbeat
from hoss.errors import clipped
from hoss.model.conflicts import DEFAULT_PREFERENCE, Preference
from hoss.statistics import Rate
from hoss.wire.columns import NONE_U16

# Class definitions that a worker keeps. As many again may be in outstanding batches.
KNOWN_CLASSES = 4096

# Time constant of a worker's busy share: older work weighs at most a third.
_BUSY_SECONDS = 1.5

MAX_TRANSITIONS = 50  # kept per worker
MOST_REASON = 300  # characters of a worker's reason to stop, or for its failures

# How long and how many gone workers are remembered. One that an operator cordoned or drained is remembered as
# long as there is room: it registers again in that state.
GONE_SECONDS = 86_400.0
MOST_GONE = 1000

_NO_BACKLOG = 2**63  # more than any worker reports


class WorkerState(str, Enum):
    """READY takes work. CORDONED and DRAINING get none. JOINING waits for its epoch. LOST and LEFT are gone
    until they register anew; LEFT announced its end and answered for all its pods."""

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
    """Pods sent to a worker in one message. A row is unanswered while the pod table's `batch` column holds
    `serial`."""

    serial: int
    rows: Rows
    unanswered: int
    change: int  # number of the latest cluster change when it was sent
    classes: NDArray[np.uint32]  # class of each run
    counts: NDArray[np.uint32]  # pods of each
    new_classes: int = 0  # classes that were new to the worker
    micros: float = 0.0  # estimated for all its pods
    sent_ms: int = 0  # Unix milliseconds
    queued_ms: int = 0  # how long its pods were queued before, on average

    @property
    def micros_left(self) -> float:
        """The estimate for the unanswered part, if all its pods cost the same."""
        return self.micros * self.unanswered / len(self.rows)


class WorkerTransition(NamedTuple):
    """An event of a worker, and its state from then on."""

    at: float  # monotonic
    state: WorkerState
    epoch: int
    text: str  # "" where the state is explanation enough


class KnownClasses:
    """Which class definitions the other end of a link has. The least recently used are dropped."""

    def __init__(self, limit: int = KNOWN_CLASSES) -> None:
        self._limit = limit
        self._known: OrderedDict[int, None] = OrderedDict()
        self._to_declare: list[int] = []  # forgotten, which the other end does not know yet

    def introduce(self, class_ids: Iterable[int]) -> tuple[list[int], list[int]]:
        """Record that a batch uses these classes. Returns the classes to define in it, and those to declare
        forgotten."""
        new = []
        for class_id in class_ids:
            if class_id in self._known:
                self._known.move_to_end(class_id)
            else:
                self._known[class_id] = None
                new.append(class_id)
        forgotten, self._to_declare = self._to_declare, []
        forgotten += [self._known.popitem(last=False)[0] for _ in range(len(self._known) - self._limit)]
        return new, forgotten

    def forget(self, class_ids: Iterable[int]) -> None:
        """No batch will use these classes."""
        for class_id in class_ids:
            if class_id in self._known:
                del self._known[class_id]
                self._to_declare.append(class_id)

    def __len__(self) -> int:
        return len(self._known) + len(self._to_declare)


@dataclass(slots=True)
class WorkerTrust:
    """Whether a worker answers for the pods that it has; see dispatcher.core.overdue_work."""

    progressed_at: float = 0.0  # the last sign of progress, or that it had nothing to do
    least_backlog: int = 0  # that it reported since it answered last
    probes: int = 0  # answered by the ledger since then
    probing: bool = False
    timeouts: int = 0  # in a row
    distrusted: bool = False
    distrusted_until: float = 0.0
    on_probation: bool = False  # gets a batch only when it has no other

    def progressed(self, now: float) -> None:
        """There was a sign of progress, or none is due."""
        self.progressed_at, self.probes, self.least_backlog = now, 0, _NO_BACKLOG


@dataclass(slots=True)
class Worker:
    """One worker, over all registrations under its name."""

    name: str
    number: int  # the pod table's `worker` column
    labels: dict[str, str] = field(default_factory=dict)
    incarnation: int = 0
    profile: str = ""  # how it chooses nodes, for people
    # By plugin, how long the pods that it placed may wait before they are bound; not given: by the platform.
    bind_seconds: Mapping[str, float] = field(default_factory=dict)
    packs: bool = False  # it wants the same nodes as others that pack
    window: int = 0
    link: int = 0
    epoch: int = 0
    state: WorkerState = WorkerState.JOINING
    requested_state: WorkerState = WorkerState.READY  # by the operator; outlives the links
    last_seen: float = 0.0
    heartbeat: Heartbeat = NO_HEARTBEAT
    outstanding: int = 0
    work_micros: float = 0.0  # estimate for the outstanding pods
    preference: Preference = DEFAULT_PREFERENCE  # as last sent to it
    costs: ClassCosts = field(default_factory=ClassCosts)  # its own measurements
    recalled: bool = False  # was told to return pods and has sent no heartbeat since
    served_last: bool = False  # others get pods first, because some of its own were recalled
    stopping: bool = False  # announced that it stops
    since: float = 0.0  # in this state
    throughput: Rate = field(default_factory=Rate)  # bound pods
    busy_share: float = 0.0  # of its recent time, spent scheduling
    returned: int = 0  # pods returned unstarted
    batches: dict[int, Batch] = field(default_factory=dict)
    classes: KnownClasses = field(default_factory=KnownClasses)
    bound: int = 0
    conflicts: int = 0
    unschedulable: int = 0
    unfenced: Rows | None = None  # pods of a link that ended, until the ledger has fenced it
    pods_suspect: bool = True  # whether one of those pods may have killed it
    isolated_batch: int = 0  # serial of its last batch of suspect pods
    trust: WorkerTrust = field(default_factory=WorkerTrust)  # outlives the links
    # Oldest first.
    transitions: deque[WorkerTransition] = field(default_factory=lambda: deque(maxlen=MAX_TRANSITIONS))

    def set_state(self, state: WorkerState, now: float, text: str = "") -> None:
        """Enter a state. `text`: what led to it."""
        self.state, self.since = state, now
        self.record(now, text)

    def record(self, now: float, text: str) -> None:
        """Record an event of the worker for people to read."""
        self.transitions.append(WorkerTransition(now, self.state, self.epoch, text))

    @property
    def living(self) -> bool:
        """Whether it is registered and has its epoch."""
        return self.state in LIVING

    @property
    def takes_work(self) -> bool:
        """Whether it may get pods at all. While it has suspect pods it gets nothing else, or the others would
        become suspect too. A distrusted worker gets nothing."""
        ready = self.state is WorkerState.READY and self.heartbeat.ready
        if self.trust.distrusted or (self.trust.on_probation and self.outstanding):
            return False
        return ready and self.isolated_batch not in self.batches

    @property
    def credit(self) -> int:
        return max(0, self.window - self.outstanding)

    @property
    def waiting_micros(self) -> float:
        """Estimated work of the pods that it has not started, by its last heartbeat."""
        if not self.outstanding:
            return 0.0
        return self.work_micros * min(1.0, self.heartbeat.backlog / self.outstanding)

    def add_batch(self, batch: Batch) -> None:
        """It was sent a batch."""
        self.batches[batch.serial] = batch
        self.outstanding += batch.unanswered
        self.work_micros += batch.micros

    def answered(self, batch: Batch, pods: int) -> None:
        """It answered for so many pods of a batch."""
        self.work_micros -= batch.micros_left
        batch.unanswered -= pods
        self.outstanding -= pods
        self.work_micros += batch.micros_left
        if batch.unanswered == 0:
            del self.batches[batch.serial]
        if not self.batches:
            self.work_micros = 0.0  # so that rounding errors do not add up

    def drop_batches(self) -> None:
        """It has nothing in hand any more."""
        self.batches, self.outstanding, self.work_micros = {}, 0, 0.0
        self.recalled = self.served_last = False

    def resum_work(self) -> None:
        """Sum its work anew after its batches were priced anew."""
        self.work_micros = sum(batch.micros_left for batch in self.batches.values())

    def weight(self, label: str) -> float:
        """Its weight for weighted round robin: the number in this label, or 1 where there is no positive
        number."""
        text = self.labels.get(label, "")
        number = float(text) if text.replace(".", "", 1).isdecimal() else 1.0
        return number if number > 0 else 1.0

    def batch_limit(self, batch_pods: int) -> int:
        """Its largest batch. Two must fit its window, or it would idle between them."""
        return min(batch_pods, max(1, self.window // 2))


class Membership:
    """All workers, by name and by current link."""

    def __init__(self) -> None:
        self._workers: dict[str, Worker] = {}
        self._by_number: list[Worker | None] = []
        self._free_numbers: list[int] = []
        self._by_link: dict[int, Worker] = {}
        self.generation = 0  # changes with labels or the set of living workers

    def __iter__(self) -> Iterator[Worker]:
        return iter(self._workers.values())

    def table_sizes(self) -> dict[str, int]:
        """The entries of each table."""
        return {
            "workers": len(self._workers),
            "worker_numbers": len(self._by_number),
            "worker_classes": sum(len(worker.classes) for worker in self),
            "work_batches": sum(len(worker.batches) for worker in self),
        }

    def get(self, name: str) -> Worker | None:
        """The worker of this name; None: nobody knows it."""
        return self._workers.get(name)

    def name_of(self, number: int) -> str:
        """The name of the worker with this number."""
        worker = self._by_number[number]
        return "" if worker is None else worker.name

    def bind_seconds(self, number: int, plugin: str) -> float | None:
        """How long pods of the worker with this number may wait for what the plugin binds; None: nobody says
        it, or there is no such worker."""
        worker = self._by_number[number] if number < len(self._by_number) else None
        return None if worker is None else worker.bind_seconds.get(plugin)

    @property
    def full(self) -> bool:
        """Whether no number is left for a worker with a new name."""
        return not self._free_numbers and len(self._by_number) >= NONE_U16

    def forget_gone(self, now: float) -> list[int]:
        """Forget workers that are gone and fenced, if it is long ago or there are too many. Returns their
        numbers, which will belong to others."""
        gone = [worker for worker in self if worker.state in GONE and worker.unfenced is None]
        gone.sort(key=lambda worker: worker.since)
        over = max(0, len(gone) - MOST_GONE)
        numbers = []
        for place, worker in enumerate(gone):
            old = now - worker.since >= GONE_SECONDS and worker.requested_state is WorkerState.READY
            if old or place < over:
                del self._workers[worker.name]
                self._by_number[worker.number] = None
                numbers.append(worker.number)
        self._free_numbers += numbers
        return numbers

    def on_link(self, link: int) -> Worker | None:
        """The worker whose current link this is, or None."""
        return self._by_link.get(link)

    def living(self) -> list[Worker]:
        """The workers that are registered and have their epoch."""
        return [worker for worker in self._workers.values() if worker.living]

    def join(
        self,
        name: str,
        labels: Mapping[str, str],
        *,
        incarnation: int,
        window: int,
        link: int,
        now: float,
        profile: str = "",
        bind_seconds: Mapping[str, float] | None = None,
        packs: bool = False,
    ) -> Worker | None:
        """Register a worker on a new link, JOINING until `welcome`. None if a living or joining worker has
        the name, or if it is a new name and there is no number for it."""
        worker = self._workers.get(name)
        if worker is None:
            if self.full:
                return None
            worker = self._workers[name] = self._add(name)
        elif worker.state not in GONE:
            return None
        worker.labels, worker.incarnation, worker.profile = dict(labels), incarnation, profile
        worker.window, worker.link, worker.bind_seconds = window, link, dict(bind_seconds or {})
        worker.packs = packs
        worker.last_seen, worker.heartbeat = now, NO_HEARTBEAT
        worker.set_state(WorkerState.JOINING, now)
        worker.trust.progressed(now)
        worker.trust.probing = False
        worker.drop_batches()
        worker.stopping = False
        worker.preference = DEFAULT_PREFERENCE
        self._by_link[link] = worker
        return worker

    def _add(self, name: str) -> Worker:
        if self._free_numbers:
            worker = Worker(name, self._free_numbers.pop())
            self._by_number[worker.number] = worker
        else:
            worker = Worker(name, len(self._by_number))
            self._by_number.append(worker)
        return worker

    def welcome(self, worker: Worker, epoch: int, now: float) -> None:
        """It has its epoch and enters the state that the operator requested."""
        worker.epoch, worker.last_seen = epoch, now
        worker.set_state(WorkerState.DRAINING if worker.stopping else worker.requested_state, now)
        self.generation += 1

    def heartbeat(self, worker: Worker, heartbeat: Heartbeat, now: float) -> None:
        """Take over the worker's figures, and record what changed for people to see."""
        before = worker.heartbeat
        # By the worker's own clock: delayed heartbeats may arrive several at once.
        elapsed = heartbeat.clock_seconds - before.clock_seconds
        if before is not NO_HEARTBEAT and elapsed > 0:
            share = min(max((heartbeat.working_seconds - before.working_seconds) / elapsed, 0.0), 1.0)
            worker.busy_share += (1 - math.exp(-elapsed / _BUSY_SECONDS)) * (share - worker.busy_share)
        if heartbeat.ready and not before.ready:
            worker.record(now, "its view of the nodes is filled")
        if heartbeat.failing and not before.failing:
            worker.record(now, f"it fails at everything: {heartbeat.failing}")
        elif before.failing and not heartbeat.failing:
            worker.record(now, "it may have pods again")
        worker.last_seen = now
        worker.heartbeat, worker.recalled = heartbeat, False

    def leaving(self, worker: Worker, now: float, reason: str) -> None:
        """It announced that it stops: it gets no more pods."""
        worker.stopping = True
        if worker.living:
            why = f": {clipped(reason, MOST_REASON)}" if reason else ""
            worker.set_state(WorkerState.DRAINING, now, f"it is about to stop{why}")

    def lose(self, worker: Worker, now: float, why: str) -> None:
        """Its link is over. Its batches stay; the caller settles them."""
        left = worker.stopping and not worker.outstanding
        in_hand = "" if left else f", with {worker.outstanding} pods in hand"
        worker.set_state(WorkerState.LEFT if left else WorkerState.LOST, now, f"{why}{in_hand}")
        worker.busy_share = 0.0
        # If it registers again, it knows no class. Until then a thousand workers that are gone would keep
        # theirs.
        worker.classes, worker.costs = KnownClasses(), ClassCosts()
        del self._by_link[worker.link]
        self.generation += 1

    def request_state(self, worker: Worker, state: WorkerState, now: float) -> None:
        """The operator requests Ready, Cordoned or Draining. A lost worker registers again in that state."""
        worker.requested_state = state
        if worker.living and not worker.stopping and worker.state is not state:
            worker.set_state(state, now)

    def silent_since(self, moment: float) -> list[Worker]:
        """Living workers without a message since `moment`."""
        return [worker for worker in self._workers.values() if worker.living and worker.last_seen < moment]

    def extend_deadlines(self, seconds: float) -> None:
        """The dispatcher itself did not run for `seconds`, so no worker is late for that time."""
        for worker in self._workers.values():
            worker.last_seen += seconds
            worker.trust.progressed_at += seconds
