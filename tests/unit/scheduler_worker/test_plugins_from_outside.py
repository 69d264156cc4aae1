"""Plugins of other packages: the example of docs/plugins.md, how they are found, and what becomes of their
failures."""

import re
import sys
from copy import deepcopy
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from hoss.errors import ConfigError
from hoss.model.placing import FailureStreak
from hoss.wire.columns import numbered_uids
from scheduler_worker.config import factories
from scheduler_worker.core.cache.columns import RequestedResources
from scheduler_worker.core.cache.node_info import NodeInfoCache
from scheduler_worker.core.classes import compile_demand
from scheduler_worker.core.cycle.scheduler import Scheduler
from scheduler_worker.core.framework.extension_points import (
    FilterFastPaths,
    FilterPlugin,
    PermitPlugin,
    Reads,
    ReservedBatch,
    ScoreFastPaths,
    ScorePlugin,
)
from scheduler_worker.core.framework.registry import Weighted
from scheduler_worker.core.framework.sandbox import PluginFailed
from scheduler_worker.core.messages import Outcome
from scheduler_worker.core.plugins import DEFAULT_PLUGINS, REGISTRY
from scheduler_worker.core.plugins.profiles import ProfileSpec

DOCUMENT = Path(__file__).parents[3] / "docs" / "plugins.md"
ENERGY = "example.com/energy"


class Point(SimpleNamespace):
    """What extensions.py needs of an EntryPoint."""

    def load(self):
        if isinstance(self.plugin, Exception):
            raise self.plugin
        return self.plugin


@pytest.fixture(scope="module")
def documented():
    """The classes in the document's examples, as entry points would load them."""
    module = ModuleType("green_scheduling")
    for source in re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), flags=re.DOTALL):
        exec(source, module.__dict__)
    return module


@pytest.fixture(scope="module")
def green_energy(documented):
    return documented.GreenEnergy


@pytest.fixture
def harness_with(make_ledger, harness_of):
    """A harness over three nodes whose only score is a plugin from outside, and the plugin's name."""

    def make(plugin, ledger=None, **args):
        harness = harness_of(ledger or make_ledger(3))
        registry = REGISTRY.extended({"Outside": plugin})
        profile = ProfileSpec((Weighted("Outside", 1, args),)).profile(registry)
        scheduler = Scheduler(NodeInfoCache(), profile, np.random.default_rng(1))
        scheduler.cache.apply_feed(harness.ledger.snapshot())
        harness.scheduler = scheduler
        return harness

    return make


def test_the_documents_example_filters_and_scores(green_energy, make_ledger, make_pod, harness_with):
    ledger = make_ledger()
    for index, energy in enumerate(("coal", "green", "mixed", "green")):
        service = (("example.com/service", "soon"),) if index == 1 else ()
        ledger.add(
            index, labels=tuple(sorted(((ENERGY, energy), *service))), allocatable={"cpu": 1000, "pods": 2}
        )
    harness = harness_with(green_energy, ledger)
    harness.submit((make_pod(cpu=400, memory=0), 7))
    (proposal,) = harness.place()
    assert proposal.candidates[:, 0].tolist() == [3, 3, 2, 2, 0, 0]
    harness.settle([proposal])
    assert harness.outcomes()[6][2] == (
        "0/4 nodes are available: 1 node(s) were about to be serviced, 3 Insufficient cpu, 3 Too many pods."
    )


def test_the_documents_example_takes_its_argument(green_energy, make_ledger, make_pod, harness_with):
    ledger = make_ledger(2)
    ledger.add(2, labels=(("power", "green"),))
    harness = harness_with(green_energy, ledger, label="power")
    harness.submit((make_pod(), 1))
    (proposal,) = harness.place()
    assert proposal.candidates[0, 0] == 2


