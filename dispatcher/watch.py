"""Watches: the event log as streams.

A watcher is a position in the log. It has no buffer here: while its client reads slowly, gRPC's flow control holds its
next message back, the log moves on, and if it has dropped what the watcher needs, the watch ends with OUT_OF_RANGE.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence

import numpy as np
from numpy.typing import NDArray

from dispatcher.core.eventlog import NO_TEXT, PodEvents
from dispatcher.core.podtable import NO_REASON, Phase
from dispatcher.nodes import NodeNames
from dispatcher.runtime import Runtime
from hoss.errors import InvalidInput
from hoss.v1 import common_pb2
from hoss.v1 import dispatcher_pb2 as pb
from hoss.wire.columns import NONE_U32, U8, U16, U32, Uids, encode

# Events that come within this time share a message.
COALESCE_SECONDS = 0.001
STATES_PODS = 10_000  # a message


class RevisionTooOld(InvalidInput):
    """The log does not go back that far, or the revision is of another life of the dispatcher."""


class Watch:
    """One client's watch."""

    def __init__(self, runtime: Runtime, names: NodeNames) -> None:
        self._runtime = runtime
        self._names = names
        self._named: set[int] = set()  # node indexes this stream has named

    async def messages(self, since_revision: int, *, states: bool) -> AsyncIterator[pb.WatchBatch]:
        """Events after a revision (0: from now), for ever. Raises RevisionTooOld."""
        log = self._runtime.machine.log
        position = since_revision or log.revision
        if states:
            position = log.revision
            for message in self._states(position):
                yield message
        while True:
            batches = log.since(position)
            if batches is None:
                raise RevisionTooOld(
                    f"revision {position} is not in the event log any more; list the pods, then watch from now",
                    where="since_revision",
                )
            if batches:
                position = batches[-1].revision
                yield self._encode(batches)
            else:
                await self._runtime.revised(position)
                await asyncio.sleep(COALESCE_SECONDS)

    def _states(self, revision: int) -> list[pb.WatchBatch]:
        """The present state of every live pod. All at once: no event may fall between two of the messages."""
        pods, texts = self._runtime.machine.registry.pods, self._runtime.machine.registry.reasons.texts
        phase = pods.phase[: pods.size]
        rows = np.flatnonzero((phase != Phase.ABSENT) & (phase != Phase.DELETED)).astype(np.uint32)
        messages = []
        for start in range(0, len(rows), STATES_PODS):
            part = rows[start : start + STATES_PODS]
            # A nominated pod is bound for everyone to see only when its victims have left.
            waits = self._runtime.machine.settlement.nominations.among(part)
            shown = np.where(waits, np.uint8(Phase.SCHEDULING), phase[part])
            nodes = np.where(shown == Phase.BOUND, pods.node[part], NONE_U32)
            distinct, which = np.unique(pods.reason[part], return_inverse=True)
            reasons = np.where(distinct[which] == NO_REASON, NO_TEXT, np.minimum(which, NO_TEXT)).astype(np.uint16)
            message = self._message(revision, pods.uid[part], shown, nodes)
            if (reasons != NO_TEXT).any():
                message.reasons = encode(reasons, U16)
                message.reason_texts.extend(texts[i] for i in distinct.tolist())
            messages.append(message)
        if not messages:
            messages.append(pb.WatchBatch(revision=revision))
        messages[-1].states_end = True
        return messages

    def _encode(self, batches: Sequence[PodEvents]) -> pb.WatchBatch:
        message = self._message(
            batches[-1].revision,
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
        unnamed = set(np.unique(nodes).tolist()) - self._named - {NONE_U32}
        names = {index: name for index in unnamed if (name := self._names.get(index))}
        self._named |= names.keys()
        return pb.WatchBatch(
            revision=revision,
            uids=uids.tobytes(),
            phases=encode(phases, U8),
            nodes=encode(nodes, U32),
            node_names=[common_pb2.NodeName(index=index, name=name) for index, name in names.items()],
        )


def _join_reasons(batches: Sequence[PodEvents], message: pb.WatchBatch) -> NDArray[np.uint16]:
    """One reason column over all batches; their texts go into the message, equal ones once."""
    numbers: dict[str, int] = {}
    column = []
    for batch in batches:
        if batch.reasons is None:
            column.append(np.full(len(batch.uids), NO_TEXT, np.uint16))
            continue
        own = np.array([numbers.setdefault(text, len(numbers)) for text in batch.texts], np.uint32)
        # A message cannot number more texts than this; the rest go without, and GetPod still tells them.
        padded = np.append(np.minimum(own, NO_TEXT), NO_TEXT).astype(np.uint16)
        column.append(padded[np.minimum(batch.reasons, len(own))])
    message.reason_texts.extend(list(numbers)[:NO_TEXT])
    return np.concatenate(column)
