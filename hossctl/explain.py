"""Why, where and with which scores a pod would be placed: the scheduler's own core, asked about a cluster in a file.

The documents are those of tests/conformance/README.md, so that answers can be compared with kube-scheduler's.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import NamedTuple

from hoss.errors import InvalidInput
from hoss.model.cluster import Cluster, merged_selector
from hoss.model.cluster_manifest import read_cluster, read_pending_pod
from hoss.model.fields import Object, mapping, text
from hoss.model.gangs import VOLCANO_JOB, read_volcano_job
from hoss.model.pod import PodSpec, Workload
from hoss.model.pod_requests import amounts, nonzero_requests, qos_class, total_limits, total_requests
from hoss.model.pod_resources import as_bound, read_pod_resources
from hoss.model.quantity import parse_quantity
from hoss.model.workloads import kind_and_group, read_workload
from hossctl.console import Document
from scheduler_worker.core.ground import Ground
from scheduler_worker.core.judge import Judgement, judge, subject_of
from scheduler_worker.core.plugins import REGISTRY, default_profile
from scheduler_worker.core.preemption import Preemption, preempt
from scheduler_worker.core.profile import Profile
from scheduler_worker.core.profiles import PRESETS

# kube-scheduler's first PostFilter plugin says this whenever the second, preemption, finds nothing.
_BEFORE_PREEMPTION = "no new claims to deallocate, preemption: "


def explain(spec: PodSpec, cluster: Cluster, *, preemption: bool, profile: Profile | None = None) -> Document:
    """What the scheduler says of the pod; with `preemption` also what it would do where no node takes it."""
    profile = profile or default_profile()
    ground = Ground(cluster)
    subject = subject_of(spec, ground, profile)
    judgement = judge(subject, ground, profile)
    document = judgement_document(judgement)
    if preemption and not judgement.feasible:
        found = preempt(spec, subject, ground, profile)
        document["preemption"] = _preemption_document(found, judgement.message)
    return document


def answer_case(case: Object) -> Document:
    """The answer to one conformance case of any kind: its id and what it wants, computed. Raises InvalidInput."""
    for key, answer in _KINDS.items():
        if key in case:
            return {"id": case.get("id"), "want": answer(case)}
    raise InvalidInput(f"has none of {', '.join(_KINDS)}; a case is about one of these", where="case")


def _answer_scheduling(case: Object) -> Document:
    cluster = read_cluster(case)
    wanted = mapping(case, "want", "case")
    asked = "preemption" in wanted or case.get("category") == "preemption"
    return explain(read_pending_pod(mapping(case, "pod", "case"), cluster), cluster, preemption=asked)


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
    try:
        quantity = parse_quantity(text(case, "quantity", "case"))
    except InvalidInput:
        return {"error": True}
    return {
        "error": False,
        "canonical": quantity.canonical,
        "normalized": quantity.normalized,
        "value": quantity.value,
        "milli": quantity.milli,
    }


# By the field that only this kind of case has, of those not asked about before.
_KINDS: dict[str, Callable[[Object], Document]] = {
    "quantity": _answer_quantity,
    "nodes": _answer_scheduling,
    "pod": _answer_requests,
}


def judgement_document(judgement: Judgement) -> Document:
    """The judgement as the answer to a conformance case has it."""
    document: Document = {}
    if judgement.rejection is not None:
        document["prefilter"] = {
            "plugin": judgement.rejection.plugin,
            "code": judgement.rejection.code.value,
            "reasons": [judgement.rejection.reason],
        }
    document |= {
        "feasible": list(judgement.feasible),
        "reasons": {
            node: {"plugin": refusal.plugin, "code": refusal.code.value, "reasons": list(refusal.reasons)}
            for node, refusal in sorted(judgement.refusals.items())
        },
        "scores": {node: dict(scores) for node, scores in sorted(judgement.scores.items())},
        "totals": dict(sorted(judgement.totals.items())),
    }
    if judgement.message:
        document["message"] = judgement.message
    return document


def _preemption_document(found: Preemption, fit_error: str) -> Document:
    message = "" if found.node else _BEFORE_PREEMPTION + found.message
    return {
        "node": found.node,
        "victims": sorted(victim.name for victim in found.victims),
        "candidates": {
            node: {"victims": sorted(v.name for v in candidate.victims), "pdbViolations": candidate.violations}
            for node, candidate in sorted(found.candidates.items())
        },
        "message": message,
        "fullMessage": f"{fit_error} {message}" if message else fit_error,
    }


def cluster_of(objects: Iterable[Object]) -> Cluster:
    """The cluster that objects of manifests make up. Kinds that say nothing about where pods may go are passed over."""
    by_kind: dict[str, list[Object]] = {}
    for item in objects:
        key = _LISTS.get(text(item, "kind", "object"))
        if key is not None:
            by_kind.setdefault(key, []).append(item)
    return read_cluster(dict(by_kind))


class Pending(NamedTuple):
    """A pod that is asked about, or the next of several equal ones."""

    title: str  # namespace/name
    spec: PodSpec
    pods: int = 1

    def document(self, profile: str) -> Document:
        """How an explanation begins."""
        return {"pod": self.title, "pods": self.pods, "profile": profile}


def pending_pods(objects: Iterable[tuple[str, Object]], cluster: Cluster) -> list[Pending]:
    """What the objects (beside their places) would have placed. Kinds that make no pods are passed over. Raises InvalidInput."""
    return [pending for place, item in objects for pending in _pending(place, item, cluster)]


def explain_offline(pending: Pending, cluster: Cluster, profile: str) -> Document:
    """The explanation by a cluster that files describe, preemption included."""
    explained = explain(pending.spec, cluster, preemption=True, profile=preset(profile))
    return {**pending.document(profile), **explained}


def preset(name: str) -> Profile:
    """A profile that needs no configuration. Raises InvalidInput for a name that is none."""
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
    return Pending(f"{spec.namespace}/{name}", spec)


def _owned_pods(item: Object, kind: tuple[str, str], cluster: Cluster) -> list[Pending]:
    if kind == VOLCANO_JOB:
        workloads = read_volcano_job(item).workloads
    else:
        workload = read_workload(item, lambda: "").workload
        workloads = () if workload is None else (workload,)
    return [
        Pending(
            f"{workload.template.spec.namespace}/{workload.name}", _with_services(workload, cluster), workload.replicas
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
}
