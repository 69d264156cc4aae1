"""How the resource claims of a pod get the devices that its worker chose, before the pod is bound
(kube-scheduler's PreBind of DynamicResources): what is written to the API server. Objects are as the API
server stores them.

A claim has an allocation, and lists the pods that may use it (`reservedFor`). The first pod brings the
allocation along; others of a shared claim only join the list. The finalizer keeps a claim with devices from
vanishing. The cluster's resourceclaim controller takes ended pods out of the list. It frees the devices of a
claim without pods, and removes the finalizer."""

import json
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from hoss.manifests.fields import Object, moment
from hoss.model.devices import (
    BINDING_SECONDS,
    EXTENDED_CLAIM_ANNOTATION,
    Allocation,
    DeviceId,
    DeviceResult,
    HeldClaim,
)
from hoss.model.pod import ENDED_PHASES
from hoss.model.selectors import NodeSelector, Requirement

FINALIZER = "resource.kubernetes.io/delete-protection"

_PLUGIN = 'running PreBind plugin "DynamicResources"'


class DevicesRefused(Exception):  # noqa: N818 - says what happened
    """The claims of a pod cannot get the devices that were chosen, in kube-scheduler's words."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"{_PLUGIN}: {reason}")


class ClaimUser(NamedTuple):
    """A pod that is to use a claim."""

    name: str
    uid: str


def extended_claim(held: HeldClaim, user: ClaimUser) -> Object:
    """The claim for the extended resources of a pod, as it is made: a request for each group of devices that
    was chosen. The pod owns it, so that it goes with the pod. It is protected from the start."""
    counts = Counter(result.request for result in held.allocation.results)
    classes = {mapping.request: mapping.device_class for mapping in held.mappings}
    owner = {"apiVersion": "v1", "kind": "Pod", "name": user.name, "uid": user.uid, "controller": True}
    requests = [
        {
            "name": name,
            "exactly": {
                "deviceClassName": classes[name],
                "allocationMode": "ExactCount",
                "count": counts[name],
            },
        }
        for name in sorted(counts)
    ]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {
            "namespace": held.namespace,
            "name": held.name,
            "annotations": {EXTENDED_CLAIM_ANNOTATION: "true"},
            "finalizers": [FINALIZER],
            "ownerReferences": [owner],
        },
        "spec": {"devices": {"requests": requests}},
    }


def extended_status_patch(pod: Object, held: HeldClaim, user: ClaimUser) -> dict[str, Any] | None:
    """The merge patch of the pod's status by which its kubelet finds the devices of its extended resources;
    None: it says so already."""
    mappings = [
        {"containerName": m.container, "resourceName": m.resource, "requestName": m.request}
        for m in held.mappings
    ]
    made = {"resourceClaimName": held.name, "requestMappings": mappings}
    if pod.get("status", {}).get("extendedResourceClaimStatus") == made:
        return None
    return {"metadata": {"uid": user.uid}, "status": {"extendedResourceClaimStatus": made}}


def unprotecting_patch(claim: Object, user: ClaimUser) -> dict[str, Any] | None:
    """The merge patch after which the claim for the pod's extended resources can be deleted; None: nothing
    keeps it. Raises DevicesRefused if it is another pod's."""
    check_extended(claim, user)
    return _without_finalizer(claim)


def check_extended(claim: Object, user: ClaimUser) -> None:
    """Raises DevicesRefused if a claim that has the name of the pod's claim for extended resources is not
    it."""
    metadata = claim["metadata"]
    annotations, owners = metadata.get("annotations") or {}, metadata.get("ownerReferences") or ()
    owned = any(owner.get("controller") and owner.get("uid") == user.uid for owner in owners)
    if annotations.get(EXTENDED_CLAIM_ANNOTATION) != "true" or not owned:
        raise DevicesRefused(f"claim {metadata['namespace']}/{metadata['name']} belongs to another pod")


def finalizer_patch(claim: Object, chosen: Allocation | None) -> dict[str, Any] | None:
    """The merge patch that protects a claim which is to get `chosen`; None: it is protected, or has its
    devices. Raises DevicesRefused if the claim cannot be used."""
    _check(claim, chosen)
    finalizers = claim["metadata"].get("finalizers") or []
    if _allocation(claim) is not None or FINALIZER in finalizers:
        return None
    return _patch(claim, {"finalizers": [*finalizers, FINALIZER]})