def test_the_documents_permit_plugin_lets_few_pods_start_on_cold_nodes(
    documented, make_ledger, make_pod, harness_with
):
    ledger = make_ledger()
    ledger.add(0, labels=(("example.com/warming-up", ""),))
    harness = harness_with(documented.FewOnColdNodes, ledger, at_once=2)
    harness.submit((make_pod(cpu=100), 5))
    (proposal,) = harness.place()
    assert len(proposal.uids) == 2
    assert [(code, reason) for code, _, reason in harness.outcomes()] == [
        (Outcome.CONFLICT, "its node was warming up")
    ] * 3


def test_the_documents_pre_bind_plugin_gives_out_as_many_licences_as_there_are(
    documented, make_pod, tmp_path
):
    plugin, uids = documented.Licences(tmp_path, licences=2), numbered_uids(b"twelve bytes", 0, 3)
    pods = ReservedBatch((make_pod(),), np.zeros(3, np.intp), uids, (), np.zeros(3, np.intp))
    answer = plugin.pre_bind(pods)
    assert (answer.reason, answer.pods.tolist()) == ("no licence was free", [False, False, True])
    assert plugin.pre_bind(pods).pods.tolist() == [False, False, True], "who has one keeps it"
    plugin.unreserve(pods.of(np.array([0, 2])))
    assert plugin.pre_bind(pods.of(np.array([2]))).pods.tolist() == [False]


def test_a_guarded_plugin_keeps_its_extension_points_and_gets_its_entry_points_name(green_energy):
    profile = ProfileSpec((Weighted("Sun", 1),)).profile(REGISTRY.extended({"Sun": green_energy}))
    (plugin,) = [p for p in profile.static_filters if p.name == "Sun"]
    assert isinstance(plugin, FilterPlugin)
    assert isinstance(plugin, ScorePlugin)


def test_entry_points_are_loaded_when_a_profile_asks_for_them():
    loaded = []

    class Quiet(ScorePlugin):
        name = "Quiet"

        def __init__(self):
            loaded.append("Quiet")

    broken = Point(name="Broken", value="broken:Plugin", plugin=ImportError("no module named numba"))
    registry = REGISTRY.extended(factories([Point(name="Quiet", value="quiet:Quiet", plugin=Quiet), broken]))
    assert loaded == []
    ProfileSpec((Weighted("Quiet"),)).profile(registry)
    assert loaded == ["Quiet"]
    with pytest.raises(
        ConfigError, match=r"plugins.Broken: cannot be loaded from broken:Plugin: ImportError: no mod"
    ):
        ProfileSpec((Weighted("Broken"),)).profile(registry)


def test_a_real_entry_point_is_loaded():
    point = EntryPoint(
        "Fit", "scheduler_worker.core.plugins.resources.resources_fit:ResourcesFit", "hoss.plugins"
    )
    assert factories([point])["Fit"](strategy="MostAllocated").name == "NodeResourcesFit"


def test_an_entry_point_that_is_no_class_is_refused():
    (make,) = factories([Point(name="Five", value="five:five", plugin=5)]).values()
    with pytest.raises(ConfigError, match="is int at five:five"):
        make()


def test_a_class_that_derives_from_no_base_of_plugins_is_refused():
    class Stray:
        name = "Stray"

    with pytest.raises(ConfigError, match="Stray, which derives from none of FilterPlugin, ScorePlugin"):
        ProfileSpec((Weighted("Mine"),)).profile(REGISTRY.extended({"Mine": Stray}))


def test_a_plugin_that_declares_nonsense_is_refused():
    class Nonsense(FilterPlugin):
        filter_reads = "specs"

    with pytest.raises(ConfigError, match="filter_reads is 'specs', and must be Reads"):
        ProfileSpec((Weighted("Mine"),)).profile(REGISTRY.extended({"Mine": Nonsense}))


