"""A call of a plugin that does not end is noticed, interrupted and named, and its pods go elsewhere."""

import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest

from scheduler_worker.core.cycle.scheduler import Scheduler
from scheduler_worker.core.framework.extension_points import ScorePlugin
from scheduler_worker.core.framework.registry import Weighted
from scheduler_worker.core.framework.sandbox import PluginCalls
from scheduler_worker.core.messages import Outcome
from scheduler_worker.core.plugins import DEFAULT_PLUGINS, REGISTRY
from scheduler_worker.plugin_watch import PluginOff, PluginWatch

LIMIT = 1.0  # a machine may hold up a call that does not take long
REASON = "plugin Outside failed: TimeoutError: has not answered for 1 s"


class Sleeps(ScorePlugin):
    """Never scores large pods, and the others at once."""

    calls = 0

    def score(self, pod, nodes):
        type(self).calls += 1
        while pod.request[0] > 500:
            time.sleep(60)
        return np.zeros(nodes.count)


class Computes(Sleeps):
    def score(self, pod, nodes):
        type(self).calls += 1
        while pod.request[0] > 500:
            pass
        return np.zeros(nodes.count)


@pytest.fixture
def worker_with(harness_of, make_ledger):
    """A harness whose profile has a plugin from outside, and the calls of it."""

    def make(plugin):
        plugin.calls = 0
        harness, calls = harness_of(make_ledger(3)), PluginCalls()
        registry = REGISTRY.extended({"Outside": plugin}, calls)
        profile = registry.profile((*DEFAULT_PLUGINS, Weighted("Outside", 1)))
        harness.scheduler = Scheduler(harness.cache, profile, np.random.default_rng(1))
        return harness, calls

    return make


@pytest.mark.parametrize("plugin", [Sleeps, Computes])
def test_a_call_without_an_end_is_interrupted_and_its_pods_go_elsewhere(plugin, worker_with, make_pod):
    harness, calls = worker_with(plugin)
    with PluginWatch("w1", calls, limit_seconds=LIMIT).watching() as watch:
        harness.submit((make_pod(cpu=100), 2))
        assert sum(len(proposal.uids) for proposal in harness.place()) == 2
        watch.check()
        asked = plugin.calls
        harness.submit((make_pod(cpu=600), 3), (make_pod(cpu=100), 2))
        assert harness.place() == []
        assert plugin.calls == asked + 1  # it is off: nothing else waits for it
        assert [(code, reason) for code, _, reason in harness.outcomes()] == [(Outcome.CONFLICT, REASON)] * 5
        with pytest.raises(PluginOff, match=r"plugin Outside has not answered for 1 s: let each call end"):
            watch.check()
    assert int(harness.cache.requested[0].sum()) == 200


def test_calls_that_take_long_together_are_not_interrupted(worker_with, make_pod):
    class Slow(Sleeps):
        def score(self, pod, nodes):
            time.sleep(LIMIT / 4)
            return np.zeros(nodes.count)

    harness, calls = worker_with(Slow)
    with PluginWatch("w1", calls, limit_seconds=LIMIT).watching() as watch:
        began = time.monotonic()
        for cpu in range(100, 350, 50):
            harness.submit((make_pod(cpu=cpu), 1))
            assert len(harness.place()) == 1
        assert time.monotonic() - began > LIMIT
        watch.check()


def test_a_call_that_cannot_be_interrupted_ends_the_process():
    source = """
        import time
        from scheduler_worker.core.framework.extension_points import FilterPlugin
        from scheduler_worker.core.framework.sandbox import PluginCalls
        from scheduler_worker.core.plugins import REGISTRY
        from scheduler_worker.core.framework.registry import Weighted
        from scheduler_worker.plugin_watch import PluginWatch

        class Stubborn(FilterPlugin):
            def pre_filter(self, spec):
                while True:
                    try:
                        time.sleep(60)
                    except BaseException:
                        pass

        calls = PluginCalls()
        profile = REGISTRY.extended({"Stubborn": Stubborn}, calls).profile((Weighted("Stubborn"),))
        with PluginWatch("w1", calls, limit_seconds=0.2).watching():
            profile.pre_filters[0].pre_filter(None)
    """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 1
    said = ended.stdout + ended.stderr
    assert "plugin_stuck" in said
    assert "plugin_not_interrupted" in said
    assert "Stubborn" in said


def test_nothing_is_watched_without_plugins_from_outside():
    with PluginWatch("w1", PluginCalls()).watching() as watch:
        assert not watch._thread.is_alive()
        watch.check()
