"""What somebody deleted or left behind in Redis by hand is found by the dispatcher while it runs, and
repaired."""

import asyncio

import numpy as np
import pytest
import structlog.testing
from integration.proposing import Stream, batch
from redis import Redis
from unit.dispatcher.conftest import Bench
from waiting import until

from dispatcher.core import messages as m
from dispatcher.core.pods.table import Phase
from dispatcher.ledger.client import ResolverLedger
from dispatcher.ledger.reconciliation import Reconciler
from dispatcher.runtime import Runtime
from hoss.client.resolver import ResolverClient
from hoss.errors import LedgerUnavailable
from hoss.model.node import NodeSpec
from hoss.v1 import common_pb2, resolver_pb2
from hoss.wire.columns import NONE_U32, numbered_uids
from hoss.wire.convert import node_to_proto
from hoss.wire.uids import uid_text

NODES = [
    NodeSpec(f"node-{i}", allocatable=(("cpu", 1000), ("pods", 10))) for i in range(10)
]  # on both shards
RESERVATIONS = "{{hoss:{}}}:reservations"


class Term:
    """A dispatcher's table beside a real ledger of two shards: `rows` are three bound pods."""

    def __init__(self, client, redis):
        self.bench = Bench()
        self.client = client
        self.redis = redis
        self.ledger = ResolverLedger(client)
        self.runtime = Runtime(self.bench.machine, self.ledger, None, clock=lambda: self.bench.now)
        self.rows = np.empty(0, np.uint32)
        self.nodes = []

    @property
    def pods(self):
        return self.bench.machine.registry.pods

    @property
    def counters(self):
        return self.bench.machine.counters

    async def begin(self):
        self.nodes = (await self.client.upsert_nodes(NODES)).indexes
        await self.client.grant_epoch("w1")
        self.bench.join("w1")
        self.rows = self.bench.job("job", 3)
        self.bench.pump()
        await self.reserve(self.pods.uid[self.rows], self.on_shard(0))
        self.bench.answer("w1", m.OutcomeCode.BOUND, node=self.on_shard(0))
        assert self.bench.all_are(self.rows, Phase.BOUND)
        self.bench.now += 3600
        return self

    def on_shard(self, shard):
        return next(node for node in self.nodes if node % 2 == shard)

    async def reserve(self, uids, node, *, confirmed=True, epoch=1):
        """Somebody reserves for these pods on the node."""
        shard = node % 2
        message = batch(1, [node] * len(uids), uids=uids.tobytes(), shard=shard, epoch=epoch)
        answer = await Stream(self.client).ask(message)
        assert answer.seq
        if confirmed:
            await self.client.confirm({shard: np.array([answer.seq], np.uint64)})
        self.ledger.note({shard: answer.seq})

    async def reserved(self, uids):
        return [int(node) for node in (await self.client.lookup(uids)).nodes]

    async def reconcile(self, *, passes=2, every_pod_known=False):
        reconciler = Reconciler(self.runtime, every_pod_known=every_pod_known, period_seconds=0.0)
        for _ in range(passes):
            await reconciler.check_pods()
            await reconciler.check_reservations()


@pytest.fixture
async def term(redis_server, start_resolver):
    client = ResolverClient([start_resolver(redis_server.url, "--shards", "2")])
    with Redis.from_url(redis_server.url) as redis:
        yield await Term(client, redis).begin()
    await client.close()


async def test_what_agrees_is_left_alone(term):
    await term.reconcile()
    assert term.bench.all_are(term.rows, Phase.BOUND)
    assert await term.reserved(term.pods.uid[term.rows]) == [term.on_shard(0)] * 3
    assert not {"reservations_missing", "reservations_without_pod"} & term.counters.keys()


async def test_a_bound_pod_whose_reservation_is_gone_is_queued_again(term):
    assert term.redis.hdel(RESERVATIONS.format(0), term.pods.uid[term.rows[1]].tobytes()) == 1
    await term.reconcile(passes=1)
    assert term.bench.phases(term.rows) == [Phase.BOUND, Phase.SCHEDULING, Phase.BOUND], "it went to a worker"
    assert term.counters["reservations_missing"] == 1


async def test_a_pod_that_was_bound_a_moment_ago_is_left_to_settle(term):
    term.pods.since_ms[term.rows] = term.runtime.now_ms()
    term.redis.hdel(RESERVATIONS.format(0), term.pods.uid[term.rows[1]].tobytes())
    await term.reconcile(passes=1)
    assert term.bench.all_are(term.rows, Phase.BOUND)