def reserving_patch(
    claim: Object,
    chosen: Allocation | None,
    user: ClaimUser,
    classes: Mapping[str, Object],
    now: datetime,
) -> dict[str, Any] | None:
    """The merge patch of the status that gives the claim its devices, as of `now`, and lists the pod; None:
    that is done. `chosen`: the devices; None: another pod brought them. `classes`: those of `classes_of`, by
    name. Raises DevicesRefused."""
    _check(claim, chosen)
    users = _users(claim)
    status: dict[str, Any] = {}
    if not any(known.get("uid") == user.uid for known in users):
        status["reservedFor"] = [*users, {"resource": "pods", "name": user.name, "uid": user.uid}]
    if _allocation(claim) is None and chosen is not None:
        status["allocation"] = _allocation_of(claim, chosen, classes) | {
            "allocationTimestamp": now.strftime("%Y-%m-%dT%H:%M:%SZ")
        }
    return _patch(claim) | {"status": status} if status else None


def releasing_patch(claim: Object, chosen: Allocation | None, user: ClaimUser) -> dict[str, Any] | None:
    """The merge patch of the status that takes back `reserving_patch`; None: there is nothing to take back.
    The last user takes the devices along that it brought (`chosen`), so that it may get others. Devices that
    their driver has said something about stay: that is not ours to delete."""
    users = _users(claim)
    left = [known for known in users if known.get("uid") != user.uid]
    status: dict[str, Any] = {} if len(left) == len(users) else {"reservedFor": left or None}
    if not left and chosen is not None and _has(claim, chosen) and not claim["status"].get("devices"):
        status["allocation"] = None
    return _patch(claim) | {"status": status} if status else None


def idle_patch(claim: Object) -> dict[str, Any] | None:
    """The merge patch that unprotects a claim without devices and pods, so that no write under way that was
    made for its former state can give it devices; None: it has some, or that state is over already."""
    return None if _allocation(claim) is not None or _users(claim) else _without_finalizer(claim)


def user_name(claim: Object, uid: str) -> str:
    """The name of the pod of this UID that uses the claim, or owns it; "": it does neither."""
    known = [*_users(claim), *(claim["metadata"].get("ownerReferences") or ())]
    return next((str(of["name"]) for of in known if of.get("uid") == uid), "")


def is_over(pod: Object) -> bool:
    """Whether the pod needs no devices any more: it has ended, or is deleted before it was bound."""
    if not pod.get("spec", {}).get("nodeName"):
        return bool(pod["metadata"].get("deletionTimestamp"))
    return pod.get("status", {}).get("phase") in ENDED_PHASES


def devices_ready(claim: Object, now: datetime, within: float = BINDING_SECONDS) -> bool:
    """Whether the binding conditions of all devices of an allocated claim are true, so that its pod may be
    bound. Raises DevicesRefused if a device never will be ready, or was not `within` so many seconds. As with
    kube-scheduler the first device that is not ready decides."""
    allocation, status = _allocation(claim) or {}, claim.get("status") or {}
    described: dict[DeviceId, Sequence[Object]] = {}
    for entry in status.get("devices") or ():
        # As with kube-scheduler the first entry counts. Others are of other shares of the device.
        described.setdefault(_device_id(entry), entry.get("conditions") or ())
    name = claim["metadata"]["name"]
    for result in (allocation.get("devices") or {}).get("results") or ():
        needed = set(result.get("bindingConditions") or ())
        if not needed:
            continue
        true = {c["type"]: c for c in described.get(_device_id(result), ()) if c.get("status") == "True"}
        for failure in result.get("bindingFailureConditions") or ():
            if (found := true.get(failure)) is not None:
                message = json.dumps(found.get("message", ""), ensure_ascii=False)
                reason = f"claim={name}, reason={found.get('reason', '')}, message={message}"
                raise DevicesRefused(f"device binding failed: {reason}")
        if not true.keys() >= needed:
            since = moment(allocation, "allocationTimestamp", "status.allocation", default=float("inf"))
            if now.timestamp() - since > within:
                raise DevicesRefused(f"device binding timeout: claim={name}")
            return False
    return True


def _device_id(item: Object) -> DeviceId:
    return DeviceId(item["driver"], item["pool"], item["device"])


def classes_of(claim: Object, chosen: Allocation | None) -> list[str]:
    """Names of the device classes whose configuration goes into the claim's allocation."""
    if chosen is None or _allocation(claim) is not None:
        return []
    return list(dict.fromkeys(name for name, _ in _used_requests(claim, chosen) if name))


def _check(claim: Object, chosen: Allocation | None) -> None:
    metadata = claim["metadata"]
    title = f"claim {metadata['namespace']}/{metadata['name']}"
    if metadata.get("deletionTimestamp"):
        raise DevicesRefused(f"{title} got deleted in the meantime")
    if _allocation(claim) is None:
        if chosen is None:
            # The devices were freed since the pod was placed, or the ledger was rebuilt and knows no choice.
            raise DevicesRefused(f"{title} has no devices any more")
    elif chosen is not None and not _has(claim, chosen):
        raise DevicesRefused(f"{title} got allocated elsewhere in the meantime")


def _allocation(claim: Object) -> Object | None:
    found: Object | None = (claim.get("status") or {}).get("allocation")
    return found


