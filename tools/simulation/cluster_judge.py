"""Judges what the API server's objects went through, by nothing but their changes.

It shares no code with the services. At every binding that HOSS made, or that the webhook had allowed, the
pods on the node must fit: those that such bindings brought there. What came past the webhook is not counted,
and a node counts by the most that it ever had, a pod by the least that it ever asked for: that a node shrinks
or a pod grows after it was placed is nobody's fault. What the ledger knew at each moment is judged by the
checker of histories.

At rest the bound pods and the reservations are the same, and every pod that waits says why, and nothing has
room for it."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Object = Mapping[str, Any]

GROUP_LABEL, MINIMUM_ANNOTATION = "scheduling.x-k8s.io/pod-group", "hoss.dev/min-available"

_REASON = re.compile(r"0/\d+ nodes are available")


@dataclass(slots=True)
class _Pod:
    name: str
    node: str
    cpu: int
    ports: tuple[int, ...]
    is_checked: bool


class ClusterJudge:
    """Sees every change of objects. `problems`: a sentence for each broken promise."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.reached: Counter[str] = Counter()
        self._pods: dict[str, _Pod] = {}  # by UID, those that are not over
        self._nodes_of: dict[str, str] = {}  # of every pod that ever was on one, by UID
        self._names_on: set[tuple[str, str]] = set()  # names of pods and the nodes that such a pod was on
        self._most: dict[str, tuple[int, int]] = {}  # most millicores and pods that a node of this name had

    def see(self, change: Any, *, binds_checked: bool) -> None:
        """A change. `binds_checked`: where it binds a pod, the ledger was asked for the room."""
        if change.kind == "Node" and change.after is not None:
            self._see_node(change.after)
        elif change.kind == "Pod":
            self._see_pod(change.before, change.after, binds_checked=binds_checked)

    def is_there(self, uid: str, node: str) -> bool:
        """Whether the pod is, or was, on the node: the ledger may hear of it when it is gone already."""
        return self._nodes_of.get(uid) == node

    def was_on(self, name: str, node: str) -> bool:
        """Whether a pod of this name is, or was, on the node."""
        return (name, node) in self._names_on

    def _see_node(self, node: Object) -> None:
        name, (cpu, pods) = node["metadata"]["name"], _room_of(node)
        most_cpu, most_pods = self._most.get(name, (0, 0))
        self._most[name] = max(cpu, most_cpu), max(pods, most_pods)

    def _see_pod(self, before: Object | None, after: Object | None, *, binds_checked: bool) -> None:
        uid = (after or before or {})["metadata"]["uid"]
        if after is None or is_over(after):
            self._pods.pop(uid, None)
            return
        known = self._pods.get(uid)
        if node := node_of(after):
            self._nodes_of[uid] = node
            self._names_on.add((after["metadata"]["name"], node))
        if known is None:
            name = after["metadata"]["name"]
            known = self._pods[uid] = _Pod(
                name, node, cpu_of(after), tuple(ports_of(after)), is_checked=False
            )
            return
        known.cpu = min(known.cpu, cpu_of(after))
        if node == known.node:
            return
        if known.node:
            self.problems.append(f"bound twice: pod {known.name} was on {known.node} and is on {node}")
        known.node, known.is_checked = node, binds_checked
        self.reached["bound, checked" if binds_checked else "bound past the webhook"] += 1
        if binds_checked:
            self._check(node, known.name)

    def _check(self, node: str, newest: str) -> None:
        here = [pod for pod in self._pods.values() if pod.node == node and pod.is_checked]
        cpu, most = sum(pod.cpu for pod in here), self._most.get(node, (0, 0))
        if cpu > most[0] or len(here) > most[1]:
            text = f"node {node} has {cpu} of {most[0]} millicores and {len(here)} of {most[1]} pods bound"
            self.problems.append(f"overcommitted at the API server: {text} with {newest}")
        ports = Counter(port for pod in here for port in pod.ports)
        if twice := [port for port, count in ports.items() if count > 1]:
            self.problems.append(f"overcommitted at the API server: port {twice[0]} of {node}, with {newest}")

    def at_rest(
        self,
        pods: Iterable[Object],
        nodes: Iterable[Object],
        rows: Iterable[Mapping[str, Any]],
        groups: Iterable[Object] = (),
        has_storage: Callable[[Object, str], bool] = lambda _pod, _node: True,
    ) -> list[str]:
        """What is not as it must be once nothing moves. `rows`: the ledger's reservations; `groups`:
        PodGroups; `has_storage`: whether a pod can have its volumes and devices on a node."""
        living = [pod for pod in pods if not is_over(pod)]
        on_nodes = {pod["metadata"]["uid"]: pod for pod in living if node_of(pod)}
        reserved = {row["uid"]: row["node"] for row in rows if "target_of" not in row}
        found = []
        for uid, pod in on_nodes.items():
            if reserved.get(uid) != node_of(pod):
                where = reserved.get(uid, "nowhere")
                found.append(f"pod {_name(pod)} ({uid}) is on {node_of(pod)} and reserved {where}")
        found += [
            f"room is reserved on {reserved[uid]} for {uid}, which is on no node"
            for uid in reserved.keys() - on_nodes.keys()
        ]
        rooms = [_Room(node, on_nodes.values(), has_storage) for node in nodes]
        minimums = {group["metadata"]["name"]: group["spec"]["minMember"] for group in groups}
        ours = [pod for pod in living if pod["spec"]["schedulerName"] == "hoss"]
        for pod in ours:
            if not node_of(pod):
                # Pods of other schedulers do not count (docs/operations/gangs.md).
                gang = [other for other in ours if gang_of(other) == gang_of(pod)] if gang_of(pod) else []
                found += _why_not(pod, rooms, gang, minimums)
        return sorted(found)


