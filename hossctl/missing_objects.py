"""What workloads refer to and the platform does not have: they are accepted, but their rules find nothing there."""

from collections.abc import Iterable, Iterator, Sequence

from hoss.model.cluster_objects import ClusterObject, Namespace, PriorityClass
from hoss.model.pod import PodSpec, PodTemplate, Workload
from hoss.model.pod_manifest import WELL_KNOWN_PRIORITIES
from hoss.model.pod_rules import PodAffinityTerm


def asks_for_objects(workloads: Iterable[Workload]) -> bool:
    """Whether any of them refers to a priority class, or to pods near it."""
    return any(
        workload.template.priority_class_name or workload.template.spec.pod_affinity is not None
        for workload in workloads
    )


def missing_objects(workloads: Sequence[Workload], objects: Iterable[ClusterObject]) -> list[str]:
    """A sentence for each namespace, namespace selector and priority class that nothing answers to, each once."""
    known = list(objects)
    namespaces = {item.name: item for item in known if isinstance(item, Namespace)}
    for workload in workloads:  # their own come into being with them
        name = workload.template.spec.namespace
        namespaces.setdefault(name, Namespace(name))
    classes = {item.name for item in known if isinstance(item, PriorityClass)} | WELL_KNOWN_PRIORITIES.keys()
    found: dict[str, None] = {}
    for workload in workloads:
        title = f"{workload.template.owner_kind or 'Pod'} {workload.template.spec.namespace}/{workload.name}"
        for problem in (*_of_class(workload.template, classes), *_of_affinity(workload.template.spec, namespaces)):
            found[f"{title}: {problem}"] = None
    return list(found)


def _of_class(template: PodTemplate, classes: Iterable[str]) -> Iterator[str]:
    name = template.priority_class_name
    if name and name not in classes:
        yield (
            f"there is no PriorityClass {name!r}, so the priority is {template.spec.priority}; submit the class before "
            "its pods (`hoss get priorityclasses` lists those there are)"
        )


def _of_affinity(spec: PodSpec, namespaces: dict[str, Namespace]) -> Iterator[str]:
    for kind, term in _terms(spec):
        for name in term.namespaces:
            if name not in namespaces:
                yield f"{kind} looks at namespace {name!r}, which does not exist: nothing matches there until it does"
        selector = term.namespace_selector
        if selector is not None and not any(selector.matches(n.all_labels) for n in namespaces.values()):
            yield (
                f"the namespaceSelector of {kind} selects none of the namespaces there are: it matches nothing until one "
                "has the labels (`hoss get namespaces -o wide` shows them)"
            )


def _terms(spec: PodSpec) -> Iterator[tuple[str, PodAffinityTerm]]:
    rules = spec.pod_affinity
    if rules is not None:
        yield from (("podAffinity", term) for term in (*rules.required, *(p.term for p in rules.preferred)))
        yield from (
            ("podAntiAffinity", term) for term in (*rules.anti_required, *(p.term for p in rules.anti_preferred))
        )
