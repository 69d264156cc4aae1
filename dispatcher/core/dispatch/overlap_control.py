"""Overlap control: how much workers' node preferences overlap, and how many workers get work at once, chosen
by what conflicts cost.

Both together are the *setting*. A bulk of pods has a soft partition from its first pod on. Besides, while
refusals exceed a tenth of the proposals, the next tighter setting is tried: first a soft partition, then
fewer workers. A step is evaluated by the pods bound per second. A step without gain is taken back, and not
tried again for a time that doubles. After a calm time the next looser setting is tried and evaluated
likewise. Only time with outstanding work is measured.

ConflictCounters sums the conflicts that workers report, by pair of workers and verdict, by node, and by age
of the view. OverlapEnforcer puts the setting into force: routing gives work to so many workers, and every
worker gets its preference for nodes of equal score."""

from collections import Counter, OrderedDict, deque
from collections.abc import Sized
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple, TypeVar

import numpy as np

from dispatcher.core.dispatch.routing import Routing, workers_taking_work
from dispatcher.core.messages import Handlers, Instruction, Note, OverlapRequested, SendPreference
from dispatcher.core.queue.queues import Queues
from dispatcher.core.workers.membership import Membership, Worker
from dispatcher.core.workers.reports import AGE_STEPS, NO_HEARTBEAT, ConflictReport, Heartbeat
from hoss.model.conflicts import Overlap, Preference

MAX_STEPS = 20


@dataclass(frozen=True, slots=True)
class OverlapControlRules:
    """`overlap`, `workers`: fixed; None: chosen. Shares are refused pods of proposed ones. The gap between
    `high_share` and `low_share` prevents oscillation, and so does the wait before a step that was taken back
    is retried."""

    overlap: Overlap | None = None
    workers: int | None = None  # how many get work; 0: all
    high_share: float = 0.10
    low_share: float = 0.02
    window_seconds: float = 3.0  # of work per evaluation
    settle_seconds: float = 1.0  # of work after a step that are not measured
    calm_seconds: float = 60.0  # before a looser setting is tried
    retry_seconds: float = 30.0  # before a tighter setting is retried that was taken back; doubles
    longest_retry_seconds: float = 1800.0


DEFAULT_OVERLAP_RULES = OverlapControlRules()

_FEW_PODS = 100  # proposed per window: fewer give no reliable share
# In hand at once, a bulk is as many pods as there are nodes, and so many. It is over below the second number.
_BULK_PODS, _FEW_IN_HAND = 1000, 100
# For workers that pack it is so many pods each: they all want the same nodes from the first pod on
# (docs/adr/0126).
_PACKED_PODS_A_WORKER = 50
_NODES_A_SHARE = 100
_GAIN = 1.03  # this much more throughput is an improvement and not noise
_LOSS = 0.97
_MAX_DOUBLINGS = 30  # of a wait: far beyond any longest one, and far below what a float can hold


class OverlapSetting(NamedTuple):
    """`workers` get work at once; 0: all."""

    overlap: Overlap = Overlap.SHUFFLED
    workers: int = 0

    def __str__(self) -> str:
        return f"{self.overlap.value}, {f'{self.workers} at once' if self.workers else 'all workers'}"


class Totals(NamedTuple):
    """Pod counts since the dispatcher's start, and the present state."""

    proposed: int
    refused: int
    bound: int
    loaded: bool  # some worker has outstanding pods
    workers: int  # eligible for work


class WorkInHand(NamedTuple):
    """What is in hand, and where it may go."""

    pods: int  # queued, or with a worker
    nodes: int
    workers: int  # that get work
    packing: bool = False  # all of these workers pack

    @property
    def bulk(self) -> bool:
        """Whether the workers are to part the nodes at once. With fewer pods they meet rarely, unless they
        pack. And a share of few nodes would be filled by one batch, while the others are empty."""
        if self.workers < 2 or self.nodes < self.workers * _NODES_A_SHARE:
            return False
        if self.packing:
            return self.pods >= max(2 * _FEW_IN_HAND, self.workers * _PACKED_PODS_A_WORKER)
        return self.pods >= max(_BULK_PODS, self.nodes)

    def __str__(self) -> str:
        return f"{self.pods:,} pods for {self.nodes:,} nodes are in hand"


