"""Plugins by name, made with the arguments of a profile and sorted by extension point."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hoss.errors import ConfigError, InvalidInput
from scheduler_worker.core.framework.extension_points import (
    FilterPlugin,
    PermitPlugin,
    Plugin,
    PreBindPlugin,
    Reads,
    ScorePlugin,
    overrides,
)
from scheduler_worker.core.framework.profile import OneNodePaths, Profile, SideBySidePaths
from scheduler_worker.core.framework.sandbox import PluginCalls, sandboxed


@dataclass(frozen=True, slots=True)
class Weighted:
    """A plugin of a profile by its registered name; `args` go to its factory. Weight 0: no score."""

    name: str
    weight: int = 0
    args: Mapping[str, Any] = field(default_factory=dict)


class Registry:
    """Plugin factories by name, as kube-scheduler's. It discovers nothing; `extended` adds plugins."""

    def __init__(self, factories: Mapping[str, Callable[..., Plugin]]) -> None:
        self._factories = dict(factories)

    @property
    def names(self) -> frozenset[str]:
        """Names of all plugins."""
        return frozenset(self._factories)

    def extended(
        self, factories: Mapping[str, Callable[..., Plugin]], calls: PluginCalls | None = None
    ) -> "Registry":
        """With plugins from outside, each in a sandbox; `calls` shows their running calls. ConfigError if two
        plugins have one name."""
        if twice := sorted(self.names & set(factories)):
            raise ConfigError(f"{twice[0]!r} is a plugin already; choose another name", where="plugins")
        calls = calls or PluginCalls()
        outside = {name: sandboxed(name, make, calls) for name, make in factories.items()}
        return Registry({**self._factories, **outside})

    def profile(
        self, plugins: Sequence[Weighted], *, by_chance: bool = False, samples: bool = True
    ) -> Profile:
        """Make the plugins and sort them by extension point. ConfigError for an unknown name or argument."""
        made: list[tuple[Plugin, int]] = []
        for entry in plugins:
            factory = self._factories.get(entry.name)
            if factory is None:
                known = ", ".join(sorted(self._factories))
                raise ConfigError(f"{entry.name!r} is none of {known}", where="plugins")
            try:
                made.append((factory(**entry.args), entry.weight))
            except TypeError as exc:
                raise ConfigError(str(exc), where=f"plugins.{entry.name}") from exc
            except InvalidInput as exc:
                raise ConfigError(exc.text, where=f"plugins.{entry.name}.{exc.where}".rstrip(".")) from exc
        filters = tuple(p for p, _ in made if isinstance(p, FilterPlugin))
        scores = tuple((p, w) for p, w in made if w and isinstance(p, ScorePlugin))
        dynamic_filters, dynamic_scores = _filters(filters, Reads.REQUESTED), _scores(scores, Reads.REQUESTED)
        return Profile(
            filters=filters,
            pre_filters=tuple(p for p in filters if overrides(p, FilterPlugin.pre_filter)),
            static_filters=_filters(filters, Reads.SPECS),
            dynamic_filters=dynamic_filters,
            pod_filters=_filters(filters, Reads.PODS),
            static_scores=_scores(scores, Reads.SPECS),
            dynamic_scores=dynamic_scores,
            pod_scores=_scores(scores, Reads.PODS),
            observers=tuple(
                p for p, _ in made if isinstance(p, ScorePlugin) and overrides(p, ScorePlugin.observe)
            ),
            permits=tuple(p for p, _ in made if isinstance(p, PermitPlugin)),
            pre_binds=tuple(p for p, _ in made if isinstance(p, PreBindPlugin)),
            reads_cards=any(p.reads_cards for p, _ in scores),
            by_chance=by_chance,
            samples=samples,
            one_at_a_time=_one_at_a_time(dynamic_filters, dynamic_scores),
            side_by_side=_side_by_side(dynamic_filters, dynamic_scores),
        )


def _filters(filters: Iterable[FilterPlugin], reads: Reads) -> tuple[FilterPlugin, ...]:
    method = FilterPlugin.filter_state if reads is Reads.PODS else FilterPlugin.filter
    return tuple(p for p in filters if p.filter_reads is reads and overrides(p, method))


def _scores(scores: Iterable[tuple[ScorePlugin, int]], reads: Reads) -> tuple[tuple[ScorePlugin, int], ...]:
    method = ScorePlugin.score_state if reads is Reads.PODS else ScorePlugin.score
    return tuple((p, w) for p, w in scores if p.score_reads is reads and overrides(p, method))


def _one_at_a_time(
    filters: tuple[FilterPlugin, ...], scores: tuple[tuple[ScorePlugin, int], ...]
) -> OneNodePaths | None:
    passes = tuple(way for p in filters if (way := p.fast_filter.one_node) is not None)
    points = tuple((score, w) for p, w in scores if (score := p.fast_score.one_node) is not None)
    complete = len(passes) == len(filters) and len(points) == len(scores)
    return OneNodePaths(passes, points) if complete else None


def _side_by_side(
    filters: tuple[FilterPlugin, ...], scores: tuple[tuple[ScorePlugin, int], ...]
) -> SideBySidePaths | None:
    passes = tuple(way for p in filters if (way := p.fast_filter.side_by_side) is not None)
    points = tuple((score, w) for p, w in scores if (score := p.fast_score.side_by_side) is not None)
    complete = len(passes) == len(filters) and len(points) == len(scores)
    return SideBySidePaths(passes, points) if complete else None
