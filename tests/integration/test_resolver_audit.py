"""The audit on a live ledger that somebody damaged."""

import struct
import time

import numpy as np
import pytest
import redis

from hoss.client.resolver import ResolverClient
from hoss.model.node import NodeSpec
from hoss.model.pod import PodAffinity, PodAffinityTerm, PodGroup
from hoss.model.selectors import LabelSelector, Requirement
from hoss.v1 import resolver_pb2 as pb
from hoss.wire.columns import (
    FLAG_QUARANTINED,
    FLAG_SHRUNK,
    FLAG_UNSCHEDULABLE,
    account_dtype,
    numbered_uids,
)
from hoss.wire.convert_rules import definition_of
from hoss.wire.uids import uid_text


@pytest.fixture
async def client(redis_server, start_resolver):
    client = ResolverClient([start_resolver(redis_server.url, "--allow-unchecked")])
    await client.upsert_nodes([NodeSpec("a", allocatable=(("cpu", 100), ("pods", 5)))])
    await client.grant_epoch("w1")
    yield client
    await client.close()


async def place(client, pods, *, cpu, unchecked=False, **more):
    call = client.stub.Propose()
    await call.write(
        pb.ProposalBatch(
            worker="w1",
            epoch=1,
            batch_id=1,
            snapshot_seq=2**40,
            resources=6,
            uids=numbered_uids(b"twelve bytes", 0, pods).tobytes(),
            slots=bytes(2 * pods),
            candidates=1,
            nodes=bytes(4 * pods),
            requests=np.array([cpu, 0, 0, 1, 0, 0], "<i8").tobytes(),
            priorities=bytes(4),
            attempts=bytes(2),
            unchecked=unchecked,
            **more,
        )
    )
    return await call.read()


async def test_a_sound_ledger_has_no_violations(client):
    await place(client, 3, cpu=30)
    audit = await client.audit()
    assert (list(audit.violations), audit.nodes, audit.reservations) == ([], 1, 3)


async def test_invariant_1_shows_what_uncoordinated_schedulers_do(client):
    await place(client, 3, cpu=50, unchecked=True)
    [violation] = (await client.audit()).violations
    assert (violation.invariant, violation.node) == (1, "a")
    assert violation.text == "node a: cpu requested 150 > allocatable 100"


async def test_invariant_1_shows_pods_together_that_required_anti_affinity_keeps_apart(client):
    await client.upsert_nodes(
        [NodeSpec("a", labels=(("rack", "r1"),), allocatable=(("cpu", 100), ("pods", 5)))]
    )
    web = LabelSelector((Requirement("app", "In", ("web",)),))
    alone = PodAffinity(anti_required=(PodAffinityTerm("rack", web, ("default",)),))
    group = definition_of(PodGroup(labels=(("app", "web"),), affinity=alone))
    await place(client, 2, cpu=10, unchecked=True, groups=[group], slot_groups=bytes(2))
    [violation] = (await client.audit()).violations
    first, second = (uid_text(uid.tobytes()) for uid in numbered_uids(b"twelve bytes", 0, 2))
    assert (violation.invariant, violation.node) == (1, "a")
    assert {violation.pod_uid} < {first, second}
    assert violation.text.endswith("are both in rack=r1, and the first's required anti-affinity forbids that")


async def test_invariant_6_shows_a_reservation_that_vanished(client, redis_server):
    await place(client, 1, cpu=50)
    with redis.Redis(port=redis_server.port) as direct:
        direct.delete("{hoss:0}:reservations")
    violations = (await client.audit()).violations
    assert {violation.invariant for violation in violations} == {6}
    assert "cpu requested 50, its reservations add up to 0" in violations[0].text


