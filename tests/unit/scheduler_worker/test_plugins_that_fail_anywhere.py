"""A plugin from outside may raise or answer nonsense in any method: its pods hear of it, other pods and the
worker go on."""

import re
import sys

import numpy as np
import pytest

from hoss.model.pod import HostPort
from scheduler_worker.core.cycle.scheduler import Scheduler
from scheduler_worker.core.framework.extension_points import (
    FilterFastPaths,
    FilterPlugin,
    FilterState,
    PermitPlugin,
    Reads,
    Refusals,
    ScoreFastPaths,
    ScorePlugin,
    ScoreState,
)
from scheduler_worker.core.framework.registry import Weighted
from scheduler_worker.core.messages import Outcome
from scheduler_worker.core.plugins import DEFAULT_PLUGINS, REGISTRY

NODES = 3


def nothing(*_):
    return None


def raising(*_):
    raise LookupError("lost")


class Passes(FilterState):
    """Lets everything pass."""

    def __init__(self):
        self.passed = np.ones(NODES, np.bool_)

    def refresh(self):
        return True

    def refusals(self):
        return Refusals((), np.zeros(NODES, np.bool_))


class Likes(ScoreState):
    """Likes all nodes alike."""

    def refresh(self):
        return True

    def scores(self, feasible):
        return np.zeros(len(feasible), np.int64)


BY_SPECS = {"filter_reads": Reads.SPECS, "score_reads": Reads.SPECS}
BY_PODS = {"filter_reads": Reads.PODS, "score_reads": Reads.PODS}


def plugin_with(**members):
    """A plugin that has these methods alone, and works in all but those."""
    bases = [
        b for b in (FilterPlugin, ScorePlugin, PermitPlugin) if any(hasattr(b, name) for name in members)
    ]
    return type("Outside", tuple(bases), {"name": "Outside", "reason": "says Outside", **members})()


def filters_by(**members):
    return {"filter_state": lambda *_: type("Mine", (Passes,), members)(), **BY_PODS}


def scores_by(**members):
    return {"score_state": lambda *_: type("Mine", (Likes,), members)(), **BY_PODS}


def methods(**functions):
    return {name: staticmethod(function) for name, function in functions.items()}


def indexes(_pod, nodes):
    return np.arange(nodes.count)


def zeros(_pod, nodes):
    return np.zeros(nodes.count)


RAISES = {
    "pre_filter": methods(pre_filter=raising),
    "filter by specs": {**methods(filter=raising), **BY_SPECS},
    "filter": methods(filter=raising),
    "refusals": methods(filter=lambda _pod, nodes: np.zeros(nodes.count, np.bool_), refusals=raising),
    "reason_for": methods(filter=lambda _pod, nodes: np.zeros(nodes.count, np.bool_), reason_for=raising),
    "score by specs": {**methods(score=raising), **BY_SPECS},
    "normalize_score": {**methods(score=indexes, normalize_score=raising), **BY_SPECS},
    "score": methods(score=raising),
    "score that exits": methods(score=lambda *_: sys.exit("enough")),
    "filter_state": {**methods(filter_state=raising), **BY_PODS},
    "score_state": {**methods(score_state=raising), **BY_PODS},
    "refresh of a filter": filters_by(refresh=raising),
    "refresh of a score": scores_by(refresh=raising),
    "scores": scores_by(scores=raising),
    "one node of a filter": {"fast_filter": FilterFastPaths(raising), **methods(filter=nothing)},
    "one node of a score": {"fast_score": ScoreFastPaths(raising), **methods(score=zeros)},
}
ANSWERS = {
    "pre_filter with a word": methods(pre_filter=lambda _spec: "n1"),
    "a filter by specs that is too short": {
        **methods(filter=lambda _pod, nodes: np.ones(nodes.count - 1, np.bool_)), **BY_SPECS
    },
    "a filter by specs with one value": {**methods(filter=lambda *_: True), **BY_SPECS},
    "a filter that is too long": methods(filter=lambda _pod, nodes: np.ones(nodes.count + 1)),
    "raw scores below 0": {**methods(score=lambda _pod, nodes: np.full(nodes.count, -5)), **BY_SPECS},
    "raw scores that are words": {**methods(score=lambda _pod, nodes: ["a"] * nodes.count), **BY_SPECS},
    "normalised beyond 100": {
        **methods(score=indexes, normalize_score=lambda raw, _highest: raw + 101), **BY_SPECS
    },
    "normalised to nothing": {**methods(score=indexes, normalize_score=nothing), **BY_SPECS},
    "scores that are no numbers": methods(score=lambda _pod, nodes: np.full(nodes.count, np.nan)),
    "scores without end": methods(score=lambda _pod, nodes: np.full(nodes.count, np.inf)),
    "a state that is none": {**methods(filter_state=lambda *_: 7), **BY_PODS},
    "a score's state that is none": {**methods(score_state=lambda *_: 7), **BY_PODS},
    "a state that passes too few": filters_by(passed=property(lambda _: [True], nothing)),
    "a state that rejects with a word": filters_by(rejection="no"),
    "state scores too few": scores_by(scores=lambda _s, _f: np.zeros(1, np.int64)),
    "state scores beyond 100": scores_by(scores=lambda _s, f: np.full(len(f), 1000)),
    "a word for one node": {"fast_score": ScoreFastPaths(lambda *_: "much"), **methods(score=zeros)},
}  # fmt: skip
ABOUT_PODS = {"host_ports": (HostPort(8080),), "labels": (("app", "web"),)}


