"""Conditions in the scripts that decide on pods which no other test tells apart: several pods of one batch on
one node, what others have prepared meanwhile, and records that were written before or are missing. On any
ledger where both have the operation; shard 0 of two, so node indexes are even."""

from dataclasses import replace

import numpy as np
import pytest

from hoss.model.pod import HostPort
from hoss.model.selectors import LabelSelector, Requirement
from hoss.wire.columns import FLAG_SHRUNK, NO_CARD, account_dtype, numbered_uids
from resolver.core.consistency.audit import ShardAccounts, audit
from resolver.core.moves import MoveResult, Moves, target_proposal, target_uids
from resolver.core.rules import PlacementRule
from resolver.core.values import Group, Leases, ReservationState, Verdict, Writer
from resolver.ledger.memory import MemoryLedger
from resolver.ledger.shards import SHARD_KEYS

C, D, NO_ROOM, NO_PORT, NO_DEVICE, T = (
    Verdict.COMMITTED,
    Verdict.DUPLICATE,
    Verdict.CONFLICT_RESOURCE,
    Verdict.CONFLICT_PORT,
    Verdict.CONFLICT_DEVICE,
    Verdict.CONFLICT_TOPOLOGY,
)
HTTP, DNS = HostPort(80), HostPort(53, "UDP")
HOUR_MS = 3_600_000
redis_alone = pytest.mark.parametrize("ledger_url", ["server"], indirect=True)


def uid(pod):
    return numbered_uids(b"test-prefix-", pod, 1)[0].tobytes()


def uids(*pods):
    return np.concatenate([numbered_uids(b"test-prefix-", pod, 1) for pod in pods])


def evicting(proposal, victims, **changes):
    """The proposal, with those who go for its pods, by position."""
    return replace(proposal, victims={at: tuple(map(uid, pods)) for at, pods in victims.items()}, **changes)


def existing(proposal):
    return replace(proposal, unchecked=True, existing=True)


async def stored(ledger, name):
    """The key of that name, and a client of its server."""
    key = ledger.keys_of(0)[SHARD_KEYS.index(name)]
    return key, await ledger.scripts.access.at(key)


async def account_of(ledger, node):
    rows = (await ledger.state(0)).snapshot.accounts
    accounts = np.frombuffer(rows.records, account_dtype(rows.resources))
    return accounts[np.frombuffer(rows.indexes, "<u4").tolist().index(node)]


async def is_sound(ledger):
    """Accounts, cards, ports and groups are those of the reservations, and nothing is overcommitted."""
    state = await ledger.state(0)
    rows, held = state.snapshot.accounts, state.reservations
    shard = ShardAccounts(
        0,
        np.frombuffer(rows.indexes, "<u4"),
        np.frombuffer(rows.records, account_dtype(rows.resources)),
        np.frombuffer(rows.card_indexes, "<u4"),
        np.frombuffer(rows.cards, "<u2").reshape(-1, 16),
        held.uids,
        held.records,
        state.ports,
        {key: pods for key, (_, pods) in state.groups.items()},
        state.commit_faults,
    )
    return not any(audit([shard], await ledger.schema(), {}))


@pytest.fixture
async def nodes(ledger, make_node):
    """Node 0 with 1,000 milli cpu and two cards, node 2 with 1,000 milli cpu; worker w1 has epoch 1. No lease
    is over."""
    await ledger.upsert_nodes(0, [make_node("a", cpu=1000, cards=2), make_node("b", cpu=1000)])
    assert await ledger.grant("w1") == 1
    ledger._leases = Leases(commit_ms=HOUR_MS, prepare_ms=HOUR_MS)
    return ledger


@pytest.fixture
def commit(nodes, make_proposal):
    """Commits pods for node 0, or others: the decision."""

    async def run(pods, of=0, *, changed=lambda proposal: proposal, **what):
        on = [[of]] * len(pods) if isinstance(of, int) else of
        [decision] = await nodes.commit(0, [changed(make_proposal(pods, on, **what))])
        return decision

    return run


def verdicts(decision):
    return list(map(Verdict, decision.verdicts.tolist()))


@pytest.fixture
async def bystander(commit):
    """A commit that is only prepared."""
    await commit([99], 2, cpu=1, changed=lambda proposal: replace(proposal, prepared=True))


# -- victims


