"""A gang over two shards, interrupted before and after every step of every course it can take.

A resolver that dies, a shard that is away, and holds that end too early: whichever it is and wherever it comes, the gang has all of
its room or, once the leases are over, none; and who asks the same again is answered as if nothing had been.
"""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from hoss.errors import LedgerUnavailable
from hoss.model.selectors import LabelSelector, Requirement
from hoss.wire.columns import numbered_uids
from resolver.core.rules import Rule
from resolver.core.values import Group, Leases, Verdict
from resolver.gangs import decide_parts, settle_holds

HOUR_MS = 3_600_000
HOLDS_END_AT_ONCE = Leases(commit_ms=HOUR_MS, hold_ms=0)
SHARDS = range(2)
WEB = LabelSelector((Requirement("app", "In", ("web",)),))
APART = Rule("rack", WEB, ("default",))
GROUP = Group(1, b"web", (), "default", (("app", "web"),), (APART,))

COURSES = {
    "it fits": ["commit 0", "commit 1", "keep 0", "keep 1"],
    "the second shard refuses": ["commit 0", "commit 1", "withdraw 0"],
    "it fits and the judge lets it pass": ["commit 0", "commit 1", "judge 0", "keep 0", "keep 1"],
    "the judge refuses a pod": ["commit 0", "commit 1", "judge 0", "withdraw 0", "withdraw 1"],
}
SUCCEED = ("it fits", "it fits and the judge lets it pass")
MISHAPS = ["dies before", "dies after", "shard 0 away", "shard 1 away", "holds of 0 end", "holds of 1 end"]


def strikes(course, at, mishap):
    """Whether anybody notices: a shard that is away is still to be asked, a hold that ends is there."""
    before, after = COURSES[course][:at], COURSES[course][at:]
    match mishap.split():
        case ["shard", shard, "away"]:
            return any(step.endswith(shard) for step in after)
        case ["holds", _, "1", _] if course == "the second shard refuses":
            return False
        case ["holds", _, shard, _]:
            return f"commit {shard}" in before and not {f"keep {shard}", f"withdraw {shard}"} & {*before}
    return True


POINTS = [
    pytest.param(course, at, mishap, id=f"{course}: {mishap} {step}")
    for course, steps in COURSES.items()
    for at, step in enumerate(steps)
    for mishap in MISHAPS
    if strikes(course, at, mishap)
]
UNANSWERED = [
    point for point in POINTS if not point.values[2].startswith("holds")
]  # whoever asked is not told how it ended


class Interrupted:
    """A ledger on the way to which a mishap happens at one step. `steps` are those taken so far; `struck`: the mishap cost somebody an
    answer or a hold."""

    def __init__(self, ledger, at=None, mishap=""):
        self._ledger, self._at, self._mishap = ledger, at, mishap
        self._away = None
        self.steps = []
        self.struck = False

    @property
    def shards(self):
        return self._ledger.shards

    async def commit(self, shard, proposals):
        return await self._step("commit", shard, lambda: self._ledger.commit(shard, proposals))

    async def judge(self, questions, **known):
        return await self._step("judge", 0, lambda: self._ledger.judge(questions, **known))

    async def keep(self, shard, uids, seqs):
        return await self._step("keep", shard, lambda: self._ledger.keep(shard, uids, seqs))

    async def withdraw(self, shard, uids, seqs):
        return await self._step("withdraw", shard, lambda: self._ledger.withdraw(shard, uids, seqs))

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
            case ["holds", "of", shard, "end"]:
                self.struck = await self._ledger.reap(int(shard)) > 0

    def _unavailable(self, why):
        self.struck = True
        return LedgerUnavailable(why)


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
    return await decide_parts(ledger, [Committer(ledger, shard) for shard in SHARDS], gang.parts, 2)


@pytest.fixture
async def nodes(ledger, make_node):
    """A node of 1,000 milli cpu on each shard, each in a rack of its own; workers w1 and w2 have epochs 1 and 2."""
    ledger._leases = HOLDS_END_AT_ONCE
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
        if "judge" not in course:
            return Gang(
                [(shard, make_proposal([1 + shard], [[shard]], cpu=600)) for shard in SHARDS], await held(nodes)
            )

        def guarded(worker, pod, shard, seen, **more):
            proposal = make_proposal([pod], [[shard]], groups=[GROUP], worker=f"w{worker}", epoch=worker)
            return shard, replace(proposal, snapshot_seq=seen[shard], seen=tuple(seen), **more)

        await Committer(nodes, 0).decide(guarded(1, 99, 0, [0, 0], firsts=(True,))[1])  # registers the rule
        seen = [await nodes.seq(shard) for shard in SHARDS]
        if course == "the judge refuses a pod":
            other = guarded(2, 50, 0, seen)
            decision = await Committer(nodes, 0).decide(other[1])
            await settle_holds(nodes, [other], [decision], 0)
        return Gang([guarded(1, 1 + shard, shard, seen) for shard in SHARDS], await held(nodes))

    return build


async def held(ledger):
    return [len((await ledger.state(shard)).reservations.uids) for shard in SHARDS]


async def holds_end(ledger):
    return [await ledger.reap(shard) for shard in SHARDS]


async def leases_end(ledger):
    """Also those of the gang's commits, which nobody has confirmed."""
    await holds_end(ledger)
    ledger._leases = Leases(commit_ms=0)
    uids = numbered_uids(b"test-prefix-", 1, 2)
    for shard in SHARDS:
        found = await ledger.lookup(shard, uids)
        at = np.flatnonzero(found["seq"])
        await ledger.keep(shard, uids[at], found["seq"][at])
        await ledger.reap(shard)
    ledger._leases = HOLDS_END_AT_ONCE


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
    assert await holds_end(nodes) == [0, 0]
    assert await held(nodes) == [others + (course in SUCCEED) for others in gang.held_by_others]


@pytest.mark.parametrize(("course", "at", "mishap"), POINTS)
async def test_invariant_5_wherever_it_is_interrupted_a_gang_has_all_its_room_or_none_once_the_leases_are_over(
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
    assert await holds_end(nodes) == [0, 0]
    confirmed = [await nodes.confirm(shard, np.array([d.seq], np.uint64)) for shard, d in enumerate(decisions) if taken]
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
    assert await holds_end(nodes) == [0, 0]
    assert await held(nodes) == [others + (course in SUCCEED) for others in gang.held_by_others]


@pytest.mark.topologies
async def test_a_part_held_by_an_earlier_try_is_withdrawn_when_the_gang_fails_after_all(
    nodes, make_gang, make_proposal
):
    gang = await make_gang("it fits")
    with pytest.raises(LedgerUnavailable):
        await decide(Interrupted(nodes, 1, "dies before"), gang)
    await nodes.commit(1, [make_proposal([9], [[1]], cpu=600)])
    assert reserved(await decide(nodes, gang)) == [False, False]
    assert await held(nodes) == [0, 1]
