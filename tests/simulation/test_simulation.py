"""Whole platforms in one process: a seed replays exactly, what broke a promise once is cured, and no promise
is broken while pods are moved. test_seeds has the seeds that are searched.

Seeds run in a process of their own with a fixed hash order, as `make simulate` runs them, so that a seed that
fails here fails there too."""

import json
from pathlib import Path

import pytest
from simulation.seeded import simulate, simulate_in_a_new_interpreter

from dispatcher.core.queue.pressure import BackPressure, Pressure
from hossctl.history.events import written
from tools.simulation import plan as p
from tools.simulation.clients import REFUSED_BEYOND_SHARE, REFUSED_WHEN_FULL
from tools.simulation.plan import Act, Plan
from tools.simulation.plan_drawing import draw, draw_moves, draw_short
from tools.simulation.run import run
from tools.simulation.seeds import SEEDS_PER_PART
from tools.simulation.shrink import kind_of, shrink

WITH_CONTROLLER = range(30)  # seeds of `--moves`: the controllers of some of them move pods

# Plans that broke a promise, each on the code as it was before the cure, and the faults that strike in them.
# The platforms of the first six were drawn from seeds 17, 33, 35, 37, 52 and 57 of that time.
PLANS = Path(__file__).with_name("plans")
REGRESSIONS = {
    "release-after-a-rebuild": "a release after a rebuild named sequence numbers of the ledger before",
    "gates-of-a-job-not-durable": "gates of a job that was not durable yet were removed in words only",
    "job-deleted-while-redis-was-away": "a job deleted while Redis was away left its reservations for ever",
    "lost-confirmations": (
        "a Redis that lost confirmations let reservations of bound pods end by their leases"
    ),
    "epochs-from-1-in-an-emptied-redis": "a new ledger granted epochs anew, and a fenced worker held one",
    "pod-that-needed-no-victims-any-more": "a pod that needed no victims any more left its worker busy",
    "quiet-before-the-loss-was-noticed": "the simulation judged before the dispatcher could see the loss",
    "quiet-before-a-move-was-answered": "the simulation judged before a move's lost answer was missed",
    "port-freed-before-a-view-showed-it": (
        "pods that a view refused before it showed a release were not woken"
    ),
    "node-that-got-the-index-of-another": "after a takeover a watcher was not told of another node's index",
    "node-that-the-dispatcher-had-not-heard-of": "a watch named a node by its number and did not correct it",
    "removal-that-was-broken-off": "a frozen resolver left a removed node's reservations for ten minutes",
    "bound-elsewhere-and-not-told": (
        "a look-up found a pod moved before the move was answered, and told nobody"
    ),
    "confirmations-behind-a-lost-answer": "confirmations waited for a lost answer, and their leases ended",
    "clock-of-an-emptied-redis-ends-the-lease": (
        "a standby took over from an empty Redis whose clock had jumped"
    ),
    "node-added-before-a-rebuild": "a node was written into a ledger that was rebuilt without it",
    "node-acknowledged-before-the-feed-showed-it": (
        "a ledger that was lost before its feed showed a node was rebuilt without it"
    ),
    "answer-about-a-former-place": "an old look-up's answer undid the place that a pod had got since",
    "moves-in-a-ledger-that-went-back": "a dispatcher moved pods in a ledger that its feed knew to be lost",
    "place-before-a-move-that-was-lost": "a ledger that had lost a move was asked where the pod is",
    "commits-that-came-together": "the history of a simulation told two commits as one",
    "eviction-that-is-told-again": "after a takeover an old eviction undid the place that a pod had got"
    " since",
    "source-that-was-asked-for-again": "the checker knew the source of a move only as it had been at first",
    "move-whose-look-up-is-not-answered": "where moved pods are was asked for again after ten seconds",
    "job-submitted-again-amid-a-move": "a late confirmation of a move met the same job, submitted again",
    "clock-that-goes-back-keeps-the-lease": "the clock of Redis went back, and a dead leader's lease stayed",
}


@pytest.mark.parametrize(
    ("first", "seeds"),
    [(0, 10), pytest.param(10, 50, marks=pytest.mark.thorough)],
)
def test_no_promise_is_broken_while_pods_are_moved_and_services_fail_amid_that(first, seeds):
    done = simulate("--moves", "--seeds", seeds, "--first", first)
    assert done.returncode == 0, done.stdout + done.stderr
    counts = {
        what.strip(): count
        for count, what in (line.split(maxsplit=1) for line in done.stdout.splitlines()[-28:])
    }
    amid = (
        *("kill amid a move", "freeze amid a move"),
        *("moved", "moved between shards", "moved by the controller"),
    )
    assert all(counts[what] != "NEVER" for what in amid)
    assert int(counts["target reserved"]) > int(counts["moved"]), "no move was broken off"


