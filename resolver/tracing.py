"""Spans of what a resolver decides and confirms."""

from collections import Counter
from typing import Any

import grpc.aio
import numpy as np
from opentelemetry.trace import SpanKind

from hoss.telemetry.context import TraceContext, context_of, read_traceparent
from hoss.telemetry.tracing import Attributes, Tracer
from hoss.v1 import resolver_pb2 as pb

_ACCEPTED = frozenset({pb.Verdict.COMMITTED, pb.Verdict.DUPLICATE})


class ResolverTraces:
    """Spans of calls and proposals that carry a trace context."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def decided(self, batch: pb.ProposalBatch, answer: pb.VerdictBatch, began_ns: int) -> None:
        """A proposal that was received at `began_ns` has its verdicts. Its span is exported if its trace is
        kept, or if any pod was refused."""
        parent = read_traceparent(batch.traceparent)
        if parent is None:
            return
        parts = (answer, *answer.parts)
        counts = {code: sum(part.verdicts.count(code) for part in parts) for code in pb.Verdict.values()}
        codes = Counter({code: count for code, count in counts.items() if count})
        error = answer.invalid or answer.unavailable
        if not (parent.kept or error or codes.keys() - _ACCEPTED):
            return
        self._served(
            "commit",
            parent,
            began_ns,
            {
                "hoss.worker": batch.worker,
                "hoss.shard": batch.shard,
                "hoss.pods": sum(codes.values()),
                "hoss.snapshot_seq": batch.snapshot_seq,
                "hoss.seq": answer.seq,
                "hoss.as_of_seq": answer.as_of_seq,
                **{
                    f"hoss.verdicts.{pb.Verdict.Name(pb.Verdict.ValueType(code))}": count
                    for code, count in codes.items()
                },
            },
            error=error or _refused(codes),
        )

    def confirmed(
        self, context: "grpc.aio.ServicerContext[Any, Any]", request: pb.ConfirmRequest, began_ns: int
    ) -> None:
        """A confirmation that was received at `began_ns` is done."""
        parent = context_of(context)
        if parent is not None and parent.kept:
            self._served(
                "confirm commits",
                parent,
                began_ns,
                {
                    "hoss.commits": sum(
                        len(part.seqs) // np.dtype(np.uint64).itemsize for part in request.commits
                    )
                },
            )

    def bound(
        self, context: "grpc.aio.ServicerContext[Any, Any]", reply: pb.BindReply, began_ns: int
    ) -> None:
        """A call for bindings that was received at `began_ns` is answered: the reservations were looked up,
        and each pod's Binding was posted."""
        parent = context_of(context)
        if parent is None or not parent.kept:
            return
        results = Counter(reply.results)
        failed = len(reply.results) - results[pb.BIND_DONE]
        self._served(
            "post bindings",
            parent,
            began_ns,
            {
                "hoss.pods": len(reply.results),
                **{
                    f"hoss.results.{pb.BindResult.Name(pb.BindResult.ValueType(result))}": count
                    for result, count in results.items()
                },
            },
            error=f"{failed} bindings not done" if failed else "",
        )

    def _served(
        self, name: str, parent: TraceContext, began_ns: int, attributes: Attributes, *, error: str = ""
    ) -> None:
        """Export a span of this resolver's work, below the caller's."""
        self._tracer.span(
            name,
            parent.child(),
            parent=parent.span_id,
            began_ns=began_ns,
            kind=SpanKind.SERVER,
            attributes=attributes,
            error=error,
        )


def _refused(codes: "Counter[int]") -> str:
    refused = sum(count for code, count in codes.items() if code not in _ACCEPTED)
    return f"{refused} pods refused" if refused else ""
