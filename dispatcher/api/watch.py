"""Watches: the event log as streams.

A watch is a position in the log, without a buffer. While its client reads slowly, gRPC's flow control holds
the next message back. If the log has dropped the watch's position meanwhile, the watch ends with
OUT_OF_RANGE.

A worker may bind pods on a node before the node feed has told this dispatcher of the node. The watch waits
for the feed then, because it could not name the node."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from dispatcher.api.tenancy import TenantView
from dispatcher.core.machine import Machine
from dispatcher.core.pods.history import NO_TEXT, PodEvents
from dispatcher.core.pods.table import NO_REASON, Phase, Rows
from dispatcher.ledger.nodes import ClusterNodes
from dispatcher.runtime import Runtime
from hoss.errors import InvalidInput
from hoss.v1 import common_pb2
from hoss.v1 import dispatcher_pb2 as pb
from hoss.wire.columns import NONE_U32, U8, U16, U32, Uids, encode

# Events within this time share a message.
COALESCE_SECONDS = 0.001
STATES_PODS = 10_000  # in one message
EVENTS_PODS = 25_000  # in one message, about

# How long a watch waits for a node's name, and how often it looks. An unconfirmed reservation lasts as long,
# and nothing is confirmed while the feed stays away because no resolver answers.
NAME_SECONDS = 30.0
_LOOK_SECONDS = 0.05


class RevisionTooOld(InvalidInput):
    """The log does not reach back that far, or the revision belongs to another term."""


class Watch:
    """One client's watch."""

    def __init__(self, runtime: Runtime, nodes: ClusterNodes, view: TenantView) -> None:
        self._runtime = runtime
        self._nodes = nodes
        self._view = view
        self._seen: set[bytes] = set()  # see TenantView.of_events
        self._named: dict[int, str] = {}  # by index, the names that this stream has sent last
        self._nameless: set[int] = set()  # indexes for whose names it has waited in vain

    async def messages(self, since_revision: int, *, states: bool) -> AsyncIterator[pb.WatchBatch]:
        """Events after a revision (0: from now), without end. Raises RevisionTooOld."""
        log = self._runtime.machine.log
        position = since_revision or log.revision
        if states:
            position = log.revision
            listing = _Listing(self._runtime.machine)
            async for message in self._states(listing, position):
                yield message
        while True:
            batches = log.since(position)
            if batches is None:
                raise RevisionTooOld(
                    f"revision {position} is not in the event log any more; list the pods, then watch from "
                    "now",
                    where="since_revision",
                )
            for part in _parts(batches):
                shown = self._view.of_events(part, self._seen) if self._view.tenant else part
                if shown:
                    if self._unnamed(np.concatenate([b.nodes for b in shown])):
                        await self._names_known(partial(self._bound_nodes, self._rows(shown)))
                    yield self._encode(shown, part[-1].revision)
                await asyncio.sleep(0)  # also where nothing was shown
            if batches:
                position = batches[-1].revision
            else:
                await self._runtime.revised(position)
                await asyncio.sleep(COALESCE_SECONDS)

    async def _names_known(self, bound_nodes: Callable[[], NDArray[np.uint32]]) -> None:
        """Return once the feed has named these nodes, or no pod is bound there any more."""
        deadline = self._runtime.now() + NAME_SECONDS
        while True:
            unnamed = self._unnamed(bound_nodes())
            self._nameless &= unnamed
            if unnamed <= self._nameless:
                return
            if self._runtime.now() >= deadline:
                self._nameless |= unnamed
                return
            await asyncio.sleep(_LOOK_SECONDS)

    def _rows(self, batches: Sequence[PodEvents]) -> Rows:
        uids = np.concatenate([batch.uids for batch in batches])
        rows: Rows = self._runtime.machine.registry.directory.rows_of_uids(uids)
        known: Rows = rows[rows != NONE_U32]
        return known

    def _bound_nodes(self, rows: Rows) -> NDArray[np.uint32]:
        """The indexes of the nodes of those that are bound, also where the API server told so: it may tell of
        a pod on a new node before the feed tells of the node."""
        pods = self._runtime.machine.registry.pods
        nodes: NDArray[np.uint32] = pods.node[rows[pods.phase[rows] == Phase.BOUND]]
        return nodes

    def _unnamed(self, nodes: NDArray[np.uint32]) -> set[int]:
        return {i for i in np.unique(nodes).tolist() if i != NONE_U32 and not self._nodes.name(i)}

    async def _states(self, listing: "_Listing", revision: int) -> AsyncIterator[pb.WatchBatch]:
        """The state of every live pod at the moment of the listing."""
        for start in range(0, listing.size, STATES_PODS):
            part = listing.part(slice(start, start + STATES_PODS))
            rows = self._view.of_rows(part)
            if len(rows):
                yield await self._states_of(listing, rows, revision)
            else:
                await asyncio.sleep(0)
        yield pb.WatchBatch(revision=revision, states_end=True)

    async def _states_of(self, listing: "_Listing", rows: Rows, revision: int) -> pb.WatchBatch:
        uids = self._runtime.machine.registry.pods.uid[rows]
        # A nominated pod is shown as bound only when its victims have left.
        waits = self._runtime.machine.settlement.nominations.nominated(rows)
        shown = np.where(waits, np.uint8(Phase.SCHEDULING), listing.phases[rows])
        nodes = np.where(shown == Phase.BOUND, listing.nodes[rows], NONE_U32)
        if self._unnamed(nodes):
            await self._names_known(partial(self._bound_nodes, rows))
        distinct, which = np.unique(listing.reasons[rows], return_inverse=True)
        reasons = np.where(distinct[which] == NO_REASON, NO_TEXT, np.minimum(which, NO_TEXT)).astype(
            np.uint16
        )
        message = self._message(revision, uids, shown, nodes)
        if (reasons != NO_TEXT).any():
            message.reasons = encode(reasons, U16)
            message.reason_texts.extend(self._view.text(listing.texts[i]) for i in distinct.tolist())
        return message

    def _encode(self, batches: Sequence[PodEvents], revision: int) -> pb.WatchBatch:
        message = self._message(
            revision,
            np.concatenate([b.uids for b in batches]),
            np.concatenate([b.phases for b in batches]),
            np.concatenate([b.nodes for b in batches]),
        )
        if any(b.reasons is not None for b in batches):
            message.reasons = encode(_join_reasons(batches, message), U16)
        return message

    def _message(
        self, revision: int, uids: Uids, phases: NDArray[np.uint8], nodes: NDArray[np.uint32]
    ) -> pb.WatchBatch:
        # An index that was free goes to the next node, which has another name.
        names = {
            index: name
            for index in np.unique(nodes).tolist()
            if index != NONE_U32 and (name := self._nodes.name(index)) and name != self._named.get(index)
        }
        self._named |= names
        return pb.WatchBatch(
            revision=revision,
            uids=uids.tobytes(),
            phases=encode(phases, U8),
            nodes=encode(nodes, U32),
            node_names=[common_pb2.NodeName(index=index, name=name) for index, name in names.items()],
        )