def test_what_a_plugin_does_not_have_costs_the_others_no_fast_path():
    class Gate(FilterPlugin):
        def pre_filter(self, spec):
            return None

    profile = ProfileSpec((*DEFAULT_PLUGINS, Weighted("Gate"))).profile(REGISTRY.extended({"Gate": Gate}))
    assert profile.one_at_a_time is not None
    assert profile.side_by_side is not None


class Spare(FilterPlugin, ScorePlugin):
    """By memory, for one pod on many nodes and, with the same code, for several pods on nodes of their
    own."""

    def __init__(self, answer=lambda score: score):
        self._answer = answer
        self.fast_filter = FilterFastPaths(side_by_side=self.filter)
        self.fast_score = ScoreFastPaths(side_by_side=self.score)

    def used(self, pod, nodes):
        return 100 * (nodes.requested[1] + pod.request[1]) // np.maximum(nodes.allocatable[1], 1)

    def filter(self, pod, nodes):
        return self.used(pod, nodes) <= 90

    def score(self, pod, nodes):
        return self._answer(self.used(pod, nodes).clip(0, 100))


def two_pods_on_two_nodes_each(make_ledger, make_pod, plugin=Spare, **arguments):
    """A profile with the plugin, the pods' demands, the cache, and the answer about both pods."""
    cache = NodeInfoCache()
    cache.apply_feed(make_ledger(4).snapshot())
    profile = REGISTRY.extended({"Spare": plugin}).profile(
        (*DEFAULT_PLUGINS, Weighted("Spare", 2, arguments))
    )
    demands = [compile_demand(make_pod(memory=memory), cache.schema) for memory in (100, 1000)]
    asked = RequestedResources(
        np.stack([demand.request for demand in demands], axis=1)[:, :, None],
        np.stack([demand.nonzero for demand in demands], axis=1),
    )
    return profile, demands, cache, lambda: profile.evaluate_each(asked, cache.side_by_side(slice(4), (2, 2)))


@pytest.mark.parametrize("name", ["Spare", "SpareMemory"])
def test_a_plugin_that_can_look_at_pods_side_by_side_lets_others_do_so(
    make_ledger, make_pod, documented, name
):
    plugin = Spare if name == "Spare" else documented.SpareMemory
    profile, demands, cache, ask = two_pods_on_two_nodes_each(make_ledger, make_pod, plugin)
    passed, scores = ask()
    for row, demand in enumerate(demands):
        own = slice(2 * row, 2 * row + 2)
        of_all, score = profile.evaluate(demand, cache.view(None, cards=False))
        assert passed[row].tolist() == of_all[own].tolist()
        assert scores[row].tolist() == score[own].tolist()


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (lambda score: score[0], r"answered with shape \(2,\) for 2 pods on 2 nodes each"),
        (lambda score: score + 101, "gave a score outside 0 to 100"),
        (lambda score: score.astype(str), "and scores are numbers"),
    ],
)
def test_wrong_answers_about_pods_side_by_side_are_the_plugins_failure(
    make_ledger, make_pod, answer, problem
):
    *_, ask = two_pods_on_two_nodes_each(make_ledger, make_pod, answer=answer)
    with pytest.raises(PluginFailed, match=f"plugin Spare failed: ValueError: .*{problem}"):
        ask()


def test_a_plugin_is_given_no_columns_side_by_side_that_it_could_change(make_ledger, make_pod):
    class Writes(Spare):
        def score(self, pod, nodes):
            nodes.requested[1] += 1
            return super().score(pod, nodes)

    profile = REGISTRY.extended({"Writes": Writes}).profile((Weighted("Writes", 1),))
    cache = NodeInfoCache()
    cache.apply_feed(make_ledger(4).snapshot())
    demand = compile_demand(make_pod(), cache.schema)
    asked = RequestedResources(demand.request[:, None, None], demand.nonzero[:, None])
    with pytest.raises(PluginFailed, match="read-only"):
        profile.evaluate_each(asked, cache.side_by_side(slice(4), (1, 4)))


