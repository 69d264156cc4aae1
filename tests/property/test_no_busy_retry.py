"""No busy retry: whatever happens, a pod that nobody can place is tried once at first, once for each change
that might have helped it, and once every five minutes; and never sooner after a refusal than its backoff."""

import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from property.profiles import examples

from dispatcher.core import messages as m
from dispatcher.core.changes import Aspect, Changes, NodeChange, Room
from dispatcher.core.machine import Machine, Settings
from dispatcher.core.pods.sets import NewJob, NewTemplate, Order
from dispatcher.core.pods.templates import TemplateKind
from dispatcher.core.policy.rules import Policy
from dispatcher.core.queue.hints import worth_another_attempt
from dispatcher.core.queue.waiting import FLUSH_UNSCHEDULABLE_SECONDS
from dispatcher.core.workers.reports import Heartbeat
from hoss.model.node import NodeSpec, Taint
from hoss.model.pod import PodSpec, QosClass

NONE = 0xFFFFFFFF
SPECS = {b"%d" % cpu: PodSpec(requests=(("cpu", cpu),)) for cpu in (1000, 4000, 9000)}
REFUSED_BY = {
    b"1000": frozenset({"NodeResourcesFit"}),
    b"4000": frozenset({"NodeResourcesFit", "TaintToleration"}),
    b"9000": frozenset({"TaintToleration"}),
}
BACKOFFS = (1, 2, 4, 8, 10)


def room(cpu):
    allocatable = np.array([[cpu], [9]], np.int64)
    return Changes(
        rooms=(Room(("cpu", "pods"), allocatable, np.zeros_like(allocatable), np.empty((0, 16), np.uint16)),)
    )


CHANGES = {
    "a little room": room(2000),
    "much room": room(6000),
    "no room": room(10),
    "a taint less": Changes(nodes=(NodeChange(NodeSpec("n"), Aspect.TAINTS),)),
    "another taint": Changes(nodes=(NodeChange(NodeSpec("n", taints=(Taint("a"),)), Aspect.TAINTS),)),
    "a label": Changes(nodes=(NodeChange(NodeSpec("n"), Aspect.LABELS),)),
}
steps = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.01, 0.1, 0.7, 3.0, 40.0]), st.sampled_from(["", *CHANGES]), st.booleans()
    ),
    max_size=60,
)


class Cluster:
    """One worker that finds no node for anything; it knows the feed up to the moment at which it was
    asked."""

    def __init__(self) -> None:
        self.machine = Machine(
            Settings(worker_timeout_seconds=1e9), Policy(), SPECS.__getitem__, random.Random(3)
        )
        self.now, self.seq, self.link = 0.0, 0, 1
        self.work: list[tuple[m.SendWork, int]] = []
        self.attempts = dict.fromkeys(SPECS, 0)
        self.refused_at = dict.fromkeys(SPECS, float("-inf"))
        self.classes: dict[int, bytes] = {}
        self.tell(m.Registered(1, "w1", {}, 1, 2000))
        self.tell(m.EpochGranted(1, 1))
        self.tell(m.HeartbeatReceived(1, Heartbeat(ready=True)))
        kind = TemplateKind("default", "", "", QosClass.BURSTABLE, "Job")
        for data in SPECS:
            order = Order(f"r{data!r}", (NewTemplate(data, kind, 0),), (NewJob(f"j{int(data)}", 0, 1),), None)
            self.tell(m.Admitted(self.machine.registry.accept(order, 0)))

    def tell(self, event: m.Event) -> None:
        for instruction in self.machine.handle(event, self.now):
            if isinstance(instruction, m.SendWork):
                self.work.append((instruction, self.seq))
                self.classes.update(instruction.classes)
                for class_id in instruction.run_classes.tolist():
                    self._tried(self.classes[class_id])

    def _tried(self, data: bytes) -> None:
        backoff = BACKOFFS[min(self.attempts[data], len(BACKOFFS)) - 1] if self.attempts[data] else 0
        assert self.now - self.refused_at[data] >= backoff - 1e-6, f"{data!r} was tried before its backoff"
        self.attempts[data] += 1

    def answer(self) -> None:
        work, self.work = self.work, []
        for batch, seen in work:
            names = [self.classes[class_id] for class_id in batch.run_classes.tolist()]
            n = len(names)
            self.refused_at |= dict.fromkeys(names, self.now)
            columns = np.arange(n, dtype=np.uint32), np.full(n, 2, np.uint8), np.full(n, NONE, np.uint32)
            texts, refused_by = tuple(n.decode() for n in names), tuple(REFUSED_BY[n] for n in names)
            reasons = np.arange(n, dtype=np.uint16)
            self.tell(m.OutcomesArrived(1, batch.batch, *columns, reasons, texts, {}, refused_by, {0: seen}))


@examples(150)
@given(steps=steps)
def test_attempts_are_bounded_by_what_might_have_helped_and_by_flushes(steps):
    cluster = Cluster()
    helpful = dict.fromkeys(SPECS, 0)
    for seconds, change, answers in steps:
        cluster.now += seconds
        cluster.tell(m.Tick())
        if change:
            cluster.seq += 1
            cluster.tell(m.ClusterChanged(CHANGES[change], shard=0, seq=cluster.seq))
            for data, spec in SPECS.items():
                helpful[data] += worth_another_attempt(spec, REFUSED_BY[data], CHANGES[change])
        if answers:
            cluster.answer()
    for data, attempts in cluster.attempts.items():
        flushes = int(cluster.now // FLUSH_UNSCHEDULABLE_SECONDS)
        assert attempts <= 1 + helpful[data] + flushes


@examples(50)
@given(steps=steps)
def test_what_might_have_helped_is_tried_in_the_end(steps):
    cluster = Cluster()
    for seconds, change, answers in steps:
        cluster.now += seconds
        cluster.tell(m.Tick())
        if change:
            cluster.seq += 1
            cluster.tell(m.ClusterChanged(CHANGES[change], shard=0, seq=cluster.seq))
        if answers:
            cluster.answer()
    for _ in range(5):  # lingering batches leave, and all pods wait
        cluster.now += 0.1
        cluster.tell(m.Tick())
        cluster.answer()
    before = dict(cluster.attempts)
    cluster.seq += 1
    cluster.tell(m.ClusterChanged(CHANGES["much room"], shard=0, seq=cluster.seq))
    for _ in range(110):
        cluster.now += 0.1
        cluster.tell(m.Tick())
    for data in (b"1000", b"4000"):
        assert cluster.attempts[data] > before[data]
