"""Explains where a pod would be placed, why, and with which scores, by the worker's own code and for a
cluster that files describe.

The documents have the form of tests/conformance/README.md, so that they can be compared with kube-scheduler's
answers."""

import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from importlib.metadata import entry_points
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hoss.config import load_document, with_flags
from hoss.errors import ConfigError, InvalidInput, quoted
from hoss.manifests.cluster import DEVICE_LISTS, STORAGE_LISTS, read_cluster, read_pending_pod
from hoss.manifests.fields import Object, mapping, text
from hoss.manifests.gangs import VOLCANO_JOB, read_volcano_job
from hoss.manifests.pod_resources import (
    amounts,
    as_bound,
    nonzero_requests,
    qos_class,
    read_pod_resources,
    total_limits,
    total_requests,
)
from hoss.manifests.workloads import kind_and_group, read_workload
from hoss.model.cluster import Cluster, merged_selector
from hoss.model.devices import CLAIM_UNREACHABLE, Allocation, DeviceResult
from hoss.model.pod import PodSpec, Workload
from hoss.model.quantity import parse_quantity
from hossctl.console import Document
from scheduler_worker.config import KIND, PLUGIN_GROUP, WorkerConfig, chosen_profile, factories
from scheduler_worker.core.framework.profile import Profile
from scheduler_worker.core.offline.cluster_snapshot import ClusterSnapshot
from scheduler_worker.core.offline.preemption import PreemptionResult, preempt
from scheduler_worker.core.offline.scheduler import (
    DeviceBinding,
    PlacementExplanation,
    examine,
    explain_placement,
)
from scheduler_worker.core.placement.diagnosis import ExaminedPod
from scheduler_worker.core.plugins import REGISTRY, default_profile
from scheduler_worker.core.plugins.devices.dynamic_resources import ClaimedDevices, DynamicResources
from scheduler_worker.core.plugins.pods.scheduling_gates import SchedulingGates
from scheduler_worker.core.plugins.profiles import PRESETS

# The messages of kube-scheduler's first PostFilter plugin, DynamicResources, where the second, preemption,
# finds nothing.
_WITHOUT_CLAIMS = "no new claims to deallocate"
_WITH_CLAIMS = "still not schedulable"
_DEALLOCATED = "deallocation of ResourceClaim completed"
_LEFT_OVER_DELETED = "deletion of ResourceClaim completed"
# The same where a plugin has rejected the pod before DynamicResources had looked at it: it has no state of
# the pod then, and ends in this error.
_NO_STATE = "not found"


def explain(
    spec: PodSpec,
    cluster: Cluster,
    *,
    preemption: bool,
    profile: Profile | None = None,
    nominated_node: str = "",
) -> Document:
    """The scheduler's evaluation of the pod on every node; with `preemption` also its choice of victims where
    no node is feasible. `nominated_node`: where room was made for the pod before."""
    profile = profile or default_profile()
    snapshot = ClusterSnapshot(cluster)
    subject = examine(spec, snapshot, profile)
    explanation = explain_placement(subject, snapshot, profile)
    document = explanation_document(explanation)
    if preemption and not explanation.feasible and explanation.failure is None:
        found = preempt(spec, subject, snapshot, profile, nominated_node)
        message = ""
        if not found.node:
            message = _why_no_node(found, _devices_message(spec, subject, snapshot, explanation))
        document["preemption"] = _preemption_document(found, explanation.message, message)
    return document


def _why_no_node(found: PreemptionResult, of_devices: str) -> str:
    """The message of kube-scheduler's two PostFilter plugins. One that ends in an error speaks alone."""
    if of_devices == _NO_STATE:
        return _NO_STATE
    if found.failure:
        return f"preemption: {found.failure}"
    return f"{of_devices}, preemption: {found.message}"


