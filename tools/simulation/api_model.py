"""A model of the Kubernetes API server, as far as HOSS uses it: objects, their versions, and what is
answered.

It has no time and no faults: a request is carried out at once, by the rules that kube-apiserver 1.36 follows.
tests/e2e/kubernetes/test_api_model.py holds the model and a real API server to one contract. How the model is
reached, with delays and faults, is in `api_connection`.

Invariant: every change of an object has a version of its own, in one order for all kinds, and is told at
once."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson

from hoss.kube.api import STRATEGIC_PATCH, Reply
from hoss.wire.uids import random_uid_text

Object = dict[str, Any]

# Kinds by the path of the collection; where the name of a namespace belongs, the path has none.
POD, NODE, EVENT, LEASE = "Pod", "Node", "Event", "Lease"
BUDGET, POD_GROUP = "PodDisruptionBudget", "PodGroup"
CLAIM, VOLUME, DEVICE_CLAIM, SLICE = (
    "PersistentVolumeClaim",
    "PersistentVolume",
    "ResourceClaim",
    "ResourceSlice",
)
_PATHS = {
    "/api/v1": {
        "pods": POD,
        "events": EVENT,
        "services": "Service",
        "replicationcontrollers": "ReplicationController",
        "persistentvolumeclaims": CLAIM,
    },
    "/apis/apps/v1": {"replicasets": "ReplicaSet", "statefulsets": "StatefulSet"},
    "/apis/policy/v1": {"poddisruptionbudgets": BUDGET},
    "/apis/scheduling.x-k8s.io/v1alpha1": {"podgroups": POD_GROUP},  # as where the CRD is installed
    "/apis/coordination.k8s.io/v1": {"leases": LEASE},
    "/apis/resource.k8s.io/v1": {"resourceclaims": DEVICE_CLAIM},
    "/apis/storage.k8s.io/v1": {"csistoragecapacities": "CSIStorageCapacity"},
}
_CLUSTER_PATHS = {
    "/api/v1": {"nodes": NODE, "namespaces": "Namespace", "persistentvolumes": VOLUME},
    "/apis/scheduling.k8s.io/v1": {"priorityclasses": "PriorityClass"},
    "/apis/storage.k8s.io/v1": {
        "storageclasses": "StorageClass",
        "csinodes": "CSINode",
        "csidrivers": "CSIDriver",
        "volumeattachments": "VolumeAttachment",
    },
    "/apis/resource.k8s.io/v1": {"deviceclasses": "DeviceClass", "resourceslices": SLICE},
}

GRACE_SECONDS = 30
_REASONS = {
    400: "BadRequest",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    409: "Conflict",
    410: "Expired",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
}


class Change(NamedTuple):
    """A change of an object, which is never modified. `before`: None where it was made; `after`: None where
    it is gone. `object`: as it is or, where it is gone, as it was, with the version of its end."""

    version: int
    kind: str
    before: Object | None
    after: Object | None
    object: Object


class Target(NamedTuple):
    """What a path names."""

    kind: str
    namespace: str = ""
    name: str = ""
    subresource: str = ""


class Refusal(Exception):  # noqa: N818 - an answer, not a fault
    """The request is refused with this reply."""

    def __init__(self, status: int, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.reply = refused(status, message, reason)


def refused(status: int, message: str, reason: str = "", retry_after_seconds: float = 0.0) -> Reply:
    """A reply with a Status."""
    body = {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "message": message,
        "reason": reason or _REASONS[status],
        "code": status,
    }
    return Reply(status, orjson.dumps(body), retry_after_seconds)


@dataclass(frozen=True, slots=True)
class Selector:
    """The fields that objects of a list or watch have: (path, value, whether equal)."""

    namespace: str
    fields: tuple[tuple[str, str, bool], ...]

    def matches(self, item: Object | None) -> bool:
        """Whether the object is in the selection."""
        if item is None or (self.namespace and item["metadata"]["namespace"] != self.namespace):
            return False
        return all((_field(item, path) == value) == equal for path, value, equal in self.fields)


def _field(item: Object, path: str) -> str:
    found: Any = item
    for part in path.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return str(found or "")


class ApiModel:
    """The objects of one cluster. `now` gives the time as objects have it."""

    def __init__(
        self,
        rng: random.Random,
        now: Callable[[], str] = lambda: "2026-01-01T00:00:00Z",
        *,
        page: int = 10**6,
    ) -> None:
        """`page`: the most objects in one page of a list, whatever is asked for."""
        self.version = 1
        self.compacted = 0  # version up to which the history is forgotten
        self.on_change: Callable[[Change], None] = lambda _change: None
        self._rng = rng
        self._now = now
        self._page = page
        self._objects: dict[str, dict[tuple[str, str], Object]] = {}
        self._pages: dict[str, tuple[int, list[Object]]] = {}  # the rest of a list, by its token

    # -- reading

    def objects(self, kind: str) -> list[Object]:
        """All objects of a kind, by namespace and name."""
        found = self._objects.get(kind, {})
        return [found[key] for key in sorted(found)]

    def find(self, kind: str, namespace: str, name: str) -> Object | None:
        """One object."""
        return self._objects.get(kind, {}).get((namespace, name))

    def compact(self) -> None:
        """Forget the history: watches and pages of old versions get 410."""
        self.compacted = self.version
        self._pages.clear()

    # -- requests

    def answer(
        self,
        method: str,
        path: str,
        body: Object | None,
        params: Mapping[str, str],
        content_type: str = STRATEGIC_PATCH,
    ) -> Reply:
        """Carry out a request that is no watch."""
        try:
            target = target_of(path)
            if target.subresource:
                return self._subresource(method, target, body or {}, content_type)
            if method == "DELETE":
                return self._delete(target, body or {}, params)
            if method == "GET":
                return self._get(target, params)
            if method == "PATCH":
                return self._patched(target, body or {}, strategic=content_type == STRATEGIC_PATCH)
            return {"POST": self._create, "PUT": self._replace}[method](target, body or {})
        except Refusal as refusal:
            return refusal.reply

    def _get(self, target: Target, params: Mapping[str, str]) -> Reply:
        if target.name:
            return _reply(self._existing(target))
        return self.listed(target, params, self.objects(target.kind), self.version)

    def listed(self, target: Target, params: Mapping[str, str], objects: list[Object], version: int) -> Reply:
        """A list of the selected objects, in pages, as of a version."""
        if token := params.get("continue", ""):
            if token not in self._pages:
                return refused(410, "the provided continue parameter is too old", "Expired")
            version, items = self._pages.pop(token)
        else:
            selector = selector_of(target, params)
            items = [item for item in objects if selector.matches(item)]
        limit = min(int(params.get("limit") or 10**6), self._page)
        if "limit" not in params:
            limit = len(items)
        metadata = {"resourceVersion": str(version)}
        if len(items) > limit:
            metadata["continue"] = token = f"{version}:{len(self._pages)}:{self._rng.getrandbits(32):08x}"
            self._pages[token] = version, items[limit:]
        return _reply({"kind": f"{target.kind}List", "metadata": metadata, "items": items[:limit]})

    def _create(self, target: Target, body: Object) -> Reply:
        name = body["metadata"]["name"]
        if self.find(target.kind, target.namespace, name) is not None:
            raise Refusal(409, f'{target.kind} "{name}" already exists', "AlreadyExists")
        metadata = {
            **body["metadata"],
            "uid": random_uid_text(self._rng),
            "creationTimestamp": self._now(),
            **({"namespace": target.namespace} if target.namespace else {}),
        }
        made = {**body, "metadata": metadata}
        if target.kind == POD:
            made = _defaulted(made)
        return _reply(self._write(target.kind, None, made), 201)

    def _replace(self, target: Target, body: Object) -> Reply:
        before = self._existing(target)
        _check_preconditions(target, before, body.get("metadata", {}))
        kept = ("uid", "creationTimestamp", "namespace", "deletionTimestamp")
        metadata = {
            **body["metadata"],
            **{name: before["metadata"][name] for name in kept if name in before["metadata"]},
        }
        return _reply(self._write(target.kind, before, {**body, "metadata": metadata}))

    def _patched(self, target: Target, body: Object, subresource: str = "", *, strategic: bool) -> Reply:
        before = self._existing(target)
        wanted = body.get("metadata", {})
        # In patches of the status of a custom resource the UID means nothing.
        is_named = target.kind != POD_GROUP or subresource != "status"
        if is_named and wanted.get("uid", before["metadata"]["uid"]) != before["metadata"]["uid"]:
            raise Refusal(422, f'{target.kind} "{target.name}" is invalid: metadata.uid: field is immutable')
        _check_preconditions(target, before, {"resourceVersion": wanted.get("resourceVersion")})
        writable = {"status": ("metadata", "status"), "resize": ("spec",)}.get(
            subresource, ("metadata", "spec")
        )
        changes = {name: value for name, value in body.items() if name in writable}
        changes["metadata"] = {
            name: value
            for name, value in changes.get("metadata", {}).items()
            if name not in ("uid", "resourceVersion")
        }
        merged = _merged(before, changes, lists_too=strategic)
        if "deletionTimestamp" in before["metadata"] and set(_finalizers(merged)) - set(_finalizers(before)):
            raise Refusal(422, f'{target.kind} "{target.name}" is invalid: no new finalizers can be added')
        written = self._write(target.kind, before, merged)
        if "deletionTimestamp" in before["metadata"] and target.kind != POD and not _kept(written):
            self._remove(target.kind, written)
        return _reply(written)

    def _delete(self, target: Target, body: Object, params: Mapping[str, str]) -> Reply:
        before = self._existing(target)
        wanted = body.get("preconditions", {})
        _check_preconditions(target, before, wanted)
        if target.kind != POD and _kept(before):
            times = {"deletionTimestamp": self._now(), "deletionGracePeriodSeconds": 0}
            if "deletionTimestamp" not in before["metadata"]:
                before = self._write(target.kind, before, _merged(before, {"metadata": times}))
            return _reply(before)
        if target.kind != POD:
            self._remove(target.kind, before)
            return _reply({"kind": "Status", "status": "Success", "code": 200})
        grace = body.get("gracePeriodSeconds", params.get("gracePeriodSeconds"))
        seconds = GRACE_SECONDS if grace is None else int(grace)
        if not before["spec"].get("nodeName") or _ended(before):
            seconds = 0  # nobody is there to end it
        leaving = before
        if "deletionTimestamp" not in before["metadata"]:
            times = {"deletionTimestamp": self._now(), "deletionGracePeriodSeconds": seconds}
            leaving = self._write(POD, before, {**before, "metadata": {**before["metadata"], **times}})
        if not seconds:
            self._remove(POD, leaving)
        return _reply(leaving)

    def _subresource(self, method: str, target: Target, body: Object, content_type: str) -> Reply:
        if target.subresource == "binding" and method == "POST":
            return self._bind(target, body)
        if target.subresource == "eviction" and method == "POST":
            return self._evict(target._replace(subresource=""), body.get("deleteOptions") or {})
        if target.subresource in ("status", "resize") and method == "PATCH":
            strategic = content_type == STRATEGIC_PATCH
            return self._patched(target, body, target.subresource, strategic=strategic)
        raise Refusal(405, f"{method} is not for {target.subresource}")

    def _evict(self, target: Target, options: Object) -> Reply:
        """A running pod is evicted only if its budget allows a disruption, which is used up by that."""
        pod = self._existing(target)
        if pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]:
            for budget in self.objects(BUDGET):
                if not selects(budget, pod):
                    continue
                allowed = budget.get("status", {}).get("disruptionsAllowed", 0)
                if allowed <= 0:
                    raise Refusal(
                        429,
                        "Cannot evict pod as it would violate the pod's disruption budget.",
                        "TooManyRequests",
                    )
                used = {"disruptionsAllowed": allowed - 1, "disruptedPods": {target.name: self._now()}}
                self._write(BUDGET, budget, _merged(budget, {"status": used}))
        self._delete(target, options, {})
        return _reply({"kind": "Status", "status": "Success", "code": 201}, 201)

    def _bind(self, target: Target, body: Object) -> Reply:
        if body["metadata"].get("name", target.name) != target.name:
            raise Refusal(400, f"the name of the binding is not {target.name}")
        before = self._existing(target)
        _check_preconditions(target, before, {"uid": body["metadata"].get("uid")})
        node = body["target"]["name"]
        problem = ""
        if "deletionTimestamp" in before["metadata"]:
            problem = f"pod {target.name} is being deleted, cannot be assigned to a host"
        elif there := before["spec"].get("nodeName"):
            problem = f'pod {target.name} is already assigned to node "{there}"'
        elif before["spec"].get("schedulingGates"):
            problem = f"pod {target.name} has non-empty .spec.schedulingGates"
        if problem:
            raise Refusal(409, f'Operation cannot be fulfilled on pods/binding "{target.name}": {problem}')
        scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": self._now()}
        bound = {"spec": {"nodeName": node}, "status": {"conditions": [scheduled]}}
        self._write(POD, before, _merged(before, bound))
        return _reply({"kind": "Status", "apiVersion": "v1", "status": "Success", "code": 201}, 201)

    # -- writing

    def _existing(self, target: Target) -> Object:
        found = self.find(target.kind, target.namespace, target.name)
        if found is None:
            raise Refusal(404, f'{target.kind} "{target.name}" not found')
        return found

    def _write(self, kind: str, before: Object | None, after: Object) -> Object:
        """The object as it is now. A write that changes nothing makes no version."""
        if before is not None and _same(before, after):
            return before
        current = self._versioned(after)
        metadata = current["metadata"]
        self._objects.setdefault(kind, {})[metadata.get("namespace", ""), metadata["name"]] = current
        self._tell(Change(self.version, kind, before, current, current))
        return current

    def _remove(self, kind: str, before: Object) -> None:
        last = self._versioned(before)
        del self._objects[kind][last["metadata"].get("namespace", ""), last["metadata"]["name"]]
        self._tell(Change(self.version, kind, last, None, last))

    def _versioned(self, item: Object) -> Object:
        self.version += 1
        return {**item, "metadata": {**item["metadata"], "resourceVersion": str(self.version)}}

    def _tell(self, change: Change) -> None:
        self.on_change(change)


def target_of(path: str) -> Target:
    """Raises Refusal for a path that means nothing."""
    for prefix, kinds in _PATHS.items():
        if path.startswith(f"{prefix}/"):
            parts = path.removeprefix(f"{prefix}/").split("/")
            if parts[0] == "namespaces" and len(parts) > 2 and parts[2] in kinds:
                rest = [*parts[3:], "", ""]
                return Target(kinds[parts[2]], parts[1], rest[0], rest[1])
            if parts[0] in kinds and len(parts) == 1:
                return Target(kinds[parts[0]])
    for prefix, kinds in _CLUSTER_PATHS.items():
        if path.startswith(f"{prefix}/"):
            parts = path.removeprefix(f"{prefix}/").split("/")
            if parts[0] in kinds and len(parts) <= 3:
                rest = [*parts[1:], "", ""]
                return Target(kinds[parts[0]], "", rest[0], rest[1])
    raise Refusal(404, f"the server could not find the requested resource: {path}")


def selector_of(target: Target, params: Mapping[str, str]) -> Selector:
    """What a list or watch selects. Labels select nothing here: HOSS asks by them for kinds that have no
    objects."""
    fields = []
    for term in filter(None, params.get("fieldSelector", "").split(",")):
        path, _, value = term.partition("=")
        fields.append((path.removesuffix("!"), value.removeprefix("="), not path.endswith("!")))
    return Selector(target.namespace, tuple(fields))


def _check_preconditions(target: Target, found: Object, wanted: Mapping[str, Any]) -> None:
    for name in ("uid", "resourceVersion"):
        given = wanted.get(name)
        if given and given != found["metadata"][name]:
            there = found["metadata"][name]
            message = f"Precondition failed: {name} in precondition: {given}, in object meta: {there}"
            raise Refusal(409, f'Operation cannot be fulfilled on {target.kind} "{target.name}": {message}')


def selects(budget: Object, pod: Object) -> bool:
    """Whether a budget is about the pod. Its selector has matchLabels only."""
    wanted, labels = budget["spec"]["selector"]["matchLabels"], pod["metadata"].get("labels") or {}
    same_namespace = budget["metadata"]["namespace"] == pod["metadata"]["namespace"]
    return same_namespace and all(labels.get(name) == value for name, value in wanted.items())


def _merged(before: Object, changes: Object, *, lists_too: bool = True) -> Object:
    """A strategic merge: lists of objects with a type or a name are merged by it, finalizers are added to,
    others are replaced, and what is None is removed. Without `lists_too` all lists are replaced."""
    result = dict(before)
    for key, value in changes.items():
        there = result.get(key)
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict):
            result[key] = _merged(there if isinstance(there, dict) else {}, value, lists_too=lists_too)
        elif isinstance(value, list) and lists_too and key in _MERGED_BY:
            result[key] = _merged_lists(there or [], value, _MERGED_BY[key])
        elif lists_too and key == "finalizers":
            result[key] = [*dict.fromkeys([*(there or []), *value])]
        else:
            result[key] = value
    return result


_MERGED_BY = {"conditions": "type", "containers": "name"}


def _merged_lists(before: list[Object], changes: list[Object], by: str) -> list[Object]:
    result = {item[by]: item for item in before}
    for item in changes:
        result[item[by]] = _merged(result.get(item[by], {}), item)
    return list(result.values())


def _defaulted(pod: Object) -> Object:
    """As admission leaves a new pod."""
    spec = {
        "schedulerName": "default-scheduler",
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        **pod["spec"],
    }
    status: Object = {"phase": "Pending"}
    if spec.get("schedulingGates"):
        gated = "Scheduling is blocked due to non-empty scheduling gates"
        status["conditions"] = [
            {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "message": gated}
        ]
    return {**pod, "spec": spec, "status": status}


def _kept(item: Object) -> bool:
    """Whether finalizers keep an object that is deleted."""
    return bool(_finalizers(item))


def _finalizers(item: Object) -> list[str]:
    found: list[str] = item["metadata"].get("finalizers") or []
    return found


def _ended(pod: Object) -> bool:
    return pod["status"].get("phase") in ("Succeeded", "Failed")


def _same(one: Object, other: Object) -> bool:
    return all(one.get(name) == other.get(name) for name in {*one, *other} - {"metadata"}) and {
        name: value for name, value in one["metadata"].items() if name != "resourceVersion"
    } == {name: value for name, value in other["metadata"].items() if name != "resourceVersion"}


def _reply(body: Object, status: int = 200) -> Reply:
    return Reply(status, orjson.dumps(body))
