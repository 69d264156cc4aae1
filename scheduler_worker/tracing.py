"""Spans of what a worker places and proposes."""

import time
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from opentelemetry.trace import SpanKind

from hoss.telemetry.context import TraceContext, read_traceparent
from hoss.telemetry.otlp import event_template, int_values
from hoss.telemetry.tracing import Tracer
from hoss.v1.resolver_pb2 import ProposalBatch, Verdict, VerdictBatch
from hoss.v1.workerlink_pb2 import WorkBatch
from hoss.wire.columns import NONE_U32, U32, UID_BYTES, decode

_MOST_BATCHES = 4096  # remembered: some that were given back unstarted are never heard of again

_WELL = (Verdict.COMMITTED, Verdict.DUPLICATE)
_NAMES = {number: name for name, number in Verdict.items()}

# A decision record's own attributes; what all of a proposal share comes with them.
_OWN = {
    "hoss.uid": "stringValue",
    "hoss.choice": "intValue",
    "hoss.alternates": "arrayValue",
    "hoss.verdict": "stringValue",
    "hoss.node": "intValue",
}


class _Received(NamedTuple):
    context: TraceContext
    at_ns: int


@dataclass(frozen=True, slots=True)
class _Proposed:
    work: _Received
    batch_id: int  # the work batch's
    context: TraceContext
    at_ns: int


class WorkerTraces:
    """Told of work batches, proposals and verdicts. Of a proposal there are two spans, `place` and `propose`; the latter has an event for
    each pod: its decision record."""

    def __init__(self, tracer: Tracer, worker: str) -> None:
        self._tracer = tracer
        self._worker = worker
        self._works: OrderedDict[int, _Received] = OrderedDict()
        self._proposals: OrderedDict[tuple[int, int], _Proposed] = OrderedDict()

    def received(self, work: WorkBatch) -> None:
        """A work batch has come."""
        context = read_traceparent(work.traceparent)
        if context is not None:
            self._works[work.batch_id] = _Received(context, time.time_ns())
            if len(self._works) > _MOST_BATCHES:
                self._works.popitem(last=False)

    def proposed(self, proposal: ProposalBatch, work_batch: int) -> None:
        """Pods of that work batch are about to be proposed; the message is told to which span it belongs."""
        work = self._works.get(work_batch)
        if work is None:
            return
        context = work.context.child()
        proposal.traceparent = str(context)
        self._proposals[proposal.shard, proposal.batch_id] = _Proposed(work, work_batch, context, time.time_ns())
        if len(self._proposals) > _MOST_BATCHES:
            self._proposals.popitem(last=False)

    def decided(self, proposal: ProposalBatch, verdict: VerdictBatch) -> None:
        """The ledger has answered."""
        told = self._proposals.pop((proposal.shard, proposal.batch_id), None)
        if told is None:
            return
        parts = list(zip((proposal, *proposal.parts), (verdict, *verdict.parts), strict=False))
        refused = sum(len(v.verdicts) - sum(map(v.verdicts.count, _WELL)) for _, v in parts)
        if not (told.context.kept or refused or verdict.invalid):
            return
        parent, now_ns = told.work.context.span_id, time.time_ns()
        of_batch = {"hoss.worker": self._worker, "hoss.batch": told.batch_id}
        self._tracer.span(
            "place",
            told.context.child(),
            parent=parent,
            began_ns=told.work.at_ns,
            ended_ns=told.at_ns,
            attributes=of_batch,
        )
        self._tracer.span(
            "propose",
            told.context,
            parent=parent,
            began_ns=told.at_ns,
            ended_ns=now_ns,
            kind=SpanKind.CLIENT,
            attributes={
                **of_batch,
                "hoss.pods": sum(len(p.uids) for p, _ in parts) // UID_BYTES,
                "hoss.refused": refused,
                "hoss.snapshot_seq": proposal.snapshot_seq,
                "hoss.shard": proposal.shard,
            },
            happenings=[h for p, v in parts for h in self._decisions(p, v, now_ns, every=told.context.kept)],
            error=verdict.invalid or (f"{refused} pods refused" if refused else ""),
        )

    def _decisions(self, proposal: ProposalBatch, verdict: VerdictBatch, at_ns: int, *, every: bool) -> Iterator[bytes]:
        """Of every pod, or of those refused alone, where nothing else led to the span."""
        of_all = {"hoss.worker": self._worker, "hoss.snapshot_seq": proposal.snapshot_seq, "hoss.seq": verdict.seq}
        template = event_template("decision", at_ns, of_all, _OWN)
        candidates = decode(proposal.nodes, U32, name="nodes").reshape(-1, max(1, proposal.candidates)).tolist()
        nodes = decode(verdict.nodes, U32, name="nodes").tolist()
        uids = proposal.uids.hex(" ", UID_BYTES).split(" ")
        for uid, (choice, *others), code, node in zip(uids, candidates, verdict.verdicts, nodes, strict=False):
            if every or code not in _WELL:
                alternates = int_values([other for other in others if other != NONE_U32])
                yield (template % (uid, choice, alternates, _NAMES.get(code, code), node)).encode()
