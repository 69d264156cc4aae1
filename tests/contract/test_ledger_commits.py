"""What any ledger decides about proposals. Shard 0 of two, so node indexes are even."""

import numpy as np
import pytest

from hoss.model.pod import HostPort
from hoss.wire.account import CARDS, FLAG_SHRUNK, account_dtype
from resolver.core.ports import port_text
from resolver.core.values import Verdict

C, D = Verdict.COMMITTED, Verdict.DUPLICATE


async def accounts_of(ledger, shard=0):
    rows = (await ledger.state(shard)).snapshot.accounts
    return dict(
        zip(
            np.frombuffer(rows.indexes, "<u4").tolist(),
            np.frombuffer(rows.records, account_dtype(rows.resources)),
            strict=True,
        )
    )


async def requested(ledger, node):
    return (await accounts_of(ledger))[node]["amounts"][:, 1].tolist()


async def cards_of(ledger, node):
    rows = (await ledger.state(0)).snapshot.accounts
    at = np.frombuffer(rows.card_indexes, "<u4").tolist().index(node)
    return np.frombuffer(rows.cards, CARDS.base).reshape(-1, 16)[at].tolist()


@pytest.fixture
async def nodes(ledger, make_node):
    """Nodes 0 and 2 with room for 1,000 milli cpu, node 4 with plenty and four cards; worker w1 has epoch 1."""
    await ledger.upsert_nodes(0, [make_node("a", cpu=1000), make_node("b", cpu=1000), make_node("c", cards=4)])
    assert await ledger.grant("w1") == 1
    return ledger


async def test_what_fits_is_committed_and_counts_on_its_node(nodes, make_proposal):
    [decision] = await nodes.commit(0, [make_proposal([1, 2], [[0], [0]], cpu=[300, 700])])
    assert decision.verdicts.tolist() == [C, C]
    assert decision.nodes.tolist() == [0, 0]
    assert decision.seq == 2
    assert await requested(nodes, 0) == [1000, 0, 0, 2, 0, 0]


async def test_invariant_1_overcommit_is_refused_because_the_script_compares_before_adding(nodes, make_proposal):
    [decision] = await nodes.commit(0, [make_proposal([1, 2], [[0], [0]], cpu=[600, 401])])
    assert decision.verdicts.tolist() == [C, Verdict.CONFLICT_RESOURCE]
    assert decision.conflicts.tolist() == [(1, 0, 0, 401, 400)]
    assert await requested(nodes, 0) == [600, 0, 0, 1, 0, 0]


async def test_invariant_1_holds_for_the_number_of_pods_too(ledger, make_node, make_proposal):
    await ledger.upsert_nodes(0, [make_node("a", pods=1)])
    await ledger.grant("w1")
    [decision] = await ledger.commit(0, [make_proposal([1, 2], [[0], [0]], cpu=0)])
    assert decision.verdicts.tolist() == [C, Verdict.CONFLICT_RESOURCE]
    assert decision.conflicts["resource"].tolist() == [3]


async def test_a_refusal_brings_the_refusing_nodes_account_as_it_is_after_the_commit(nodes, make_proposal):
    [decision] = await nodes.commit(0, [make_proposal([1, 2], [[0], [0]], cpu=[600, 401])])
    fresh = np.frombuffer(decision.fresh.records, account_dtype(decision.fresh.resources))
    assert np.frombuffer(decision.fresh.indexes, "<u4").tolist() == [0]
    assert fresh["amounts"][0, 0].tolist() == [1000, 600]
    assert fresh["seq"].tolist() == [decision.seq]


async def test_when_nothing_fits_nothing_is_written_and_no_sequence_number_is_taken(nodes, make_proposal):
    before = await nodes.seq(0)
    [decision] = await nodes.commit(0, [make_proposal([1], [[0]], cpu=1001)])
    assert decision.seq == 0
    assert await nodes.seq(0) == before


async def test_the_first_alternate_that_fits_is_taken_and_the_first_candidates_refusal_is_not_reported(
    nodes, make_proposal
):
    [decision] = await nodes.commit(0, [make_proposal([1, 2], [[0, 2], [0, 2, 4]], cpu=[800, 1500])])
    assert decision.verdicts.tolist() == [C, C]
    assert decision.nodes.tolist() == [0, 4]
    assert len(decision.conflicts) == 0
    assert sorted(np.frombuffer(decision.fresh.indexes, "<u4").tolist()) == [0, 2]


async def test_a_pod_refused_everywhere_has_the_verdict_of_its_first_candidate(nodes, make_proposal):
    [decision] = await nodes.commit(0, [make_proposal([1], [[0, 98]], cpu=1500)])
    assert decision.verdicts.tolist() == [Verdict.CONFLICT_RESOURCE]
    assert decision.nodes.tolist() == [0]


