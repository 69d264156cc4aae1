"""Namespaces, services, disruption budgets and priority classes as documents, and the references of workloads
to such objects that do not exist. Their columns stand with those of other kinds, in objects.py.

The dispatcher accepts a workload with such a reference; the rule that refers to it matches nothing."""

from collections.abc import Iterable, Iterator, Sequence

from hoss.manifests.pod import WELL_KNOWN_PRIORITIES
from hoss.model.cluster import (
    ClusterObject,
    Namespace,
    PodDisruptionBudget,
    PriorityClass,
    Service,
    Threshold,
    key_of,
)
from hoss.model.pod import PodAffinityTerm, PodSpec, PodTemplate, Workload
from hoss.model.selectors import LabelSelector
from hoss.v1.dispatcher_pb2 import BudgetStatus
from hossctl.console import Document


def object_document(item: ClusterObject) -> Document:
    """One object. Limits of budgets are a number of pods or a percentage, as in manifests."""
    key = key_of(item)
    document: Document = {
        "kind": key.kind,
        **({"namespace": key.namespace} if key.namespace else {}),
        "name": key.name,
    }
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
    """A disruption budget with its status, in the fields of Kubernetes."""
    return {
        **object_document(budget),
        "expectedPods": status.expected_pods,
        "currentHealthy": status.current_healthy,
        "desiredHealthy": status.desired_healthy,
        "disruptionsAllowed": status.disruptions_allowed,
    }


def _selector_document(selector: LabelSelector) -> list[Document]:
    return [{"key": r.key, "operator": r.operator, "values": list(r.values)} for r in selector.requirements]


def _limit(threshold: Threshold | None) -> int | str | None:
    if threshold is None:
        return None
    return str(threshold) if threshold.percent else threshold.value


def refers_to_objects(workloads: Iterable[Workload]) -> bool:
    """Whether any workload has a priority class or a rule about other pods."""
    return any(
        workload.template.priority_class_name or workload.template.spec.pod_affinity is not None
        for workload in workloads
    )


def missing_objects(workloads: Sequence[Workload], objects: Iterable[ClusterObject]) -> list[str]:
    """A sentence for each reference to a namespace or priority class that does not exist, and for each
    namespace selector that selects none."""
    known = list(objects)
    namespaces = {item.name: item for item in known if isinstance(item, Namespace)}
    for workload in workloads:  # submitting a pod creates its namespace
        name = workload.template.spec.namespace
        namespaces.setdefault(name, Namespace(name))
    classes = {item.name for item in known if isinstance(item, PriorityClass)} | WELL_KNOWN_PRIORITIES.keys()
    found: dict[str, None] = {}
    for workload in workloads:
        title = f"{workload.template.owner_kind or 'Pod'} {workload.template.spec.namespace}/{workload.name}"
        for problem in (
            *_of_class(workload.template, classes),
            *_of_affinity(workload.template.spec, namespaces),
        ):
            found[f"{title}: {problem}"] = None
    return list(found)


def _of_class(template: PodTemplate, classes: Iterable[str]) -> Iterator[str]:
    name = template.priority_class_name
    if name and name not in classes:
        yield (
            f"there is no PriorityClass {name!r}, so the priority is {template.spec.priority}; submit the "
            "class before its pods (`hoss get priorityclasses` lists those there are)"
        )


def _of_affinity(spec: PodSpec, namespaces: dict[str, Namespace]) -> Iterator[str]:
    for kind, term in _terms(spec):
        for name in term.namespaces:
            if name not in namespaces:
                yield (
                    f"{kind} looks at namespace {name!r}, which does not exist: nothing matches there until "
                    "it does"
                )
        selector = term.namespace_selector
        if selector is not None and not any(selector.matches(n.all_labels) for n in namespaces.values()):
            yield (
                f"the namespaceSelector of {kind} selects none of the namespaces there are: it matches "
                "nothing until one has the labels (`hoss get namespaces -o wide` shows them)"
            )


def _terms(spec: PodSpec) -> Iterator[tuple[str, PodAffinityTerm]]:
    rules = spec.pod_affinity
    if rules is not None:
        yield from (("podAffinity", term) for term in (*rules.required, *(p.term for p in rules.preferred)))
        yield from (
            ("podAntiAffinity", term)
            for term in (*rules.anti_required, *(p.term for p in rules.anti_preferred))
        )
