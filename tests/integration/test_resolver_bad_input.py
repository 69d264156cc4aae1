"""What is malformed is refused by name and writes nothing, and what came with it or after it is served."""

import grpc
import numpy as np
import pytest
from integration.proposing import Stream, batch

from hoss.errors import InvalidInput
from hoss.model.node import NodeSpec
from hoss.v1 import common_pb2
from hoss.v1 import resolver_pb2 as pb
from hoss.wire.columns import NONE_U32, numbered_uids
from resolver.core.values import MAX_BATCH_PODS, Verdict

COMMITTED = bytes([Verdict.COMMITTED])
PORT_OUT_OF_RANGE = pb.PodGroup(host_ports=[common_pb2.HostPort(port=70_000)]).SerializeToString()
TOO_MANY = 100_001  # rows, where nothing else is configured
ONE_UID = numbered_uids(b"test-prefix-", 7, 1).tobytes()


def column(dtype, *values):
    return np.array(values, dtype).tobytes()


def requests(*, resources=6, **amounts):
    row = (
        dict.fromkeys(range(resources), 0)
        | {3: 1}
        | {int(place[1:]): amount for place, amount in amounts.items()}
    )
    return column("<i8", *row.values())


# Of a batch of one pod in one slot: what is wrong, and what is said of it.
WRONG_BATCHES = [
    # wrong length
    ({"uids": bytes(15)}, "uids: 15 bytes"),
    ({"slots": b"\1"}, "slots: 1 bytes"),
    ({"nodes": bytes(8)}, "nodes: 2 rows where 1 are expected"),
    ({"requests": bytes(40)}, "requests: 5 rows where 6 are expected"),
    ({"attempts": bytes(4)}, "attempts: 2 rows where 1 are expected"),
    ({"devices": bytes(2)}, "devices: 1 rows where 2 are expected"),
    ({"seen": bytes(4)}, "seen: 4 bytes"),
    ({"firsts": bytes(2)}, "firsts: 2 rows where 1 are expected"),
    ({"places": bytes(4)}, "places: 2 rows where 1 are expected"),
    ({"victim_uids": ONE_UID, "victim_counts": bytes(4)}, "victim_counts: 2 rows where 1 are expected"),
    ({"uids": b""}, "uids: 0 pods"),
    ({"priorities": b"", "attempts": b"", "requests": b""}, "slots: slot 0 where there are 0"),
    # bad index
    ({"slots": column("<u2", 1)}, "slots: slot 1 where there are 1"),
    ({"slot_groups": column("<u2", 1), "groups": [b""]}, "slot_groups: group 1 where there are 1"),
    ({"nodes": column("<u4", NONE_U32)}, "nodes: a pod has no first candidate"),
    ({"candidates": 0, "nodes": b""}, "candidates: 0 where a pod has 1 to 16"),
    ({"candidates": 17, "nodes": bytes(4 * 17)}, "candidates: 17 where a pod has 1 to 16"),
    (
        {"victim_uids": ONE_UID, "victim_counts": column("<u2", 2)},
        "victim_counts: 2 in all where there are 1",
    ),
    # amounts
    ({"requests": requests(_0=-1)}, "requests: -1 is not between 0 and 2^53"),
    ({"requests": requests(_1=2**53 + 1)}, "requests: 9007199254740993 is not between 0 and 2^53"),
    ({"requests": requests(_3=2)}, "requests: every pod counts as one of the resource pods"),
    ({"devices": column("<u2", 1, 1001)}, "devices: [1, 1001] where"),
    ({"devices": column("<u2", 17, 1000)}, "devices: [17, 1000] where"),
    # unknown resource, shard, worker, criteria
    ({"resources": 7, "requests": requests(resources=7)}, "resources: 7 where the schema has 6"),
    ({"resources": 3, "requests": column("<i8", 0, 0, 0)}, "resources: 3 where the schema has 6"),
    ({"shard": 7}, "shard: 7 where the ledger has shards 0 to 0"),
    ({"worker": "nobody"}, "worker: 'nobody' has never registered"),
    ({"worker": ""}, "worker: needs 1 to 253 bytes, has 0"),
    ({"worker": "w" * 254}, "worker: needs 1 to 253 bytes, has 254"),
    ({"criteria": 9}, "criteria: 9 is none of"),
    ({"epoch": 2**60}, "epoch, snapshot_seq, sending: the ledger counts to 2^53"),
    ({"unchecked": True}, "unchecked: this resolver validates every proposal"),
    ({"slot_groups": bytes(2), "groups": [b"\xff"]}, "groups: is no PodGroup message"),
    (
        {"slot_groups": bytes(2), "groups": [PORT_OUT_OF_RANGE]},
        "groups: 70000/TCP: ports go to 65535 and are of TCP, UDP or SCTP",
    ),
    # announcements
    ({"uids": b"", "groups": [b"\xff"]}, "groups: is no PodGroup message"),
    ({"uids": b"", "groups": [b""], "worker": ""}, "worker: needs 1 to 253 bytes, has 0"),
    ({"uids": b"", "groups": [b""] * (MAX_BATCH_PODS + 1)}, "groups: 1001 where a batch has up to 1000"),
    # too large for a script
    ({"uids": bytes(16 * (MAX_BATCH_PODS + 1))}, "uids: 1001 pods where a batch has 1 to 1000"),
    ({"priorities": bytes(4 * (MAX_BATCH_PODS + 1))}, "priorities, groups: 1001 slots"),
    (
        {
            "victim_uids": numbered_uids(b"test-prefix-", 0, 1001).tobytes(),
            "victim_counts": column("<u2", 1001),
        },
        "victim_uids: 1001 pods; up to 1000 are evicted",
    ),
    # what cannot be together
    ({"victim_uids": 2 * ONE_UID, "victim_counts": column("<u2", 2)}, "victim_uids: a pod is listed twice"),
    ({"gang_minimum": 2}, "gang_minimum: 2 of 1 pods"),
    ({"gang_minimum": 1, "displace_gap": 5}, "displace_gap: a gang, or a proposal"),
    ({"parts": [batch(1, [0])]}, "parts: has two parts on one shard"),
]