# Plans in which faults meet. They broke nothing when they were written.
FAULTS_THAT_MEET = (
    "redis-goes-back-while-leader-and-resolver-are-frozen",
    "gangs-while-worker-and-resolver-die-and-redis-goes-back",
    "clocks-jump-while-a-worker-is-fenced",
)


def test_what_broke_a_promise_once_is_cured_and_its_faults_strike():
    expect_kept(REGRESSIONS)


def test_faults_that_meet_break_no_promise_either():
    expect_kept(FAULTS_THAT_MEET)


def expect_kept(names):
    """No promise is broken in these plans, and their faults strike."""
    paths = [PLANS / f"{name}.json" for name in names]
    done = simulate(*(word for path in paths for word in ("--plan", path)))
    assert done.returncode == 0, done.stdout
    told = [line for line in done.stdout.splitlines() if line.startswith("faults that struck: ")]
    for path, struck in zip(paths, told, strict=True):
        faults = {act.what for act in Plan.from_json(json.loads(path.read_text())).acts if act.is_fault}
        assert faults, path.stem
        assert all(f"{what} " in struck for what in faults), f"{path.stem}: {struck}"


def test_submissions_are_refused_in_a_tenth_of_the_plans_and_leave_nothing(server):
    plans = [draw(seed) for seed in range(100)]
    refusing = [plan for plan in plans if any("minimum" in act.options for act in plan.acts)]
    assert 3 < len(refusing) < 20
    result = run(refusing[0], server)
    assert result.problems() == []
    assert result.reached["refused"] == 2


def test_full_queues_refuse_submissions_in_a_tenth_of_the_plans_and_nothing_of_them_exists(server):
    plans = [plan for plan in map(draw, range(100)) if plan.most_waiting]
    assert 3 < len(plans) < 20
    results = (run(plan, server) for plan in plans)
    refusing = next(result for result in results if result.reached[REFUSED_WHEN_FULL])
    assert refusing.problems() == []


def with_a_limited_tenant(seeds):
    return [plan for plan in map(draw, seeds) if any("tenant" in act.options for act in plan.acts)]


def test_tenants_are_refused_more_than_their_share_in_a_tenth_of_the_plans_and_get_it_when_there_is_room(
    server,
):
    plans = with_a_limited_tenant(range(300))
    assert 20 < len(plans) < 40
    results = (run(plan, server) for plan in plans)
    refusing = next(result for result in results if result.reached[REFUSED_BEYOND_SHARE])
    assert refusing.problems() == []
    kept = [act for act in refusing.plan.acts if "tenant" not in act.options]
    assert {act.target for act in kept if act.what == p.SUBMIT}, "others submit as well"


@pytest.mark.parametrize(
    ("refusal", "complaint"),
    [
        (BackPressure("2 pods wait, and its share of a full dispatcher is 1", 1.0), "refused for its share"),
        (None, "pods of one tenant wait after"),
    ],
)
def test_tenants_that_are_held_to_no_share_and_to_none_at_all_are_found(
    server, monkeypatch, refusal, complaint
):
    def beyond_share(_self, *_args):
        yield from ()
        return refusal

    monkeypatch.setattr(Pressure, "_beyond_share", beyond_share)
    plans = with_a_limited_tenant(range(300))
    assert any(complaint in text for plan in plans for text in run(plan, server).problems())


def test_a_seed_replays_byte_for_byte_in_the_same_process(server):
    first, again = (run(draw(3), server, keep=True) for _ in range(2))
    assert len(first.timeline) > 500
    assert _lines(first) == _lines(again)


def test_a_seed_with_a_rebalance_controller_replays_byte_for_byte(server):
    results = (run(draw_moves(seed), server, keep=True) for seed in WITH_CONTROLLER)
    first = next(result for result in results if result.reached["moved by the controller"])
    again = run(draw_moves(first.plan.seed), server, keep=True)
    assert _lines(first) == _lines(again)


def _lines(result):
    return [*map(str, result.timeline), *map(written, result.history)]


def test_two_processes_replay_a_seed_alike(tmp_path):
    for name, process in (("one", simulate), ("other", simulate_in_a_new_interpreter)):
        assert process("--seed", 17, "--out", tmp_path / name).returncode == 0
    for file in ("timeline.txt", "history.jsonl"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "other" / file).read_bytes()


