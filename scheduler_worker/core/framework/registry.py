"""Plugins by name, made with the arguments of a profile and sorted by extension point."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hoss.errors import ConfigError, InvalidInput
from scheduler_worker.core.framework.extension_points import (
    DynamicFilter,
    DynamicScore,
    Observer,
    Plugin,
    PodFilter,
    PodScore,
    PreEnqueue,
    PreFilter,
    StaticFilter,
    StaticScore,
)
from scheduler_worker.core.framework.profile import Profile
from scheduler_worker.core.framework.sandbox import sandboxed


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

    def extended(self, factories: Mapping[str, Callable[..., Plugin]]) -> "Registry":
        """With plugins from outside, each in a sandbox. ConfigError if two plugins have one name."""
        if twice := sorted(self.names & set(factories)):
            raise ConfigError(f"{twice[0]!r} is a plugin already; choose another name", where="plugins")
        return Registry(
            {**self._factories, **{name: sandboxed(name, make) for name, make in factories.items()}}
        )

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
        filters = tuple(p for p, _ in made if isinstance(p, DynamicFilter))
        scores = tuple((p, w) for p, w in made if w and isinstance(p, DynamicScore))
        return Profile(
            pre_filters=tuple(p for p, _ in made if isinstance(p, PreFilter)),
            static_filters=tuple(p for p, _ in made if isinstance(p, StaticFilter)),
            dynamic_filters=filters,
            static_scores=tuple((p, w) for p, w in made if w and isinstance(p, StaticScore)),
            dynamic_scores=scores,
            observers=tuple(p for p, _ in made if isinstance(p, Observer)),
            reads_cards=any(w and getattr(p, "reads_cards", False) for p, w in made),
            pre_enqueues=tuple(p for p, _ in made if isinstance(p, PreEnqueue)),
            pod_filters=tuple(p for p, _ in made if isinstance(p, PodFilter)),
            pod_scores=tuple((p, w) for p, w in made if w and isinstance(p, PodScore)),
            filters=tuple(p for p, _ in made if isinstance(p, (StaticFilter, DynamicFilter, PodFilter))),
            by_chance=by_chance,
            samples=samples,
            one_at_a_time=_able("one_at_a_time", filters, scores),
            side_by_side=_able("side_by_side", filters, scores),
        )


def _able(way: str, filters: tuple[Any, ...], scores: tuple[tuple[Any, int], ...]) -> Any:
    """See Profile. The attribute decides and not a method's presence: it may depend on a plugin's
    arguments."""
    able = all(getattr(p, way, False) for p in (*filters, *(p for p, _ in scores)))
    return (filters, scores) if able else None