async def test_a_damaged_reservation_is_named_with_its_key_and_repaired_without_it(client, redis_server):
    await place(client, 2, cpu=30)
    damaged, _ = numbered_uids(b"twelve bytes", 0, 2)
    with redis.Redis(port=redis_server.port) as direct:
        direct.hset("{hoss:0}:reservations", damaged.tobytes(), b"\1\2\3")
        violations = (await client.audit()).violations
        assert {violation.invariant for violation in violations} == {6}
        [text] = [v.text for v in violations if v.pod_uid == uid_text(damaged.tobytes())]
        assert "cannot be read (3 bytes) and was set aside: key {hoss:0}:damaged, field " in text
        assert damaged.tobytes().hex() in text
        assert "`hoss audit --repair`" in text
        changes = (await client.repair()).changes
        assert f"field {damaged.tobytes().hex()}: what could not be read is forgotten: 010203" in changes
        assert "node a: cpu requested 60, now 30" in changes
        assert list((await client.audit()).violations) == []
        assert not direct.exists("{hoss:0}:damaged")


async def test_a_damaged_account_is_named_with_its_key_and_computed_anew(client, redis_server):
    await place(client, 2, cpu=30)
    await client.upsert_nodes(
        [NodeSpec("a", allocatable=(("cpu", 100), ("pods", 5)), unschedulable=True, cards=2)]
    )
    with redis.Redis(port=redis_server.port) as direct:
        before = direct.hget("{hoss:0}:accounts", bytes(4))
        direct.hset("{hoss:0}:accounts", mapping={bytes(4): before[:-9], b"odd": b"x"})
        direct.hset("{hoss:0}:cards", mapping={bytes(4): b"12345"})
        audit = await client.audit()
        assert (audit.nodes, audit.reservations) == (1, 2)
        assert [(v.invariant, v.node) for v in audit.violations] == [(6, "a"), (6, ""), (6, "a")]
        account, odd, cards = (violation.text for violation in audit.violations)
        assert account == (
            f"shard 0: the account of node a cannot be read ({len(before) - 9} bytes): key"
            " {hoss:0}:accounts, field 00000000; the node gets no pods until `hoss audit --repair` computes"
            " the record anew, from the node's spec and its reservations"
        )
        assert "the account of no node cannot be read (1 bytes): key {hoss:0}:accounts, field 6f6464" in odd
        assert (
            "the record of cards of node a cannot be read (5 bytes): key {hoss:0}:cards, field 0000" in cards
        )
        repaired = await client.repair()
        assert list(repaired.remaining) == []
        assert "accounts field 6f6464 is of no node and is forgotten: 78" in repaired.changes
        audit = await client.audit()
        assert (list(audit.violations), list(audit.reports)) == ([], [])
        after = np.frombuffer(direct.hget("{hoss:0}:accounts", bytes(4))[:-7], account_dtype(6))
        assert after["amounts"].tolist() == np.frombuffer(before[:-7], account_dtype(6))["amounts"].tolist()
        assert after["flags"] == FLAG_UNSCHEDULABLE
        assert direct.hget("{hoss:0}:cards", bytes(4)) == bytes(4) + b"\xff" * 28
        assert not (await client.repair()).changes


async def test_a_damaged_account_of_a_node_that_shrank_and_is_in_quarantine_has_both_flags_again(
    client, redis_server
):
    await place(client, 2, cpu=50)
    await client.upsert_nodes([NodeSpec("a", allocatable=(("cpu", 60), ("pods", 5)))])
    with redis.Redis(port=redis_server.port) as direct:
        direct.hset("{hoss:0}:accounts", bytes(4), b"")
        until = (int(time.time()) + 3600) * 1000
        direct.hset("{hoss:0}:quarantine", bytes(4), struct.pack("<qq", 0, until) + b"by hand")
        await client.repair()
        audit = await client.audit()
        assert list(audit.violations) == []
        assert [report.split(":")[0] for report in audit.reports] == ["node a"]
        after = np.frombuffer(direct.hget("{hoss:0}:accounts", bytes(4))[:-7], account_dtype(6))
        assert after["flags"] == FLAG_SHRUNK | FLAG_QUARANTINED


