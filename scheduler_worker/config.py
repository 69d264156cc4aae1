"""The worker's configuration document, kind WorkerConfig, and the profile that it chooses.

A profile may name plugins of other packages: entry points of the group hoss.plugins; an algorithm is one of
the group hoss.algorithms. An entry point is loaded only when the configuration names it, so a broken plugin
that nobody uses does no harm.
"""

import socket
from collections.abc import Callable, Iterable
from enum import Enum
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from hoss.config import NAME_PATTERN, NAME_RULE, Document, read_object, read_text
from hoss.errors import ConfigError, InvalidInput
from hoss.imports import loading, named_object
from hoss.manifests.fields import check_key, check_label_value
from hoss.model.placing import PlacementAlgorithm
from hoss.security.options import SecurityConfig
from hoss.telemetry.options import TelemetryConfig
from hoss.wire.columns import MAX_CANDIDATES
from scheduler_worker.core.framework.profile import Profile
from scheduler_worker.core.framework.registry import Registry, Weighted
from scheduler_worker.core.placement.algorithms import RANKING, made_algorithm
from scheduler_worker.core.plugins.profiles import DEFAULT_PROFILE, PRESETS, ProfileSpec
from scheduler_worker.kube_scheduler.configuration import read_scheduler_profiles

PLUGIN_GROUP = "hoss.plugins"
ALGORITHM_GROUP = "hoss.algorithms"


def factories(points: Iterable[EntryPoint], group: str = PLUGIN_GROUP) -> dict[str, Callable[..., Any]]:
    """A factory for each entry point of a group, by name. ConfigError if two packages use the same name.

    A factory raises ConfigError if its entry point cannot be loaded, or is not callable.
    """
    found: dict[str, EntryPoint] = {}
    for point in points:
        other = found.setdefault(point.name, point)
        if other.value != point.value:
            problem = f"is {point.name!r} for both {other.value} and {point.value}; uninstall one of the two"
            raise ConfigError(problem, where=f"entry points of {group}")
    return {name: factory(point.value, point.load) for name, point in found.items()}


def factory(value: str, load: Callable[[], Any]) -> Callable[..., Any]:
    """Makes what `load` finds at `value`, a class, in a time that is limited (hoss.imports.loading)."""

    def make(**args: Any) -> Any:
        with loading(value):
            try:
                plugin = load()
            except ConfigError:
                raise
            except Exception as exc:  # importing a foreign package may raise anything
                raise ConfigError(f"cannot be loaded from {value}: {type(exc).__name__}: {exc}") from exc
            if not callable(plugin):
                raise ConfigError(f"is {type(plugin).__name__} at {value}; it must be a class")
            return plugin(**args)

    return make


KIND = "WorkerConfig"

# The label whose value is the profile, if none is configured.
STRATEGY_LABEL = "strategy"


class SyncMode(str, Enum):
    """How a worker's node cache is synchronised with the ledger."""

    PUSH = "push"
    PULL = "pull"
    REFUSAL = "refusal"


class PluginSection(Document):
    """One plugin of a profile."""

    # The name of a plugin of HOSS, or of an entry point in the group hoss.plugins.
    name: str

    # Weight of its score among the others; with 0 it only filters.
    weight: int = Field(default=1, ge=0, le=100)

    # Arguments of the plugin, which checks them.
    args: dict[str, Any] = Field(default_factory=dict)


class ProfileSection(Document):
    """How a worker scores nodes. All default filters apply as well, listed or not."""

    # The name that `profile`, or a worker's label `strategy`, refers to.
    name: str = Field(pattern=NAME_PATTERN, description=NAME_RULE)

    # Plugins that score, and further filters.
    plugins: tuple[PluginSection, ...]

    # Which of equally good nodes a pod takes: the first in an order that the worker keeps, or one drawn anew
    # for each pod.
    ties: Literal["Fixed", "Drawn"] = "Fixed"

    @field_validator("plugins")
    @classmethod
    def _names_differ(cls, plugins: tuple[PluginSection, ...]) -> tuple[PluginSection, ...]:
        names = [plugin.name for plugin in plugins]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"plugins must differ; given more than once: {', '.join(twice)}")
        return plugins


