"""Plugins that other packages bring: entry points of the group hoss.plugins, named as profiles name them.

An entry point is loaded when a profile asks for its plugin, so one that is broken and not used harms nobody.
"""

from collections.abc import Callable, Iterable
from importlib.metadata import EntryPoint
from typing import Any

from hoss.errors import ConfigError

PLUGIN_GROUP = "hoss.plugins"


def factories(entry_points: Iterable[EntryPoint]) -> dict[str, Callable[..., Any]]:
    """A factory for each entry point, by name. ConfigError where two packages bring plugins of one name.

    A factory raises ConfigError where its entry point cannot be loaded, or is nothing that can be called.
    """
    found: dict[str, EntryPoint] = {}
    for point in entry_points:
        other = found.setdefault(point.name, point)
        if other.value != point.value:
            problem = f"is {point.name!r} for both {other.value} and {point.value}; uninstall one of the two"
            raise ConfigError(problem, where=f"entry points of {PLUGIN_GROUP}")
    return {name: _factory(point) for name, point in found.items()}


def _factory(point: EntryPoint) -> Callable[..., Any]:
    def make(**args: Any) -> Any:
        try:
            plugin = point.load()
        except Exception as exc:  # importing a package of others may raise anything
            raise ConfigError(f"cannot be loaded from {point.value}: {type(exc).__name__}: {exc}") from exc
        if not callable(plugin):
            raise ConfigError(f"is {type(plugin).__name__} at {point.value}; it must be the plugin's class")
        return plugin(**args)

    return make
