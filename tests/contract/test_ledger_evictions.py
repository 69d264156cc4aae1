"""Pods that have to go for another: all of them in the moment it gets their room, or none. Shard 0 of two."""

from dataclasses import replace

import numpy as np
import pytest

from hoss.model.pod import HostPort
from hoss.wire.columns import NONE_U32, account_dtype, numbered_uids
from resolver.core.values import Verdict

C = Verdict.COMMITTED


def uid(pod):
    return numbered_uids(b"test-prefix-", pod, 1)[0].tobytes()


def evicting(proposal, *rows):
    """The proposal, of whose pods each names those that go for it."""
    return replace(proposal, victims={i: tuple(map(uid, pods)) for i, pods in enumerate(rows) if pods})


async def free_cpu(ledger, node):
    rows = (await ledger.state(0)).snapshot.accounts
    accounts = np.frombuffer(rows.records, account_dtype(rows.resources))
    allocatable, requested = accounts["amounts"][
        np.frombuffer(rows.indexes, "<u4").tolist().index(node), 0
    ].tolist()
    return allocatable - requested


async def held(ledger):
    """Pods by number that hold anything of the first ten."""
    found = await ledger.lookup(
        0, np.concatenate([numbered_uids(b"test-prefix-", pod, 1) for pod in range(10)])
    )
    return np.flatnonzero(found["node"] != NONE_U32).tolist()


@pytest.fixture
async def full(ledger, make_node, make_proposal):
    """Node 0 is full of pods 1 (cpu 600, priority 0) and 2 (cpu 400, priority 5). Feed begins at seq 3."""
    await ledger.upsert_nodes(0, [make_node("a", cpu=1000), make_node("b", cpu=100)])
    for worker in ("w1", "w2"):
        await ledger.grant(worker)
    await ledger.commit(0, [make_proposal([1, 2], [[0], [0]], cpu=[600, 400], priorities=[0, 5])])
    return ledger


async def test_victims_go_and_the_pod_comes_in_one_entry_of_the_feed(full, make_proposal):
    proposal = make_proposal([3], [[0]], cpu=500, priorities=[9], groups=["late"])
    [decision] = await full.commit(0, [evicting(proposal, [1])])
    assert decision.verdicts.tolist() == [C]
    assert await held(full) == [2, 3]
    assert await free_cpu(full, 0) == 100
    (entry,) = await full.feed(0, decision.seq - 1, 1)
    assert (entry.seq, entry.released) == (decision.seq, 1)
    (eviction,) = entry.evictions
    assert (eviction.uid, eviction.node, eviction.victims) == (uid(3), 0, uid(1))


async def test_nobody_dies_where_the_pod_fits_without_that(full, make_proposal):
    await full.release(0, np.frombuffer(uid(2), np.uint8).reshape(1, 16))
    [decision] = await full.commit(0, [evicting(make_proposal([3], [[0]], cpu=400, priorities=[9]), [1])])
    assert decision.verdicts.tolist() == [C]
    assert await held(full) == [1, 3]


@pytest.mark.parametrize(
    ("cpu", "priority", "victims"),
    [
        pytest.param(900, 5, [1, 2], id="one is as urgent as the pod"),
        pytest.param(500, 9, [1, 7], id="one holds nothing"),
        pytest.param(700, 9, [1], id="it does not fit even then"),
    ],
)
async def test_without_any_one_victim_nobody_goes_and_the_refusal_brings_the_account(
    full, make_proposal, cpu, priority, victims
):
    before = await full.seq(0)
    [decision] = await full.commit(
        0, [evicting(make_proposal([3], [[0]], cpu=cpu, priorities=[priority]), victims)]
    )
    assert decision.verdicts.tolist() == [Verdict.CONFLICT_RESOURCE]
    assert decision.conflicts.tolist() == [(0, 0, 0, cpu, 0)]
    assert np.frombuffer(decision.fresh.indexes, "<u4").tolist() == [0]
    assert (await full.seq(0), await held(full), await free_cpu(full, 0)) == (before, [1, 2], 0)


async def test_a_victim_on_another_node_stays(full, make_proposal):
    await full.commit(0, [make_proposal([4], [[2]], cpu=100)])
    [decision] = await full.commit(0, [evicting(make_proposal([3], [[0]], cpu=100, priorities=[9]), [4])])
    assert decision.verdicts.tolist() == [Verdict.CONFLICT_RESOURCE]
    assert await held(full) == [1, 2, 4]


