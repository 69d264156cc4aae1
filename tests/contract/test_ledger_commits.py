"""What any ledger decides about proposals. Shard 0 of two, so node indexes are even."""

import zlib
from dataclasses import replace

import numpy as np
import pytest

from hoss.model.pod import HostPort
from hoss.model.selectors import LabelSelector, Requirement
from hoss.wire.columns import CARDS, FLAG_SHRUNK, account_dtype
from resolver.core.rules import PlacementRule
from resolver.core.values import Group, Verdict, claim_of, port_text

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
    """Nodes 0 and 2 with room for 1,000 milli cpu, node 4 with plenty and four cards; worker w1 has epoch
    1."""
    await ledger.upsert_nodes(
        0, [make_node("a", cpu=1000), make_node("b", cpu=1000), make_node("c", cards=4)]
    )
    assert await ledger.grant("w1") == 1
    return ledger


async def test_what_fits_is_committed_and_counts_on_its_node(nodes, make_proposal):
    [decision] = await nodes.commit(0, [make_proposal([1, 2], [[0], [0]], cpu=[300, 700])])
    assert decision.verdicts.tolist() == [C, C]
    assert decision.nodes.tolist() == [0, 0]
    assert decision.seq == 2
    assert await requested(nodes, 0) == [1000, 0, 0, 2, 0, 0]


async def test_invariant_1_overcommit_is_refused_because_the_script_compares_before_adding(
    nodes, make_proposal
):
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


async def test_what_was_chosen_for_a_pod_is_kept_with_its_reservation(nodes, make_proposal):
    chosen = Group(7, b"definition")
    uids = make_proposal([1, 2, 3], [[0], [2], [2]]).uids
    await nodes.commit(0, [make_proposal([1], [[0]], groups=[chosen]), make_proposal([2], [[2]])])
    assert await nodes.definitions(0, uids) == [b"definition", b"", b""]
    assert await nodes.definitions(0, uids[:0]) == []


@pytest.mark.topologies
async def test_invariant_2_a_resent_proposal_answers_duplicate_with_node_and_commit(nodes, make_proposal):
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


async def test_invariant_4_a_fenced_worker_cannot_commit_because_the_script_compares_epochs(
    nodes, make_proposal
):
    assert await nodes.grant("w1") == 2
    [decision] = await nodes.commit(0, [make_proposal([1, 2], [[0], [2]], epoch=1)])
    assert decision.verdicts.tolist() == [Verdict.STALE_EPOCH] * 2
    assert decision.seq == 0
    assert await requested(nodes, 0) == [0] * 6


async def test_a_worker_never_granted_an_epoch_cannot_commit(nodes, make_proposal):
    [decision] = await nodes.commit(0, [make_proposal([1], [[0]], worker="stranger")])
    assert decision.verdicts.tolist() == [Verdict.STALE_EPOCH]


@pytest.mark.topologies
async def test_a_grant_fences_on_every_shard(nodes, make_node, make_proposal):
    await nodes.upsert_nodes(1, [make_node("z")])
    await nodes.grant("w1")
    [decision] = await nodes.commit(1, [make_proposal([1], [[1]], epoch=1)])
    assert decision.verdicts.tolist() == [Verdict.STALE_EPOCH]


async def test_an_index_nobody_has_is_gone_and_a_cordoned_node_is_unschedulable(
    nodes, make_node, make_proposal
):
    await nodes.upsert_nodes(0, [make_node("b", cpu=1000, unschedulable=True)])
    [decision] = await nodes.commit(0, [make_proposal([1, 2], [[98], [2]])])
    assert decision.verdicts.tolist() == [Verdict.NODE_GONE, Verdict.NODE_UNSCHEDULABLE]
    assert np.frombuffer(decision.fresh.indexes, "<u4").tolist() == [2]


async def test_a_cordoned_node_takes_pods_that_tolerate_it_and_gets_their_ports_back(
    nodes, make_node, make_proposal
):
    await nodes.upsert_nodes(0, [make_node("a", unschedulable=True)])
    port = claim_of(HostPort(80))
    groups = (
        Group(7, b"tolerant", (port,), tolerates_cordon=True),
        Group(8, b"plain"),
        Group(9, b"plain with a port", (port,)),
    )
    proposal = replace(make_proposal([1, 2, 3], [[0]] * 3, slots=[0, 1, 2]), groups=groups)
    [decision] = await nodes.commit(0, [proposal])
    assert decision.verdicts.tolist() == [C, Verdict.NODE_UNSCHEDULABLE, Verdict.NODE_UNSCHEDULABLE]
    assert (await nodes.state(0)).ports == {0: [(proposal.uids[0].tobytes(), port)]}
    await nodes.release(0, proposal.uids)
    assert (await nodes.state(0)).ports == {}


