"""Victims that are on their nodes until they have ended: they hold what their preemptor does not take, so
nobody is given room that is not free yet. Shard 0 of two."""

from dataclasses import replace

import numpy as np
import pytest

from hoss.model.pod import HostPort
from hoss.wire.columns import account_dtype, numbered_uids
from resolver.core.values import ReservationState, Verdict

C, D, NO_ROOM, NO_PORT, NO_CARD = (
    Verdict.COMMITTED,
    Verdict.DUPLICATE,
    Verdict.CONFLICT_RESOURCE,
    Verdict.CONFLICT_PORT,
    Verdict.CONFLICT_DEVICE,
)


def uid(pod):
    return numbered_uids(b"test-prefix-", pod, 1)[0].tobytes()


def uids(*pods):
    return np.frombuffer(b"".join(map(uid, pods)), np.uint8).reshape(-1, 16)


def evicting(proposal, *rows):
    """The proposal, of whose pods each names those that go for it."""
    victims = {i: tuple(map(uid, pods)) for i, pods in enumerate(rows) if pods}
    return replace(proposal, victims=victims, victims_terminate=True)


async def requested(ledger, node=0):
    rows = (await ledger.state(0)).snapshot.accounts
    accounts = np.frombuffer(rows.records, account_dtype(rows.resources))
    at = np.frombuffer(rows.indexes, "<u4").tolist().index(node)
    return int(accounts["amounts"][at, 0, 1])


async def held(ledger):
    """By pod: its cpu and its state."""
    found = (await ledger.state(0)).reservations
    return {
        found_uid.tobytes()[-1]: (int(record["requests"][0]), ReservationState(int(state)).name.lower())
        for found_uid, record, state in zip(found.uids, found.records, found.states, strict=True)
    }


@pytest.fixture
async def full(ledger, make_node, make_proposal):
    """Node 0, cpu 1000, has pods 1 (cpu 600, priority 0) and 2 (cpu 300, priority 5), confirmed."""
    await ledger.upsert_nodes(0, [make_node("a", cpu=1000, cards=1), make_node("b", cpu=100)])
    for worker in ("w1", "w2"):
        await ledger.grant(worker)
    [decision] = await ledger.commit(
        0, [make_proposal([1, 2], [[0], [0]], cpu=[600, 300], priorities=[0, 5])]
    )
    await ledger.confirm(0, np.array([decision.seq], np.uint64))
    return ledger


@pytest.fixture
def commit(full, make_proposal):
    """The verdict on one pod that asks for `cpu` of node 0."""

    async def propose(pod, cpu, *victims, priority=9, existing=False, **fields):
        proposal = make_proposal([pod], [[0]], cpu=cpu, priorities=[priority], unchecked=existing, **fields)
        proposal = replace(proposal, existing=existing)
        [decision] = await full.commit(0, [evicting(proposal, victims) if victims else proposal])
        return Verdict(int(decision.verdicts[0]))

    return propose


async def test_a_victim_holds_what_its_preemptor_does_not_take_until_it_is_released(full, commit):
    assert await commit(3, 200, 1) is C  # 100 are free, and 100 it takes of the victim
    assert await held(full) == {1: (500, "terminating"), 2: (300, "confirmed"), 3: (200, "assumed")}
    assert await requested(full) == 1000
    assert await commit(4, 100) is NO_ROOM
    assert await full.release(0, uids(1)) == 1
    assert await requested(full) == 500
    assert await commit(4, 500) is C


async def test_a_victim_that_was_evicted_for_a_rule_holds_all_its_room(full, make_proposal):
    proposal = evicting(make_proposal([3], [[0]], cpu=50, priorities=[9]), [1])
    [decision] = await full.commit(0, [replace(proposal, victims_must_go=True)])
    assert decision.verdicts.tolist() == [C]
    assert await held(full) == {1: (600, "terminating"), 2: (300, "confirmed"), 3: (50, "assumed")}


async def test_of_several_victims_the_first_gives_first(full, commit):
    assert await commit(3, 800, 2, 1) is C
    assert await held(full) == {1: (200, "terminating"), 2: (0, "terminating"), 3: (800, "assumed")}
    assert await requested(full) == 1000


async def test_who_terminates_is_no_victim_again_and_neither_is_who_waits_for_victims(full, commit):
    assert await commit(3, 200, 1, priority=6) is C
    before = await held(full)
    assert await commit(4, 500, 1) is NO_ROOM
    assert await commit(4, 200, 3) is NO_ROOM
    assert await held(full) == before
    await full.release(0, uids(1))
    assert await commit(4, 600, 3) is C


async def test_a_second_preemptor_takes_of_its_own_victims_only(full, commit):
    assert await commit(3, 600, 1) is C
    assert await commit(4, 300, 2) is C
    assert await held(full) == {
        1: (100, "terminating"),
        2: (0, "terminating"),
        3: (600, "assumed"),
        4: (300, "assumed"),
    }
    await full.release(0, uids(2))
    assert await commit(5, 50) is NO_ROOM


