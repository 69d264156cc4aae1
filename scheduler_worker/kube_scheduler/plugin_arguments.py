"""Arguments of kube-scheduler's plugins (`pluginConfig[].args`), and what they are for HOSS's.

Defaults and, where there are some, the words of errors are kube-scheduler 1.36's
(pkg/scheduler/apis/config/validation)."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from hoss.errors import ConfigError, InvalidInput, quoted
from hoss.manifests.fields import Object, mapping, mappings, text
from hoss.manifests.placement import read_node_affinity
from hoss.manifests.pod_rules import read_spread_constraints
from scheduler_worker.core.devices.cel_time import parse_duration
from scheduler_worker.core.devices.cel_values import CelError
from scheduler_worker.core.plugins.resources.scoring_strategies import REQUESTED_TO_CAPACITY_RATIO, STRATEGIES

_MOST_SECONDS = 2**63 - 1  # of bindTimeoutSeconds, by its type


def only_fields(parent: Object, names: tuple[str, ...], place: str) -> None:
    """Raise ConfigError for a field that is not among the names. `place`: the path of `parent`."""
    if unknown := sorted(set(parent) - set(names)):
        path = f"{place}.{unknown[0]}" if place else unknown[0]
        raise ConfigError(f"strict decoding error: unknown field {quoted(path)}")


def unsupported(place: str, why: str) -> ConfigError:
    """The error for a setting of kube-scheduler that HOSS does not honour."""
    return ConfigError(f"is not supported: {why}", where=place)


def _resources_fit(args: Object, place: str) -> dict[str, Any]:
    only_fields(args, ("scoringStrategy", "ignoredResources", "ignoredResourceGroups"), place)
    for name in ("ignoredResources", "ignoredResourceGroups"):
        if args.get(name):
            raise unsupported(f"{place}.{name}", "the ledger counts every resource")
    where = f"{place}.scoringStrategy"
    if "scoringStrategy" in args:
        _check_strategy(args, place)
    strategy = mapping(args, "scoringStrategy", place)
    only_fields(strategy, ("type", "resources", "requestedToCapacityRatio"), where)
    read: dict[str, Any] = {}
    if strategy.get("type"):
        read["strategy"] = text(strategy, "type", where)
    if resources := mappings(strategy, "resources", where):
        read["resources"] = _weighted(resources)
    ratio = mapping(strategy, "requestedToCapacityRatio", where)
    if ratio:
        only_fields(ratio, ("shape",), f"{where}.requestedToCapacityRatio")
        read["shape"] = [
            {"utilization": point.get("utilization", 0), "score": point.get("score", 0)}
            for point in mappings(ratio, "shape", f"{where}.requestedToCapacityRatio")
        ]
    return read


def _check_strategy(args: Object, place: str) -> None:
    """Refuse what kube-scheduler refuses, in its words; amounts and shapes are checked by the plugin."""
    strategy, where = mapping(args, "scoringStrategy", place), f"{place}.scoringStrategy"
    kind = strategy.get("type")
    if kind not in STRATEGIES:
        listed = ", ".join(f'"{name}"' for name in STRATEGIES)
        problem = f"Unsupported value: {quoted(kind or '')}: supported values: {listed}"
        raise ConfigError(problem, where=f"{where}.type")
    for i, entry in enumerate(mappings(strategy, "resources", where)):
        weight = entry.get("weight") or 1
        if not isinstance(weight, int) or not 0 < weight <= 100:
            name = entry.get("name")
            problem = (
                f"Invalid value: {quoted(weight)}: resource weight of {name} not in valid range (0, 100]"
            )
            raise ConfigError(problem, where=f"{where}.resources[{i}].weight")
    given = strategy.get("requestedToCapacityRatio") is not None
    ratio = f"{where}.requestedToCapacityRatio"
    if given and kind != REQUESTED_TO_CAPACITY_RATIO:
        problem = "must be nil when type is not RequestedToCapacityRatio"
        raise ConfigError(f"Forbidden: {problem}", where=ratio)
    if not given and kind == REQUESTED_TO_CAPACITY_RATIO:
        problem = "must be specified when type is RequestedToCapacityRatio"
        raise ConfigError(f"Required value: {problem}", where=ratio)
    if given and not mapping(strategy, "requestedToCapacityRatio", where).get("shape"):
        raise ConfigError("Required value: at least one point must be specified", where=f"{ratio}.shape")


def _weighted(resources: Iterable[Object]) -> list[dict[str, Any]]:
    """With kube-scheduler's default for a weight that is left out, or 0."""
    return [{**entry, "weight": entry.get("weight") or 1} for entry in resources]


