"""A scheduler of the SDK takes in a snapshot of a shard in slices, as workers do: others get their turn, and
no pod is placed before all of it is there."""

import asyncio
import tracemalloc

import numpy as np
import pytest
from accounts_in_memory import AccountsInMemory
from waiting import DEADLINE_SECONDS

from hoss.client.proposal_stream import ProposalStream
from hoss.client.worker_link import DispatcherLink
from hoss.model.placing import NO_NODE
from hoss.model.pod import PodAffinity, PodAffinityTerm, PodGroup, PodSpec
from hoss.model.selectors import LabelSelector, Requirement
from hoss.model.slices import finished
from hoss.sdk import view as view_module
from hoss.sdk.scheduler import CustomScheduler
from hoss.sdk.view import SchedulerView
from hoss.tasks import background
from hoss.v1 import workerlink_pb2 as pb
from hoss.v1.resolver_pb2 import FeedMessage, GroupRun
from hoss.wire.columns import U16, U32, encode, numbered_uids
from hoss.wire.convert import pod_spec_to_proto
from hoss.wire.convert_rules import definition_of


@pytest.fixture(autouse=True)
def slices_of_one_row(monkeypatch):
    monkeypatch.setattr(view_module, "_SLICE_ROWS", 1)
    monkeypatch.setattr(view_module, "_ROW_MICROS", 10_000.0)


def spec(number):
    return PodSpec(labels=(("app", f"app-{number}"),))


def group(number):
    """Pods that want no other of theirs on their node."""
    selector = LabelSelector((Requirement("app", "In", (f"app-{number}",)),))
    term = PodAffinityTerm("kubernetes.io/hostname", selector, ("default",))
    return PodGroup(labels=spec(number).labels, affinity=PodAffinity(anti_required=(term,)))


def ledger_of(*nodes, seq=1, **fields):
    ledger = AccountsInMemory(seq=seq)
    for node in nodes:
        ledger.add(node, labels=(("kubernetes.io/hostname", f"n{node}"),), **fields)
    return ledger


def followed(*messages):
    view = SchedulerView()
    for message in messages:
        finished(view.applying(message))
    return view


def contents(view):
    """All that algorithms are shown, and what the ledger compares."""
    shown = view.snapshot()
    return {
        "specs": shown.specs,
        "allocatable": shown.allocatable.tolist(),
        "requested": shown.requested.tolist(),
        "cards": None if shown.cards_used is None else shown.cards_used.tolist(),
        "admitted": [view.admitted(spec(number)).tolist() for number in range(4)],
        "counted": len(view._repelling),
        "digest": view.digest(0),
        "seqs": view.seqs,
        "seen": view.seen(0),
    }


def test_a_snapshot_replaces_what_was_known_of_the_shard():
    first = ledger_of(0, 1, 2, 3, cards=2).snapshot_message((group(1), [0, 1]), (group(2), [3]))
    second = ledger_of(0, 3, 5, seq=9).snapshot_message((group(1), [3]), (group(3), [5]))
    assert contents(followed(first, second)) == contents(followed(second))


def test_while_a_snapshot_is_taken_in_the_view_is_not_whole_and_its_digest_is_that_of_its_seq():
    first = ledger_of(0, 1).snapshot_message((group(1), [0]))
    view, second = followed(first), ledger_of(1, 2, seq=9).snapshot_message((group(2), [1]), (group(3), [2]))
    before = view.seqs[0], view.digest(0)
    # What was counted of one group; two nodes; two groups.
    for slices in view.applying(second):
        assert slices == 10_000.0
        assert not view.whole
        assert (view.seqs[0], view.digest(0)) == before
    assert view.whole
    assert (view.seqs[0], view.digest(0)) == (9, followed(second).digest(0))
    assert len(list(view.applying(second))) == 2 + 2 + 2


def test_groups_with_anti_affinity_take_memory_for_their_pods_and_not_for_every_node():
    view = followed(ledger_of(*range(4000)).snapshot_message())
    runs = [GroupRun(group=definition_of(group(i)), nodes=encode([i], U32)) for i in range(100)]
    message = FeedMessage(seq=2, shards=1, groups=runs)
    tracemalloc.start()
    try:
        finished(view.applying(message))
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(view._repelling) == len(runs)
    assert taken < 4000 * len(runs)  # a byte for each group and node


class Nowhere:
    """An algorithm that remembers of how many nodes it was shown the room, and takes none."""

    def __init__(self):
        self.asked = []
        self.loop, self.called = asyncio.get_running_loop(), asyncio.Event()

    def place(self, batch, snapshot, _budget):
        self.asked.append(int((snapshot.allocatable[0] > 0).sum()))
        self.loop.call_soon_threadsafe(self.called.set)
        return np.full(batch.pods, NO_NODE)


async def test_until_all_of_a_snapshot_is_there_no_pod_is_placed_and_then_it_is_without_further_events():
    algorithm = Nowhere()
    scheduler = CustomScheduler("s", algorithm, clock=lambda: 0.0, thread_clock=lambda: 0.0)
    link = DispatcherLink([], pb.Register(), scheduler)
    scheduler.connect(link, ProposalStream(None, scheduler.take_verdict))
    await scheduler.apply_feed(ledger_of(0).snapshot_message())
    work = pb.WorkBatch(
        batch_id=1,
        classes=[pb.ClassDefinition(id=0, spec=pod_spec_to_proto(spec(0)))],
        uids=numbered_uids(b"twelve bytes", 0, 1).tobytes(),
        run_classes=encode([0], U32),
        run_counts=encode([1], U32),
        run_attempts=encode([0], U16),
    )
    async with background(scheduler.schedule()):
        taking_in = asyncio.ensure_future(
            scheduler.apply_feed(ledger_of(0, 1, 2, seq=5).snapshot_message((group(1), [2])))
        )
        await asyncio.sleep(0)
        scheduler.received(pb.DispatcherMessage(work=work))
        await asyncio.sleep(0)
        assert not taking_in.done()
        await taking_in
        await asyncio.wait_for(algorithm.called.wait(), DEADLINE_SECONDS)
    assert algorithm.asked == [3]  # and not while it showed the room of one
