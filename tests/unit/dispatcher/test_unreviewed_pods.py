"""Pods whose bindings nobody has reviewed are told of, whatever becomes of the first answer: by the
dispatcher's own calls and a resolver's own answers, on the ledger in memory."""

import asyncio

import numpy as np
import pytest

from dispatcher.core import messages as m
from dispatcher.core.pods.table import Phase
from dispatcher.kubernetes.existing_pods import WRITER, ExistingPods
from dispatcher.ledger.contents import digest_of_kind, digests_of_chunk, kind_of
from dispatcher.runtime import Runtime
from hoss.errors import TransportError
from hoss.v1 import common_pb2
from hoss.v1 import resolver_pb2 as pb
from resolver.core.values import LedgerNodeChange, Verdict
from resolver.kubernetes.existing_pods import ExistingPodReservations
from resolver.ledger.memory import MemoryLedger
from resolver.messages.proposals import reservation_chunk


class Nodes:
    def name(self, _index: int) -> str:
        return "n0"


class ValidLease:
    def require_valid_lease(self) -> None:
        """It is valid."""


class Told:
    """Of which pods people were told. It ends the dispatcher before it tells if it is to."""

    def __init__(self, *, exempt: bool = False) -> None:
        self.rows: list[int] = []
        self.ends = False
        self._exempt = exempt

    def to_be_told(self, rows):
        return rows[:0] if self._exempt else rows

    def report(self, rows):
        if self.ends:
            raise asyncio.CancelledError
        self.rows += self.to_be_told(rows).tolist()


class Guard:
    """A resolver that reviews bindings, on a node of 10 cores. The next `lost` answers do not arrive."""

    def __init__(self) -> None:
        self.ledger = MemoryLedger(1, lambda: 0, lease_ms=0)
        self._reservations = ExistingPodReservations(self.ledger, None, reviews_bindings=True)
        self.lost = self.calls = 0

    async def build(self) -> "Guard":
        schema = await self.ledger.schema(["cpu", "pods"])
        spec = common_pb2.NodeSpec(name="n0").SerializeToString()
        await self.ledger.upsert_nodes(0, [LedgerNodeChange("n0", spec, (10_000,) * len(schema), False, 0)])
        return self

    async def grant_epoch(self, writer: str) -> int:
        return await self.ledger.grant(writer)

    async def upsert_pods(self, request: pb.UpsertPodsRequest) -> pb.UpsertPodsReply:
        sent = pb.UpsertPodsRequest.FromString(request.SerializeToString())
        reply = await self._reservations.upsert(sent)
        self.calls += 1
        assert set(reply.verdicts) <= {Verdict.COMMITTED, Verdict.DUPLICATE}
        if self.lost:
            self.lost -= 1
            raise TransportError("the resolver was killed")
        return reply

    async def digests(self) -> list[int]:
        """Of what the ledger holds."""
        schema = await self.ledger.schema()
        parts = [part async for part in self.ledger.reservations(0)]
        return [
            digest
            for part in parts
            for digest in digests_of_chunk(reservation_chunk(0, part), schema, {}).tolist()
        ]


@pytest.fixture
async def guard():
    return await Guard().build()


def unseen(bench):
    """Two pods that some scheduler has bound to the node."""
    pods, rows = bench.machine.registry.pods, bench.pods("a", "b")
    pods.phase[rows], pods.node[rows] = Phase.BOUND, 0
    return rows


async def tell(bench, guard, told):
    """A dispatcher of a new term tells the ledger of the two pods."""
    runtime = Runtime(bench.machine, None, None)
    ExistingPods(runtime, guard, ValidLease(), Nodes(), told)
    rows = np.flatnonzero(bench.machine.registry.pods.phase == Phase.BOUND).astype(np.uint32)
    await runtime.carry_out(m.Reserve(rows, bench.machine.registry.pods.uid[rows]))


@pytest.mark.usefixtures("virtual_time")
@pytest.mark.parametrize("lost", [0, 1, 3])
async def test_people_are_told_once_however_many_answers_are_lost(bench, guard, lost):
    rows, told = unseen(bench), Told()
    guard.lost = lost
    await tell(bench, guard, told)
    assert told.rows == rows.tolist()
    await tell(bench, guard, told)
    assert told.rows == rows.tolist()


async def test_the_next_dispatcher_tells_if_one_ends_before_it_has_told(bench, guard):
    rows, told = unseen(bench), Told()
    told.ends = True
    with pytest.raises(asyncio.CancelledError):
        await tell(bench, guard, told)
    # By these it knows of which pods it has to tell the ledger again.
    template = int(bench.machine.registry.pods.template[rows[0]])
    asked = digest_of_kind(kind_of(bench.machine.registry, template))
    assert asked not in await guard.digests()
    told.ends = False
    await tell(bench, guard, told)
    assert told.rows == rows.tolist()
    assert await guard.digests() == [asked, asked]


async def test_pods_of_which_nobody_is_told_cost_one_call(bench, guard):
    """As all those of a cluster in which the guard is new."""
    unseen(bench)
    told = Told(exempt=True)
    await tell(bench, guard, told)
    assert (told.rows, guard.calls) == ([], 1)


async def test_a_dispatcher_of_an_earlier_release_is_told_once_and_leaves_no_mark(bench, guard):
    """It does not ask for marks."""
    rows = unseen(bench)
    registry = bench.machine.registry
    kind = kind_of(registry, int(registry.pods.template[rows[0]]))
    columns = pb.PodColumns(uids=registry.pods.uid[rows].tobytes(), nodes=bytes(8), kinds=bytes(8))
    epoch = await guard.grant_epoch(WRITER)
    request = pb.UpsertPodsRequest(writer=WRITER, epoch=epoch, kinds=[kind], pods=columns)
    assert (await guard.upsert_pods(request)).unreviewed == b"\1\1"
    assert (await guard.upsert_pods(request)).unreviewed == b"\0\0"
    assert await guard.digests() == [digest_of_kind(kind)] * 2