class WorkerConfig(TelemetryConfig, SecurityConfig):
    """Flags override the document's fields."""

    # The name that this worker registers with; unique among living workers. A restart under the same name
    # fences the former process.
    name: str = Field(
        default_factory=lambda: f"worker-{socket.gethostname()}", pattern=NAME_PATTERN, description=NAME_RULE
    )

    # Labels that policies match on.
    labels: dict[str, str] = Field(default_factory=dict)

    # host:port of the worker's own server, for health checks; port 0 takes a free one.
    listen: str = "127.0.0.1:0"

    # Addresses, host:port, of the dispatcher and of the resolvers. Of several dispatchers, separated by
    # commas or as dns:///NAME:PORT, one is active.
    dispatcher: str = "127.0.0.1:7100"
    resolvers: list[str] = Field(default=["127.0.0.1:7101"], min_length=1)

    # Seed of the order of equally good nodes. Left out: another one at every start, so that workers do
    # not all choose the same node.
    seed: int | None = Field(default=None, ge=0)

    # Pods that the worker may have at once, sent and not answered. Left out: 2,000, two full proposals, so
    # that one is placed while the other is at the ledger. With a profile that packs pod by pod it is 500:
    # pods that a worker has are packed without knowing what others do meanwhile, and such profiles are slow
    # enough to be kept busy by fewer.
    window: int | None = Field(default=None, ge=1, le=100_000)

    # How nodes are chosen: the name of one of `profiles` or of a preset. Left out: the value of the label
    # `strategy` if that is the name of one, else spread. So a worker that policies know as strategy=binpack
    # packs.
    profile: str | None = None

    # What places the pods of a batch: ranking, which takes nodes by the profile's scores; random; best-fit;
    # fgd; an entry point in the group hoss.algorithms; or a class as module:Class or FILE.py:Class. Pods that
    # an algorithm cannot take are ranked (docs/plugins.md#an-algorithm-of-your-own).
    algorithm: str = "ranking"

    # Profiles besides the presets.
    profiles: tuple[ProfileSection, ...] = ()

    # A file of kind KubeSchedulerConfiguration, kubescheduler.config.k8s.io/v1. Its profiles take the place
    # of presets and `profiles`, and `profile` is a schedulerName of it. Left out: the file's only one.
    kube_scheduler_config: Path | None = None

    # How the node cache is synchronised with the ledger. push: every change as it happens. pull: the state
    # once an interval. refusal: the state at the start, then only what refusals contain, and the state again
    # when pods find no node or wait for a change. For the cost of each see docs/benchmarks.md.
    sync: SyncMode = SyncMode.PUSH

    # Milliseconds between two readings of the state; with refusal the minimum. Each reading takes a few
    # milliseconds.
    pull_interval_ms: int = Field(default=100, ge=1, le=60_000)

    # Alternative nodes in a proposal for each pod; the ledger takes the first node that fits. Four times as
    # many while the ledger refuses more than one of a hundred pods.
    alternates: int = Field(default=2, ge=0, le=MAX_CANDIDATES - 1)

    # Nodes sampled for a single pod of a class that the worker has not met; 0: always all nodes. In clusters
    # of less than twice as many nodes it makes no difference. (docs/adr/0034; kube-scheduler's
    # percentageOfNodesToScore, for every pod, is 10 % of 5,000.)
    glance_nodes: int = Field(default=512, ge=0)

    # Proposals for a pod before it goes back to the dispatcher, which sends it to a worker again.
    tries: int = Field(default=3, ge=1, le=100)

    # The worker uses only nodes with these labels, whatever a policy says. It then ignores a policy's soft
    # partition.
    node_labels: dict[str, str] = Field(default_factory=dict)

    # Decision cost added to the time of placing: for each decision (the pods that are placed and proposed
    # together), and for each pod of it. The worker waits so long between placing and proposing, as a slower
    # scheduler would take. For benchmarks.
    decision_job_ms: float = Field(default=0.0, ge=0, le=60_000, allow_inf_nan=False)
    decision_task_ms: float = Field(default=0.0, ge=0, le=50, allow_inf_nan=False)

    # A file. Workers with the same file share one global lock on it, which a worker holds from placing to the
    # ledger's verdicts. For benchmarks.
    turns: Path | None = None

    # Commit without validation, as uncoordinated schedulers do. For benchmarks; resolvers refuse it unless
    # their `allow_unchecked` is set.
    unchecked: bool = False

    @model_validator(mode="after")
    def _turns_need_push(self) -> "WorkerConfig":
        if self.turns is not None and self.sync is not SyncMode.PUSH:
            raise ValueError(
                "turns: the cache must contain the previous turn's commits, which takes sync: push"
            )
        return self


