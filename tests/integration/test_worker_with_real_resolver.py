"""A worker process and a resolver process over a real Redis; the dispatcher is played by the test."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import orjson
import pytest
from fork_server import FORK_SERVER, ForkedProcess
from waiting import DEADLINE_SECONDS, until

from hoss import serving
from hoss.client.resolver import ResolverClient
from hoss.model.node import NodeSpec
from hoss.model.pod import DeviceRequest, PodAffinity, PodAffinityTerm, PodSpec, SpreadConstraint
from hoss.model.selectors import LabelSelector, Requirement
from hoss.v1 import workerlink_pb2 as pb
from hoss.v1.workerlink_pb2_grpc import WorkerLinkServicer, add_WorkerLinkServicer_to_server
from hoss.wire.columns import U8, U16, U32, decode, encode, numbered_uids
from hoss.wire.convert import pod_spec_to_proto

BOUND, UNSCHEDULABLE, RETURNED = pb.OUTCOME_BOUND, pb.OUTCOME_UNSCHEDULABLE, pb.OUTCOME_RETURNED
GIB = 2**30
HOSTNAME = "kubernetes.io/hostname"
WEB = LabelSelector((Requirement("app", "In", ("web",)),))


class PlayedDispatcher(WorkerLinkServicer):
    """Grants epochs and hands out what the test says."""

    def __init__(self, resolver):
        self.resolver = resolver
        self.registrations = []
        self.epoch = 0
        self.inbox = asyncio.Queue()  # messages of the worker, heartbeats left out
        self.outbox = asyncio.Queue()
        self.batches = 0

    async def Connect(self, request_iterator, context):  # noqa: N802 - gRPC's name
        self.outbox = asyncio.Queue()
        reader = asyncio.create_task(self._read(request_iterator))
        try:
            while (message := await self.outbox.get()) is not None:
                yield message
        finally:
            reader.cancel()

    async def _read(self, requests):
        async for message in requests:
            if message.HasField("register"):
                self.epoch = await self.resolver.grant_epoch(message.register.name)
                self.outbox.put_nowait(
                    pb.DispatcherMessage(welcome=pb.Welcome(epoch=self.epoch, heartbeat_ms=100))
                )
                self.registrations.append(message.register)
            elif not message.HasField("heartbeat"):
                self.inbox.put_nowait(message)
        self.outbox.put_nowait(None)

    def submit(self, *runs, first=0):
        """Send a work batch of (spec, count) runs; its UIDs."""
        self.batches += 1
        total = sum(count for _, count in runs)
        uids = numbered_uids(b"twelve bytes", first, total)
        classes = [pb.ClassDefinition(id=i, spec=pod_spec_to_proto(spec)) for i, (spec, _) in enumerate(runs)]
        self.outbox.put_nowait(
            pb.DispatcherMessage(
                work=pb.WorkBatch(
                    batch_id=self.batches,
                    classes=classes,
                    run_classes=encode(range(len(runs)), U32),
                    run_counts=encode([count for _, count in runs], U32),
                    run_attempts=encode([0] * len(runs), U16),
                    uids=uids.tobytes(),
                )
            )
        )
        return uids

    async def outcomes(self, pods, *, after_first=lambda: None):
        """(codes, nodes, reason texts, commits) by position once all `pods` are answered for."""
        codes, nodes = np.zeros(pods, np.uint8), np.full(pods, 0xFFFFFFFF, np.uint32)
        texts, commits, seen = set(), set(), 0
        while seen < pods:
            message = (await asyncio.wait_for(self.inbox.get(), DEADLINE_SECONDS)).outcomes
            if not seen:
                after_first()
            positions = decode(message.positions, U32, name="positions")
            codes[positions] = decode(message.codes, U8, name="codes")
            nodes[positions] = decode(message.nodes, U32, name="nodes")
            texts.update(message.reason_texts)
            commits.update((c.shard, c.seq) for c in message.commits)
            seen += len(positions)
        return codes, nodes, texts, commits

    async def view(self):
        self.outbox.put_nowait(pb.DispatcherMessage(view=pb.ViewRequest(id=1)))
        return (await asyncio.wait_for(self.inbox.get(), DEADLINE_SECONDS)).view


@contextlib.asynccontextmanager
async def process(module: str, *flags: str, ready: Path) -> AsyncIterator[tuple[ForkedProcess, int]]:
    child = FORK_SERVER.start(module, ["--ready-file", str(ready), *flags])
    try:
        yield child, await until(lambda: ready.exists() and orjson.loads(ready.read_bytes())["port"])
    finally:
        child.terminate()
        assert await asyncio.to_thread(child.wait, DEADLINE_SECONDS) == 0


@pytest.fixture
async def resolver(redis_server, tmp_path):
    flags = ("--listen", "127.0.0.1:0", "--redis-url", redis_server.url)
    async with process("resolver", *flags, ready=tmp_path / "resolver.json") as (_, port):
        client = ResolverClient([f"127.0.0.1:{port}"])
        client.port = port
        yield client
        await client.close()


@pytest.fixture
async def dispatcher(resolver):
    played = PlayedDispatcher(resolver)
    server = serving.Server()
    add_WorkerLinkServicer_to_server(played, server.grpc)
    played.port = await server.start("127.0.0.1:0", ())
    yield played
    await server.stop(0)


@pytest.fixture
async def worker(request, dispatcher, resolver, tmp_path):
    """With the parameter's flags, if any, besides its own."""
    flags = ("--name", "w1", "--label", "zone=a", "--dispatcher", f"127.0.0.1:{dispatcher.port}")
    flags += ("--resolver", f"127.0.0.1:{resolver.port}", "--seed", "1", *getattr(request, "param", ()))
    async with process("scheduler_worker", *flags, ready=tmp_path / "worker.json") as (child, _):
        await until(lambda: dispatcher.registrations)
        yield child


