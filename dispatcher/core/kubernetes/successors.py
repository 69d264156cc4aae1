"""Kubernetes mode: which new pod is the successor of a pod that was evicted for a move, and so gets the place
that is reserved for it.

A successor is a new pod of the same controller that HOSS places like the evicted one: its template is the
same. Names tell nothing. Of several pods whose successors are awaited, the one that waits longest gets the
first."""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from dispatcher.core.kubernetes.pod_objects import SeenPod, controller_of
from hoss.kube.paths import object_path
from hoss.model.pod import ENDED_PHASES, Movable, PodSpec
from hoss.model.volume_topology import why_not_reached
from hoss.model.volumes import ClaimMount, VolumeView

_JOB_ENDS = ("Complete", "Failed")
_UNMOVABLE_OWNERS = ("DaemonSet", "Node")  # their pods belong to one node

# What the API server calls the controllers that it has itself, by group and kind. Of others the name in paths
# is not known, and hardly anybody has the right to read them.
_PLURALS = {
    ("", "ReplicationController"): "replicationcontrollers",
    ("apps", "ReplicaSet"): "replicasets",
    ("apps", "StatefulSet"): "statefulsets",
    ("batch", "Job"): "jobs",
}

PlaceT = TypeVar("PlaceT")


class PodController(NamedTuple):
    """What makes a pod's successor: its path at the API server, its kind and name, and its namespace."""

    path: str
    title: str
    namespace: str

    @classmethod
    def of(cls, metadata: dict[str, Any]) -> "PodController | None":
        """The controller of a pod; None where it has none, or one of an unknown kind."""
        owner = controller_of(metadata)
        if owner is None:
            return None
        group, _, version = owner["apiVersion"].rpartition("/")
        plural = _PLURALS.get((group, owner["kind"]))
        if plural is None:
            return None
        api = object_path("/apis", group, version) if group else object_path("/api", version)
        path = object_path(f"{api}/namespaces", metadata["namespace"], plural, owner["name"])
        return cls(path, f"{owner['kind']} {owner['name']}", metadata["namespace"])

    def ended(self, found: dict[str, Any] | None) -> str:
        """Why the controller makes no more pods, whatever it has; empty: it may. `found`: as the API server
        has it, None where it is gone."""
        if found is None or "deletionTimestamp" in found["metadata"]:
            return f"its {self.title} was deleted"
        if found.get("spec", {}).get("suspend"):
            return f"its {self.title} is suspended"
        conditions = found.get("status", {}).get("conditions") or ()
        if any(c["type"] in _JOB_ENDS and c["status"] == "True" for c in conditions):
            return f"its {self.title} has ended"
        return ""

    def pods_of(self, pods: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        """Those of these pods that the controller counts as its own and as there."""
        return [
            pod
            for pod in pods
            if (owner := controller_of(pod["metadata"])) is not None
            and f"{owner['kind']} {owner['name']}" == self.title
            and "deletionTimestamp" not in pod["metadata"]
            and pod.get("status", {}).get("phase") not in ENDED_PHASES
        ]


def wanted_pods(controller: dict[str, Any]) -> int | None:
    """How many pods a controller keeps; None: its kind has no such number."""
    replicas = controller.get("spec", {}).get("replicas")
    return replicas if isinstance(replicas, int) else None


def pods_selected(controller: dict[str, Any]) -> str:
    """A label selector for its pods, and perhaps for others."""
    selector = controller.get("spec", {}).get("selector") or {}
    labels = selector.get("matchLabels", {} if "matchExpressions" in selector else selector)
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items()))


def unmovable(pod: SeenPod) -> str:
    """Why this pod must not be evicted for a move: nobody would get its new place. Empty: it may be."""
    why = unmovable_kind(
        pod.template.spec,
        ours=pod.ours,
        owner="" if pod.owner is None else pod.owner.kind,
        movable=pod.template.movable,
        gang=pod.gang is not None,
    )
    return why or ("it has ended, or is leaving" if pod.ended or pod.leaving else "")


