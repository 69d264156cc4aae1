"""What `hoss plugin check` is given: a plugin or an algorithm by its entry point, as module:Class, or in a
file."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from hoss.errors import ConfigError
from hoss.imports import module_of_file, named_object
from hossctl.checking.questions import BoundedCall, Hangs, raised
from scheduler_worker.config import ALGORITHM_GROUP, PLUGIN_GROUP
from scheduler_worker.core.framework.extension_points import (
    FilterPlugin,
    PermitPlugin,
    PreBindPlugin,
    ScorePlugin,
)
from scheduler_worker.core.placement.algorithms import ALGORITHMS

PLUGIN, ALGORITHM = "plugin", "algorithm"

# A plugin derives from one of these or more.
PLUGIN_BASES = (FilterPlugin, ScorePlugin, PermitPlugin, PreBindPlugin)
_BASES = ", ".join(base.__name__ for base in PLUGIN_BASES)


@dataclass(frozen=True, slots=True)
class CheckTarget:
    """What is checked."""

    name: str
    kind: str  # PLUGIN or ALGORITHM
    make: Callable[..., Any]


def load_target(target: str, call: BoundedCall) -> CheckTarget:
    """Import it. ConfigError if that fails or takes too long, or if it is neither plugin nor algorithm."""
    try:
        name, found, kind = call(lambda: _identified(target))
    except (ConfigError, KeyboardInterrupt):
        raise
    except Hangs as exc:
        raise ConfigError(f"its import {exc}", where=target) from exc
    except BaseException as exc:
        raise ConfigError(f"its import {raised(exc)}", where=target) from exc
    if kind is None:
        problem = "has no method place(batch, snapshot, budget), as algorithms and schedulers have"
        raise ConfigError(f"{problem}, and derives from no base of plugins: {_BASES}", where=target)
    # An object instead of a class: as `hoss.sdk.main` takes it.
    return CheckTarget(name, kind, found if callable(found) else lambda: copy.deepcopy(found))


def _identified(target: str) -> tuple[str, Any, str | None]:
    name, found = _found(target)
    return name, found, _kind(found)


def _found(target: str) -> tuple[str, Any]:
    place, _, attribute = target.partition(":")
    if place.endswith(".py") and not attribute:
        return _only_one(module_of_file(Path(place)), place)
    if attribute:
        return attribute, named_object(target)
    if target in ALGORITHMS:
        return target, ALGORITHMS[target]
    points = [*entry_points(group=PLUGIN_GROUP), *entry_points(group=ALGORITHM_GROUP)]
    for point in points:
        if point.name == target:
            return target, point.load()
    known = ", ".join(sorted({*ALGORITHMS, *(point.name for point in points)}))
    raise ConfigError(
        f"is no entry point, of which there are {known}; or name FILE.py or module:Class", where=target
    )


def _only_one(module: ModuleType, where: str) -> tuple[str, Any]:
    """The class of a module that is a plugin or an algorithm. Other names of it, as of a variable that a loop
    leaves, are not counted."""
    found = {
        value.__name__: value
        for value in vars(module).values()
        if isinstance(value, type) and value.__module__ == module.__name__ and _kind(value) is not None
    }
    if len(found) != 1:
        several = f"has {', '.join(found)}; name one of them as FILE.py:Class"
        none = f"has no class with a method place or derived from one of {_BASES}"
        raise ConfigError(several if found else none, where=where)
    return next(iter(found.items()))


def _kind(found: Any) -> str | None:
    # A factory, unlike a class, does not show the methods of what it makes.
    made = found
    if callable(found) and not isinstance(found, type):
        made = _made(found)
    if callable(getattr(made, "place", None)):
        return ALGORITHM
    kind = made if isinstance(made, type) else type(made)
    return PLUGIN if issubclass(kind, PLUGIN_BASES) else None


def _made(factory: Callable[..., Any]) -> Any:
    try:
        return factory()
    except Exception:  # noqa: BLE001 - the check makes it again, and reports why it cannot
        return factory
