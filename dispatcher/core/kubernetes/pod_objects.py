"""Reads pod objects of the API server: where a pod is, whose it is, and the template by which HOSS places or
counts it. Most pods of a cluster have the same relevant fields, so a template is read once per distinct
value.

Controllers holds the selectors of pods' controllers, which default spreading counts beside Services
(kube-scheduler's DefaultSelector). ReplicaSets of Deployments are left out: there are many, and a label of
their pods gives the same selection."""

from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from typing import Any, NamedTuple

import orjson

from dispatcher.core.kubernetes.pod_groups import GroupRef, group_of
from dispatcher.core.kubernetes.rejections import KubeletRejection, rejection_of
from dispatcher.core.pods.gangs import MAX_GANG_PODS, TOO_MANY_PODS
from dispatcher.core.pods.sets import NewGang
from dispatcher.core.pods.templates import too_many_terms
from hoss.errors import InvalidInput
from hoss.manifests.devices import read_extended_claim_status, read_pod_claims
from hoss.manifests.fields import Object
from hoss.manifests.gangs import MIN_AVAILABLE, MIN_AVAILABLE_ANNOTATION, read_minimum
from hoss.manifests.pod import ANNOTATION, MOVABLE_ANNOTATION, read_pod_template
from hoss.manifests.volumes import read_pod_volumes
from hoss.model.cluster import Controller, OwnerReference
from hoss.model.devices import CLASS_RESOURCE_PREFIX, PodClaims
from hoss.model.pod import ENDED_PHASES, DuringExecution, Movable, PodSpec, PodTemplate
from hoss.model.resources import DEVICE_RESOURCE
from hoss.model.selectors import LabelSelector, Requirement
from hoss.model.volumes import PodVolumes
from hoss.wire.uids import uid_from_text

# The fields of a spec that decide where a pod may be and what it takes. spec.nodeName is read separately.
_PARTS = (
    "schedulerName", "priority", "priorityClassName", "preemptionPolicy", "nodeSelector", "affinity",
    "tolerations", "topologySpreadConstraints", "overhead", "resources", "hostNetwork", "hostUsers",
    "schedulingGates", "terminationGracePeriodSeconds",
)  # fmt: skip
_CONTAINERS = ("containers", "initContainers")
_CONTAINER_PARTS = ("image", "resources", "ports", "restartPolicy", "restartPolicyRules")
_METADATA_PARTS = ("uid", "namespace", "name", "labels", "ownerReferences")
_ANNOTATIONS = (ANNOTATION, MOVABLE_ANNOTATION, MIN_AVAILABLE_ANNOTATION)

# Kinds of volumes that the configuration may have HOSS ignore, and what it calls them.
_IGNORABLE_VOLUMES = {"persistentVolumeClaim": "persistent volume claims", "ephemeral": "ephemeral volumes"}

_RESOURCE_CLAIMS = "resource claims"

_NOT_RESERVED = (
    'running PreBind plugin "DynamicResources": add reservation to claim'  # kube-scheduler's words
)

_REPLICAS_LABEL = "pod-template-hash"

# Values, not members: to list the members of an enumeration takes a tenth of the time of a pod.
_DURING_EXECUTION = tuple(member.value for member in DuringExecution)
_MOVABLE = tuple(member.value for member in Movable)

_MAX_TEMPLATES = 20_000


class SeenPod(NamedTuple):
    """An existing pod. `node` is "" without a node. `ours`: HOSS places it, or placed it."""

    uid: bytes
    namespace: str
    name: str
    node: str
    ours: bool
    leaving: bool  # it is deleted and terminates on its node
    ended: bool  # Succeeded or Failed: it takes nothing any more
    template: PodTemplate
    problem: str = ""  # why HOSS cannot place it, if it is ours
    rejection: KubeletRejection | None = None  # by its kubelet
    gang: NewGang | None = None  # its gang, but for what its group says
    group: GroupRef | None = None  # the PodGroup that it names, if it is ours
    phase: str = "Pending"  # as its kubelet says
    owner: OwnerReference | None = None  # its controller
    nominated_node: str = ""  # where room is made for it (status.nominatedNodeName)

    @property
    def gates(self) -> tuple[str, ...]:
        """Its scheduling gates, sorted."""
        return self.template.spec.scheduling_gates

    @property
    def over(self) -> bool:
        """Whether it takes no room any more, and never will."""
        return self.ended or (self.leaving and not self.node)