async def test_a_node_born_after_the_workers_snapshot_is_gone_to_it(nodes, make_node, make_proposal):
    seen = await nodes.seq(0)
    await nodes.remove_nodes(0, ["a"])
    await nodes.upsert_nodes(0, [make_node("a")])
    [stale] = await nodes.commit(0, [make_proposal([1], [[0]], snapshot_seq=seen)])
    [fresh] = await nodes.commit(0, [make_proposal([1], [[0]], snapshot_seq=await nodes.seq(0))])
    assert stale.verdicts.tolist() == [Verdict.NODE_GONE]
    assert fresh.verdicts.tolist() == [C]


async def test_card_shares_fill_the_fullest_card_that_fits_and_whole_cards_need_empty_ones(
    nodes, make_proposal
):
    proposal = make_proposal([1, 2, 3, 4], [[4]] * 4, devices=[(1, 300), (1, 600), (2, 1000), (1, 200)])
    [decision] = await nodes.commit(0, [proposal])
    assert decision.verdicts.tolist() == [C] * 4
    assert await cards_of(nodes, 4) == [900, 1000, 1000, 200] + [0xFFFF] * 12


async def test_cards_of_an_alternate_node_are_taken_by_one_pod_after_the_other(nodes, make_proposal):
    proposal = make_proposal([1, 2], [[0, 4]] * 2, devices=[(1, 600), (1, 500)])
    [decision] = await nodes.commit(0, [proposal])
    assert decision.verdicts.tolist() == [C, C]
    assert decision.nodes.tolist() == [4, 4]
    assert await cards_of(nodes, 4) == [600, 500, 0, 0] + [0xFFFF] * 12


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


@pytest.mark.topologies
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
    proposal = make_proposal(
        [1, 2], [[0], [0]], ports=[[HostPort(80), HostPort(443)], [HostPort(90), HostPort(443)]]
    )
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


async def test_pods_that_stand_already_make_a_node_shrunk_until_it_has_room_for_them_again(
    nodes, make_proposal
):
    stand = replace(make_proposal([1, 2], [[0], [0]], cpu=[800, 800], unchecked=True), existing=True)
    [decision] = await nodes.commit(0, [stand])
    assert decision.verdicts.tolist() == [C, C]
    assert await requested(nodes, 0) == [1600, 0, 0, 2, 0, 0]
    assert (await accounts_of(nodes))[0]["flags"] & FLAG_SHRUNK
    await nodes.release(0, stand.uids[:1])
    assert not (await accounts_of(nodes))[0]["flags"] & FLAG_SHRUNK


async def test_unchecked_commits_hold_ports_together_and_give_back_their_own(nodes, make_proposal):
    proposal = make_proposal([1, 2], [[0], [0]], ports=[[HostPort(80)], [HostPort(80)]], unchecked=True)
    [decision] = await nodes.commit(0, [proposal])
    assert decision.verdicts.tolist() == [C, C]
    await nodes.release(0, proposal.uids[:1])
    assert await ports_of(nodes, 0) == ["80/TCP"]


def web(*, apart=None, spread=None):
    """A group of pods app=web that keeps apart from, or spreads among, pods of these apps over racks."""
    rules = [
        PlacementRule(
            "rack", LabelSelector((Requirement("app", "In", (app,)),)), ("default",), anti_affinity=keeps
        )
        for app, keeps in ((apart, True), (spread, False))
        if app
    ]
    definition = f"web {apart} {spread}".encode()
    return Group(zlib.crc32(definition) + 1, definition, (), "default", (("app", "web"),), tuple(rules))


@pytest.fixture
async def racks(one_shard, make_node):
    """Nodes 0 and 2 in rack r0, node 4 in r1, node 6 in none; workers w1 and w2 have epochs 1 and 2."""
    labels = [(("rack", "r0"),), (), (("rack", "r0"),), (), (("rack", "r1"),), (), ()]
    await one_shard.upsert_nodes(0, [make_node(f"n{i}", labels=pairs) for i, pairs in enumerate(labels)])
    assert [await one_shard.grant(worker) for worker in ("w1", "w2")] == [1, 2]
    return one_shard


