"""Why, where and with which scores a pod would be placed: the scheduler's own core, asked about a cluster in a file.

The documents are those of tests/conformance/README.md, so that answers can be compared with kube-scheduler's.
"""

from collections.abc import Callable, Iterable
from typing import Any

from hoss.errors import InvalidInput
from hoss.model.cluster import Cluster
from hoss.model.cluster_manifest import read_cluster, read_pending_pod
from hoss.model.fields import Object, mapping, text
from hoss.model.pod import PodSpec
from hoss.model.pod_requests import amounts, nonzero_requests, qos_class, total_limits, total_requests
from hoss.model.pod_resources import as_bound, read_pod_resources
from hoss.model.quantity import parse_quantity
from hossctl.console import Document
from scheduler_worker.core.framework import Profile
from scheduler_worker.core.ground import Ground
from scheduler_worker.core.judge import Judgement, judge, subject_of
from scheduler_worker.core.plugins import default_profile
from scheduler_worker.core.preemption import Preemption, preempt

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


def explain_rows(document: Document) -> list[dict[str, Any]]:
    """One row a node: those that take the pod with their scores, the best first, then the others with their reasons."""
    totals = document["totals"]
    rows = [
        {
            "node": node,
            "total": totals[node],
            "says": ", ".join(f"{p} {v}" for p, v in document["scores"][node].items()),
        }
        for node in sorted(totals, key=lambda name: (-totals[name], name))
    ]
    rows += [
        {"node": node, "total": "", "says": f"{refusal['plugin'] or 'NodeAffinity'}: {', '.join(refusal['reasons'])}"}
        for node, refusal in document["reasons"].items()
    ]
    return rows


def cluster_of(objects: Iterable[Object]) -> Cluster:
    """The cluster that objects of manifests make up. Kinds that say nothing about where pods may go are passed over."""
    by_kind: dict[str, list[Object]] = {}
    for item in objects:
        key = _LISTS.get(text(item, "kind", "object"))
        if key is not None:
            by_kind.setdefault(key, []).append(item)
    return read_cluster(dict(by_kind))


def explain_pod(pod: Object, cluster: Cluster) -> Document:
    """What the scheduler says of a Pod object, preemption included, with the pod's name."""
    metadata = mapping(pod, "metadata", "pod")
    spec = read_pending_pod(pod, cluster)
    name = text(metadata, "name", "metadata") or text(metadata, "generateName", "metadata") or "pod"
    return {"pod": f"{spec.namespace}/{name}", **explain(spec, cluster, preemption=True)}


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
