"""Whatever clients and workers send to a real dispatcher and a real resolver is answered, or refused by a
status that says why. A refused call changes nothing, and the services live on."""

import asyncio
import contextlib
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import grpc
import grpc.aio
import orjson
import pytest
import redis
from fuzz.inputs import LONGEST_ERROR, QUICK, MessageMaker, damaged, damaged_bytes
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message_factory import GetMessageClass
from integration.proposing import NODES, batch
from waiting import DEADLINE_SECONDS, until

import dispatcher.__main__
import resolver.__main__
from dispatcher.config import DispatcherConfig
from dispatcher.policy.documents import DEFAULT_YAML
from hoss.client.dispatcher import DispatcherClient
from hoss.client.resolver import ResolverClient
from hoss.host import Host
from hoss.v1 import common_pb2, dispatcher_pb2, objects_pb2, resolver_pb2, workerlink_pb2
from hoss.wire.columns import numbered_uids
from hoss.wire.convert import node_to_proto
from resolver.config import ResolverConfig

Code = grpc.StatusCode
# How a service may refuse. gRPC itself answers INTERNAL to bytes that are no message.
REFUSALS = {
    *(Code.INVALID_ARGUMENT, Code.NOT_FOUND, Code.ALREADY_EXISTS, Code.FAILED_PRECONDITION,
        Code.OUT_OF_RANGE),
    *(Code.RESOURCE_EXHAUSTED, Code.UNAVAILABLE, Code.INTERNAL),
}  # fmt: skip
INPUTS = 400 if QUICK else 5_000
FIRST_SEED = int.from_bytes(os.urandom(4), "little") if os.environ.get("HOSS_TESTS") == "soak" else 0
STREAM_SECONDS = 0.03  # for which an endless stream is read

UIDS = numbered_uids(b"test-prefix-", 0, 3)
COLUMNS = (
    *(UIDS.tobytes(), UIDS[0].tobytes(), bytes(16), (2).to_bytes(8, "little"), bytes(4), bytes(8),
        b"\xff" * 4),
    batch(1, [0]).requests,
)  # fmt: skip
TEXTS = (
    "web",
    "web-0",
    "web-1",
    "lone",
    "default",
    "w1",
    "n0",
    "n1",
    "cpu",
    "memory",
    "pods",
    "app=web",
    "Ready",
    "auto",
)


class HostUntilStopped(Host):
    """This machine; `stopped` ends the service."""

    def __init__(self) -> None:
        super().__init__()
        self.stopped = asyncio.Event()

    async def until_stopped(self) -> None:
        await self.stopped.wait()


@contextlib.asynccontextmanager
async def serving(
    serve: Callable[[Path, Host], Coroutine[None, None, None]], ready: Path
) -> AsyncIterator[tuple[str, "asyncio.Task[None]"]]:
    """A service in this process: its address, and its task."""
    host = HostUntilStopped()
    running = asyncio.create_task(serve(ready, host))
    try:
        await until(lambda: ready.exists() or running.done(), ready.name)
        if running.done():
            running.result()
        yield f"127.0.0.1:{orjson.loads(ready.read_bytes())['port']}", running  # noqa: ASYNC240
    finally:
        host.stopped.set()
        await running