def test_two_packages_with_plugins_of_one_name_are_refused():
    points = [Point(name="Fit", value=f"{package}:Fit", plugin=object) for package in ("a", "b")]
    with pytest.raises(ConfigError, match="'Fit' for both a:Fit and b:Fit"):
        factories(points)


def test_a_plugin_may_not_take_the_name_of_one_that_comes_with_hoss():
    with pytest.raises(ConfigError, match="'NodeAffinity' is a plugin already"):
        REGISTRY.extended({"NodeAffinity": object})


def test_a_constructor_that_raises_is_told_by_its_plugins_name():
    def make():
        raise OSError("no licence")

    with pytest.raises(PluginFailed, match="plugin Mine failed: OSError: no licence"):
        ProfileSpec((Weighted("Mine"),)).profile(REGISTRY.extended({"Mine": make}))


class Outside(ScorePlugin):
    """Does in `score` what it is told."""

    name = "Outside"

    def __init__(self, act):
        self._act = act

    def score(self, pod, nodes):
        return self._act(pod, nodes.count)


def _raise(demand, nodes):
    raise RuntimeError("the sun is down")


@pytest.mark.parametrize(
    ("act", "problem"),
    [
        (_raise, "RuntimeError: the sun is down"),
        (lambda _demand, nodes: np.zeros(nodes + 1), r"ValueError: answered with shape \(4,\) for 3 nodes"),
        (lambda _demand, nodes: np.full(nodes, 101.0), "ValueError: gave a score outside 0 to 100"),
        (lambda _demand, nodes: np.full(nodes, np.nan), "ValueError: gave a score of nan"),
        (lambda _demand, nodes: ["much"] * nodes, "ValueError: answered with <U4, and scores are numbers"),
        (lambda _demand, nodes: [object()] * nodes, "ValueError: answered with object"),
        (lambda _demand, _nodes: sys.exit("bye"), "SystemExit: bye"),
    ],
)
def test_a_failing_plugin_is_the_pods_reason_and_is_told_once(harness_with, make_pod, act, problem):
    harness = harness_with(Outside, act=act)
    for _ in range(2):
        harness.submit((make_pod(), 3))
        assert harness.place() == []
        outcomes = harness.outcomes()
        assert {code for code, _, _ in outcomes} == {Outcome.CONFLICT}, "another worker may place them"
        assert re.match(f"plugin Outside failed: {problem}", outcomes[0][2])
    (failure,) = harness.scheduler.take_failures()
    assert failure.__cause__ is not None
    assert harness.scheduler.take_failures() == []
    assert harness.scheduler.idle


def test_other_pods_go_on_and_nothing_stays_assumed(harness_with, make_pod):
    def only_small(demand, nodes):
        if demand.request[0] > 500:
            raise ValueError("too large to think about")
        return np.zeros(nodes)

    harness = harness_with(Outside, act=only_small)
    harness.submit((make_pod(cpu=600), 2), (make_pod(cpu=100), 4))
    (proposal,) = harness.place()
    assert len(proposal.uids) == 4
    assert int(harness.cache.requested[0].sum()) == 400
    assert len(harness.outcomes()) == 2


def test_pods_placed_before_a_failure_keep_their_places(harness_with, make_pod):
    calls = []

    def later(demand, nodes):
        calls.append(nodes)
        if len(calls) > 2:
            raise ValueError("tired")
        return np.zeros(nodes)

    harness = harness_with(Outside, act=later)
    harness.submit((make_pod(cpu=100), 3))
    (proposal,) = harness.place()
    assert 0 < len(proposal.uids) < 3
    assert int(harness.cache.requested[0].sum()) == 100 * len(proposal.uids)
    assert {reason for _, _, reason in harness.outcomes()} == {"plugin Outside failed: ValueError: tired"}