async def test_each_victim_gives_back_its_cards_and_its_ports(nodes, commit):
    await commit([1, 2], devices=[(1, 1000), (1, 1000)], ports=[[HTTP], [DNS]])
    decision = await commit(
        [3],
        devices=[(2, 1000)],
        ports=[[HTTP, DNS]],
        priorities=[9],
        changed=lambda proposal: evicting(proposal, {0: [1, 2]}),
    )
    assert verdicts(decision) == [C]
    assert await is_sound(nodes)


async def test_victims_of_one_group_all_leave_it(nodes, commit):
    await commit([1, 2, 3], groups=["web", "web", ""])
    before = await nodes.seq(0)
    await commit([4], priorities=[9], cpu=900, changed=lambda p: evicting(p, {0: [1, 2, 3]}))
    [entry] = await nodes.feed(0, before, 0)
    [run] = entry.runs
    assert (run.gone, len(run.nodes) // 4) == (True, 2)
    assert (await nodes.state(0)).groups == {}
    assert await is_sound(nodes)


async def test_an_eviction_that_does_not_help_leaves_the_node_as_it_was_for_the_next_pod(nodes, commit):
    await commit([1], cpu=600)
    decision = await commit(
        [2, 3], cpu=[2000, 500], priorities=[9, 8], changed=lambda p: evicting(p, {0: [1]})
    )
    assert verdicts(decision) == [NO_ROOM, NO_ROOM]
    assert await is_sound(nodes)


async def test_an_eviction_keeps_what_earlier_pods_of_the_batch_took_of_its_node(nodes, commit):
    await commit([1], cpu=600)
    decision = await commit(
        [2, 3, 4, 5],
        cpu=[100, 700, 100, 100],
        priorities=[9, 8, 7, 6],
        devices=[(2, 1000), (0, 0), (0, 0), (1, 1000)],
        ports=[[HTTP], [], [HTTP], []],
        changed=lambda proposal: evicting(proposal, {1: [1]}),
    )
    assert verdicts(decision) == [C, C, NO_PORT, NO_DEVICE]
    assert await is_sound(nodes)


async def test_cards_and_ports_of_a_victim_are_free_after_a_pod_without_either_took_its_place(nodes, commit):
    await commit([1], cpu=600, devices=[(2, 1000)], ports=[[HTTP]])
    await commit([2], cpu=900, priorities=[9], changed=lambda proposal: evicting(proposal, {0: [1]}))
    assert await is_sound(nodes)
    assert verdicts(await commit([3], devices=[(2, 1000)], ports=[[HTTP]])) == [C]


async def test_what_others_have_prepared_keeps_nobody_from_being_evicted_or_resized(nodes, commit, bystander):
    await commit([1], cpu=600)
    await commit([2], cpu=500, priorities=[9], changed=lambda proposal: evicting(proposal, {0: [1]}))
    assert verdicts(await commit([2], cpu=400, changed=existing)) == [C]
    assert (await account_of(nodes, 0))["amounts"][0, 1] == 400


async def test_why_a_node_refuses_is_told_though_victims_are_in_the_way_as_well(nodes, commit):
    await commit([1], cpu=600)
    decision = await commit(
        [2], cpu=2000, priorities=[9], changed=lambda p: evicting(p, {0: [1]}, victims_must_go=True)
    )
    assert verdicts(decision) == [NO_ROOM]


async def test_an_eviction_ends_a_shrinking_only_if_nothing_is_exceeded_any_more(nodes, commit, make_node):
    await commit([1], cpu=400, devices=[(1, 1000)])
    on_open, on_closed = (1, 2) if await cards_of(nodes) == [1000, 0] else (2, 1)
    await commit([2, 3], cpu=[300, 200], devices=[(1, 1000), (0, 0)])
    await nodes.upsert_nodes(0, [make_node("a", cpu=600, cards=1)])
    flags = []
    for pod, victim in ((4, 3), (5, on_open), (6, on_closed)):
        decision = await commit(
            [pod],
            cpu=0,
            priorities=[9],
            changed=lambda p, v=victim: evicting(p, {0: [v]}, victims_must_go=True),
        )
        assert verdicts(decision) == [C]
        flags.append(int((await account_of(nodes, 0))["flags"]) & FLAG_SHRUNK)
    # 700 of 600 and a closed card; then the card alone; then nothing.
    assert flags == [FLAG_SHRUNK, FLAG_SHRUNK, 0]


async def test_amounts_alone_keep_a_node_shrunken_through_an_eviction(nodes, commit, make_node):
    await commit([1, 2], 2, cpu=[700, 200])
    await nodes.upsert_nodes(0, [make_node("b", cpu=600)])
    await commit([3], 2, cpu=0, priorities=[9], changed=lambda p: evicting(p, {0: [2]}, victims_must_go=True))
    assert int((await account_of(nodes, 2))["flags"]) & FLAG_SHRUNK


async def test_a_closed_card_alone_keeps_a_node_shrunken_through_an_eviction(nodes, commit, make_node):
    await commit([1, 2, 3], cpu=[400, 300, 200], devices=[(1, 1000), (1, 1000), (0, 0)])
    await nodes.upsert_nodes(0, [make_node("a", cpu=800, cards=0)])
    await commit([4], cpu=0, priorities=[9], changed=lambda p: evicting(p, {0: [3]}, victims_must_go=True))
    assert int((await account_of(nodes, 0))["flags"]) & FLAG_SHRUNK


async def test_an_eviction_does_not_call_overcommitment_a_shrinking(nodes, commit):
    def of_memory(proposal):
        proposal.requests[:, 1] = 2**40
        return replace(proposal, unchecked=True)

    await commit([1], cpu=1, changed=of_memory)
    await commit([2], cpu=900)
    await commit([3], cpu=800, priorities=[9], changed=lambda proposal: evicting(proposal, {0: [2]}))
    assert int((await account_of(nodes, 0))["flags"]) & FLAG_SHRUNK == 0
    assert not await is_sound(nodes)


# -- existing pods


async def test_an_existing_pod_is_not_resized_by_a_resource_that_is_new_and_that_it_does_not_ask_for(
    nodes, commit
):
    def narrow(proposal):
        return existing(replace(proposal, requests=proposal.requests[:, :4]))

    assert verdicts(await commit([1], changed=narrow)) == [C]
    assert verdicts(await commit([1], changed=existing)) == [D]
    assert verdicts(await commit([2], changed=existing)) == [C]
    assert verdicts(await commit([2], changed=narrow)) == [D]


@pytest.mark.parametrize(
    ("now", "verdict"), [((2, 400), D), ((1, 400), C), ((2, 500), C), ((0, 0), C)], ids=str
)
async def test_an_existing_pod_is_resized_where_its_cards_differ(nodes, commit, now, verdict):
    await commit([1], devices=[(2, 400)])
    assert verdicts(await commit([1], devices=[now], changed=existing)) == [verdict]
    assert await is_sound(nodes)


async def test_a_resized_pod_is_once_in_its_group(nodes, commit):
    await commit([1], groups=["web"])
    assert verdicts(await commit([1], cpu=200, groups=["web"], changed=existing)) == [C]
    assert await is_sound(nodes)


async def test_an_existing_pod_whose_node_has_a_damaged_account_stays_as_it_is(nodes, commit):
    await commit([1])
    if isinstance(nodes, MemoryLedger):
        nodes.damage_account(0, 0, b"short")
    else:
        key, redis = await stored(nodes, "accounts")
        await redis.hset(key, bytes(4), b"short")
    assert verdicts(await commit([1], cpu=200, changed=existing)) == [D]


async def test_an_existing_pod_does_not_end_a_shrinking(nodes, commit, make_node):
    await commit([1], devices=[(1, 1000)])
    await nodes.upsert_nodes(0, [make_node("a", cpu=1000, cards=0)])
    await commit([2], changed=existing)
    assert int((await account_of(nodes, 0))["flags"]) & FLAG_SHRUNK


# -- cards


async def cards_of(ledger):
    rows = (await ledger.state(0)).snapshot.accounts
    return [used for used in np.frombuffer(rows.cards, "<u2").tolist() if used != NO_CARD]


async def test_the_fullest_card_that_fits_is_taken_and_without_validation_the_emptiest_full_or_not(
    nodes, commit
):
    await commit([1, 2], devices=[(1, 600), (1, 700)], priorities=[2, 1])
    assert await cards_of(nodes) == [600, 700]
    await commit([3], devices=[(1, 300)])
    assert await cards_of(nodes) == [600, 1000]
    await nodes.release(0, uids(2))
    assert await cards_of(nodes) == [600, 300]
    await commit([4], devices=[(1, 800)], changed=existing)
    assert await cards_of(nodes) == [600, 1100]


async def test_who_is_refused_for_a_device_sees_the_cards_of_the_node_and_each_node_once(nodes, commit):
    decision = await commit([1, 2, 3], [[0], [0], [2]], devices=[(3, 1000), (3, 1000), (1, 1000)])
    assert verdicts(decision) == [NO_DEVICE] * 3
    assert np.frombuffer(decision.fresh.indexes, "<u4").tolist() == [0, 2]
    assert np.frombuffer(decision.fresh.card_indexes, "<u4").tolist() == [0]
    assert np.frombuffer(decision.fresh.cards, "<u2").tolist() == [0, 0] + [NO_CARD] * 14


# -- releases


async def test_pods_of_one_release_give_back_all_their_cards_and_ports(nodes, commit):
    await commit([1, 2, 3], devices=[(1, 400), (1, 1000), (0, 0)], ports=[[HTTP], [DNS], []])
    assert await nodes.release(0, uids(1, 2)) == 2
    assert await is_sound(nodes)
    assert await cards_of(nodes) == [0, 0]


async def test_a_release_does_not_end_a_shrinking_while_amounts_are_exceeded(nodes, commit, make_node):
    await commit([1, 2], cpu=[700, 200])
    await nodes.upsert_nodes(0, [make_node("a", cpu=600, cards=2)])
    await nodes.release(0, uids(2))
    assert int((await account_of(nodes, 0))["flags"]) & FLAG_SHRUNK


async def test_a_release_does_not_call_overcommitment_a_shrinking(nodes, commit):
    await commit([1, 2], cpu=2000, changed=lambda proposal: replace(proposal, unchecked=True))
    await nodes.release(0, uids(2))
    assert int((await account_of(nodes, 0))["flags"]) & FLAG_SHRUNK == 0


async def test_the_feed_shows_that_pods_leave_while_others_are_prepared(nodes, commit, bystander):
    await commit([1], groups=["web"])
    before = await nodes.seq(0)
    await nodes.release(0, uids(1))
    [entry] = await nodes.feed(0, before, 0)
    assert [run.gone for run in entry.runs] == [True]


async def test_what_a_preemptor_took_is_forgotten_once_it_was_given_back(nodes, commit):
    await commit([1], cpu=600)
    await commit(
        [2], cpu=500, priorities=[9], changed=lambda p: evicting(p, {0: [1]}, victims_terminate=True)
    )
    assert len((await nodes.state(0)).shares) == 1
    await nodes.release(0, uids(2))
    assert (await nodes.state(0)).shares == {}
    assert await is_sound(nodes)


async def test_a_preemptor_is_released_where_the_account_of_its_node_is_damaged(nodes, commit):
    await commit([1], cpu=600)
    await commit(
        [2], cpu=500, priorities=[9], changed=lambda p: evicting(p, {0: [1]}, victims_terminate=True)
    )
    if isinstance(nodes, MemoryLedger):
        nodes.damage_account(0, 0, b"short")
    else:
        key, redis = await stored(nodes, "accounts")
        await redis.hset(key, bytes(4), b"short")
    assert await nodes.release(0, uids(2)) == 1
    state = await nodes.state(0)
    assert state.reservations.records["requests"][:, 0].tolist() == [600]


async def test_what_a_look_up_aborts_is_gone(nodes, commit):
    await commit([1], changed=lambda proposal: replace(proposal, prepared=True))
    await nodes.grant("w1")
    before = await nodes.seq(0)
    assert (await nodes.lookup(0, uids(1)))["state"].tolist() == [ReservationState.NONE]
    assert len((await nodes.state(0)).reservations.uids) == 0
    assert (await account_of(nodes, 0))["amounts"][0, 1] == 0
    assert await nodes.seq(0) == before + 1
    await nodes.lookup(0, uids(1))
    assert await nodes.seq(0) == before + 1


@redis_alone
async def test_a_damaged_worker_keeps_no_pod_from_being_looked_up(nodes, commit, bystander):
    key, redis = await stored(nodes, "workers")
    await redis.hset(key, "stranger", "x")
    assert (await nodes.lookup(0, uids(99)))["state"].tolist() == [ReservationState.PREPARED]


# -- moves


@pytest.fixture
async def mover(nodes):
    return Writer(worker="mover", epoch=await nodes.grant("mover"))


@pytest.fixture
def reserve(nodes, mover):
    """Reserves the targets of these pods on node 2, or moves them at once: the decision, and the moves."""

    async def run(pods, *, at_once=False, node=2, groups=None):
        held = await nodes.reservations_of(0, uids(*pods))
        seen = (await nodes.seq(0), await nodes.seq(1))
        proposal = target_proposal(
            held,
            groups or [None] * len(pods),
            np.full(len(pods), node, np.uint32),
            writer=mover,
            seen=seen,
            at_once=at_once,
        )
        [decision] = await nodes.commit(0, [proposal])
        seqs = np.full(len(pods), decision.seq, np.uint64)
        nodes_of = np.full(len(pods), node, np.uint32)
        return decision, Moves(held.uids, nodes_of, seqs, held.records["node"], held.records["seq"])

    return run


async def test_what_others_have_prepared_keeps_no_move_from_its_end(nodes, commit, bystander, reserve, mover):
    await commit([1])
    _, moves = await reserve([1])
    assert list(await nodes.confirm_moves(0, moves, mover)) == [MoveResult.MOVED]


async def test_moves_that_end_nothing_are_no_change(nodes, commit, reserve, mover):
    await commit([1])
    _, moves = await reserve([1])
    await nodes.release(0, uids(1))
    before = await nodes.seq(0)
    assert list(await nodes.confirm_moves(0, moves, mover)) == [MoveResult.SOURCE_CHANGED]
    assert await nodes.seq(0) == before


async def test_a_move_from_another_shard_is_one_change(nodes, commit, make_node, make_proposal, mover):
    await nodes.upsert_nodes(1, [make_node("c")])
    [decision] = await nodes.commit(1, [make_proposal([1], [[1]])])
    held = await nodes.reservations_of(1, uids(1))
    seen = (await nodes.seq(0), await nodes.seq(1))
    target = target_proposal(held, [None], np.array([2], np.uint32), writer=mover, seen=seen)
    [reserved] = await nodes.commit(0, [target])
    moves = Moves(
        uids(1),
        np.array([2], np.uint32),
        np.array([reserved.seq], np.uint64),
        np.array([1], np.uint32),
        np.array([decision.seq], np.uint64),
    )
    before = await nodes.seq(0)
    assert list(await nodes.confirm_moves(0, moves, mover)) == [MoveResult.MOVED]
    assert await nodes.seq(0) == before + 1


async def test_a_move_renames_the_ports_of_its_own_pod_alone(nodes, commit, reserve, mover, make_proposal):
    await commit([1], ports=[[HTTP]])
    await commit([2], 2, ports=[[DNS]])
    _, moves = await reserve([1], groups=make_proposal([1], [[0]], ports=[[HTTP]]).groups)
    assert list(await nodes.confirm_moves(0, moves, mover)) == [MoveResult.MOVED]
    assert await is_sound(nodes)


async def test_the_lease_of_targets_stays_while_any_of_them_is_left(nodes, commit, reserve, mover):
    await commit([1, 2, 3])
    decision, moves = await reserve([1, 2, 3])
    await nodes.confirm_moves(0, moves.of(np.array([0], np.intp)), mover)
    await nodes.release(0, target_uids(moves.uids[2:]))
    assert decision.seq in (await nodes.state(0)).commits.listed


async def test_a_move_ends_though_the_lease_of_its_target_has_ended(nodes, commit, reserve, mover):
    await commit([1])
    decision, moves = await reserve([1])
    await nodes.confirm(0, np.array([decision.seq], np.uint64))
    assert list(await nodes.confirm_moves(0, moves, mover)) == [MoveResult.MOVED]


async def test_a_move_at_once_says_what_it_changed_and_why_not(nodes, commit, reserve, bystander):
    await commit([1, 2], cpu=400)
    before = await nodes.seq(0)
    decision, _ = await reserve([1], at_once=True)
    assert (verdicts(decision), decision.seq, decision.as_of) == ([C], before + 1, before + 1)
    [entry] = await nodes.feed(0, before, 0)
    assert sorted(np.frombuffer(entry.accounts.indexes, "<u4").tolist()) == [0, 2]
    assert len(entry.accounts.records) == 2 * account_dtype(entry.accounts.resources).itemsize
    await commit([3], 2, cpu=550)
    refused, _ = await reserve([2], at_once=True)
    assert (verdicts(refused), refused.seq, refused.as_of) == ([NO_ROOM], 0, before + 2)
    assert refused.conflicts["node"].tolist() == [2]
    assert await is_sound(nodes)


async def test_a_move_at_once_of_a_pod_that_holds_something_else_or_nothing_names_that(
    nodes, commit, mover, bystander
):
    await commit([1, 2])
    held = await nodes.reservations_of(0, uids(1, 2))
    await nodes.release(0, uids(1, 2))
    again = await commit([1])
    seen = (await nodes.seq(0), await nodes.seq(1))
    proposal = target_proposal(
        held, [None] * 2, np.full(2, 2, np.uint32), writer=mover, seen=seen, at_once=True
    )
    [decision] = await nodes.commit(0, [proposal])
    assert verdicts(decision) == [D, D]
    standing = {
        pod.tobytes(): seq for pod, seq in zip(held.uids, decision.duplicate_seqs.tolist(), strict=True)
    }
    assert standing == {uid(1): again.seq, uid(2): 0}


# -- nodes


async def test_a_node_that_is_told_again_is_overcommitted_by_amounts_or_by_a_closed_card(
    nodes, commit, make_node
):
    await commit([1], 2, cpu=2000, changed=lambda proposal: replace(proposal, unchecked=True))
    await commit([2], devices=[(1, 1000)])
    without = make_node("a", cpu=1000, cards=0)
    assert (await nodes.upsert_nodes(0, [without])).overcommitted == [0]
    again = await nodes.upsert_nodes(0, [without, make_node("b", cpu=1000)])
    assert again.overcommitted == [0, 1]


# -- rules


def web(*rules):
    definition = f"web {rules}".encode()
    return Group(len(definition) + 1, definition, (), "default", (("app", "web"),), rules)


SELECTED = LabelSelector((Requirement("app", "In", ("web",)),))
APART = PlacementRule("rack", SELECTED, ("default",))
SPREAD = replace(APART, anti_affinity=False)
ZONED = replace(SPREAD, topology_key="zone")


@pytest.fixture
async def racks(one_shard, make_node):
    """Nodes 0 (rack r0, zone z), 1 (zone z) and 2 (nothing); workers w1 and w2 have epochs 1 and 2."""
    labels = ((("rack", "r0"), ("zone", "z")), (("zone", "z"),), ())
    await one_shard.upsert_nodes(0, [make_node(f"n{at}", labels=of) for at, of in enumerate(labels)])
    assert [await one_shard.grant(worker) for worker in ("w1", "w2")] == [1, 2]
    return one_shard


@pytest.fixture
def place(racks, make_proposal):
    """The verdict on one pod by a worker that has seen so much; None: all."""

    async def run(pod, node, group, worker=1, seen=None):
        asked = make_proposal([pod], [[node]], groups=[group], worker=f"w{worker}", epoch=worker)
        [decision] = await racks.commit(
            0, [replace(asked, seen=(await racks.seq(0) if seen is None else seen,))]
        )
        return Verdict(int(decision.verdicts[0]))

    return run


async def test_a_worker_knows_all_that_it_has_placed_itself(racks, place):
    await racks.register_rules([web(SPREAD)])
    before = await racks.seq(0)
    assert [await place(pod, 0, web(SPREAD), seen=before) for pod in (1, 2, 3)] == [C, C, C]


async def test_another_worker_is_to_know_the_latest_of_several_placements_of_a_worker(racks, place):
    await racks.register_rules([web(SPREAD)])
    assert await place(1, 0, web(SPREAD)) is C
    between = await racks.seq(0)
    assert await place(2, 0, web(SPREAD)) is C
    assert await place(3, 0, web(SPREAD), worker=2, seen=between) is T
    assert await place(3, 0, web(SPREAD), worker=2) is C


async def test_who_relies_on_nothing_that_a_new_rule_matches_is_not_refused_for_its_age(racks, place):
    before = await racks.seq(0)
    await racks.register_rules([web(APART)])
    assert await place(1, 0, web(), seen=before) is C, "it is looked at, and looks at nobody"
    assert await place(2, 2, web(APART), seen=before) is C, "the node is in no domain"


async def test_a_rule_without_a_domain_on_the_node_does_not_stand_for_the_next_rule(racks, place):
    await racks.register_rules([web(SPREAD, ZONED)])
    before = await racks.seq(0)
    assert await place(1, 1, web(SPREAD, ZONED)) is C
    assert await place(2, 0, web(SPREAD, ZONED), worker=2, seen=before) is T
    assert await place(3, 2, web(SPREAD, ZONED), worker=2, seen=before) is C