def test_a_plan_that_was_written_down_is_the_same_plan():
    plan = draw(5)
    assert Plan.from_json(plan.as_json()) == plan


def test_short_plans_have_faults_of_every_kind_and_less_happens_in_each():
    drawn, short = ([draw_of(seed) for seed in range(300)] for draw_of in (draw, draw_short))
    assert {*p.KINDS, *p.LOSSES} <= {act.what for plan in short for act in plan.acts}
    for count in (lambda plan: len(plan.acts), lambda plan: len(plan.names), lambda plan: plan.acts[-1].at):
        assert sum(map(count, short)) < 0.75 * sum(map(count, drawn))


def test_plans_with_moves_have_the_acts_of_their_seed_and_moves_besides():
    plan, moves = draw(5), draw_moves(5)
    assert all(act in moves.acts for act in plan.acts)
    assert {act.what for act in moves.acts if act not in plan.acts} >= {p.MOVE, p.SUBMIT}
    assert Plan.from_json(moves.as_json()) == moves


def test_where_redis_loses_something_no_dispatcher_is_without_it_for_longer_than_its_lease():
    drawn = (*map(draw, range(1000)), *map(draw_moves, range(1000)))
    plans = [plan for plan in drawn if any(act.what in p.LOSSES for act in plan.acts)]
    without = (p.REDIS_SILENT, p.REDIS_REFUSED, p.REDIS_REFUSES_WRITES, p.REDIS_LOSES_REPLIES)
    away = [
        act.seconds
        for plan in plans
        for act in plan.acts
        if act.what in without and not act.target.startswith("resolver")
    ]
    assert away
    assert max(away) < 1.5


def test_faults_of_every_kind_strike_somebody_within_a_few_hundred_plans():
    drawn = {act.what for seed in range(300) for act in draw(seed).acts}
    assert {*p.KINDS, *p.LOSSES} <= drawn


def test_a_service_that_takes_longer_to_end_than_to_be_started_again_is_started_when_it_has_ended(server):
    acts = (Act(0.5, p.STOP, "resolver-1", seconds=0.05), Act(6.0, p.BREAK, "w1", "dispatcher-1"))
    plan = Plan(1, shards=1, dispatchers=1, resolvers=1, workers=1, nodes=2, acts=acts)
    result = run(plan, server, keep=True)
    texts = {entry.text: entry.at for entry in result.timeline if entry.who in ("resolver-1", "plan")}
    assert result.problems() == []
    assert texts["ended"] < texts["started"] < texts["ended"] + 0.5 < texts["every fault is over"]


def test_a_plan_that_fails_is_made_smaller_and_fails_in_the_same_way(server):
    """The checker is told a promise that nobody keeps: that no job is ever deleted."""
    submits = [Act(0.1 * n, p.SUBMIT, f"job-{n}", options={"replicas": 2, "cpu": 100}) for n in range(6)]
    plan = Plan(1, shards=1, dispatchers=1, resolvers=1, workers=1, nodes=3, acts=(*submits, *_deletion()))

    def carry_out(tried):
        result = run(tried, server)
        if any(act.what == p.DELETE for act in tried.acts):
            result.complaints.append("a job is deleted: so it seems")
        return result

    smallest = shrink(carry_out(plan), carry_out)
    assert [act.what for act in smallest.plan.acts] == [p.DELETE]
    assert kind_of(smallest) == "a job is deleted"


def _deletion():
    return (Act(2.0, p.DELETE, "job-1"), Act(2.1, p.SUBMIT, "job-7", options={"replicas": 1, "cpu": 50}))


def test_the_command_says_what_was_reached_and_what_never():
    done = simulate("--seeds", 1, "--first", 3)
    assert "1 simulations in" in done.stdout
    assert "acknowledged" in done.stdout
    assert "NEVER" in done.stdout


@pytest.mark.thorough
def test_seeds_that_several_processes_share_reach_what_they_reach_in_one():
    seeds = ("--seeds", SEEDS_PER_PART + 1, "--first", 3)
    one, shared = simulate(*seeds), simulate_in_a_new_interpreter(*seeds, "--jobs", 2)
    assert (one.returncode, shared.returncode) == (0, 0), shared.stderr
    assert shared.stdout.splitlines()[1:] == one.stdout.splitlines()[1:]
    assert f"{SEEDS_PER_PART + 1} simulations in" in shared.stdout