@pytest.fixture
def by(racks, make_proposal):
    """Commits pods one to a node, by worker w1 or w2, of one group, as of a seq; the verdicts."""

    async def commit(worker, pods, nodes, group, *, as_of):
        proposal = make_proposal(
            pods,
            [[node] for node in nodes],
            slots=[0] * len(pods),
            groups=[group],
            worker=f"w{worker}",
            epoch=worker,
            snapshot_seq=as_of,
        )
        [decision] = await racks.commit(0, [proposal])
        return decision.verdicts.tolist()

    return commit


T = Verdict.CONFLICT_TOPOLOGY


async def test_who_brings_a_rule_must_have_seen_everything_up_to_its_registration(racks, by):
    before = await racks.seq(0)
    assert await by(1, [1], [0], web(apart="web"), as_of=before) == [T]
    assert await racks.seq(0) == before + 1
    assert await by(1, [1], [0], web(apart="web"), as_of=before + 1) == [C]


@pytest.mark.parametrize("rule", [{"apart": "web"}, {"spread": "web"}])
async def test_a_pod_of_another_worker_in_the_same_domain_since_the_snapshot_refuses_and_elsewhere_does_not(
    racks, by, rule
):
    await by(1, [9], [0], web(**rule), as_of=0)
    seen = await racks.seq(0)
    assert await by(1, [1], [0], web(**rule), as_of=seen) == [C]
    assert await by(2, [2], [2], web(**rule), as_of=seen) == [T]
    assert await by(2, [3], [4], web(**rule), as_of=seen) == [C]
    assert await by(2, [4], [2], web(**rule), as_of=await racks.seq(0)) == [C]


async def test_a_workers_own_commits_are_known_to_it(racks, by):
    await by(1, [9], [0], web(apart="web"), as_of=0)
    seen = await racks.seq(0)
    assert await by(1, [1], [0], web(apart="web"), as_of=seen) == [C]
    assert await by(1, [2], [2], web(apart="web"), as_of=seen) == [C]
    assert await by(2, [3], [2], web(apart="web"), as_of=seen) == [T]
    assert await by(1, [3], [0], web(apart="web"), as_of=await racks.seq(0)) == [C]
    assert await by(2, [4], [4], web(apart="web"), as_of=seen) == [C]


@pytest.mark.parametrize(("rule", "verdict"), [({"apart": "web"}, T), ({"spread": "web"}, C)])
async def test_keeping_apart_binds_the_pods_that_are_kept_away_and_spreading_does_not(
    racks, by, rule, verdict
):
    await by(1, [9], [0], web(**rule), as_of=0)
    seen = await racks.seq(0)
    assert await by(1, [1], [0], web(**rule), as_of=seen) == [C]
    assert await by(2, [2], [2], web(), as_of=seen) == [verdict]


async def test_pods_that_a_rule_sees_refuse_those_who_bear_it(racks, by):
    await by(1, [9], [0], web(apart="web"), as_of=0)
    seen = await racks.seq(0)
    assert await by(2, [1], [0], web(), as_of=seen) == [C]
    assert await by(1, [2], [2], web(apart="web"), as_of=seen) == [T]
    assert await by(1, [3], [4], web(apart="web"), as_of=seen) == [C]


async def test_where_the_topology_key_is_missing_no_rule_applies(racks, by):
    await by(1, [9], [0], web(apart="web"), as_of=0)
    seen = await racks.seq(0)
    assert await by(1, [1], [6], web(apart="web"), as_of=seen) == [C]
    assert await by(2, [2], [6], web(apart="web"), as_of=seen) == [C]


async def test_a_pod_that_rules_look_at_is_placed_where_its_worker_reckons_with_it_or_nowhere(
    racks, make_proposal, make_node
):
    group = web(spread="web")
    await racks.upsert_nodes(0, [make_node("n4", cpu=50_000, labels=(("rack", "r1"),))])
    await racks.commit(0, [make_proposal([9], [[0]], groups=[group])])
    seen = await racks.seq(0)
    # The first is too large for its node. Its alternate would do, and the second was placed as if the first
    # stood.
    proposal = make_proposal(
        [1, 2], [[0, 4], [4]], groups=[group, group], cpu=[20_000, 100], snapshot_seq=seen
    )
    [decision] = await racks.commit(0, [proposal])
    assert decision.verdicts.tolist() == [Verdict.CONFLICT_RESOURCE, T]


