"""The backlog: runs of pods that a worker still has to place, and what each of them waits for.

A run is in one place: ready, in the order of placement, or waiting for one thing. It waits until the ledger
has registered its rules, until the view has reached the sequence numbers at which the ledger refused it, or
until the worker's own assumptions that hold the room have ended."""

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile

import numpy as np
from numpy.typing import NDArray

from hoss.model.pod import PodGroup, PodSpec
from scheduler_worker.core.cache.assumptions import Assumption
from scheduler_worker.core.cycle.draft import takes_by_name
from scheduler_worker.core.work import Run, Work

# Registering a forgotten group again costs a message and does no harm.
_MOST_REMEMBERED_GROUPS = 10_000


@dataclass(frozen=True, slots=True)
class RuleRegistration:
    """The rules of these groups, for the ledger to register; `id` is a number among the worker's
    proposals."""

    id: int
    groups: tuple[PodGroup, ...]


@dataclass(slots=True)
class _AwaitingRules:
    unanswered: set[int]  # numbers of registrations
    runs: list[Run]


@dataclass(slots=True)
class _RuleRegistrations:
    """Rules of this epoch's pods, registered with the ledger before such pods are placed.

    The ledger refuses a pod that bears a rule if the pod's view is older than the rule's registration.
    Nothing relies on registering in advance: without it the ledger refuses the first proposal."""

    to_send: list[RuleRegistration] = field(default_factory=list)
    waiting: list[_AwaitingRules] = field(default_factory=list)
    _number_of: dict[PodGroup, int] = field(default_factory=dict)
    _unanswered: set[int] = field(default_factory=set)

    def __len__(self) -> int:
        return len(self._number_of)

    def admit(self, runs: list[Run], next_id: int) -> list[Run]:
        """The runs of a work batch that need not wait; of a gang all or none."""
        bearing = [run for run in runs if bears_rules(run.pod_class.spec)]
        if not bearing:
            return runs
        self._register(dict.fromkeys(run.pod_class.group for run in bearing), next_id)
        waiting = [run for run in bearing if self._number_of[run.pod_class.group] in self._unanswered]
        if not waiting:
            return runs
        unanswered = {self._number_of[run.pod_class.group] for run in waiting} & self._unanswered
        if runs[0].work.gang is not None:
            waiting = runs
        self.waiting.append(_AwaitingRules(unanswered, waiting))
        held = set(map(id, waiting))
        return [run for run in runs if id(run) not in held]

    def _register(self, groups: Iterable[PodGroup], number: int) -> None:
        if len(self._number_of) > _MOST_REMEMBERED_GROUPS:
            self._number_of.clear()
        new = tuple(group for group in groups if group not in self._number_of)
        if new:
            self._number_of.update(dict.fromkeys(new, number))
            self._unanswered.add(number)
            self.to_send.append(RuleRegistration(number, new))

    def forget(self, groups: Iterable[PodGroup]) -> None:
        """Register the rules of these groups again, should such pods come again."""
        for group in groups:
            self._number_of.pop(group, None)

    def answered(self, number: int) -> list[Run]:
        """The ledger has registered these rules. Returns the runs that waited for nothing else."""
        self._unanswered.discard(number)
        due = []
        for entry in self.waiting:
            entry.unanswered.discard(number)
            due += [] if entry.unanswered else entry.runs
        self.waiting = [entry for entry in self.waiting if entry.unanswered]
        return due


def bears_rules(spec: PodSpec) -> bool:
    """Whether the ledger has to know a rule of the pod's own: see resolver/core/rules.py."""
    affinity = spec.pod_affinity
    required = affinity is not None and (affinity.anti_required or affinity.required)
    spread = any(constraint.required for constraint in spec.spread)
    return bool(required) or spread or takes_by_name(spec)


