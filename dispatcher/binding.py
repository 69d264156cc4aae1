"""Kubernetes mode: has resolvers bind, at the API server, the pods whose reservations are confirmed.

A pod is asked about until it is known what became of it. Meanwhile it keeps its reservation, so nothing that the API server may
have done after all can overcommit its node. Before the first time it may still be given back: when the pod has changed since it was placed,
or its node has gone. Several resolvers take calls in turn: a binding costs them up to half a millisecond of Python.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dispatcher.core import messages as m
from dispatcher.core.podtable import Phase, Rows
from dispatcher.core.residence import removed
from dispatcher.core.settlement import CHANGED
from dispatcher.nodes import NodeNames
from dispatcher.runtime import Runtime
from hoss.client.resolver import ResolverClient
from hoss.errors import LedgerUnavailable, TransportError
from hoss.telemetry import logger
from hoss.telemetry.context import calls_belong_to
from hoss.v1 import common_pb2
from hoss.v1 import resolver_pb2 as pb
from hoss.wire.columns import U8, U32, Uids, decode, decode_uids

# A call's pods wait for the slowest of them, so not too many; calls under way are enough to keep all connections busy.
_PODS = 50
_CALLS = 8
_AGAIN_SECONDS = 0.5


class _Waiting(NamedTuple):
    row: int
    uid: bytes


class Binding:
    """`take` pods; `run` must be running."""

    def __init__(
        self,
        runtime: Runtime,
        client: ResolverClient,
        names: NodeNames,
        *,
        heard_of: Callable[[int], int],
        vanished: Callable[[str], bool],
        certain: Callable[[], bool],
    ) -> None:
        """`heard_of`: by shard, up to which seq it is known who had to go for whom; `vanished`: whether there is no node of this name
        any more; `certain`: whether nobody else can be the active dispatcher."""
        self._runtime = runtime
        self._machine = runtime.machine
        self._client = client
        self._names = names
        self._heard_of = heard_of
        self._vanished = vanished
        self._certain = certain
        self._asked: set[bytes] = set()  # UIDs of those that the API server may have bound already
        self._queue: asyncio.Queue[_Waiting] = asyncio.Queue()
        self.bound: Callable[[Rows, list[str]], None] = lambda _rows, _nodes: None  # told of what was bound, and where

    def take(self, rows: Rows, uids: Uids, *, asked: bool = False) -> None:
        """These pods have reservations that stay. Those that are bound already, or are not there any more, are passed over.
        `asked`: somebody may have asked the API server to bind them already."""
        for row, uid in zip(rows.tolist(), map(bytes, uids), strict=True):
            if asked:
                self._asked.add(uid)
            self._queue.put_nowait(_Waiting(row, uid))

    async def run(self) -> None:
        """Bind until cancelled."""
        await asyncio.gather(*(self._lane() for _ in range(_CALLS)))

    async def _lane(self) -> None:
        while True:
            batch = [await self._queue.get()]
            while len(batch) < _PODS and not self._queue.empty():
                batch.append(self._queue.get_nowait())
            try:
                await self._bind(batch)
            except (LedgerUnavailable, TransportError) as exc:
                logger().warning("bindings_delayed", pods=len(batch), error=str(exc))
                self._runtime.problems["binding"] = f"pods cannot be bound now: {exc}"
                self._later(batch)
            else:
                self._runtime.problems.pop("binding", None)

    def _later(self, batch: Iterable[_Waiting]) -> None:
        for waiting in batch:
            asyncio.get_running_loop().call_later(_AGAIN_SECONDS, self._queue.put_nowait, waiting)

    async def _bind(self, batch: list[_Waiting]) -> None:
        wanted = self._withdraw([waiting for waiting in batch if self._to_be_bound(waiting)])
        early = {waiting for waiting in wanted if self._too_early(waiting)}
        for waiting in early:
            if self._machine.settlement.nominations.without_word(waiting.row):
                await self._ask_for_whom(waiting)
        self._later(early)
        rows = np.array([waiting.row for waiting in wanted if waiting not in early], np.uint32)
        if not len(rows):
            return
        if not self._certain():
            raise LedgerUnavailable("the dispatcher's lease could not be renewed in time; another may be active")
        nodes = self._machine.registry.pods.node[rows].copy()
        uids = self._machine.registry.pods.uid[rows].copy()
        self._asked.update(map(bytes, uids))
        traces, began_ns = self._runtime.traces, time.time_ns()
        context = None if traces is None else traces.binding(uids)
        with calls_belong_to("" if context is None else str(context)):
            reply = await self._client.bind(self._request(rows, uids, nodes))
        results = decode(reply.results, U8, name="results", rows=len(rows))
        self._asked.difference_update(map(bytes, uids[~np.isin(results, (pb.BIND_UNKNOWN, pb.BIND_UNRESERVED))]))
        texts = list(reply.texts) or [""] * len(rows)
        if traces is not None:
            from dispatcher.tracing import Bindings  # noqa: PLC0415 - there is a tracer, so it is there

            names = [self._names.get(node) for node in nodes.tolist()]
            traces.bound(Bindings([*map(bytes, uids)], names, results.tolist(), texts), context, began_ns)
        # Rows may be others' by now.
        same = (self._machine.registry.pods.uid[rows] == uids).all(axis=1)
        await self._settle(rows[same], uids[same], nodes[same], results[same], np.array(texts, object)[same].tolist())

    async def _settle(self, rows: Rows, uids: Uids, nodes: Rows, results: NDArray[np.uint8], texts: list[str]) -> None:
        done = results == pb.BIND_DONE
        if done.any():
            self._machine.counters["bindings"] += int(done.sum())
            self.bound(rows[done], [self._names.get(node) for node in nodes[done].tolist()])
            self._runtime.tell(m.Assigned(rows[done], nodes[done]))
        refused = results == pb.BIND_REFUSED
        if refused.any():
            self._machine.counters["bindings_refused"] += int(refused.sum())
            reasons = tuple(texts[i] for i in np.flatnonzero(refused).tolist())
            self._runtime.tell(m.BindingRefused(rows[refused], reasons))
        unknown = np.flatnonzero(results == pb.BIND_UNKNOWN)
        if len(unknown):
            logger().warning("bindings_in_doubt", pods=len(unknown), error=texts[int(unknown[0])])
            self._later([_Waiting(int(rows[i]), uids[i].tobytes()) for i in unknown.tolist()])
        unreserved = results == pb.BIND_UNRESERVED
        if unreserved.any():
            await self._runtime.verify(m.Verify(rows[unreserved], uids[unreserved]))
            self.take(rows[unreserved], uids[unreserved])

    def _to_be_bound(self, waiting: _Waiting) -> bool:
        pods = self._machine.registry.pods
        there = bool(
            pods.phase[waiting.row] == Phase.BOUND
            and not pods.assigned[waiting.row]
            and pods.uid[waiting.row].tobytes() == waiting.uid
        )
        if not there:
            self._asked.discard(waiting.uid)
        return there

    def _withdraw(self, wanted: list[_Waiting]) -> list[_Waiting]:
        """Give back what is not to be bound as it was placed, and has been asked for by nobody; returns the others."""
        reasons = {waiting: "" if waiting.uid in self._asked else self._why_not(waiting.row) for waiting in wanted}
        withdrawn = {waiting: why for waiting, why in reasons.items() if why}
        if withdrawn:
            self._machine.counters["bindings_withdrawn"] += len(withdrawn)
            rows = np.array([waiting.row for waiting in withdrawn], np.uint32)
            self._runtime.tell(m.BindingRefused(rows, tuple(withdrawn.values()), attempted=False))
        return [waiting for waiting in wanted if waiting not in withdrawn]

    def _why_not(self, row: int) -> str:
        if self._machine.registry.pods.outdated[row]:
            return CHANGED
        node = self._names.get(int(self._machine.registry.pods.node[row]))
        return removed(node) if node and self._vanished(node) else ""

    async def _ask_for_whom(self, waiting: _Waiting) -> None:
        """A pod that others were to go for may have found room all the same; then nobody did, and nobody's end will be told."""
        found = await self._runtime.ledger.lookup(decode_uids(waiting.uid))
        heard = all(self._heard_of(shard) >= int(seqs.max()) for shard, seqs in found.commits.items())
        nominations = self._machine.settlement.nominations
        if found.commits and heard and nominations.without_word(waiting.row):
            nominations.nobody_went(waiting.row)

    def _too_early(self, waiting: _Waiting) -> bool:
        """Whether others are still leaving for it, or the feed is about to tell of its node."""
        nominations = self._machine.settlement.nominations
        nominated = nominations.waits(waiting.row) or nominations.leaving_for(waiting.uid)
        return nominated or not self._names.get(int(self._machine.registry.pods.node[waiting.row]))

    def _request(self, rows: Rows, uids: Uids, nodes: Rows) -> pb.BindRequest:
        registry = self._machine.registry
        return pb.BindRequest(
            uids=uids.tobytes(),
            nodes=nodes.astype(U32).tobytes(),
            pods=[f"{registry.namespace_of(row)}/{registry.set_of(row).pod_name(row)}" for row in rows.tolist()],
            node_names=[
                common_pb2.NodeName(index=index, name=self._names.get(index)) for index in np.unique(nodes).tolist()
            ],
        )


def unbound(runtime: Runtime) -> tuple[Rows, Uids]:
    """All pods that have reservations and are not assigned, such as an earlier term has left."""
    pods = runtime.machine.registry.pods
    rows = np.flatnonzero((pods.phase[: pods.size] == Phase.BOUND) & ~pods.assigned[: pods.size]).astype(np.uint32)
    return rows, decode_uids(pods.uid[rows].tobytes())
