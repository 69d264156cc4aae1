"""A snapshot of a shard is taken in in slices: others get their turn, verdicts may come, and no pod is placed
before all of it is there."""

import asyncio
import gc
from dataclasses import replace

import numpy as np
import pytest

from hoss.client.proposal_stream import ProposalStream
from hoss.client.worker_link import DispatcherLink
from hoss.model.pod import PodAffinity, PodAffinityTerm, PodGroup, group_of
from hoss.model.selectors import LabelSelector, Requirement
from hoss.model.slices import finished
from hoss.v1 import workerlink_pb2
from hoss.wire.columns import I64, U32, encode, numbered_uids
from hoss.wire.convert import pod_spec_to_proto
from scheduler_worker import messages
from scheduler_worker.core.cache import node_info
from scheduler_worker.core.cache.node_info import NodeInfoCache
from scheduler_worker.core.messages import PodRun
from scheduler_worker.core.pod_index.selector_query import Matching
from scheduler_worker.service import WorkerService
from scheduler_worker.synchronisation import Push


@pytest.fixture(autouse=True)
def slices_of_one_row(monkeypatch):
    for module in (node_info, messages):
        monkeypatch.setattr(module, "_SLICE_ROWS", 1)
        monkeypatch.setattr(module, "_ROW_MICROS", 10_000.0)


def group(number):
    selector = LabelSelector((Requirement("app", "In", (f"app-{number}",)),))
    term = PodAffinityTerm("kubernetes.io/hostname", selector, ("default",))
    return PodGroup(labels=(("app", f"app-{number}"),), affinity=PodAffinity(anti_required=(term,)))


def run(number, *nodes):
    return PodRun(group(number), np.array(nodes, np.intp))


def matching(number):
    """Pods of that group."""
    return Matching((group(number).affinity.anti_required[0],))


def contents(cache):
    """All that decisions depend on."""
    size = cache.size
    return {
        "pods": {g: cache.pod_index.pods_of(g) for g in cache.pod_index.groups},
        "specs": cache.catalogue.specs[:size],
        "requested": cache.requested[:, :size].tolist(),
        "assumed": cache.assumed[:, :size].tolist(),
        "seqs": cache.seqs,
        "seen": cache.seen(0),
        "tables": cache.table_sizes(),
    }


def followed(*updates):
    """A cache that took in these in one step each."""
    cache = NodeInfoCache()
    for update in updates:
        cache.apply_feed(update)
    return cache


@pytest.fixture
def ledger(make_ledger):
    return make_ledger(4)


@pytest.fixture
def harness(ledger, harness_of):
    return harness_of(ledger)


def test_a_snapshot_in_slices_leaves_what_a_new_cache_would_have(ledger, make_ledger):
    first = replace(ledger.snapshot(), pods=(run(1, 0, 1, 1), run(2, 3), run(3, 2)))
    other = make_ledger().add(1, name="renamed").add(6)
    other.seq = 9
    # A group in two runs: definitions differ by what is reserved, and the group is one.
    second = replace(other.snapshot(), pods=(run(1, 1, 6), run(4, 6), run(1, 6)), holds=(7,))
    assert contents(followed(first, second)) | {"tables": None} == contents(followed(second)) | {
        "tables": None
    }
    assert followed(first, second).pod_index.pods_of(group(1)) == {1: 1, 6: 2}


def test_until_all_of_a_snapshot_is_there_no_pod_is_placed(harness, make_pod):
    harness.submit((make_pod(), 1))
    steps = harness.cache.applying(replace(harness.ledger.snapshot(), pods=(run(1, 0), run(2, 1))))
    for _ in steps:
        assert not harness.cache.whole
        assert harness.place() == []
    assert harness.cache.whole
    assert len(harness.place()) == 1


@pytest.mark.parametrize("slices_before", range(8))
def test_a_verdict_that_comes_meanwhile_leaves_what_it_would_leave_afterwards(
    harness, make_pod, slices_before
):
    """Pods of two proposals are in flight: one is committed, and the snapshot shows it; one is refused."""
    harness.submit((make_pod(labels=(("app", "mine"),)), 2))
    harness.submit((make_pod(labels=(("app", "other"),)), 1))
    accepted, refused = harness.place()
    verdicts, _ = harness.ledger.commit(accepted)
    mine = group_of(make_pod(labels=(("app", "mine"),)))
    snapshot = replace(
        harness.ledger.snapshot(),
        pods=(run(1, 0), PodRun(mine, accepted.candidates[:, 0].astype(np.intp)), run(2, 1), run(3, 1)),
    )
    steps = harness.cache.applying(snapshot)
    for _ in range(slices_before):
        next(steps)
    harness.scheduler.settle(accepted.batch_id, verdicts)
    harness.scheduler.settle(refused.batch_id, harness.ledger.answer(refused, 3))
    finished(steps)
    harness.cache.expire(now=1e9)  # the refused pod's next try is not placed here
    assert contents(harness.cache) == contents(followed(snapshot))


def test_a_snapshot_of_what_is_known_already_gives_counters_nothing_to_repair(ledger):
    snapshot = replace(ledger.snapshot(), pods=(run(1, 0, 1), run(2, 3)))
    cache = followed(snapshot)
    counter = cache.pod_index.counter(matching(1))
    before = counter.changes.position, cache.pod_index.terms_version
    cache.apply_feed(snapshot)
    assert (counter.changes.position, cache.pod_index.terms_version) == before
    assert counter.counts[:4].tolist() == [1, 1, 0, 0]


