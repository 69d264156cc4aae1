"""What any ledger of several shards does with pods that rules look at: held, judged on shard 0, kept; and
what it forgets."""

import zlib
from dataclasses import replace

import numpy as np
import pytest

from hoss.model.reserved_names import claim_for_one_pod
from hoss.model.selectors import LabelSelector, Requirement
from hoss.wire.columns import NONE_U32, numbered_uids
from resolver.api.two_phase import commit_parts, finish_prepared
from resolver.core.rules import RESERVED_NAMES, PlacementRule
from resolver.core.values import Group, Leases, Verdict
from resolver.ledger import packing
from resolver.ledger.memory import MemoryLedger
from resolver.ledger.store import RedisLedger

C, D, T = Verdict.COMMITTED, Verdict.DUPLICATE, Verdict.CONFLICT_TOPOLOGY
HOUR_MS = 3_600_000
WEB = LabelSelector((Requirement("app", "In", ("web",)),))
APART = PlacementRule("rack", WEB, ("default",))
SPREAD = PlacementRule("rack", WEB, ("default",), anti_affinity=False)
GATHERS = PlacementRule("rack", WEB, ("default",), anti_affinity=False, self_affinity=True)


def web(*rules):
    """A group of pods app=web with these rules."""
    definition = f"web {rules}".encode()
    return Group(zlib.crc32(definition) + 1, definition, (), "default", (("app", "web"),), rules)


def uid(pod):
    return numbered_uids(b"test-prefix-", pod, 1)[0].tobytes()


class Committer:
    """A shard's, without a queue."""

    def __init__(self, ledger, shard):
        self._ledger = ledger
        self._shard = shard

    async def decide(self, proposal):
        [decision] = await self._ledger.commit(self._shard, [proposal])
        return decision


@pytest.fixture(params=[1, 2], ids=["one shard", "two shards"])
async def racks(make_ledger, make_node, request):
    """Racks r0 and r1 with nodes on each shard; workers w1 and w2 have epochs 1 and 2."""
    async with make_ledger(request.param) as ledger:
        ledger._leases = Leases(commit_ms=HOUR_MS, prepare_ms=0)
        for shard in range(ledger.shards):
            nodes = [make_node(f"n{shard}-{rack}", labels=(("rack", f"r{rack}"),)) for rack in (0, 1)]
            await ledger.upsert_nodes(shard, nodes)
        assert [await ledger.grant(worker) for worker in ("w1", "w2")] == [1, 2]
        yield ledger


two_shards = pytest.mark.parametrize("racks", [2], indirect=True, ids=["two shards"])  # one holds nothing


@pytest.fixture
def proposed(racks, make_proposal):
    """(shard, proposal) of one pod in a rack, by a worker that knows the shards up to `seen`."""

    def build(worker, pod, rack, group, seen, *, on=0, **more):
        node = rack * racks.shards + on
        asked = make_proposal(
            [pod], [[node]], groups=[group], worker=f"w{worker}", epoch=worker, snapshot_seq=seen[on]
        )
        return on, replace(asked, seen=tuple(seen), **more)

    return build


@pytest.fixture
def decide(racks):
    """The whole way of one proposal; the verdicts."""

    async def run(part):
        decision = await Committer(racks, part[0]).decide(part[1])
        if decision.queries or decision.prepared:
            [decision] = await finish_prepared(racks, [part], [decision], 0)
        return decision.verdicts.tolist()

    return run


async def seqs(ledger):
    return [await ledger.seq(shard) for shard in range(ledger.shards)]


async def known(racks, decide, proposed, *rules):
    """The rules are registered; where the shards stand then."""
    for rule in rules:
        await decide(proposed(1, 99, 0, web(rule), [0] * racks.shards, firsts=(True,)))
    return await seqs(racks)


