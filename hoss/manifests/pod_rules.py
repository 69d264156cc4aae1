"""Affinity to pods and topology spreading from manifests, checked and completed as by the API server.

`matchLabelKeys` and `mismatchLabelKeys` become requirements of the selector, by the labels of the pod that
has the rule (KEP-3633, KEP-3243). The merge is idempotent, so stored pods may be read again."""

from collections.abc import Mapping

from hoss.errors import InvalidInput, quoted
from hoss.manifests.fields import (
    Object,
    check_key,
    check_label_value,
    check_namespace,
    choice,
    integer,
    mapping,
    mappings,
    read_labels,
    read_weight,
    text,
    texts,
)
from hoss.model.pod import PodAffinity, PodAffinityTerm, SpreadConstraint, WeightedPodTerm
from hoss.model.selectors import LabelSelector, Requirement

_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist")
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
_MOST = 2**31 - 1


def read_label_selector(selector: Object, path: str) -> LabelSelector:
    """A metav1.LabelSelector: matchLabels and matchExpressions, ANDed."""
    labels = read_labels(selector, "matchLabels", path)
    expressions = mappings(selector, "matchExpressions", path)
    return LabelSelector.of(
        [
            *(Requirement(key, "In", (value,)) for key, value in labels),
            *(_read_requirement(e, f"{path}.matchExpressions[{i}]") for i, e in enumerate(expressions)),
        ]
    )


def read_optional_selector(parent: Object, key: str, path: str) -> LabelSelector | None:
    """A metav1.LabelSelector. None: it is missing and matches nothing."""
    if parent.get(key) is None:
        return None
    return read_label_selector(mapping(parent, key, path), f"{path}.{key}")


def read_pod_affinity(
    spec: Object, path: str, *, namespace: str, labels: Mapping[str, str]
) -> PodAffinity | None:
    """spec.affinity.podAffinity and podAntiAffinity of a pod with these labels. None: no terms."""
    affinity = mapping(spec, "affinity", path)
    if not affinity:
        return None
    found = []
    for kind in ("podAffinity", "podAntiAffinity"):
        rules, place = mapping(affinity, kind, f"{path}.affinity"), f"{path}.affinity.{kind}"
        required = [
            _read_term(entry, f"{place}.{_REQUIRED}[{i}]", namespace, labels)
            for i, entry in enumerate(mappings(rules, _REQUIRED, place))
        ]
        preferred = [
            _read_weighted(entry, f"{place}.{_PREFERRED}[{i}]", namespace, labels)
            for i, entry in enumerate(mappings(rules, _PREFERRED, place))
        ]
        found += [tuple(sorted(required, key=repr)), tuple(sorted(preferred, key=repr))]
    return PodAffinity(*found) if any(found) else None  # type: ignore[arg-type]  # they alternate


def read_spread_constraints(
    spec: Object, path: str, *, labels: Mapping[str, str]
) -> tuple[SpreadConstraint, ...]:
    """spec.topologySpreadConstraints of a pod with these labels, in their order. They are checked in it."""
    constraints = []
    seen: set[tuple[str, bool]] = set()
    for i, entry in enumerate(mappings(spec, "topologySpreadConstraints", path)):
        place = f"{path}.topologySpreadConstraints[{i}]"
        constraint = _read_constraint(entry, place, labels)
        identity = (constraint.topology_key, constraint.required)
        if identity in seen:
            pair = f"topologyKey {quoted(constraint.topology_key)} with the same whenUnsatisfiable"
            raise InvalidInput(f"repeats {pair}; give each pair once", where=place)
        seen.add(identity)
        constraints.append(constraint)
    return tuple(constraints)