async def test_damaged_labels_and_domain_versions_are_named_with_their_keys_and_written_anew(
    client, redis_server
):
    labels = {"a": (("rack", "r1"),), "b": (("rack", "r2"), ("zone", "z")), "c": ()}
    await client.upsert_nodes(
        [NodeSpec(name, labels=of, allocatable=(("cpu", 100), ("pods", 5))) for name, of in labels.items()]
    )
    with redis.Redis(port=redis_server.port) as direct:
        right = direct.hgetall("{hoss:0}:labels")
        direct.hset("{hoss:0}:labels", mapping={bytes(4): b"\xc1", b"odd": b"x", b"\2\0\0\0": b"\x80"})
        direct.hdel("{hoss:0}:labels", b"\1\0\0\0")
        direct.hset("{hoss:0}:stamps", b"rule key" + b"mr1", b"short")
        violations = (await client.audit()).violations
        assert [(v.invariant, v.node) for v in violations] == [(6, "a"), (6, "b"), (6, "c"), (6, ""), (6, "")]
        first, lost, _, odd, version = (violation.text for violation in violations)
        assert first.startswith(
            "shard 0: the record of labels of node a is not what the node's spec says (1 bytes): key"
            " {hoss:0}:labels, field 00000000; "
        )
        assert "labels of node b is not what the node's spec says (0 bytes)" in lost
        assert "the record of labels of no node" in odd
        assert "(5 bytes): key {hoss:0}:stamps, field 72756c65206b65796d7231; " in version
        changes = list((await client.repair()).changes)
        assert "node a: its labels were wrong and are those of its spec now: c1" in changes
        assert len(changes) == 5
        assert list((await client.audit()).violations) == []
        assert direct.hgetall("{hoss:0}:labels") == right
        assert not (await client.repair()).changes


async def test_damaged_records_of_rules_groups_and_commits_are_named_with_their_keys_and_repaired(
    client, redis_server
):
    await place(client, 2, cpu=10)
    with redis.Redis(port=redis_server.port) as direct:
        [commit] = direct.hkeys("{hoss:0}:pending")
        direct.hset("{hoss:0}:pending", mapping={commit: b"short", b"odd": b""})
        direct.hset("{hoss:0}:holds", "odd", "1")
        direct.hset("{hoss:0}:holds", "99", "x")
        direct.hset("{hoss:0}:group_pods", mapping={b"a group.": b"x", b"odd": b"x"})
        direct.hset("{hoss:0}:rules", b"its key.", b"short")
        direct.hset("{hoss:0}:meta", "rules", "1")
        texts = [violation.text for violation in (await client.audit()).violations]
        named = [text for text in texts if " was damaged (" in text]
        assert [text.split(" was damaged")[0] for text in named] == [
            "shard 0: a rule about pods",
            "shard 0: the number of pods of a group",
            "shard 0: the number of pods of a group",
            "shard 0: the list of a commit's pods",
            "shard 0: the list of a commit's pods",
            "shard 0: the number of pods of a prepared commit",
            "shard 0: the number of pods of a prepared commit",
        ]
        assert "(5 bytes): key {hoss:0}:rules, field 697473206b65792e; pods that bear it" in named[0]
        changes = list((await client.repair()).changes)
        assert "rules field 697473206b65792e is forgotten: 73686f7274" in changes
        assert f"commit {commit.decode()} has 2 pods and a damaged list of them: it would never end;" in str(
            changes
        )
        assert list((await client.audit()).violations) == []
        assert direct.keys("{hoss:0}:rules") == []
        assert direct.hget("{hoss:0}:meta", "rules") == direct.hget("{hoss:0}:meta", "seq"), (
            "all read them anew"
        )
        assert struct.unpack("<Q", direct.hget("{hoss:0}:meta", "floors"))[0] > 0
        assert not (await client.repair()).changes


async def test_a_shrunken_node_is_a_report(client):
    await place(client, 2, cpu=50)
    reply = await client.upsert_nodes([NodeSpec("a", allocatable=(("cpu", 60), ("pods", 5)))])
    assert list(reply.overcommitted) == ["a"]
    audit = await client.audit()
    assert list(audit.violations) == []
    assert list(audit.reports) == [
        "node a: cpu requested 100 > allocatable 60 since it shrank or others put pods there"
    ]