def nodes(count, *, cpu=4000, cards=0):
    amounts = (("cpu", cpu), ("memory", 16 * GIB), ("pods", 110))
    amounts += (("nvidia.com/gpu", cards),) if cards else ()
    return [NodeSpec(f"node-{i}", allocatable=tuple(sorted(amounts)), cards=cards) for i in range(count)]


def pod(cpu, **fields):
    return PodSpec(
        requests=(("cpu", cpu), ("memory", GIB // 4)),
        nonzero_cpu_milli=cpu,
        nonzero_memory_bytes=GIB // 4,
        **fields,
    )


async def agreed(dispatcher, resolver):
    """Wait until the worker's view is the ledger's."""
    compared = ""

    async def so_it_is():
        nonlocal compared
        view, audit = await dispatcher.view(), await resolver.audit()
        assert not audit.violations
        mine = {(s.shard, s.seq, s.digest) for s in view.shards}
        compared = f"{mine} against {audit.digests}"
        return view.idle and mine == {(d.shard, d.seq, d.digest) for d in audit.digests}

    await until(so_it_is, lambda: f"agreement: {compared}")


@pytest.mark.parametrize(
    ("worker", "packs"),
    [(("--profile", name), packs) for name, packs in (("spread", False), ("best-fit", True), ("fgd", True))],
    indirect=["worker"],
)
async def test_a_worker_says_whether_its_profile_packs_and_takes_fewer_pods_then(dispatcher, worker, packs):
    [registration] = dispatcher.registrations
    assert (registration.packs, registration.window) == (packs, 500 if packs else 2000)


async def test_pods_are_bound_as_the_ledger_says_and_the_worker_sees_what_it_did(
    dispatcher, resolver, worker
):
    await resolver.upsert_nodes(nodes(10))
    await agreed(dispatcher, resolver)
    uids = dispatcher.submit((pod(100), 150), (pod(250), 30))
    codes, chosen, _, commits = await dispatcher.outcomes(180)
    assert (codes == BOUND).all()
    lookup = await resolver.lookup(uids)
    assert (lookup.nodes == chosen).all()
    assert {(0, int(seq)) for seq in lookup.seqs} == commits
    await agreed(dispatcher, resolver)


async def test_pods_of_rules_that_nobody_bore_before_are_bound_without_a_refusal(
    dispatcher, resolver, worker
):
    await resolver.upsert_nodes([replace(node, labels=((HOSTNAME, node.name),)) for node in nodes(10)])
    await agreed(dispatcher, resolver)
    apart = PodAffinity(anti_required=(PodAffinityTerm(HOSTNAME, WEB, ("default",)),))
    even = (SpreadConstraint(1, HOSTNAME, WEB),)
    dispatcher.submit(
        (pod(100), 20), (pod(100, labels=(("app", "web"),), pod_affinity=apart, spread=even), 10)
    )
    codes, chosen, _, _ = await dispatcher.outcomes(30)
    assert (codes == BOUND).all()
    assert sorted(chosen[20:].tolist()) == list(range(10))
    counters = (await resolver.status()).counters
    assert (counters["announcements"], counters["conflict_topology"]) == (1, 0)


async def test_what_does_not_fit_is_answered_with_the_reason(dispatcher, resolver, worker):
    await resolver.upsert_nodes(nodes(3))
    await agreed(dispatcher, resolver)
    dispatcher.submit((pod(1000), 13), (pod(5000), 2))
    codes, _, texts, _ = await dispatcher.outcomes(15)
    assert np.bincount(codes)[[BOUND, UNSCHEDULABLE]].tolist() == [12, 3]
    assert texts == {"0/3 nodes are available: 3 Insufficient cpu."}


async def test_card_shares_are_packed_as_the_ledger_packs_them(dispatcher, resolver, worker):
    await resolver.upsert_nodes(nodes(2, cpu=64000, cards=4))
    await agreed(dispatcher, resolver)
    dispatcher.submit(
        (pod(100, devices=DeviceRequest(1, 400)), 10), (pod(100, devices=DeviceRequest(1, 300)), 12)
    )
    codes, _, texts, _ = await dispatcher.outcomes(22)
    # 8 cards take 16 shares of 400; the 6 cards' worth left beside the ten take shares of 300.
    assert (codes == BOUND).all() or texts == {"0/2 nodes are available: 2 Insufficient hoss.dev/gpu-milli."}
    await agreed(dispatcher, resolver)


async def test_released_room_is_seen_and_used_again(dispatcher, resolver, worker):
    await resolver.upsert_nodes(nodes(1))
    await agreed(dispatcher, resolver)
    uids = dispatcher.submit((pod(4000), 1))
    await dispatcher.outcomes(1)
    await resolver.release(uids)
    await agreed(dispatcher, resolver)
    dispatcher.submit((pod(4000), 1), first=100)
    codes, _, _, _ = await dispatcher.outcomes(1)
    assert codes.tolist() == [BOUND]


async def test_a_fenced_worker_commits_nothing_and_registers_anew(dispatcher, resolver, worker):
    await resolver.upsert_nodes(nodes(5))
    await agreed(dispatcher, resolver)
    await resolver.grant_epoch("w1")
    uids = dispatcher.submit((pod(100), 20))
    await until(lambda: len(dispatcher.registrations) == 2)
    assert ((await resolver.lookup(uids)).nodes == 0xFFFFFFFF).all()
    while not dispatcher.inbox.empty():
        dispatcher.inbox.get_nowait()
    dispatcher.submit((pod(100), 20))
    codes, _, _, _ = await dispatcher.outcomes(20)
    assert (codes == BOUND).all()


async def test_a_worker_told_to_stop_answers_for_what_it_holds(dispatcher, resolver, worker):
    await resolver.upsert_nodes(nodes(50))
    await agreed(dispatcher, resolver)
    dispatcher.submit((pod(10), 2000))
    codes, chosen, _, _ = await dispatcher.outcomes(
        2000, after_first=lambda: worker.send_signal(signal.SIGTERM)
    )
    assert set(codes.tolist()) <= {BOUND, RETURNED}
    assert ((codes == BOUND) == (chosen != 0xFFFFFFFF)).all()
    # A second signal in its last moments would end it by the signal.
    assert await asyncio.to_thread(worker.wait, DEADLINE_SECONDS) == 0


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--label", "a=1", "--label", "a=2"], "'a' is given twice, as '1' and as '2'"),
        (["--label", "nothing"], "'nothing' is not of the form key=value"),
        (["--window", "0"], "window: is 0, where a whole number from 1 to 100,000 belongs"),
    ],
)
def test_a_wrong_flag_is_named_and_nothing_starts(flags, complaint):
    done = FORK_SERVER.run("scheduler_worker", flags, timeout=DEADLINE_SECONDS)
    assert done.returncode == 1
    assert complaint in done.stderr
