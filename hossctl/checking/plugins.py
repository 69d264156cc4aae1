"""Checks a plugin of others, method by method as the worker's framework calls them, and last in a whole
profile.

Each answer must have the right shape, type and range, come again for the same question, and be the same for
a node alone as among all nodes: the framework asks again only for nodes that changed. The columns that the
plugin is given are read-only here, because what it changed would be wrong for the next plugin."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hoss.errors import ConfigError
from hoss.model.pod import PodSpec
from hossctl.checking.clusters import PODS, CheckedCluster
from hossctl.checking.questions import Hangs, Questions, Wrong, mask, numbers
from hossctl.checking.targets import PLUGIN_METHODS
from scheduler_worker.core.cache.columns import NodeView
from scheduler_worker.core.classes import Demand
from scheduler_worker.core.framework.extension_points import MAX_SCORE, Rejection
from scheduler_worker.core.framework.registry import Weighted
from scheduler_worker.core.nodes import NodeIndexes
from scheduler_worker.core.offline.scheduler import examine, explain_placement
from scheduler_worker.core.placement.algorithms import BUDGET_SECONDS
from scheduler_worker.core.plugins import REGISTRY
from scheduler_worker.core.plugins.profiles import ProfileSpec

_ALONE = 12  # nodes that are also asked about alone
_MORE_PODS = 5

# An attribute without which the framework does not use the method.
_NEEDED = {
    "admits": "reason",
    "passes": "refusals",
    "refusals": "passes",
    "raw_score": "normalize",
    "normalize": "raw_score",
    "observe": "version",
}


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
            _check_attributes(made[0], questions)
            _ask_about_all(name, made[0], clusters, questions)
    except Hangs:
        pass
    questions.case = ""
    for method, seconds in questions.seconds.items():
        if seconds > BUDGET_SECONDS:
            questions.report(method, "budget", f"takes {seconds:.2f} s for one sort of pods", warns=True)
    return [method for plugin in made for method in PLUGIN_METHODS if _has(plugin, method)]


def _check_attributes(plugin: Any, questions: Questions) -> None:
    for method, needed in _NEEDED.items():
        if _has(plugin, method) and not hasattr(plugin, needed):
            questions.report(
                method, "missing", f"is never called: the class has no attribute {needed!r} beside it"
            )


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


def _has(plugin: Any, method: str) -> bool:
    return callable(getattr(plugin, method, None))


class _PluginQuestions:
    """The questions to a plugin about one sort of pods in one cluster."""

    def __init__(self, plugin: Any, cluster: CheckedCluster, spec: PodSpec, questions: Questions) -> None:
        self._plugin = plugin
        self._cache = cluster.snapshot.cache
        self._demand: Demand = cluster.snapshot.demands.compile(spec).demand
        self._questions = questions
        self._all: NodeIndexes = np.arange(cluster.nodes)
        self._cards = bool(getattr(plugin, "reads_cards", False)) or self._demand.devices is not None

    def ask_all(self) -> None:
        """Every method that the plugin has."""
        methods: dict[str, Callable[[], None]] = {
            "pre_enqueue": self._pre_enqueue,
            "pre_filter": self._pre_filter,
            "admits": self._admits,
            "passes": self._passes,
            "refusals": self._refusals,
            "raw_score": self._raw_score,
            "score": self._score,
            "passes_one": self._passes_one,
            "score_one": self._score_one,
            "observe": self._observe,
        }
        if self._demand.about_pods:
            methods |= {"filter_state": self._filter_state, "score_state": self._score_state}
        for method, ask in methods.items():
            if _has(self._plugin, method):
                with self._questions.about(method):
                    ask()

    def _ask(self, method: str, *args: Any, nodes: int = 0) -> Any:
        """`nodes`: how many it is asked about at once."""
        timed = nodes == len(self._all)
        return self._questions.ask(method, lambda: getattr(self._plugin, method)(*args), timed=timed)

    # Before nodes are looked at

    def _pre_enqueue(self) -> None:
        answer = self._ask("pre_enqueue", self._demand.spec)
        if answer is not None and not isinstance(answer, Rejection):
            raise Wrong("answer", f"answered with {type(answer).__name__}, and not with a Rejection or None")

    def _pre_filter(self) -> None:
        answer = self._ask("pre_filter", self._demand.spec)
        if not (answer is None or isinstance(answer, (Rejection, set, frozenset))):
            kinds = "a set of node names, a Rejection or None"
            raise Wrong("answer", f"answered with {type(answer).__name__}, and not with {kinds}")

    def _observe(self) -> None:
        self._ask("observe", self._demand, 3)
        if not isinstance(getattr(self._plugin, "version", 0), int):
            raise Wrong("version", "is beside an attribute version that is no whole number")

    # By specs

    def _admits(self) -> None:
        def ask(at: NodeIndexes) -> NDArray[Any] | None:
            answer = self._ask("admits", self._demand.spec, self._cache.catalogue, at, nodes=len(at))
            return None if answer is None else mask(answer, len(at))

        self._alike(ask, skipped=True)

    def _raw_score(self) -> None:
        def ask(at: NodeIndexes) -> NDArray[Any] | None:
            answer = self._ask("raw_score", self._demand.spec, self._cache.catalogue, at, nodes=len(at))
            return None if answer is None else numbers(answer, len(at), highest=None)

        raw = self._alike(ask, skipped=None, alone=not getattr(self._plugin, "of_all_nodes", False))
        if raw is None or not _has(self._plugin, "normalize"):
            return
        with self._questions.about("normalize"):
            # The framework normalises the scores of feasible nodes, of which there is one at least.
            for given in (raw.astype(np.int64), np.zeros(1, np.int64))[not len(raw) :]:
                given.flags.writeable = False
                highest = int(given.max(initial=0))
                numbers(self._ask("normalize", given, highest), len(given), highest=MAX_SCORE)

    # By requested amounts

    def _passes(self) -> None:
        def ask(at: NodeIndexes) -> NDArray[Any] | None:
            answer = self._ask("passes", self._demand, self._view(at), nodes=len(at))
            return None if answer is None else mask(answer, len(at))

        passed = self._alike(ask, skipped=True)
        if passed is None or not len(passed):
            return
        ahead = np.full(len(self._all), _MORE_PODS, np.int64)
        fuller = self._cache.view_ahead(self._all, self._demand, ahead, cards=self._cards)
        answer = self._ask("passes", self._demand, _read_only(fuller))
        then = np.ones_like(passed) if answer is None else mask(answer, len(passed))
        if (then & ~passed).any():
            node = int(np.flatnonzero(then & ~passed)[0])
            raise Wrong(
                "ahead",
                f"refuses {self._name(node)} and lets it pass with {_MORE_PODS} more pods on it: a node that "
                "refuses must also refuse when it is fuller",
            )

    def _refusals(self) -> None:
        if not _has(self._plugin, "passes"):
            return
        view = self._view(self._all)
        answer = self._ask("refusals", self._demand, view)
        passed = self._ask("passes", self._demand, view)
        self._same_refusals(answer, None if passed is None else mask(passed, len(self._all)))

    def _score(self) -> None:
        def ask(at: NodeIndexes) -> NDArray[Any] | None:
            answer = self._ask("score", self._demand, self._view(at), nodes=len(at))
            return None if answer is None else numbers(answer, len(at), highest=MAX_SCORE)

        self._alike(ask, skipped=None)

    def _passes_one(self) -> None:
        self._one_by_one("passes", "passes_one", lambda answer: mask(answer, len(self._all)), skipped=True)

    def _score_one(self) -> None:
        self._one_by_one(
            "score", "score_one", lambda answer: numbers(answer, len(self._all), highest=MAX_SCORE), skipped=0
        )

    def _one_by_one(
        self, method: str, one: str, checked: Callable[[Any], NDArray[Any]], *, skipped: int
    ) -> None:
        """The method for one node against the one for columns."""
        if not getattr(self._plugin, "one_at_a_time", False) or not _has(self._plugin, method):
            return
        answer = self._ask(method, self._demand, self._view(self._all))
        column = np.full(len(self._all), skipped) if answer is None else checked(answer)
        for node in self._some():
            alone = self._ask(one, self._demand, self._cache.one(node, cards=self._cards))
            if alone != column[node]:
                raise Wrong(
                    "agreement",
                    f"answered with {alone} for {self._name(node)}, and {method} with {column[node]:g}",
                )

    # By pods

    def _filter_state(self) -> None:
        state = self._ask("filter_state", self._demand.spec, self._cache)
        if state is None:
            return
        self._questions.ask("filter_state", state.refresh)
        passed = mask(self._questions.ask("filter_state", lambda: state.passed), len(self._all))
        self._same_refusals(self._questions.ask("filter_state", state.refusals), passed)

    def _score_state(self) -> None:
        state = self._ask("score_state", self._demand.spec, self._cache)
        if state is None:
            return
        self._questions.ask("score_state", state.refresh)
        feasible = self._cache.present
        answers = []
        for _ in range(2):
            answer = self._questions.ask("score_state", lambda: state.scores(feasible.copy()))
            if answer is None:
                return
            answers.append(numbers(answer, len(feasible), highest=MAX_SCORE, that_matter=feasible).copy())
        _same(answers[0], answers[1])

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

    def _view(self, at: NodeIndexes) -> NodeView:
        return _read_only(self._cache.view(at, cards=self._cards))

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


def _same(first: NDArray[Any] | None, second: NDArray[Any] | None) -> None:
    if (first is None) != (second is None) or (
        first is not None and second is not None and not np.array_equal(first, second)
    ):
        raise Wrong("determinism", "gave two answers to the same question: depend on the arguments alone")


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