@dataclass
class Target:
    """A service that gets whatever a seed makes."""

    address: str
    service: Any  # its descriptor
    valid: dict[str, Any]  # requests that do something, by method
    state: Callable[[], Coroutine[Any, Any, Any]]
    running: "asyncio.Task[None]"
    answers: Counter[tuple[str, Code]] = field(default_factory=Counter)

    async def attack(self, methods: list[MethodDescriptor], count: int) -> None:
        """Send so many inputs to these methods, and check every answer and the state after each refusal."""
        async with grpc.aio.insecure_channel(self.address) as channel:
            before = await self.state()
            for seed in range(FIRST_SEED, FIRST_SEED + count):
                rng = Random(seed)
                method = rng.choice(methods)
                requests = [self._request(rng, method) for _ in range(rng.randint(1, 3))]
                code, details, replies = await _call(channel, method, requests)
                said = f"seed {seed}, {method.name}: {code.name}: {details[:300]}"
                self.answers[method.name, code] += 1
                assert code is Code.OK or code in REFUSALS, said
                assert code is Code.OK or 0 < len(details) <= LONGEST_ERROR, said
                assert not self.running.done(), said
                changes = not method.name.startswith(_READING)
                if changes and code is not Code.OK and not replies:
                    assert await self.state() == before, f"changed something: {said}"
                elif changes:
                    before = await self.state()

    def _request(self, rng: Random, method: MethodDescriptor) -> bytes:
        make = MessageMaker(rng, TEXTS, COLUMNS)
        message = GetMessageClass(method.input_type)()
        if rng.random() < 0.25:
            make.fill(message)
        else:
            message.CopyFrom(rng.choice(self.valid.get(method.name, [message])))
            for _ in range(rng.randrange(3)):
                make.damage(message)
        _without_fences(message)
        data = message.SerializeToString()
        return damaged_bytes(rng, data) if rng.random() < 0.15 else data


_READING = ("Get", "List", "Lookup", "Watch", "Feed", "Test", "Audit", "Dump")


def _without_fences(message: Any) -> None:
    """A call under the highest term fences every dispatcher; that its sender may do so is another matter."""
    for name in ("term", "dispatcher_term"):
        if name in message.DESCRIPTOR.fields_by_name:
            message.ClearField(name)


async def _call(
    channel: grpc.aio.Channel, method: MethodDescriptor, requests: list[bytes]
) -> tuple[Code, str, list[bytes]]:
    path = f"/{method.containing_service.full_name}/{method.name}"
    replies: list[bytes] = []
    endless = method.server_streaming and method.name not in ("ListReservations", "DumpLedger")
    try:
        if not method.client_streaming and not method.server_streaming:
            return Code.OK, "", [await channel.unary_unary(path)(requests[0], timeout=DEADLINE_SECONDS)]
        if method.client_streaming and not method.server_streaming:
            return Code.OK, "", [await channel.stream_unary(path)(iter(requests), timeout=DEADLINE_SECONDS)]
        limit = STREAM_SECONDS if endless and not method.client_streaming else DEADLINE_SECONDS
        if method.client_streaming:
            call = channel.stream_stream(path)(iter(requests), timeout=limit)
        else:
            call = channel.unary_stream(path)(requests[0], timeout=limit)
        async for reply in call:
            replies.append(reply)  # noqa: PERF401
        return await call.code(), await call.details(), replies
    except grpc.aio.AioRpcError as exc:
        if exc.code() is Code.DEADLINE_EXCEEDED and endless and not method.client_streaming:
            return Code.OK, "", replies
        return exc.code(), exc.details() or "", replies


@pytest.fixture
async def a_resolver(redis_server, tmp_path):
    """A resolver with nodes, a worker and a pod."""

    with redis.Redis.from_url(redis_server.url) as direct:
        direct.set("{hoss}:epochs", 0)  # the batches are of epoch 1

    def serve(ready, host):
        config = ResolverConfig(
            listen="127.0.0.1:0", redis_url=redis_server.url, reservation_lease_seconds=600
        )
        return resolver.__main__.serve(config, ready, host=host)

    async with serving(serve, tmp_path / "resolver.json") as (address, running):
        client = ResolverClient([address])
        await client.upsert_nodes(NODES)
        await client.grant_epoch("w1")
        dumped = [part async for part in client.dump()]
        pb = resolver_pb2
        valid = {
            "Propose": [batch(1, [0]), batch(2, [1, 2], first=5)],
            "UpsertNodes": [pb.UpsertNodesRequest(nodes=map(node_to_proto, NODES[:2]))],
            "RemoveNodes": [pb.RemoveNodesRequest(names=["n3"])],
            "CordonNode": [pb.CordonNodeRequest(name="n1", unschedulable=True)],
            "ListNodes": [pb.ListNodesRequest(label_selector="app=web")],
            "GrantEpoch": [pb.GrantEpochRequest(worker="w1")],
            "Lookup": [pb.LookupRequest(uids=UIDS.tobytes())],
            "Confirm": [
                pb.ConfirmRequest(commits=[pb.ShardCommits(shard=0, seqs=(2).to_bytes(8, "little"))])
            ],
            "Release": [pb.ReleaseRequest(uids=UIDS.tobytes(), nodes=bytes(12))],
            "Rebuild": dumped,
        }

        async def state():
            return [
                line
                for part in [part async for part in client.dump()]
                for line in (part.head.schema[:],
                    [n.SerializeToString(deterministic=True) for n in part.nodes],
                             sorted(part.pods.uids[i : i + 16] for i in range(0, len(part.pods.uids), 16)))
            ]  # fmt: skip

        service = pb.DESCRIPTOR.services_by_name["Resolver"]
        yield Target(address, service, valid, state, running)
        assert (await client.audit()).violations == []
        await client.close()