async def test_a_pod_that_is_only_prepared_is_no_victim(full, make_proposal):
    await full.commit(0, [replace(make_proposal([8], [[2]], cpu=100), prepared=True)])
    [decision] = await full.commit(0, [evicting(make_proposal([3], [[2]], cpu=100, priorities=[9]), [8])])
    assert decision.verdicts.tolist() == [Verdict.CONFLICT_RESOURCE]
    assert await held(full) == [1, 2, 8]


async def test_a_pod_that_went_for_another_of_its_batch_is_placed_anew_and_no_duplicate(full, make_proposal):
    proposal = make_proposal([3, 1], [[0], [2]], cpu=[500, 50], priorities=[9, 0])
    [decision] = await full.commit(0, [evicting(proposal, [1])])
    assert decision.verdicts.tolist() == [C, C]
    assert (await full.lookup(0, proposal.uids))["node"].tolist() == [0, 2]
    assert await free_cpu(full, 2) == 50


async def test_a_pod_with_victims_goes_to_no_alternate(full, make_proposal):
    [decision] = await full.commit(0, [evicting(make_proposal([3], [[0, 2]], cpu=100, priorities=[9]), [7])])
    assert decision.verdicts.tolist() == [Verdict.CONFLICT_RESOURCE]


async def test_of_two_workers_with_the_same_victim_one_wins_and_the_other_harms_nobody(full, make_proposal):
    first = evicting(make_proposal([3], [[0]], cpu=600, priorities=[9]), [1])
    second = evicting(make_proposal([4], [[0]], cpu=600, priorities=[9], worker="w2", epoch=2), [1])
    [won, lost] = await full.commit(0, [first, second])
    assert (won.verdicts.tolist(), lost.verdicts.tolist()) == ([C], [Verdict.CONFLICT_RESOURCE])
    assert await held(full) == [2, 3]


async def test_a_proposal_sent_again_evicts_nobody_more(full, make_proposal):
    proposal = evicting(make_proposal([3], [[0]], cpu=600, priorities=[9]), [1])
    [first] = await full.commit(0, [proposal])
    await full.commit(0, [make_proposal([1], [[0]], cpu=0)])
    [again] = await full.commit(0, [proposal])
    assert (again.verdicts.tolist(), again.duplicate_seqs.tolist()) == ([Verdict.DUPLICATE], [first.seq])
    assert await held(full) == [1, 2, 3]


async def test_ports_and_cards_of_victims_are_taken_over(ledger, make_node, make_proposal):
    await ledger.upsert_nodes(0, [make_node("a", cards=1)])
    await ledger.grant("w1")
    web = {"ports": [[HostPort(80)]], "devices": [(1, 700)]}
    await ledger.commit(0, [make_proposal([1], [[0]], **web)])
    proposal = make_proposal([2], [[0]], priorities=[1], **web)
    [refused] = await ledger.commit(0, [proposal])
    [decision] = await ledger.commit(0, [evicting(proposal, [1])])
    assert (refused.verdicts.tolist(), decision.verdicts.tolist()) == ([Verdict.CONFLICT_PORT], [C])
    state = await ledger.state(0)
    assert [hold[0] for hold in state.ports[0]] == [uid(2)]
    assert np.frombuffer(state.snapshot.accounts.cards, "<u2")[0] == 700


async def test_the_reaper_leaves_alone_what_a_victims_unconfirmed_commit_does_not_hold_any_more(
    full, make_proposal
):
    await full.commit(0, [evicting(make_proposal([3], [[0]], cpu=600, priorities=[9]), [1])])
    await full.confirm(0, np.array([await full.seq(0)], np.uint64))
    await full.reap(0)
    assert await held(full) == [3]


async def test_victims_that_are_in_the_way_for_more_than_room_go_though_the_pod_would_fit(
    full, make_proposal
):
    await full.release(0, np.frombuffer(uid(2), np.uint8).reshape(1, 16))
    shuns = replace(make_proposal([3], [[0]], cpu=400, priorities=[9]), victims_must_go=True)
    [gone] = await full.commit(0, [evicting(shuns, [2])])
    assert gone.verdicts.tolist() == [Verdict.CONFLICT_TOPOLOGY]
    assert gone.conflicts["asked"].tolist() == [await full.seq(0)]
    [decision] = await full.commit(0, [evicting(shuns, [1])])
    assert decision.verdicts.tolist() == [C]
    assert await held(full) == [3]