def wrong_batch(batch_id, wrong):
    good = {field.name: value for field, value in batch(batch_id, [0], first=5).ListFields()}
    return pb.ProposalBatch(**(good | wrong))


async def written(client):
    """All that a proposal could have changed."""
    chunks = [chunk.SerializeToString() async for chunk in client.reservations()]
    return list((await client.audit()).digests), chunks


async def test_a_bad_batch_is_told_why_and_writes_nothing_while_the_others_of_its_stream_commit(resolver):
    stream = Stream(resolver)
    for number, (wrong, said) in enumerate(WRONG_BATCHES):
        before = await written(resolver)
        answer = await stream.ask(wrong_batch(2 * number, wrong))
        assert said in answer.invalid, answer
        assert answer.batch_id == 2 * number
        assert set(answer.verdicts) <= {Verdict.STALE_EPOCH}
        assert await written(resolver) == before, wrong
        good = await stream.ask(batch(2 * number + 1, [number % 4], first=100 + number, cpu=1))
        assert good.verdicts in (COMMITTED, bytes([Verdict.CONFLICT_RESOURCE]))
    assert (await resolver.status()).counters["invalid"] == len(WRONG_BATCHES)
    assert list((await resolver.audit()).violations) == []


async def test_a_node_that_was_never_registered_is_refused_and_the_rest_of_the_batch_commits(resolver):
    answer = await Stream(resolver).ask(batch(1, [0, 99, 1]))
    assert answer.verdicts == bytes([Verdict.COMMITTED, Verdict.NODE_GONE, Verdict.COMMITTED])


async def test_an_epoch_that_is_over_is_no_bad_input_and_an_unknown_worker_is_told_to_register_all_the_same(
    resolver,
):
    stream = Stream(resolver)
    stale = await stream.ask(batch(1, [0], epoch=99))
    unknown = await stream.ask(batch(2, [0], worker="nobody"))
    assert (stale.verdicts, stale.invalid) == (bytes([Verdict.STALE_EPOCH]), "")
    assert unknown.verdicts == bytes([Verdict.STALE_EPOCH])
    assert unknown.invalid


def amount(resource, value):
    return common_pb2.NodeSpec(name="n9", allocatable=[common_pb2.Amount(resource=resource, amount=value)])


