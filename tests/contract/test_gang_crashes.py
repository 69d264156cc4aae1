"""A gang over two shards, interrupted before and after every step of every course it can take.

A resolver that dies, a shard that is away, and leases that end too early: whichever it is and wherever it
comes, the gang has all of its room or, once the leases are over, none; and who asks the same again is
answered as if nothing had been."""

import asyncio
from dataclasses import dataclass, replace

import numpy as np
import pytest

from hoss.errors import LedgerUnavailable
from hoss.model.selectors import LabelSelector, Requirement
from hoss.wire.columns import numbered_uids
from resolver.api.two_phase import commit_parts, finish_prepared
from resolver.core.rules import PlacementRule
from resolver.core.values import ANYBODY, Group, Leases, ReservationState, Verdict

HOUR_MS = 3_600_000
PREPARED_ENDS_AT_ONCE = Leases(commit_ms=HOUR_MS, prepare_ms=0)
SHARDS = range(2)
WEB = LabelSelector((Requirement("app", "In", ("web",)),))
APART = PlacementRule("rack", WEB, ("default",))
GROUP = Group(1, b"web", (), "default", (("app", "web"),), (APART,))

COURSES = {
    "it fits": ["prepare 0", "prepare 1", "commit 0", "commit 1"],
    "the second shard refuses": ["prepare 0", "prepare 1", "abort 0"],
    "it fits and the validation lets it pass": [
        "prepare 0",
        "prepare 1",
        "validate 0",
        "commit 0",
        "commit 1",
    ],
    "the validation refuses a pod": ["prepare 0", "prepare 1", "validate 0", "abort 0", "abort 1"],
}
SUCCEED = ("it fits", "it fits and the validation lets it pass")
MISHAPS = ["dies before", "dies after", "shard 0 away", "shard 1 away", "leases of 0 end", "leases of 1 end"]


def strikes(course, at, mishap):
    """Whether anybody notices: a shard that is away is still to be asked, a lease that ends is there."""
    before, after = COURSES[course][:at], COURSES[course][at:]
    match mishap.split():
        case ["shard", shard, "away"]:
            return any(step.endswith(shard) for step in after)
        case ["leases", _, "1", _] if course == "the second shard refuses":
            return False
        case ["leases", _, shard, _]:
            return f"prepare {shard}" in before and not {f"commit {shard}", f"abort {shard}"} & {*before}
    return True


POINTS = [
    pytest.param(course, at, mishap, id=f"{course}: {mishap} {step}")
    for course, steps in COURSES.items()
    for at, step in enumerate(steps)
    for mishap in MISHAPS
    if strikes(course, at, mishap)
]
# Whoever asked is not told how it ended.
UNANSWERED = [point for point in POINTS if not point.values[2].startswith("leases")]


class Interrupted:
    """A ledger on the way to which a mishap happens at one step. `steps` are those taken so far; `struck`:
    the mishap cost somebody an answer or a prepared commit."""

    def __init__(self, ledger, at=None, mishap=""):
        self._ledger, self._at, self._mishap = ledger, at, mishap
        self._away = None
        self.steps = []
        self.struck = False

    @property
    def shards(self):
        return self._ledger.shards

    async def commit(self, shard, proposals):
        return await self._step("prepare", shard, lambda: self._ledger.commit(shard, proposals))

    async def validate(self, queries, **known):
        return await self._step("validate", 0, lambda: self._ledger.validate(queries, **known))

    async def commit_prepared(self, shard, uids, seqs, writer, **more):
        committing = lambda: self._ledger.commit_prepared(shard, uids, seqs, writer, **more)  # noqa: E731
        return await self._step("commit", shard, committing)

    async def abort(self, shard, uids, seqs, writer):
        return await self._step("abort", shard, lambda: self._ledger.abort(shard, uids, seqs, writer))

    async def _step(self, name, shard, operation):
        here = len(self.steps) == self._at
        self.steps.append(f"{name} {shard}")
        if here:
            await self._happens()
        if self._away == shard:
            raise self._unavailable("away")
        result = await operation()
        if here and self._mishap == "dies after":
            raise self._unavailable("its answer is heard by nobody")
        return result

    async def _happens(self):
        match self._mishap.split():
            case ["dies", "before"]:
                raise self._unavailable("nobody asks")
            case ["shard", shard, "away"]:
                self._away = int(shard)
            case ["leases", "of", shard, "end"]:
                self.struck = await self._ledger.reap(int(shard)) > 0

    def _unavailable(self, why):
        self.struck = True
        return LedgerUnavailable(why)


