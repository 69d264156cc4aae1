"""Records that rules about pods are judged by, when they cannot be read: the labels of a node, and domain
versions. Only pods that rules concern are refused, and the rest goes on. An audit names the record, and a
repair writes it anew (tests/integration/test_resolver_audit.py)."""

import zlib
from dataclasses import replace

import pytest

from hoss.model.selectors import LabelSelector, Requirement
from resolver.api.two_phase import finish_prepared
from resolver.core.consistency.repair import Repair
from resolver.core.rules import PlacementRule
from resolver.core.values import Group, Leases, Verdict
from resolver.ledger.memory import MemoryLedger
from resolver.ledger.rebuild import RedisRebuild, StoredField
from resolver.ledger.shards import SHARD_KEYS
from resolver.ledger.store import RedisLedger

C, T, CLOSED = Verdict.COMMITTED, Verdict.CONFLICT_TOPOLOGY, Verdict.NODE_UNSCHEDULABLE
FIRST, HOUR_MS = 0, 3_600_000
DAMAGES = {
    "nothing is left": b"",
    "its end is missing": b"\x81\xa4rack\xa2r",
    "no map": b"\xa2r0",
    "bytes of something else": b"\xc1\xff",
}
APART = PlacementRule("rack", LabelSelector((Requirement("app", "In", ("web",)),)), ("default",))
SPREAD = replace(APART, anti_affinity=False)
GATHERS = replace(APART, anti_affinity=False, self_affinity=True)

shards = pytest.mark.parametrize("racks", [1, 2], indirect=True, ids=["one shard", "two shards"])
redis_alone = pytest.mark.parametrize("ledger_url", ["server"], indirect=True)  # the model has no bytes


def web(*rules):
    """A group of pods app=web with these rules."""
    definition = f"web {rules}".encode()
    return Group(zlib.crc32(definition) + 1, definition, (), "default", (("app", "web"),), rules)


@pytest.fixture
async def racks(make_ledger, make_node, request):
    """Racks r0 and r1 with a node each, on shard 0; workers w1 and w2 have epochs 1 and 2."""
    async with make_ledger(request.param) as ledger:
        ledger._leases = Leases(commit_ms=HOUR_MS, prepare_ms=0)
        nodes = [make_node(f"n{rack}", labels=(("rack", f"r{rack}"),)) for rack in (0, 1)]
        await ledger.upsert_nodes(0, nodes)
        assert [await ledger.grant(worker) for worker in ("w1", "w2")] == [1, 2]
        yield ledger


@pytest.fixture
def place(racks, make_proposal):
    """The verdicts on one pod for a node, and its alternates if it has any, by a worker that knows all."""

    async def run(pod, nodes, group, worker=1, ledger=racks, **more):
        asked = make_proposal([pod], [nodes], groups=[group], worker=f"w{worker}", epoch=worker)
        seen = tuple([await ledger.seq(shard) for shard in range(ledger.shards)])
        asked = replace(asked, **{"seen": seen, **more})
        [decision] = await ledger.commit(0, [asked])
        if decision.queries or decision.prepared:
            [decision] = await finish_prepared(ledger, [(0, asked)], [decision], 0)
        return decision.verdicts.tolist()[0]

    return run


async def stored(ledger, name):
    """The key of that name, and a client of its server."""
    key = ledger.keys_of(0)[SHARD_KEYS.index(name)]
    return key, await ledger.scripts.access.at(key)


async def damage_labels(ledger, record):
    """Those of the first node."""
    if isinstance(ledger, MemoryLedger):
        ledger.damage_labels(0, FIRST, record)
        return
    key, redis = await stored(ledger, "labels")
    await redis.hset(key, FIRST.to_bytes(4, "little"), record)


