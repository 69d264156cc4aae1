"""What any ledger does with moves: the target is reserved while the source stands, and whatever ends the
move, and wherever it is cut off, the pod has one reservation that counts."""

from dataclasses import replace

import numpy as np
import pytest

from hoss.model.pod import HostPort
from hoss.wire.columns import NONE_U32, account_dtype, numbered_uids
from resolver.core.moves import MoveResult, Moves, target_proposal, target_uids
from resolver.core.values import ANYBODY, Group, Leases, ReservationState, Verdict, Writer, claim_of

HOUR_MS = 3_600_000
SHARDS = range(2)
WEB = Group(7, b"web", (claim_of(HostPort(80)),), "default", (("app", "web"),))


def pods(*numbers):
    return np.concatenate([numbered_uids(b"test-prefix-", number, 1) for number in numbers])


@pytest.fixture
async def nodes(ledger, make_node):
    """Shard 0 has nodes 0 and 2 with 1,000 milli cpu and node 4 with cards; shard 1 has nodes 1 and 3."""
    await ledger.upsert_nodes(
        0, [make_node("a", cpu=1000), make_node("b", cpu=1000), make_node("c", cpu=1000, cards=2)]
    )
    await ledger.upsert_nodes(1, [make_node("d", cpu=1000), make_node("e", cpu=1000, cards=2)])
    await ledger.grant("w1")
    ledger.mover = Writer(worker="mover", epoch=await ledger.grant("mover"))
    ledger._leases = Leases(commit_ms=HOUR_MS, prepare_ms=HOUR_MS)
    return ledger


@pytest.fixture
def place(nodes, make_proposal):
    """Binds pods on a node; confirmed."""

    async def placed(numbers, node, group=None, **what):
        proposal = make_proposal(list(numbers), [[node]] * len(numbers), **what)
        if group is not None:
            proposal = replace(proposal, groups=(group,) * len(proposal.priorities))
        [decision] = await nodes.commit(node % 2, [proposal])
        assert (decision.verdicts == Verdict.COMMITTED).all()
        await nodes.confirm(node % 2, np.array([decision.seq], np.uint64))
        return decision.seq

    return placed


async def held(ledger, number):
    """Where the pod's own reservations are: by node, with their state."""
    found = {}
    for shard in SHARDS:
        [at] = await ledger.lookup(shard, pods(number))
        if at["node"] != NONE_U32:
            found[int(at["node"])] = ReservationState(int(at["state"]))
    return found


async def used_cpu(ledger):
    used = {}
    for shard in SHARDS:
        rows = (await ledger.state(shard)).snapshot.accounts
        accounts = np.frombuffer(rows.records, account_dtype(rows.resources))
        cpu = accounts["amounts"][:, 0, 1].tolist()
        used |= dict(zip(np.frombuffer(rows.indexes, "<u4").tolist(), cpu, strict=True))
    return {node: cpu for node, cpu in sorted(used.items()) if cpu}


async def reserve(ledger, number, node, group=None, **changes):
    """Reserve the pod's target. Returns the verdict, and the move as it is to be confirmed."""
    parts = [await ledger.reservations_of(shard, pods(number)) for shard in SHARDS]
    source = next(part for part in parts if len(part.uids))
    seen = tuple([await ledger.seq(shard) for shard in SHARDS])
    proposal = target_proposal(source, [group], np.array([node], np.uint32), writer=ledger.mover, seen=seen)
    [decision] = await ledger.commit(node % 2, [replace(proposal, **changes)])
    seqs = decision.duplicate_seqs if len(decision.duplicate_seqs) else np.array([decision.seq], np.uint64)
    at = np.array([node], np.uint32)
    move = Moves(pods(number), at, seqs, source.records["node"], source.records["seq"])
    return Verdict(int(decision.verdicts[0])), move


async def confirm(ledger, move, writer=None):
    [result] = await ledger.confirm_moves(int(move.nodes[0]) % 2, move, writer or ledger.mover)
    return MoveResult(int(result))


TARGETS = [pytest.param(2, id="on the source's shard"), pytest.param(1, id="on another shard")]


@pytest.mark.topologies
@pytest.mark.parametrize("target", TARGETS)
async def test_the_target_is_reserved_while_the_source_stands_and_then_takes_its_place(nodes, place, target):
    await place([1], 0, cpu=600)
    verdict, move = await reserve(nodes, 1, target)
    assert verdict is Verdict.COMMITTED
    assert await held(nodes, 1) == {0: ReservationState.CONFIRMED}
    assert await used_cpu(nodes) == dict(sorted({0: 600, target: 600}.items()))
    assert await confirm(nodes, move) is MoveResult.MOVED
    for shard in SHARDS:
        await nodes.finish_moves(shard)
    assert await held(nodes, 1) == {target: ReservationState.CONFIRMED}
    assert await used_cpu(nodes) == {target: 600}
    for shard in SHARDS:
        state = await nodes.state(shard)
        assert (state.moved, state.commit_faults, state.commits.listed) == ({}, [], frozenset())


