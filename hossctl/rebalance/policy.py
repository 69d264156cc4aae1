"""RebalancePolicy documents: what the rebalance controller may move, when, how much, and what for.

A document is checked whole before anything moves. What contradicts itself is refused: a goal that the budget
can never reach, and goals that undo one another."""

from datetime import datetime, time, timedelta
from pathlib import Path
from typing import Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import Field, field_validator, model_validator

from hoss.config import Document, parse_document, read_text
from hoss.errors import InvalidInput
from hoss.manifests.fields import check_key, check_label_value
from hossctl.choices import RebalanceGoal

KIND = "RebalancePolicy"

Day = Literal["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"]
_DAYS: tuple[Day, ...] = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")  # as datetime.weekday() counts
# What a move has to gain unless the document says otherwise.
_LEAST_GAIN = {
    RebalanceGoal.FIT_PENDING: 0.2,
    RebalanceGoal.EMPTY_NODES: 0.1,
    RebalanceGoal.SPREAD: 0.02,
    RebalanceGoal.DEFRAGMENT_GPUS: 100.0,
    RebalanceGoal.QUIET_NODES: 0.02,
}
# Of these goals several moves together gain one pod or one node, and a part of them gains nothing.
_ALL_AT_ONCE = {RebalanceGoal.FIT_PENDING: "waiting pod", RebalanceGoal.EMPTY_NODES: "node"}
# empty-nodes fills nodes, and these take pods away from full ones.
_UNDONE_BY_EMPTYING = (RebalanceGoal.SPREAD, RebalanceGoal.QUIET_NODES)


class GoalDocument(Document):
    """One goal, and what a move has to be worth."""

    # What the moves are for.
    goal: RebalanceGoal

    # What a restart of a pod has to bring: the gain of moves that belong together, divided by their number.
    # fit-pending: waiting pods (0.2 is five moves for one pod); empty-nodes: nodes (0.1 is ten moves for
    # one); spread, and quiet-nodes by use: squared load of one node (a node from 90 % to 80 %, another from
    # 30 % to 40 %: 0.1); defragment-gpus: thousandths of a card. Left out: 0.2, 0.1, 0.02, 0.02, 100.
    leastGainPerMove: float | None = Field(  # noqa: N815 - Kubernetes' spelling
        default=None, gt=0, allow_inf_nan=False
    )

    # Of empty-nodes: labels of the nodes that may be emptied, such as those of the pools that an autoscaler
    # may make smaller. Left out: all.
    nodes: dict[str, str] | None = None

    @field_validator("nodes")
    @classmethod
    def _names_labels(cls, labels: dict[str, str] | None) -> dict[str, str] | None:
        if labels is not None and not labels:
            raise ValueError("names no label; leave it out for all nodes")
        try:
            for key, value in (labels or {}).items():
                check_key(key, key)
                check_label_value(value, key)
        except InvalidInput as exc:
            raise ValueError(str(exc)) from exc
        return labels

    @model_validator(mode="after")
    def _nodes_are_emptied(self) -> "GoalDocument":
        if self.nodes is not None and self.goal is not RebalanceGoal.EMPTY_NODES:
            raise ValueError(f"nodes goes with empty-nodes only, not with {self.goal.value}")
        return self

    @model_validator(mode="after")
    def _can_be_gained(self) -> "GoalDocument":
        if self.goal is RebalanceGoal.EMPTY_NODES and (self.leastGainPerMove or 0) > 1:
            raise ValueError(
                f"leastGainPerMove {self.leastGainPerMove:g}: no move empties more than one node"
            )
        return self


