"""How much workers' node preferences overlap, and how many workers get work at once: chosen by what conflicts cost.

Both together are a *stance*. While refusals waste more than a tenth of what is proposed, the next tighter stance is tried: first a
soft partition, then fewer workers at once. What it brought is judged by the pods bound per second; a step that brought nothing is
taken back, and not tried again for a time that doubles. After a calm time the next looser stance is tried, and judged likewise.
Only time with work in hand counts as measured.
"""

from collections import Counter, deque
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple

from hoss.model.overlap import Overlap

KEPT_STEPS = 20


@dataclass(frozen=True, slots=True)
class SteeringRules:
    """`overlap`, `workers`: fixed; None: chosen. Shares are refused pods of those proposed. The gap between `high_share` and
    `low_share` keeps it from going to and fro, and so does the time before a step that was taken back is tried again."""

    overlap: Overlap | None = None
    workers: int | None = None  # so many get work at once; 0: all
    high_share: float = 0.10
    low_share: float = 0.02
    window_seconds: float = 3.0  # of work, for one judgement
    settle_seconds: float = 1.0  # of work after a step that say nothing of it yet
    calm_seconds: float = 60.0  # before a looser stance is tried
    retry_seconds: float = 30.0  # before a tighter stance that was taken back is tried again; doubles each time
    longest_retry_seconds: float = 1800.0


DEFAULT_STEERING_RULES = SteeringRules()

_FEW_PODS = 100  # proposed in a window: too few to tell a share by
_GAIN = 1.03  # so much more throughput is an improvement, and not chance
_LOSS = 0.97


class Stance(NamedTuple):
    """`workers` get work at once; 0: all."""

    overlap: Overlap = Overlap.SHUFFLED
    workers: int = 0

    def __str__(self) -> str:
        return f"{self.overlap.value}, {f'{self.workers} at once' if self.workers else 'all workers'}"


class Totals(NamedTuple):
    """Pods since the dispatcher's start, and what there is at this moment."""

    proposed: int
    refused: int
    bound: int
    loaded: bool  # somebody has work in hand
    workers: int  # that may get work


@dataclass(frozen=True, slots=True)
class Step:
    """A stance that began, or that a judgement confirmed."""

    at: float
    stance: Stance
    reason: str


@dataclass(slots=True)
class Window:
    """What happened in so many seconds of work."""

    seconds: float = 0.0
    proposed: int = 0
    refused: int = 0
    bound: int = 0

    @property
    def share(self) -> float:
        """Refused of those proposed."""
        return self.refused / self.proposed if self.proposed else 0.0

    @property
    def rate(self) -> float:
        """Pods bound per second."""
        return self.bound / self.seconds if self.seconds else 0.0

    def __str__(self) -> str:
        return f"{self.share:.1%} conflicts, {self.rate:,.0f} pods/s"


class _Direction(str, Enum):
    TIGHTER = "tighter"
    LOOSER = "looser"


@dataclass(frozen=True, slots=True)
class _Trial:
    direction: _Direction
    former: Stance
    before: Window | None  # None: there was no work to measure


