"""Checks a plugin of others, method by method as the worker's framework calls them, and last in a whole
profile.

Each answer must have the right shape, type and range, come again for the same question, and be the same for
a node alone as among all nodes: the framework asks again only for nodes that changed. The columns that the
plugin is given are read-only here, because what it changed would be wrong for the next plugin."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hoss.errors import ConfigError
from hoss.model.pod import PodSpec
from hoss.wire.columns import numbered_uids
from hossctl.checking.clusters import PODS, CheckedCluster
from hossctl.checking.questions import Hangs, Questions, Wrong, mask, numbers
from hossctl.checking.targets import PLUGIN_BASES
from scheduler_worker.core.cache.columns import NodeView, RequestedResources
from scheduler_worker.core.classes import Demand
from scheduler_worker.core.framework.extension_points import (
    MAX_SCORE,
    FilterPlugin,
    FilterState,
    Permission,
    PermitPlugin,
    PlacedBatch,
    PreBindPlugin,
    Reads,
    Rejection,
    ReservedBatch,
    ScorePlugin,
    ScoreState,
    Unready,
    overrides,
)
from scheduler_worker.core.framework.registry import Weighted
from scheduler_worker.core.framework.sandbox import METHODS
from scheduler_worker.core.nodes import NodeIndexes, NodeSpecs
from scheduler_worker.core.offline.scheduler import examine, explain_placement
from scheduler_worker.core.placement.algorithms import BUDGET_SECONDS
from scheduler_worker.core.plugins import REGISTRY
from scheduler_worker.core.plugins.profiles import ProfileSpec

# By method, what has to be declared so that it is called.
_CALLED_BY = {
    "filter": ("filter_reads", (Reads.SPECS, Reads.REQUESTED)),
    "filter_state": ("filter_reads", (Reads.PODS,)),
    "score": ("score_reads", (Reads.SPECS, Reads.REQUESTED)),
    "normalize_score": ("score_reads", (Reads.SPECS,)),
    "score_state": ("score_reads", (Reads.PODS,)),
}

_ALONE = 12  # nodes that are also asked about alone
_MORE_PODS = 5
_PLACED = 7  # pods that a plugin is asked to permit or to prepare


def check_plugin(
    name: str,
    make: Callable[..., Any],
    args: Mapping[str, Any],
    clusters: Sequence[CheckedCluster],
    questions: Questions,
) -> list[str]:
    """Make the plugin with the arguments of a profile and ask about each cluster. Returns the methods that it
    has; what is wrong is in `questions`. A plugin that hangs is not asked again."""
    made: list[Any] = []
    try:
        with questions.about("the class"):
            made.append(questions.ask("make", lambda: make(**args)))
        if made:
            _check_declared(made[0], questions)
            _ask_about_all(name, made[0], clusters, questions)
    except Hangs:
        pass
    questions.case = ""
    for method, seconds in questions.seconds.items():
        if seconds > BUDGET_SECONDS:
            questions.report(method, "budget", f"takes {seconds:.2f} s for one sort of pods", warns=True)
    return [method for plugin in made for method in _methods(plugin)]


def _methods(plugin: Any) -> list[str]:
    """The methods that the plugin has of its own."""
    return [
        method.__name__
        for base in PLUGIN_BASES
        if isinstance(plugin, base)
        for method in METHODS[base]
        if overrides(plugin, method)
    ]


def _check_declared(plugin: Any, questions: Questions) -> None:
    """A method that what the plugin declares keeps from being called."""
    for method, (reads, readers) in _CALLED_BY.items():
        if method not in _methods(plugin):
            continue
        declared = getattr(plugin, reads)
        if declared not in readers:
            names = " or ".join(f"Reads.{one.name}" for one in readers)
            questions.report(method, "declared", f"is never called: {reads} is {declared}, and not {names}")


def _ask_about_all(name: str, plugin: Any, clusters: Sequence[CheckedCluster], questions: Questions) -> None:
    most = max(cluster.nodes for cluster in clusters)
    for cluster in clusters:
        for words, spec in PODS.items():
            questions.case = f"{words} on {cluster.words}"
            questions.measures = cluster.nodes == most
            _PluginQuestions(plugin, cluster, spec, questions).ask_all()
    if not questions.problems:
        _ask_in_profile(name, plugin, clusters, questions)


def _ask_in_profile(name: str, plugin: Any, clusters: Sequence[CheckedCluster], questions: Questions) -> None:
    """Have a profile with the plugin filter and score, as `hoss explain` does."""
    questions.case = ""
    try:
        profile = ProfileSpec((Weighted(name, 1),)).profile(REGISTRY.extended({name: lambda: plugin}))
    except ConfigError as exc:
        questions.report("the name", "taken", str(exc.text))
        return

    def explain(spec: PodSpec, cluster: CheckedCluster) -> None:
        explain_placement(examine(spec, cluster.snapshot, profile), cluster.snapshot, profile)

    for cluster in clusters:
        for words, spec in PODS.items():
            questions.case = f"{words} on {cluster.words}"
            with questions.about("the profile"):
                questions.ask("profile", partial(explain, spec, cluster))


class _PluginQuestions:
    """The questions to a plugin about one sort of pods in one cluster."""

    def __init__(self, plugin: Any, cluster: CheckedCluster, spec: PodSpec, questions: Questions) -> None:
        self._plugin = plugin
        self._cache = cluster.snapshot.cache
        self._demand: Demand = cluster.snapshot.demands.compile(spec).demand
        # The same pod with other amounts: what reads SPECS must not tell the two apart.
        self._other: Demand = cluster.snapshot.demands.compile(
            replace(spec, requests=tuple((name, amount + 1) for name, amount in spec.requests))
        ).demand
        self._questions = questions
        self._all: NodeIndexes = np.arange(cluster.nodes)
        reads_cards = isinstance(plugin, ScorePlugin) and plugin.reads_cards
        self._cards = reads_cards or self._demand.devices is not None

    def ask_all(self) -> None:
        """Every method that the plugin has and that is called."""
        methods: dict[str, Callable[[], None]] = {}
        if isinstance(self._plugin, FilterPlugin):
            methods |= {"pre_filter": self._pre_filter} | {
                Reads.SPECS: {"filter": self._filter, "refusals": self._refusals},
                Reads.REQUESTED: {"filter": self._filter, "refusals": self._refusals},
                Reads.PODS: {"filter_state": self._filter_state},
            }[self._plugin.filter_reads]
        if isinstance(self._plugin, ScorePlugin):
            methods |= {"observe": self._observe} | {
                Reads.SPECS: {"score": self._raw_score},
                Reads.REQUESTED: {"score": self._score},
                Reads.PODS: {"score_state": self._score_state},
            }[self._plugin.score_reads]
        if isinstance(self._plugin, PermitPlugin):
            methods["permit"] = self._permit
        if isinstance(self._plugin, PreBindPlugin):
            methods |= {"pre_bind": self._pre_bind, "unreserve": self._unreserve}
        if not self._demand.about_pods:
            methods.pop("filter_state", None)
            methods.pop("score_state", None)
        own = _methods(self._plugin)
        for method, ask in methods.items():
            if method in own:
                with self._questions.about(method):
                    ask()
        if "filter" in own and isinstance(self._plugin, FilterPlugin):
            with self._questions.about("fast_filter.one_node"):
                self._one_by_one("filter", self._plugin.fast_filter.one_node, skipped=True)
            with self._questions.about("fast_filter.side_by_side"):
                self._side_by_side("filter", self._plugin.fast_filter.side_by_side, mask)
        if "score" in own and isinstance(self._plugin, ScorePlugin):
            with self._questions.about("fast_score.one_node"):
                self._one_by_one("score", self._plugin.fast_score.one_node, skipped=0)
            with self._questions.about("fast_score.side_by_side"):
                self._side_by_side(
                    "score", self._plugin.fast_score.side_by_side, partial(numbers, highest=MAX_SCORE)
                )

    def _ask(self, method: str, *args: Any, nodes: int = 0) -> Any:
        """`nodes`: how many it is asked about at once."""
        timed = nodes == len(self._all)
        return self._questions.ask(method, lambda: getattr(self._plugin, method)(*args), timed=timed)

    # Of the pod, and of placed pods

    def _pre_filter(self) -> None:
        answer = self._ask("pre_filter", self._demand.spec)
        if not (answer is None or isinstance(answer, (Rejection, set, frozenset))):
            kinds = "a set of node names, a Rejection or None"
            raise Wrong("answer", f"answered with {type(answer).__name__}, and not with {kinds}")

    def _observe(self) -> None:
        self._ask("observe", self._demand, 3)
        if not isinstance(self._plugin.version, int):
            raise Wrong("version", "is beside an attribute version that is no whole number")

    def _permit(self) -> None:
        count = min(_PLACED, len(self._all))
        classes = np.zeros(count, np.intp)
        nodes = self._cache.specs(_read_only_column(self._all[:count]))
        answer = self._ask("permit", PlacedBatch((self._demand.spec,), classes, nodes))
        if answer is None:
            return
        if not isinstance(answer, Permission):
            raise Wrong("answer", f"answered with {type(answer).__name__}, and not with a Permission or None")
        for given in (answer.denied, answer.wait):
            if given is not None:
                mask(given, count)

    def _pre_bind(self) -> None:
        answer = self._ask("pre_bind", self._reserved())
        if answer is None:
            return
        if not isinstance(answer, Unready):
            raise Wrong("answer", f"answered with {type(answer).__name__}, and not with Unready or None")
        mask(answer.pods, len(self._reserved().classes))

    def _unreserve(self) -> None:
        # Twice: also pods that are not prepared, or not any more, are given back.
        for _ in range(2):
            self._ask("unreserve", self._reserved())

    def _reserved(self) -> ReservedBatch:
        count = min(_PLACED, len(self._all))
        specs = self._cache.catalogue.specs
        uids = numbered_uids(b"check plugin", 1, count)
        uids.flags.writeable = False
        nodes = [spec for node in range(count) if (spec := specs[node]) is not None]
        at = _read_only_column(np.arange(len(nodes)))
        return ReservedBatch(
            (self._demand.spec,), np.zeros(len(nodes), np.intp), uids[: len(nodes)], tuple(nodes), at
        )

    # Filters

    def _filter(self) -> None:
        def ask(at: NodeIndexes, demand: Demand = self._demand) -> NDArray[Any] | None:
            nodes = self._nodes(at, self._plugin.filter_reads)
            answer = self._ask("filter", demand, nodes, nodes=len(at))
            return None if answer is None else mask(answer, len(at))

        passed = self._alike(ask, skipped=True)
        if self._plugin.filter_reads is Reads.SPECS:
            self._by_specs_alone(passed, ask(self._all, self._other))
            return
        if passed is None or not len(passed):
            return
        ahead = np.full(len(self._all), _MORE_PODS, np.int64)
        fuller = self._cache.view_ahead(self._all, self._demand, ahead, cards=self._cards)
        answer = self._ask("filter", self._demand, _read_only(fuller))
        then = np.ones_like(passed) if answer is None else mask(answer, len(passed))
        if (then & ~passed).any():
            node = int(np.flatnonzero(then & ~passed)[0])
            raise Wrong(
                "ahead",
                f"refuses {self._name(node)} and lets it pass with {_MORE_PODS} more pods on it: a node that "
                "refuses must also refuse when it is fuller",
            )

    def _refusals(self) -> None:
        nodes = self._nodes(self._all, self._plugin.filter_reads)
        answer = self._ask("refusals", self._demand, nodes)
        passed = self._ask("filter", self._demand, nodes)
        self._same_refusals(answer, None if passed is None else mask(passed, len(self._all)))

    def _filter_state(self) -> None:
        state = self._ask("filter_state", self._demand.spec, self._cache)
        if state is None:
            return
        _is_state(state, FilterState)
        self._questions.ask("filter_state", state.refresh)
        passed = mask(self._questions.ask("filter_state", lambda: state.passed), len(self._all))
        self._same_refusals(self._questions.ask("filter_state", state.refusals), passed)

    # Scores

    def _raw_score(self) -> None:
        def ask(at: NodeIndexes, demand: Demand = self._demand) -> NDArray[Any] | None:
            answer = self._ask("score", demand, self._nodes(at, Reads.SPECS), nodes=len(at))
            return None if answer is None else numbers(answer, len(at), highest=None)

        raw = self._alike(ask, skipped=None, alone=not self._plugin.compares_nodes)
        self._by_specs_alone(raw, ask(self._all, self._other))
        if raw is None:
            return
        with self._questions.about("normalize_score"):
            # The framework normalises the scores of feasible nodes, of which there is one at least.
            for given in (raw.astype(np.int64), np.zeros(1, np.int64))[not len(raw) :]:
                given.flags.writeable = False
                highest = int(given.max(initial=0))
                numbers(self._ask("normalize_score", given, highest), len(given), highest=MAX_SCORE)

    def _score(self) -> None:
        def ask(at: NodeIndexes) -> NDArray[Any] | None:
            answer = self._ask("score", self._demand, self._nodes(at, Reads.REQUESTED), nodes=len(at))
            return None if answer is None else numbers(answer, len(at), highest=MAX_SCORE)

        self._alike(ask, skipped=None)

    def _score_state(self) -> None:
        state = self._ask("score_state", self._demand.spec, self._cache)
        if state is None:
            return
        _is_state(state, ScoreState)
        self._questions.ask("score_state", state.refresh)
        feasible = self._cache.present
        answers = []
        for _ in range(2):
            answer = self._questions.ask("score_state", lambda: state.scores(feasible.copy()))
            if answer is None:
                return
            answers.append(numbers(answer, len(feasible), highest=MAX_SCORE, that_matter=feasible).copy())
        _same(answers[0], answers[1])

    def _one_by_one(self, method: str, one: Callable[..., Any] | None, *, skipped: int) -> None:
        """The way to ask about one node against the method for columns."""
        if one is None:
            return
        answer = self._ask(method, self._demand, self._nodes(self._all, Reads.REQUESTED))
        column: NDArray[Any] = np.full(len(self._all), skipped) if answer is None else np.asarray(answer)
        for node in self._some():
            alone = self._questions.ask(
                method, partial(one, self._demand, self._cache.one(node, cards=self._cards))
            )
            if alone != column[node]:
                raise Wrong(
                    "agreement",
                    f"answered with {alone} for {self._name(node)}, and {method} with {column[node]:g}",
                )

    def _side_by_side(
        self, method: str, each: Callable[..., Any] | None, checked: Callable[[Any, int], NDArray[Any]]
    ) -> None:
        """The way to ask about two pods with nodes of their own against the method for columns."""
        pods, own = (self._demand, self._other), len(self._all) // 2
        if each is None or not own or not all(pod.plain for pod in pods):
            return
        asked = RequestedResources(
            _read_only_column(np.stack([pod.request for pod in pods], axis=1)[:, :, None]),
            _read_only_column(np.stack([pod.nonzero for pod in pods], axis=1)),
        )
        shape = (len(pods), own)
        view = _read_only(self._cache.side_by_side(slice(len(pods) * own), shape))
        answer = self._questions.ask(method, partial(each, asked, view))
        if answer is None and method == "filter":
            answer = np.ones(shape, np.bool_)
        if np.shape(answer) != shape:
            words = f"{len(pods)} pods on {own} nodes each"
            raise Wrong("answer", f"answered with shape {np.shape(answer)} for {words}")
        for row, pod in enumerate(pods):
            at = self._all[row * own : (row + 1) * own]
            alone = self._ask(method, pod, self._nodes(at, Reads.REQUESTED))
            expected = np.ones(own, np.bool_) if alone is None else alone
            for node in np.flatnonzero(checked(answer[row], own) != expected)[:1]:
                raise Wrong(
                    "agreement",
                    f"answered with {answer[row][node]} for {self._name(at[node])}, and {method} with "
                    f"{expected[node]}",
                )

    # Within

    def _alike(
        self, ask: Callable[[NodeIndexes], NDArray[Any] | None], *, skipped: bool | None, alone: bool = True
    ) -> NDArray[Any] | None:
        """The answer for all nodes, after it came twice and, with `alone`, for single nodes too. `skipped`:
        what None stands for."""
        column = ask(_read_only_column(self._all))
        column = None if column is None else column.copy()
        _same(column, ask(_read_only_column(self._all)))
        for node in self._some() if alone else ():
            single = ask(_read_only_column(np.array((node,))))
            of_all = skipped if column is None else column[node]
            of_one = skipped if single is None else single[0]
            if of_all != of_one:
                raise Wrong(
                    "agreement",
                    f"answered with {of_one} for {self._name(node)} alone, and with {of_all} for it among "
                    f"{len(self._all)} nodes: each node's answer must depend on that node alone",
                )
        return column

    def _some(self) -> list[int]:
        found: list[int] = self._all[:: max(1, len(self._all) // _ALONE)].tolist()
        return found

    def _nodes(self, at: NodeIndexes, reads: Reads) -> NodeSpecs:
        if reads is Reads.SPECS:
            return self._cache.specs(at)
        return _read_only(self._cache.view(at, cards=self._cards))

    def _by_specs_alone(self, column: NDArray[Any] | None, other: NDArray[Any] | None) -> None:
        if not _equal(column, other):
            raise Wrong("amounts", "answered otherwise for a pod with other requests, and reads SPECS alone")

    def _name(self, node: int) -> str:
        return f"node {self._cache.catalogue.name(node)}"

    def _same_refusals(self, refusals: Any, passed: NDArray[np.bool_] | None) -> None:
        count = len(self._all)
        refused = np.zeros(count, np.bool_)
        if refusals is not None:
            try:
                masks = [given for _, given in refusals.reasons]
                unresolvable = refusals.unresolvable
            except Exception as exc:
                raise Wrong(
                    "answer", f"answered with {type(refusals).__name__}, and not with Refusals"
                ) from exc
            mask(unresolvable, count)
            for given in masks:
                refused |= mask(given, count)
        if passed is None:
            passed = np.ones(count, np.bool_)
        if (refused == passed).any():
            node = int(np.flatnonzero(refused == passed)[0])
            text = (
                f"has a reason against {self._name(node)}, which passed"
                if refused[node]
                else f"has no reason against {self._name(node)}, which did not pass"
            )
            raise Wrong("refusals", text)


def _is_state(state: Any, kind: type) -> None:
    if not isinstance(state, kind):
        raise Wrong("answer", f"answered with {type(state).__name__}, which derives not from {kind.__name__}")


def _same(first: NDArray[Any] | None, second: NDArray[Any] | None) -> None:
    if not _equal(first, second):
        raise Wrong("determinism", "gave two answers to the same question: depend on the arguments alone")


def _equal(first: NDArray[Any] | None, second: NDArray[Any] | None) -> bool:
    if first is None or second is None:
        return first is second
    return np.array_equal(first, second)


def _read_only_column(at: NodeIndexes) -> NodeIndexes:
    given: NodeIndexes = at.copy()
    given.flags.writeable = False
    return given


def _read_only(view: NodeView) -> NodeView:
    for field in fields(view):
        column = getattr(view, field.name)
        if isinstance(column, np.ndarray):
            column.flags.writeable = False
    return view