def test_what_the_framework_does_to_a_column_does_not_reach_the_plugin(harness_with, make_ledger, make_pod):
    kept = np.full(3, 50.0)
    harness = harness_with(Outside, act=lambda _demand, nodes: kept[:nodes])
    harness.submit((make_pod(), 2))
    harness.place()
    assert kept.tolist() == [50.0] * 3


class RawOutside(Outside):
    """The same by specs alone."""

    score_reads = Reads.SPECS


@pytest.mark.parametrize(
    ("act", "problem"),
    [
        (lambda _demand, nodes: np.full(nodes, -1), "ValueError: gave a raw score below 0"),
        (lambda _demand, nodes: np.full(nodes, np.nan), "ValueError: gave a raw score of nan"),
        (
            lambda _demand, nodes: np.full(nodes, 1e300),
            "ValueError: gave a raw score of 1e[+]300, above 2[*][*]53",
        ),
        (
            lambda _demand, nodes: np.full(nodes, 2**60),
            "ValueError: gave a raw score of 1.15292e[+]18, above",
        ),
    ],
)
def test_raw_scores_that_are_no_amounts_are_named(harness_with, make_pod, act, problem):
    harness = harness_with(RawOutside, act=act)
    harness.submit((make_pod(), 3))
    assert harness.place() == []
    assert re.match(f"plugin Outside failed: {problem}", harness.outcomes()[0][2])


class OutsideFilter(FilterPlugin):
    """Does in `filter` what it is told."""

    name = "Outside"

    def __init__(self, act):
        self._act = act

    def filter(self, pod, nodes):
        return self._act(pod, nodes)


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (
            lambda _pod, nodes: np.arange(nodes.count),
            "ValueError: answered with int64, and a mask is of bool",
        ),
        (
            lambda _pod, nodes: np.full(nodes.count, np.nan),
            "ValueError: answered with float64, and a mask is of bool",
        ),
        (lambda _pod, nodes: [None] * nodes.count, "ValueError: answered with object, and a mask is of bool"),
        (lambda _pod, _nodes: True, r"ValueError: answered with shape \(\) for 3 nodes"),
    ],
)
def test_indexes_of_nodes_are_not_taken_for_a_mask(harness_with, make_pod, answer, problem):
    harness = harness_with(OutsideFilter, act=answer)
    harness.submit((make_pod(), 3))
    assert harness.place() == []
    assert re.match(f"plugin Outside failed: {problem}", harness.outcomes()[0][2])


COLUMNS = ("allocatable", "requested", "nonzero_requested", "divisors", "mean_factors", "at")


def _write(column):
    def act(_pod, nodes):
        getattr(nodes, column)[...] = 1
        return np.ones(nodes.count, bool)

    return act


@pytest.mark.parametrize("column", COLUMNS)
def test_a_plugin_that_writes_to_a_column_it_was_given_is_named_and_changes_nothing(
    harness_with, make_ledger, make_pod, column
):
    harness = harness_with(OutsideFilter, act=_write(column))
    cache = harness.cache
    before = [cache.accounts.allocatable.copy(), cache.requested.copy(), cache.accounts.divisors.copy()]
    harness.submit((make_pod(), 3))
    assert harness.place() == []
    assert re.match(
        "plugin Outside failed: ValueError: assignment destination is read-only", harness.outcomes()[0][2]
    )
    after = [cache.accounts.allocatable, cache.requested, cache.accounts.divisors]
    assert all(np.array_equal(old, new) for old, new in zip(before, after, strict=True))


def test_columns_that_a_plugin_kept_stay_read_only(harness_with, make_pod):
    kept = []

    def keep(pod, nodes):
        kept[:] = pod.request, nodes.requested
        for column in kept:
            with pytest.raises(ValueError, match="read-only"):
                column[...] = 0
        return np.ones(nodes.count, bool)

    harness = harness_with(OutsideFilter, act=keep)
    harness.submit((make_pod(cpu=100), 2))
    (proposal,) = harness.place()
    assert len(proposal.uids) == 2
    assert kept
    assert int(harness.cache.requested[0].sum()) == 200