def _devices_message(
    spec: PodSpec, subject: ExaminedPod, snapshot: ClusterSnapshot, explanation: PlacementExplanation
) -> str:
    """What DynamicResources says after no node was feasible."""
    if explanation.rejection is not None:
        looked = explanation.rejection.plugin in (DynamicResources.name, SchedulingGates.name)
        return _WITHOUT_CLAIMS if looked else _NO_STATE
    if not _claims_devices(spec, snapshot):
        return _WITHOUT_CLAIMS
    states = [state for _, state in subject.plugin_state.filters if isinstance(state, ClaimedDevices)]
    if any(state.left_over for state in states):
        return _LEFT_OVER_DELETED
    refused = np.zeros(snapshot.cache.size, np.bool_)
    for node in np.flatnonzero(snapshot.cache.present).tolist():
        refusal = explanation.refusals.get(snapshot.cache.catalogue.name(node))
        refused[node] = refusal is not None and CLAIM_UNREACHABLE in refusal.reasons
    return _DEALLOCATED if any(state.may_be_deallocated(refused) for state in states) else _WITH_CLAIMS


def _claims_devices(spec: PodSpec, snapshot: ClusterSnapshot) -> bool:
    """Whether the pod has a claim, its own or one for extended resources."""
    if spec.claims is None:
        return False
    asked = (name for container in spec.claims.containers for _, name, _ in container.requests)
    by_class = snapshot.cache.devices.extended_resources
    return any(use.needed for use in spec.claims.uses) or any(name in by_class for name in asked)


def answer_case(case: Object) -> Document:
    """The answer to one conformance case of any kind: its id, and `want` as computed here. Raises
    InvalidInput."""
    for key, answer in _KINDS.items():
        if key in case:
            return {"id": case.get("id"), "want": answer(case)}
    raise InvalidInput(f"has none of {', '.join(_KINDS)}; a case is about one of these", where="case")


def _answer_scheduling(case: Object) -> Document:
    if "pod" not in case:
        raise InvalidInput(
            "is missing; a case about nodes has the pod that they are judged for", where="case.pod"
        )
    cluster = read_cluster(case, read_at=time.time(), stored=True)
    names = Counter(node.name for node in cluster.nodes)
    if twice := sorted(name for name, count in names.items() if count > 1):
        raise InvalidInput(f"has the node {quoted(twice[0])} twice; give each node once", where="case.nodes")
    preemption = "preemption" in mapping(case, "want", "case") or case.get("category") == "preemption"
    pod = mapping(case, "pod", "case")
    spec = read_pending_pod(pod, cluster)
    return explain(spec, cluster, preemption=preemption, nominated_node=_nominated_node(pod))


def _nominated_node(pod: Object) -> str:
    return text(mapping(pod, "status", "pod"), "nominatedNodeName", "status")


def _answer_requests(case: Object) -> Document:
    pod = mapping(case, "pod", "case")
    resources = read_pod_resources(mapping(pod, "spec", "pod"), "spec")
    requests, limits = total_requests(resources), total_limits(resources)
    bound = as_bound(resources, mapping(pod, "status", "pod"))
    cpu_milli, memory_bytes = nonzero_requests(bound)
    return {
        "requests": {name: q.canonical for name, q in requests.items()},
        "requestsInt": amounts(requests, "spec"),
        "limits": {name: q.canonical for name, q in limits.items()},
        "limitsInt": amounts(limits, "spec"),
        "assigned": {"cpu": 0, "memory": 0, "ephemeral-storage": 0, **amounts(total_requests(bound), "spec")},
        "assignedNonZero": {"cpu": cpu_milli, "memory": memory_bytes},
        "qosClass": qos_class(resources).value,
    }


def _answer_quantity(case: Object) -> Document:
    given = text(case, "quantity", "case")
    try:
        quantity = parse_quantity(given)
    except InvalidInput:
        return {"error": True}
    return {
        "error": False,
        "canonical": quantity.canonical,
        "normalized": quantity.normalized,
        "value": quantity.value,
        "milli": quantity.milli,
    }


# By a field that only this kind of case has, or the kinds before it do not have.
_KINDS: dict[str, Callable[[Object], Document]] = {
    "quantity": _answer_quantity,
    "nodes": _answer_scheduling,
    "pod": _answer_requests,
}