@pytest.mark.topologies
@pytest.mark.parametrize("rule", [APART, SPREAD])
async def test_a_placement_on_any_shard_that_a_worker_has_not_seen_refuses_it_in_the_same_domain(
    racks, decide, proposed, rule
):
    seen = await known(racks, decide, proposed, rule)
    last = racks.shards - 1
    assert await decide(proposed(1, 1, 0, web(rule), seen, on=last)) == [C]
    assert await decide(proposed(2, 2, 0, web(rule), seen)) == [T]
    assert await decide(proposed(2, 3, 1, web(rule), seen)) == [C]
    assert await decide(proposed(2, 4, 0, web(rule), await seqs(racks))) == [C]


@pytest.mark.topologies
@pytest.mark.parametrize("rule", [APART, SPREAD, GATHERS])
async def test_who_has_seen_a_rule_registered_is_not_refused_for_its_being_new(racks, decide, proposed, rule):
    before, awaited = await seqs(racks), await racks.register_rules([web(rule), web()])
    assert awaited == await seqs(racks)
    assert await decide(proposed(1, 1, 0, web(rule), before, firsts=(True,))) == [T]
    assert await decide(proposed(1, 1, 0, web(rule), awaited, firsts=(True,))) == [C]


async def test_a_rule_that_is_known_is_registered_without_a_change(racks):
    awaited = await racks.register_rules([web(APART)])
    now = await seqs(racks)
    assert await racks.register_rules([web(APART)]) == awaited
    assert await racks.register_rules([web()]) == [0] * racks.shards
    assert await seqs(racks) == now


async def test_invariant_2_a_uid_twice_among_pods_with_rules_is_reserved_once(
    racks, decide, proposed, make_proposal
):
    seen = await known(racks, decide, proposed, APART)
    asked = make_proposal([1, 1], [[0], [racks.shards]], groups=[web(APART)] * 2)
    assert await decide((0, replace(asked, seen=tuple(seen)))) == [C, D]
    [held] = [part async for part in racks.reservations(0)]
    assert held.records["node"][(held.uids == asked.uids[0]).all(axis=1)].tolist() == [0]


@two_shards
async def test_a_rule_about_a_slot_without_pods_leaves_no_pod_merely_prepared(
    racks, decide, proposed, make_proposal
):
    await known(racks, decide, proposed, APART)
    alone = make_proposal([1], [[0]], slots=[1], groups=[web(APART), ""])
    [decision] = await racks.commit(0, [alone])
    assert (decision.verdicts.tolist(), decision.prepared) == ([C], False)
    assert await racks.confirm(0, np.array([decision.seq], np.uint64)) == 1


@two_shards
async def test_a_pod_that_no_rule_concerns_is_committed_with_a_proposal_whose_other_pods_hold_already(
    racks, decide, proposed, make_proposal
):
    seen = await known(racks, decide, proposed, APART)
    assert await decide(proposed(1, 1, 0, web(APART), seen)) == [C]
    both = make_proposal([1, 2], [[0], [0]], groups=[web(APART), ""])
    assert await decide((0, both)) == [D, C]
    [committed] = set((await racks.lookup(0, both.uids[1:]))["seq"].tolist())
    assert await racks.confirm(0, np.array([committed], np.uint64)) == 1


async def test_nobody_is_evicted_for_a_pod_that_is_only_prepared(racks, decide, proposed, make_proposal):
    seen = await known(racks, decide, proposed, APART)
    [filled] = await racks.commit(0, [make_proposal([50], [[0]], cpu=10_000)])
    assert filled.verdicts.tolist() == [C]
    shard, asked = proposed(1, 1, 0, web(APART), seen)
    asked = replace(asked, victims={0: (uid(50),)}, priorities=np.array([1], np.int32))
    told = await decide((shard, asked))
    assert told == [C if racks.shards == 1 else Verdict.CONFLICT_RESOURCE]
    victim = await racks.lookup(0, numbered_uids(b"test-prefix-", 50, 1))
    assert victim["node"].tolist() == [NONE_U32 if racks.shards == 1 else 0]


