"""The Move call: pods and targets on any shards, through one request."""

import asyncio
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from hoss.errors import InvalidInput
from hoss.model.devices import Allocation, HeldClaim
from hoss.model.pod import PodGroup
from hoss.model.volumes import ClaimMount, PodVolumes
from hoss.v1 import resolver_pb2 as pb
from hoss.wire.convert_rules import definition_of, definition_taking, group_defined
from resolver.api.moving import Moving
from resolver.core.values import Verdict
from resolver.ledger.memory import MemoryLedger
from resolver.messages.proposals import group_of


@pytest.fixture
def ledger(make_node, make_proposal):
    """Two shards; pods 1 and 2 on node 0, pod 3 on node 1, with 600 milli cpu of 1,000 each but for pod 2."""
    ledger = MemoryLedger(2, lambda: 0)

    async def fill():
        for shard, names in enumerate((["a", "b"], ["c", "d"])):
            await ledger.upsert_nodes(shard, [make_node(name, cpu=1000) for name in names])
        await ledger.grant("w1")
        for shard, numbers, cpu in ((0, [1, 2], [600, 100]), (1, [3], 600)):
            proposal = make_proposal(numbers, [[shard]] * len(numbers), cpu=cpu)
            [decision] = await ledger.commit(shard, [proposal])
            await ledger.confirm(shard, np.array([decision.seq], np.uint64))
        ledger.mover = await ledger.grant("mover")

    asyncio.run(fill())
    return ledger


def ask(ledger, step, uids, nodes, **columns):
    """The answer to one call of the mover."""

    async def decide(shard, proposal):
        [decision] = await ledger.commit(shard, [proposal])
        return decision

    request = pb.MoveRequest(step=step, worker="mover", epoch=ledger.mover, term=1)
    request.uids, request.nodes = uids.tobytes(), np.array(nodes, "<u4").tobytes()
    if step == pb.MOVE_RESERVE:
        request.seen = np.array([arbiter.seq for arbiter in ledger.arbiters], "<u8").tobytes()
    request.reserved_names.extend(columns.pop("reserved_names", ()))
    for name, column in columns.items():
        setattr(request, name, column)
    return asyncio.run(Moving(ledger, decide).serve(request))


@pytest.fixture
def call(ledger):
    return partial(ask, ledger)


def carried(reply):
    return {"seqs": reply.seqs, "sources": reply.sources, "source_seqs": reply.source_seqs}


def at(ledger):
    """The node of each pod, by its number."""
    return {
        int.from_bytes(uid[12:], "big"): held.node
        for arbiter in ledger.arbiters
        for uid, held in arbiter.reservations.items()
    }


def test_pods_of_both_shards_are_moved_to_nodes_of_both(ledger, call, make_proposal):
    uids = make_proposal([1, 3, 2], [[0]] * 3).uids
    reply = call(pb.MOVE_RESERVE, uids, [3, 2, 3])
    assert list(reply.verdicts) == [Verdict.COMMITTED] * 3
    results = call(pb.MOVE_CONFIRM, uids, [3, 2, 3], **carried(reply)).results
    assert list(results) == [pb.MOVED] * 3
    assert at(ledger) == {1: 3, 3: 2, 2: 3}


@pytest.mark.parametrize("target", [2, 3])  # on the pod's shard, and on the other one
@pytest.mark.parametrize("at_once", [True, False])
def test_a_pod_that_was_evicted_and_gave_its_preemptor_a_share_gets_no_target(
    ledger, call, make_proposal, target, at_once
):
    uids = make_proposal([1], [[0]]).uids
    preemptor = make_proposal([9], [[0]], cpu=800, priorities=[9])
    preemptor = replace(preemptor, victims={0: (uids[0].tobytes(),)}, victims_terminate=True)
    [decision] = asyncio.run(ledger.commit(0, [preemptor]))
    assert decision.verdicts.tolist() == [Verdict.COMMITTED]
    reply = call(pb.MOVE_RESERVE, uids, [target], at_once=at_once)
    assert list(reply.verdicts) == [0]
    assert not any(reply.results)
    assert at(ledger) == {1: 0, 2: 0, 3: 1, 9: 0}