class OneByOne(ScorePlugin):
    """Takes from a node what it is shown of it."""

    name = "Outside"

    def __init__(self):
        self.fast_score = ScoreFastPaths(self._points)

    def score(self, pod, nodes):
        return np.zeros(nodes.count)

    def _points(self, pod, node):
        node.requested[:] = [0] * len(node.requested)
        node.allocatable.clear()
        return 0


def test_what_a_plugin_does_to_a_single_node_does_not_reach_the_next_plugin(make_ledger, harness_of):
    harness = harness_of(make_ledger(1))
    profile = REGISTRY.extended({"Outside": OneByOne}).profile((Weighted("Outside", 1),))
    ((points, _),) = profile.one_at_a_time.scores
    node = harness.cache.one(0, cards=False)
    before = deepcopy(node)
    assert points(None, node) == 0
    assert node == before


def test_a_worker_whose_plugin_always_fails_says_so_until_it_answers(harness_with, make_pod):
    broken = [True]

    def act(_pod, nodes):
        if broken[0]:
            raise RuntimeError("the sun is down")
        return np.zeros(nodes)

    harness = harness_with(Outside, act=act)
    said = []
    for _ in range(FailureStreak.MOST + 1):
        said.append(harness.scheduler.failing(0.0))
        harness.submit((make_pod(), 3))
        harness.place()
    assert said == [""] * FailureStreak.MOST + ["plugin Outside failed: RuntimeError: the sun is down"]
    assert {code for code, _, _ in harness.outcomes()} == {Outcome.CONFLICT}
    broken[0] = False
    harness.submit((make_pod(), 3))
    assert harness.place()
    assert harness.scheduler.failing(0.0) == ""


def test_a_plugin_that_fails_for_some_pods_alone_is_not_said_to_fail(harness_with, make_pod):
    def only_small(demand, nodes):
        if demand.request[0] > 500:
            raise ValueError("too large to think about")
        return np.zeros(nodes)

    harness = harness_with(Outside, act=only_small)
    for _ in range(2 * FailureStreak.MOST):
        harness.submit((make_pod(cpu=600), 1), (make_pod(cpu=1), 1))
        harness.place()
        assert harness.scheduler.failing(0.0) == ""


def test_a_permit_plugin_that_always_fails_counts_though_pods_were_placed_before(
    harness_of, make_ledger, make_pod
):
    class Broken(PermitPlugin):
        def permit(self, pods):
            raise RuntimeError("nobody is in")

    harness = harness_of(make_ledger(3))
    profile = REGISTRY.extended({"Outside": Broken}).profile((*DEFAULT_PLUGINS, Weighted("Outside")))
    harness.scheduler = Scheduler(harness.cache, profile, np.random.default_rng(1))
    for _ in range(FailureStreak.MOST):
        assert harness.scheduler.failing(0.0) == ""
        harness.submit((make_pod(), 3))
        assert harness.place() == []
    assert harness.scheduler.failing(0.0) == "plugin Outside failed: RuntimeError: nobody is in"


def test_a_streak_of_failures_ends_by_itself_and_the_next_failure_doubles_the_time():
    streak = FailureStreak()
    for _ in range(FailureStreak.MOST):
        streak.failed("why", 10.0)
    assert (streak.failing(39.9), streak.failing(40.0)) == ("why", "")
    streak.failed("why", 50.0)
    assert (streak.failing(109.9), streak.failing(110.0)) == ("why", "")
    for now in range(1000, 5000, 1000):
        streak.failed("why", float(now))
    assert (streak.failing(4299.9), streak.failing(4300.0)) == ("why", "")
    streak.failed("why", 5000.0)
    streak.succeeded()
    streak.failed("why", 5001.0)
    assert not streak.failing(5001.0)
