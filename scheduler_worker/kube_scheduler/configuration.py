"""Profiles of a KubeSchedulerConfiguration, kubescheduler.config.k8s.io/v1: kube-scheduler's own file.

What decides where pods go is honoured exactly or refused with its name and place. What concerns only
kube-scheduler's process (leader election, connections, probes, profiling, parallelism) has no effect.
Defaults, merging of plugin sets and, where there are some, the words of errors are kube-scheduler 1.36's
(pkg/scheduler/apis/config)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hoss.errors import ConfigError, quoted
from hoss.manifests.fields import Object, integer, mapping, mappings, text, wrong_type
from scheduler_worker.core.framework.registry import Registry, Weighted
from scheduler_worker.core.plugins import DEFAULT_PLUGINS
from scheduler_worker.core.plugins.nodes.policy_nodes import PolicyNodes
from scheduler_worker.core.plugins.profiles import ProfileSpec
from scheduler_worker.kube_scheduler.plugin_arguments import ARGUMENTS, only_fields, unsupported

API_VERSION = "kubescheduler.config.k8s.io/v1"
KIND = "KubeSchedulerConfiguration"

_DEFAULT_NAME = "default-scheduler"
_ALL = "*"
_MULTI_POINT = "multiPoint"
# kube-scheduler's own limit is that scores do not overflow; sums of this do not overflow a ranking's keys.
_MOST_WEIGHT = 100_000

# Plugins of kube-scheduler for what HOSS does without a plugin. Each is always there, and has no score.
_BUILT_IN = ("PrioritySort", "DefaultPreemption", "DefaultBinder")

_POINTS = (
    _MULTI_POINT, "preEnqueue", "queueSort", "preFilter", "filter", "postFilter", "preScore", "score",
    "reserve", "permit", "preBind", "bind", "postBind",
)  # fmt: skip
# What default plugins are asked at, beside multiPoint. To disable one elsewhere has no effect.
_FILTERS = ("preFilter", "filter")
_SCORES = ("preScore", "score")
_POINTS_OF: Mapping[str, tuple[str, ...]] = {
    "SchedulingGates": ("preEnqueue",),
    "PrioritySort": ("queueSort",),
    "NodeUnschedulable": ("filter",),
    "NodeName": ("filter",),
    "TaintToleration": ("filter", *_SCORES),
    "NodeAffinity": (*_FILTERS, *_SCORES),
    "NodePorts": _FILTERS,
    "NodeResourcesFit": (*_FILTERS, *_SCORES),
    "VolumeRestrictions": _FILTERS,
    "NodeVolumeLimits": _FILTERS,
    "VolumeBinding": (*_FILTERS, *_SCORES, "reserve", "preBind"),
    "VolumeZone": _FILTERS,
    "PodTopologySpread": (*_FILTERS, *_SCORES),
    "InterPodAffinity": (*_FILTERS, *_SCORES),
    "DynamicResources": ("preEnqueue", *_FILTERS, "postFilter", "score", "reserve", "preBind"),
    "DefaultPreemption": ("preEnqueue", "postFilter"),
    "NodeResourcesBalancedAllocation": _SCORES,
    "ImageLocality": ("score",),
    "DefaultBinder": ("bind",),
}
_PROFILE_FIELDS = ("schedulerName", "percentageOfNodesToScore", "plugins", "pluginConfig")
# What concerns kube-scheduler's process alone: the types of values, or the fields of a section.
_OF_THE_PROCESS: Mapping[str, type | Mapping[str, type]] = {
    "parallelism": int,
    "leaderElection": {
        "leaderElect": bool, "leaseDuration": str, "renewDeadline": str, "retryPeriod": str,
        "resourceLock": str, "resourceName": str, "resourceNamespace": str,
    },
    "clientConnection": {
        "kubeconfig": str, "acceptContentTypes": str, "contentType": str, "qps": float, "burst": int,
    },
    "enableProfiling": bool,
    "enableContentionProfiling": bool,
    "delayCacheUntilActive": bool,
    "healthzBindAddress": str,
    "metricsBindAddress": str,
}  # fmt: skip
# Plugins of others that clusters have in their files, and what does the same in HOSS.
_INSTEAD = {
    "Coscheduling": "HOSS reads PodGroups without a plugin, leave it out (docs/operations/gangs.md)",
    "CapacityScheduling": "shares of tenants are a matter of the policy (docs/operations/policy.md)",
}
# Fields that HOSS has elsewhere: the default, and where another value is set.
_ELSEWHERE = {
    "podInitialBackoffSeconds": (1, "HOSS waits 1 s first"),
    "podMaxBackoffSeconds": (10, "HOSS waits 10 s at most"),
}

_DEFAULTS = {plugin.name: plugin for plugin in DEFAULT_PLUGINS}
_KUBE_DEFAULTS = (*(name for name in _DEFAULTS if name not in ("PolicyNodes", "DeviceCards")), *_BUILT_IN)
# Default plugins that only score, and can be left out. The others filter, as the ledger expects of workers.
_SCORES_ONLY = ("NodeResourcesBalancedAllocation", "ImageLocality")


def read_scheduler_profiles(document: Object, registry: Registry) -> dict[str, ProfileSpec]:
    """The profiles by schedulerName, in the file's order. `registry` has the plugins that exist.

    Raises InvalidInput with the path of a field that is wrong or that HOSS cannot honour."""
    _check_type(document)
    only_fields(document, ("apiVersion", "kind", "percentageOfNodesToScore", "profiles", "extenders",
                     *_ELSEWHERE, *_OF_THE_PROCESS), "")  # fmt: skip
    if document.get("extenders"):
        raise unsupported("extenders", "HOSS calls no extenders; write a plugin (docs/plugins.md)")
    _check_process(document)
    for name, (default, what) in _ELSEWHERE.items():
        if document.get(name) not in (None, default):
            raise unsupported(name, f"{what}, and has no other setting")
    percentage = _percentage(document, "")
    parallelism = document.get("parallelism")
    if parallelism is not None and parallelism < 1:
        problem = "should be an integer value greater than zero"
        raise ConfigError(f"Invalid value: {quoted(parallelism)}: {problem}", where="parallelism")
    sections = mappings(document, "profiles", "") or [{}]
    found: dict[str, ProfileSpec] = {}
    for i, section in enumerate(sections):
        place = f"profiles[{i}]"
        only_fields(section, _PROFILE_FIELDS, place)
        name = text(section, "schedulerName", place, _DEFAULT_NAME if len(sections) == 1 else "")
        if not name:
            raise ConfigError("Required value", where=f"{place}.schedulerName")
        if name in found:
            first = f"profiles[{list(found).index(name)}].schedulerName"
            raise ConfigError(f"Duplicate value: {quoted(first)}", where=f"{place}.schedulerName")
        own = _percentage(section, f"{place}.")
        found[name] = ProfileSpec(
            _plugins(section, place, registry),
            # A sample may be smaller than what the file wants scored; all nodes never are.
            samples=not (percentage if own is None else own),
        )
    return found


def _check_process(document: Object) -> None:
    """What has no effect is checked all the same: a field in the wrong place is a mistake."""
    for name, expected in _OF_THE_PROCESS.items():
        if isinstance(expected, type):
            _check_value(document, name, expected, "")
            continue
        section = mapping(document, name, "")
        only_fields(section, tuple(expected), name)
        for field_name, its_type in expected.items():
            _check_value(section, field_name, its_type, f"{name}.")


def _check_value(parent: Object, name: str, expected: type, place: str) -> None:
    value = parent.get(name)
    allowed = (int, float) if expected is float else expected
    if value is not None and (
        not isinstance(value, allowed) or (isinstance(value, bool) and expected is not bool)
    ):
        words = {bool: "true or false", str: "a string", int: "a whole number", float: "a number"}[expected]
        raise wrong_type(value, words, f"{place}{name}")


def _check_type(document: Object) -> None:
    kind, version = document.get("kind"), document.get("apiVersion")
    for name, given in (("Kind", kind), ("apiVersion", version)):
        if not given:
            raise ConfigError(f"Object '{name}' is missing", where="")
    if (kind, version) != (KIND, API_VERSION):
        raise ConfigError(
            f"no kind {quoted(kind)} is registered for version {quoted(version)}; this release reads "
            f"{KIND} of {API_VERSION}"
        )


def _percentage(parent: Object, place: str) -> int | None:
    given = parent.get("percentageOfNodesToScore")
    if given is None:
        return None
    if not isinstance(given, int) or isinstance(given, bool) or not 0 <= given <= 100:
        raise ConfigError(
            f"Invalid value: {given}: not in valid range [0-100]", where=f"{place}percentageOfNodesToScore"
        )
    return given


@dataclass
class _PluginSet:
    """What one extension point lists."""

    enabled: dict[str, tuple[int, str]] = field(default_factory=dict)  # weight (0: none given) and place
    disabled: dict[str, str] = field(default_factory=dict)  # place

    def leaves_out(self, name: str) -> str:
        """The place that disables the plugin; "" if none does."""
        return self.disabled.get(name) or self.disabled.get(_ALL, "")


def _plugin_set(parent: Object, point: str, place: str) -> _PluginSet:
    found = _PluginSet()
    where = f"{place}.{point}"
    section = mapping(parent, point, place)
    only_fields(section, ("enabled", "disabled"), where)
    for i, entry in enumerate(mappings(section, "enabled", where)):
        at = f"{where}.enabled[{i}]"
        only_fields(entry, ("name", "weight"), at)
        name = text(entry, "name", at)
        if name in found.enabled:
            raise ConfigError(f"plugin {quoted(name)} already registered", where=at)
        found.enabled[name] = integer(entry, "weight", at, least=0, most=_MOST_WEIGHT, default=0), at
    for i, entry in enumerate(mappings(section, "disabled", where)):
        at = f"{where}.disabled[{i}]"
        only_fields(entry, ("name", "weight"), at)
        found.disabled[text(entry, "name", at)] = at
    return found


def _plugins(section: Object, place: str, registry: Registry) -> tuple[Weighted, ...]:
    """The scores of a profile, merged as kube-scheduler does: the default plugins less those that multiPoint
    disables, with those that it enables; then what single extension points say."""
    plugins, where = mapping(section, "plugins", place), f"{place}.plugins"
    only_fields(plugins, _POINTS, where)
    points = {point: _plugin_set(plugins, point, where) for point in _POINTS}
    known = {*registry.names, *_BUILT_IN} - {PolicyNodes.name}  # no file weakens the policy
    for point, listed in points.items():
        for name, (_, at) in listed.enabled.items():
            asked = "preFilter" if point == _MULTI_POINT else point  # the first that kube-scheduler fills
            kind = f"{asked[0].upper()}{asked[1:]}Plugin"
            if name not in known:
                instead = f"; {_INSTEAD[name]}" if name in _INSTEAD else ""
                raise ConfigError(f"{kind} {quoted(name)} does not exist{instead}", where=at)
            if point != _MULTI_POINT and point not in _POINTS_OF.get(name, (point,)):
                raise ConfigError(f"plugin {quoted(name)} does not extend {kind} plugin", where=at)
    multi, score = points[_MULTI_POINT], points["score"]
    names = [n for n in _KUBE_DEFAULTS if n in multi.enabled or not multi.leaves_out(n)]
    names += [name for name in multi.enabled if name not in names]
    _keep_filters(points)
    weights: dict[str, int] = {}
    for name in names:
        given = score.enabled.get(name, multi.enabled.get(name))
        default = _DEFAULTS[name].weight if name in _DEFAULTS and name not in multi.enabled else 1
        if name in _DEFAULTS and not _DEFAULTS[name].weight:
            default = 0  # it has no score
        # A plugin that score enables is there whatever score disables.
        off = name not in score.enabled and score.leaves_out(name)
        weights[name] = 0 if off else (given[0] if given else 0) or default
    for name, (weight, _) in score.enabled.items():
        weights.setdefault(name, weight or 1)
    args = _plugin_arguments(section, place, weights)
    scored = tuple(Weighted(n, w, args.get(n, {})) for n, w in weights.items() if n not in _BUILT_IN)
    # What a policy says about nodes outweighs all scores together (docs/adr/0015).
    policy = max(_DEFAULTS[PolicyNodes.name].weight, 1 + sum(plugin.weight for plugin in scored))
    return (Weighted(PolicyNodes.name, policy), *scored)


def _keep_filters(points: Mapping[str, _PluginSet]) -> None:
    """Refuse a profile that leaves out more than scores: the ledger and other workers rely on the rest.

    A plugin that multiPoint leaves out may be enabled at a point of its own again."""
    relied = {point: listed for point, listed in points.items() if point not in ("score", "preScore")}
    enabled = {name for listed in relied.values() for name in listed.enabled}
    for name in _KUBE_DEFAULTS:
        at = points[_MULTI_POINT].leaves_out(name)
        if at and name not in enabled and name not in _SCORES_ONLY:
            raise _cannot_go(at, name)
    for point, listed in relied.items():
        if point in (_MULTI_POINT, "permit", "postBind"):  # no default plugin is at the latter two
            continue
        for name, at in listed.disabled.items():
            named = _KUBE_DEFAULTS if name == _ALL else (name,)
            for lost in named:
                if point in _POINTS_OF.get(lost, ()) and lost not in listed.enabled:
                    raise _cannot_go(at, lost)


def _cannot_go(place: str, what: str) -> ConfigError:
    return unsupported(place, f"{what} cannot be disabled, for HOSS relies on it; scores can be")


def _plugin_arguments(section: Object, place: str, plugins: Mapping[str, int]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for i, entry in enumerate(mappings(section, "pluginConfig", place)):
        at = f"{place}.pluginConfig[{i}]"
        only_fields(entry, ("name", "args"), at)
        name = text(entry, "name", at)
        if name in found:
            raise ConfigError(f"Duplicate value: {quoted(name)}", where=at)
        args = dict(mapping(entry, "args", at))
        if name in ARGUMENTS:
            _check_arguments_type(args, name, f"{at}.args")
            found[name] = ARGUMENTS[name](args, f"{at}.args")
        elif name in _KUBE_DEFAULTS:
            raise unsupported(f"{at}.args", f"{name} has no arguments")
        elif name not in plugins:
            raise ConfigError(f"{quoted(name)} is no plugin of this profile", where=f"{at}.name")
        else:
            found[name] = args  # a plugin of another package, which checks them
    return found


def _check_arguments_type(args: dict[str, Any], plugin: str, place: str) -> None:
    expected = f"{plugin}Args"
    version, kind = args.pop("apiVersion", API_VERSION), args.pop("kind", expected)
    if version != API_VERSION:
        problem = f"no kind {quoted(kind)} is registered for version {quoted(version)}"
        raise ConfigError(f"{problem}; this release reads {API_VERSION}", where=f"{place}.apiVersion")
    if kind != expected:
        group = API_VERSION.partition("/")[0]
        problem = f"args for plugin {plugin} were not of type {expected}.{group}, got {kind}.{group}"
        raise ConfigError(problem, where=f"{place}.kind")
