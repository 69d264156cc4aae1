"""Scheduler workers: who is there, in what state, and how much each has in hand.

A name is a worker; a *link* is one stream of it, numbered by the dispatcher. What comes over an older link is not that
worker's any more.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from dispatcher.core.podtable import Rows

# Class definitions that a worker keeps; as many again may be on their way out of use.
KNOWN_CLASSES = 4096


class WorkerState(str, Enum):
    """READY takes work; CORDONED and DRAINING get none; JOINING waits for its epoch; LOST is gone until it registers anew."""

    JOINING = "Joining"
    READY = "Ready"
    CORDONED = "Cordoned"
    DRAINING = "Draining"
    LOST = "Lost"


LIVING = frozenset({WorkerState.READY, WorkerState.CORDONED, WorkerState.DRAINING})


@dataclass(slots=True)
class Batch:
    """Pods sent to a worker in one message. A row is unanswered while the pod table's `batch` column says `serial`."""

    serial: int
    rows: Rows
    unanswered: int
    change: int  # changes of the cluster seen when it was sent


class Vitals(NamedTuple):
    """What a heartbeat says."""

    busy_seconds: float = 0.0
    micros_per_pod: float = 0.0
    backlog: int = 0
    ready: bool = False
    conflicts: int = 0
    synchronisation: str = ""
    lags: tuple[tuple[int, int, float], ...] = ()  # by shard: entries of its history not seen, and for how many seconds
    fill_seconds: float = 0.0


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
    batches: dict[int, Batch] = field(default_factory=dict)
    classes: KnownClasses = field(default_factory=KnownClasses)
    bound: int = 0
    conflicts: int = 0
    unschedulable: int = 0
    unfenced: Rows | None = None  # pods of a link that ended, until the ledger has fenced it

    @property
    def living(self) -> bool:
        """Whether it is registered and has its epoch."""
        return self.state in LIVING

    @property
    def takes_work(self) -> bool:
        """Whether it may get pods at all."""
        return self.state is WorkerState.READY and self.vitals.ready

    @property
    def credit(self) -> int:
        """Pods that it may get now."""
        return max(0, self.window - self.outstanding)

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
        elif worker.state is not WorkerState.LOST:
            return None
        worker.labels, worker.incarnation, worker.window, worker.link = dict(labels), incarnation, window, link
        worker.state, worker.last_seen, worker.vitals = WorkerState.JOINING, now, UNHEARD
        worker.outstanding, worker.batches, worker.classes = 0, {}, KnownClasses()
        self._by_link[link] = worker
        return worker

    def welcome(self, worker: Worker, epoch: int, now: float) -> None:
        """It has its epoch and is in the state the operator wanted it in."""
        worker.epoch, worker.state, worker.last_seen = epoch, worker.wanted, now
        self.generation += 1

    def lose(self, worker: Worker) -> None:
        """Its link is over. Batches stay to be settled by whoever calls this."""
        worker.state = WorkerState.LOST
        del self._by_link[worker.link]
        self.generation += 1

    def set_wanted(self, worker: Worker, state: WorkerState) -> None:
        """The operator's wish: Ready, Cordoned or Draining; a lost worker comes back in it."""
        worker.wanted = state
        if worker.living:
            worker.state = state

    def silent_since(self, moment: float) -> list[Worker]:
        """Living workers not heard of since `moment`."""
        return [worker for worker in self._workers.values() if worker.living and worker.last_seen < moment]

    def excuse(self, seconds: float) -> None:
        """The dispatcher itself slept for `seconds`: what it did not hear then is not held against anyone."""
        for worker in self._workers.values():
            worker.last_seen += seconds