WRONG_CALLS = [
    ("GrantEpoch", pb.GrantEpochRequest(), "worker: needs 1 to 253 bytes, has 0"),
    ("GrantEpoch", pb.GrantEpochRequest(worker="w" * 254), "worker: needs 1 to 253 bytes, has 254"),
    ("Lookup", pb.LookupRequest(uids=bytes(17)), "uids: 17 bytes"),
    ("Release", pb.ReleaseRequest(uids=bytes(15)), "uids: 15 bytes"),
    ("Release", pb.ReleaseRequest(uids=ONE_UID, nodes=bytes(8)), "nodes: 2 rows where 1 are expected"),
    ("CordonNode", pb.CordonNodeRequest(name="nowhere"), "there is no node 'nowhere'"),
    ("UpsertNodes", pb.UpsertNodesRequest(nodes=[common_pb2.NodeSpec()]), "nodes: a node has no name"),
    (
        "UpsertNodes",
        pb.UpsertNodesRequest(nodes=[amount("cpu", -1)]),
        "node 'n9' cpu: -1 is not between 0 and 2^53",
    ),
    (
        "UpsertNodes",
        pb.UpsertNodesRequest(nodes=[amount("", 1)]),
        "node 'n9': offers a resource without a name",
    ),
    (
        "UpsertNodes",
        pb.UpsertNodesRequest(
            nodes=[
                common_pb2.NodeSpec(name="n9", labels=[common_pb2.Label(key="zone", value=v) for v in "ab"])
            ]
        ),
        "node 'n9' labels: the label 'zone' is named twice",
    ),
    ("ListNodes", pb.ListNodesRequest(label_selector="a b c"), "label_selector"),
    ("Lookup", pb.LookupRequest(uids=bytes(16 * TOO_MANY)), f"uids: {TOO_MANY} rows; max_request_rows"),
    ("Release", pb.ReleaseRequest(uids=bytes(16 * TOO_MANY)), f"uids: {TOO_MANY} rows; max_request_rows"),
    (
        "Confirm",
        pb.ConfirmRequest(
            commits=[pb.ShardCommits(shard=0, seqs=bytes(8 * count)) for count in (TOO_MANY - 1, 1)]
        ),
        f"commits: {TOO_MANY} rows; max_request_rows",
    ),
    (
        "RemoveNodes",
        pb.RemoveNodesRequest(names=["n"] * TOO_MANY),
        f"names: {TOO_MANY} rows; max_request_rows",
    ),
    (
        "UpsertNodes",
        pb.UpsertNodesRequest(nodes=[common_pb2.NodeSpec()] * TOO_MANY),
        f"nodes: {TOO_MANY} rows; max_request_rows",
    ),
]


async def test_a_bad_call_is_refused_with_the_field_and_writes_nothing(resolver):
    for method, request, said in WRONG_CALLS:
        before = await written(resolver)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await getattr(resolver.stub, method)(request)
        wanted = grpc.StatusCode.NOT_FOUND if method == "CordonNode" else grpc.StatusCode.INVALID_ARGUMENT
        assert (refused.value.code(), said in refused.value.details()) == (wanted, True), refused.value
        assert await written(resolver) == before


async def test_of_commits_to_confirm_none_is_where_one_names_an_unknown_shard(resolver):
    answer = await Stream(resolver).ask(batch(1, [0]))
    good = pb.ShardCommits(shard=0, seqs=column("<u8", answer.seq))
    for bad, said in (
        (pb.ShardCommits(shard=3, seqs=bytes(8)), "shard: 3 where the ledger has shards 0 to 0"),
        (pb.ShardCommits(shard=0, seqs=bytes(7)), "seqs: 7 bytes"),
    ):
        with pytest.raises(grpc.aio.AioRpcError, match=said):
            await resolver.stub.Confirm(pb.ConfirmRequest(commits=[good, bad]))
    [chunk] = [chunk async for chunk in resolver.reservations()]
    assert chunk.assumed == b"\1"


async def test_streams_of_a_shard_that_there_is_not_are_refused(resolver):
    with pytest.raises(grpc.aio.AioRpcError, match="shard: 9 where the ledger has shards 0 to 0"):
        await resolver.stub.ListReservations(pb.ListReservationsRequest(shard=9)).read()
    snapshot = await resolver.stub.Feed(pb.FeedRequest(subscriber="w1")).read()
    resuming = pb.FeedRequest(
        subscriber="w1", ledger_epoch=snapshot.ledger_epoch, resume=[pb.ShardPosition(shard=9, seq=1)]
    )
    with pytest.raises(grpc.aio.AioRpcError, match="shard: 9 where the ledger has shards 0 to 0"):
        await resolver.stub.Feed(resuming).read()


async def test_bad_nodes_are_refused_whole(resolver):
    good = NodeSpec("fine", allocatable=(("pods", 1),))
    with pytest.raises(InvalidInput, match="'big' memory"):
        await resolver.upsert_nodes([good, NodeSpec("big", allocatable=(("memory", 2**53 + 1),))])
    with pytest.raises(InvalidInput, match="named twice"):
        await resolver.upsert_nodes([good, good])
    many = [NodeSpec(f"fine-{number}", allocatable=(("pods", 1),)) for number in range(2000)]
    with pytest.raises(InvalidInput, match="named twice"):
        await resolver.upsert_nodes([*many, many[0]])
    assert await resolver.list_nodes(["fine", *(node.name for node in many)]) == []