def _balanced_allocation(args: Object, place: str) -> dict[str, Any]:
    only_fields(args, ("resources",), place)
    names: list[object] = []  # a broken one may be anything
    resources = _weighted(mappings(args, "resources", place))
    for i, entry in enumerate(resources):
        where, name, weight = f"{place}.resources[{i}]", entry.get("name"), entry["weight"]
        if name in names:
            raise ConfigError(f"Duplicate value: {quoted(name)}", where=f"{where}.name")
        if weight != 1:
            raise ConfigError(f"Invalid value: {quoted(weight)}: must be 1", where=f"{where}.weight")
        names.append(name)
    return {"resources": resources} if resources else {}


def _inter_pod_affinity(args: Object, place: str) -> dict[str, Any]:
    only_fields(args, ("hardPodAffinityWeight", "ignorePreferredTermsOfExistingPods"), place)
    weight, ignore = args.get("hardPodAffinityWeight"), args.get("ignorePreferredTermsOfExistingPods")
    weight = 1 if weight is None else weight
    if not isinstance(weight, int) or isinstance(weight, bool) or not 0 <= weight <= 100:
        problem = f"Invalid value: {quoted(weight)}: not in valid range [0, 100]"
        raise ConfigError(problem, where=f"{place}.hardPodAffinityWeight")
    if ignore is not None and not isinstance(ignore, bool):
        raise ConfigError(
            f"is {quoted(ignore)}; it is true or false", where=f"{place}.ignorePreferredTermsOfExistingPods"
        )
    return {
        "hard_pod_affinity_weight": weight,
        "ignore_preferred_terms_of_existing_pods": bool(ignore),
    }


def _topology_spread(args: Object, place: str) -> dict[str, Any]:
    only_fields(args, ("defaultConstraints", "defaultingType"), place)
    defaulting = args.get("defaultingType") or "System"
    where = f"{place}.defaultConstraints"
    given = mappings(args, "defaultConstraints", place)
    if defaulting not in ("System", "List"):
        problem = f'Unsupported value: {quoted(defaulting)}: supported values: "System", "List"'
        raise ConfigError(problem, where=f"{place}.defaultingType")
    if defaulting == "System":
        if given:
            problem = "Invalid value: 'System': when .defaultConstraints are not empty"
            raise ConfigError(problem, where=f"{place}.defaultingType")
        return {}
    for i, entry in enumerate(given):
        if entry.get("labelSelector") is not None:
            problem = "constraint must not define a selector, as they deduced for each pod"
            raise ConfigError(f"Forbidden: {problem}", where=f"{where}[{i}].labelSelector")
    try:
        constraints = read_spread_constraints({"topologySpreadConstraints": given}, place, labels={})
    except InvalidInput as exc:
        at = exc.where.replace(".topologySpreadConstraints", ".defaultConstraints")
        raise ConfigError(exc.text, where=at) from exc
    return {"default_constraints": constraints}


def _node_affinity(args: Object, place: str) -> dict[str, Any]:
    only_fields(args, ("addedAffinity",), place)
    spec = {"affinity": {"nodeAffinity": mapping(args, "addedAffinity", place)}}
    try:
        required, preferred = read_node_affinity(spec, place)
    except InvalidInput as exc:
        at = exc.where.replace(".affinity.nodeAffinity", ".addedAffinity")
        raise ConfigError(exc.text, where=at) from exc
    return {"added_required": required, "added_preferred": preferred}