async def test_a_pod_that_is_placed_anew_while_it_is_looked_up_keeps_its_new_place(term):
    uid = term.pods.uid[term.rows[1]]
    term.redis.hdel(RESERVATIONS.format(0), uid.tobytes())
    lookup = term.ledger.lookup

    async def slow_lookup(uids):
        found = await lookup(uids)
        since_ms = int(term.pods.since_ms[term.rows[1]])
        for phase in (Phase.QUEUED, Phase.BOUND):  # within one millisecond
            term.pods.move(term.rows[1:2], phase, since_ms)
        term.ledger.lookup = lookup
        return found

    term.ledger.lookup = slow_lookup
    await term.reconcile(passes=1)
    assert term.bench.all_are(term.rows, Phase.BOUND)


async def test_a_confirmed_reservation_of_a_pod_that_waits_is_released_after_two_passes(term):
    [row] = term.bench.pods("left-behind")
    uid = term.pods.uid[[row]]
    await term.reserve(uid, term.on_shard(1))
    term.pods.phase[row] = Phase.UNSCHEDULABLE
    await term.reconcile(passes=1)
    assert await term.reserved(uid) == [term.on_shard(1)]
    await term.reconcile(passes=2)
    assert await term.reserved(uid) == [NONE_U32]
    assert term.counters["reservations_without_pod"] == 1
    assert await term.reserved(term.pods.uid[term.rows]) == [term.on_shard(0)] * 3


async def test_an_assumed_reservation_is_left_to_its_lease(term):
    [row] = term.bench.pods("proposed")
    uid = term.pods.uid[[row]]
    await term.reserve(uid, term.on_shard(1), confirmed=False)
    term.pods.phase[row] = Phase.UNSCHEDULABLE
    await term.reconcile(passes=3)
    assert await term.reserved(uid) == [term.on_shard(1)]


async def test_a_second_reservation_on_another_shard_is_released_and_the_pods_own_stays(term):
    uids = term.pods.uid[term.rows[:1]]
    await term.reserve(uids, term.on_shard(1))
    await term.reconcile()
    assert not term.redis.hexists(RESERVATIONS.format(1), uids.tobytes())
    assert term.redis.hexists(RESERVATIONS.format(0), uids.tobytes())
    assert term.bench.all_are(term.rows, Phase.BOUND)


async def test_a_look_up_answers_with_the_confirmed_one_of_two_and_shows_the_other(term):
    uids = term.pods.uid[term.rows]
    await term.reserve(uids[1:2], term.on_shard(1), confirmed=False)
    found = await term.client.lookup(uids)
    assert found.nodes.tolist() == [term.on_shard(0)] * 3
    assert (found.other_pods.tolist(), found.other_nodes.tolist()) == ([1], [term.on_shard(1)])
    with structlog.testing.capture_logs() as lines:
        await term.ledger.lookup(uids)
    [line] = [line for line in lines if line["event"] == "pods_reserved_twice"]
    assert (line["reservations"], line["first"]) == (1, uid_text(uids[1].tobytes()))


@pytest.mark.parametrize("every_pod_known", [True, False])
async def test_what_an_earlier_term_has_reserved_for_an_unknown_pod_is_released_only_where_all_pods_are_known(
    term, every_pod_known
):
    uids = numbered_uids(b"nobody knows", 0, 1)
    await term.reserve(uids, term.on_shard(1))
    await term.reconcile(every_pod_known=every_pod_known)
    assert await term.reserved(uids) == [NONE_U32 if every_pod_known else term.on_shard(1)]
    assert term.counters["reservations_without_pod"] == 1
    assert term.counters["reservations_released"] == every_pod_known


async def test_an_orphan_that_stays_is_told_and_counted_once_and_a_later_one_by_itself(term):
    await term.reserve(numbered_uids(b"nobody knows", 0, 1), term.on_shard(1))
    reconciler = Reconciler(term.runtime, every_pod_known=False, period_seconds=0.0)
    with structlog.testing.capture_logs() as lines:
        for _ in range(4):
            await reconciler.check_reservations()
        assert term.counters["reservations_without_pod"] == 1
        await term.reserve(numbered_uids(b"another pod.", 0, 2), term.on_shard(1))
        for _ in range(4):
            await reconciler.check_reservations()
    assert term.counters["reservations_without_pod"] == 3
    assert [line["pods"] for line in lines if line["event"] == "reservations_without_pod"] == [1, 2]


