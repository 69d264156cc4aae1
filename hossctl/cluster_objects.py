"""Namespaces, services, disruption budgets and priority classes as documents and tables."""

from collections.abc import Mapping, Sequence

from hoss.model.cluster import Service
from hoss.model.cluster_objects import (
    ClusterObject,
    Namespace,
    PodDisruptionBudget,
    PriorityClass,
    Threshold,
    key_of,
)
from hoss.model.selectors import LabelSelector, Requirement
from hoss.v1.dispatcher_pb2 import BudgetStatus
from hossctl.console import Column, Document


def object_document(item: ClusterObject) -> Document:
    """One object; limits of budgets are a number of pods or a percentage, as in manifests."""
    key = key_of(item)
    document: Document = {"kind": key.kind, **({"namespace": key.namespace} if key.namespace else {}), "name": key.name}
    match item:
        case Namespace():
            document["labels"] = dict(item.all_labels)
        case Service():
            document["selector"] = dict(item.selector or ())
        case PodDisruptionBudget():
            document["selector"] = None if item.selector is None else _selector_document(item.selector)
            document["minAvailable"] = _limit(item.min_available)
            document["maxUnavailable"] = _limit(item.max_unavailable)
        case PriorityClass():
            document["value"] = item.value
            document["globalDefault"] = item.global_default
            document["preemptionPolicy"] = "Never" if item.never_preempts else "PreemptLowerPriority"
    return document


def budget_document(budget: PodDisruptionBudget, status: BudgetStatus) -> Document:
    """A disruption budget and how it stands, in the words of Kubernetes' status."""
    return {
        **object_document(budget),
        "expectedPods": status.expected_pods,
        "currentHealthy": status.current_healthy,
        "desiredHealthy": status.desired_healthy,
        "disruptionsAllowed": status.disruptions_allowed,
    }


def written_labels(labels: Mapping[str, str]) -> str:
    """As kubectl writes them."""
    return ",".join(f"{key}={value}" if value else key for key, value in labels.items())


def _selector_document(selector: LabelSelector) -> list[Document]:
    return [{"key": r.key, "operator": r.operator, "values": list(r.values)} for r in selector.requirements]


def _limit(threshold: Threshold | None) -> int | str | None:
    if threshold is None:
        return None
    return str(threshold) if threshold.percent else threshold.value


def _written_selector(document: Document) -> str:
    requirements = document["selector"]
    if requirements is None:
        return ""
    return ",".join(_written(Requirement(r["key"], r["operator"], tuple(r["values"]))) for r in requirements) or "<all>"


def _written(requirement: Requirement) -> str:
    values = ",".join(requirement.values)
    match requirement.operator:
        case "In":
            return f"{requirement.key}={values}" if len(requirement.values) == 1 else f"{requirement.key} in ({values})"
        case "NotIn":
            return f"{requirement.key} notin ({values})"
        case "Exists":
            return requirement.key
        case _:
            return f"!{requirement.key}"


OBJECT_COLUMNS: dict[str, Sequence[Column]] = {
    "namespaces": (
        Column("NAME", lambda document: document["name"]),
        Column("LABELS", lambda document: written_labels(document["labels"]), wide=True),
    ),
    "services": (
        Column("NAME", lambda document: document["name"]),
        Column("SELECTOR", lambda document: written_labels(document["selector"])),
    ),
    "poddisruptionbudgets": (
        Column("NAME", lambda document: document["name"]),
        Column("MIN AVAILABLE", lambda document: _or_none(document["minAvailable"])),
        Column("MAX UNAVAILABLE", lambda document: _or_none(document["maxUnavailable"])),
        Column("ALLOWED DISRUPTIONS", lambda document: document["disruptionsAllowed"]),
        Column("HEALTHY", lambda document: f"{document['currentHealthy']}/{document['expectedPods']}", wide=True),
        Column("DESIRED", lambda document: document["desiredHealthy"], wide=True),
        Column("SELECTOR", _written_selector, wide=True),
    ),
    "priorityclasses": (
        Column("NAME", lambda document: document["name"]),
        Column("VALUE", lambda document: document["value"]),
        Column("GLOBAL DEFAULT", lambda document: document["globalDefault"]),
        Column("PREEMPTION", lambda document: document["preemptionPolicy"], wide=True),
    ),
}


def _or_none(limit: int | str | None) -> object:
    return "N/A" if limit is None else limit
