"""Proposals over real gRPC against a real Redis, in good weather and in bad."""

import os
import signal

import numpy as np
import pytest
import redis
from fork_server import FORK_SERVER
from grpc_health.v1 import health_pb2, health_pb2_grpc
from integration.proposing import NODES, Stream, batch
from waiting import DEADLINE_SECONDS, until

from hoss.client.resolver import ResolverClient
from hoss.errors import InvalidInput, NotFound
from hoss.model.node import NodeSpec
from hoss.model.resources import CPU
from hoss.v1 import resolver_pb2 as pb
from hoss.wire.columns import numbered_uids
from hoss.wire.pages import PAGE_ENTRIES
from hossctl.local.redis_server import RedisServer
from resolver.core.values import CONFLICT, Verdict


def decided(answer):
    return not answer.unavailable


async def test_a_batch_is_committed_confirmed_looked_up_and_released(resolver):
    answer = await Stream(resolver).ask(batch(7, [0, 1]))
    assert (answer.batch_id, answer.verdicts) == (7, bytes([Verdict.COMMITTED] * 2))
    uids = numbered_uids(b"test-prefix-", 0, 3)
    assert await resolver.confirm({0: np.array([answer.seq], np.uint64)}) == 1
    assert (await resolver.lookup(uids)).nodes.tolist() == [0, 1, 0xFFFFFFFF]
    chunks = [chunk async for chunk in resolver.reservations()]
    assert sorted(np.frombuffer(chunks[0].nodes, "<u4").tolist()) == [0, 1]
    assert chunks[0].assumed == b"\0\0"
    assert sorted(name.name for name in chunks[0].node_names) == ["n0", "n1"]
    assert (await resolver.release(uids)).released == 2
    assert (await resolver.status()).reservations == 0


async def test_refused_pods_come_with_their_evidence_in_one_column(resolver):
    await (stream := Stream(resolver)).ask(batch(1, [0], cpu=900))
    answer = await stream.ask(batch(2, [0, 1, 0], cpu=200, first=5))
    evidence = np.frombuffer(answer.evidence, CONFLICT)
    assert evidence.tolist() == [(0, 0, CPU, 200, 100), (2, 0, CPU, 200, 100)]


async def test_an_unconfirmed_pod_goes_for_a_much_more_urgent_one_over_the_wire(resolver):
    stream = Stream(resolver)
    await stream.ask(batch(1, [0], cpu=1000))
    urgent = {"priorities": np.array([1000], "<i4").tobytes(), "first": 5}
    assert (await stream.ask(batch(2, [0], cpu=1000, **urgent))).verdicts == bytes(
        [Verdict.CONFLICT_RESOURCE]
    )
    answer = await stream.ask(batch(3, [0], cpu=1000, displace_gap=100, **urgent))
    assert answer.verdicts == bytes([Verdict.DUPLICATE])
    assert (await resolver.lookup(numbered_uids(b"test-prefix-", 0, 6))).nodes.tolist() == [
        0xFFFFFFFF
    ] * 5 + [0]
    assert (await resolver.status()).counters["displaced"] == 1


async def test_invariant_2_a_resend_to_another_resolver_finds_the_commit_that_stands(
    resolver, redis_server, start_resolver
):
    first = await Stream(resolver).ask(batch(1, [0, 1]))
    other = ResolverClient([start_resolver(redis_server.url)])
    again = await Stream(other).ask(batch(1, [0, 1]))
    assert again.verdicts == bytes([Verdict.DUPLICATE] * 2)
    assert np.frombuffer(again.duplicate_seqs, "<u8").tolist() == [first.seq] * 2
    await other.close()