class Stalling(Interrupted):
    """Stalls before the step after the first `at` ones, until it `goes_on`."""

    def __init__(self, ledger, at):
        super().__init__(ledger)
        self._stalls_at = at
        self.reached, self.goes_on = asyncio.Event(), asyncio.Event()

    async def _step(self, name, shard, operation):
        if len(self.steps) == self._stalls_at:
            self.reached.set()
            await self.goes_on.wait()
        return await super()._step(name, shard, operation)


@dataclass
class Gang:
    """What is asked, and what others hold on each shard, whatever becomes of it."""

    parts: list
    held_by_others: list


class Committer:
    """A shard's, without a queue."""

    def __init__(self, ledger, shard):
        self._ledger, self._shard = ledger, shard

    async def decide(self, proposal):
        [decision] = await self._ledger.commit(self._shard, [proposal])
        return decision


async def decide(ledger, gang):
    return await commit_parts(ledger, [Committer(ledger, shard) for shard in SHARDS], gang.parts, 2)


@pytest.fixture
async def nodes(ledger, make_node):
    """A node of 1,000 milli cpu on each shard, each in a rack of its own; workers w1 and w2 have epochs 1 and
    2."""
    ledger._leases = PREPARED_ENDS_AT_ONCE
    for shard in SHARDS:
        await ledger.upsert_nodes(shard, [make_node(f"n{shard}", cpu=1000, labels=(("rack", f"r{shard}"),))])
    assert [await ledger.grant(worker) for worker in ("w1", "w2")] == [1, 2]
    return ledger


@pytest.fixture
def make_gang(nodes, make_proposal):
    """A gang of one pod on each shard, that will take this course."""

    async def build(course):
        if course == "the second shard refuses":
            await nodes.commit(1, [make_proposal([9], [[1]], cpu=600)])
        if "validation" not in course:
            return Gang(
                [(shard, make_proposal([1 + shard], [[shard]], cpu=600)) for shard in SHARDS],
                await held(nodes),
            )

        def guarded(worker, pod, shard, seen, **more):
            proposal = make_proposal([pod], [[shard]], groups=[GROUP], worker=f"w{worker}", epoch=worker)
            return shard, replace(proposal, snapshot_seq=seen[shard], seen=tuple(seen), **more)

        await Committer(nodes, 0).decide(guarded(1, 99, 0, [0, 0], firsts=(True,))[1])  # registers the rule
        seen = [await nodes.seq(shard) for shard in SHARDS]
        if course == "the validation refuses a pod":
            other = guarded(2, 50, 0, seen)
            decision = await Committer(nodes, 0).decide(other[1])
            await finish_prepared(nodes, [other], [decision], 0)
        return Gang([guarded(1, 1 + shard, shard, seen) for shard in SHARDS], await held(nodes))

    return build


async def held(ledger):
    return [len((await ledger.state(shard)).reservations.uids) for shard in SHARDS]


async def prepare_leases_end(ledger):
    return [await ledger.reap(shard) for shard in SHARDS]


async def leases_end(ledger):
    """Also those of the gang's commits, which nobody has confirmed."""
    await prepare_leases_end(ledger)
    ledger._leases = Leases(commit_ms=0)
    uids = numbered_uids(b"test-prefix-", 1, 2)
    for shard in SHARDS:
        found = await ledger.lookup(shard, uids)
        at = np.flatnonzero(found["seq"])
        await ledger.commit_prepared(shard, uids[at], found["seq"][at], ANYBODY)
        await ledger.reap(shard)
    ledger._leases = PREPARED_ENDS_AT_ONCE


def reserved(decisions):
    return [int(decision.verdicts[0]) in (Verdict.COMMITTED, Verdict.DUPLICATE) for decision in decisions]