@pytest.fixture
async def a_dispatcher(redis_server, start_resolver, tmp_path):
    """A dispatcher with a job, pods and objects, and without workers."""
    ledger = start_resolver(redis_server.url)

    def serve(ready, host):
        config = DispatcherConfig(listen="127.0.0.1:0", redis_url=redis_server.url, resolvers=(ledger,))
        return dispatcher.__main__.serve(config, ready, host=host)

    async with serving(serve, tmp_path / "dispatcher.json") as (address, running):
        client = DispatcherClient([address])
        pb = dispatcher_pb2
        spec = common_pb2.PodSpec(
            namespace="default", requests=[common_pb2.Amount(resource="cpu", amount=100)]
        )
        template = pb.PodTemplate(spec=spec, scheduler_name="hoss", owner_kind="Job")
        lone = pb.PodList(names=["lone"], templates=bytes(4), uids=UIDS[0].tobytes())
        submit = pb.SubmitRequest(
            request_id="r1", templates=[template], jobs=[pb.Job(name="web", replicas=3)], pods=lone,
            gangs=[pb.Gang(namespace="default", name="g", min_available=1)],
        )  # fmt: skip
        submit.pods.gangs = (1).to_bytes(4, "little")
        objects = [
            objects_pb2.ClusterObject(namespace=objects_pb2.Namespace(name="default")),
            objects_pb2.ClusterObject(
                priority_class=objects_pb2.PriorityClass(name="high", value=1000),
            ),
        ]
        await client.stub.Submit(submit)
        valid = {
            "Submit": [submit],
            "SubmitStream": [submit],
            "GetPod": [pb.GetPodRequest(namespace="default", name="web-1", queue=True, steps=True)],
            "ListPods": [pb.ListPodsRequest(namespace="default", label_selector="app=web", limit=2)],
            "Delete": [pb.DeleteRequest(namespace="default", pods=["web-0"])],
            "RemoveGates": [pb.RemoveGatesRequest(namespace="default", jobs=["web"])],
            "Retry": [pb.RetryRequest(namespace="default", jobs=["web"])],
            "ApplyObjects": [pb.ApplyObjectsRequest(objects=objects)],
            "DeleteObjects": [
                pb.DeleteObjectsRequest(objects=[pb.ObjectRef(kind="PriorityClass", name="high")])
            ],
            "SetWorkerState": [pb.SetWorkerStateRequest(name="w1", state="Cordoned")],
            "SetPolicy": [pb.Policy(yaml=damaged(Random(n), (DEFAULT_YAML,))) for n in range(20)],
            "TestPolicy": [pb.TestPolicyRequest(templates=[template], yaml=DEFAULT_YAML)],
            "Steer": [pb.SteerRequest(overlap="shared", workers="3")],
        }

        async def state():
            jobs = await client.stub.ListJobs(pb.ListJobsRequest())
            pods = await client.stub.ListPods(pb.ListPodsRequest(limit=10_000))
            listed = await client.stub.ListObjects(pb.ListObjectsRequest())
            policy = await client.stub.GetPolicy(pb.GetPolicyRequest())
            return (
                [(j.namespace, j.name, j.replicas, j.deleted) for j in jobs.jobs if j.deleted < j.replicas],
                sorted((p.uid, p.name, p.phase) for p in pods.pods if p.phase != pb.DELETED),
                [o.SerializeToString(deterministic=True) for o in listed.objects],
                (policy.yaml, policy.version),
            )

        yield Target(address, pb.DESCRIPTOR.services_by_name["Dispatcher"], valid, state, running)
        await client.close()