class WindowDocument(Document):
    """A time of the day in which moves may begin."""

    # On which days it begins.
    days: tuple[Day, ...] = _DAYS

    # HH:MM, in the policy's time zone.
    begin: time

    # HH:MM. Not after `begin`: on the next day.
    end: time

    @field_validator("begin", "end", mode="before")
    @classmethod
    def _read_minutes(cls, value: object) -> object:
        if isinstance(value, int) and 60 <= value < 24 * 60:  # YAML 1.1 reads 22:00 as 22 * 60
            value = f"{value // 60:02}:{value % 60:02}"
        if not isinstance(value, str) or len(value) != len("HH:MM") or value[2] != ":":
            raise ValueError("is no time of the day; write HH:MM in quotes, as in '22:00'")
        return value

    @model_validator(mode="after")
    def _lasts(self) -> "WindowDocument":
        if self.begin == self.end:
            raise ValueError(f"begins and ends at {self.begin:%H:%M}; leave windows out to move at any time")
        if not self.days:
            raise ValueError("days is empty: the window never opens")
        return self

    def around(self, local: datetime) -> tuple[datetime, datetime] | None:
        """Beginning and end of the window that is open at this moment; None: it is closed."""
        return next((span for span in self._spans(local) if span[0] <= local < span[1]), None)

    def opens_after(self, local: datetime) -> datetime:
        """When it opens next."""
        return min(begin for begin, _ in self._spans(local) if begin > local)

    def _spans(self, local: datetime) -> list[tuple[datetime, datetime]]:
        """Those that begin from yesterday until the same day of the next week."""
        found = []
        for offset in range(-1, len(_DAYS) + 1):
            day = (local + timedelta(days=offset)).date()
            if _DAYS[day.weekday()] in self.days:
                last = day if self.end > self.begin else day + timedelta(days=1)
                found.append(
                    (
                        datetime.combine(day, self.begin, local.tzinfo),
                        datetime.combine(last, self.end, local.tzinfo),
                    )
                )
        return found


class BudgetDocument(Document):
    """How much may be moved. Each moved pod is started again."""

    # Moves in any 60 minutes.
    movesPerHour: int = Field(default=60, ge=1, le=100_000)  # noqa: N815

    # Moves of one plan. After it the cluster is looked at anew.
    movesPerPass: int = Field(default=10, ge=1, le=10_000)  # noqa: N815

    # How fast they are made.
    movesPerSecond: float = Field(default=1.0, gt=0, le=50, allow_inf_nan=False)  # noqa: N815

    # Moves of pods of one job or controller, in any 60 minutes.
    movesPerWorkload: int = Field(default=2, ge=1)  # noqa: N815

    @model_validator(mode="after")
    def _pass_fits_into_hour(self) -> "BudgetDocument":
        if self.movesPerPass > self.movesPerHour:
            raise ValueError(
                f"movesPerPass {self.movesPerPass} is more than movesPerHour {self.movesPerHour} allows; "
                "lower the one or raise the other"
            )
        return self


class NamespacesDocument(Document):
    """Whose pods may be moved."""

    # Only pods of these; left out: of all.
    include: tuple[str, ...] = ()

    # No pods of these.
    exclude: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _not_both(self) -> "NamespacesDocument":
        if both := sorted(set(self.include) & set(self.exclude)):
            raise ValueError(f"both included and excluded: {', '.join(both)}")
        return self

    def allow(self, namespace: str) -> bool:
        """Whether pods of this namespace may be moved."""
        return namespace not in self.exclude and (not self.include or namespace in self.include)


class BeforePreemptionDocument(Document):
    """Moves before preemption: pods that fit nowhere, and could evict less urgent ones, wait for moves that
    make room."""

    # For how long they wait, at most. They preempt sooner if no moves are found, or once these are made.
    waitSeconds: float = Field(default=30.0, gt=0, le=600, allow_inf_nan=False)  # noqa: N815

    # Pods of a higher priority do not wait. Left out: those of the classes system-cluster-critical and
    # system-node-critical do not.
    upToPriority: int = Field(default=1_000_000_000, ge=-(2**31), lt=2**31)  # noqa: N815