@two_shards
async def test_a_pod_that_is_only_prepared_is_not_evicted_for_another(racks, proposed, make_proposal):
    shard, held = proposed(1, 1, 0, web(APART), await seqs(racks))
    await racks.commit(shard, [replace(held, prepared=True)])
    free = 10_000 - int(held.requests[0, 0])
    asked = make_proposal([2], [[0]], cpu=free + 1, worker="w2", epoch=2, snapshot_seq=(await seqs(racks))[0])
    asked = replace(asked, victims={0: (uid(1),)}, priorities=np.array([1], np.int32))
    [decision] = await racks.commit(0, [asked])
    assert decision.verdicts.tolist() == [Verdict.CONFLICT_RESOURCE]


async def test_the_first_of_a_kind_is_refused_where_any_of_it_was_placed_and_a_later_one_is_not(
    racks, decide, proposed
):
    seen = await known(racks, decide, proposed, GATHERS)
    assert await decide(proposed(1, 1, 0, web(GATHERS), seen, firsts=(True,))) == [C]
    assert await decide(proposed(2, 2, 1, web(GATHERS), seen, firsts=(True,), on=racks.shards - 1)) == [T]
    assert await decide(proposed(2, 2, 0, web(GATHERS), seen)) == [C]


async def test_what_a_rule_refuses_holds_nothing(racks, decide, proposed):
    seen = await known(racks, decide, proposed, APART)
    await decide(proposed(1, 1, 0, web(APART), seen))
    part = proposed(2, 2, 0, web(APART), seen)
    await decide(part)
    assert (await racks.lookup(0, part[1].uids))["seq"].tolist() == [0]
    assert (await racks.snapshot(0, groups=True)).prepared == ()


@pytest.mark.topologies
@two_shards
async def test_pods_that_count_on_a_refused_one_on_another_shard_are_refused_with_it(racks, decide, proposed):
    seen = await known(racks, decide, proposed, SPREAD)
    places = [np.array([place], np.uint16) for place in range(3)]
    too_large = proposed(1, 1, 0, web(SPREAD), seen, places=places[1])
    too_large[1].requests[:, 0] = 10**9
    parts = [
        too_large,
        proposed(1, 2, 1, web(SPREAD), seen, on=1, places=places[0]),
        proposed(1, 3, 1, web(SPREAD), seen, on=1, places=places[2]),
    ]
    decided = await commit_parts(racks, [Committer(racks, 0), Committer(racks, 1)], parts, 0)
    assert [d.verdicts.tolist() for d in decided] == [[Verdict.CONFLICT_RESOURCE], [C], [T]]


@pytest.fixture
async def held(racks, decide, proposed):
    """A pod of w1 in rack r0, held on the last of two shards and nothing more; its part and decision."""
    seen = await known(racks, decide, proposed, SPREAD)
    part = proposed(1, 1, 0, web(SPREAD), seen, on=1)
    return part, await Committer(racks, 1).decide(part[1])


@two_shards
async def test_the_younger_of_two_prepared_commits_is_known_though_the_older_is_validated_after_it(
    racks, decide, proposed, held
):
    part, decision = held
    await racks.grant("w3")
    seen = list(part[1].seen)
    other = proposed(2, 2, 0, web(), seen, on=1)
    younger = await Committer(racks, 1).decide(other[1])
    await finish_prepared(racks, [other], [younger], 0)
    await finish_prepared(racks, [part], [decision], 0)
    assert await decide(proposed(3, 3, 0, web(SPREAD), [seen[0], decision.seq])) == [T]


