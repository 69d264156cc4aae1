"""The status of PodGroups, in the words of each API, and when it is written.

It counts pods as the API server has them, so that a new leader writes what the old one wrote. Groups without
pods of ours are left alone. Other programs may write the same status (the controller of the
scheduler-plugins, Volcano's): the phases are theirs, and what somebody else wrote over ours is not written
again until it is other than ours was."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from dispatcher.core.kubernetes.conditions import REPEAT_SECONDS
from dispatcher.core.kubernetes.pod_groups import GroupKind, GroupObject, GroupRef, MemberCounts, PodGroups

# At most one write a group in this time; if only the reason differs, in REPEAT_SECONDS. Reasons contain
# counts of nodes that change with every attempt.
CHANGE_SECONDS = 1.0

_LOOKS = 500  # groups that one call of `due` looks at, so that it takes some milliseconds at most

_MOST_MESSAGE = 1024

Status = dict[str, Any]


def status_of(group: GroupObject, pods: MemberCounts, why: str, now: str) -> Status:
    """The fields of its status that HOSS writes; those that differ from `group.status` are to be written.
    `why` the gang waits, "" if it does not; `now` in RFC 3339."""
    return _STATUS[group.ref.kind](group, pods, why[:_MOST_MESSAGE], now)


def _coscheduling(group: GroupObject, pods: MemberCounts, _why: str, now: str) -> Status:
    """As the PodGroup controller of the scheduler-plugins."""
    status: Status = {"running": pods.running, "succeeded": pods.succeeded, "failed": pods.failed}
    started = pods.succeeded + pods.running
    if pods.succeeded >= group.minimum:
        phase = "Finished"
    elif pods.failed and started + pods.failed >= group.minimum:
        phase = "Failed"
    elif started >= group.minimum:
        phase = "Running"
    elif pods.total >= group.minimum:
        phase = "Scheduling"
    else:
        phase = "Pending"
    if phase == "Scheduling" and not group.status.get("scheduleStartTime"):
        status["scheduleStartTime"] = now
    return {"phase": phase, **status}


def _volcano(group: GroupObject, pods: MemberCounts, why: str, now: str) -> Status:
    """As Volcano's scheduler."""
    status: Status = {"running": pods.running, "succeeded": pods.succeeded, "failed": pods.failed}
    inqueue = group.status.get("phase") == "Inqueue" or pods.total >= group.minimum
    if pods.scheduled >= group.minimum:
        phase = "Completed" if pods.succeeded + pods.failed == pods.scheduled else "Running"
    elif pods.running:
        phase = "Unknown"
    else:
        phase = "Inqueue" if inqueue else "Pending"
    if pods.scheduled >= group.minimum:
        reason = "tasks in gang are ready to be scheduled"
        condition = _Condition("Scheduled", "True", reason, f"{pods.scheduled} pods are on nodes")
    elif why:
        reason = "NotEnoughResources" if pods.total >= group.minimum else "NotEnoughTasks"
        condition = _Condition("Unschedulable", "True", reason, why)
    else:
        return {"phase": phase, **status}
    others = [old for old in _conditions(group) if old.get("type") not in ("Scheduled", "Unschedulable")]
    return {"phase": phase, **status, "conditions": [*others, condition.following(_conditions(group), now)]}


def _workload(group: GroupObject, pods: MemberCounts, why: str, now: str) -> Status:
    """As kube-scheduler: what was scheduled once stays so."""
    before = next((old for old in _conditions(group) if old.get("type") == "PodGroupScheduled"), {})
    if pods.scheduled >= group.minimum:
        condition = _Condition("PodGroupScheduled", "True", "Scheduled", "")
    elif why and before.get("status") != "True":
        condition = _Condition("PodGroupScheduled", "False", "Unschedulable", why)
    else:
        return {}
    written = condition.following(_conditions(group), now)
    if group.generation:
        written["observedGeneration"] = group.generation
    others = [old for old in _conditions(group) if old is not before]
    return {"conditions": [*others, written]}


_STATUS: Mapping[GroupKind, Callable[[GroupObject, MemberCounts, str, str], Status]] = {
    GroupKind.COSCHEDULING: _coscheduling,
    GroupKind.VOLCANO: _volcano,
    GroupKind.WORKLOAD: _workload,
}


class _Condition(NamedTuple):
    type: str
    status: str
    reason: str
    message: str

    def following(self, before: Sequence[Mapping[str, Any]], now: str) -> Status:
        """With the time since when it is so."""
        same = (old for old in before if (old.get("type"), old.get("status")) == (self.type, self.status))
        since = next((old.get("lastTransitionTime") for old in same), None) or now
        return {**self._asdict(), "lastTransitionTime": since}


