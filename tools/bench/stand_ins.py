"""The ledger and the workers of a dispatcher under measurement. Both accept everything at once and do nothing
else."""
# ruff: noqa: N802 - a service's methods have the contract's names

import asyncio
import contextlib
from collections.abc import AsyncIterator

import numpy as np

from hoss import rpc, serving
from hoss.v1 import common_pb2, resolver_pb2, workerlink_pb2
from hoss.v1.resolver_pb2_grpc import ResolverServicer, add_ResolverServicer_to_server
from hoss.v1.workerlink_pb2_grpc import WorkerLinkStub
from hoss.wire.columns import NONE_U32, U32, encode
from hoss.wire.uids import UID_BYTES

NODES = 100
_BEAT_SECONDS = 0.4
_BOUND = 1


class StandInLedger(ResolverServicer):
    """The part of a resolver that a dispatcher uses: some nodes, no reservations, and every commit can be
    confirmed."""

    def __init__(self) -> None:
        self._epoch = 0

    async def GrantEpoch(
        self, request: resolver_pb2.GrantEpochRequest, context: object
    ) -> resolver_pb2.GrantEpochReply:
        del request, context
        self._epoch += 1
        return resolver_pb2.GrantEpochReply(epoch=self._epoch)

    async def GetStatus(self, request: object, context: object) -> resolver_pb2.ResolverStatus:
        del request, context
        return resolver_pb2.ResolverStatus(shards=1, serving=True, nodes=NODES)

    async def Lookup(self, request: resolver_pb2.LookupRequest, context: object) -> resolver_pb2.LookupReply:
        del context
        pods = len(request.uids) // UID_BYTES
        nowhere, zeros = np.full(pods, NONE_U32, U32).tobytes(), bytes(8 * pods)
        return resolver_pb2.LookupReply(nodes=nowhere, seqs=zeros, epochs=zeros)

    async def Confirm(
        self, request: resolver_pb2.ConfirmRequest, context: object
    ) -> resolver_pb2.ConfirmReply:
        del context
        return resolver_pb2.ConfirmReply(confirmed=sum(len(commits.seqs) // 8 for commits in request.commits))

    async def Release(
        self, request: resolver_pb2.ReleaseRequest, context: object
    ) -> resolver_pb2.ReleaseReply:
        del context
        return resolver_pb2.ReleaseReply(released=len(request.uids) // UID_BYTES)

    async def ListReservations(
        self, request: object, context: object
    ) -> AsyncIterator[resolver_pb2.ReservationChunk]:
        del request, context
        yield resolver_pb2.ReservationChunk()

    async def Feed(self, request: object, context: object) -> AsyncIterator[resolver_pb2.FeedMessage]:
        del request, context
        allocatable = [common_pb2.Amount(resource=r, amount=a) for r, a in (("cpu", 10**9), ("pods", 10**6))]
        specs = [common_pb2.NodeSpec(name=f"node-{i}", allocatable=allocatable) for i in range(NODES)]
        nodes = [resolver_pb2.NodeEntry(index=i, spec=spec) for i, spec in enumerate(specs)]
        yield resolver_pb2.FeedMessage(shards=1, seq=1, snapshot=True, nodes=nodes, ledger_epoch="stand-in")
        await asyncio.Event().wait()  # nothing ever happens here; the follower ends the call


@contextlib.asynccontextmanager
async def stand_in_ledger() -> AsyncIterator[str]:
    """Its address, for the length of the block."""
    server = serving.Server()
    # A dispatcher calls nothing else; other calls answer UNIMPLEMENTED.
    add_ResolverServicer_to_server(StandInLedger(), server.grpc)  # type: ignore[abstract]
    port = await server.start("127.0.0.1:0", ("hoss.v1.Resolver",))
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0.0)


class StandInWorker:
    """Reports every batch as bound at once. `pods`: how many it received."""

    def __init__(self, dispatcher: str, name: str, window: int) -> None:
        self._channel = rpc.channel([dispatcher])
        self._register = workerlink_pb2.Register(name=name, window=window, incarnation=1)
        self.pods = 0
        self._outgoing: asyncio.Queue[workerlink_pb2.WorkerMessage] = asyncio.Queue()

    async def serve(self) -> None:
        """Register, and answer until cancelled."""
        self._outgoing.put_nowait(workerlink_pb2.WorkerMessage(register=self._register))
        beating = asyncio.ensure_future(self._beat())
        try:
            async for message in WorkerLinkStub(self._channel).Connect(self._messages()):
                if message.WhichOneof("kind") == "work":
                    self._outgoing.put_nowait(self._bound(message.work))
        finally:
            beating.cancel()
            await self._channel.close()

    async def _messages(self) -> AsyncIterator[workerlink_pb2.WorkerMessage]:
        while True:
            yield await self._outgoing.get()

    async def _beat(self) -> None:
        while True:
            self._outgoing.put_nowait(
                workerlink_pb2.WorkerMessage(heartbeat=workerlink_pb2.Heartbeat(ready=True))
            )
            await asyncio.sleep(_BEAT_SECONDS)

    def _bound(self, batch: workerlink_pb2.WorkBatch) -> workerlink_pb2.WorkerMessage:
        pods = len(batch.uids) // UID_BYTES
        self.pods += pods
        return workerlink_pb2.WorkerMessage(
            outcomes=workerlink_pb2.Outcomes(
                batch_id=batch.batch_id,
                positions=encode(np.arange(pods), U32),
                codes=bytes([_BOUND]) * pods,
                nodes=encode(np.arange(pods) % NODES, U32),
                commits=[workerlink_pb2.CommitRef(shard=0, seq=batch.batch_id)],
            )
        )