@pytest.mark.topologies
@two_shards
async def test_the_feed_shows_prepared_pods_once_they_are_committed(racks, held):
    part, decision = held
    [prepared] = await racks.feed(1, decision.seq - 1, 1)
    assert (prepared.prepared, prepared.runs) == (True, ())
    snapshot = await racks.snapshot(1, groups=True)
    assert (snapshot.prepared, snapshot.runs) == ((decision.seq,), ())
    [kept] = await finish_prepared(racks, [part], [decision], 0)
    [entry] = await racks.feed(1, decision.seq, 1)
    assert (entry.seq, entry.ended, [run.gone for run in entry.runs]) == (kept.seq, (decision.seq,), [False])
    snapshot = await racks.snapshot(1, groups=True)
    assert (snapshot.prepared, len(snapshot.runs)) == ((), 1)
    assert await racks.reap(1) == 0
    assert await racks.confirm(1, np.array([kept.seq], np.uint64)) == 1


@two_shards
async def test_a_prepared_commit_that_ends_by_its_lease_was_never_in_the_feed(racks, held):
    _, decision = held
    assert await racks.reap(1) == 1
    [entry] = await racks.feed(1, decision.seq, 1)
    assert (entry.ended, entry.runs) == ((decision.seq,), ())
    assert (await racks.state(1)).groups == {}


@pytest.mark.topologies
@two_shards
async def test_a_prepared_commit_that_its_resolver_left_behind_is_committed_when_sent_again(
    racks, held, decide
):
    part, decision = held
    assert await decide(part) == [D]
    [entry] = await racks.feed(1, decision.seq, 1)
    assert [run.gone for run in entry.runs] == [False]
    assert await racks.reap(1) == 0
    assert await decide(part) == [D]


@pytest.mark.topologies
async def test_a_gang_that_is_refused_after_its_validation_leaves_no_domain_versions(racks, decide, proposed):
    seen = await known(racks, decide, proposed, APART)
    await decide(proposed(2, 1, 0, web(APART), seen))
    part, other = (
        proposed(1, 2, 0, web(APART), seen),
        proposed(1, 3, 1, web(APART), seen, on=racks.shards - 1),
    )
    if racks.shards == 1:
        gang = replace(part[1], **_joined(part[1], other[1]), gang_minimum=2)
        [decision] = await racks.commit(0, [gang])
        verdicts = decision.verdicts.tolist()
    else:
        committers = [Committer(racks, 0), Committer(racks, 1)]
        verdicts = [int(d.verdicts[0]) for d in await commit_parts(racks, committers, [part, other], 2)]
    assert verdicts == [T, Verdict.GANG_ABORTED]
    assert await decide(proposed(2, 4, 1, web(APART), seen)) == [C]


def _joined(one, other):
    return {
        name: np.concatenate([getattr(one, name), getattr(other, name)])
        for name in ("uids", "slots", "nodes")
    }


@pytest.mark.topologies
async def test_rules_and_domain_versions_that_nobody_can_have_missed_are_forgotten_and_come_again(
    racks, decide, proposed
):
    seen = await known(racks, decide, proposed, APART)
    assert await decide(proposed(1, 1, 0, web(APART), seen)) == [C]
    placed = await seqs(racks)
    assert await racks.forget_rules(seen) == 0  # it was used since
    assert await decide(proposed(2, 2, 0, web(APART), seen)) == [T]
    assert await racks.forget_rules(placed) == 1
    assert await decide(proposed(2, 2, 1, web(), seen)) == [T]  # older than what was forgotten
    now = await seqs(racks)
    assert await decide(proposed(2, 2, 1, web(APART), now)) == [T]  # registered anew
    assert await decide(proposed(2, 2, 1, web(APART), await seqs(racks))) == [C]