_UNREAD = PodTemplate(PodSpec())  # of pods that cannot be accounted for


class GonePod(NamedTuple):
    """A pod that no longer exists."""

    uid: bytes


class PodReader:
    """Reads pods; those of one of `schedulers` are ours."""

    def __init__(
        self,
        schedulers: Collection[str],
        *,
        ignored: Collection[str] = (),
        max_pod_terms: int | None = None,
    ) -> None:
        """`ignored`: what pods request that is ignored when placing. `max_pod_terms`: see
        DispatcherConfig; None: any number."""
        self._max_pod_terms = max_pod_terms
        self._schedulers = frozenset(schedulers)
        self._ignored = frozenset(ignored)
        self._ignored_volumes = {kind for kind, what in _IGNORABLE_VOLUMES.items() if what in self._ignored}
        self._device_resources: frozenset[str] = frozenset()
        # By all that decides where a pod may be but its claims, and by that with the claims.
        self._templates: dict[bytes, PodTemplate] = {}
        self._with_own_claims: dict[
            tuple[bytes, PodVolumes | None, PodClaims | None, frozenset[str]], PodTemplate
        ] = {}

    def set_device_resources(self, names: frozenset[str]) -> bool:
        """Device classes stand for exactly these extended resources from now on, besides those that bear a
        class's own name. Whether that is new: then pods read before may have to be read again."""
        new = names != self._device_resources
        self._device_resources = names
        return new

    def is_ours(self, scheduler: str) -> bool:
        """Whether HOSS places pods that name this scheduler."""
        return scheduler in self._schedulers

    def read(self, pod: Object) -> SeenPod:
        """Raises InvalidInput, naming the field, for a pod that cannot be accounted for, except one of ours
        without a node: that is its problem, and the template says nothing of it."""
        metadata, spec = pod["metadata"], pod["spec"]
        ours = spec.get("schedulerName", "") in self._schedulers
        status = pod.get("status", {})
        problem, gang = "", None
        group = group_of(metadata, spec) if ours else None
        try:
            gang = gang_of(metadata, group) if ours else None
        except InvalidInput as exc:
            problem = str(exc)
        try:
            template = self._template(metadata, spec, status)
        except InvalidInput as exc:
            if not ours or spec.get("nodeName"):
                raise
            problem, template = problem or str(exc), _UNREAD
        terms = template.spec.pod_terms
        if ours and self._max_pod_terms is not None and terms > self._max_pod_terms:
            problem = problem or f"the pod {too_many_terms(terms, self._max_pod_terms)}"
        if ours:
            problem = problem or _claimed_twice(template)
        return SeenPod(
            uid=uid_from_text(metadata["uid"]),
            namespace=metadata["namespace"],
            name=metadata["name"],
            node=spec.get("nodeName", ""),
            ours=ours,
            leaving="deletionTimestamp" in metadata,
            ended=status.get("phase") in ENDED_PHASES,
            template=template,
            problem=problem,
            rejection=rejection_of(status),
            gang=gang,
            group=group,
            phase=status.get("phase", "Pending"),
            owner=_owner(metadata) if ours else None,
            nominated_node=status.get("nominatedNodeName", ""),
        )

    def _template(self, metadata: Object, spec: Object, status: Object) -> PodTemplate:
        controller = controller_of(metadata)
        owner = "" if controller is None else controller["kind"]
        labels = metadata.get("labels") or {}
        parts = _parts(spec)
        volumes, claims = self._volumes(metadata, spec), self._claims(metadata, spec, status)
        annotations = metadata.get("annotations") or {}
        stays, moves = annotations.get(ANNOTATION, ""), annotations.get(MOVABLE_ANNOTATION, "")
        if stays not in _DURING_EXECUTION:  # a pod on a node takes room even if this is invalid
            stays = ""
        if moves not in _MOVABLE:
            moves = Movable.NO.value  # somebody meant something: leave the pod where it is
        by_devices = _given_as_devices(spec, status)
        key = orjson.dumps(
            [metadata["namespace"], owner, labels, stays, moves, parts], option=orjson.OPT_SORT_KEYS
        )
        found = self._templates.get(key)
        if found is None:
            if len(self._templates) >= _MAX_TEMPLATES:
                self._templates.clear()
            read = {"labels": labels, "annotations": {ANNOTATION: stays, MOVABLE_ANNOTATION: moves}}
            found = read_pod_template(read, parts, "", namespace=metadata["namespace"], owner_kind=owner)
            if owner == "ReplicaSet" and spec.get("schedulerName") in self._schedulers:
                found = _spread_among_replicas(found)
            self._templates[key] = found
        if volumes is None and claims is None and not by_devices:
            return found
        return self._with_claims(key, found, volumes, claims, by_devices)

    def _with_claims(
        self,
        key: bytes,
        template: PodTemplate,
        volumes: PodVolumes | None,
        claims: PodClaims | None,
        by_devices: frozenset[str],
    ) -> PodTemplate:
        """The template of a pod that has claims besides what the key says. Most such pods have claims of their
        own, and all else in common."""
        with_claims = key, volumes, claims, by_devices
        found = self._with_own_claims.get(with_claims)
        if found is None:
            if len(self._with_own_claims) >= _MAX_TEMPLATES:
                self._with_own_claims.clear()
            changed: dict[str, Any] = {}
            if volumes is not None:
                changed["volumes"] = volumes
            if claims is not None:
                changed["claims"] = claims
            if by_devices:
                requests = template.spec.requests
                changed["requests"] = tuple(amount for amount in requests if amount[0] not in by_devices)
                if DEVICE_RESOURCE in by_devices:
                    changed["devices"] = None
            found = replace(template, spec=replace(template.spec, **changed))
            self._with_own_claims[with_claims] = found
        return found

    def _volumes(self, metadata: Object, spec: Object) -> PodVolumes | None:
        mounted = spec.get("volumes") or ()
        if self._ignored_volumes and spec.get("schedulerName", "") in self._schedulers:
            mounted = [volume for volume in mounted if self._ignored_volumes.isdisjoint(volume)]
        return read_pod_volumes(metadata, {"volumes": mounted}, "spec") if mounted else None

    def _claims(self, metadata: Object, spec: Object, status: Object) -> PodClaims | None:
        """Of pods of ours. What others use, the status of the claims says. Extended resources that no device
        class stands for are amounts of nodes alone: with claims each pod is a class of its own."""
        if spec.get("schedulerName", "") not in self._schedulers or _RESOURCE_CLAIMS in self._ignored:
            return None
        if not (spec.get("resourceClaims") or self._asks_for_devices(spec)):
            return None
        claims = read_pod_claims(metadata, spec, status, "spec")
        if claims is None:
            return None
        containers = tuple(
            replace(container, requests=requests)
            for container in claims.containers
            if (requests := tuple(r for r in container.requests if self._may_be_devices(r[1])))
        )
        return replace(claims, containers=containers) if claims.uses or containers else None

    def _asks_for_devices(self, spec: Object) -> bool:
        return any(
            self._may_be_devices(resource)
            for kind in _CONTAINERS
            for container in spec.get(kind) or ()
            for resource in (container.get("resources") or {}).get("requests") or ()
        )

    def _may_be_devices(self, resource: str) -> bool:
        return resource in self._device_resources or resource.startswith(CLASS_RESOURCE_PREFIX)