@pytest.mark.topologies
@pytest.mark.parametrize("course", COURSES)
async def test_these_are_all_the_steps_of_a_gang_that_nothing_interrupts(nodes, make_gang, course):
    gang = await make_gang(course)
    ledger = Interrupted(nodes)
    decisions = await decide(ledger, gang)
    assert ledger.steps == COURSES[course]
    assert reserved(decisions) == [course in SUCCEED] * 2
    assert await prepare_leases_end(nodes) == [0, 0]
    assert await held(nodes) == [others + (course in SUCCEED) for others in gang.held_by_others]


@pytest.mark.parametrize(("course", "at", "mishap"), POINTS)
async def test_invariant_5_wherever_it_is_interrupted_a_gang_has_all_its_room_or_none_after_the_leases(
    nodes, make_gang, course, at, mishap
):
    gang = await make_gang(course)
    ledger = Interrupted(nodes, at, mishap)
    try:
        decisions = await decide(ledger, gang)
    except LedgerUnavailable:
        await leases_end(nodes)
        assert await held(nodes) == gang.held_by_others
        return
    finally:
        assert ledger.struck
    assert reserved(decisions) in ([True, True], [False, False])
    taken = reserved(decisions)[0]
    assert await held(nodes) == [others + taken for others in gang.held_by_others]
    assert await prepare_leases_end(nodes) == [0, 0]
    confirmed = [
        await nodes.confirm(shard, np.array([d.seq], np.uint64)) for shard, d in enumerate(decisions) if taken
    ]
    assert confirmed == [1, 1] * taken


@pytest.mark.parametrize(("course", "at", "mishap"), UNANSWERED)
async def test_who_asks_again_after_an_interruption_is_answered_as_if_there_had_been_none(
    nodes, make_gang, course, at, mishap
):
    gang = await make_gang(course)
    with pytest.raises(LedgerUnavailable):
        await decide(Interrupted(nodes, at, mishap), gang)
    decisions = await decide(nodes, gang)
    assert reserved(decisions) == [course in SUCCEED] * 2
    assert await prepare_leases_end(nodes) == [0, 0]
    assert await held(nodes) == [others + (course in SUCCEED) for others in gang.held_by_others]


@pytest.mark.topologies
async def test_a_part_prepared_by_an_earlier_try_is_aborted_when_the_gang_fails_after_all(
    nodes, make_gang, make_proposal
):
    gang = await make_gang("it fits")
    with pytest.raises(LedgerUnavailable):
        await decide(Interrupted(nodes, 1, "dies before"), gang)
    await nodes.commit(1, [make_proposal([9], [[1]], cpu=600)])
    assert reserved(await decide(nodes, gang)) == [False, False]
    assert await held(nodes) == [0, 1]


def sent(gang, sending):
    """A copy of the gang with this number."""
    parts = [(shard, replace(proposal, sending=sending)) for shard, proposal in gang.parts]
    return Gang(parts, gang.held_by_others)


@pytest.fixture
async def old_and_new(nodes, make_node, make_proposal):
    """A gang as its worker proposed it first, which does not fit now, and as it proposes it then: the two
    pods the other way round."""
    for shard in SHARDS:
        await nodes.upsert_nodes(shard, [make_node(f"n{2 + shard}", cpu=1000)])
    old = Gang([(shard, make_proposal([1 + shard], [[shard]], cpu=600)) for shard in SHARDS], [0, 0])
    new = Gang([(shard, make_proposal([2 - shard], [[2 + shard]], cpu=600)) for shard in SHARDS], [0, 1])
    await nodes.commit(1, [make_proposal([9], [[1]], cpu=600)])
    return old, new


@pytest.mark.topologies
async def test_invariant_2_an_old_copy_of_a_proposal_reserves_nothing_once_its_worker_has_proposed_elsewhere(
    nodes, old_and_new
):
    """A resolver stalls before it asks any shard. Another one answers the same proposal: refused. The worker
    then proposes the two pods the other way round, and both are bound. At last the first resolver goes on."""
    old, new = old_and_new
    assert reserved(await decide(nodes, sent(old, 1))) == [False, False]
    decisions = await decide(nodes, sent(new, 1))
    assert reserved(decisions) == [True, True]
    for shard, decision in enumerate(decisions):
        assert await nodes.confirm(shard, np.array([decision.seq], np.uint64)) == 1
    await nodes.release(1, numbered_uids(b"test-prefix-", 9, 1))
    assert await held(nodes) == [1, 1]
    with pytest.raises(LedgerUnavailable, match="sent something again"):
        await decide(nodes, sent(old, 0))  # the late copy
    assert await held(nodes) == [1, 1]


