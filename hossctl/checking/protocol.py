"""What a scheduler says over WorkerLink and Resolver, held against what it was told: a sentence for each
fault. Pure: a relay passes every message on, and shows it here first."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hoss.errors import ColumnError
from hoss.v1.resolver_pb2 import COMMITTED, DUPLICATE, ProposalBatch, VerdictBatch
from hoss.v1.workerlink_pb2 import (
    OUTCOME_BOUND,
    DispatcherMessage,
    OutcomeCode,
    Outcomes,
    WorkBatch,
    WorkerMessage,
)
from hoss.wire.columns import U8, U32, decode, decode_uids


@dataclass(slots=True)
class _Work:
    """A batch that the scheduler got."""

    uids: list[bytes]
    reported: NDArray[np.bool_]  # one a pod


@dataclass(slots=True)
class ProtocolObserver:
    """Sees all messages between one scheduler and the platform, in their order. `problems` has each kind of
    fault once, with the first case of it. `stream` tells streams of WorkerLink apart: of one that was lost,
    the end may be seen after the next one's first messages."""

    name: str  # the scheduler has to register under it
    problems: list[str] = field(default_factory=list)
    registrations: int = 0  # that the dispatcher answered with Welcome
    codes: dict[bytes, int] = field(default_factory=dict)  # the latest outcome, by UID
    nodes: dict[bytes, int] = field(default_factory=dict)  # where pods were reported bound, by UID
    attempts: Counter[bytes] = field(default_factory=Counter)  # how often each pod was sent, by UID
    explained: set[bytes] = field(default_factory=set)  # UIDs whose latest outcome came with a reason
    _epochs: set[int] = field(default_factory=set)
    _work: dict[tuple[object, int], _Work] = field(default_factory=dict)  # by stream and batch id
    _proposed: dict[tuple[int, int], list[bytes]] = field(default_factory=dict)  # UIDs by batch id and shard
    _reserved: dict[bytes, int] = field(default_factory=dict)  # the node by UID, as the ledger answered
    _known: set[str] = field(default_factory=set)

    @property
    def unanswered(self) -> int:
        """Pods that it has and has not reported."""
        return sum(int((~work.reported).sum()) for work in self._work.values())

    def sent(self, message: WorkerMessage, stream: object = None) -> None:
        """The scheduler sent this to the dispatcher."""
        if message.HasField("register") and message.register.name != self.name:
            self._report(
                "name", f"registered as {message.register.name!r}, and was to register as {self.name!r}"
            )
        if message.HasField("outcomes"):
            try:
                self._outcomes(message.outcomes, stream)
            except ColumnError as exc:
                self._report("columns", f"sent outcomes that cannot be read: {exc}")

    def received(self, message: DispatcherMessage, stream: object = None) -> None:
        """The dispatcher sent this to the scheduler."""
        if message.HasField("welcome"):
            self.registrations += 1
            self._work.clear()
            self._epochs.add(message.welcome.epoch)
        if message.HasField("work"):
            self._given(message.work, stream)

    def stream_ended(self, refusal: str, stream: object = None) -> None:
        """The dispatcher ended the stream, and said why; "": the scheduler ended it, or the check did."""
        for key in [key for key in self._work if key[0] == stream]:
            del self._work[key]  # others get these pods
        if refusal:
            self._report("stream", f"was refused by the dispatcher: {refusal}")

    def proposed(self, batch: ProposalBatch) -> None:
        """The scheduler sent this to a resolver."""
        if batch.worker != self.name or batch.epoch not in self._epochs:
            given = ", ".join(map(str, sorted(self._epochs))) or "none"
            self._report(
                "epoch",
                f"proposed as worker {batch.worker!r} under epoch {batch.epoch}, and is {self.name!r} under "
                f"epoch {given}: an epoch comes with each Welcome",
            )
        try:
            for part in (batch, *batch.parts):
                self._proposed[part.batch_id, part.shard] = _keys(part.uids)
        except ColumnError as exc:
            self._report("columns", f"sent a proposal that cannot be read: {exc}")

    def judged(self, batch: VerdictBatch) -> None:
        """A resolver sent this to the scheduler."""
        if batch.invalid:
            self._report("proposal", f"had a proposal refused as invalid: {batch.invalid}")
        for part in (batch, *batch.parts):
            uids = self._proposed.get((part.batch_id, part.shard), [])
            verdicts = decode(part.verdicts, U8, name="verdicts").tolist()
            nodes = decode(part.nodes, U32, name="nodes").tolist()
            for uid, verdict, node in zip(uids, verdicts, nodes, strict=False):
                if verdict in (COMMITTED, DUPLICATE):
                    self._reserved[uid] = node

    def _given(self, batch: WorkBatch, stream: object) -> None:
        uids = _keys(batch.uids)
        self._work[stream, batch.batch_id] = _Work(uids, np.zeros(len(uids), np.bool_))
        self.attempts.update(uids)

    def _outcomes(self, message: Outcomes, stream: object) -> None:
        positions = decode(message.positions, U32, name="positions")
        codes = decode(message.codes, U8, name="codes", rows=len(positions)).tolist()
        nodes = decode(message.nodes, U32, name="nodes", rows=len(positions)).tolist()
        work = self._work.get((stream, message.batch_id))
        if work is None:
            self._report(
                "batch",
                f"reported outcomes of batch {message.batch_id}, which it does not have: after Welcome only "
                "batches of that stream count",
            )
            return
        where = f"of batch {message.batch_id}, which has {len(work.uids)} pods"
        for position, code, node in zip(positions.tolist(), codes, nodes, strict=True):
            if position >= len(work.uids):
                self._report("position", f"reported position {position} {where}")
                continue
            if work.reported[position]:
                self._report("twice", f"reported position {position} {where}, twice: only the first counts")
                continue
            work.reported[position] = True
            self._outcome(work.uids[position], code, node, told=bool(message.reason_texts))

    def _outcome(self, uid: bytes, code: int, node: int, *, told: bool) -> None:
        self.codes[uid] = code
        (self.explained.add if told else self.explained.discard)(uid)
        if code not in OutcomeCode.values() or not code:
            self._report("code", f"reported code {code}, which is no OutcomeCode")
        if code == OUTCOME_BOUND:
            self.nodes[uid] = node
            reserved = self._reserved.get(uid)
            if reserved != node:
                known = "nothing" if reserved is None else f"node {reserved}"
                self._report(
                    "bound",
                    f"reported a pod as bound on node {node}, and the ledger has reserved {known} for it",
                )

    def _report(self, kind: str, text: str) -> None:
        if kind not in self._known:
            self._known.add(kind)
            self.problems.append(text)


def _keys(column: bytes) -> list[bytes]:
    uids: NDArray[Any] = decode_uids(column)
    return [uid.tobytes() for uid in uids]