class _Listing:
    """The states of all pods at one moment, copied at once. What else a message needs is read when it is
    made: rows that have got other pods since are left out of it."""

    def __init__(self, machine: Machine) -> None:
        self._pods = pods = machine.registry.pods
        self.size = pods.size
        self.phases = pods.phase[: self.size].copy()
        self.nodes = pods.node[: self.size].copy()
        self.reasons = pods.reason[: self.size].copy()
        self.texts = list(machine.registry.reasons.texts)
        self._sets = pods.pod_set[: self.size].copy()

    def part(self, rows: slice) -> Rows:
        """Those of the rows whose pods lived and have their rows still."""
        phases = self.phases[rows]
        live = (phases != Phase.ABSENT) & (phases != Phase.DELETED)
        live &= self._sets[rows] == self._pods.pod_set[: self.size][rows]
        found: Rows = (np.flatnonzero(live) + rows.start).astype(np.uint32)
        return found


def _parts(batches: Sequence[PodEvents]) -> Iterator[Sequence[PodEvents]]:
    """The batches in parts of about EVENTS_PODS pods, one after the other. A large batch is cut. Its pieces
    but the last have the revision before: who resumes there gets the whole batch again."""
    part: list[PodEvents] = []
    pods = 0
    for batch in batches:
        for start in range(0, len(batch.uids), EVENTS_PODS):
            piece = slice(start, start + EVENTS_PODS)
            last = start + EVENTS_PODS >= len(batch.uids)
            reasons = None if batch.reasons is None else batch.reasons[piece]
            part.append(
                PodEvents(
                    batch.revision if last else batch.revision - 1,
                    batch.uids[piece],
                    batch.phases[piece],
                    batch.nodes[piece],
                    reasons,
                    batch.texts,
                )
            )
            pods += len(part[-1].uids)
            if pods >= EVENTS_PODS:
                yield part
                part, pods = [], 0
    if part:
        yield part


def _join_reasons(batches: Sequence[PodEvents], message: pb.WatchBatch) -> NDArray[np.uint16]:
    """One reason column for all batches. Adds their texts to the message, without repetition."""
    numbers: dict[str, int] = {}
    column = []
    for batch in batches:
        if batch.reasons is None:
            column.append(np.full(len(batch.uids), NO_TEXT, np.uint16))
            continue
        own = np.array([numbers.setdefault(text, len(numbers)) for text in batch.texts], np.uint32)
        # A message cannot number more texts than this. The others are left out; GetPod still has them.
        padded = np.append(np.minimum(own, NO_TEXT), NO_TEXT).astype(np.uint16)
        column.append(padded[np.minimum(batch.reasons, len(own))])
    message.reason_texts.extend(list(numbers)[:NO_TEXT])
    return np.concatenate(column)
