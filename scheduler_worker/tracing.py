"""Spans of placing pods and of proposals.

A proposal has two spans, `place` and `propose`. The latter has an event for each pod, its decision record.
"""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from opentelemetry.sdk.trace import Event
from opentelemetry.trace import SpanKind

from hoss.telemetry.context import TraceContext, now_ns, read_traceparent
from hoss.telemetry.tracing import Tracer
from hoss.v1.resolver_pb2 import ProposalBatch, Verdict, VerdictBatch
from hoss.v1.workerlink_pb2 import WorkBatch
from hoss.wire.columns import NONE_U32, U32, decode
from hoss.wire.uids import UID_BYTES

_MAX_BATCHES = 4096  # remembered; batches that were given back unstarted get no verdict

_ACCEPTED = (Verdict.COMMITTED, Verdict.DUPLICATE)
_NAMES = {number: name for name, number in Verdict.items()}


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
    """The spans of one worker. Its methods are called when the events that they are named after happen."""

    def __init__(self, tracer: Tracer, worker: str) -> None:
        self._tracer = tracer
        self._worker = worker
        self._works: OrderedDict[int, _Received] = OrderedDict()
        self._proposals: OrderedDict[tuple[int, int], _Proposed] = OrderedDict()

    def received(self, work: WorkBatch) -> None:
        """A work batch was received."""
        context = read_traceparent(work.traceparent)
        if context is not None:
            self._works[work.batch_id] = _Received(context, now_ns())
            if len(self._works) > _MAX_BATCHES:
                self._works.popitem(last=False)

    def proposed(self, proposal: ProposalBatch, work_batch: int) -> None:
        """Pods of that work batch are about to be proposed. The message gets the span's context."""
        work = self._works.get(work_batch)
        if work is None:
            return
        context = work.context.child()
        proposal.traceparent = str(context)
        self._proposals[proposal.shard, proposal.batch_id] = _Proposed(work, work_batch, context, now_ns())
        if len(self._proposals) > _MAX_BATCHES:
            self._proposals.popitem(last=False)

    def decided(self, proposal: ProposalBatch, verdict: VerdictBatch) -> None:
        """The proposal has its verdicts."""
        proposed = self._proposals.pop((proposal.shard, proposal.batch_id), None)
        if proposed is None:
            return
        parts = list(zip((proposal, *proposal.parts), (verdict, *verdict.parts), strict=False))
        refused = sum(len(v.verdicts) - sum(map(v.verdicts.count, _ACCEPTED)) for _, v in parts)
        if not (proposed.context.kept or refused or verdict.invalid):
            return
        parent, at_ns = proposed.work.context.span_id, now_ns()
        batch_attributes = {"hoss.worker": self._worker, "hoss.batch": proposed.batch_id}
        self._tracer.span(
            "place",
            proposed.context.child(),
            parent=parent,
            began_ns=proposed.work.at_ns,
            ended_ns=proposed.at_ns,
            attributes=batch_attributes,
        )
        self._tracer.span(
            "propose",
            proposed.context,
            parent=parent,
            began_ns=proposed.at_ns,
            ended_ns=at_ns,
            kind=SpanKind.CLIENT,
            attributes={
                **batch_attributes,
                "hoss.pods": sum(len(p.uids) for p, _ in parts) // UID_BYTES,
                "hoss.refused": refused,
                "hoss.snapshot_seq": proposal.snapshot_seq,
                "hoss.shard": proposal.shard,
            },
            events=[e for p, v in parts for e in self._decisions(p, v, at_ns, every=proposed.context.kept)],
            error=verdict.invalid or (f"{refused} pods refused" if refused else ""),
        )

    def _decisions(
        self, proposal: ProposalBatch, verdict: VerdictBatch, at_ns: int, *, every: bool
    ) -> Iterator[Event]:
        """Decision records: of `every` pod, or of the refused pods alone."""
        shared = {
            "hoss.worker": self._worker,
            "hoss.snapshot_seq": proposal.snapshot_seq,
            "hoss.seq": verdict.seq,
        }
        candidates = (
            decode(proposal.nodes, U32, name="nodes").reshape(-1, max(1, proposal.candidates)).tolist()
        )
        nodes = decode(verdict.nodes, U32, name="nodes").tolist()
        uids = proposal.uids.hex(" ", UID_BYTES).split(" ")
        for uid, (choice, *others), code, node in zip(
            uids, candidates, verdict.verdicts, nodes, strict=False
        ):
            if every or code not in _ACCEPTED:
                decision = {
                    "hoss.uid": uid,
                    "hoss.choice": choice,
                    "hoss.alternates": [other for other in others if other != NONE_U32],
                    "hoss.verdict": _NAMES.get(code, str(code)),
                    "hoss.node": node,
                }
                yield Event("decision", decision | shared, at_ns)