@dataclass(slots=True)
class Steering:
    """`look` is to be called every now and then with the present totals; it answers with the step it took, if any."""

    rules: SteeringRules = DEFAULT_STEERING_RULES
    stance: Stance = field(init=False)
    steps: deque[Step] = field(default_factory=lambda: deque(maxlen=KEPT_STEPS))  # oldest first; the last is in force
    _window: Window = field(default_factory=Window)
    _settling: float = 0.0
    _totals: Totals | None = None
    _looked_at: float = 0.0
    _trial: _Trial | None = None
    _calm_since: float = 0.0
    _calm: Window | None = None  # the last one measured in this calm
    _taken_back: Counter[_Direction] = field(default_factory=Counter)  # in a row
    _not_before: dict[_Direction, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.stance = self._within_rules(Stance())

    def begin(self, now: float) -> None:
        """The first stance is in force from now on."""
        self._looked_at = self._calm_since = now
        self.steps.append(Step(now, self.stance, "where every dispatcher begins" if self._free else "by configuration"))

    def fix(self, overlap: Overlap | None, workers: int | None, now: float) -> Step:
        """Somebody chose; None: to be chosen by this again."""
        self.rules = replace(self.rules, overlap=overlap, workers=workers)
        self._trial, self._calm_since = None, now
        self._taken_back.clear()
        self._not_before.clear()
        return self._step(self._within_rules(self.stance), "by hand", now)

    def look(self, totals: Totals, now: float) -> Step | None:
        """Measure, and take a step or judge the last one where it is time."""
        self._measure(totals, now)
        if not self._free:
            return None
        if self._window.seconds >= self.rules.window_seconds:
            window, self._window = self._window, Window()
            if window.proposed >= _FEW_PODS:
                calm = window.share <= self.rules.low_share
                self._calm = window if calm else None
                self._calm_since = self._calm_since if calm else now
                return self._judge(window, now) if self._trial else self._consider(window, totals, now)
        if now - self._calm_since >= self._calm_needed:
            return self._relax(totals, now)
        return None

    @property
    def _free(self) -> bool:
        return self.rules.overlap is None or self.rules.workers is None

    @property
    def _calm_needed(self) -> float:
        longer: int = 2 ** min(self._taken_back[_Direction.LOOSER], 5)
        return self.rules.calm_seconds * longer

    def _within_rules(self, stance: Stance) -> Stance:
        overlap, workers = self.rules.overlap, self.rules.workers
        return Stance(stance.overlap if overlap is None else overlap, stance.workers if workers is None else workers)

    def _measure(self, totals: Totals, now: float) -> None:
        before, elapsed = self._totals, now - self._looked_at
        self._totals, self._looked_at = totals, now
        if before is None or not (before.loaded or totals.loaded):
            return
        if self._settling > 0:
            self._settling -= elapsed
            return
        self._window.seconds += elapsed
        self._window.proposed += totals.proposed - before.proposed
        self._window.refused += totals.refused - before.refused
        self._window.bound += totals.bound - before.bound

    def _consider(self, window: Window, totals: Totals, now: float) -> Step | None:
        """No step is on trial: whether conflicts call for one."""
        if window.share <= self.rules.high_share or now < self._not_before.get(_Direction.TIGHTER, now):
            return None
        stance = self._tighter(totals.workers)
        if stance is None:
            return None
        self._trial = _Trial(_Direction.TIGHTER, self.stance, window)
        return self._step(stance, f"{window}: conflicts are above {self.rules.high_share:.0%}", now)

    def _relax(self, totals: Totals, now: float) -> Step | None:
        """It was calm for long. A looser stance that was on trial stands; else the next one is tried."""
        self._calm_since, self._trial = now, None
        stance = self._looser(totals.workers)
        if stance is None:
            return None
        measured = self._calm
        self._trial = _Trial(_Direction.LOOSER, self.stance, measured)
        low = f"conflicts below {self.rules.low_share:.0%}"
        return self._step(stance, f"{f'{measured}: ' if measured else ''}{low} for {self._calm_needed:.0f} s", now)

    def _judge(self, window: Window, now: float) -> Step:
        """What the step on trial brought decides whether it stands."""
        trial, self._trial = self._trial, None
        if trial is None:
            raise AssertionError("nothing is on trial")
        figures = f"{trial.before} before, {window} since" if trial.before else f"{window} since"
        if self._brought_something(trial, window):
            self._taken_back[trial.direction] = 0
            return self._step(self.stance, f"kept: {figures}", now, settle=False)
        self._taken_back[trial.direction] += 1
        wait = self.rules.retry_seconds * 2 ** (self._taken_back[trial.direction] - 1)
        self._not_before[trial.direction] = now + min(wait, self.rules.longest_retry_seconds)
        return self._step(trial.former, f"taken back: {figures}", now)

    def _brought_something(self, trial: _Trial, window: Window) -> bool:
        before = trial.before
        if trial.direction is _Direction.LOOSER:
            return window.share <= self.rules.high_share and (before is None or window.rate >= _LOSS * before.rate)
        if before is None:
            return True
        # As much work for half the conflicts is a gain too: a load that asks for no more cannot go faster.
        saves = window.share <= before.share / 2 and window.rate >= _LOSS * before.rate
        return saves or window.rate >= _GAIN * before.rate

    def _tighter(self, workers: int) -> Stance | None:
        now = min(self.stance.workers or workers, workers)
        if self.rules.overlap is None and self.stance.overlap is not Overlap.SOFT_PARTITION and now > 1:
            return self.stance._replace(overlap=Overlap.SOFT_PARTITION)
        fewer = now - max(1, now // 4)
        return self.stance._replace(workers=fewer) if self.rules.workers is None and fewer > 0 else None

    def _looser(self, workers: int) -> Stance | None:
        if self.rules.workers is None and self.stance.workers:
            more = self.stance.workers + max(1, self.stance.workers // 3)
            return self.stance._replace(workers=0 if more >= workers else more)
        if self.rules.overlap is None and self.stance.overlap is not Overlap.SHUFFLED:
            return self.stance._replace(overlap=Overlap.SHUFFLED)
        return None

    def _step(self, stance: Stance, reason: str, now: float, *, settle: bool = True) -> Step:
        self.stance = stance
        self._window, self._calm = Window(), None
        self._settling = self.rules.settle_seconds if settle else 0.0
        self.steps.append(Step(now, stance, reason))
        return self.steps[-1]