async def test_higher_priority_is_served_first_and_answers_stay_in_the_batchs_order(nodes, make_proposal):
    proposal = make_proposal([1, 2, 3], [[0], [0], [0]], cpu=[600, 600, 400], priorities=[0, 10, 5])
    [decision] = await nodes.commit(0, [proposal])
    assert decision.verdicts.tolist() == [Verdict.CONFLICT_RESOURCE, C, C]
    assert decision.conflicts["position"].tolist() == [0]


async def test_invariant_2_a_resent_proposal_answers_duplicate_with_node_and_commit_because_uids_are_looked_up(
    nodes, make_proposal
):
    proposal = make_proposal([1, 2], [[0], [2]])
    [first] = await nodes.commit(0, [proposal])
    [again] = await nodes.commit(0, [proposal])
    assert again.verdicts.tolist() == [D, D]
    assert again.nodes.tolist() == [0, 2]
    assert again.duplicate_seqs.tolist() == [first.seq, first.seq]
    assert again.seq == 0
    assert await requested(nodes, 0) == [100, 0, 0, 1, 0, 0]


async def test_invariant_2_a_uid_twice_in_one_batch_is_reserved_once(nodes, make_proposal):
    [decision] = await nodes.commit(0, [make_proposal([1, 1], [[0], [2]], slots=[0, 0])])
    assert decision.verdicts.tolist() == [C, D]
    assert decision.nodes.tolist() == [0, 0]
    assert decision.duplicate_seqs.tolist() == [decision.seq]


async def test_invariant_4_a_fenced_worker_cannot_commit_because_the_script_compares_epochs(nodes, make_proposal):
    assert await nodes.grant("w1") == 2
    [decision] = await nodes.commit(0, [make_proposal([1, 2], [[0], [2]], epoch=1)])
    assert decision.verdicts.tolist() == [Verdict.STALE_EPOCH] * 2
    assert decision.seq == 0
    assert await requested(nodes, 0) == [0] * 6


async def test_a_worker_never_granted_an_epoch_cannot_commit(nodes, make_proposal):
    [decision] = await nodes.commit(0, [make_proposal([1], [[0]], worker="stranger")])
    assert decision.verdicts.tolist() == [Verdict.STALE_EPOCH]


async def test_a_grant_fences_on_every_shard(nodes, make_node, make_proposal):
    await nodes.upsert_nodes(1, [make_node("z")])
    await nodes.grant("w1")
    [decision] = await nodes.commit(1, [make_proposal([1], [[1]], epoch=1)])
    assert decision.verdicts.tolist() == [Verdict.STALE_EPOCH]


async def test_an_index_nobody_has_is_gone_and_a_cordoned_node_is_unschedulable(nodes, make_node, make_proposal):
    await nodes.upsert_nodes(0, [make_node("b", cpu=1000, unschedulable=True)])
    [decision] = await nodes.commit(0, [make_proposal([1, 2], [[98], [2]])])
    assert decision.verdicts.tolist() == [Verdict.NODE_GONE, Verdict.NODE_UNSCHEDULABLE]
    assert np.frombuffer(decision.fresh.indexes, "<u4").tolist() == [2]


async def test_a_node_born_after_the_workers_snapshot_is_gone_to_it(nodes, make_node, make_proposal):
    seen = await nodes.seq(0)
    await nodes.remove_nodes(0, ["a"])
    await nodes.upsert_nodes(0, [make_node("a")])
    [stale] = await nodes.commit(0, [make_proposal([1], [[0]], snapshot_seq=seen)])
    [fresh] = await nodes.commit(0, [make_proposal([1], [[0]], snapshot_seq=await nodes.seq(0))])
    assert stale.verdicts.tolist() == [Verdict.NODE_GONE]
    assert fresh.verdicts.tolist() == [C]


async def test_card_shares_fill_the_fullest_card_that_fits_and_whole_cards_need_empty_ones(nodes, make_proposal):
    proposal = make_proposal([1, 2, 3, 4], [[4]] * 4, devices=[(1, 300), (1, 600), (2, 1000), (1, 200)])
    [decision] = await nodes.commit(0, [proposal])
    assert decision.verdicts.tolist() == [C] * 4
    assert await cards_of(nodes, 4) == [900, 1000, 1000, 200] + [0xFFFF] * 12


async def test_invariant_1_a_card_is_never_promised_beyond_its_thousandths(nodes, make_proposal):
    proposal = make_proposal([1, 2], [[4]] * 2, devices=[(3, 1000), (2, 501)])
    [decision] = await nodes.commit(0, [proposal])
    assert decision.verdicts.tolist() == [C, Verdict.CONFLICT_DEVICE]
    assert decision.conflicts[["asked", "free"]].tolist() == [(2, 1)]
    assert len(decision.fresh.cards) == 32