@dataclass(frozen=True, slots=True)
class OverlapStep:
    """A setting that was put into force, or that an evaluation confirmed."""

    at: float
    setting: OverlapSetting
    reason: str


@dataclass(slots=True)
class MeasuredWindow:
    """What happened in so many seconds of work."""

    seconds: float = 0.0
    proposed: int = 0
    refused: int = 0
    bound: int = 0

    @property
    def share(self) -> float:
        return self.refused / self.proposed if self.proposed else 0.0

    @property
    def rate(self) -> float:
        return self.bound / self.seconds if self.seconds else 0.0

    def __str__(self) -> str:
        return f"{self.share:.1%} conflicts, {self.rate:,.0f} pods/s"


class _Direction(str, Enum):
    TIGHTER = "tighter"
    LOOSER = "looser"


@dataclass(frozen=True, slots=True)
class _Trial:
    direction: _Direction
    former: OverlapSetting
    before: MeasuredWindow | None  # None: there was no work


@dataclass(slots=True)
class OverlapControl:
    """The caller calls `observe` regularly with the present totals; it returns the step taken, if any."""

    rules: OverlapControlRules = DEFAULT_OVERLAP_RULES
    setting: OverlapSetting = field(init=False)
    # Oldest first; the last is in force.
    steps: deque[OverlapStep] = field(default_factory=lambda: deque(maxlen=MAX_STEPS))
    _window: MeasuredWindow = field(default_factory=MeasuredWindow)
    _settling: float = 0.0
    _totals: Totals | None = None
    _observed_at: float = 0.0
    _trial: _Trial | None = None
    _calm_since: float = 0.0
    _calm: MeasuredWindow | None = None  # the last one measured in this calm time
    _taken_back: Counter[_Direction] = field(default_factory=Counter)  # in a row
    _not_before: dict[_Direction, float] = field(default_factory=dict)
    _by_bulk: bool = False  # the partition in force began with a bulk
    _few_since: float = 0.0

    def __post_init__(self) -> None:
        self.setting = self._within_rules(OverlapSetting())

    def begin(self, now: float) -> None:
        """The first setting is in force from now on."""
        self._observed_at = self._calm_since = now
        reason = "where every dispatcher begins" if self._free else "by configuration"
        self.steps.append(OverlapStep(now, self.setting, reason))

    def fix(self, overlap: Overlap | None, workers: int | None, now: float) -> OverlapStep:
        """An operator fixes values; None: chosen by the control again."""
        self.rules = replace(self.rules, overlap=overlap, workers=workers)
        self._trial, self._calm_since = None, now
        self._taken_back.clear()
        self._not_before.clear()
        return self._step(self._within_rules(self.setting), "by hand", now)

    def observe(self, totals: Totals, now: float) -> OverlapStep | None:
        """Measure, and take a step or evaluate the last one if it is time."""
        self._measure(totals, now)
        if not self._free:
            return None
        if self._window.seconds >= self.rules.window_seconds:
            window, self._window = self._window, MeasuredWindow()
            if window.proposed >= _FEW_PODS:
                calm = window.share <= self.rules.low_share
                self._calm = window if calm else None
                self._calm_since = self._calm_since if calm else now
                return self._evaluate(window, now) if self._trial else self._consider(window, totals, now)
        if now - self._calm_since >= self._calm_needed:
            return self._relax(totals, now)
        return None

    def foresee(self, work: WorkInHand, now: float) -> OverlapStep | None:
        """Begin a partition before a bulk is sent, and end that partition once little has been in hand for a
        while (docs/adr/0076). One that begins when conflicts show comes too late."""
        if work.pods >= _FEW_IN_HAND:
            self._few_since = now
        if self._by_bulk:
            # By hand, or undone by a step on trial: it is no longer this one.
            self._by_bulk = self.rules.overlap is None and self.setting.overlap is Overlap.SOFT_PARTITION
            if not self._by_bulk or now - self._few_since < self.rules.window_seconds:
                return None
            self._by_bulk, self._trial, self._calm_since = False, None, now
            setting = self._within_rules(OverlapSetting(workers=self.setting.workers))
            return self._step(setting, f"fewer than {_FEW_IN_HAND} pods are in hand", now)
        if not (self._may_foresee(now) and work.bulk):
            return None
        self._by_bulk = True
        return self._step(self.setting._replace(overlap=Overlap.SOFT_PARTITION), str(work), now)

    def _may_foresee(self, now: float) -> bool:
        """Not against a setting by hand, during a trial, or soon after a partition was taken back."""
        free = self.rules.overlap is None and self.setting.overlap is Overlap.SHUFFLED
        return free and self._trial is None and now >= self._not_before.get(_Direction.TIGHTER, now)

    @property
    def _free(self) -> bool:
        return self.rules.overlap is None or self.rules.workers is None

    @property
    def _calm_needed(self) -> float:
        longer: int = 2 ** min(self._taken_back[_Direction.LOOSER], 5)
        return self.rules.calm_seconds * longer

    def _within_rules(self, setting: OverlapSetting) -> OverlapSetting:
        overlap = setting.overlap if self.rules.overlap is None else self.rules.overlap
        workers = setting.workers if self.rules.workers is None else self.rules.workers
        return OverlapSetting(overlap, workers)

    def _measure(self, totals: Totals, now: float) -> None:
        before, elapsed = self._totals, now - self._observed_at
        self._totals, self._observed_at = totals, now
        if before is None or not (before.loaded or totals.loaded):
            return
        if self._settling > 0:
            self._settling -= elapsed
            return
        self._window.seconds += elapsed
        self._window.proposed += totals.proposed - before.proposed
        self._window.refused += totals.refused - before.refused
        self._window.bound += totals.bound - before.bound

    def _consider(self, window: MeasuredWindow, totals: Totals, now: float) -> OverlapStep | None:
        """No step is on trial: take one if conflicts are too frequent."""
        if window.share <= self.rules.high_share or now < self._not_before.get(_Direction.TIGHTER, now):
            return None
        setting = self._tighter(totals.workers)
        if setting is None:
            return None
        self._trial = _Trial(_Direction.TIGHTER, self.setting, window)
        return self._step(setting, f"{window}: conflicts are above {self.rules.high_share:.0%}", now)

    def _relax(self, totals: Totals, now: float) -> OverlapStep | None:
        """A calm time is over. A looser setting that was on trial stays; otherwise the next one is tried."""
        self._calm_since, self._trial = now, None
        setting = self._looser(totals.workers)
        if setting is None:
            return None
        measured = self._calm
        self._trial = _Trial(_Direction.LOOSER, self.setting, measured)
        low = f"conflicts below {self.rules.low_share:.0%}"
        figures = f"{measured}: " if measured else ""
        return self._step(setting, f"{figures}{low} for {self._calm_needed:.0f} s", now)

    def _evaluate(self, window: MeasuredWindow, now: float) -> OverlapStep:
        """Keep the step on trial or take it back."""
        trial, self._trial = self._trial, None
        if trial is None:
            raise AssertionError("nothing is on trial")
        figures = f"{trial.before} before, {window} since" if trial.before else f"{window} since"
        if self._brought_something(trial, window):
            self._taken_back[trial.direction] = 0
            return self._step(self.setting, f"kept: {figures}", now, settle=False)
        self._taken_back[trial.direction] += 1
        doublings = min(self._taken_back[trial.direction] - 1, _MAX_DOUBLINGS)
        wait = self.rules.retry_seconds * 2**doublings
        self._not_before[trial.direction] = now + min(wait, self.rules.longest_retry_seconds)
        return self._step(trial.former, f"taken back: {figures}", now)

    def _brought_something(self, trial: _Trial, window: MeasuredWindow) -> bool:
        before = trial.before
        if trial.direction is _Direction.LOOSER:
            as_fast = before is None or window.rate >= _LOSS * before.rate
            return as_fast and window.share <= self.rules.high_share
        if before is None:
            return True
        # Half the conflicts at the same throughput is a gain too: a load that asks for no more cannot become
        # faster.
        saves = window.share <= before.share / 2 and window.rate >= _LOSS * before.rate
        return saves or window.rate >= _GAIN * before.rate

    def _tighter(self, workers: int) -> OverlapSetting | None:
        now = min(self.setting.workers or workers, workers)
        if self.rules.overlap is None and self.setting.overlap is not Overlap.SOFT_PARTITION and now > 1:
            return self.setting._replace(overlap=Overlap.SOFT_PARTITION)
        fewer = now - max(1, now // 4)
        return self.setting._replace(workers=fewer) if self.rules.workers is None and fewer > 0 else None

    def _looser(self, workers: int) -> OverlapSetting | None:
        if self.rules.workers is None and self.setting.workers:
            more = self.setting.workers + max(1, self.setting.workers // 3)
            return self.setting._replace(workers=0 if more >= workers else more)
        if self.rules.overlap is None and self.setting.overlap is not Overlap.SHUFFLED and not self._by_bulk:
            return self.setting._replace(overlap=Overlap.SHUFFLED)
        return None

    def _step(self, setting: OverlapSetting, reason: str, now: float, *, settle: bool = True) -> OverlapStep:
        self.setting = setting
        self._window, self._calm = MeasuredWindow(), None
        self._settling = self.rules.settle_seconds if settle else 0.0
        self.steps.append(OverlapStep(now, setting, reason))
        return self.steps[-1]


_MAX_PAIRS = 4096
_MAX_NODES = 1024
_MAX_EPOCHS = 4096
KeyT = TypeVar("KeyT")


class Pair(NamedTuple):
    """`loser` was refused because of `winner`; winner "": no worker placed pods there meanwhile."""

    loser: str
    winner: str
    verdict: int


class ConflictCounters:
    """Counts since the dispatcher's start, in bounded space: the smallest counts give way."""

    def __init__(self) -> None:
        self.pairs: Counter[Pair] = Counter()
        self.nodes: Counter[int] = Counter()
        self.seqs_behind = np.zeros(AGE_STEPS, np.uint64)
        self.ages_ms = np.zeros(AGE_STEPS, np.uint64)
        self._names: OrderedDict[int, str] = OrderedDict()  # epoch -> worker

    def table_sizes(self) -> dict[str, int]:
        """The entries of each table."""
        return {
            "conflict_pairs": len(self.pairs),
            "conflict_nodes": len(self.nodes),
            "worker_epochs": len(self._names),
        }

    def granted(self, epoch: int, worker: str) -> None:
        """The worker got this epoch."""
        self._names[epoch] = worker
        if len(self._names) > _MAX_EPOCHS:
            self._names.popitem(last=False)

    def report(self, loser: str, refusals: ConflictReport) -> None:
        """Add the refusals that the worker `loser` reported."""
        for (epoch, verdict), pods in refusals.winners.items():
            winner = self._names.get(epoch, f"epoch {epoch}") if epoch else ""
            self.pairs[Pair(loser, winner, verdict)] += pods
        self.nodes.update(refusals.nodes)
        for sums, reported in ((self.seqs_behind, refusals.seqs_behind), (self.ages_ms, refusals.ages_ms)):
            sums[: len(reported)] += reported.astype(np.uint64)
        self.pairs = _bounded(self.pairs, _MAX_PAIRS)
        self.nodes = _bounded(self.nodes, _MAX_NODES)


def _bounded(sums: Counter[KeyT], most: int) -> Counter[KeyT]:
    return sums if len(sums) <= most else Counter(dict(sums.most_common(most // 2)))


class OverlapEnforcer:
    """Takes the conflicts that workers report, and puts the chosen setting into force."""

    def __init__(
        self,
        rules: OverlapControlRules,
        members: Membership,
        routing: Routing,
        queues: Queues,
        *,
        nodes: Sized,
        counters: Counter[str],
    ) -> None:
        self._members = members
        self._queues = queues
        self._nodes = nodes
        self._routing = routing
        self._counters = counters
        self._begun = False
        self.conflicts = ConflictCounters()
        self.control = OverlapControl(rules)
        self.handlers: Handlers = {OverlapRequested: self._requested}
        routing.worker_limit = self.control.setting.workers

    def heartbeat(self, worker: Worker, heartbeat: Heartbeat, refusals: ConflictReport | None) -> None:
        """Apply a heartbeat, before it replaces the worker's last one."""
        # The first heartbeat of a link counts from the worker's start, which another dispatcher may have
        # seen.
        if worker.heartbeat is not NO_HEARTBEAT:
            self._counters["proposed"] += max(0, heartbeat.proposed - worker.heartbeat.proposed)
            self._counters["refused"] += max(0, heartbeat.conflicts - worker.heartbeat.conflicts)
        if refusals is not None:
            self.conflicts.report(worker.name, refusals)

    def _requested(self, event: OverlapRequested, now: float) -> list[Instruction]:
        return [_note(self.control.fix(event.overlap, event.workers, now)), *self._send_preferences()]

    def tick(self, now: float) -> list[Instruction]:
        """Take a step if it is time, and send workers their changed preferences."""
        if not self._begun:
            self._begun = True
            self.control.begin(now)
        counters, working = self._counters, [worker for worker in self._members if worker.takes_work]
        loaded = any(worker.outstanding for worker in working)
        totals = Totals(counters["proposed"], counters["refused"], counters["bound"], loaded, len(working))
        step = self.control.observe(totals, now)
        noted = [] if step is None else [_note(step)]
        return [*noted, *self.pods_queued(now), *self._send_preferences()]

    def pods_queued(self, now: float) -> list[Instruction]:
        """Workers' preferences for what is in hand, if it needs others. To be sent before the work."""
        if not self._begun:
            return []
        active, routing = self._queues.active, self._routing
        # Pods that no worker may have can wait for ever.
        in_hand = sum(active.count(n) for n in active.sub_queues() if routing.destination(n).workers)
        in_hand += sum(worker.outstanding for worker in self._members)
        working = workers_taking_work(self._members, routing.worker_limit)
        packing = all(worker.packs for worker in working)
        step = self.control.foresee(WorkInHand(in_hand, len(self._nodes), len(working), packing), now)
        return [] if step is None else [_note(step), *self._send_preferences()]

    def _send_preferences(self) -> list[Instruction]:
        overlap, worker_limit = self.control.setting
        self._routing.worker_limit = worker_limit
        working = sorted((w for w in self._members if w.takes_work), key=lambda worker: worker.name)
        shares = 1
        if overlap is Overlap.SOFT_PARTITION and working:
            shares = min(worker_limit or len(working), len(working))
        out: list[Instruction] = []
        for position, worker in enumerate(working):
            # Workers of one rule mostly have consecutive positions as well.
            preference = Preference(overlap, position % shares, shares)
            if worker.preference != preference:
                worker.preference = preference
                out.append(SendPreference(worker.link, preference))
        return out


def _note(step: OverlapStep) -> Note:
    overlap, workers = step.setting
    return Note("overlap_set", {"overlap": overlap.value, "workers": workers or "all", "reason": step.reason})
