"""The ledger's scripts are compared with the model while platforms run and faults strike: they agree, and
scripts that differ are found. The seeds are the first of those that test_simulation judges."""

from collections import Counter

import pytest

from hossctl.history.events import written
from resolver.ledger import scripts
from tools.simulation import plan as p
from tools.simulation.plan import draw, draw_moves
from tools.simulation.run import COMPARED_EVERY, run

DIFFERS = "the scripts differ from the model"

# Scripts that platforms call within the first seeds. Quarantine and repair need an account that disagrees
# with its reservations.
EVERYDAY = (
    *("bootstrap", "check", "grant", "upsert_nodes", "remove_nodes", "forget_nodes", "commit", "confirm"),
    *("commit_prepared", "release", "lookup", "reap", "register_rules", "validate", "end_quarantine"),
    *("set_tombstone", "load", "finish"),
)


def compared(server, seeds):
    """What was called, which faults struck, and where scripts and model differ."""
    calls, reached, found = Counter(), Counter(), []
    for seed in seeds:
        result = run(draw(seed), server, compare=True)
        calls += result.compared
        reached += result.reached
        found += [f"seed {seed}: {text}" for text in result.problems() if text.startswith(DIFFERS)]
    return calls, reached, found


def test_scripts_and_model_answer_alike_and_hold_the_same_under_faults(server):
    calls, reached, found = compared(server, range(15))
    assert found == []
    assert {script for script in EVERYDAY if not calls[script]} == set()
    assert reached[p.REDIS_ROLLS_BACK] >= 2
    assert reached[p.REDIS_EMPTIED] >= 2


def test_scripts_and_model_move_pods_alike_under_faults(server):
    calls, found = Counter(), []
    for seed in range(8):
        result = run(draw_moves(seed), server, compare=True)
        calls += result.compared
        found += [f"seed {seed}: {text}" for text in result.problems() if text.startswith(DIFFERS)]
    assert found == []
    assert calls["confirm_moves"] > 0
    assert calls["forget_moved"] > 0


@pytest.mark.thorough
@pytest.mark.parametrize("first", range(15, 120, 35))
def test_scripts_and_model_answer_alike_in_more_seeds(server, first):
    assert compared(server, range(first, first + 35))[2] == []


REBUILDS = 8  # the first seed in which a ledger is rebuilt

# By script of `resolver/ledger/lua`: what is written there, and what is written instead.
PLANTED = {
    "what a pod held does not return to its node": ("release", "account[4 + 2 * r] - amounts[r]", "amounts[r]"),
    "a lease is longer than it was asked for": ("commit", "args.lease_ms, reserved_uids", "60000, reserved_uids"),
    "reaping stops lease time": ("reap", "'lease_time', string.format('%d', now)", "'lease_time', '1'"),
    "a feed entry does not say which nodes were removed": ("remove_nodes", "'g', removed}", "'g', ''}"),
    "a rebuild keeps the feed of the ledger before": ("finish", "call('DEL', FEED, QUARANTINE,", "call('DEL', QUARANTINE,"),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANTED)
def test_a_script_that_differs_from_the_model_is_found(server, monkeypatch, name):
    planted_in, text, instead = PLANTED[name]
    real = scripts.source

    def source(script):
        found = real(script)
        if script != planted_in:
            return found
        assert text in found
        return found.replace(text, instead)

    monkeypatch.setattr(scripts, "source", source)
    scripts._digest.cache_clear()
    try:
        found = next((found for seed in (REBUILDS, *range(40)) if (found := compared(server, [seed])[2])), [])
    finally:
        scripts._digest.cache_clear()
    assert found, "40 seeds did not show it"


def test_a_run_is_the_same_with_the_comparison_and_without(server):
    def once(*, compare):
        result = run(draw(17), server, keep=True, compare=compare)
        assert result.reached[p.REDIS_ROLLS_BACK] + result.reached[p.REDIS_EMPTIED] > 0
        assert bool(result.compared) == compare
        return [*map(str, result.timeline), *map(written, result.history)]

    assert once(compare=True) == once(compare=False)


def test_some_seeds_are_compared_where_nobody_asks_for_it(server):
    assert [bool(run(draw(seed), server).compared) for seed in (0, 1, COMPARED_EVERY)] == [True, False, True]