def unmovable_kind(spec: PodSpec, *, ours: bool, owner: str, movable: Movable, gang: bool) -> str:
    """The same by what a pod is. `owner`: the kind of its controller, empty without one; `gang`: whether it
    is one of a gang. Plans of moves are told this (PodInfo.unmovable)."""
    hindrances = {
        "another scheduler places it, and would place its successor": not ours,
        "it has no controller that would make it anew": not owner,
        f"it belongs to its node, as pods of a {owner} do": owner in _UNMOVABLE_OWNERS,
        "its annotation hoss.dev/movable says false": movable is Movable.NO,
        "it is one of a gang, which has to be whole": gang,
        "it claims devices, which its node has": spec.claims is not None,
        "it has volumes of its own, which its successor would not have": any(
            mount.owner for mount in _mounts(spec)
        ),
    }
    return next((why for why, hinders in hindrances.items() if hinders), "")


def _mounts(spec: PodSpec) -> tuple[ClaimMount, ...]:
    return () if spec.volumes is None else spec.volumes.claims


def unsettled_claim(spec: PodSpec, storage: VolumeView) -> str:
    """Which claim of the pod has no volume yet that a successor could go to; empty: each has one."""
    for mount in _mounts(spec):
        claim = storage.claim(spec.namespace, mount.claim)
        if claim is None or not claim.bound:
            return f"its claim {mount.claim} {'does not exist' if claim is None else 'is not bound yet'}"
    return ""


def unmounted_volume(spec: PodSpec, node: str, labels: Mapping[str, str], storage: VolumeView) -> str:
    """Which volume of the pod this node, with these labels, cannot mount; empty: it can mount all."""
    for mount in _mounts(spec):
        claim = storage.claim(spec.namespace, mount.claim)
        volume = None if claim is None else storage.volume(claim.volume_name)
        if volume is not None and (why := why_not_reached(volume, node, labels, storage.csi_node(node))):
            return f"the volume {volume.name} cannot be mounted on {node}: {why}"
    return ""


@dataclass(frozen=True, slots=True, eq=False)
class AwaitedSuccessor(Generic[PlaceT]):
    """Somebody waits for the successor of this pod, to give it the place."""

    pod: SeenPod
    place: PlaceT


class AwaitedSuccessors(Generic[PlaceT]):
    """Those that are awaited, by what they will look like."""

    def __init__(self) -> None:
        self._waiting: dict[object, deque[AwaitedSuccessor[PlaceT]]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def expect(self, pod: SeenPod, place: PlaceT) -> AwaitedSuccessor[PlaceT]:
        """From now on the next successor of the pod gets the place."""
        awaited = AwaitedSuccessor(pod, place)
        self._waiting.setdefault(_likeness(pod), deque()).append(awaited)
        return awaited

    def withdraw(self, awaited: AwaitedSuccessor[PlaceT]) -> bool:
        """Nobody gets the place. False: somebody has."""
        return self._remove(awaited)

    def take(self, new: SeenPod) -> PlaceT | None:
        """The place for a new pod, if it is an awaited successor. It is for this pod alone."""
        if not self._waiting or not new.ours or new.node or new.problem:
            return None
        waiting = self._waiting.get(_likeness(new))
        if not waiting:
            return None
        awaited = waiting[0]
        self._remove(awaited)
        return awaited.place

    def _remove(self, awaited: AwaitedSuccessor[PlaceT]) -> bool:
        likeness = _likeness(awaited.pod)
        waiting = self._waiting.get(likeness, deque())
        if awaited not in waiting:
            return False
        waiting.remove(awaited)
        if not waiting:
            del self._waiting[likeness]
        return True


def _likeness(pod: SeenPod) -> object:
    return pod.namespace, pod.owner, pod.template