async def test_an_old_copy_is_answered_unavailable_whichever_resolver_held_it(
    resolver, redis_server, start_resolver
):
    other = Stream(ResolverClient([start_resolver(redis_server.url)]))
    await Stream(resolver).ask(batch(1, [0], cpu=1000))
    refused = await Stream(resolver).ask(batch(2, [0], cpu=200, first=5, sending=1))
    assert refused.verdicts == bytes([Verdict.CONFLICT_RESOURCE])
    late = await other.ask(batch(2, [0], cpu=0, first=5))
    assert (late.verdicts, late.seq) == (b"", 0)
    assert "sent something again" in late.unavailable
    assert (await resolver.status()).reservations == 1


async def test_many_batches_under_way_at_once_are_all_answered(resolver):
    call = resolver.stub.Propose()
    for i in range(200):
        await call.write(batch(i, [i % 4], first=i))
    await call.done_writing()
    answers = [answer async for answer in call]
    assert sorted(answer.batch_id for answer in answers) == list(range(200))
    assert sum(answer.verdicts == bytes([Verdict.COMMITTED]) for answer in answers) == 40  # ten to a node
    assert list((await resolver.audit()).violations) == []


async def test_without_confirmation_a_reservation_ends_with_its_lease(redis_server, start_resolver):
    client = ResolverClient([start_resolver(redis_server.url, "--reservation-lease-seconds", "4")])
    await client.upsert_nodes(NODES)
    await client.grant_epoch("w1")
    stream = Stream(client)
    kept = await stream.ask(batch(1, [0]))
    assert await client.confirm({0: np.array([kept.seq], np.uint64)}) == 1
    await stream.ask(batch(2, [1], first=1))

    async def ended():
        return (await client.status()).counters["reaped"] == 1

    await until(ended)
    assert (await client.lookup(numbered_uids(b"test-prefix-", 0, 2))).nodes.tolist() == [0, 0xFFFFFFFF]
    await client.close()


async def test_redis_away_refuses_as_unavailable_and_all_resumes_when_it_is_back(
    own_redis, start_resolver, tmp_path
):
    address = start_resolver(own_redis.url, "--reservation-lease-seconds", "600")
    client = ResolverClient([address])
    await client.upsert_nodes(NODES)
    await client.grant_epoch("w1")
    stream = Stream(client)
    assert (await stream.ask(batch(1, [0]))).verdicts == bytes([Verdict.COMMITTED])
    own_redis.stop()
    away = await stream.ask(batch(2, [1], first=1))
    assert away.unavailable
    assert away.retry_after_ms > 0
    assert away.verdicts == b""
    await until(lambda: serving_is(client, wanted=False))
    assert (await client.status()).problem
    back = RedisServer.start(tmp_path / "redis", port=own_redis.port, append_only=True)
    try:
        answer = await stream.ask_until(batch(2, [1], first=1), decided)
        assert answer.verdicts == bytes([Verdict.COMMITTED])
        assert (await stream.ask(batch(1, [0]))).verdicts == bytes([Verdict.DUPLICATE])
        await until(lambda: serving_is(client, wanted=True))
        assert list((await client.audit()).violations) == []
    finally:
        back.kill()
        await client.close()


async def serving_is(client, *, wanted):
    answer = await health_pb2_grpc.HealthStub(client._channel).Check(health_pb2.HealthCheckRequest())
    return (answer.status == health_pb2.HealthCheckResponse.SERVING) == wanted


async def test_a_frozen_redis_that_commits_late_commits_once(own_redis, start_resolver):
    client = ResolverClient([start_resolver(own_redis.url, "--reservation-lease-seconds", "600")])
    await client.upsert_nodes(NODES)
    await client.grant_epoch("w1")
    stream = Stream(client)
    os.kill(own_redis.pid, signal.SIGSTOP)
    try:
        assert (await stream.ask(batch(1, [0, 1]))).unavailable
    finally:
        os.kill(own_redis.pid, signal.SIGCONT)
    answer = await stream.ask_until(batch(1, [0, 1]), decided)
    assert set(answer.verdicts) <= {Verdict.COMMITTED, Verdict.DUPLICATE}
    assert (await client.status()).reservations == 2
    assert list((await client.audit()).violations) == []
    await client.close()


