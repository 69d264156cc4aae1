"""The sandbox of plugins from outside: any exception, any wrong answer and any call without an end of theirs
becomes PluginFailed.

A plugin is given the worker's own columns without copies, and so in a form that it cannot write to. The pods
that were being placed are answered with the failure as their reason, and the worker goes on. After a call
that had to be interrupted the plugin is not asked again."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hoss.errors import ConfigError, HossError
from scheduler_worker.core.cache.columns import NodeView, OneNode, RequestedResources
from scheduler_worker.core.framework.extension_points import (
    MAX_SCORE,
    Diagnosis,
    Failure,
    FilterFastPaths,
    FilterPlugin,
    FilterState,
    Permission,
    PermitPlugin,
    PlacedBatch,
    PreBindPlugin,
    Reads,
    Rejection,
    ReservedBatch,
    ScoreFastPaths,
    ScorePlugin,
    ScoreState,
    Unready,
    overrides,
)
from scheduler_worker.core.nodes import NodeSpecs

_Nodes: TypeAlias = int | tuple[int, ...]  # of one pod, or (k, m): m of each of k pods

_MAX_RAW_SCORE = 2**53  # exact as doubles, and a hundred times that is below 2**63


class PluginFailed(HossError):  # noqa: N818 - named for what happened, as in hoss.errors
    """A plugin or an algorithm from outside raised or returned an invalid answer. The cause is its
    exception."""

    def __init__(
        self, plugin: str, cause: BaseException, *, kind: Literal["plugin", "algorithm"] = "plugin"
    ) -> None:
        super().__init__(f"{kind} {plugin} failed: {type(cause).__name__}: {cause}")
        self.plugin = plugin


class PluginStuck(PluginFailed):
    """A call of a plugin from outside did not end, and was interrupted. The plugin is off from then on."""


class CallInterrupted(BaseException):
    """Raised within a running call of a plugin, to end it. No Exception, which a plugin may catch."""


@dataclass(slots=True)
class PluginCalls:
    """Which call of a plugin from outside is running. Another thread may read it, to notice a call that does
    not end."""

    plugins: list[str] = field(default_factory=list)  # that were made
    number: int = 0  # of the latest call; grows
    running: str = ""  # the plugin; empty: none
    stuck: dict[str, Exception] = field(default_factory=dict)  # plugins that are off, and why


class _Calls:
    """Calls the code of one plugin."""

    def __init__(self, plugin: str, calls: PluginCalls) -> None:
        self.plugin = plugin
        self._calls = calls

    def __call__(self, ask: Callable[..., Any], *args: Any) -> Any:
        """The answer. Raises PluginFailed alone."""
        calls = self._calls
        if self.plugin in calls.stuck:
            raise PluginStuck(self.plugin, calls.stuck[self.plugin])
        calls.number += 1
        try:
            calls.running = self.plugin
            return ask(*args)
        except (Exception, SystemExit) as exc:  # code of others may raise anything
            raise PluginFailed(self.plugin, exc) from exc
        except CallInterrupted as exc:
            cause = calls.stuck[self.plugin] = TimeoutError(str(exc))
            raise PluginStuck(self.plugin, cause) from exc
        finally:
            calls.running = ""

    def in_thread(self, ask: Callable[..., Any], *args: Any) -> Any:
        """The same in another thread than the main one, where nobody interrupts a call."""
        try:
            return ask(*args)
        except (Exception, SystemExit) as exc:
            raise PluginFailed(self.plugin, exc) from exc


def sandboxed(name: str, factory: Callable[..., Any], calls: PluginCalls) -> Callable[..., Any]:
    """A factory of the same plugins in a sandbox, all called `name`."""

    def make(**args: Any) -> Any:
        try:
            calls.plugins.append(name)
            return _sandboxed_plugin(factory(**args), _Calls(name, calls))
        except (TypeError, HossError):
            raise  # about the arguments: the caller reports it as a configuration error
        except Exception as exc:
            raise PluginFailed(name, exc) from exc

    return make


def _sandboxed_plugin(plugin: Any, calls: _Calls) -> Any:
    """An object of a class with the plugin's bases, what it declares, and those methods that it has itself:
    the framework asks for nothing else."""
    bases = [base for base in METHODS if isinstance(plugin, base)]
    if not bases:
        known = ", ".join(base.__name__ for base in METHODS)
        raise ConfigError(f"is {type(plugin).__name__}, which derives from none of {known}")
    members: dict[str, Any] = {"name": calls.plugin}
    for base in bases:
        members |= {key: getattr(plugin, key) for key in _DECLARED[base]}
        for method in METHODS[base]:
            if overrides(plugin, method):
                key = method.__name__
                members[key] = _sandboxed_method(key, plugin, calls)
    if isinstance(plugin, ScorePlugin):
        members["version"] = property(lambda _: calls(lambda: int(plugin.version)))
    for key, kind in _KINDS.items():
        if key in members and not isinstance(members[key], kind):
            raise ConfigError(f"{key} is {members[key]!r}, and must be {kind.__name__}")
    if isinstance(plugin, FilterPlugin):
        members["fast_filter"] = _sandboxed_filter_paths(plugin.fast_filter, calls)
    if isinstance(plugin, ScorePlugin):
        members["fast_score"] = _sandboxed_score_paths(plugin.fast_score, calls)
    return type(f"Sandboxed{type(plugin).__name__}", tuple(bases), members)()


def _sandboxed_filter_paths(paths: FilterFastPaths, calls: _Calls) -> FilterFastPaths:
    one, each = paths.one_node, paths.side_by_side
    return FilterFastPaths(
        None if one is None else lambda pod, node: calls(lambda: bool(one(pod, _read_only(node)))),
        None if each is None else lambda asked, view: calls(_passed_by_each, each, asked, view),
    )


def _sandboxed_score_paths(paths: ScoreFastPaths, calls: _Calls) -> ScoreFastPaths:
    one, each = paths.one_node, paths.side_by_side
    return ScoreFastPaths(
        None if one is None else lambda pod, node: calls(lambda: _score(one(pod, _read_only(node)))),
        None if each is None else lambda asked, view: calls(_scores_of_each, each, asked, view),
    )


def _passed_by_each(each: Callable[..., Any], asked: RequestedResources, view: NodeView) -> Any:
    answer = each(_read_only(asked), _read_only(view))
    return None if answer is None else _mask(answer, view.at.shape)


def _scores_of_each(each: Callable[..., Any], asked: RequestedResources, view: NodeView) -> Any:
    return _scores(each(_read_only(asked), _read_only(view)), np.float64, view.at.shape)


def _sandboxed_method(name: str, plugin: Any, calls: _Calls) -> Callable[..., Any]:
    method, check, state = getattr(plugin, name), _check_of(name, plugin), _STATES.get(name)

    def checked(*args: Any) -> Any:
        answer = method(*map(_read_only, args))
        if answer is None and name in _SKIPPING:
            return None
        if state is not None:
            return state(answer, args[1], calls)
        return answer if check is None else check(answer, *args)

    call = calls.in_thread if name in _IN_THREAD else calls
    return lambda _, *args: call(checked, *args)


def _read_only(given: Any) -> Any:
    """What a plugin is given, in a form in which it can change nothing of the worker's. Not a cache: states
    follow it."""
    way = _READ_ONLY.get(type(given))
    return given if way is None else way(given)


def _read_only_column(column: NDArray[Any]) -> NDArray[Any]:
    shown: NDArray[Any] = column.view()
    shown.flags.writeable = False
    return shown


def _read_only_view(view: NodeView) -> NodeView:
    # By hand: for small views dataclasses.replace takes longer than a plugin.
    return NodeView(
        view.catalogue,
        _read_only_column(view.at),
        _read_only_column(view.allocatable),
        _read_only_column(view.requested),
        _read_only_column(view.nonzero_requested),
        _read_only_column(view.divisors),
        _read_only_column(view.mean_factors),
        view.exact_in_doubles,
        None if view.cards_used is None else _read_only_column(view.cards_used),
        None if view.ahead is None else _read_only_column(view.ahead),
    )


def _copied_node(node: OneNode) -> OneNode:
    cards = node.cards_used
    return OneNode(
        node.allocatable.copy(),
        node.requested.copy(),
        node.nonzero_requested.copy(),
        None if cards is None else cards.copy(),
    )


_READ_ONLY: dict[type, Callable[[Any], Any]] = {
    np.ndarray: _read_only_column,
    NodeView: _read_only_view,
    NodeSpecs: lambda specs: NodeSpecs(specs.catalogue, _read_only_column(specs.at)),
    OneNode: _copied_node,
    RequestedResources: lambda asked: RequestedResources(
        _read_only_column(asked.request), _read_only_column(asked.nonzero)
    ),
    PlacedBatch: lambda pods: replace(
        pods, classes=_read_only_column(pods.classes), nodes=_read_only(pods.nodes)
    ),
    ReservedBatch: lambda pods: replace(
        pods,
        classes=_read_only_column(pods.classes),
        uids=_read_only_column(pods.uids),
        nodes=_read_only_column(pods.nodes),
    ),
}


class _SandboxedFilterState(FilterState):
    """What it says about whole runs (`steady`, `bounds`) and reserves is not asked for: that could not be
    checked."""

    def __init__(self, state: Any, cache: Any, calls: _Calls) -> None:
        self._state = _a(FilterState, state)
        self._cache = cache
        self._calls = calls

    def refresh(self) -> bool:
        """See FilterState."""
        return bool(self._calls(self._refresh))

    def refusals(self) -> Any:
        """See FilterState."""
        return self._calls(lambda: _refusals(self._state.refusals(), self._cache.size))

    def _refresh(self) -> bool:
        changed = bool(self._state.refresh())
        self.passed = _mask(self._state.passed, self._cache.size)
        rejection, failure = self._state.rejection, self._state.failure
        self.rejection = None if rejection is None else _a(Rejection, rejection)
        self.failure = None if failure is None else _a(Failure, failure)
        return changed


class _SandboxedScoreState(ScoreState):
    """As _SandboxedFilterState."""

    def __init__(self, state: Any, cache: Any, calls: _Calls) -> None:  # noqa: ARG002 - as for filters
        self._state = _a(ScoreState, state)
        self._calls = calls

    def refresh(self) -> bool:
        """See ScoreState."""
        return bool(self._calls(self._state.refresh))

    def scores(self, feasible: Any) -> Any:
        """See ScoreState. Scores of nodes that are not feasible are not checked."""
        return self._calls(self._scores, _read_only(feasible))

    def _scores(self, feasible: Any) -> Any:
        scores = self._state.scores(feasible)
        return None if scores is None else _scores(scores, np.int64, len(feasible), feasible)


def _a(kind: type[Any], answer: Any) -> Any:
    if not isinstance(answer, kind):
        raise TypeError(f"answered with {answer!r}, which is no {kind.__name__}")
    return answer


def _mask(answer: Any, nodes: _Nodes) -> Any:
    """A copy, for the framework computes in place. ValueError unless it is one bool a node: indexes of nodes
    would make a mask as well, of the wrong nodes."""
    return _column(answer, nodes, "b", "a mask is of bool").astype(np.bool_)


def _column(answer: Any, nodes: _Nodes, kinds: str, words: str) -> NDArray[Any]:
    """ValueError unless it is one value a node, of these kinds of dtype."""
    column = np.asarray(answer)
    if column.shape != ((nodes,) if isinstance(nodes, int) else nodes):
        asked = f"{nodes} nodes" if isinstance(nodes, int) else f"{nodes[0]} pods on {nodes[1]} nodes each"
        raise ValueError(f"answered with shape {column.shape} for {asked}")
    if column.dtype.kind not in kinds:
        raise ValueError(f"answered with {column.dtype}, and {words}")
    return column


def _scores(answer: Any, dtype: type[np.generic], nodes: _Nodes, that_matter: Any = slice(None)) -> Any:
    column = _numbers(answer, nodes)
    mattering = column[that_matter]
    # What is no number is not in range either.
    if not ((mattering >= 0) & (mattering <= MAX_SCORE)).all():
        _check_nan(mattering, "score")
        raise ValueError(f"gave a score outside 0 to {MAX_SCORE}")
    return np.where(np.isfinite(column), column, 0).astype(dtype)


def _raw_scores(answer: Any, count: int) -> Any:
    column = _numbers(answer, count)
    if not ((column >= 0) & (column <= _MAX_RAW_SCORE)).all():
        _check_nan(column, "raw score")
        if (column < 0).any():
            raise ValueError("gave a raw score below 0")
        raise ValueError(f"gave a raw score of {column.max():g}, above 2**53")
    return column.astype(np.int64)


def _numbers(answer: Any, nodes: _Nodes) -> NDArray[Any]:
    return _column(answer, nodes, "iuf", "scores are numbers")


def _check_nan(column: NDArray[Any], words: str) -> None:
    if np.isnan(column).any():
        raise ValueError(f"gave a {words} of nan")


def _score(answer: Any) -> int:
    if not 0 <= answer <= MAX_SCORE:
        raise ValueError(f"gave a score outside 0 to {MAX_SCORE}")
    return int(answer)


def _refusals(answer: Any, count: int) -> Any:
    for mask in (answer.unresolvable, *(mask for _, mask in answer.reasons)):
        _mask(mask, count)
    return answer


def _names_or_rejection(answer: Any) -> Any:
    return frozenset(answer) if isinstance(answer, (set, frozenset)) else _a(Rejection, answer)


def _permission(answer: Any, count: int) -> Permission:
    given: Permission = _a(Permission, answer)
    wait = None if given.wait is None else _mask(given.wait, count)
    return Permission(str(given.reason), _mask(given.denied, count), wait)


def _unready(answer: Any, count: int) -> Unready:
    given: Unready = _a(Unready, answer)
    return Unready(str(given.reason), _mask(given.pods, count))


def _check_of(method: str, plugin: Any) -> Callable[..., Any] | None:
    """The check of a method's answers, called with the answer and the method's arguments."""
    if method == "score" and plugin.score_reads is Reads.SPECS:
        return lambda answer, _pod, nodes: _raw_scores(answer, nodes.count)
    return _CHECKS.get(method)


# The methods of each base class that a plugin may have of its own.
METHODS: dict[type, tuple[Callable[..., Any], ...]] = {
    FilterPlugin: (
        FilterPlugin.pre_filter,
        FilterPlugin.filter,
        FilterPlugin.refusals,
        FilterPlugin.reason_for,
        FilterPlugin.filter_state,
    ),
    ScorePlugin: (
        ScorePlugin.pre_score,
        ScorePlugin.score,
        ScorePlugin.normalize_score,
        ScorePlugin.score_state,
        ScorePlugin.observe,
    ),
    PermitPlugin: (PermitPlugin.permit,),
    PreBindPlugin: (PreBindPlugin.pre_bind, PreBindPlugin.unreserve),
}
_DECLARED: dict[type, tuple[str, ...]] = {
    FilterPlugin: ("reason", "filter_reads"),
    ScorePlugin: ("score_reads", "reads_cards", "compares_nodes"),
    PermitPlugin: (),
    PreBindPlugin: (),
}
_KINDS: dict[str, type] = {"reason": str, "filter_reads": Reads, "score_reads": Reads}
_STATES: dict[str, Callable[[Any, Any, _Calls], Any]] = {
    "filter_state": _SandboxedFilterState,
    "score_state": _SandboxedScoreState,
}
# Methods that may return None.
_SKIPPING = frozenset(
    {
        *("pre_filter", "filter", "refusals", "filter_state"),
        *("pre_score", "score", "score_state", "permit", "pre_bind"),
    }
)
_IN_THREAD = frozenset({"pre_bind", "unreserve"})
_CHECKS: dict[str, Callable[..., Any]] = {
    "pre_filter": lambda answer, _spec: _names_or_rejection(answer),
    "filter": lambda answer, _pod, nodes: _mask(answer, nodes.count),
    "refusals": lambda answer, _pod, nodes: _refusals(answer, nodes.count),
    "reason_for": lambda answer, _spec: _a(str, answer),
    "pre_score": lambda answer, _spec: _a(str, answer),
    "score": lambda answer, _pod, nodes: _scores(answer, np.float64, nodes.count),
    # Nodes that are not feasible may lie beyond the highest: their scores are not checked.
    "normalize_score": lambda answer, raw, highest: _scores(answer, np.int64, len(raw), raw <= highest),
    "permit": lambda answer, pods: _permission(answer, len(pods.classes)),
    "pre_bind": lambda answer, pods: _unready(answer, len(pods.classes)),
}


_MOST_KNOWN = 100


class PluginFailures:
    """Failures of plugins from outside until they are logged, each kind once."""

    def __init__(self) -> None:
        self.noted = 0  # ever
        self.latest = ""
        self.stuck = ""  # the first failure by a call that did not end, in words; empty: there was none
        self._by_text: dict[str, PluginFailed | None] = {}  # None: taken

    def note(self, failure: PluginFailed) -> Diagnosis:
        """Remember a failure; returns the diagnosis of the pods that it kept from being placed. They are not
        unschedulable: no change of a node would wake them, and another worker may place them."""
        self.noted += 1
        self.latest = str(failure)
        self._by_text.setdefault(str(failure), failure)
        if isinstance(failure, PluginStuck) and not self.stuck:
            self.stuck = str(failure)
        return Diagnosis(str(failure), elsewhere=True, failed=True)

    def take(self) -> list[PluginFailed]:
        """Failures since the last call that are new."""
        taken = [failure for failure in self._by_text.values() if failure is not None]
        if taken:
            self._by_text = dict.fromkeys(self._by_text)
            if len(self._by_text) > _MOST_KNOWN:
                # Texts that differ each time: better logged twice than remembered for ever.
                self._by_text.clear()
        return taken