def explanation_document(explanation: PlacementExplanation) -> Document:
    """The evaluation of all nodes, in the form of a conformance case's `want`."""
    document: Document = {}
    if explanation.rejection is not None:
        document["prefilter"] = {
            "plugin": explanation.rejection.plugin,
            "code": explanation.rejection.code.value,
            "reasons": [explanation.rejection.reason],
        }
    if explanation.failure is not None:
        document["error"] = {"plugin": explanation.failure.plugin, "text": explanation.failure.text}
    document |= {
        "feasible": list(explanation.feasible),
        "reasons": {
            node: {"plugin": refusal.plugin, "code": refusal.code.value, "reasons": list(refusal.reasons)}
            for node, refusal in sorted(explanation.refusals.items())
        },
        "scores": {node: dict(scores) for node, scores in sorted(explanation.scores.items())},
        "totals": dict(sorted(explanation.totals.items())),
    }
    if explanation.message:
        document["message"] = explanation.message
    if explanation.permits:
        document["permit"] = [answer._asdict() for answer in explanation.permits]
    if explanation.pre_binds:
        document["preBind"] = list(explanation.pre_binds)
    bound: dict[str, Document] = {}
    for node, volumes in explanation.bindings.items():
        bound.setdefault(node, {})["volumes"] = {c: _volume_document(v) for c, v in volumes.items()}
    for node, devices in explanation.devices.items():
        bound.setdefault(node, {}).update(_devices_document(devices))
    if bound:
        document["binding"] = dict(sorted(bound.items()))
    return document


def _volume_document(volume: str | None) -> Document:
    return {"provision": True} if volume is None else {"persistentVolume": volume}


def _devices_document(binding: DeviceBinding) -> Document:
    document: Document = {"claims": {n: _allocation_document(a) for n, a in binding.claims.items()}}
    if binding.mappings:
        document["requestMappings"] = [
            {"containerName": m.container, "resourceName": m.resource, "requestName": m.request}
            for m in sorted(binding.mappings, key=lambda m: (m.container, m.resource))
        ]
    return document


def _allocation_document(allocation: Allocation) -> Document:
    document: Document = {"devices": [_result_document(result) for result in allocation.results]}
    if allocation.nodes is not None:
        terms = [
            {
                field: [
                    {"key": r.key, "operator": r.operator, "values": list(r.values)} for r in requirements
                ]
                for field, requirements in (
                    ("matchExpressions", term.match_expressions),
                    ("matchFields", term.match_fields),
                )
                if requirements
            }
            for term in allocation.nodes.terms
        ]
        document["nodeSelector"] = {"nodeSelectorTerms": terms}
    return document


def _result_document(result: DeviceResult) -> Document:
    document: Document = {
        "request": result.request,
        "driver": result.id.driver,
        "pool": result.id.pool,
        "device": result.id.device,
    }
    if result.shared:
        document["shared"] = True
        document["consumedCapacity"] = {name: amount.canonical for name, amount in result.consumed}
    if result.admin_access:
        document["adminAccess"] = True
    return document


def _preemption_document(found: PreemptionResult, fit_error: str, message: str) -> Document:
    return {
        "node": found.node,
        "victims": sorted(victim.name for victim in found.victims),
        "candidates": {
            node: {
                "victims": sorted(v.name for v in candidate.victims),
                "pdbViolations": candidate.violations,
            }
            for node, candidate in sorted(found.candidates.items())
        },
        "message": message,
        "fullMessage": f"{fit_error} {message}" if message else fit_error,
    }


def cluster_of(objects: Iterable[Object]) -> Cluster:
    """The cluster of the objects of manifests. Kinds that do not matter for placement are ignored."""
    by_kind: dict[str, list[Object]] = {}
    for item in objects:
        key = _LISTS.get(text(item, "kind", "object"))
        if key is not None:
            by_kind.setdefault(key, []).append(item)
    return read_cluster(dict(by_kind), read_at=time.time())