async def test_a_reservation_that_a_worker_of_this_term_made_is_released_when_nobody_knows_its_pod_any_more(
    term,
):
    earlier, uids = numbered_uids(b"earlier term", 0, 1), numbered_uids(b"deleted pods", 0, 1)
    await term.reserve(earlier, term.on_shard(1))
    epoch = await term.ledger.grant_epoch("w1")
    await term.reserve(uids, term.on_shard(1), epoch=epoch)
    await term.reconcile(passes=1)
    assert await term.reserved(uids) == [term.on_shard(1)]
    await term.reconcile(passes=2)
    assert await term.reserved(uids) == [NONE_U32]
    assert await term.reserved(earlier) == [term.on_shard(1)]
    assert term.counters["reservations_released"] == 1
    assert await term.reserved(term.pods.uid[term.rows]) == [term.on_shard(0)] * 3


async def test_a_dispatcher_that_was_deposed_releases_nothing_that_it_finds(term):
    uids = numbered_uids(b"deleted pods", 0, 1)
    await term.reserve(uids, term.on_shard(1), epoch=await term.ledger.grant_epoch("w1"))
    for shard in range(2):
        term.redis.hset(f"{{hoss:{shard}}}:meta", "term", 9)
    term.client.term = 8
    with pytest.raises(LedgerUnavailable, match="another dispatcher has taken over"):
        await term.reconcile()
    assert await term.reserved(uids) == [term.on_shard(1)]
    assert term.counters["reservations_released"] == 0


async def test_its_jobs_do_all_that_by_themselves_and_end_when_cancelled(term):
    term.redis.hdel(RESERVATIONS.format(0), term.pods.uid[term.rows[1]].tobytes())
    reconciler = Reconciler(term.runtime, every_pod_known=False, period_seconds=0.01)
    jobs = [asyncio.create_task(job) for job in reconciler.jobs()]
    placed_anew = lambda: term.bench.phases(term.rows)[1] == Phase.SCHEDULING  # noqa: E731
    await until(placed_anew, "the pod without its reservation to be placed anew")
    assert term.counters["reservations_missing"] == 1
    for job in jobs:
        job.cancel()
    await asyncio.gather(*jobs, return_exceptions=True)


async def test_a_pod_that_is_deleted_amid_a_rebuild_keeps_no_reservation_when_old_outcomes_arrive_late(
    term,
):
    """The ledger is rebuilt from a record in which the pod is bound. Before the feed shows it, a late message
    tells of the ledger before."""
    uids, nodes = term.pods.uid[term.rows], term.pods.node[term.rows]
    before, after = (await term.ledger.status()).epoch, f"{1:016x}"
    term.ledger.known_epoch = before
    term.ledger.note({0: 1, 1: 1})
    late = {0: int((await term.client.lookup(uids)).seqs.max())}
    head = resolver_pb2.LedgerHead(ledger_epoch=after, shards=2, replaces=before, schema=["cpu", "pods"])
    kind = resolver_pb2.PodKind(requests=[common_pb2.Amount(resource="cpu", amount=100)])
    specs = [
        resolver_pb2.NodeEntry(index=i, spec=node_to_proto(n)) for i, n in zip(term.nodes, NODES, strict=True)
    ]
    columns = resolver_pb2.PodColumns(
        uids=uids.tobytes(), nodes=nodes.astype(np.uint32).tobytes(), kinds=bytes(12)
    )
    parts = [
        resolver_pb2.LedgerPart(head=head),
        resolver_pb2.LedgerPart(nodes=specs),
        resolver_pb2.LedgerPart(kinds=[kind], pods=columns),
    ]
    term.ledger.known_epoch = after
    await term.ledger.rebuild(parts)
    assert await term.reserved(uids) == nodes.tolist()
    term.ledger.note(late)
    decided = term.ledger.known()
    await term.ledger.release(uids, nodes, decided)
    assert await term.reserved(uids) == [NONE_U32] * 3


async def test_a_release_is_made_in_our_ledger_only_and_spares_what_is_newer_than_its_feed_has_shown(term):
    """A resolver may have adopted the ledger of a master that was replaced and has returned."""
    uids, nodes = term.pods.uid[term.rows], term.pods.node[term.rows]
    term.ledger.known_epoch = "before"
    with pytest.raises(LedgerUnavailable, match="another ledger than the one that the caller knows"):
        await term.ledger.release(uids, nodes, term.ledger.known())
    assert await term.reserved(uids) == nodes.tolist()
    epoch = term.ledger.known_epoch = (await term.ledger.status()).epoch
    snapshot = resolver_pb2.FeedMessage(shard=0, seq=1, snapshot=True, ledger_epoch=epoch)
    term.ledger.read(snapshot)
    await term.ledger.release(uids, nodes, term.ledger.known())
    assert await term.reserved(uids) == nodes.tolist()