@shards
@pytest.mark.parametrize("record", DAMAGES.values(), ids=list(DAMAGES))
async def test_a_node_with_damaged_labels_gets_no_pods_that_rules_concern_and_all_others(
    racks, place, make_node, record
):
    await racks.register_rules([web(APART)])
    await damage_labels(racks, record)
    other = racks.shards
    assert await place(1, [FIRST], web(APART)) == CLOSED
    assert await place(2, [FIRST], web()) == CLOSED, "a rule of others looks at it"
    assert await place(3, [other], web(APART)) == C
    assert await place(4, [FIRST], "") == C
    assert (await racks.state(0)).labels[FIRST.to_bytes(4, "little")] == record
    await racks.upsert_nodes(0, [make_node("n0", cpu=5000, labels=(("rack", "r0"),))])
    assert await place(5, [FIRST], web(APART)) == C


@shards
async def test_who_is_placed_without_validation_goes_to_a_node_with_damaged_labels(racks, place):
    await racks.register_rules([web(APART)])
    await damage_labels(racks, b"\xc1")
    assert await place(1, [FIRST], web(APART), unchecked=True) == C


@shards
async def test_a_rule_that_asks_for_no_label_does_not_mind_damaged_labels(racks, place):
    await racks.register_rules([web(GATHERS)])
    await damage_labels(racks, b"\xc1")
    assert await place(1, [FIRST], web(GATHERS), firsts=(True,)) == C


async def damage_versions(ledger):
    """All that shard 0 has; returns their fields, with what they are now."""
    key, redis = await stored(ledger, "stamps")
    damaged = dict.fromkeys(await redis.hgetall(key), b"short")
    await redis.hset(key, mapping=damaged)
    return damaged


@redis_alone
@shards
async def test_pods_that_rely_on_a_damaged_domain_version_are_refused_until_it_is_written_anew(racks, place):
    await racks.register_rules([web(APART)])
    assert await place(1, [FIRST], web(APART)) == C
    assert await damage_versions(racks) == await racks.damaged_versions(0)
    assert await place(2, [FIRST], web(APART)) == T
    assert await place(3, [racks.shards], web(APART)) == C, "another domain"
    assert await place(4, [FIRST], "") == C
    await racks.forget_rules([await racks.seq(shard) for shard in range(racks.shards)])
    damaged = await racks.damaged_versions(0)
    assert damaged, "nobody knows whether it is over"
    now = [await racks.seq(shard) for shard in range(racks.shards)]
    repair = Repair(versions=dict.fromkeys(damaged, now))
    assert await RedisRebuild(racks, feed_window=100, lease_ms=0).repair(0, now[0], repair)
    assert await racks.damaged_versions(0) == {}
    before = tuple(seq - 1 for seq in now)
    assert await place(5, [FIRST], web(APART), seen=before) == T, "what came by now is not known to it"
    assert await place(6, [FIRST], web(APART)) == C


@redis_alone
@shards
async def test_a_repair_that_was_planned_before_a_placement_in_the_domain_is_not_written(racks, place):
    """Several shards judge in a step that takes no seq of the shard whose versions they are."""
    await racks.register_rules([web(SPREAD)])
    assert await place(1, [FIRST], web(SPREAD)) == C
    await damage_versions(racks)
    planned, now = await racks.damaged_versions(0), await racks.seq(0)
    assert await place(2, [racks.shards], "") == C
    assert await place(3, [FIRST], web()) == C, "the rule looks at it, and it relies on nobody"
    assert (await racks.damaged_versions(0)).keys() == planned.keys()
    based_on = [StoredField("stamps", field, record) for field, record in planned.items()]
    writer = RedisRebuild(racks, feed_window=100, lease_ms=0)
    repair = Repair(versions=dict.fromkeys(planned, [now] * racks.shards))
    assert not await writer.repair(0, await racks.seq(0), repair, based_on=based_on)


# -- the rules themselves


async def damage_rules(ledger, record, shards=(0,)):
    """All that these shards have; returns their fields."""
    damaged = {}
    for shard in shards:
        key = ledger.keys_of(shard)[SHARD_KEYS.index("rules")]
        redis = await ledger.scripts.access.at(key)
        damaged = {field: record or now[:-1] for field, now in (await redis.hgetall(key)).items()}
        await redis.hset(key, mapping=damaged)
    return damaged


RULE_DAMAGES = {"nothing is left": b"\0", "its end is missing": b"", "born in the future": b"\xff" * 40}


