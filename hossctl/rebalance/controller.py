"""What the rebalance controller decides: whether to look at the cluster now, which moves of a plan are worth
their restarts, and when to leave the cluster alone. It has no clock and talks to nobody, so a week of it can
be simulated (hossctl/simulate/rebalancing.py).

Moves that belong together are made together or not at all. Against moving in circles it has three rules: a
moved pod rests; a move has to gain enough; and a goal whose moves the schedulers undo is left alone, twice as
long each time."""

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import numpy as np
from numpy.typing import NDArray

from hossctl.choices import RebalanceGoal
from hossctl.rebalance.policy import RebalancePolicy
from scheduler_worker.core.rebalance.movable_pods import MOVABLE, PlacedPods, PlanLimits
from scheduler_worker.core.rebalance.plan_state import Move, MovePlan, PlanState

_HOUR, _DAY = 3600.0, 86_400.0
# For so long it is watched whether schedulers fill again what was moved away from.
_WATCHED_SECONDS = _HOUR
_FIRST_STAND_OFF_SECONDS = _HOUR
# The others make room for pods that are to come: that these come is no failure.
_CAN_BE_UNDONE = (RebalanceGoal.EMPTY_NODES, RebalanceGoal.SPREAD, RebalanceGoal.QUIET_NODES)


@dataclass(frozen=True, slots=True)
class Chosen:
    """The moves of a plan that are made, in order. `why`: if there are none, why not."""

    goal: RebalanceGoal
    moves: tuple[Move, ...] = ()
    gain: float = 0.0  # in the plan's unit
    why: str = ""
    # Of the nodes that pods leave: name -> load after the moves, and how much of the load leaves.
    relieved: Mapping[str, tuple[float, float]] | None = None


@dataclass(slots=True)
class _Watched:
    """What became of a goal's last moves."""

    relieved: dict[str, tuple[float, float]]
    until: float
    stand_off_seconds: float = 0.0  # 0: the moves lasted
    stand_off_until: float = 0.0


