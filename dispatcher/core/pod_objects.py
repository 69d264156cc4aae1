"""Pods as an API server tells of them: where they are, whose they are, and the template that HOSS places or counts them by.

Most pods of a cluster are alike in all that matters here, so a template is read once for all whose relevant parts are equal.
"""

from collections.abc import Collection
from dataclasses import replace
from typing import Any, NamedTuple

import orjson

from dispatcher.core.gangs import MAX_GANG_PODS
from dispatcher.core.podsets import NewGang
from dispatcher.core.rejections import Rejection, rejection_of
from hoss.errors import InvalidInput
from hoss.model.cluster import OwnerReference
from hoss.model.during_execution import ANNOTATION, DuringExecution
from hoss.model.fields import Object
from hoss.model.gangs import MIN_AVAILABLE, MIN_AVAILABLE_ANNOTATION, group_in, read_minimum
from hoss.model.pod import PodTemplate
from hoss.model.pod_manifest import read_pod_template
from hoss.model.selectors import LabelSelector, Requirement
from hoss.wire.columns import uid_from_text

# What of a spec decides where a pod may be and what it takes; spec.nodeName says where it is and is read for itself.
_PARTS = (
    "schedulerName", "priority", "priorityClassName", "preemptionPolicy", "nodeSelector", "affinity", "tolerations",
    "topologySpreadConstraints", "overhead", "resources", "hostNetwork", "schedulingGates", "terminationGracePeriodSeconds",
)  # fmt: skip
_CONTAINER_PARTS = ("image", "resources", "ports", "restartPolicy")

# Volumes and claims that bind a pod to nodes by rules which HOSS does not know.
_UNKNOWN_VOLUMES = {"persistentVolumeClaim": "persistent volume claims", "ephemeral": "ephemeral volumes"}

_REPLICAS_LABEL = "pod-template-hash"

_MOST_TEMPLATES = 20_000
_ENDED = ("Succeeded", "Failed")


class SeenPod(NamedTuple):
    """A pod that is there. `node` is "" while it is on none; `ours`: it waits for HOSS to place it, or did."""

    uid: bytes
    namespace: str
    name: str
    node: str
    ours: bool
    leaving: bool  # it has been deleted, and goes when its node is done with it
    ended: bool  # it takes nothing any more: Succeeded or Failed
    template: PodTemplate
    problem: str = ""  # why HOSS cannot place it, though it is ours
    rejection: Rejection | None = None  # by its kubelet
    gang: NewGang | None = None  # of which it is one
    owner: OwnerReference | None = None  # its controller

    @property
    def gates(self) -> tuple[str, ...]:
        """Its scheduling gates, sorted."""
        return self.template.spec.scheduling_gates


class GonePod(NamedTuple):
    """A pod that is there no more."""

    uid: bytes


class PodReader:
    """Reads pods that name one of `schedulers` as ours."""

    def __init__(self, schedulers: Collection[str], *, ignored: Collection[str] = ()) -> None:
        """`ignored`: what of `unplaceable` is to be placed as if it were not asked for."""
        self._schedulers = frozenset(schedulers)
        self._ignored = frozenset(ignored)
        self._templates: dict[bytes, PodTemplate] = {}

    def read(self, pod: Object) -> SeenPod:
        """Raises InvalidInput for what no account can be kept of, naming the field."""
        metadata, spec = pod["metadata"], pod["spec"]
        ours = spec.get("schedulerName", "") in self._schedulers
        status = pod.get("status", {})
        asked = [what for what in unplaceable(spec) if what not in self._ignored] if ours else []
        problem = f"HOSS does not place pods with {', '.join(asked)}" if asked else ""
        gang = None
        try:
            gang = gang_of(metadata) if ours else None
        except InvalidInput as exc:
            problem = problem or str(exc)
        return SeenPod(
            uid=uid_from_text(metadata["uid"]),
            namespace=metadata["namespace"],
            name=metadata["name"],
            node=spec.get("nodeName", ""),
            ours=ours,
            leaving="deletionTimestamp" in metadata,
            ended=status.get("phase") in _ENDED,
            template=self._template(metadata, spec),
            problem=problem,
            rejection=rejection_of(status),
            gang=gang,
            owner=_owner(metadata) if ours else None,
        )

    def _template(self, metadata: Object, spec: Object) -> PodTemplate:
        controller = _controller(metadata)
        owner = "" if controller is None else controller["kind"]
        labels = metadata.get("labels") or {}
        parts = _parts(spec)
        stays = (metadata.get("annotations") or {}).get(ANNOTATION, "")
        stays = stays if stays in tuple(DuringExecution) else ""  # a pod on a node takes room whatever it says here
        key = orjson.dumps([metadata["namespace"], owner, labels, stays, parts], option=orjson.OPT_SORT_KEYS)
        found = self._templates.get(key)
        if found is None:
            if len(self._templates) >= _MOST_TEMPLATES:
                self._templates.clear()
            read = {"labels": labels, "annotations": {ANNOTATION: stays}}
            found = read_pod_template(read, parts, "", namespace=metadata["namespace"], owner_kind=owner)
            if owner == "ReplicaSet" and spec.get("schedulerName") in self._schedulers:
                found = _spread_among_replicas(found)
            self._templates[key] = found
        return found