def parse_labels(pairs: Iterable[str], *, where: str = "--label") -> dict[str, str]:
    """`key=value` each. InvalidInput for anything else, and for a key given twice."""
    labels: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise ConfigError(f"{pair!r} is not of the form key=value", where=where)
        check_key(key, where)
        check_label_value(value, f"{where} {key}")
        if key in labels:
            raise ConfigError(
                f"{key!r} is given twice, as {labels[key]!r} and as {value!r}; a label has one value",
                where=where,
            )
        labels[key] = value
    return labels


def chosen_profile(config: WorkerConfig, registry: Registry) -> tuple[str, Profile]:
    """The profile and its name. ConfigError, with the field's path, for an invalid profile in the
    document."""
    if config.kube_scheduler_config is not None:
        return _kube_scheduler_profile(config, config.kube_scheduler_config, registry)
    profiles = dict(PRESETS)
    own: dict[str, Profile] = {}
    for i, section in enumerate(config.profiles):
        if section.name in profiles:
            raise ConfigError(
                f"{section.name!r} is a profile already; choose another", where=f"profiles[{i}].name"
            )
        profiles[section.name] = _spec(section)
        try:
            own[section.name] = profiles[section.name].profile(registry)
        except ConfigError as exc:
            raise ConfigError(exc.text, where=f"profiles[{i}].{exc.where}") from exc
    strategy = config.labels.get(STRATEGY_LABEL)
    name = config.profile or (strategy if strategy in profiles else DEFAULT_PROFILE)
    if name not in profiles:
        raise ConfigError(f"{name!r} is none of {', '.join(profiles)}", where="profile")
    return name, own[name] if name in own else profiles[name].profile(registry)


def chosen_algorithm(name: str) -> PlacementAlgorithm | None:
    """The algorithm of this name (see WorkerConfig); None: the worker's ranking. Raises ConfigError."""
    if name == RANKING:
        return None  # whatever is installed: to look at that takes every start of a worker some milliseconds
    outside = factories(entry_points(group=ALGORITHM_GROUP), ALGORITHM_GROUP)
    if ":" in name:
        outside[name] = factory(name, partial(named_object, name))
    return made_algorithm(name, outside)


def _kube_scheduler_profile(config: WorkerConfig, path: Path, registry: Registry) -> tuple[str, Profile]:
    """The profile of the file at `path` that `config` names."""
    if config.profiles:
        raise ConfigError("stands beside kube_scheduler_config; give one of the two", where="profiles")
    document = read_object(read_text(path), str(path))
    try:
        specs = read_scheduler_profiles(document, registry)
        profiles = {name: spec.profile(registry) for name, spec in specs.items()}
    except InvalidInput as exc:
        raise ConfigError(exc.text, where=f"{path}: {exc.where}".removesuffix(": ")) from exc
    if config.profile is None and len(profiles) > 1:
        raise ConfigError(f"is missing; choose one of {', '.join(profiles)}", where="profile")
    chosen = config.profile or next(iter(profiles))
    if chosen not in profiles:
        raise ConfigError(f"{chosen!r} is none of {', '.join(profiles)}", where="profile")
    return chosen, profiles[chosen]


def ineffective_strategy(config: WorkerConfig, profile: str) -> str:
    """The label `strategy` where it names no profile and the worker ranks by another one; else "". That is no
    error: the label may have another meaning in the cluster. With an algorithm it names whatever its user
    likes."""
    strategy = config.labels.get(STRATEGY_LABEL, "")
    chosen = config.profile or config.kube_scheduler_config or config.algorithm != RANKING
    return "" if chosen or strategy == profile else strategy


def _spec(section: ProfileSection) -> ProfileSpec:
    return ProfileSpec(
        tuple(Weighted(plugin.name, plugin.weight, plugin.args) for plugin in section.plugins),
        by_chance=section.ties == "Drawn",
    )