async def test_an_aborted_gang_leaves_no_domain_versions_groups_or_ports(racks, by, make_proposal):
    await by(1, [9], [0], web(apart="web"), as_of=0)
    seen = await racks.seq(0)
    groups = [web(apart="web"), Group(7, b"port 80", (claim_of(HostPort(80)),))]
    gang = make_proposal([1, 2, 3], [[0], [2], [2]], slots=[0, 1, 1], groups=groups, snapshot_seq=seen)
    [decision] = await racks.commit(0, [replace(gang, gang_minimum=3)])
    assert decision.verdicts.tolist() == [Verdict.GANG_ABORTED, Verdict.GANG_ABORTED, Verdict.CONFLICT_PORT]
    assert (decision.seq, decision.as_of) == (0, seen)
    state = await racks.state(0)
    assert (state.ports, state.groups) == ({}, {})
    assert await by(2, [4], [2], web(apart="web"), as_of=seen) == [C]


def standing(make_proposal, *args, **fields):
    return replace(make_proposal(*args, unchecked=True, **fields), existing=True)


async def test_a_pod_that_grows_or_shrinks_where_it_stands_is_counted_anew_in_one_step(nodes, make_proposal):
    [first] = await nodes.commit(0, [make_proposal([1, 2], [[0], [0]], cpu=[300, 700])])
    await nodes.confirm(0, np.array([first.seq], np.uint64))
    for cpu, exceeds in ((900, True), (100, False)):
        [decision] = await nodes.commit(0, [standing(make_proposal, [1], [[0]], cpu=cpu)])
        assert decision.verdicts.tolist() == [C]
        assert await requested(nodes, 0) == [700 + cpu, 0, 0, 2, 0, 0]
        assert bool((await accounts_of(nodes))[0]["flags"] & FLAG_SHRUNK) is exceeds
        (entry,) = await nodes.feed(0, decision.seq - 1, 0)
        assert entry.released == 1, "whoever waits for room looks again"
    [again] = await nodes.commit(0, [standing(make_proposal, [1], [[0]], cpu=100)])
    assert (again.verdicts.tolist(), again.seq) == ([D], 0), "it has what it asks for"
    await nodes.release(0, uids_of(make_proposal, 1))
    assert await requested(nodes, 0) == [700, 0, 0, 1, 0, 0]


def uids_of(make_proposal, number):
    return make_proposal([number], [[0]]).uids


async def test_a_worker_that_proposes_a_pod_anew_with_another_size_changes_nothing(nodes, make_proposal):
    await nodes.commit(0, [make_proposal([1], [[0]], cpu=300)])
    for proposal in (make_proposal([1], [[0]], cpu=900), make_proposal([1], [[0]], cpu=900, unchecked=True)):
        [decision] = await nodes.commit(0, [proposal])
        assert decision.verdicts.tolist() == [D]
    assert await requested(nodes, 0) == [300, 0, 0, 1, 0, 0]


async def test_ports_of_a_pod_that_is_counted_anew_are_held_once(nodes, make_proposal):
    await nodes.commit(0, [make_proposal([1], [[0]], cpu=300, ports=[[HostPort(80)]])])
    await nodes.commit(0, [standing(make_proposal, [1], [[0]], cpu=400, ports=[[HostPort(80)]])])
    assert await ports_of(nodes, 0) == ["80/TCP"]
    await nodes.commit(0, [standing(make_proposal, [1], [[0]], cpu=400)])
    assert await ports_of(nodes, 0) == []


async def test_cards_that_are_not_there_leave_a_pod_with_what_it_had(nodes, make_proposal):
    await nodes.commit(0, [make_proposal([1], [[4]], cpu=100, devices=[(2, 1000)])])
    before = await cards_of(nodes, 4), await requested(nodes, 4)
    [decision] = await nodes.commit(0, [standing(make_proposal, [1], [[4]], cpu=200, devices=[(9, 1000)])])
    assert decision.verdicts.tolist() == [D]
    assert (await cards_of(nodes, 4), await requested(nodes, 4)) == before