def test_a_snapshot_that_was_not_taken_in_to_its_end_is_made_good_by_the_next(harness, make_pod):
    snapshot = replace(harness.ledger.snapshot(), pods=(run(1, 0), run(2, 1)))
    steps = harness.cache.applying(snapshot)
    for _ in range(5):
        next(steps)
    steps.close()
    harness.submit((make_pod(), 1))
    assert harness.place() == []
    harness.cache.apply_feed(snapshot)
    assert contents(harness.cache) == contents(followed(snapshot))
    assert len(harness.place()) == 1


def feed_message(ledger):
    """All nodes of the ledger, and three groups."""
    return ledger.snapshot_message(*((group(i), [i]) for i in range(3)))


def test_a_message_is_read_in_slices_of_nodes_and_of_groups(ledger):
    message = feed_message(ledger)
    assert len(list(messages.reading_feed(message))) == 7
    read = messages.feed_update(message)
    assert [index for index, _ in read.specs] == [0, 1, 2, 3]
    assert [(run.group, run.nodes.tolist()) for run in read.pods] == [(group(i), [i]) for i in range(3)]


def test_a_slice_that_is_not_full_takes_as_long_as_its_rows(ledger, monkeypatch):
    """So that an entry of a few rows gives nobody a turn in its middle."""
    for module in (node_info, messages):
        monkeypatch.setattr(module, "_SLICE_ROWS", 100)
        monkeypatch.setattr(module, "_ROW_MICROS", 1.0)
    message = feed_message(ledger)
    assert list(messages.reading_feed(message)) == [4.0, 3.0]
    # Nodes; groups, as they are gathered from runs and as they are counted.
    assert list(NodeInfoCache().applying(messages.feed_update(message))) == [4.0, 3.0, 3.0]


class Labels(tuple):
    """Of a group. Says how often groups that have them were hashed."""

    __slots__ = ()
    hashed = 0

    def __hash__(self):
        Labels.hashed += 1
        return super().__hash__()


def test_no_slice_hashes_more_groups_than_it_has_rows_and_no_group_is_hashed_twice(ledger, monkeypatch):
    """A group may have hundreds of terms: with 6,000 groups their hashes took 0.06 s in one step."""
    monkeypatch.setattr(Labels, "hashed", 0)
    labelled = [PodGroup(labels=Labels([("app", f"app-{number}")])) for number in range(9)]
    runs = tuple(PodRun(of, np.array([0], np.intp)) for of in labelled)
    cache, snapshot = NodeInfoCache(), replace(ledger.snapshot(), pods=runs)
    before = 0
    for _ in cache.applying(snapshot):
        assert Labels.hashed - before <= 1
        before = Labels.hashed
    assert before == len(labelled)
    cache.apply_feed(snapshot)
    assert Labels.hashed == len(labelled)


@pytest.fixture
def service_of():
    """The service around a scheduler, without a dispatcher or a resolver. It is not placing by itself."""

    def make(scheduler):
        service = WorkerService(
            "w", scheduler, clock=lambda: 0.0, unix_clock=lambda: 0.0, thread_clock=lambda: 0.0
        )
        link = DispatcherLink([], workerlink_pb2.Register(), service)
        service.connect(link, ProposalStream(None, service.take_verdict), Push(None))
        return service

    return make


async def test_an_answer_about_preemption_waits_until_all_of_a_snapshot_is_there(
    harness, make_pod, service_of
):
    """Half a snapshot shows room where there is none, and pods that are gone."""
    ledger, scheduler, service = harness.ledger, harness.scheduler, service_of(harness.scheduler)
    full = np.array([4000, 2**28, 0, 1, 0, 0])
    harness.cache.apply_feed(ledger.reserve(range(4), [full] * 4))
    harness.submit((make_pod(cpu=3000, priority=10), 1), lowest=0)
    assert harness.place() == []
    (question,) = scheduler.take_questions()
    victim = numbered_uids(b"twelve bytes", 0, 1)
    answer = workerlink_pb2.PreemptionAnswer(
        id=question.id,
        nodes_seen=len(question.nodes),
        uids=victim.tobytes(),
        nodes=encode([2], U32),
        classes=encode([0], U32),
        since_ms=encode([0], I64),
        grace_ms=encode([0], U32),
        class_specs=[pod_spec_to_proto(make_pod(cpu=4000)).SerializeToString()],
        seen=[workerlink_pb2.CommitRef(shard=0, seq=ledger.seq)],
    )
    taking_in = asyncio.ensure_future(service.apply_feed(feed_message(ledger)))
    for _ in range(9):  # slices: seven to read the message, and two nodes are taken in
        await asyncio.sleep(0)
    assert not harness.cache.whole
    service.received(workerlink_pb2.DispatcherMessage(preemption=answer))
    assert scheduler.take_proposals(0.0) == []
    await taking_in
    (proposal,) = scheduler.take_proposals(0.0)
    assert (proposal.candidates.tolist(), proposal.victims) == ([[2]], {0: (victim[0].tobytes(),)})


async def test_the_collector_looks_at_a_snapshot_slice_by_slice(ledger, harness_of, service_of):
    """Else it looks at all of it in one step, which takes longer than any slice."""
    scheduler, passes = harness_of(ledger).scheduler, []
    message, before = feed_message(ledger), (gc.isenabled(), gc.get_threshold())
    gc.enable()
    gc.set_threshold(1_000_000)
    gc.callbacks.append(lambda phase, info: passes.append((phase, info["generation"])))
    try:
        await service_of(scheduler).apply_feed(message)
    finally:
        gc.callbacks.pop()
        gc.set_threshold(*before[1])
        if not before[0]:
            gc.disable()
    # Read: four nodes, three groups. Taken in: the same, and the groups are gathered before.
    assert passes == [("start", 0), ("stop", 0)] * (7 + 10)