async def test_a_redis_that_comes_back_empty_is_refused_and_said_so(own_redis, start_resolver, tmp_path):
    client = ResolverClient([start_resolver(own_redis.url)])
    await client.upsert_nodes(NODES)
    await client.grant_epoch("w1")
    own_redis.stop()
    empty = RedisServer.start(tmp_path / "other", port=own_redis.port)
    try:
        stream = Stream(client)
        answer = await stream.ask_until(batch(1, [0]), lambda answer: "empty" in answer.unavailable)
        assert "is to be rebuilt" in answer.unavailable
        assert not (await client.status()).serving
    finally:
        empty.kill()
        await client.close()


def test_a_resolver_with_another_number_of_shards_refuses_to_start_and_names_both(
    redis_server, start_resolver
):
    start_resolver(redis_server.url, "--shards", "2")
    flags = ["--listen", "127.0.0.1:0", "--redis-url", redis_server.url, "--shards", "3"]
    refused = FORK_SERVER.run("resolver", flags, timeout=DEADLINE_SECONDS)
    assert refused.returncode == 2
    assert "shards: is 3" in refused.stderr
    assert "made with 2" in refused.stderr


async def test_a_lost_script_cache_is_not_noticed(resolver, redis_server):
    with redis.Redis(port=redis_server.port) as client:
        client.script_flush()
    assert (await Stream(resolver).ask(batch(1, [0]))).verdicts == bytes([Verdict.COMMITTED])


async def test_nodes_are_listed_by_name_and_label_with_what_is_requested(resolver):
    await resolver.upsert_nodes(
        [NodeSpec("n9", labels=(("zone", "a"),), allocatable=(("cpu", 5), ("pods", 1)))]
    )
    await Stream(resolver).ask(batch(1, [2], cpu=250))
    assert [node.spec.name for node in await resolver.list_nodes(label_selector="zone=a")] == ["n9"]
    [node] = await resolver.list_nodes(["n2"])
    assert {amount.resource: amount.amount for amount in node.requested} == {"cpu": 250, "pods": 1}
    with pytest.raises(InvalidInput, match="label_selector"):
        await resolver.list_nodes(label_selector="a b c")


async def test_nodes_come_in_pages_by_name_and_the_client_reads_on(resolver):
    names = [f"m{number:04}" for number in range(PAGE_ENTRIES + 300)]
    await resolver.upsert_nodes([NodeSpec(name, labels=(("odd", str(int(name[1:]) % 2)),)) for name in names])
    assert [node.spec.name for node in await resolver.list_nodes()] == sorted(
        [*names, "n0", "n1", "n2", "n3"]
    )
    odd = await resolver.list_nodes(label_selector="odd=1")
    assert [node.spec.name for node in odd] == names[1::2]
    request = pb.ListNodesRequest(names=["n2", "m0001", "nobody", "n0"], limit=2)
    first = await resolver.stub.ListNodes(request)
    assert [node.spec.name for node in first.nodes] == ["m0001", "n0"]
    request.page_token = first.next_page_token
    last = await resolver.stub.ListNodes(request)
    assert ([node.spec.name for node in last.nodes], last.next_page_token) == (["n2"], "")


async def test_cordon_closes_a_node_and_names_one_that_is_not_there(resolver):
    assert (await resolver.cordon_node("n1", True)).node.unschedulable
    stream = Stream(resolver)
    assert (await stream.ask(batch(1, [1]))).verdicts == bytes([Verdict.NODE_UNSCHEDULABLE])
    await resolver.cordon_node("n1", False)
    assert (await stream.ask(batch(2, [1]))).verdicts == bytes([Verdict.COMMITTED])
    with pytest.raises(NotFound, match="nowhere"):
        await resolver.cordon_node("nowhere", True)