def test_pods_that_stay_on_their_shard_are_moved_at_once_and_the_others_get_targets(
    ledger, call, make_proposal
):
    uids, targets = make_proposal([1, 3, 2], [[0]] * 3).uids, [2, 0, 3]
    first = call(pb.MOVE_RESERVE, uids, targets, at_once=True)
    assert list(first.results) == [pb.MOVED, 0, 0]
    assert {number: at(ledger)[number] for number in (1, 2, 3)} == {1: 2, 2: 0, 3: 1}
    again = call(pb.MOVE_RESERVE, uids, targets, at_once=True)
    assert list(again.results) == [pb.MOVED, 0, 0]
    assert list(again.verdicts[1:]) == [Verdict.DUPLICATE] * 2
    others = {name: column[len(column) // 3 :] for name, column in carried(again).items()}
    results = call(pb.MOVE_CONFIRM, uids[1:], targets[1:], **others).results
    assert list(results) == [pb.MOVED] * 2
    assert at(ledger) == {1: 2, 3: 0, 2: 3}


def test_who_did_not_ask_for_one_step_gets_targets_only(ledger, call, make_proposal):
    reply = call(pb.MOVE_RESERVE, make_proposal([1], [[0]]).uids, [2])
    assert (list(reply.verdicts), reply.results) == ([Verdict.COMMITTED], b"")
    assert at(ledger)[1] == 0


def test_on_several_shards_pods_that_rules_can_look_at_take_two_steps(ledger, call, make_proposal):
    proposal = make_proposal([5], [[0]], cpu=10)
    group = group_of(pb.PodGroup(namespace="default").SerializeToString())
    asyncio.run(ledger.commit(0, [replace(proposal, groups=(group,))]))
    reply = call(pb.MOVE_RESERVE, proposal.uids, [2], at_once=True)
    assert (list(reply.verdicts), list(reply.results)) == ([Verdict.COMMITTED], [0])
    assert at(ledger)[5] == 0


def test_a_move_at_once_that_does_not_fit_says_why_and_changes_nothing(ledger, call, make_proposal):
    reply = call(pb.MOVE_RESERVE, make_proposal([1], [[0]]).uids, [2], at_once=True)
    assert list(reply.results) == [pb.MOVED]
    reply = call(pb.MOVE_RESERVE, make_proposal([2], [[0]]).uids, [4], at_once=True)
    assert (list(reply.verdicts), list(reply.results)) == ([Verdict.NODE_GONE], [0])
    assert at(ledger)[2] == 0


def test_pods_that_hold_nothing_or_are_there_already_are_not_moved(ledger, call, make_proposal):
    reply = call(pb.MOVE_RESERVE, make_proposal([9, 1], [[0]] * 2).uids, [2, 0])
    assert list(reply.verdicts) == [pb.VERDICT_UNSPECIFIED] * 2
    assert set(at(ledger)) == {1, 2, 3}


def test_a_move_whose_source_changed_gives_its_target_up_at_once(ledger, call, make_proposal):
    uids = make_proposal([1], [[0]]).uids
    reply = call(pb.MOVE_RESERVE, uids, [2])
    asyncio.run(ledger.release(0, uids))
    assert list(call(pb.MOVE_CONFIRM, uids, [2], **carried(reply)).results) == [pb.SOURCE_CHANGED]
    assert at(ledger) == {2: 0, 3: 1}


def test_undone_moves_leave_nothing(ledger, call, make_proposal):
    uids = make_proposal([1, 3], [[0]] * 2).uids
    reply = call(pb.MOVE_RESERVE, uids, [3, 2])
    call(pb.MOVE_UNDO, uids, [3, 2], **carried(reply))
    assert at(ledger) == {1: 0, 2: 0, 3: 1}


def test_successors_get_the_targets_and_the_pods_keep_what_they_hold(ledger, call, make_proposal):
    uids, successors = (make_proposal(numbers, [[0]] * 2).uids for numbers in ([1, 3], [7, 8]))
    reply = call(pb.MOVE_RESERVE, uids, [3, 2])
    results = call(pb.MOVE_CONFIRM, uids, [3, 2], **carried(reply), successors=successors.tobytes()).results
    assert list(results) == [pb.MOVED] * 2
    assert at(ledger) == {1: 0, 2: 0, 3: 1, 7: 3, 8: 2}


def test_a_renewal_tells_which_targets_still_stand(ledger, call, make_proposal):
    uids = make_proposal([1, 3], [[0]] * 2).uids
    reply = call(pb.MOVE_RESERVE, uids, [3, 2])
    call(pb.MOVE_UNDO, uids[:1], [3], seqs=reply.seqs[:8])
    renewed = call(pb.MOVE_RENEW, uids, [3, 2], seqs=reply.seqs)
    assert list(renewed.results) == [pb.TARGET_GONE, pb.MOVED]


def test_a_request_that_names_a_pod_twice_or_no_step_is_refused(call, make_proposal):
    with pytest.raises(InvalidInput, match="twice"):
        call(pb.MOVE_RESERVE, make_proposal([1, 1], [[0]] * 2).uids, [2, 3])
    uids = make_proposal([1, 3], [[0]] * 2).uids
    one = {"seqs": bytes(16), "sources": bytes(8), "source_seqs": bytes(16), "successors": uids[:1].tobytes()}
    with pytest.raises(InvalidInput, match="one pod for each"):
        call(pb.MOVE_CONFIRM, uids, [2, 3], **one)
    with pytest.raises(InvalidInput, match="no step"):
        call(pb.MOVE_STEP_UNSPECIFIED, make_proposal([1], [[0]]).uids, [2], seqs=bytes(8))


@pytest.fixture
def one_shard(make_node):
    """Three nodes on the only shard."""
    ledger = MemoryLedger(1, lambda: 0)

    async def fill():
        await ledger.upsert_nodes(0, [make_node(name, cpu=1000) for name in "abc"])
        await ledger.grant("w1")
        ledger.mover = await ledger.grant("mover")

    asyncio.run(fill())
    return ledger


def grouped(ledger, make_proposal, pod, node, group, *, names=()):
    """A pod of this group, which a worker has placed."""
    taken = group_of(definition_taking(definition_of(group), names) if names else definition_of(group))

    async def commit():
        [decision] = await ledger.commit(0, [make_proposal([pod], [[node]], groups=[taken])])
        assert list(decision.verdicts) == [Verdict.COMMITTED]
        await ledger.confirm(0, np.array([decision.seq], np.uint64))

    asyncio.run(commit())
    return make_proposal([pod], [[node]]).uids


MOUNTING = PodGroup(volumes=PodVolumes((ClaimMount("data"),)))


def names_of(*names):
    return [pb.ReservedNames(names=names)]


def test_a_target_takes_the_names_of_its_own_node_and_not_those_of_the_source(one_shard, make_proposal):
    uids = grouped(one_shard, make_proposal, 9, 0, MOUNTING, names=["attachments/a/disks"])
    ask(one_shard, pb.MOVE_RESERVE, uids, [2], reserved_names=names_of("attachments/c/disks"))
    [definition] = asyncio.run(one_shard.definitions(0, ~uids))
    assert group_of(definition).reserved_names == ("attachments/c/disks",)
    assert group_defined(definition) == MOUNTING


def test_a_dispatcher_of_an_earlier_release_which_gives_no_names_leaves_those_that_there_are(
    one_shard, make_proposal
):
    uids = grouped(one_shard, make_proposal, 9, 0, MOUNTING, names=["claim/default/data"])
    ask(one_shard, pb.MOVE_RESERVE, uids, [2])
    [definition] = asyncio.run(one_shard.definitions(0, ~uids))
    assert group_of(definition).reserved_names == ("claim/default/data",)


def test_a_pod_that_takes_nothing_on_its_target_has_no_names_there(one_shard, make_proposal):
    uids = grouped(one_shard, make_proposal, 9, 0, MOUNTING, names=["attachments/a/disks"])
    ask(one_shard, pb.MOVE_RESERVE, uids, [2], reserved_names=names_of())
    [definition] = asyncio.run(one_shard.definitions(0, ~uids))
    assert group_of(definition).reserved_names == ()
    assert group_defined(definition) == MOUNTING


def test_a_name_that_another_pod_has_taken_since_the_plan_refuses_the_target(one_shard, make_proposal):
    uids = grouped(one_shard, make_proposal, 9, 0, MOUNTING, names=["attachments/a/disks"])
    seen = np.array([arbiter.seq for arbiter in one_shard.arbiters], "<u8").tobytes()
    grouped(one_shard, make_proposal, 10, 2, MOUNTING, names=["attachments/c/disks"])
    taken = names_of("attachments/c/disks")
    reply = ask(one_shard, pb.MOVE_RESERVE, uids, [2], reserved_names=taken, seen=seen)
    assert list(reply.verdicts) == [Verdict.CONFLICT_TOPOLOGY]
    assert list(ask(one_shard, pb.MOVE_RESERVE, uids, [2], reserved_names=taken).verdicts) == [
        Verdict.COMMITTED
    ]


def test_in_a_later_epoch_a_target_is_reserved_again_up_to_its_own_commit_and_no_further(
    one_shard, make_proposal
):
    uids = grouped(one_shard, make_proposal, 9, 0, MOUNTING, names=["attachments/a/disks"])
    plan = np.array([one_shard.arbiters[0].seq], "<u8").tobytes()
    again = partial(
        ask, one_shard, pb.MOVE_RESERVE, uids, [2], reserved_names=names_of("attachments/c/disks")
    )
    own = again(seen=plan).seqs

    def end_term():
        ask(one_shard, pb.MOVE_UNDO, uids, [2], seqs=own)
        one_shard.mover = asyncio.run(one_shard.grant("mover"))

    end_term()
    assert list(again(seen=plan).verdicts) == [Verdict.CONFLICT_TOPOLOGY]
    reply = again(seen=own)
    assert list(reply.verdicts) == [Verdict.COMMITTED]
    ask(one_shard, pb.MOVE_UNDO, uids, [2], seqs=reply.seqs)
    grouped(one_shard, make_proposal, 10, 2, MOUNTING, names=["attachments/c/disks"])
    assert list(again(seen=own).verdicts) == [Verdict.CONFLICT_TOPOLOGY]


def test_a_pod_that_holds_devices_is_not_moved(one_shard, make_proposal):
    held = PodGroup(held_claims=(HeldClaim("default", "gpu", Allocation(())),))
    uids = grouped(one_shard, make_proposal, 9, 0, held)
    assert list(ask(one_shard, pb.MOVE_RESERVE, uids, [2]).verdicts) == [0]
    assert list(ask(one_shard, pb.MOVE_RESERVE, uids, [2], at_once=True).results) == [0]
    assert at(one_shard)[9] == 0


def test_names_are_given_for_each_pod_or_for_none(one_shard, make_proposal):
    with pytest.raises(InvalidInput, match="reserved_names"):
        ask(
            one_shard,
            pb.MOVE_RESERVE,
            make_proposal([1, 2], [[0]] * 2).uids,
            [2, 2],
            reserved_names=names_of("a"),
        )