def _read_constraint(entry: Object, path: str, labels: Mapping[str, str]) -> SpreadConstraint:
    max_skew = integer(entry, "maxSkew", path, least=1, most=_MOST, default=0)
    if not max_skew:
        problem = "is missing; the largest skew that is allowed is at least 1"
        raise InvalidInput(problem, where=f"{path}.maxSkew")
    key = _read_topology_key(entry, path)
    action = choice(entry, "whenUnsatisfiable", path, ("DoNotSchedule", "ScheduleAnyway"))
    required = action == "DoNotSchedule"
    min_domains = integer(entry, "minDomains", path, least=1, most=_MOST, default=1)
    if entry.get("minDomains") is not None and not required:
        problem = "stands beside ScheduleAnyway; it goes with DoNotSchedule alone"
        raise InvalidInput(problem, where=f"{path}.minDomains")
    selector = read_optional_selector(entry, "labelSelector", path)
    match_keys = _read_keys(entry, "matchLabelKeys", path)
    if match_keys and selector is None:
        raise InvalidInput("stands without a labelSelector to add to", where=f"{path}.matchLabelKeys")
    return SpreadConstraint(
        max_skew=max_skew,
        topology_key=key,
        selector=_merged(selector, match_keys, (), labels),
        required=required,
        min_domains=min_domains,
        honor_node_affinity=_honors(entry, "nodeAffinityPolicy", path, default="Honor"),
        honor_taints=_honors(entry, "nodeTaintsPolicy", path, default="Ignore"),
    )


def _read_weighted(entry: Object, path: str, namespace: str, labels: Mapping[str, str]) -> WeightedPodTerm:
    weight = read_weight(entry, path)
    term = mapping(entry, "podAffinityTerm", path)
    return WeightedPodTerm(weight, _read_term(term, f"{path}.podAffinityTerm", namespace, labels))


def _read_term(term: Object, path: str, namespace: str, labels: Mapping[str, str]) -> PodAffinityTerm:
    named = texts(term, "namespaces", path)
    for i, name in enumerate(named):
        check_namespace(name, f"{path}.namespaces[{i}]")
    namespace_selector = read_optional_selector(term, "namespaceSelector", path)
    if not named and namespace_selector is None:
        named = (namespace,)
    selector = read_optional_selector(term, "labelSelector", path)
    match_keys = _read_keys(term, "matchLabelKeys", path)
    mismatch_keys = _read_keys(term, "mismatchLabelKeys", path)
    if selector is None and (match_keys or mismatch_keys):
        which = "matchLabelKeys" if match_keys else "mismatchLabelKeys"
        raise InvalidInput("stands without a labelSelector to add to", where=f"{path}.{which}")
    if both := sorted({*match_keys} & {*mismatch_keys}):
        problem = f"{quoted(both[0])} stands in matchLabelKeys too; no pod could match"
        raise InvalidInput(problem, where=f"{path}.mismatchLabelKeys")
    return PodAffinityTerm(
        topology_key=_read_topology_key(term, path),
        selector=_merged(selector, match_keys, mismatch_keys, labels),
        namespaces=tuple(sorted(set(named))),
        namespace_selector=namespace_selector,
    )


def _read_topology_key(entry: Object, path: str) -> str:
    key = text(entry, "topologyKey", path)
    if not key:
        remedy = "name the node label whose values are the domains, such as topology.kubernetes.io/zone"
        raise InvalidInput(f"is missing; {remedy}", where=f"{path}.topologyKey")
    return check_key(key, f"{path}.topologyKey")


def _read_requirement(entry: Object, path: str) -> Requirement:
    operator = choice(entry, "operator", path, _OPERATORS)
    values = texts(entry, "values", path)
    if operator in ("In", "NotIn"):
        if not values:
            raise InvalidInput(f"is empty; {operator} takes at least one value", where=f"{path}.values")
        for i, value in enumerate(values):
            check_label_value(value, f"{path}.values[{i}]")
    elif values:
        raise InvalidInput(f"has {len(values)} values; {operator} takes none", where=f"{path}.values")
    key = check_key(text(entry, "key", path), f"{path}.key")
    return Requirement(key, operator, tuple(sorted(set(values))))


def _read_keys(parent: Object, key: str, path: str) -> tuple[str, ...]:
    return tuple(check_key(name, f"{path}.{key}[{i}]") for i, name in enumerate(texts(parent, key, path)))


def _merged(
    selector: LabelSelector | None,
    match_keys: tuple[str, ...],
    mismatch_keys: tuple[str, ...],
    labels: Mapping[str, str],
) -> LabelSelector | None:
    # Keys that the pod has no label for are ignored.
    if selector is None or not (match_keys or mismatch_keys):
        return selector
    more = [Requirement(key, "In", (labels[key],)) for key in match_keys if key in labels]
    more += [Requirement(key, "NotIn", (labels[key],)) for key in mismatch_keys if key in labels]
    return LabelSelector.of([*selector.requirements, *more])


def _honors(entry: Object, key: str, path: str, *, default: str) -> bool:
    return choice(entry, key, path, ("Honor", "Ignore"), default=default) == "Honor"
