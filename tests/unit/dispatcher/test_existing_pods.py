"""Kubernetes mode: when the ledger has reservations for all existing pods."""

import asyncio

import numpy as np

from dispatcher.core import messages as m
from dispatcher.core.machine import FORGET_SECONDS
from dispatcher.core.pods.table import Phase
from dispatcher.kubernetes import existing_pods
from dispatcher.kubernetes.existing_pods import ExistingPods
from dispatcher.ledger.contents import kind_of
from dispatcher.runtime import Runtime
from hoss.model.pod import PodSpec
from hoss.v1 import resolver_pb2 as pb
from hoss.wire.columns import decode_uids


class SlowLedger(Runtime):
    """A runtime that releases reservations on a signal, and records which."""

    def __init__(self, machine) -> None:
        super().__init__(machine, None, None)
        self.go = asyncio.Event()
        self.released: list[int] = []

    async def release(self, wanted: m.Release) -> None:
        await self.go.wait()
        self.released += wanted.rows.tolist()


class Resolver:
    """Commits everything, and keeps the kinds that the last call named, and how many pods each call had."""

    def __init__(self) -> None:
        self.kinds: list[pb.PodKind] = []
        self.calls: list[int] = []

    async def grant_epoch(self, _writer: str) -> int:
        return 1

    async def upsert_pods(self, request: pb.UpsertPodsRequest) -> pb.UpsertPodsReply:
        await asyncio.sleep(0)  # others ask meanwhile
        self.kinds = list(request.kinds)
        uids = decode_uids(request.pods.uids)
        assert len(np.unique(uids, axis=0)) == len(uids), "the ledger would count a pod twice"
        self.calls.append(len(uids))
        return pb.UpsertPodsReply(verdicts=bytes([pb.COMMITTED] * len(uids)))


class Nodes:
    def name(self, index: int) -> str:
        return f"n{index}"


class ValidLease:
    def require_valid_lease(self) -> None:
        """It is valid."""


def existing_rows(bench, *names):
    """Of pods on their node, by name."""
    rows = [bench.pods(name) for name in names]
    pods = bench.machine.registry.pods
    for row in rows:
        pods.phase[row], pods.node[row] = Phase.BOUND, 0
    return rows


def reserve_of(bench, rows):
    return m.Reserve(rows, bench.machine.registry.pods.uid[rows])


class NobodyIsTold:
    def to_be_told(self, rows):
        return rows[:0]

    def report(self, _rows):
        """Of nobody."""


async def test_all_that_was_asked_for_before_is_reserved_when_it_says_so(bench):
    resolver, runtime = Resolver(), Runtime(bench.machine, None, None)
    existing = ExistingPods(runtime, resolver, ValidLease(), Nodes(), NobodyIsTold())
    rows = existing_rows(bench, "a", "b", "c")
    for row in rows:
        runtime.perform([reserve_of(bench, row)])
    await existing.done()
    assert sum(resolver.calls) == 3


async def test_a_release_that_is_refused_holds_up_its_own_pod_alone(bench):
    """A claim to devices that nobody may write is refused for as long as that lasts."""
    resolver, ledger = Resolver(), SlowLedger(bench.machine)
    existing = ExistingPods(ledger, resolver, ValidLease(), Nodes(), NobodyIsTold())
    ended, other = existing_rows(bench, "ended", "other")
    pods = bench.machine.registry.pods
    release = asyncio.create_task(ledger.carry_out(m.Release(ended, pods.uid[ended], ended)))
    await asyncio.sleep(0)
    again = asyncio.create_task(ledger.carry_out(reserve_of(bench, np.concatenate([ended, other]))))
    done = asyncio.create_task(existing.done())
    for _ in range(20):
        await asyncio.sleep(0)
    assert resolver.calls == [1], "the other pod is counted"
    assert not done.done(), "the pod that is on its node again is not"
    ledger.go.set()
    await asyncio.gather(release, again, done)
    assert (resolver.calls, ledger.released) == ([1, 1], ended.tolist())


async def test_a_class_is_read_once_however_many_calls_tell_of_its_pods(bench, monkeypatch):
    """A full cluster is told of in many calls, each with a few pods of most classes."""
    read = []
    monkeypatch.setattr(existing_pods, "kind_of", lambda *of: read.append(of) or kind_of(*of))
    resolver, runtime = Resolver(), Runtime(bench.machine, None, None)
    ExistingPods(runtime, resolver, ValidLease(), Nodes(), NobodyIsTold())
    pods = bench.machine.registry.pods
    for name, cpu in (("a", 100), ("b", 100), ("c", 200), ("d", 100)):
        rows = bench.pods(name, spec=PodSpec(requests=(("cpu", cpu),)))
        pods.phase[rows], pods.node[rows] = Phase.BOUND, 0
        await runtime.carry_out(m.Reserve(rows, pods.uid[rows]))
        [kind] = resolver.kinds
        assert {amount.resource: amount.amount for amount in kind.requests}["cpu"] == cpu
    assert len(read) == 2


async def test_a_class_that_no_pod_has_any_more_is_forgotten(bench):
    """Months of pods of other schedulers, each with a class of its own."""
    runtime = Runtime(bench.machine, None, None)
    existing = ExistingPods(runtime, Resolver(), ValidLease(), Nodes(), NobodyIsTold())
    pods = bench.machine.registry.pods
    kept = bench.pods("kept", spec=PodSpec(requests=(("cpu", 1),)))
    sizes = set()
    for day in range(20):
        passing = bench.pods(f"p{day}", spec=PodSpec(requests=(("cpu", 100 + day),)))
        rows = np.concatenate([kept, passing])
        pods.phase[rows], pods.node[rows] = Phase.BOUND, 0
        for row in rows:
            await runtime.carry_out(m.Reserve(rows[rows == row], pods.uid[rows[rows == row]]))
        assert existing.table_sizes() == {"existing_pod_kinds": 2}
        bench.handle(m.Deleted(passing))
        bench.handle(m.Released(passing))
        bench.pass_time(FORGET_SECONDS)
        sizes.add(existing.table_sizes()["existing_pod_kinds"])
    assert sizes == {1}


async def test_pods_that_come_in_small_parts_share_a_call_and_no_release_is_overtaken(bench):
    resolver, ledger = Resolver(), SlowLedger(bench.machine)
    ExistingPods(ledger, resolver, ValidLease(), Nodes(), NobodyIsTold())
    ledger.go.set()
    pods = bench.machine.registry.pods
    rows = bench.job("a", 2600)
    pods.phase[rows], pods.node[rows] = Phase.BOUND, 0

    def reserve(first: int, stop: int) -> m.Reserve:
        part = rows[first:stop]
        return m.Reserve(part, pods.uid[part])

    calls_at_release: list[int] = []
    release = ledger.release

    async def noted(wanted: m.Release) -> None:
        calls_at_release.append(sum(resolver.calls))
        await release(wanted)

    ledger.release = noted
    wanted = [reserve(start, start + 250) for start in range(0, 1250, 250)]
    wanted.append(m.Release(rows[:1], pods.uid[rows[:1]], rows[:1]))
    wanted += [reserve(1250, 1300), reserve(1250, 1301), reserve(1301, 2600)]
    await asyncio.gather(*(ledger.carry_out(instruction) for instruction in wanted))
    assert resolver.calls == [250, 1000, 51, 1000, 299]
    assert calls_at_release == [1250]