def _volume_binding(args: Object, place: str) -> dict[str, Any]:
    only_fields(args, ("bindTimeoutSeconds", "shape"), place)
    if args.get("shape") is not None:
        problem = "unexpected field `shape`, remove it: HOSS does not score by the capacity of storage"
        raise ConfigError(f"Invalid value: {problem}", where=f"{place}.shape")
    seconds = args.get("bindTimeoutSeconds")
    if seconds is None:
        return {}
    if not isinstance(seconds, int) or isinstance(seconds, bool) or seconds < 0:
        problem = "invalid BindTimeoutSeconds, should not be a negative value"
        raise ConfigError(f"Invalid value: {quoted(seconds)}: {problem}", where=f"{place}.bindTimeoutSeconds")
    if seconds > _MOST_SECONDS:
        problem = f"Invalid value: {quoted(seconds)}: must be at most {_MOST_SECONDS}"
        raise ConfigError(problem, where=f"{place}.bindTimeoutSeconds")
    return {"bind_seconds": float(seconds)}


def _dynamic_resources(args: Object, place: str) -> dict[str, Any]:
    only_fields(args, ("filterTimeout", "bindingTimeout"), place)
    # A search that is given up after some time would end differently from machine to machine.
    if _seconds(args, "filterTimeout", place, 10.0) != 10.0:
        raise unsupported(
            f"{place}.filterTimeout", "HOSS counts the devices that it looks at; leave it out, or write 10s"
        )
    if args.get("bindingTimeout") is None:
        return {}
    seconds = _seconds(args, "bindingTimeout", place, 0.0)
    if seconds < 1:
        problem = f"Invalid value: {quoted(args['bindingTimeout'])}: must be at least 1 second"
        raise ConfigError(problem, where=f"{place}.bindingTimeout")
    return {"bind_seconds": seconds}


def _seconds(args: Object, name: str, place: str, default: float) -> float:
    """A duration as Go writes it: 90s, 1m30s."""
    given = args.get(name)
    if given is None:
        return default
    try:
        return int(parse_duration(given if isinstance(given, str) else "")) / 1e9
    except (CelError, ValueError) as exc:  # ValueError: thousands of digits
        problem = f"time: invalid duration {quoted(given)}; write it as 90s or 1m30s"
        raise ConfigError(problem, where=f"{place}.{name}") from exc


def _preemption(args: Object, place: str) -> dict[str, Any]:
    """The least numbers of nodes that are tried. All are, which is never fewer."""
    limits = {"minCandidateNodesPercentage": (10, 100), "minCandidateNodesAbsolute": (100, None)}
    only_fields(args, tuple(limits), place)
    numbers = []
    for name, (default, most) in limits.items():
        number = default if args.get(name) is None else args[name]
        whole = isinstance(number, int) and not isinstance(number, bool)
        if not whole or number < 0 or (most is not None and number > most):
            interval = "[0, inf)" if most is None else f"[0, {most}]"
            raise ConfigError(
                f"Invalid value: {quoted(number)}: not in valid range {interval}", where=f"{place}.{name}"
            )
        numbers.append(number)
    if not any(numbers):
        problem = "Invalid value: 0: cannot be zero at the same time as minCandidateNodesAbsolute"
        raise ConfigError(problem, where=f"{place}.minCandidateNodesPercentage")
    return {}


# What reads a plugin's arguments, by the plugin's name. A reader takes the arguments and their path, and
# returns those of HOSS's plugin. It raises ConfigError for what kube-scheduler refuses or HOSS cannot honour.
ARGUMENTS: Mapping[str, Callable[[Object, str], dict[str, Any]]] = {
    "NodeResourcesFit": _resources_fit,
    "PodTopologySpread": _topology_spread,
    "NodeAffinity": _node_affinity,
    "InterPodAffinity": _inter_pod_affinity,
    "NodeResourcesBalancedAllocation": _balanced_allocation,
    "VolumeBinding": _volume_binding,
    "DynamicResources": _dynamic_resources,
    "DefaultPreemption": _preemption,
}