class Pending(NamedTuple):
    """A pod to explain, or the next of several equal pods."""

    title: str  # namespace/name
    spec: PodSpec
    pods: int = 1
    nominated_node: str = ""  # where room was made for it before

    def document(self, profile: str) -> Document:
        """The first fields of its explanation."""
        return {"pod": self.title, "pods": self.pods, "profile": profile}


def pending_pods(objects: Iterable[tuple[str, Object]], cluster: Cluster) -> list[Pending]:
    """The pods of objects, which come with their place in a file. Kinds that create no pods are ignored.
    Raises InvalidInput."""
    return [pending for place, item in objects for pending in _pending(place, item, cluster)]


class NamedProfile(NamedTuple):
    """A profile to explain with."""

    name: str
    profile: Profile


def explain_offline(pending: Pending, cluster: Cluster, chosen: NamedProfile) -> Document:
    """The explanation for a cluster from files, preemption included."""
    explained = explain(
        pending.spec,
        cluster,
        preemption=True,
        profile=chosen.profile,
        nominated_node=pending.nominated_node,
    )
    return {**pending.document(chosen.name), **explained}


def profile_of(name: str, config: Path | None) -> NamedProfile | None:
    """The profile of a worker with this document of kind WorkerConfig, or the preset of this name; None where
    neither is given. Raises InvalidInput."""
    if config is None:
        return NamedProfile(name, preset(name)) if name else None
    document = load_document(config, KIND, WorkerConfig)
    registry = REGISTRY.extended(factories(entry_points(group=PLUGIN_GROUP)))
    try:
        return NamedProfile(*chosen_profile(with_flags(document, {"profile": name or None}), registry))
    except ConfigError as exc:
        raise exc.at(str(config)) from None


def preset(name: str) -> Profile:
    """A built-in profile by name. Raises InvalidInput."""
    if name not in PRESETS:
        raise InvalidInput(f"{name!r} is none of {', '.join(PRESETS)}", where="--profile")
    return PRESETS[name].profile(REGISTRY)


def _pending(place: str, item: Object, cluster: Cluster) -> list[Pending]:
    try:
        kind = kind_and_group(item)
        return [_bare_pod(item, cluster)] if kind == ("Pod", "") else _owned_pods(item, kind, cluster)
    except InvalidInput as exc:
        raise exc.at(place) from None


def _bare_pod(pod: Object, cluster: Cluster) -> Pending:
    metadata = mapping(pod, "metadata", "pod")
    spec = read_pending_pod(pod, cluster)
    name = text(metadata, "name", "metadata") or text(metadata, "generateName", "metadata") or "pod"
    return Pending(f"{spec.namespace}/{name}", spec, nominated_node=_nominated_node(pod))


def _owned_pods(item: Object, kind: tuple[str, str], cluster: Cluster) -> list[Pending]:
    if kind == VOLCANO_JOB:
        workloads = read_volcano_job(item).workloads
    else:
        workload = read_workload(item, lambda: "").workload
        workloads = () if workload is None else (workload,)
    return [
        Pending(
            f"{workload.template.spec.namespace}/{workload.name}",
            _with_services(workload, cluster),
            workload.replicas,
        )
        for workload in workloads
    ]


def _with_services(workload: Workload, cluster: Cluster) -> PodSpec:
    spec = workload.template.spec
    if spec.spread:
        return spec
    of_owner = () if spec.default_spread is None else (spec.default_spread,)
    return replace(spec, default_spread=merged_selector(spec, cluster.services, of_owner))


_LISTS = {
    "Node": "nodes",
    "Pod": "pods",
    "Namespace": "namespaces",
    "Service": "services",
    "ReplicaSet": "replicaSets",
    "StatefulSet": "statefulSets",
    "ReplicationController": "replicationControllers",
    "PodDisruptionBudget": "podDisruptionBudgets",
    **{kind: key for key, kind in (STORAGE_LISTS | DEVICE_LISTS).items()},
}