class Backlog:
    """See the module. It owns every run that is neither drafted, proposed nor answered, except those that
    wait for the dispatcher's answer about preemption."""

    def __init__(self) -> None:
        self._ready: deque[Run] = deque()
        self._rules = _RuleRegistrations()
        # Until the view stands at these seqs, by shard.
        self._awaiting_view: list[tuple[dict[int, int], Run]] = []
        self._awaiting_room: list[tuple[Sequence[Assumption], Run]] = []  # until these assumptions have ended
        # The same for assumptions of the draft, which has none to name yet.
        self._awaiting_draft: list[Run] = []

    @property
    def registered_groups(self) -> int:
        """Groups of pods whose rules were registered."""
        return len(self._rules)

    def forget_groups(self, groups: Iterable[PodGroup]) -> None:
        """A class of each of these groups is forgotten."""
        self._rules.forget(groups)

    def __bool__(self) -> bool:
        waiting = self._awaiting_view or self._awaiting_room or self._awaiting_draft or self._rules.waiting
        return bool(self._ready or waiting)

    @property
    def pods(self) -> int:
        """In all runs."""
        return sum(len(run.rows) for run in self._all_runs())

    # Runs that can be placed

    @property
    def next(self) -> Run | None:
        """The next run to place; None if none can be placed now."""
        return self._ready[0] if self._ready else None

    def take(self) -> Run:
        """Take out the next run."""
        return self._ready.popleft()

    def together(self) -> Iterable[Run]:
        """The next run, and if it is of a gang that has not its minimum yet, the others of the gang."""
        following = self.next
        if following is None or not following.work.missing:
            return () if following is None else (following,)
        return takewhile(lambda run: run.work is following.work, self._ready)

    def take_work(self, work: Work) -> list[Run]:
        """Take out the next runs, as far as they belong to this work."""
        runs = []
        while self._ready and self._ready[0].work is work:
            runs.append(self._ready.popleft())
        return runs

    def add(self, runs: Iterable[Run]) -> None:
        """Put runs behind all others."""
        self._ready.extend(runs)

    def put_first(self, runs: Iterable[Run]) -> None:
        """Put runs before all others, in their order."""
        self._ready.extendleft(reversed(list(runs)))

    # Waiting for rules

    def add_registered(self, runs: list[Run], next_id: int) -> None:
        """Add a work batch's runs. Those whose rules the ledger does not know wait; `next_id` is the number
        of the registration that they need, if they need one."""
        self.add(self._rules.admit(runs, next_id))

    def take_registrations(self) -> list[RuleRegistration]:
        """Registrations to be sent, since the last call."""
        taken, self._rules.to_send = self._rules.to_send, []
        return taken

    def rules_registered(self, number: int, missing: dict[int, int]) -> bool:
        """The ledger answered a registration; `missing` are the seqs, by shard, that the view has yet to
        reach. Whether any run now waits for the view."""
        runs = self._rules.answered(number)
        if missing:
            self._await_view(runs, missing)
            return bool(runs)
        self.put_first(runs)
        return False

    # Waiting for the view and for room

    def retry(
        self, work: Work, again: Sequence[Run], later: Sequence[Run], awaited: Mapping[int, int]
    ) -> None:
        """Refused runs of this work: `again` at once, `later` when the view stands at these seqs, by shard.

        The pods of a gang come together, once nothing is awaited. They join what verdicts on other parts of
        the gang left."""
        if work.gang is None:
            self._await_view(later, awaited)
            self.put_first(again)
            return
        runs = [*again, *later]
        waiting = next((seqs for seqs, run in self._awaiting_view if run.work is work), {})
        waiting.update(awaited if later else {})
        if waiting:
            runs = [*(run for run in self._ready if run.work is work), *runs]
            self._ready = deque(run for run in self._ready if run.work is not work)
            self._awaiting_view.extend((waiting, run) for run in runs)
        else:
            self.put_first(runs)

    def await_room(self, assumptions: Sequence[Assumption], runs: Iterable[Run]) -> None:
        """Wait until none of the assumptions counts any more: the view has seen them, or they were
        refused."""
        self._awaiting_room.extend((assumptions, run) for run in runs)

    def await_draft(self, run: Run) -> None:
        """Wait until nothing of the present draft counts any more; see `drafted`."""
        self._awaiting_draft.append(run)

    def drafted(self, assumptions: Sequence[Assumption]) -> None:
        """The draft was proposed, with these assumptions."""
        runs, self._awaiting_draft = self._awaiting_draft, []
        self.await_room(assumptions, runs)

    def resume(self, shard: int, seen: int | None) -> bool:
        """The view of a shard stands at `seen`; None ends every wait for the shard. Whether any run is ready
        again."""
        for awaited, _ in self._awaiting_view:
            if shard in awaited and (seen is None or awaited[shard] <= seen):
                del awaited[shard]
        due = [run for awaited, run in self._awaiting_view if not awaited]
        if due:
            self._awaiting_view = [entry for entry in self._awaiting_view if entry[0]]
            self.put_first(due)
        return self.resume_ended() or bool(due)

    def resume_ended(self) -> bool:
        """Put runs first whose awaited assumptions have ended. Whether there are any."""
        due = [run for assumptions, run in self._awaiting_room if not any(a.live.any() for a in assumptions)]
        if due:
            self._awaiting_room = [e for e in self._awaiting_room if any(a.live.any() for a in e[0])]
            self.put_first(due)
        return bool(due)

    def _await_view(self, runs: Iterable[Run], awaited: Mapping[int, int]) -> None:
        self._awaiting_view.extend((dict(awaited), run) for run in runs)

    # Giving back

    def take_untried(self, batch_ids: Collection[int], pods: int) -> list[tuple[Work, NDArray[np.intp]]]:
        """Take out up to `pods` pods of these batches that were never tried, the last ones first. A gang goes
        only as a whole, even if it has more pods than that."""
        kept: list[Run] = []
        taken: list[tuple[Work, NDArray[np.intp]]] = []
        while self._ready and pods > 0:
            run = self._ready.pop()
            if run.tries or run.work.batch_id not in batch_ids:
                kept.append(run)
                continue
            if run.work.gang is not None:  # untried, so all its runs are here, one after the other
                rows = [run.rows]
                while self._ready and self._ready[-1].work is run.work:
                    rows.append(self._ready.pop().rows)
                given = np.concatenate(rows)
            else:
                given = run.rows[-pods:]
                if len(given) < len(run.rows):
                    kept.append(replace(run, rows=run.rows[: -len(given)]))
            taken.append((run.work, given))
            pods -= len(given)
        self._ready.extend(reversed(kept))
        return taken

    def take_all(self) -> list[Run]:
        """Take out everything."""
        runs = self._all_runs()
        self._ready.clear()
        self._rules.waiting.clear()
        self._awaiting_view.clear()
        self._awaiting_room.clear()
        self._awaiting_draft.clear()
        return runs

    def restart(self) -> None:
        """Another epoch: nothing waits, and no rule counts as registered."""
        self.take_all()
        self._rules = _RuleRegistrations()

    def _all_runs(self) -> list[Run]:
        waiting = (run for _, run in (*self._awaiting_view, *self._awaiting_room))
        unregistered = (run for entry in self._rules.waiting for run in entry.runs)
        return [*self._ready, *waiting, *self._awaiting_draft, *unregistered]