def _given_as_devices(spec: Object, status: Object) -> frozenset[str]:
    """The extended resources that a pod on a node has as devices. They take nothing of what the node
    offers."""
    if not spec.get("nodeName"):
        return frozenset()  # what an earlier attempt to bind it left
    made = read_extended_claim_status(status)
    return frozenset() if made is None else made.resources


def gang_of(metadata: Object, group: GroupRef | None) -> NewGang | None:
    """The gang of a pod: the pods of its group, or those of its controller where our annotation declares a
    minimum. With the annotation a group need not exist. Raises InvalidInput for an impossible declaration."""
    declared = (metadata.get("annotations") or {}).get(MIN_AVAILABLE_ANNOTATION, "")
    minimum = max(1, read_minimum(declared)) if declared else 0
    if minimum > MAX_GANG_PODS:
        raise InvalidInput(f"is {minimum}; {TOO_MANY_PODS}", where=MIN_AVAILABLE)
    namespace = metadata["namespace"]
    if group is not None:
        return NewGang(namespace, group.gang_name, minimum, group.key)
    if minimum <= 1:
        return None
    owner = controller_of(metadata)
    if owner is None:
        raise InvalidInput(
            f"is {minimum}, and the pod has neither a controller nor a PodGroup by which the others of its "
            "gang are known",
            where=MIN_AVAILABLE,
        )
    return NewGang(namespace, owner["name"], minimum, owner["uid"])


