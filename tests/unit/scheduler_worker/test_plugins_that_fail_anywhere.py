"""A plugin from outside may raise or answer nonsense in any method: its pods hear of it, other pods and the
worker go on."""

import re

import numpy as np
import pytest

from hoss.model.pod import HostPort
from scheduler_worker.core.cycle.scheduler import Scheduler
from scheduler_worker.core.framework.extension_points import Refusals
from scheduler_worker.core.framework.registry import Weighted
from scheduler_worker.core.messages import Outcome
from scheduler_worker.core.plugins import DEFAULT_PLUGINS, REGISTRY

NODES = 3


def nothing(*_):
    return None


def raising(*_):
    raise LookupError("lost")


class State:
    """Of a pod filter and a pod score that let everything pass."""

    def __init__(self):
        self.passed = np.ones(NODES, np.bool_)

    def refresh(self):
        return True

    def refusals(self):
        return Refusals((), np.zeros(NODES, np.bool_))

    def scores(self, feasible):
        return np.zeros(len(feasible), np.int64)


def plugin_with(**methods):
    """A plugin that has these methods alone, and works in all but those."""
    return type("Outside", (), {"name": "Outside", "reason": "says Outside", **methods})()


def state_with(**methods):
    return lambda *_: type("Mine", (State,), methods)()


def methods(**functions):
    return {name: staticmethod(function) for name, function in functions.items()}


RAISES = {
    "pre_enqueue": methods(pre_enqueue=raising),
    "pre_filter": methods(pre_filter=raising),
    "admits": methods(admits=raising),
    "passes": methods(passes=raising, refusals=nothing),
    "raw_score": methods(raw_score=raising, normalize=raising),
    "normalize": methods(raw_score=lambda _spec, _cat, at: np.arange(len(at)), normalize=raising),
    "score": methods(score=raising),
    "filter_state": methods(filter_state=raising),
    "score_state": methods(score_state=raising),
    "refresh of a filter": methods(filter_state=state_with(refresh=raising)),
    "refresh of a score": methods(score_state=state_with(refresh=raising)),
    "scores": methods(score_state=state_with(scores=raising)),
    "passes_one": {"one_at_a_time": True, **methods(passes=nothing, refusals=nothing, passes_one=raising)},
    "score_one": {
        "one_at_a_time": True,
        **methods(score=lambda _d, view: np.zeros(view.requested.shape[1]), score_one=raising),
    },
}  # fmt: skip
ANSWERS = {
    "pre_enqueue with a word": methods(pre_enqueue=lambda _spec: "no"),
    "pre_filter with a word": methods(pre_filter=lambda _spec: "n1"),
    "admits too short": methods(admits=lambda _spec, _cat, at: np.ones(len(at) - 1, np.bool_)),
    "admits with one value": methods(admits=lambda *_: True),
    "passes too long":
        methods(passes=lambda _d, view: np.ones(view.requested.shape[1] + 1), refusals=nothing),
    "raw scores below 0":
        methods(raw_score=lambda _s, _c, at: np.full(len(at), -5), normalize=lambda raw, _h: raw),
    "raw scores that are words":
        methods(raw_score=lambda _s, _c, at: ["a"] * len(at), normalize=lambda raw, _h: raw),
    "normalised beyond 100":
        methods(raw_score=lambda _s, _c, at: np.arange(len(at)), normalize=lambda raw, _h: raw + 101),
    "normalised to nothing": methods(raw_score=lambda _s, _c, at: np.arange(len(at)), normalize=nothing),
    "scores that are no numbers": methods(score=lambda _d, view: np.full(view.requested.shape[1], np.nan)),
    "scores without end": methods(score=lambda _d, view: np.full(view.requested.shape[1], np.inf)),
    "a state that is none": methods(filter_state=lambda *_: 7),
    "a state that passes too few":
        methods(filter_state=state_with(passed=property(lambda _s: [True], nothing))),
    "state scores too few": methods(score_state=state_with(scores=lambda _s, _f: np.zeros(1, np.int64))),
    "state scores beyond 100": methods(score_state=state_with(scores=lambda _s, f: np.full(len(f), 1000))),
    "a word for one node": {
        "one_at_a_time": True,
        **methods(
            score=lambda _d, view: np.zeros(view.requested.shape[1]), score_one=lambda *_: "much"
        ),
    },
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


def test_a_plugin_that_cannot_bear_to_watch_is_told_of_and_harms_no_pod(make_ledger, harness_of, make_pod):
    plugin = plugin_with(version=0, **methods(observe=raising))
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