# In memory a ledger is one resolver's.
@pytest.mark.parametrize(
    "ledger_url", ["server", pytest.param("cluster", marks=pytest.mark.thorough)], indirect=True
)
async def test_a_rule_that_another_resolver_forgot_is_registered_anew(racks, decide, proposed, ledger_url):
    await known(racks, decide, proposed, APART)
    other = RedisLedger(ledger_url)
    await other.open(racks.shards)
    assert await other.forget_rules(await seqs(racks)) == 1
    await other.close()
    now = await seqs(racks)
    assert await decide(proposed(2, 2, 1, web(APART), now)) == [T]
    assert await decide(proposed(2, 2, 1, web(APART), await seqs(racks))) == [C]


@pytest.mark.parametrize("ledger_url", ["server"], indirect=True)
@two_shards
async def test_prepared_pods_whose_rule_another_resolver_forgot_and_registered_anew_are_refused(
    racks, held, ledger_url
):
    """Pods that were placed meanwhile are not recorded for it."""
    part, decision = held
    other = RedisLedger(ledger_url)
    await other.open(racks.shards)
    assert await other.forget_rules(await seqs(racks)) == 1
    await other.register_rules([web(SPREAD)])
    await other.close()
    [refused] = await finish_prepared(racks, [part], [decision], 0)
    assert refused.verdicts.tolist() == [T]


@two_shards
async def test_a_prepared_pod_is_refused_if_what_its_worker_did_not_know_is_forgotten_before_it_is_validated(
    racks, decide, proposed
):
    seen = await known(racks, decide, proposed, APART)
    part = proposed(2, 2, 0, web(APART), seen, on=1)
    decision = await Committer(racks, 1).decide(part[1])
    assert await decide(proposed(1, 1, 0, web(APART), seen)) == [C]
    placed = await seqs(racks)
    assert await decide(proposed(1, 3, 1, web(APART), seen)) == [C]
    assert await racks.forget_rules(placed) == 0, "the rule was used since, but not in the first rack"
    [refused] = await finish_prepared(racks, [part], [decision], 0)
    assert refused.verdicts.tolist() == [T]


@pytest.mark.parametrize("ledger_url", ["server"], indirect=True)
async def test_many_rules_are_registered_and_forgotten_in_steps_that_do_not_hold_up_redis(
    racks, decide, proposed, monkeypatch
):
    monkeypatch.setattr("resolver.ledger.rules.RULES_STEP", 2)
    steps, run = [], racks._rules._run

    async def noted(script, shard, **members):
        # Of `rules` every second one is a key.
        rows = members.get("keys", members.get("fields", members.get("rules", [])[::2]))
        steps.append((script, len(rows)))
        return await run(script, shard, **members)

    monkeypatch.setattr(racks._rules, "_run", noted)
    rules = [replace(APART, topology_key=key) for key in ("rack", "row", "room", "hall", "site")]
    seen = await racks.register_rules([web(*rules)])
    assert await decide(proposed(1, 1, 0, web(*rules), seen)) == [C]
    assert await racks.forget_rules(await seqs(racks)) == len(rules)
    assert await kept_of_rules(racks) == 0
    # Redis gives a small hash as a whole, whatever step it is asked for.
    for script, calls in (("register_rules", 3), ("forget_rules", 3), ("forget_versions", 2)):
        sizes = [size for name, size in steps if name == script]
        assert (max(sizes), len(sizes) >= calls) == (2, True), script


@pytest.mark.parametrize("ledger_url", ["server"], indirect=True)
async def test_a_placement_by_rules_of_which_one_came_while_they_were_read_is_recorded(
    racks, decide, proposed, monkeypatch, ledger_url
):
    others = [
        replace(APART, topology_key=f"{number:0>70}") for number in range(20)
    ]  # long: Redis gives slices
    await racks.register_rules([web(*others)])
    monkeypatch.setattr("resolver.ledger.rules.RULES_STEP", 2)
    other, slices, scan = RedisLedger(ledger_url), [], racks._rules._scan
    await other.open(racks.shards)

    async def overtaken(shard, key, *commands, **more):
        async for at, part, replies in scan(shard, key, *commands, **more):
            yield at, {k: v for k, v in part.items() if k != APART.key.to_bytes(8, "little")}, replies
            slices.append(len(part))
            if len(slices) == 1:
                await other.register_rules([web(APART)])

    monkeypatch.setattr(racks._rules, "_scan", overtaken)
    await racks.read_rules()
    assert max(slices) < len(others)
    monkeypatch.setattr(racks._rules, "_scan", scan)
    seen = await seqs(racks)
    assert await decide(proposed(1, 1, 0, web(), seen)) == [C]
    assert await decide(proposed(2, 2, 0, web(APART), seen)) == [T]
    await other.close()