def _claimed_twice(template: PodTemplate) -> str:
    """Why a pod that names one resource claim twice is never bound: a claim lists each of its pods once, and
    kube-scheduler adds the pod for each name; "" for other pods."""
    spec = template.spec
    claims = Counter(use.claim for use in (spec.claims.uses if spec.claims else ()) if use.claim)
    twice = next((claim for claim, names in claims.items() if names > 1), None)
    return f"{_NOT_RESERVED} {spec.namespace}/{twice}: the pod names it twice" if twice else ""


def problem_of(pod: Object, error: InvalidInput) -> str:
    """A sentence about a pod that cannot be read."""
    metadata = pod.get("metadata", {})
    return f"pod {metadata.get('namespace')}/{metadata.get('name')} cannot be accounted for: {error}"


def readable_part(pod: Object) -> Object:
    """The part of a pod that decides how PodReader reads it, but for its status: to be read again later."""
    metadata, spec = pod["metadata"], pod["spec"]
    annotations = metadata.get("annotations") or {}
    kept: Object = {name: spec[name] for name in spec if name not in _CONTAINERS}
    for kind in _CONTAINERS:
        if kind in spec:
            kept[kind] = [
                {name: c[name] for name in ("name", *_CONTAINER_PARTS) if name in c} for c in spec[kind]
            ]
    return {
        "metadata": {
            **{name: metadata[name] for name in _METADATA_PARTS if name in metadata},
            "annotations": {name: annotations[name] for name in _ANNOTATIONS if name in annotations},
        },
        "spec": kept,
    }


def controller_of(metadata: Object) -> Object | None:
    """The owner that makes an object's successors, of those that its metadata name."""
    return next((owner for owner in metadata.get("ownerReferences", ()) if owner.get("controller")), None)


def _owner(metadata: Object) -> OwnerReference | None:
    owner = controller_of(metadata)
    if owner is None:
        return None
    return OwnerReference(owner["kind"], owner["apiVersion"].rpartition("/")[0], owner["name"])


def _spread_among_replicas(template: PodTemplate) -> PodTemplate:
    """The template with the selector for default spreading: the pods of its ReplicaSet. A Deployment gives
    each ReplicaSet, and its pods, a value of this label, so ReplicaSets need not be watched (kube-scheduler's
    DefaultSelector reads their selectors). Controllers handles the other kinds."""
    value = dict(template.spec.labels).get(_REPLICAS_LABEL)
    if value is None or template.spec.spread:
        return template
    selector = LabelSelector((Requirement(_REPLICAS_LABEL, "In", (value,)),))
    return replace(template, spec=replace(template.spec, default_spread=selector))


def _parts(spec: Object) -> dict[str, Any]:
    """The spec without fields that differ between equally placed pods, such as names of mounted tokens."""
    parts: dict[str, Any] = {name: spec[name] for name in _PARTS if name in spec}
    for kind in _CONTAINERS:
        if kind in spec:
            parts[kind] = [{name: c[name] for name in _CONTAINER_PARTS if name in c} for c in spec[kind]]
    images = [volume for volume in spec.get("volumes", ()) if "image" in volume]
    if images:
        parts["volumes"] = images
    return parts


_MAX_SPREAD_TEMPLATES = 20_000


class Controllers:
    """Selectors by controller."""

    def __init__(self) -> None:
        self._selectors: dict[tuple[OwnerReference, str], LabelSelector] = {}  # (controller, namespace)
        self._templates: dict[tuple[PodTemplate, LabelSelector], PodTemplate] = {}

    def apply(self, controller: Controller) -> None:
        """The controller exists, with this selector."""
        key = controller.identity, controller.namespace
        if controller.selector is None or controller.selector.everything:
            self._selectors.pop(key, None)
        else:
            self._selectors[key] = controller.selector

    def remove(self, identity: OwnerReference, namespace: str) -> None:
        """The controller no longer exists."""
        self._selectors.pop((identity, namespace), None)

    def template_of(self, pod: SeenPod) -> PodTemplate:
        """The pod's template, with its controller's selector where default spreading counts that. Equal
        results are the same object."""
        selector = None if pod.owner is None else self._selectors.get((pod.owner, pod.namespace))
        spec = pod.template.spec
        if selector is None or spec.spread or spec.default_spread is not None:
            return pod.template
        found = self._templates.get((pod.template, selector))
        if found is None:
            if len(self._templates) >= _MAX_SPREAD_TEMPLATES:
                self._templates.clear()
            found = replace(pod.template, spec=replace(spec, default_spread=selector))
            self._templates[pod.template, selector] = found
        return found