class RebalancePolicy(Document):
    """What the rebalance controller does by itself."""

    # In this order: the first one that finds moves that are worth it has the pass. Left out: the controller
    # measures fragmentation, and moves nothing.
    goals: tuple[GoalDocument, ...] = ()

    # Moves begin only within these; left out: at any time.
    windows: tuple[WindowDocument, ...] = ()

    # Of the windows: a name of the IANA database, such as Europe/Berlin.
    timeZone: str = "UTC"  # noqa: N815

    # How much may be moved.
    budget: BudgetDocument = BudgetDocument()

    # Whose pods may be moved.
    namespaces: NamespacesDocument = NamespacesDocument()

    # Moves before preemption; goals have fit-pending then. Left out: pods preempt at once.
    beforePreemption: BeforePreemptionDocument | None = None  # noqa: N815

    # For quiet-nodes: an absolute path of a file with what pods use, as metrics.k8s.io has it; it is read at
    # each look. Whoever measures writes it anew.
    usageFile: Path | None = None  # noqa: N815

    # Measurements in it that are older do not count. If all are, quiet-nodes moves nothing.
    usageMaxAgeSeconds: float = Field(  # noqa: N815
        default=600.0, gt=0, le=86_400, allow_inf_nan=False
    )

    # Nodes with equal values of this label are a pool of the metrics of fragmentation. Left out: one pool.
    poolLabel: str = ""  # noqa: N815

    # Seconds from one look at the cluster to the next.
    passSeconds: float = Field(default=300.0, ge=1, le=86_400, allow_inf_nan=False)  # noqa: N815

    # A pod that was moved stays where it is for so many seconds.
    restSeconds: float = Field(default=21_600.0, ge=0, le=2_592_000, allow_inf_nan=False)  # noqa: N815

    # After an alarm (more pods wait, several refusals in a row) no moves begin for so many seconds.
    alarmSeconds: float = Field(default=900.0, ge=0, le=86_400, allow_inf_nan=False)  # noqa: N815

    @field_validator("timeZone")
    @classmethod
    def _known_zone(cls, name: str) -> str:
        try:
            ZoneInfo(name)
        except (ZoneInfoNotFoundError, ValueError, OSError) as exc:
            raise ValueError("is no time zone that this machine knows; write UTC or Europe/Berlin") from exc
        return name

    @field_validator("usageFile")
    @classmethod
    def _absolute(cls, path: Path | None) -> Path | None:
        if path is not None and not path.is_absolute():
            raise ValueError(
                "is relative, and the controller has no folder of its own; write an absolute path"
            )
        return path

    @model_validator(mode="after")
    def _goals_agree(self) -> "RebalancePolicy":
        names = [entry.goal for entry in self.goals]
        if twice := sorted({goal.value for goal in names if names.count(goal) > 1}):
            raise ValueError(f"goals: given more than once: {', '.join(twice)}")
        for goal in _UNDONE_BY_EMPTYING:
            if goal in names and RebalanceGoal.EMPTY_NODES in names:
                raise ValueError(
                    f"goals: empty-nodes fills some nodes and {goal.value} takes pods from them again; choose"
                    " one of the two"
                )
        if RebalanceGoal.QUIET_NODES in names and self.usageFile is None:
            raise ValueError("goals: quiet-nodes needs to know what pods use; give usageFile")
        if self.beforePreemption is not None and RebalanceGoal.FIT_PENDING not in names:
            raise ValueError(
                "beforePreemption: pods would wait for moves that no goal makes; add the goal fit-pending"
            )
        for entry in self.goals:
            self._check_reachable(entry)
        return self

    def _check_reachable(self, entry: GoalDocument) -> None:
        one, least = _ALL_AT_ONCE.get(entry.goal), entry.leastGainPerMove
        if one is None or least is None:
            return
        most, budget = int(1 / least + 1e-9), self.budget.movesPerPass
        if most > budget:
            raise ValueError(
                f"goals: {entry.goal.value} with leastGainPerMove {least:g} allows {most} moves for one"
                f" {one}, and budget.movesPerPass allows {budget}: raise that to {most}, or leastGainPerMove"
                f" to {1 / budget:.3g}"
            )

    def least_gain(self, goal: RebalanceGoal) -> float:
        """What a move for the goal has to gain, in the unit of `GoalDocument.leastGainPerMove`."""
        given = next((entry.leastGainPerMove for entry in self.goals if entry.goal is goal), None)
        return _LEAST_GAIN[goal] if given is None else given

    def seconds_open(self, now: datetime) -> float:
        """For how long moves may go on from now; 0: no window is open."""
        if not self.windows:
            return float("inf")
        local = now.astimezone(ZoneInfo(self.timeZone))
        open_now = filter(None, (window.around(local) for window in self.windows))
        return max(((end - local).total_seconds() for _, end in open_now), default=0.0)

    def opens_at(self, now: datetime) -> datetime:
        """When the next window opens. Only with windows."""
        local = now.astimezone(ZoneInfo(self.timeZone))
        return min(window.opens_after(local) for window in self.windows)


def read_policy(path: Path) -> tuple[RebalancePolicy, str]:
    """The document at `path`, and its text. Raises ConfigError that names the file and the field."""
    text = read_text(path)
    return parse_document(text, KIND, RebalancePolicy, where=str(path)), text