def worker_with(plugin, make_ledger, harness_of):
    harness = harness_of(make_ledger(NODES))
    plugins = (*DEFAULT_PLUGINS, Weighted("Outside", 1))
    profile = REGISTRY.extended({"Outside": lambda: plugin}).profile(plugins)
    harness.scheduler = Scheduler(harness.cache, profile, np.random.default_rng(1))
    return harness


def decide(harness, spec, pods=1):
    """Submit pods of a class and let the ledger say yes to what is proposed; (bound, outcomes of the
    others)."""
    harness.submit((spec, pods))
    bound = 0
    for proposal in harness.place():
        verdicts, update = harness.ledger.commit(proposal)
        harness.scheduler.settle(proposal.batch_id, verdicts)
        harness.cache.apply_feed(update)
        bound += len(proposal.uids)
    return bound, [outcome for outcome in harness.outcomes() if outcome[0] != Outcome.BOUND]


@pytest.mark.parametrize("broken", [*RAISES.values(), *ANSWERS.values()], ids=[*RAISES, *ANSWERS])
def test_its_pods_get_the_failure_as_their_reason_and_the_worker_goes_on(
    make_ledger, harness_of, make_pod, broken
):
    harness = worker_with(plugin_with(**broken), make_ledger, harness_of)
    said = set()
    for spec in (make_pod(), make_pod(cpu=200), make_pod(**ABOUT_PODS)):
        for _ in range(3):  # what is kept between pods of a class must not be spoilt
            _, others = decide(harness, spec)
            said |= {reason for _, _, reason in others}
    assert said
    assert all(re.match(r"plugin Outside failed: \w+", reason) for reason in said), said
    assert harness.scheduler.idle
    assert harness.scheduler.take_failures()


def test_a_failure_is_told_as_one_so_that_nobody_adds_nodes_for_it(make_ledger, harness_of, make_pod):
    harness = worker_with(plugin_with(**methods(score=raising)), make_ledger, harness_of)
    harness.submit((make_pod(), 1))
    harness.place()
    assert [outcome.failed for outcome in harness.scheduler.take_outcomes()] == [(True,)]


def test_a_plugin_that_cannot_bear_to_watch_is_told_of_and_harms_no_pod(make_ledger, harness_of, make_pod):
    plugin = plugin_with(**methods(observe=raising))
    harness = worker_with(plugin, make_ledger, harness_of)
    assert decide(harness, make_pod(), pods=4) == (4, [])
    assert [str(failure) for failure in harness.scheduler.take_failures()] == [
        "plugin Outside failed: LookupError: lost"
    ]


def test_a_decorated_method_is_checked_like_any_other(make_ledger, harness_of, make_pod):
    def decorated(*_):
        return np.zeros(1)

    harness = worker_with(plugin_with(**methods(score=decorated)), make_ledger, harness_of)
    _, [(_, _, reason)] = decide(harness, make_pod())
    assert reason == "plugin Outside failed: ValueError: answered with shape (1,) for 3 nodes"