class _Room:
    """What a node has left."""

    def __init__(
        self, node: Object, pods: Iterable[Object], has_storage: Callable[[Object, str], bool]
    ) -> None:
        self.name = node["metadata"]["name"]
        self._has_storage = has_storage
        here = [pod for pod in pods if node_of(pod) == self.name]
        cpu, most = _room_of(node)
        self._is_open = not node["spec"].get("unschedulable")
        self._cpu = cpu - sum(map(cpu_of, here))
        self._pods = most - len(here)
        self._ports = {port for pod in here for port in ports_of(pod)}

    def takes(self, pod: Object) -> int:
        """How many pods like this one."""
        if not self._is_open or not self._ports.isdisjoint(ports_of(pod)):
            return 0
        if not self._has_storage(pod, self.name):
            return 0
        fit = max(0, min(self._cpu // cpu_of(pod), self._pods))
        return min(fit, 1) if ports_of(pod) else fit


def _why_not(
    pod: Object, rooms: Iterable[_Room], gang: Sequence[Object], minimums: Mapping[str, int]
) -> list[str]:
    """Why a pod that waits must not wait, or does not say why it does. `gang`: the pods of its gang, which
    ask for the same; `minimums` of PodGroups."""
    if pod["spec"].get("schedulingGates"):
        return []
    conditions = pod["status"].get("conditions", ())
    message = next((c.get("message", "") for c in conditions if c["type"] == "PodScheduled"), "")
    room = {room.name: room.takes(pod) for room in rooms}
    lacking = _lacking(pod, gang, minimums) if gang else 1
    found = []
    if lacking is not None and sum(room.values()) >= max(1, lacking):
        found = [
            f"pod {_name(pod)} waits while {name} has room for it" for name, pods in room.items() if pods
        ]
    says_why = message if gang else _REASON.match(message)
    if not says_why:
        found.append(f"pod {_name(pod)} waits and says no reason, but {message!r}")
    return found


def _lacking(pod: Object, gang: Sequence[Object], minimums: Mapping[str, int]) -> int | None:
    """How many pods of the gang have to be placed at once; None: too few are ready, or its PodGroup is not
    there."""
    annotated = max((minimum_of(other) or 0 for other in gang), default=0)
    minimum = annotated or minimums.get(gang_of(pod))
    ready = [other for other in gang if not node_of(other) and not other["spec"].get("schedulingGates")]
    if minimum is None:
        return None
    lacking = minimum - sum(bool(node_of(other)) for other in gang)
    return lacking if lacking <= len(ready) else None


def gang_of(pod: Object) -> str:
    """The job whose pods are a gang; "": the pod is of none."""
    metadata = pod["metadata"]
    if group := (metadata.get("labels") or {}).get(GROUP_LABEL):
        return str(group)
    return str(metadata["ownerReferences"][0]["name"]) if minimum_of(pod) is not None else ""


def minimum_of(pod: Object) -> int | None:
    """That of its gang by the pod's own annotation."""
    minimum = (pod["metadata"].get("annotations") or {}).get(MINIMUM_ANNOTATION)
    return None if minimum is None else int(minimum)


def cpu_of(pod: Object) -> int:
    """What a pod asks for, in millicores."""
    return _milli(pod["spec"]["containers"][0]["resources"]["requests"]["cpu"])


def ports_of(pod: Object) -> list[int]:
    """Its host ports."""
    return [port["hostPort"] for port in pod["spec"]["containers"][0].get("ports", ())]


def node_of(pod: Object) -> str:
    """Where it is; "": nowhere."""
    return str(pod["spec"].get("nodeName", ""))


def is_over(pod: Object) -> bool:
    """Whether it takes no room any more."""
    return pod["status"].get("phase") in ("Succeeded", "Failed")


def _room_of(node: Object) -> tuple[int, int]:
    """Millicores and pods."""
    allocatable = node["status"]["allocatable"]
    return _milli(allocatable["cpu"]), int(allocatable["pods"])


def _milli(quantity: str) -> int:
    return int(quantity.removesuffix("m")) if quantity.endswith("m") else 1000 * int(quantity)


def _name(pod: Object) -> str:
    return str(pod["metadata"]["name"])
