"""PodGroups of a cluster, of three kinds, groups inside Workloads, and the pods that name them.

A pod names a group of its own namespace; those of the four kinds are different groups, whatever their names.
A Workload of Kubernetes 1.35 has several groups, and each of them may have replicas: pods that name the group
with one replica key are a gang of their own. A group may come after its pods, change and go. A pod whose
group is not there waits, and is told whether the object, the kind or the right to read it is missing. An
entry is forgotten with its object or its pod."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, NamedTuple

from dispatcher.core.pods.gangs import MAX_GANG_PODS, TOO_MANY_PODS
from dispatcher.core.pods.sets import GangRule
from hoss.errors import InvalidInput
from hoss.manifests.fields import Object, integer, mapping, mappings
from hoss.manifests.gangs import GROUP_ANNOTATIONS, GROUP_LABEL, read_pod_group

_MOST_SECONDS = 2**31 - 1


class GroupKind(Enum):
    """The values are the full names of the resources."""

    COSCHEDULING = "podgroups.scheduling.x-k8s.io"  # of the scheduler-plugins
    VOLCANO = "podgroups.scheduling.volcano.sh"
    WORKLOAD = "podgroups.scheduling.k8s.io"  # of Kubernetes itself (KEP-4671, KEP-5832)
    IN_WORKLOAD = "workloads.scheduling.k8s.io"  # the same in 1.35: an entry of a Workload


class GroupRef(NamedTuple):
    """A PodGroup by name, or `workload/group` inside a Workload. It need not exist."""

    kind: GroupKind
    namespace: str
    name: str
    replica: str = ""  # inside a Workload: the replica key; "": none, and the group itself

    @property
    def key(self) -> str:
        """Of the gang that its pods are (dispatcher.core.pods.gangs)."""
        return f"{self.kind.value}/{self.namespace}/{self.gang_name}"

    @property
    def gang_name(self) -> str:
        """Of that gang, for people."""
        return f"{self.name}/{self.replica}" if self.replica else self.name

    @property
    def of_all_replicas(self) -> "GroupRef":
        """The group that says what holds for each replica."""
        return self._replace(replica="")

    @property
    def title(self) -> str:
        """The object that has to exist, and which part of it."""
        if self.kind is not GroupKind.IN_WORKLOAD:
            return f"PodGroup {self.namespace}/{self.name}"
        workload, _, group = self.name.partition("/")
        return f"pod group {group} of Workload {self.namespace}/{workload}"


def group_of(metadata: Object, spec: Object) -> GroupRef | None:
    """The group that a pod names: by its spec, else by an annotation of Volcano's, else by the label of the
    scheduler-plugins."""
    inside = spec.get("workloadRef") or {}
    if inside.get("name"):
        name = f"{inside['name']}/{inside.get('podGroup', '')}"
        replica = inside.get("podGroupReplicaKey") or ""
        return GroupRef(GroupKind.IN_WORKLOAD, metadata["namespace"], name, replica)
    annotations = metadata.get("annotations") or {}
    annotated = (annotations.get(name) for name in GROUP_ANNOTATIONS)
    names = {
        GroupKind.WORKLOAD: (spec.get("schedulingGroup") or {}).get("podGroupName"),
        GroupKind.VOLCANO: next(filter(None, annotated), None),
        GroupKind.COSCHEDULING: (metadata.get("labels") or {}).get(GROUP_LABEL),
    }
    return next((GroupRef(kind, metadata["namespace"], name) for kind, name in names.items() if name), None)


@dataclass(frozen=True, slots=True)
class GroupObject:
    """A PodGroup as the API server has it. `problem`: why its pods cannot be placed as it asks."""

    ref: GroupRef
    uid: str
    version: str  # its resourceVersion
    generation: int
    minimum: int
    timeout_seconds: int  # scheduleTimeoutSeconds; 0: none
    problem: str
    status: Mapping[str, Any]  # as its writers left it


def read_group(kind: GroupKind, item: Object) -> GroupObject:
    """A PodGroup that cannot be read has a `problem`."""
    metadata = item["metadata"]
    minimum = timeout_seconds = 0
    try:
        minimum = read_pod_group(item).minimum
        spec = mapping(item, "spec", "PodGroup")
        timeout_seconds = integer(
            spec, "scheduleTimeoutSeconds", "spec", least=0, most=_MOST_SECONDS, default=0
        )
        problem = _problem(minimum, spec)
    except InvalidInput as exc:
        problem = str(exc)
    return GroupObject(
        GroupRef(kind, metadata["namespace"], metadata["name"]),
        metadata["uid"],
        metadata["resourceVersion"],
        metadata.get("generation", 0),
        minimum,
        timeout_seconds,
        problem,
        _status(item),
    )


def read_workload(item: Object) -> list[GroupObject]:
    """The groups of a Workload of Kubernetes 1.35. A group that cannot be read has a `problem`."""
    metadata = item["metadata"]
    try:
        entries = mappings(mapping(item, "spec", "Workload"), "podGroups", "spec")
    except InvalidInput:
        return []
    groups = []
    for number, entry in enumerate(entries):
        spec = {"schedulingPolicy": entry.get("policy")}
        name = f"{metadata['name']}/{entry.get('name') or number}"
        group = read_group(GroupKind.IN_WORKLOAD, {"metadata": metadata, "spec": spec})
        groups.append(replace(group, ref=group.ref._replace(name=name)))
    return groups


def _status(item: Object) -> Mapping[str, Any]:
    """The status; empty where it is no mapping: a custom resource may have no schema."""
    status = item.get("status")
    if not isinstance(status, dict):
        return {}
    conditions = status.get("conditions")
    if conditions is None:
        return status
    listed = conditions if isinstance(conditions, list) else []
    return {**status, "conditions": [condition for condition in listed if isinstance(condition, dict)]}


def _problem(minimum: int, spec: Object) -> str:
    if minimum > MAX_GANG_PODS:
        return f"its minimum is {minimum}; {TOO_MANY_PODS}"
    if mapping(spec, "schedulingConstraints", "spec").get("topology"):
        return "spec.schedulingConstraints.topology is not supported"
    if mapping(spec, "networkTopology", "spec").get("mode") == "hard":
        return "spec.networkTopology with mode hard is not supported"
    return ""


class Member(NamedTuple):
    """An existing pod that names a group."""

    on_node: bool
    phase: str  # Pending, Running, Succeeded, Failed, or Unknown


class MemberCounts(NamedTuple):
    """The pods of a group, as the API server has them."""

    total: int
    scheduled: int  # on nodes
    running: int
    succeeded: int
    failed: int


@dataclass(slots=True)
class _Entry:
    """Of a group that exists, or that pods name."""

    group: GroupObject | None = None
    members: dict[bytes, Member] = field(default_factory=dict)  # by UID
    counts: MemberCounts | None = None  # of the members; None: to be counted


_NO_PODS = MemberCounts(0, 0, 0, 0, 0)


class PodGroups:
    """Groups by reference, with their pods of ours."""

    def __init__(self) -> None:
        self._entries: dict[GroupRef, _Entry] = {}
        self._of_pods: dict[bytes, GroupRef] = {}  # by UID
        self._in_workloads: dict[
            tuple[str, str], list[GroupRef]
        ] = {}  # by namespace and name of the Workload
        self._unread: dict[GroupKind, str] = {}  # why no group of this kind is known
        self._new_rules: set[GroupRef] = set()
        self._touched: set[GroupRef] = set()

    def __len__(self) -> int:
        return len(self._entries)

    def apply(self, group: GroupObject) -> None:
        """The group exists, and is so now."""
        entry = self._entries.setdefault(group.ref, _Entry())
        if entry.group is None or (entry.group.minimum, entry.group.problem) != (
            group.minimum,
            group.problem,
        ):
            self._new_rules.add(group.ref)
        entry.group = group
        self._touch(group.ref)

    def apply_workload(self, namespace: str, name: str, groups: Sequence[GroupObject]) -> None:
        """The Workload has exactly these groups; none: it no longer exists."""
        now = [group.ref for group in groups]
        for ref in self._in_workloads.pop((namespace, name), ()):
            if ref not in now:
                self.remove(ref)
        for group in groups:
            self.apply(group)
        if now:
            self._in_workloads[namespace, name] = now

    def remove(self, ref: GroupRef) -> None:
        """The group no longer exists."""
        entry = self._entries.get(ref)
        if entry is not None:
            entry.group = None
            self._new_rules.add(ref)
            self._tidy(ref, entry)

    def set_unread(self, kind: GroupKind, why: str) -> None:
        """Why no group of this kind is known; "": those that exist are."""
        if self._unread.get(kind, "") != why:
            self._unread[kind] = why
            self._new_rules.update(ref for ref in self._entries if ref.kind is kind)

    def pod_seen(self, uid: bytes, ref: GroupRef | None, member: Member) -> None:
        """A pod of ours exists, and names this group."""
        if ref != self._of_pods.get(uid):
            self.pod_gone(uid)
        if ref is None:
            return
        entry = self._entries.setdefault(ref, _Entry())
        if entry.members.get(uid) != member:
            entry.members[uid], entry.counts = member, None
            self._of_pods[uid] = ref
            self._touch(ref)

    def pod_gone(self, uid: bytes) -> None:
        """The pod no longer exists."""
        ref = self._of_pods.pop(uid, None)
        if ref is not None:
            entry = self._entries[ref]
            del entry.members[uid]
            entry.counts = None
            self._touch(ref)
            self._tidy(ref, entry)

    def group(self, ref: GroupRef) -> GroupObject | None:
        """The group, if it exists."""
        entry = self._entries.get(ref)
        return None if entry is None else entry.group

    def counts(self, ref: GroupRef) -> MemberCounts:
        """The pods that name this group."""
        entry = self._entries.get(ref)
        if entry is None:
            return _NO_PODS
        if entry.counts is None:
            phases = Counter(pod.phase for pod in entry.members.values())
            on_nodes = sum(pod.on_node for pod in entry.members.values())
            ends = phases["Running"], phases["Succeeded"], phases["Failed"]
            entry.counts = MemberCounts(len(entry.members), on_nodes, *ends)
        return entry.counts

    def rule(self, ref: GroupRef) -> GangRule:
        """What the group says about the gang that its pods are."""
        group = self.group(ref.of_all_replicas)
        if group is None:
            return GangRule(missing=self._unread.get(ref.kind) or f"{ref.title} does not exist")
        return GangRule(missing=f"{ref.title}: {group.problem}") if group.problem else GangRule(group.minimum)

    def take_rules(self) -> dict[str, GangRule]:
        """By the keys of their gangs, the rules that may have changed since the last call."""
        changed, self._new_rules = self._new_rules, set()
        if any(ref.kind is GroupKind.IN_WORKLOAD for ref in changed):
            changed |= {ref for ref in self._entries if ref.replica and ref.of_all_replicas in changed}
        return {ref.key: self.rule(ref) for ref in changed}

    def take_touched(self) -> set[GroupRef]:
        """Groups that have a status and changed, or whose pods did, since the last call."""
        touched, self._touched = self._touched, set()
        return touched

    def _touch(self, ref: GroupRef) -> None:
        if ref.kind is not GroupKind.IN_WORKLOAD:  # a Workload of 1.35 has no status
            self._touched.add(ref)

    def _tidy(self, ref: GroupRef, entry: _Entry) -> None:
        if entry.group is None and not entry.members:
            del self._entries[ref]