@pytest.mark.parametrize("ledger_url", ["server"], indirect=True)
async def test_a_rule_is_decoded_once_for_all_shards_and_kept_as_long_as_a_shard_has_it(racks, monkeypatch):
    decoded, read = [], packing._read_rule
    monkeypatch.setattr(packing, "_read_rule", lambda field, rule: decoded.append(field) or read(field, rule))
    await racks.register_rules([web(APART)])
    await racks.register_rules([web(SPREAD)])
    await racks.read_rules()
    assert [field for field in decoded if decoded.count(field) > 1] == []
    assert racks.own_tables()["decoded_rules"] == 2
    await racks.forget_rules(await seqs(racks))
    assert racks.own_tables() == {"rules": 0, "decoded_rules": 0, "constraints": 0}


async def test_rules_that_come_and_go_take_no_room_for_ever(racks, decide, proposed):
    for number in range(30):
        rule = PlacementRule(
            "rack", LabelSelector((Requirement("app", "In", (f"app {number}",)),)), ("default",)
        )
        seen = await known(racks, decide, proposed, rule)
        assert await decide(proposed(1, number, 0, web(rule), seen)) == [C]
        await racks.forget_rules(await seqs(racks))
    assert await kept_of_rules(racks) == 0


async def kept_of_rules(ledger):
    if isinstance(ledger, MemoryLedger):
        of_shards = [arbiter.constraints for arbiter in ledger.arbiters]
        return sum(len(constraints.book.rules) + len(constraints.versions) for constraints in of_shards)
    keys = [
        key for of_shard in ledger._keys for key in of_shard if key.endswith((":rules", ":stamps", ":holds"))
    ]
    return sum([await (await ledger.scripts.access.at(key)).hlen(key) for key in keys])


def taking(*names):
    """A group of pods that take what has these names."""
    definition = f"taking {names}".encode()
    return Group(zlib.crc32(definition) + 1, definition, rules=(RESERVED_NAMES,), reserved_names=names)


@pytest.mark.topologies
async def test_a_name_that_another_worker_gave_out_unseen_is_refused_on_every_node_of_every_shard(
    racks, decide, proposed
):
    seen = await racks.register_rules([taking("volume-1")])
    last = racks.shards - 1
    assert await decide(proposed(1, 1, 0, taking("volume-1"), seen, on=last)) == [C]
    assert await decide(proposed(2, 2, 1, taking("volume-1"), seen)) == [T]
    assert await decide(proposed(2, 2, 1, taking("volume-2", "volume-1"), seen)) == [T]
    assert await decide(proposed(2, 3, 1, taking("volume-2"), seen)) == [C]
    assert await decide(proposed(2, 2, 1, taking("volume-1"), await seqs(racks))) == [C]


@pytest.mark.topologies
async def test_a_worker_counts_what_it_gave_out_itself(racks, decide, proposed):
    seen = await racks.register_rules([taking("slots")])
    assert await decide(proposed(1, 1, 0, taking("slots"), seen)) == [C]
    assert await decide(proposed(1, 2, 0, taking("slots"), seen)) == [C]
    assert await decide(proposed(2, 3, 0, taking("slots"), seen)) == [T]