async def test_a_preemptor_that_ends_before_its_victims_leaves_their_room_to_them(full, commit):
    assert await commit(3, 800, 1, 2) is C
    await full.release(0, uids(1))
    await full.release(0, uids(3))
    assert await held(full) == {2: (300, "terminating")}
    assert await requested(full) == 300
    await full.release(0, uids(2))
    assert (await held(full), await requested(full)) == ({}, 0)


async def test_a_preemptor_and_its_victim_that_end_at_once_leave_nothing(full, commit):
    assert await commit(3, 800, 1, 2) is C
    assert await full.release(0, uids(3, 1)) == 2
    assert (await held(full), await requested(full)) == ({2: (300, "terminating")}, 300)


async def test_a_preemptor_whose_lease_ends_leaves_their_room_to_its_victims(full, commit):
    assert await commit(3, 800, 1, 2) is C
    assert await full.reap(0) == 1
    assert await held(full) == {1: (600, "terminating"), 2: (300, "terminating")}
    assert await requested(full) == 900


async def test_a_release_that_comes_twice_changes_nothing(full, commit):
    await commit(3, 200, 1)
    assert [await full.release(0, uids(1)), await full.release(0, uids(1))] == [1, 0]
    assert await requested(full) == 500
    await full.release(0, uids(3))
    assert await requested(full) == 300


async def test_a_terminating_pod_is_reserved_already_whatever_it_asks_for(full, commit):
    await commit(3, 200, 1)
    assert await commit(1, 600, priority=0, existing=True) is D
    assert (await held(full))[1] == (500, "terminating")
    assert await requested(full) == 1000


async def test_a_preemptor_that_is_resized_leaves_their_room_to_its_victims_all_the_same(full, commit):
    await commit(3, 200, 1)
    assert await commit(3, 150, existing=True) is C
    await full.release(0, uids(3))
    assert (await held(full), await requested(full)) == (
        {1: (600, "terminating"), 2: (300, "confirmed")},
        900,
    )


async def test_ports_of_a_victim_are_the_preemptors_too_and_nobody_elses(full, commit):
    await full.release(0, uids(1, 2))
    port = {"ports": [[HostPort(80)]]}
    assert await commit(1, 600, priority=0, groups=["web"], **port) is C
    assert await commit(3, 500, 1, groups=["late"], **port) is C
    await full.release(0, uids(3))
    assert await commit(4, 10, groups=["other"], **port) is NO_PORT
    await full.release(0, uids(1))
    assert await commit(4, 10, groups=["other"], **port) is C


async def test_a_victim_keeps_its_port_and_card_from_a_preemptor_that_asks_for_neither(full, commit):
    await full.release(0, uids(1, 2))
    held = {"groups": ["web"], "ports": [[HostPort(80)]], "devices": [(1, 1000)]}
    assert await commit(1, 1000, priority=0, **held) is C
    assert await commit(3, 500, 1) is C
    assert await commit(4, 0, groups=["other"], ports=[[HostPort(80)]]) is NO_PORT
    assert await commit(4, 0, devices=[(1, 500)]) is NO_CARD


async def test_cards_of_a_victim_are_the_preemptors_too_and_nobody_elses(full, commit):
    await full.release(0, uids(1, 2))
    assert await commit(1, 100, priority=0, devices=[(1, 1000)]) is C
    assert await commit(3, 100, 1, devices=[(1, 500)]) is C
    assert await commit(4, 10, devices=[(1, 500)]) is NO_CARD
    await full.release(0, uids(1))
    assert await commit(4, 10, devices=[(1, 500)]) is C


async def test_a_terminating_pod_is_in_its_group_until_it_is_released(full, commit):
    await full.release(0, uids(1))
    assert await commit(1, 600, priority=0, groups=["web"]) is C
    assert await commit(3, 200, 1) is C

    async def seen():
        counts = [pods for _, pods in (await full.state(0)).groups.values()]
        return counts, [run.gone for entry in await full.feed(0, 0, 1) for run in entry.runs]

    assert await seen() == ([1], [False])
    await full.release(0, uids(1))
    assert await seen() == ([], [False, True])


async def test_a_pod_with_terminating_victims_is_nominated_until_the_last_is_released(full, commit):
    await commit(3, 800, 1, 2)
    for pod in (2, 1):
        assert (await full.nominated(0, uids(3, 1, 9))).tolist() == [True, False, False]
        await full.release(0, uids(pod))
    assert (await full.nominated(0, uids(3))).tolist() == [False]


async def test_nothing_is_remembered_of_evictions_that_are_over(full, commit):
    await commit(3, 200, 1)
    await full.release(0, uids(1))
    await commit(4, 500, 2)
    await full.release(0, uids(4))
    await full.release(0, uids(2))
    sizes = await full.table_sizes()
    assert (sizes["terminating"], sizes["nominated"]) == (0, 0)