class RebalanceController:
    """Remembers moves for as long as the budgets and rests are about them. Times are aware datetimes."""

    def __init__(self, policy: RebalancePolicy, *, now: datetime, spent: int = 0) -> None:
        """`spent`: moves of the last hour that a controller before this one has made."""
        self.policy = policy
        self.stand_offs = 0  # how often a goal was left alone because its moves were undone
        self._made: deque[tuple[float, str]] = deque((now.timestamp(), "") for _ in range(spent))
        self._rests: dict[str, float] = {}  # pod -> until
        self._watched: dict[RebalanceGoal, _Watched] = {}
        self._next_pass = now.timestamp()
        self._alarm = (0.0, "")  # until, why

    # When

    def due(self, now: datetime) -> bool:
        """Whether it is time to look at the cluster."""
        return now.timestamp() >= self._next_pass

    def waits(self, now: datetime) -> str:
        """Why no moves begin now, as a sentence; empty: they may."""
        at = now.timestamp()
        until, why = self._alarm
        if at < until:
            return f"{why}; goes on {_in(until - at)}"
        if not self.policy.goals:
            return "measures; its policy has no goals"
        if self._in_time(now) < 1:
            is_open = "open for long enough" if self.policy.seconds_open(now) else "open"
            return f"no window is {is_open}; the next one opens {self.policy.opens_at(now):%a %H:%M %Z}"
        if not self._left(at):
            oldest = min(made for made, _ in self._made if made > at - _HOUR)
            moves = self.policy.budget.movesPerHour
            return f"the hour's {moves} moves are made; goes on {_in(oldest + _HOUR - at)}"
        return ""

    def begin_pass(self, now: datetime) -> None:
        """The cluster is being looked at; the next pass is due one period later."""
        at = now.timestamp()
        self._next_pass = at + self.policy.passSeconds
        self._rests = {pod: until for pod, until in self._rests.items() if until > at}
        while self._made and self._made[0][0] <= at - _DAY:
            self._made.popleft()

    def alarm(self, now: datetime, why: str) -> None:
        """Something is wrong: begin no moves for a time."""
        self._alarm = now.timestamp() + self.policy.alarmSeconds, why

    def moved_in_last(self, seconds: float, now: datetime) -> int:
        """Moves made, of the last hour or day."""
        return sum(made > now.timestamp() - seconds for made, _ in self._made)

    # What

    def limits(self, pods: PlacedPods, now: datetime) -> PlanLimits:
        """How much a plan for these pods may move now: the policy's budgets, less the last hour's moves."""
        budget, at = self.policy.budget, now.timestamp()
        moves = int(min(budget.movesPerPass, self._left(at), self._in_time(now)))
        return PlanLimits(moves, budget.movesPerWorkload, self._by_workload(pods, at))

    def movable(self, pods: PlacedPods, now: datetime) -> PlacedPods:
        """The same pods, of which those that the policy leaves alone are fixed."""
        at = now.timestamp()
        others, rests = (len(pods.reasons) + number for number in range(2))
        fixed = pods.fixed.copy()
        free = fixed == MOVABLE
        allowed: dict[str, bool] = {}
        for row in np.flatnonzero(free).tolist():
            name = pods.names[row]
            namespace = name.partition("/")[0]
            may = allowed.get(namespace)
            if may is None:
                may = allowed[namespace] = self.policy.namespaces.allow(namespace)
            if not may:
                fixed[row] = others
            elif self._rests.get(name, 0.0) > at:
                fixed[row] = rests
        reasons = (
            *pods.reasons,
            "the policy leaves its namespace alone",
            "it was moved, or its move was refused, not long ago",
        )
        return replace(pods, fixed=fixed, reasons=reasons)

    def stands_off(self, goal: RebalanceGoal, state: PlanState, now: datetime) -> str:
        """Why the goal is left alone now; empty: it is not. `state`: the cluster before a plan."""
        watched, at = self._watched.get(goal), now.timestamp()
        if watched is None:
            return ""
        if at < watched.stand_off_until:
            return (
                f"{goal.value}: schedulers fill again what it empties; tries again"
                f" {_in(watched.stand_off_until - at)}"
            )
        if not watched.relieved:
            return ""
        if at >= watched.until:  # it has lasted
            del self._watched[goal]
            return ""
        load = _load_by_name(state, watched.relieved)
        back = sum(load.get(node, 0.0) > after + gone / 2 for node, (after, gone) in watched.relieved.items())
        if 2 * back <= len(watched.relieved):
            return ""
        self.stand_offs += 1
        seconds = min(max(2 * watched.stand_off_seconds, _FIRST_STAND_OFF_SECONDS), _DAY)
        self._watched[goal] = _Watched({}, 0.0, seconds, at + seconds)
        return (
            f"{goal.value}: {back} of {len(watched.relieved)} nodes that pods were moved away from are filled"
            f" again; tries again {_in(seconds)}"
        )

    def choose(self, goal: RebalanceGoal, plan: MovePlan, state: PlanState) -> Chosen:
        """Which of the plan's moves are worth it. They, and no others, are made in `state` afterwards; the
        plan was made there, within `limits`."""
        # A plan's `gain` for this goal is in per cent of the mean over all nodes.
        scale = int(state.cache.present.sum()) / 100 if goal is RebalanceGoal.SPREAD else 1.0
        least = self.policy.least_gain(goal)
        chosen: list[Move] = []
        avoided: set[int] = set()  # nodes that are not as the plan has them, because moves are left out
        gain, best = 0.0, 0.0
        for group in groups(plan.moves):
            each = group[-1].gain * scale / len(group)
            best = max(best, each)
            touched = {node for move in group for node in (move.source, move.target)}
            if each < least or touched & avoided:
                avoided |= touched
                continue
            chosen += group
            gain += group[-1].gain
        state.undo_all()
        before = state.load()
        for move in chosen:
            state.take(move.row)
            state.put(move.row, move.target)
            state.record(move)
        if not chosen:
            return Chosen(goal, why=f"{goal.value}: {_why_none(best, least, state.budget.who_stays())}")
        after = state.load()
        sources = {move.source for move in chosen}
        relieved = {
            state.name(node): (float(after[node]), float(before[node] - after[node])) for node in sources
        }
        return Chosen(goal, tuple(chosen), gain, relieved=relieved)

    def made(self, chosen: Chosen, pods: Iterable[str], now: datetime) -> None:
        """These pods ("namespace/name") of the chosen moves were moved."""
        at, names = now.timestamp(), list(pods)
        self._made.extend((at, name) for name in names)
        self._rests |= dict.fromkeys(names, at + self.policy.restSeconds)
        if names and chosen.goal in _CAN_BE_UNDONE:
            last = self._watched.get(chosen.goal)
            self._watched[chosen.goal] = _Watched(
                dict(chosen.relieved or {}), at + _WATCHED_SECONDS, last.stand_off_seconds if last else 0.0
            )

    def refused(self, pods: Iterable[str], now: datetime) -> None:
        """These pods were not moved, and would be planned again at once: others get their turn first."""
        until = now.timestamp() + self.policy.alarmSeconds
        self._rests |= {pod: max(until, self._rests.get(pod, 0.0)) for pod in pods}

    # Within

    def _in_time(self, now: datetime) -> float:
        """How many moves end before the open window does."""
        return self.policy.seconds_open(now) * self.policy.budget.movesPerSecond

    def _left(self, at: float) -> int:
        in_hour = sum(made > at - _HOUR for made, _ in self._made)
        return max(0, self.policy.budget.movesPerHour - in_hour)

    def _by_workload(self, pods: PlacedPods, at: float) -> Counter[int]:
        """Moves of the last hour by number of the workload, of pods that are still there."""
        lately = {name for made, name in self._made if made > at - _HOUR}
        rows = [row for row, name in enumerate(pods.names) if name in lately] if lately else []
        return Counter(pods.workloads[rows].tolist())


def groups(moves: Sequence[Move]) -> list[list[Move]]:
    """Moves that gain something together. What is left at the end gains nothing and is in none."""
    found: list[list[Move]] = []
    open_group: list[Move] = []
    for move in moves:
        open_group.append(move)
        if move.gain:
            found.append(open_group)
            open_group = []
    return found


def _why_none(best: float, least: float, stay: str) -> str:
    if best:
        return f"the best move gains {best:.3g}, and {least:g} is asked for"
    return f"no move helps; pods that stay: {stay}" if stay else "no move helps"


def _load_by_name(state: PlanState, names: Iterable[str]) -> dict[str, float]:
    load: NDArray[np.float64] = state.load()
    wanted = set(names)
    return {
        name: float(load[node])
        for node in np.flatnonzero(state.cache.present).tolist()
        if (name := state.name(node)) in wanted
    }


def _in(seconds: float) -> str:
    return f"in {timedelta(seconds=max(1, round(seconds)))}"