@pytest.mark.parametrize("target", TARGETS)
async def test_a_target_whose_lease_ends_leaves_the_pod_where_it_is(nodes, place, target):
    await place([1], 0, cpu=600)
    nodes._leases = Leases(commit_ms=0)
    _, move = await reserve(nodes, 1, target)
    for shard in SHARDS:
        await nodes.reap(shard)
    assert await confirm(nodes, move) is MoveResult.TARGET_GONE
    assert await held(nodes, 1) == {0: ReservationState.CONFIRMED}
    assert await used_cpu(nodes) == {0: 600}


@pytest.mark.parametrize("target", TARGETS)
async def test_a_move_that_is_undone_leaves_the_pod_where_it_is(nodes, place, target):
    await place([1], 0, cpu=600)
    _, move = await reserve(nodes, 1, target)
    assert await nodes.abort(target % 2, target_uids(move.uids), move.seqs, nodes.mover) == 1
    assert await used_cpu(nodes) == {0: 600}
    assert await confirm(nodes, move) is MoveResult.TARGET_GONE


@pytest.mark.parametrize("target", TARGETS)
async def test_a_confirmation_that_is_repeated_finds_the_first_ones_work_done(nodes, place, target):
    await place([1], 0, cpu=600)
    _, move = await reserve(nodes, 1, target)
    assert [await confirm(nodes, move) for _ in range(2)] == [MoveResult.MOVED] * 2
    for shard in (*SHARDS, *SHARDS):
        await nodes.finish_moves(shard)
    assert await held(nodes, 1) == {target: ReservationState.CONFIRMED}
    assert await used_cpu(nodes) == {target: 600}


@pytest.mark.parametrize("target", TARGETS)
async def test_a_reservation_sent_again_finds_the_target_of_the_first(nodes, place, target):
    await place([1], 0, cpu=600)
    _, first = await reserve(nodes, 1, target)
    verdict, again = await reserve(nodes, 1, target)
    assert (verdict, again.seqs.tolist()) == (Verdict.DUPLICATE, first.seqs.tolist())
    assert await confirm(nodes, again) is MoveResult.MOVED


async def test_a_source_that_is_no_longer_what_was_moved_stays_and_the_target_is_not_taken(nodes, place):
    await place([1], 0, cpu=600)
    _, move = await reserve(nodes, 1, 2)
    await nodes.release(0, pods(1))
    assert await confirm(nodes, move) is MoveResult.SOURCE_CHANGED
    await place([1], 0, cpu=600)  # it was placed again meanwhile, even on the same node
    assert await confirm(nodes, move) is MoveResult.SOURCE_CHANGED
    assert await held(nodes, 1) == {0: ReservationState.CONFIRMED}


async def test_what_is_released_of_a_source_elsewhere_is_that_very_reservation(nodes, place):
    """Cut off after the confirmation; then the pod is evicted and placed where it came from."""
    await place([1], 0, cpu=600)
    _, move = await reserve(nodes, 1, 1)
    assert await confirm(nodes, move) is MoveResult.MOVED
    await nodes.release(0, pods(1))
    await nodes.release(1, pods(1))
    await place([1], 0, cpu=600)
    assert await nodes.finish_moves(1) == 0
    assert await held(nodes, 1) == {0: ReservationState.CONFIRMED}


async def test_until_the_source_elsewhere_is_released_the_shard_of_the_target_knows_of_it(nodes, place):
    seq = await place([1], 0, cpu=600)
    _, move = await reserve(nodes, 1, 1)
    assert await confirm(nodes, move) is MoveResult.MOVED
    assert (await nodes.state(1)).moved == {pods(1).tobytes(): (0, seq)}
    await nodes.reap(1)
    assert nodes.unfinished_moves[1] == 1, "whoever reaps is told that there is something to finish"
    assert await nodes.finish_moves(1) == 1
    assert (await nodes.state(1)).moved == {}
    await nodes.reap(1)
    assert nodes.unfinished_moves[1] == 0


async def test_a_target_must_fit_beside_what_is_there(nodes, place):
    await place([1], 0, cpu=600)
    await place([2], 2, cpu=500)
    verdict, _ = await reserve(nodes, 1, 2)
    assert verdict is Verdict.CONFLICT_RESOURCE
    assert await used_cpu(nodes) == {0: 600, 2: 500}