@pytest.mark.parametrize("steps", range(len(COURSES["it fits"])))
async def test_invariant_2_an_old_copy_that_stalls_on_the_way_reserves_nothing_more(
    nodes, old_and_new, steps
):
    """As above, and the first resolver had taken some steps while there was room."""
    old, new = old_and_new
    blocker = numbered_uids(b"test-prefix-", 9, 1)
    await nodes.release(1, blocker)
    stalled = Stalling(nodes, steps)
    late = asyncio.ensure_future(decide(stalled, sent(old, 0)))
    await stalled.reached.wait()
    assert stalled.steps == COURSES["it fits"][:steps]
    # What it did ends by leases, and others take the room.
    await leases_end(nodes)
    assert await held(nodes) == [0, 0]
    await nodes.commit(1, [replace(old.parts[1][1], uids=blocker)])
    assert reserved(await decide(nodes, sent(old, 1))) == [False, False]
    assert reserved(await decide(nodes, sent(new, 1))) == [True, True]
    await nodes.release(1, blocker)
    stalled.goes_on.set()
    [outcome] = await asyncio.gather(late, return_exceptions=True)
    assert isinstance(outcome, LedgerUnavailable | list)
    assert await held(nodes) == [1, 1]


async def test_a_copy_marks_shards_that_its_failed_gang_no_longer_needs(nodes, old_and_new, make_proposal):
    """Else an old copy could still take room there."""
    old, _ = old_and_new
    await nodes.commit(0, [make_proposal([8], [[0]], cpu=600)])
    ledger = Interrupted(nodes)
    assert reserved(await decide(ledger, sent(old, 1))) == [False, False]
    assert ledger.steps == ["prepare 0", "prepare 1"]
    assert await held(nodes) == [1, 1]
    for shard, proposal in sent(old, 0).parts:
        [decision] = await nodes.commit(shard, [replace(proposal, gang_minimum=0)])
        assert decision.old_copy


async def test_a_proposal_that_a_copy_of_another_overtook_is_decided_when_it_is_sent_again(
    nodes, make_proposal
):
    overtaken = make_proposal([1], [[0]])
    await nodes.commit(0, [replace(make_proposal([2], [[0]]), sending=1)])
    [decision] = await nodes.commit(0, [overtaken])
    assert decision.verdicts.tolist() == [Verdict.OLD_COPY]
    [decision] = await nodes.commit(0, [replace(overtaken, sending=1)])
    assert decision.verdicts.tolist() == [Verdict.COMMITTED]


async def test_another_worker_and_another_epoch_of_the_worker_count_their_copies_anew(nodes, make_proposal):
    await nodes.commit(0, [replace(make_proposal([1], [[0]]), sending=5)])
    [of_w2] = await nodes.commit(0, [make_proposal([2], [[0]], worker="w2", epoch=2)])
    assert of_w2.verdicts.tolist() == [Verdict.COMMITTED]
    epoch = await nodes.grant("w1")
    [fenced] = await nodes.commit(0, [replace(make_proposal([3], [[0]]), sending=5)])
    assert fenced.verdicts.tolist() == [Verdict.STALE_EPOCH]
    [anew] = await nodes.commit(0, [make_proposal([3], [[0]], epoch=epoch)])
    assert anew.verdicts.tolist() == [Verdict.COMMITTED]


async def test_what_a_worker_in_force_prepared_is_not_aborted_by_a_look_up_after_it_sent_something_again(
    nodes, make_proposal
):
    await nodes.commit(0, [replace(make_proposal([1], [[0]]), sending=3, prepared=True)])
    [found] = await nodes.lookup(0, numbered_uids(b"test-prefix-", 1, 1))
    assert found["state"] == ReservationState.PREPARED