def _users(claim: Object) -> list[Object]:
    found: list[Object] = (claim.get("status") or {}).get("reservedFor") or []
    return found


def _has(claim: Object, chosen: Allocation) -> bool:
    """Whether the claim has these very devices."""
    results = ((_allocation(claim) or {}).get("devices") or {}).get("results") or []
    there = {(r["request"], _device_id(r)) for r in results}
    return there == {(result.request, result.id) for result in chosen.results}


def _requests(claim: Object) -> Sequence[Object]:
    """The API server has null in place of an empty list."""
    found: Sequence[Object] = (claim["spec"].get("devices") or {}).get("requests") or ()
    return found


def _used_requests(claim: Object, chosen: Allocation) -> Iterable[tuple[str, Object]]:
    """By request of the claim, or the alternative of it that was chosen, its class and itself."""
    used = {result.request for result in chosen.results}
    for request in _requests(claim):
        for alternative in request.get("firstAvailable") or ():
            if f"{request['name']}/{alternative['name']}" in used:
                yield alternative.get("deviceClassName", ""), alternative
        if exactly := request.get("exactly"):
            yield exactly.get("deviceClassName", ""), exactly


def _allocation_of(claim: Object, chosen: Allocation, classes: Mapping[str, Object]) -> Object:
    devices: dict[str, Any] = {"results": [_result(claim, result) for result in chosen.results]}
    config = [*_configuration(claim, chosen, classes)]
    if config:
        devices["config"] = config
    allocation: dict[str, Any] = {"devices": devices}
    if chosen.nodes is not None:
        allocation["nodeSelector"] = _selector(chosen.nodes)
    return allocation


def _result(claim: Object, result: DeviceResult) -> Object:
    device = result.id
    found: dict[str, Any] = {
        "request": result.request,
        "driver": device.driver,
        "pool": device.pool,
        "device": device.device,
    }
    if result.admin_access:
        found["adminAccess"] = True
    if result.shared:
        # The same for every attempt: a repeated patch changes nothing.
        found["shareID"] = str(uuid.uuid5(uuid.UUID(claim["metadata"]["uid"]), f"{result.request} {device}"))
    if result.binding_conditions:
        found["bindingConditions"] = list(result.binding_conditions)
    if result.binding_failure_conditions:
        found["bindingFailureConditions"] = list(result.binding_failure_conditions)
    if result.consumed:
        found["consumedCapacity"] = {name: amount.canonical for name, amount in result.consumed}
    tolerations = _request(claim, result.request).get("tolerations")
    if tolerations:
        found["tolerations"] = tolerations
    return found


def _request(claim: Object, name: str) -> Object:
    """The request of the claim, or the alternative, that a result names."""
    outer, _, inner = name.partition("/")
    for request in _requests(claim):
        if request["name"] == outer:
            alternatives = {a["name"]: a for a in request.get("firstAvailable") or ()}
            found: Object = alternatives.get(inner, {}) if inner else request.get("exactly") or {}
            return found
    return {}


def _configuration(claim: Object, chosen: Allocation, classes: Mapping[str, Object]) -> Iterable[Object]:
    """Of the classes first, then of the claim, as far as its requests were used."""
    for name, _ in _used_requests(claim, chosen):
        for config in classes.get(name, {}).get("spec", {}).get("config") or ():
            yield {"source": "FromClass", **config}
    used = {name for result in chosen.results for name in (result.request, result.request.partition("/")[0])}
    for config in (claim["spec"].get("devices") or {}).get("config") or ():
        requests = config.get("requests") or ()
        if not requests or used.intersection(requests):
            yield {"source": "FromClaim", **config}


def _selector(nodes: NodeSelector) -> Object:
    return {
        "nodeSelectorTerms": [
            {
                key: [*map(_requirement, requirements)]
                for key, requirements in (
                    ("matchExpressions", term.match_expressions),
                    ("matchFields", term.match_fields),
                )
                if requirements
            }
            for term in nodes.terms
        ]
    }


def _requirement(requirement: Requirement) -> Object:
    found: dict[str, Any] = {"key": requirement.key, "operator": requirement.operator}
    if requirement.values:
        found["values"] = list(requirement.values)
    return found


def _without_finalizer(claim: Object) -> dict[str, Any] | None:
    finalizers = claim["metadata"].get("finalizers") or []
    if FINALIZER not in finalizers:
        return None
    return _patch(claim, {"finalizers": [name for name in finalizers if name != FINALIZER] or None})


def _patch(claim: Object, metadata: dict[str, Any] | None = None) -> dict[str, Any]:
    """Of this very claim in this very state: the API server answers 409 if it has changed."""
    known = claim["metadata"]
    same = {"uid": known["uid"], "resourceVersion": known["resourceVersion"]}
    return {"metadata": same | (metadata or {})}