async def test_a_node_that_changed_since_it_was_chosen_is_refused(nodes, place, make_node):
    await place([1], 0, cpu=600)
    seen = tuple([await nodes.seq(shard) for shard in SHARDS])
    await nodes.upsert_nodes(0, [make_node("b", cpu=2000)])
    verdict, _ = await reserve(nodes, 1, 2, seen=seen, snapshot_seq=seen[0])
    assert verdict is Verdict.CONFLICT_VERSION


async def test_ports_cards_and_group_go_with_the_pod(nodes, place):
    await place([1], 4, group=WEB, devices=[(1, 400)])
    _, move = await reserve(nodes, 1, 3, WEB)
    assert await confirm(nodes, move) is MoveResult.MOVED
    await nodes.finish_moves(1)
    left, came = await nodes.state(0), await nodes.state(1)
    assert (left.ports, left.groups) == ({}, {})
    assert came.ports == {3: [(pods(1).tobytes(), WEB.ports[0])]}
    assert came.groups == {WEB.key: (WEB.definition, 1)}
    [record] = came.reservations.records
    assert (int(record["card_mask"]), int(record["card_milli"]), int(record["flags"])) == (1, 400, WEB.flags)
    assert not came.reservations.targets.any()


async def test_a_target_is_no_reservation_of_the_pod_and_says_what_it_is(nodes, place):
    await place([1], 0, cpu=600)
    await reserve(nodes, 1, 2)
    found = (await nodes.state(0)).reservations
    [uid] = found.uids[found.targets]
    assert target_uids(uid).tobytes() == pods(1).tobytes()


async def test_whoever_was_fenced_neither_reserves_nor_confirms(nodes, place):
    await place([1], 0, cpu=600)
    _, move = await reserve(nodes, 1, 2)
    former = nodes.mover
    nodes.mover = replace(former, epoch=await nodes.grant("mover"))
    assert await confirm(nodes, move, former) is MoveResult.FENCED
    nodes.mover = former
    assert (await reserve(nodes, 1, 4))[0] is Verdict.STALE_EPOCH
    assert await held(nodes, 1) == {0: ReservationState.CONFIRMED}


async def test_a_target_that_is_only_prepared_is_not_taken(nodes, place):
    await place([1], 0, cpu=600)
    _, move = await reserve(nodes, 1, 1, prepared=True)
    assert await confirm(nodes, move) is MoveResult.TARGET_GONE
    move = replace(move, seqs=await nodes.commit_prepared(1, target_uids(move.uids), move.seqs, nodes.mover))
    assert await confirm(nodes, move) is MoveResult.MOVED


async def test_what_is_no_target_is_not_taken_for_one(nodes, place):
    await place([1], 0, cpu=600)
    _, move = await reserve(nodes, 1, 1, moves=False)
    assert await confirm(nodes, move) is MoveResult.TARGET_GONE
    assert await held(nodes, 1) == {0: ReservationState.CONFIRMED}


async def test_a_pod_that_is_only_prepared_on_the_target_was_not_moved(nodes, place, make_proposal):
    await place([1], 0, cpu=600)
    _, move = await reserve(nodes, 1, 1)
    await nodes.abort(1, target_uids(move.uids), move.seqs, nodes.mover)
    await nodes.commit(1, [replace(make_proposal([1], [[1]], cpu=600), prepared=True)])
    assert await confirm(nodes, move) is MoveResult.TARGET_GONE


async def test_a_pod_that_terminates_is_not_moved(nodes, place, make_proposal):
    await place([1], 0, cpu=600)
    _, move = await reserve(nodes, 1, 2)
    preemptor = make_proposal([9], [[0]], cpu=900, priorities=[9])
    preemptor = replace(preemptor, victims={0: (pods(1)[0].tobytes(),)}, victims_terminate=True)
    [decision] = await nodes.commit(0, [preemptor])
    assert decision.verdicts.tolist() == [Verdict.COMMITTED]
    assert await confirm(nodes, move) is MoveResult.SOURCE_CHANGED


async def test_the_other_targets_of_a_commit_keep_their_lease(nodes, place):
    await place([1, 2], 0, cpu=300)
    nodes._leases = Leases(commit_ms=0, prepare_ms=0)
    sources = await nodes.reservations_of(0, pods(1, 2))
    seen = tuple([await nodes.seq(shard) for shard in SHARDS])
    targets = np.full(2, 2, np.uint32)
    proposal = target_proposal(sources, [None, None], targets, writer=nodes.mover, seen=seen)
    [decision] = await nodes.commit(0, [proposal])
    seqs, records = np.full(2, decision.seq, np.uint64), sources.records
    moves = Moves(sources.uids, targets, seqs, records["node"], records["seq"])
    assert await confirm(nodes, moves.of(slice(1))) is MoveResult.MOVED
    assert await nodes.reap(0) == 1  # the other target
    assert await used_cpu(nodes) == {0: 300, 2: 300}