@redis_alone
@shards
@pytest.mark.parametrize("record", RULE_DAMAGES.values(), ids=list(RULE_DAMAGES))
async def test_a_damaged_rule_is_registered_anew_by_the_next_pod_that_bears_it(racks, place, record):
    await racks.register_rules([web(APART)])
    assert await place(1, [FIRST], web(APART)) == C
    damaged = await damage_rules(racks, record)
    assert (await racks.state(0)).damaged_records == {"rules": damaged}
    racks._rules.distrust()
    before = tuple([await racks.seq(shard) for shard in range(racks.shards)])
    assert await place(2, [racks.shards], web(APART), seen=before) == T, (
        "nobody has seen that it is registered"
    )
    assert (await racks.state(0)).damaged_records == {}
    assert await place(3, [racks.shards], web(APART)) == C
    assert await place(4, [racks.shards], web(), 2, seen=before) == T, (
        "it is recorded for those that it looks at"
    )


@redis_alone
@shards
async def test_who_has_not_seen_all_until_a_rule_was_found_damaged_is_refused_if_rules_may_concern_the_pod(
    racks, place
):
    await racks.register_rules([web(APART)])
    before = tuple([await racks.seq(shard) for shard in range(racks.shards)])
    assert await place(1, [FIRST], web(APART)) == C
    await damage_rules(racks, b"short", range(racks.shards))
    racks._rules.distrust()
    await racks._rules.read()
    assert await place(2, [FIRST], web(), seen=before) == T
    assert await place(3, [FIRST], "", seen=before) == C
    assert await place(4, [racks.shards], web()) == C


@redis_alone
@shards
async def test_who_has_not_seen_what_another_resolver_placed_while_a_rule_was_found_damaged_is_refused(
    racks, place, ledger_url
):
    """The other resolver still knows the rule, so it takes a pod that bears it. The worker of the second pod
    has not seen that one, and this resolver does not know the rule any more."""
    await racks.register_rules([web(APART)])
    before = tuple([await racks.seq(shard) for shard in range(racks.shards)])
    other = RedisLedger(ledger_url)
    await other.open(racks.shards)
    await damage_rules(racks, b"short", range(racks.shards))
    run = other._rules._run

    async def place_first(*call, **members):
        other._rules._run = run
        assert await place(1, [FIRST], web(APART), seen=before) == C
        return await run(*call, **members)

    other._rules._run = place_first
    try:
        await other._rules.read()
        assert await place(2, [FIRST], web(), seen=before, ledger=other) == T
    finally:
        await other.close()


@redis_alone
@shards
async def test_damaged_rules_stay_until_a_repair_and_do_not_keep_others_from_being_forgotten(racks):
    await racks.register_rules([web(APART)])
    damaged = await damage_rules(racks, b"short")
    await racks.register_rules([web(SPREAD)])
    await racks.forget_rules([await racks.seq(shard) for shard in range(racks.shards)])
    key, redis = await stored(racks, "rules")
    assert await redis.hgetall(key) == damaged


@redis_alone
@pytest.mark.parametrize("racks", [1], indirect=True)
async def test_a_rule_that_is_damaged_is_read_again_by_resolvers_that_know_it(racks, place, ledger_url):
    """Else one resolver would take the rule for forgotten and another for registered: each would leave it to
    the other to record placements."""
    await racks.register_rules([web(APART)])
    assert await place(1, [0], web(APART)) == C
    key, redis = await stored(racks, "rules")
    other = RedisLedger(ledger_url)
    await other.open(1)
    try:
        for pod in (2, 3):  # a rule that was registered anew may be damaged again
            known = racks._rules.books[0]
            assert known.rules
            await redis.hset(key, mapping=dict.fromkeys(await redis.hgetall(key), b"short"))
            before = await racks.seq(0)
            await other._rules.read()
            await other._rules.read()
            assert await racks.seq(0) == before + 1, "once for each damage"
            assert other._rules.books[0].rules == {}
            assert await place(pod, [0], web(APART)) == T
            assert b"short" not in (await redis.hgetall(key)).values(), "it is registered anew"
            await other._rules.read()
    finally:
        await other.close()
