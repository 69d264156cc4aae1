"""Reservations that nobody has confirmed go for a much more urgent pod, where its proposal allows that. Shard
0 of two."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from hoss.wire.columns import NONE_U32, numbered_uids
from resolver.api.committing import Committer, decide_with_preemption
from resolver.core.values import Verdict

C, D, REFUSED = Verdict.COMMITTED, Verdict.DUPLICATE, Verdict.CONFLICT_RESOURCE


async def held(ledger):
    """Pods by number that hold anything of the first ten."""
    found = await ledger.lookup(
        0, np.concatenate([numbered_uids(b"test-prefix-", pod, 1) for pod in range(10)])
    )
    return np.flatnonzero(found["node"] != NONE_U32).tolist()


@pytest.fixture
async def full(ledger, make_node, make_proposal):
    """Node 0 is full of pods 1, 2 and 3, cpu 300 and 400 and 300, priorities 0, 5 and 0, by commits of their
    own."""
    await ledger.upsert_nodes(0, [make_node("a", cpu=1000)])
    await ledger.grant("w1")
    for pod, cpu, priority in ((1, 300, 0), (2, 400, 5), (3, 300, 0)):
        await ledger.commit(0, [make_proposal([pod], [[0]], cpu=cpu, priorities=[priority])])
    return ledger


@pytest.fixture
async def decide(full, make_proposal):
    """What becomes of pods that may displace those lower by `gap`, and how many went."""
    committer = Committer(full, 0)
    running = asyncio.ensure_future(committer.run())

    async def run(pods, *, gap=100, **fields):
        proposal = replace(make_proposal(pods, [[0]] * len(pods), **fields), displace_gap=gap)
        decision, displaced = await decide_with_preemption(full, committer, proposal)
        return decision, displaced

    yield run
    running.cancel()


async def test_the_least_urgent_that_came_last_goes_and_no_more_than_is_needed(full, decide):
    decision, displaced = await decide([4], cpu=250, priorities=[1000])
    assert (decision.verdicts.tolist(), decision.nodes.tolist(), displaced) == ([D], [0], 1)
    assert await held(full) == [1, 2, 4]
    assert decision.duplicate_seqs.tolist() == [await full.seq(0)]
    assert len(decision.conflicts) == 0


async def test_who_went_for_whom_is_in_the_feed(full, decide):
    await decide([4], cpu=600, priorities=[1000])
    [entry] = [entry for entry in await full.feed(0, 0, 1) if entry.evictions]
    [eviction] = entry.evictions
    assert eviction.uid == numbered_uids(b"test-prefix-", 4, 1)[0].tobytes()
    assert len(eviction.victims) == 2 * 16
    assert await held(full) == [2, 4]


@pytest.mark.parametrize(("priority", "gap"), [(99, 100), (1000, 0)])
async def test_nobody_goes_for_a_pod_that_is_not_urgent_enough_or_whose_policy_does_not_say_so(
    full, decide, priority, gap
):
    decision, displaced = await decide([4], cpu=100, priorities=[priority], gap=gap)
    assert (decision.verdicts.tolist(), displaced) == ([REFUSED], 0)
    assert await held(full) == [1, 2, 3]


async def test_nobody_goes_where_that_would_not_be_enough(full, decide):
    decision, _ = await decide([4], cpu=700, priorities=[103])  # pod 2 may stay before it
    assert decision.verdicts.tolist() == [REFUSED]
    assert await held(full) == [1, 2, 3]


async def test_a_confirmed_reservation_stays_whatever_its_priority(full, decide):
    await full.confirm(0, np.arange(1, 10, dtype=np.uint64))
    decision, displaced = await decide([4], cpu=100, priorities=[1000])
    assert (decision.verdicts.tolist(), displaced) == ([REFUSED], 0)
    assert await held(full) == [1, 2, 3]


async def test_who_is_confirmed_after_it_was_chosen_stays_too(full, make_proposal):
    chosen = make_proposal([4], [[0]], cpu=100, priorities=[1000])
    victim = numbered_uids(b"test-prefix-", 1, 1)[0].tobytes()
    late = replace(chosen, victims={0: (victim,)}, victims_assumed=True)
    await full.confirm(0, np.arange(1, 10, dtype=np.uint64))
    [decision] = await full.commit(0, [late])
    assert decision.verdicts.tolist() == [REFUSED]
    assert await held(full) == [1, 2, 3]


async def test_pods_that_fit_commit_as_ever_and_beside_them_the_most_urgent_displace_first(
    full, make_node, decide
):
    await full.upsert_nodes(0, [make_node("a", cpu=1100)])
    decision, displaced = await decide([4, 5, 6], cpu=[100, 300, 600], priorities=[2000, 500, 1000])
    # Pod 4 fits. Pod 6 is more urgent than pod 5 and takes the room of 1 and 3; of pod 2 there is enough for
    # pod 5.
    assert (decision.verdicts.tolist(), displaced) == ([C, D, D], 3)
    assert await held(full) == [4, 5, 6]


async def test_the_same_proposal_again_finds_what_it_displaced_for(full, decide):
    first, _ = await decide([4], cpu=250, priorities=[1000])
    again, displaced = await decide([4], cpu=250, priorities=[1000])
    assert (again.verdicts.tolist(), displaced) == ([D], 0)
    assert again.duplicate_seqs.tolist() == first.duplicate_seqs.tolist()
