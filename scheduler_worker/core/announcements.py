"""Rules about other pods that the ledger is told of before pods that bear them are placed.

The ledger refuses whoever bears a rule and has not seen it registered. A pod placed before that is placed for nothing, so
pods of a kind that this worker never told of wait here: first until the ledger has answered, then, in the backlog, until the
view stands where the rules were registered. Nothing relies on it: what was not announced is refused once.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from hoss.model.pod_groups import PodGroup
from scheduler_worker.core.reliance import bears_rules
from scheduler_worker.core.work import Run

# Told again when the last of so many is forgotten, which costs a message and does no harm.
_MOST_REMEMBERED = 10_000


@dataclass(frozen=True, slots=True)
class Announcement:
    """The ledger is to register the rules of these groups; `id` is its number among the worker's proposals."""

    id: int
    groups: tuple[PodGroup, ...]


@dataclass(slots=True)
class _Waiting:
    unanswered: set[int]  # announcements
    runs: list[Run]


@dataclass(slots=True)
class Announcements:
    """A group is announced once; a gang waits as a whole."""

    _told: dict[PodGroup, int] = field(default_factory=dict)  # and by which announcement
    _unanswered: set[int] = field(default_factory=set)
    _waiting: list[_Waiting] = field(default_factory=list)
    _to_send: list[Announcement] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self._waiting)

    @property
    def pods(self) -> int:
        """That wait."""
        return sum(len(run.rows) for waiting in self._waiting for run in waiting.runs)

    def admit(self, runs: list[Run], next_id: int) -> list[Run]:
        """Those of a work batch's runs that need not wait. `next_id`: the number of what has to be announced for the others,
        if anything has."""
        bearing = [run for run in runs if bears_rules(run.pod_class.spec)]
        if not bearing:
            return runs
        self._announce(dict.fromkeys(run.pod_class.group for run in bearing), next_id)
        waiting = [run for run in bearing if self._told[run.pod_class.group] in self._unanswered]
        if not waiting:
            return runs
        unanswered = {self._told[run.pod_class.group] for run in waiting} & self._unanswered
        if runs[0].work.gang is not None:
            waiting = runs
        self._waiting.append(_Waiting(unanswered, waiting))
        held = set(map(id, waiting))
        return [run for run in runs if id(run) not in held]

    def _announce(self, groups: Iterable[PodGroup], number: int) -> None:
        if len(self._told) > _MOST_REMEMBERED:
            self._told.clear()
        new = tuple(group for group in groups if group not in self._told)
        if new:
            self._told.update(dict.fromkeys(new, number))
            self._unanswered.add(number)
            self._to_send.append(Announcement(number, new))

    def take(self) -> list[Announcement]:
        """What is to be sent, since the last time."""
        taken, self._to_send = self._to_send, []
        return taken

    def answered(self, number: int) -> list[Run]:
        """The ledger knows the rules of an announcement: the runs that waited for nothing else."""
        self._unanswered.discard(number)
        due = []
        for waiting in self._waiting:
            waiting.unanswered.discard(number)
            due += [] if waiting.unanswered else waiting.runs
        self._waiting = [waiting for waiting in self._waiting if waiting.unanswered]
        return due

    def take_all(self) -> list[Run]:
        """Take out all that wait."""
        runs = [run for waiting in self._waiting for run in waiting.runs]
        self._waiting.clear()
        return runs

    def forget(self) -> None:
        """The ledger was told of nothing, and nothing waits: another epoch begins."""
        self._told.clear()
        self._unanswered.clear()
        self._waiting.clear()
        self._to_send.clear()