def _of(target: Target, *, streams: bool) -> list[MethodDescriptor]:
    return [m for m in target.service.methods if (m.server_streaming or m.client_streaming) is streams]


async def test_a_resolver_answers_or_refuses_any_call(a_resolver):
    await a_resolver.attack(_of(a_resolver, streams=False), INPUTS)
    refused = {method for method, code in a_resolver.answers if code in REFUSALS}
    assert refused >= {"UpsertNodes", "Lookup", "Confirm", "Release", "GrantEpoch", "CordonNode"}


async def test_a_resolver_answers_or_refuses_any_stream(a_resolver):
    await a_resolver.attack(_of(a_resolver, streams=True), INPUTS // 8)
    assert a_resolver.answers["Rebuild", Code.INVALID_ARGUMENT]


async def test_a_dispatcher_answers_or_refuses_any_call(a_dispatcher):
    await a_dispatcher.attack(_of(a_dispatcher, streams=False), INPUTS)
    refused = {method for method, code in a_dispatcher.answers if code in REFUSALS}
    assert refused >= {"Submit", "Delete", "SetPolicy", "ApplyObjects", "SetWorkerState", "Steer"}


async def test_a_dispatcher_answers_or_refuses_any_stream(a_dispatcher):
    await a_dispatcher.attack(_of(a_dispatcher, streams=True), INPUTS // 8)
    assert a_dispatcher.answers["SubmitStream", Code.INVALID_ARGUMENT]


async def test_a_dispatcher_lives_on_whatever_workers_send(a_dispatcher):
    wl = workerlink_pb2
    register = wl.WorkerMessage(
        register=wl.Register(name="w1", window=100, incarnation=1)
    ).SerializeToString()
    outcomes = wl.Outcomes(
        batch_id=1, positions=bytes(4), codes=b"\1", nodes=bytes(4), commits=[wl.CommitRef(shard=0, seq=1)]
    )
    valid = [
        wl.WorkerMessage(heartbeat=wl.Heartbeat(ready=True, micros_per_pod=5)),
        wl.WorkerMessage(outcomes=outcomes),
        wl.WorkerMessage(leave=wl.Leave()),
        wl.WorkerMessage(preemption=wl.PreemptionQuestion(id=1, priority=5, nodes=bytes(8), limit=3)),
        wl.WorkerMessage(decisions=wl.DecisionAnswer(id=1)),
        wl.WorkerMessage(view=wl.CacheView(id=1)),
    ]
    codes: Counter[Code] = Counter()
    async with grpc.aio.insecure_channel(a_dispatcher.address) as channel:
        connect = channel.stream_stream("/hoss.v1.WorkerLink/Connect")
        for seed in range(FIRST_SEED, FIRST_SEED + INPUTS // 8):
            rng = Random(seed)
            make = MessageMaker(rng, TEXTS, COLUMNS)
            sent = [register] if rng.random() < 0.8 else []
            for _ in range(rng.randint(1, 6)):
                message = wl.WorkerMessage()
                message.CopyFrom(rng.choice(valid))
                for _ in range(rng.randint(0, 2)):
                    make.damage(message)
                data = message.SerializeToString()
                sent.append(damaged_bytes(rng, data) if rng.random() < 0.05 else data)
            call = connect(iter(sent), timeout=DEADLINE_SECONDS)
            try:
                async for _ in call:
                    pass
            except grpc.aio.AioRpcError:
                pass
            codes[await call.code()] += 1
            said = f"seed {seed}: {await call.code()}: {await call.details()}"
            assert await call.code() in {Code.OK, Code.ABORTED, *REFUSALS}, said
            assert not a_dispatcher.running.done(), said
            assert await a_dispatcher.state(), said
    assert codes[Code.INVALID_ARGUMENT]
    assert codes[Code.OK]
