"""Spans of submissions, work batches, confirmations and bindings.

A submission begins a trace, or continues its client's trace. A work batch belongs to the trace of its first
pod's submission and links to the submissions of its other pods. Each batch is kept or not on its own, so that
a job of a million pods is sampled, and not kept as a whole. A submission's span is exported with its first
batch that is kept.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from opentelemetry.sdk.trace import Event
from opentelemetry.trace import SpanKind

from dispatcher.core.machine import Machine
from dispatcher.core.messages import Confirm, OutcomeCode, SendWork
from dispatcher.core.pods.sets import Submission
from dispatcher.core.pods.table import Rows
from hoss.telemetry.context import TraceContext, new_trace, now_ns, read_traceparent
from hoss.telemetry.tracing import Tracer
from hoss.v1 import workerlink_pb2
from hoss.v1.resolver_pb2 import BIND_DONE, BIND_UNKNOWN, BIND_VICTIMS, BindResult
from hoss.wire.columns import NONE_U16, U16, U32, Uids, decode

_MAX_SUBMISSIONS = 10_000  # remembered; pods of older submissions begin traces of their own
_MAX_ENDED = 1_000
_MAX_CONFIRMED = 10_000  # pods remembered until they are bound
_MAX_LINKS = 128
_MAX_NAMES = 1_000  # pod names in the span of a submission
_MAX_OUTCOMES = 100  # pods that were not bound, in the span of their batch

_FAILURES = {OutcomeCode.CONFLICT, OutcomeCode.INVALID, OutcomeCode.FENCED}


class Bindings(NamedTuple):
    """Results of binding pods at the API server, all (n,)."""

    uids: Sequence[bytes]
    nodes: Sequence[str]
    results: Sequence[int]  # BindResult
    texts: Sequence[str]


@dataclass(slots=True)
class _Submitted:
    context: TraceContext
    parent: int | None
    began_ns: int
    ended_ns: int
    exported: bool = False


@dataclass(slots=True)
class _Sent:
    context: TraceContext
    submission: _Submitted | None
    worker: str
    began_ns: int
    rows: Rows
    uids: Uids
    unanswered: int
    outcomes: Counter[str] = field(default_factory=Counter)
    refused: int = 0
    events: list[Event] = field(default_factory=list)


class DispatcherTraces:
    """The spans of one term. Its methods are called when the events that they are named after happen."""

    def __init__(self, tracer: Tracer, machine: Machine) -> None:
        self._tracer = tracer
        self._machine = machine
        self._registry = machine.registry
        self._submissions: OrderedDict[bytes, _Submitted] = OrderedDict()
        self._sent: dict[int, _Sent] = {}
        self._ended: OrderedDict[int, TraceContext] = OrderedDict()  # batches whose spans were exported
        # Confirmed pods of these batches, by UID.
        self._confirmed: OrderedDict[bytes, TraceContext] = OrderedDict()

    def submitted(self, submission: Submission, traceparent: str, began_ns: int) -> None:
        """A submission that was received at `began_ns` is durable."""
        client = read_traceparent(traceparent)
        context = new_trace(kept=False) if client is None else client.child()
        parent = None if client is None else client.span_id
        self._submissions[submission.key] = _Submitted(context, parent, began_ns, now_ns())
        if len(self._submissions) > _MAX_SUBMISSIONS:
            self._submissions.popitem(last=False)

    def sent(self, work: SendWork, message: workerlink_pb2.WorkBatch, worker: str) -> None:
        """A work batch is about to be sent. Its message gets the span's context."""
        holder = self._machine.members.on_link(work.link)
        if holder is None or work.batch not in holder.batches:
            return
        rows = holder.batches[work.batch].rows
        submission = self._submissions.get(self._submission_of(int(rows[0])).key)
        kept = self._tracer.chosen() or (submission is not None and submission.context.kept)
        context = (new_trace(kept=kept) if submission is None else submission.context.child())._replace(
            kept=kept
        )
        message.traceparent = str(context)
        self._sent[work.batch] = _Sent(context, submission, worker, now_ns(), rows, work.uids, len(rows))

    def answered(self, message: workerlink_pb2.Outcomes) -> None:
        """A worker has sent outcomes for pods of a batch."""
        sent = self._sent.get(message.batch_id)
        if sent is None:
            return
        sent.unanswered -= len(message.codes)
        sent.refused += len(message.refused) // 4
        for code in OutcomeCode:
            if count := message.codes.count(code):
                sent.outcomes[code.name.lower()] += count
        if len(sent.events) < _MAX_OUTCOMES and message.codes.count(OutcomeCode.BOUND) < len(message.codes):
            sent.events += _not_bound(sent.uids, message)
        if sent.unanswered <= 0:
            self._end(message.batch_id)

    def lost(self, worker: str) -> None:
        """A worker's stream has ended. No outcomes will come for its batches."""
        for batch, sent in list(self._sent.items()):
            if sent.worker == worker:
                lost = f"worker {worker} was lost, or gave up its registration,"
                self._end(batch, error=f"{lost} with {sent.unanswered} pods in hand")

    def close(self) -> None:
        """The term has ended. Outcomes that are missing come in another term, or never."""
        for batch, sent in list(self._sent.items()):
            self._end(batch, error=f"the dispatcher's term ended with {sent.unanswered} pods in hand")

    def confirming(self, confirms: Sequence[Confirm]) -> TraceContext | None:
        """The context for a confirmation of these; None if none of their batches was kept."""
        kept = [self._ended[confirm.batch] for confirm in confirms if confirm.batch in self._ended]
        return kept[0].child() if kept else None

    def confirmed(self, confirms: Sequence[Confirm], context: TraceContext, began_ns: int) -> None:
        """They are confirmed."""
        kept = [self._ended[confirm.batch] for confirm in confirms if confirm.batch in self._ended]
        pods = sum(len(confirm.rows) for confirm in confirms)
        self._tracer.span(
            "confirm",
            context,
            parent=kept[0].span_id if kept else None,
            began_ns=began_ns,
            kind=SpanKind.CLIENT,
            attributes={"hoss.pods": pods, "hoss.batches": len(confirms)},
            links=kept[1:_MAX_LINKS],
        )
        for confirm in confirms:
            if confirm.batch in self._ended:
                self._confirmed.update(dict.fromkeys(map(bytes, confirm.uids), self._ended[confirm.batch]))
        while len(self._confirmed) > _MAX_CONFIRMED:
            self._confirmed.popitem(last=False)

    def binding(self, uids: Uids) -> TraceContext | None:
        """The context for a call that binds these at the API server; None if none of their batches was
        kept."""
        kept = (self._confirmed.get(bytes(uid)) for uid in uids)
        return next((context.child() for context in kept if context is not None), None)

    def bound(self, bindings: Bindings, context: TraceContext | None, began_ns: int) -> None:
        """The call is answered. Each batch that was kept gets a span. Failed bindings of other batches get
        one together, in a new trace."""
        by_batch: dict[TraceContext | None, list[Event]] = {}
        failed: Counter[TraceContext | None] = Counter()
        at_ns = now_ns()
        for uid, node, result, text in zip(*bindings, strict=True):
            batch = self._confirmed.get(uid)
            done = result == BIND_DONE
            if batch is not None or not done:
                attributes = {
                    "hoss.uid": uid.hex(),
                    "hoss.node": node,
                    "hoss.result": BindResult.Name(BindResult.ValueType(result)),
                    "hoss.reason": text,
                }
                by_batch.setdefault(batch, []).append(Event("binding", attributes, at_ns))
                failed[batch] += not done
            if result not in (BIND_UNKNOWN, BIND_VICTIMS):  # such a binding is tried again
                self._confirmed.pop(uid, None)
        for batch, events in by_batch.items():
            own = new_trace(kept=True) if batch is None else batch.child()
            if batch is not None and context is not None and context.trace_id == batch.trace_id:
                own, context = context, None  # the parent of the resolver's span
            self._tracer.span(
                "bind",
                own,
                parent=None if batch is None else batch.span_id,
                began_ns=began_ns,
                kind=SpanKind.CLIENT,
                attributes={"hoss.pods": len(events)},
                events=events,
                error=f"{failed[batch]} bindings not done" if failed[batch] else "",
            )

    def _end(self, batch: int, *, error: str = "") -> None:
        sent = self._sent.pop(batch)
        failed = any(sent.outcomes[code.name.lower()] for code in _FAILURES)
        if not (sent.context.kept or sent.refused or failed or error):
            return
        self._ended[batch] = sent.context._replace(kept=True)
        if len(self._ended) > _MAX_ENDED:
            self._ended.popitem(last=False)
        submission = sent.submission
        self._tracer.span(
            "work batch",
            sent.context,
            parent=None if submission is None else submission.context.span_id,
            began_ns=sent.began_ns,
            kind=SpanKind.PRODUCER,
            attributes={
                "hoss.batch": batch,
                "hoss.worker": sent.worker,
                "hoss.pods": len(sent.rows),
                "hoss.refused": sent.refused,
                **{f"hoss.outcomes.{name}": count for name, count in sent.outcomes.items()},
            },
            events=sent.events[:_MAX_OUTCOMES],
            links=list(self._others(sent)),
            error=error or (f"{sent.refused} pods refused" if sent.refused else ""),
        )

    def _others(self, sent: _Sent) -> Iterator[TraceContext]:
        """Contexts of the submissions of the batch's pods, but for its parent. Exports the spans of
        submissions that are not exported yet."""
        pods = self._registry.pods
        sets = self._registry.directory.sets
        known = {
            sets[i].submission.key: sets[i].submission
            for i in np.unique(pods.pod_set[sent.rows]).tolist()
            if i in sets
        }
        for key, submission in list(known.items())[:_MAX_LINKS]:
            submitted = self._submissions.get(key)
            if submitted is None:
                continue
            if not submitted.exported:
                submitted.exported = True
                self._export(submission, submitted)
            if submitted is not sent.submission:
                yield submitted.context

    def _export(self, submission: Submission, submitted: _Submitted) -> None:
        events = [
            Event(
                "pod set",
                {
                    "hoss.namespace": pod_set.namespace,
                    "hoss.name": pod_set.name,
                    "hoss.names": pod_set.listed_names()[:_MAX_NAMES],
                    "hoss.uid_prefix": pod_set.uid_prefix.hex(),
                    "hoss.pods": pod_set.count,
                },
                submitted.ended_ns,
            )
            for pod_set in submission.sets
        ]
        self._tracer.span(
            "submit",
            submitted.context,
            parent=submitted.parent,
            began_ns=submitted.began_ns,
            ended_ns=submitted.ended_ns,
            kind=SpanKind.SERVER,
            attributes={
                "hoss.request_id": submission.request_id,
                "hoss.pods": sum(s.count for s in submission.sets),
            },
            events=events,
        )

    def _submission_of(self, row: int) -> Submission:
        return self._registry.set_of(row).submission


def _not_bound(uids: Uids, message: workerlink_pb2.Outcomes) -> Iterator[Event]:
    """The worker's outcomes and reasons for pods that it did not bind."""
    positions = decode(message.positions, U32, name="positions").tolist()
    reasons = (
        decode(message.reasons, U16, name="reasons").tolist()
        if message.reasons
        else [NONE_U16] * len(positions)
    )
    texts, at_ns = message.reason_texts, now_ns()
    not_bound = [
        i for i, code in enumerate(message.codes) if code != OutcomeCode.BOUND and positions[i] < len(uids)
    ]
    for i in not_bound[:_MAX_OUTCOMES]:
        attributes = {
            "hoss.uid": uids[positions[i]].tobytes().hex(),
            "hoss.outcome": workerlink_pb2.OutcomeCode.Name(
                workerlink_pb2.OutcomeCode.ValueType(message.codes[i])
            ),
            "hoss.reason": texts[reasons[i]] if reasons[i] < len(texts) else "",
        }
        yield Event("not bound", attributes, at_ns)