def _conditions(group: GroupObject) -> Sequence[Mapping[str, Any]]:
    return group.status.get("conditions") or ()


class Overdue(NamedTuple):
    """A gang that has waited longer than its group allows."""

    group: GroupObject
    text: str


class DueStatus(NamedTuple):
    """A status to be written."""

    group: GroupObject
    status: Status


@dataclass(slots=True)
class _Written:
    """What was last written, and when. `uid`: another group may have the name meanwhile. `essence`: what may
    not wait for REPEAT_SECONDS if it changes."""

    uid: str
    status: Status
    essence: tuple[Any, ...]
    at: float


class PodGroupStatuses:
    """Which statuses are due, and which gangs are overdue. An entry is forgotten with the last pod of ours
    that names its group, or with the group."""

    def __init__(self, groups: PodGroups) -> None:
        self._groups = groups
        self._to_check: dict[GroupRef, None] = {}  # in turn
        self._written: dict[GroupRef, _Written] = {}
        self._waits_since: dict[GroupRef, float] = {}
        self._timed_out: set[GroupRef] = set()

    def __len__(self) -> int:
        return len(self._written) + len(self._to_check)

    def due(
        self, why: Callable[[GroupRef], str], now: float, utc_now: str
    ) -> tuple[list[DueStatus], list[Overdue]]:
        """The statuses to write now, which count as written from here on. `why`: why a gang waits; "": it
        does not. Later calls look again at groups whose gang waits."""
        self._to_check.update(dict.fromkeys(self._groups.take_touched()))
        statuses: list[DueStatus] = []
        overdue: list[Overdue] = []
        for ref in list(self._to_check)[:_LOOKS]:
            del self._to_check[ref]
            group, pods = self._groups.group(ref), self._groups.counts(ref)
            if group is None or not group.minimum or not pods.total:
                self._forget(ref)
                continue
            reason = why(ref) if pods.scheduled < group.minimum else ""
            settled = self._take(group, status_of(group, pods, reason, utc_now), now, statuses)
            if pods.scheduled >= group.minimum:
                self._waits_since.pop(ref, None)
                self._timed_out.discard(ref)
            else:
                self._observe_waiting(group, reason, now, overdue)
            if not settled or pods.scheduled < group.minimum:
                self._to_check[ref] = None
        return statuses, overdue

    def retry(self, ref: GroupRef, *, soon: bool) -> None:
        """Writing failed. `soon`: it may succeed in a moment; otherwise it is written after
        REPEAT_SECONDS."""
        last = self._written.get(ref)
        if last is not None:
            last.status = {}
            if soon:
                last.essence = ()
            self._to_check[ref] = None

    def _take(self, group: GroupObject, status: Status, now: float, out: list[DueStatus]) -> bool:
        """Whether nothing is left to be written later."""
        last = self._written.get(group.ref)
        if last is not None and last.uid != group.uid:
            last = None
        if not status or (last is not None and _alike(last.status, status)):
            return True
        essence = _essence(status)
        if last is not None:
            wait_seconds = CHANGE_SECONDS if last.essence != essence else REPEAT_SECONDS
            if now < last.at + wait_seconds:
                return False
        self._written[group.ref] = _Written(group.uid, status, essence, now)
        if any(group.status.get(name, 0) != value for name, value in status.items()):
            out.append(DueStatus(group, status))
        return True

    def _observe_waiting(self, group: GroupObject, why: str, now: float, out: list[Overdue]) -> None:
        since = self._waits_since.setdefault(group.ref, now)
        seconds = group.timeout_seconds
        if seconds and now >= since + seconds and group.ref not in self._timed_out:
            self._timed_out.add(group.ref)
            because = f": {why}" if why else ""
            out.append(Overdue(group, f"not scheduled within {seconds} s (scheduleTimeoutSeconds){because}"))

    def _forget(self, ref: GroupRef) -> None:
        self._written.pop(ref, None)
        self._waits_since.pop(ref, None)
        self._timed_out.discard(ref)


def _essence(status: Status) -> tuple[Any, ...]:
    plain = _timeless(status)
    conditions = [(old.get("type"), old.get("status")) for old in plain.pop("conditions")]
    return *plain.values(), *conditions


def _alike(one: Status, other: Status) -> bool:
    """But for times, which differ where somebody else wrote over the one."""
    return _timeless(one) == _timeless(other)


def _timeless(status: Status) -> Status:
    plain = {name: value for name, value in status.items() if name != "scheduleStartTime"}
    conditions = [
        {name: value for name, value in old.items() if name != "lastTransitionTime"}
        for old in plain.pop("conditions", ())
    ]
    return {**plain, "conditions": conditions}