async def test_moves_of_one_call_end_each_on_its_own(nodes, place):
    await place([1, 2], 0, cpu=300)
    _, first = await reserve(nodes, 1, 2)
    _, second = await reserve(nodes, 2, 2)
    await nodes.release(0, pods(2), ANYBODY)
    both = Moves(
        *(np.concatenate(pair) for pair in zip(first_columns(first), first_columns(second), strict=True))
    )
    results = await nodes.confirm_moves(0, both, nodes.mover)
    assert results.tolist() == [MoveResult.MOVED, MoveResult.SOURCE_CHANGED]
    assert await used_cpu(nodes) == {2: 600}


HEIR = 5


def for_successor(move, number=HEIR):
    return replace(move, successors=pods(number))


@pytest.mark.topologies
@pytest.mark.parametrize("target", TARGETS)
async def test_a_successor_gets_the_target_and_the_source_stays_with_the_pod(nodes, place, target):
    await place([1], 0, cpu=600)
    _, move = await reserve(nodes, 1, target)
    for _ in range(2):  # the second one finds the first one's work done
        assert await confirm(nodes, for_successor(move)) is MoveResult.MOVED
        assert (await nodes.state(target % 2)).moved == {}
        assert await nodes.finish_moves(target % 2) == 0
    assert await held(nodes, 1) == {0: ReservationState.CONFIRMED}
    assert await held(nodes, HEIR) == {target: ReservationState.CONFIRMED}
    assert await used_cpu(nodes) == dict(sorted({0: 600, target: 600}.items()))
    for shard in SHARDS:
        state = await nodes.state(shard)
        assert (state.moved, state.commit_faults, state.commits.listed) == ({}, [], frozenset())
        assert not state.reservations.targets.any()


@pytest.mark.parametrize("target", TARGETS)
async def test_a_successor_gets_the_target_also_when_the_pod_is_gone(nodes, place, target):
    await place([1], 0, cpu=600)
    _, move = await reserve(nodes, 1, target)
    await nodes.release(0, pods(1))
    assert await confirm(nodes, for_successor(move)) is MoveResult.MOVED
    assert await used_cpu(nodes) == {target: 600}


async def test_a_successor_that_holds_room_already_gets_no_second_place(nodes, place):
    await place([1], 0, cpu=600)
    _, move = await reserve(nodes, 1, 2)
    await place([HEIR], 4, cpu=600)
    assert await confirm(nodes, for_successor(move)) is MoveResult.SOURCE_CHANGED
    assert await held(nodes, HEIR) == {4: ReservationState.CONFIRMED}


async def test_a_target_that_another_successor_got_is_gone(nodes, place):
    await place([1], 0, cpu=600)
    _, move = await reserve(nodes, 1, 2)
    assert await confirm(nodes, for_successor(move)) is MoveResult.MOVED
    assert await confirm(nodes, for_successor(move, 6)) is MoveResult.TARGET_GONE
    assert await used_cpu(nodes) == {0: 600, 2: 600}


async def test_ports_cards_and_group_go_to_the_successor(nodes, place):
    await place([1], 4, group=WEB, devices=[(1, 400)])
    _, move = await reserve(nodes, 1, 3, WEB)
    assert await confirm(nodes, for_successor(move)) is MoveResult.MOVED
    came = await nodes.state(1)
    assert came.ports == {3: [(pods(HEIR).tobytes(), WEB.ports[0])]}
    [record] = came.reservations.records
    assert (int(record["card_mask"]), int(record["card_milli"]), int(record["flags"])) == (1, 400, WEB.flags)


async def test_a_target_lasts_while_its_lease_is_renewed_and_no_longer(nodes, place):
    await place([1], 0, cpu=600)
    nodes._leases = Leases(commit_ms=0)
    _, move = await reserve(nodes, 1, 2)
    nodes._leases = Leases(commit_ms=HOUR_MS)
    renewed = await nodes.commit_prepared(0, target_uids(move.uids), move.seqs, nodes.mover)
    assert renewed.tolist() == move.seqs.tolist()
    await nodes.reap(0)
    assert await used_cpu(nodes) == {0: 600, 2: 600}
    nodes._leases = Leases(commit_ms=0)
    await nodes.commit_prepared(0, target_uids(move.uids), move.seqs, nodes.mover)
    await nodes.reap(0)
    assert await used_cpu(nodes) == {0: 600}
    assert (await nodes.commit_prepared(0, target_uids(move.uids), move.seqs, nodes.mover)).tolist() == [0]


def first_columns(move):
    return move.uids, move.nodes, move.seqs, move.sources, move.source_seqs