def unplaceable(spec: Object) -> list[str]:
    """What a pod asks for that restricts its nodes by rules which HOSS does not know."""
    found = {
        _UNKNOWN_VOLUMES[kind] for volume in spec.get("volumes", ()) for kind in _UNKNOWN_VOLUMES if kind in volume
    }
    if spec.get("resourceClaims"):
        found.add("resource claims")
    return sorted(found)


def gang_of(metadata: Object) -> NewGang | None:
    """The gang that a pod says it is one of, by our annotation: its PodGroup's pods, or without one those of its controller. Raises
    InvalidInput where it says nothing that can be."""
    asked = (metadata.get("annotations") or {}).get(MIN_AVAILABLE_ANNOTATION, "")
    minimum = read_minimum(asked) if asked else 0
    if minimum <= 1:
        return None
    if minimum > MAX_GANG_PODS:
        most = f"{MAX_GANG_PODS} at most, which is as many as the ledger decides at once"
        raise InvalidInput(f"is {minimum}; {most}", where=MIN_AVAILABLE)
    namespace = metadata["namespace"]
    if name := group_in(metadata):
        return NewGang(namespace, name, minimum, f"{namespace}/{name}")
    owner = _controller(metadata)
    if owner is None:
        raise InvalidInput(
            f"is {minimum}, and the pod has neither a controller nor a PodGroup by which the others of its gang are known",
            where=MIN_AVAILABLE,
        )
    return NewGang(namespace, owner["name"], minimum, owner["uid"])


def problem_of(pod: Object, error: InvalidInput) -> str:
    """A sentence about a pod that cannot be read."""
    metadata = pod.get("metadata", {})
    return f"pod {metadata.get('namespace')}/{metadata.get('name')} cannot be accounted for: {error}"


def _controller(metadata: Object) -> Object | None:
    return next((owner for owner in metadata.get("ownerReferences", ()) if owner.get("controller")), None)


def _owner(metadata: Object) -> OwnerReference | None:
    owner = _controller(metadata)
    if owner is None:
        return None
    return OwnerReference(owner["kind"], owner["apiVersion"].rpartition("/")[0], owner["name"])


def _spread_among_replicas(template: PodTemplate) -> PodTemplate:
    """With what default spreading counts: the pods of its ReplicaSet. A Deployment gives each of its own, and their pods, a value of
    this label, so these need not be watched (kube-scheduler's DefaultSelector reads their selectors). For others see core.controllers."""
    value = dict(template.spec.labels).get(_REPLICAS_LABEL)
    if value is None or template.spec.spread:
        return template
    selector = LabelSelector((Requirement(_REPLICAS_LABEL, "In", (value,)),))
    return replace(template, spec=replace(template.spec, default_spread=selector))


def _parts(spec: Object) -> dict[str, Any]:
    """The spec without what differs between pods that are placed alike, such as the names of mounted tokens."""
    parts: dict[str, Any] = {name: spec[name] for name in _PARTS if name in spec}
    for kind in ("containers", "initContainers"):
        if kind in spec:
            parts[kind] = [{name: c[name] for name in _CONTAINER_PARTS if name in c} for c in spec[kind]]
    images = [volume for volume in spec.get("volumes", ()) if "image" in volume]
    if images:
        parts["volumes"] = images
    return parts