async def test_unchecked_commits_go_beyond_what_there_is_and_still_only_once(nodes, make_proposal):
    proposal = make_proposal([1, 2], [[0], [0]], cpu=[800, 800], unchecked=True)
    [decision] = await nodes.commit(0, [proposal])
    [again] = await nodes.commit(0, [proposal])
    assert decision.verdicts.tolist() == [C, C]
    assert again.verdicts.tolist() == [D, D]
    account = (await accounts_of(nodes))[0]
    assert account["amounts"][0].tolist() == [1000, 1600]
    assert not account["flags"] & FLAG_SHRUNK


async def test_several_proposals_in_one_round_trip_see_each_other(nodes, make_proposal):
    decisions = await nodes.commit(0, [make_proposal([pod], [[0]], cpu=600) for pod in (1, 2)])
    assert [d.verdicts.tolist() for d in decisions] == [[C], [Verdict.CONFLICT_RESOURCE]]


async def ports_of(ledger, node):
    holds = (await ledger.state(0)).ports.get(node, [])
    return sorted(port_text(claim) for _, claim in holds)


@pytest.mark.parametrize(
    ("held", "asked", "verdict"),
    [
        (HostPort(80), HostPort(80), Verdict.CONFLICT_PORT),
        (HostPort(80), HostPort(80, host_ip="10.0.0.1"), Verdict.CONFLICT_PORT),
        (HostPort(80, host_ip="10.0.0.1"), HostPort(80, host_ip=""), Verdict.CONFLICT_PORT),
        (HostPort(80, host_ip="10.0.0.1"), HostPort(80, host_ip="10.0.0.1"), Verdict.CONFLICT_PORT),
        (HostPort(80, host_ip="10.0.0.1"), HostPort(80, host_ip="10.0.0.2"), C),
        (HostPort(80, host_ip="::"), HostPort(80, host_ip="10.0.0.2"), C),
        (HostPort(80, host_ip="::"), HostPort(80), Verdict.CONFLICT_PORT),
        (HostPort(80), HostPort(80, "UDP"), C),
        (HostPort(80), HostPort(81), C),
    ],
)
async def test_a_port_is_taken_for_the_same_protocol_on_the_same_address_or_on_every_address(
    nodes, make_proposal, held, asked, verdict
):
    await nodes.commit(0, [make_proposal([1], [[0]], ports=[[held]])])
    [decision] = await nodes.commit(0, [make_proposal([2], [[0]], ports=[[asked]])])
    assert decision.verdicts.tolist() == [verdict]


async def test_a_taken_port_is_evidence_and_nothing_of_the_pod_is_written(nodes, make_proposal):
    proposal = make_proposal([1, 2], [[0], [0]], ports=[[HostPort(80), HostPort(443)], [HostPort(90), HostPort(443)]])
    [decision] = await nodes.commit(0, [proposal])
    assert decision.verdicts.tolist() == [C, Verdict.CONFLICT_PORT]
    assert decision.conflicts.tolist() == [(1, 0, 0, 443, 0)]
    assert await ports_of(nodes, 0) == ["443/TCP", "80/TCP"]
    assert await requested(nodes, 0) == [100, 0, 0, 1, 0, 0]


async def test_an_alternate_with_the_port_free_is_taken(nodes, make_proposal):
    await nodes.commit(0, [make_proposal([1], [[0]], ports=[[HostPort(80)]])])
    [decision] = await nodes.commit(0, [make_proposal([2], [[0, 2]], ports=[[HostPort(80)]])])
    assert decision.nodes.tolist() == [2]


async def test_a_refusal_says_as_of_when_and_so_does_a_commit(nodes, make_proposal):
    [made] = await nodes.commit(0, [make_proposal([1], [[0]], ports=[[HostPort(80)]])])
    [refused] = await nodes.commit(0, [make_proposal([2], [[0]], ports=[[HostPort(80)]])])
    assert (made.as_of, refused.seq, refused.as_of) == (made.seq, 0, made.seq)


async def test_unchecked_commits_hold_ports_together_and_give_back_their_own(nodes, make_proposal):
    proposal = make_proposal([1, 2], [[0], [0]], ports=[[HostPort(80)], [HostPort(80)]], unchecked=True)
    [decision] = await nodes.commit(0, [proposal])
    assert decision.verdicts.tolist() == [C, C]
    await nodes.release(0, proposal.uids[:1])
    assert await ports_of(nodes, 0) == ["80/TCP"]
