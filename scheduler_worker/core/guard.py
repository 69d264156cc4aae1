"""What stands between the framework and plugins from outside: whatever one of them does wrong becomes PluginFailed.

The pods that were being placed are then answered with the failure as their reason, and the worker goes on.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np

from hoss.errors import HossError

_MAX_SCORE = 100

# Methods that answer with one value a node: the values' type, and how many there must be.
_COLUMNS: dict[str, tuple[type[np.generic], Callable[..., int]]] = {
    "passes": (np.bool_, lambda demand, view: view.requested.shape[1]),  # noqa: ARG005 - called as the method is
    "score": (np.float64, lambda demand, view: view.requested.shape[1]),  # noqa: ARG005
    "admits": (np.bool_, lambda spec, catalogue, at: len(at)),  # noqa: ARG005
    "raw_score": (np.int64, lambda spec, catalogue, at: len(at)),  # noqa: ARG005
    "normalize": (np.int64, lambda raw, highest: len(raw)),  # noqa: ARG005
    "scores": (np.int64, len),
}
# Methods that answer with an object which is asked on.
_STANDINGS = ("filter_standing", "score_standing")


class PluginFailed(HossError):  # noqa: N818 - named for what happened, as in hoss.errors
    """A plugin from outside raised, or answered with something that is no answer. The cause is its exception."""

    def __init__(self, plugin: str, cause: Exception) -> None:
        super().__init__(f"plugin {plugin} failed: {type(cause).__name__}: {cause}")
        self.plugin = plugin


def guarded(name: str, factory: Callable[..., Any]) -> Callable[..., Any]:
    """The factory of the same plugins behind a guard, all called `name`."""

    def make(**args: Any) -> Any:
        try:
            return _Guarded(name, factory(**args))
        except (TypeError, HossError):
            raise  # about the arguments: whoever configured them is told
        except Exception as exc:
            raise PluginFailed(name, exc) from exc

    return make


class _Guarded:
    """Has the public attributes of the plugin, no others: the framework tells extension points by them."""

    def __init__(self, name: str, plugin: Any) -> None:
        for attribute in dir(plugin):
            if attribute.startswith("_") or attribute == "version":
                continue
            value = getattr(plugin, attribute)
            setattr(self, attribute, _guard(name, value) if callable(value) else value)
        self.name = name
        self._plugin = plugin

    @property
    def version(self) -> int:
        """Of an Observer, as of now."""
        return int(getattr(self._plugin, "version", 0))


class _GuardedStanding:
    """A standing (see framework.PodFilter and PodScore) of a plugin from outside."""

    def __init__(self, plugin: str, standing: Any) -> None:
        self._plugin = plugin
        self._standing = standing

    @property
    def passed(self) -> Any:
        """Of a FilterStanding, as of now."""
        try:
            return np.asarray(self._standing.passed, np.bool_)
        except Exception as exc:  # code of others may raise anything
            raise PluginFailed(self._plugin, exc) from exc

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._standing, name)
        return _guard(self._plugin, method) if callable(method) else method


def _guard(plugin: str, method: Callable[..., Any]) -> Callable[..., Any]:
    column = _COLUMNS.get(method.__name__)

    @wraps(method)
    def call(*args: Any) -> Any:
        try:
            answer = method(*args)
            if answer is not None and method.__name__ in _STANDINGS:
                return _GuardedStanding(plugin, answer)
            return answer if answer is None or column is None else _column(answer, column[0], column[1](*args))
        except Exception as exc:  # code of others may raise anything
            raise PluginFailed(plugin, exc) from exc

    return call


def _column(answer: Any, dtype: type[np.generic], count: int) -> Any:
    """A copy, for the framework computes in place. ValueError unless it is one value a node, in range where scores are."""
    column = np.array(answer, dtype)
    if column.shape != (count,):
        raise ValueError(f"answered with shape {column.shape} for {count} nodes")
    if dtype is np.float64 and not ((column >= 0) & (column <= _MAX_SCORE)).all():
        raise ValueError(f"gave a score outside 0 to {_MAX_SCORE}")
    return column
