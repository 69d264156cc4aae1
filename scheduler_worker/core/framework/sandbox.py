"""The sandbox of plugins from outside: any exception and any wrong answer of theirs becomes PluginFailed.

The pods that were being placed are answered with the failure as their reason, and the worker goes on."""

from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from hoss.errors import HossError
from scheduler_worker.core.framework.extension_points import Diagnosis

_MAX_SCORE = 100


class PluginFailed(HossError):  # noqa: N818 - named for what happened, as in hoss.errors
    """A plugin or an algorithm from outside raised or returned an invalid answer. The cause is its
    exception."""

    def __init__(
        self, plugin: str, cause: Exception, *, kind: Literal["plugin", "algorithm"] = "plugin"
    ) -> None:
        super().__init__(f"{kind} {plugin} failed: {type(cause).__name__}: {cause}")
        self.plugin = plugin


def sandboxed(name: str, factory: Callable[..., Any]) -> Callable[..., Any]:
    """A factory of the same plugins in a sandbox, all called `name`."""

    def make(**args: Any) -> Any:
        try:
            return _SandboxedPlugin(name, factory(**args))
        except (TypeError, HossError):
            raise  # about the arguments: the caller reports it as a configuration error
        except Exception as exc:
            raise PluginFailed(name, exc) from exc

    return make


class _SandboxedPlugin:
    """Has exactly the plugin's public attributes: the framework recognises extension points by them."""

    def __init__(self, name: str, plugin: Any) -> None:
        for attribute in dir(plugin):
            # Scoring pods side by side is for plugins whose answers need no checks.
            if attribute.startswith("_") or attribute in ("version", "side_by_side"):
                continue
            value = getattr(plugin, attribute)
            setattr(self, attribute, _sandboxed_method(name, attribute, value) if callable(value) else value)
        self.name = name
        self._plugin = plugin

    @property
    def version(self) -> int:
        """See Observer."""
        try:
            return int(getattr(self._plugin, "version", 0))
        except Exception as exc:  # code of others may raise anything
            raise PluginFailed(self.name, exc) from exc


class _SandboxedState:
    """The state (see PodFilter and PodScore) of a plugin from outside, on the nodes of a cache."""

    def __init__(self, plugin: str, state: Any, cache: Any) -> None:
        self._plugin = plugin
        self._state = state
        self._cache = cache

    @property
    def passed(self) -> Any:
        """See FilterState."""
        return self._checked(lambda: _column(self._state.passed, np.bool_, self._cache.size))

    def refresh(self) -> bool:
        """See FilterState."""
        return bool(self._checked(lambda: self._state.refresh()))  # noqa: PLW0108 - it may be missing

    def refusals(self) -> Any:
        """See FilterState."""
        return self._checked(lambda: _refusals(self._state.refusals(), self._cache.size))

    def scores(self, feasible: Any) -> Any:
        """See ScoreState. Scores of nodes that are not feasible are not checked."""

        def check() -> Any:
            scores = self._state.scores(feasible)
            return None if scores is None else _scores(scores, np.int64, len(feasible), feasible)

        return self._checked(check)

    def _checked(self, ask: Callable[[], Any]) -> Any:
        try:
            return ask()
        except Exception as exc:  # code of others may raise anything
            raise PluginFailed(self._plugin, exc) from exc


def _sandboxed_method(plugin: str, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    check = _CHECKS.get(name)

    def call(*args: Any) -> Any:
        try:
            answer = method(*args)
            if name in _STATES:
                return None if answer is None else _SandboxedState(plugin, answer, args[1])
            return answer if check is None or (answer is None and name in _SKIPPING) else check(answer, *args)
        except Exception as exc:  # code of others may raise anything
            raise PluginFailed(plugin, exc) from exc

    return call


def _column(answer: Any, dtype: type[np.generic], count: int) -> Any:
    """A copy, for the framework computes in place. ValueError unless it is one value a node."""
    column = np.array(answer, dtype)
    if column.shape != (count,):
        raise ValueError(f"answered with shape {column.shape} for {count} nodes")
    return column


def _scores(answer: Any, dtype: type[np.generic], count: int, that_matter: Any = slice(None)) -> Any:
    column = _column(answer, dtype, count)
    mattering = column[that_matter]
    if not ((mattering >= 0) & (mattering <= _MAX_SCORE)).all():
        raise ValueError(f"gave a score outside 0 to {_MAX_SCORE}")
    return column


def _raw_scores(answer: Any, count: int) -> Any:
    column = _column(answer, np.int64, count)
    if (column < 0).any():
        raise ValueError("gave a raw score below 0")
    return column


def _score(answer: Any) -> int:
    if not 0 <= answer <= _MAX_SCORE:
        raise ValueError(f"gave a score outside 0 to {_MAX_SCORE}")
    return int(answer)


def _refusals(answer: Any, count: int) -> Any:
    for mask in (answer.unresolvable, *(mask for _, mask in answer.reasons)):
        _column(mask, np.bool_, count)
    return answer


def _rejection(answer: Any) -> Any:
    if not (isinstance(answer.plugin, str) and isinstance(answer.reason, str)):
        raise TypeError(f"answered with {answer!r}, which is no Rejection")
    return answer


def _names_or_rejection(answer: Any) -> Any:
    return frozenset(answer) if isinstance(answer, (set, frozenset)) else _rejection(answer)


def _nodes(view: Any) -> int:
    return int(view.requested.shape[1])


# Methods that return a state, whose answers are checked too.
_STATES = ("filter_state", "score_state")
# Methods that may return None (Skip).
_SKIPPING = frozenset({"pre_enqueue", "pre_filter", "admits", "passes", "refusals", "raw_score", "score"})
# Checks of answers by the method's name, called with the answer and the method's arguments.
_CHECKS: dict[str, Callable[..., Any]] = {
    "pre_enqueue": lambda answer, _spec: _rejection(answer),
    "pre_filter": lambda answer, _spec: _names_or_rejection(answer),
    "admits": lambda answer, _spec, _catalogue, at: _column(answer, np.bool_, len(at)),
    "passes": lambda answer, _demand, view: _column(answer, np.bool_, _nodes(view)),
    "refusals": lambda answer, _demand, view: _refusals(answer, _nodes(view)),
    "raw_score": lambda answer, _spec, _catalogue, at: _raw_scores(answer, len(at)),
    # Nodes that are not feasible may lie beyond the highest: their scores are not checked.
    "normalize": lambda answer, raw, highest: _scores(answer, np.int64, len(raw), raw <= highest),
    "score": lambda answer, _demand, view: _scores(answer, np.float64, _nodes(view)),
    "passes_one": lambda answer, _demand, _node: bool(answer),
    "score_one": lambda answer, _demand, _node: _score(answer),
}


_MOST_KNOWN = 100


class PluginFailures:
    """Failures of plugins from outside until they are logged, each kind once."""

    def __init__(self) -> None:
        self._by_text: dict[str, PluginFailed | None] = {}  # None: taken

    def note(self, failure: PluginFailed) -> Diagnosis:
        """Remember a failure; returns the diagnosis of the pods that it kept from being placed."""
        self._by_text.setdefault(str(failure), failure)
        return Diagnosis(str(failure), frozenset())

    def take(self) -> list[PluginFailed]:
        """Failures since the last call that are new."""
        taken = [failure for failure in self._by_text.values() if failure is not None]
        if taken:
            self._by_text = dict.fromkeys(self._by_text)
            if len(self._by_text) > _MOST_KNOWN:
                # Texts that differ each time: better logged twice than remembered for ever.
                self._by_text.clear()
        return taken