async def test_a_pod_that_takes_a_name_has_the_lease_that_it_asks_for(racks, decide, proposed):
    racks._leases = Leases(commit_ms=0, prepare_ms=HOUR_MS)
    seen = await racks.register_rules([taking("a"), taking("b")])
    assert await decide(proposed(1, 1, 0, taking("a"), seen)) == [C]
    assert await decide(proposed(1, 2, 0, taking("b"), seen, lease_ms=HOUR_MS)) == [C]
    assert await racks.reap(0) == 1
    assert (await racks.lookup(0, numbered_uids(b"test-prefix-", 1, 2)))["node"].tolist() == [NONE_U32, 0]


async def test_a_refused_pod_takes_no_name(racks, decide, proposed):
    seen = await racks.register_rules([taking("a")])
    assert await decide(proposed(1, 1, 0, taking("a"), seen)) == [C]
    assert await decide(proposed(2, 2, 1, taking("a", "b"), seen)) == [T]
    assert await decide(proposed(1, 3, 1, taking("b"), seen)) == [C]


@pytest.mark.topologies
async def test_of_two_workers_whose_pods_want_one_claim_at_once_one_gets_it_and_the_other_is_told(
    racks, proposed
):
    """In one round trip: neither could know of the other."""
    group = taking(claim_for_one_pod("default", "data"))
    seen = await racks.register_rules([group])
    parts = [proposed(worker, worker, 0, group, seen) for worker in (1, 2)]
    decisions = await racks.commit(0, [proposal for _, proposal in parts])
    if racks.shards > 1:  # they are prepared, and their resolver ends each for itself
        decisions = [
            (await finish_prepared(racks, [part], [decision], 0))[0]
            for part, decision in zip(parts, decisions, strict=True)
        ]
    assert [decision.verdicts.tolist() for decision in decisions] == [[C], [T]]


@two_shards
async def test_of_two_pods_prepared_at_once_with_one_name_one_is_committed(racks, proposed):
    seen = await racks.register_rules([taking("last")])
    parts = [proposed(1, 1, 0, taking("last"), seen), proposed(2, 2, 0, taking("last"), seen, on=1)]
    held = [await Committer(racks, shard).decide(proposal) for shard, proposal in parts]
    verdicts = []
    for part, decision in zip(parts, held, strict=True):
        [finished] = await finish_prepared(racks, [part], [decision], 0)
        verdicts += finished.verdicts.tolist()
    assert verdicts == [C, T]


@two_shards
async def test_a_prepared_pod_that_is_sent_again_is_held_to_its_rules_as_well(racks, decide, proposed):
    seen = await known(racks, decide, proposed, APART)
    shard, proposal = proposed(1, 1, 0, web(APART), seen)
    await Committer(racks, shard).decide(proposal)  # and its resolver dies
    assert await decide(proposed(2, 2, 0, web(APART), seen, on=1)) == [C]
    assert await decide(proposed(1, 1, 0, web(APART), seen, sending=1)) == [T]


async def test_a_pod_that_no_rule_can_be_about_may_be_older_than_what_was_forgotten(racks, make_proposal):
    seen = await seqs(racks)
    await racks.register_rules([web(APART)])
    await racks.forget_rules(await seqs(racks))
    mixed = make_proposal([1, 2], [[0], [0]], groups=[web(), ""], snapshot_seq=seen[0])
    decision = await Committer(racks, 0).decide(replace(mixed, seen=tuple(seen)))
    assert decision.verdicts.tolist() == [T, C]


async def test_names_that_every_worker_has_seen_are_forgotten(racks, decide, proposed):
    seen = await racks.register_rules([taking("a")])
    assert await decide(proposed(1, 1, 0, taking("a"), seen)) == [C]
    await racks.forget_rules(await seqs(racks))
    assert await decide(proposed(2, 2, 0, taking("a"), seen)) == [T]  # below the low watermark
    assert await decide(proposed(2, 2, 0, taking("a"), await racks.register_rules([taking("a")]))) == [C]
