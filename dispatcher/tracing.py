"""Spans of submissions, work batches, confirmations and bindings.

A submission begins a trace, or goes on with its client's. A work batch belongs to the trace of its first pod's submission and links to those
of its other pods; whether it is kept is decided batch by batch, so that a job of a million pods is sampled and not all or nothing. A
submission's span is exported with the first batch that is kept.
"""

import time
from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from opentelemetry.trace import SpanKind

from dispatcher.core.machine import Machine
from dispatcher.core.messages import Confirm, OutcomeCode, SendWork
from dispatcher.core.podsets import Submission
from dispatcher.core.podtable import Rows
from hoss.telemetry.context import TraceContext, new_trace, read_traceparent
from hoss.telemetry.tracing import Happening, Tracer
from hoss.v1 import workerlink_pb2
from hoss.v1.resolver_pb2 import BIND_DONE, BIND_UNKNOWN, BindResult
from hoss.wire.columns import NONE_U16, U16, U32, Uids, decode

_MOST_SUBMISSIONS = 10_000  # remembered; pods of older ones begin traces of their own
_MOST_ENDED = 1_000
_MOST_CONFIRMED = 10_000  # pods remembered until they are bound
_MOST_LINKS = 128
_MOST_NAMES = 1_000  # of a list of pods, told with its span
_MOST_OUTCOMES = 100  # pods that were not bound, told with their batch

_BAD = {OutcomeCode.CONFLICT, OutcomeCode.INVALID, OutcomeCode.FENCED}


class Bindings(NamedTuple):
    """What became of pods at the API server, all (n,)."""

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
    happenings: list[Happening] = field(default_factory=list)


class DispatcherTraces:
    """Told of what goes through the dispatcher in one term."""

    def __init__(self, tracer: Tracer, machine: Machine) -> None:
        self._tracer = tracer
        self._machine = machine
        self._registry = machine.registry
        self._submissions: OrderedDict[bytes, _Submitted] = OrderedDict()
        self._sent: dict[int, _Sent] = {}
        self._ended: OrderedDict[int, TraceContext] = OrderedDict()  # batches whose spans were exported
        self._confirmed: OrderedDict[bytes, TraceContext] = OrderedDict()  # their pods, by UID, for when they are bound

    def submitted(self, submission: Submission, traceparent: str, began_ns: int) -> None:
        """A message that came then is durable."""
        client = read_traceparent(traceparent)
        context = new_trace(kept=False) if client is None else client.child()
        parent = None if client is None else client.span_id
        self._submissions[submission.key] = _Submitted(context, parent, began_ns, time.time_ns())
        if len(self._submissions) > _MOST_SUBMISSIONS:
            self._submissions.popitem(last=False)

    def sent(self, work: SendWork, message: workerlink_pb2.WorkBatch, worker: str) -> None:
        """A work batch is about to leave; its message is told to which span it belongs."""
        holder = self._machine.members.on_link(work.link)
        if holder is None or work.batch not in holder.batches:
            return
        rows = holder.batches[work.batch].rows
        submission = self._submissions.get(self._submission_of(int(rows[0])).key)
        kept = self._tracer.chosen() or (submission is not None and submission.context.kept)
        context = (new_trace(kept=kept) if submission is None else submission.context.child())._replace(kept=kept)
        message.traceparent = str(context)
        self._sent[work.batch] = _Sent(context, submission, worker, time.time_ns(), rows, work.uids, len(rows))

    def answered(self, message: workerlink_pb2.Outcomes) -> None:
        """A worker has answered for pods of a batch."""
        sent = self._sent.get(message.batch_id)
        if sent is None:
            return
        sent.unanswered -= len(message.codes)
        sent.refused += len(message.refused) // 4
        for code in OutcomeCode:
            if count := message.codes.count(code):
                sent.outcomes[code.name.lower()] += count
        if len(sent.happenings) < _MOST_OUTCOMES and message.codes.count(OutcomeCode.BOUND) < len(message.codes):
            sent.happenings += _not_bound(sent.uids, message)
        if sent.unanswered <= 0:
            self._end(message.batch_id)

    def lost(self, worker: str) -> None:
        """A worker's stream has ended: what it has not answered, it never will."""
        lost = f"worker {worker} was lost, or gave up its registration,"
        for batch in [batch for batch, sent in self._sent.items() if sent.worker == worker]:
            self._end(batch, error=f"{lost} with {self._sent[batch].unanswered} pods in hand")

    def close(self) -> None:
        """The term has ended: what is unanswered will be answered in another, or not at all."""
        for batch in list(self._sent):
            self._end(batch, error=f"the dispatcher's term ended with {self._sent[batch].unanswered} pods in hand")

    def confirming(self, confirms: Sequence[Confirm]) -> TraceContext | None:
        """The span that a confirmation of these is to have; None: none of their batches was kept."""
        kept = [self._ended[confirm.batch] for confirm in confirms if confirm.batch in self._ended]
        return kept[0].child() if kept else None

    def confirmed(self, confirms: Sequence[Confirm], context: TraceContext, began_ns: int) -> None:
        """They are."""
        kept = [self._ended[confirm.batch] for confirm in confirms if confirm.batch in self._ended]
        pods = sum(len(confirm.rows) for confirm in confirms)
        self._tracer.span(
            "confirm",
            context,
            parent=kept[0].span_id if kept else None,
            began_ns=began_ns,
            kind=SpanKind.CLIENT,
            attributes={"hoss.pods": pods, "hoss.batches": len(confirms)},
            links=kept[1:_MOST_LINKS],
        )
        for confirm in confirms:
            if confirm.batch in self._ended:
                self._confirmed.update(dict.fromkeys(map(bytes, confirm.uids), self._ended[confirm.batch]))
        while len(self._confirmed) > _MOST_CONFIRMED:
            self._confirmed.popitem(last=False)

    def binding(self, uids: Uids) -> TraceContext | None:
        """The span that a call which binds these at the API server is to have; None: none of their batches was kept."""
        kept = (self._confirmed.get(bytes(uid)) for uid in uids)
        return next((context.child() for context in kept if context is not None), None)

    def bound(self, bindings: Bindings, context: TraceContext | None, began_ns: int) -> None:
        """The call is answered. Of each batch that was kept there is a span, and one of a trace of its own of what was refused without."""
        by_batch: dict[TraceContext | None, list[Happening]] = {}
        failed: Counter[TraceContext | None] = Counter()
        now_ns = time.time_ns()
        for uid, node, result, text in zip(*bindings, strict=True):
            batch = self._confirmed.get(uid)
            well = result == BIND_DONE
            if batch is not None or not well:
                attributes = {
                    "hoss.uid": uid.hex(), "hoss.node": node, "hoss.result": BindResult.Name(BindResult.ValueType(result)),
                    "hoss.reason": text,
                }  # fmt: skip
                by_batch.setdefault(batch, []).append(Happening("binding", now_ns, attributes))
                failed[batch] += not well
            if result != BIND_UNKNOWN:  # else it is asked about again
                self._confirmed.pop(uid, None)
        for batch, happenings in by_batch.items():
            own = new_trace(kept=True) if batch is None else batch.child()
            if batch is not None and context is not None and context.trace_id == batch.trace_id:
                own, context = context, None  # what the resolver's span is part of
            self._tracer.span(
                "bind",
                own,
                parent=None if batch is None else batch.span_id,
                began_ns=began_ns,
                kind=SpanKind.CLIENT,
                attributes={"hoss.pods": len(happenings)},
                happenings=happenings,
                error=f"{failed[batch]} bindings not done" if failed[batch] else "",
            )

    def _end(self, batch: int, *, error: str = "") -> None:
        sent = self._sent.pop(batch)
        bad = any(sent.outcomes[code.name.lower()] for code in _BAD)
        if not (sent.context.kept or sent.refused or bad or error):
            return
        self._ended[batch] = sent.context._replace(kept=True)
        if len(self._ended) > _MOST_ENDED:
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
            happenings=sent.happenings[:_MOST_OUTCOMES],
            links=list(self._others(sent)),
            error=error or (f"{sent.refused} pods refused" if sent.refused else ""),
        )

    def _others(self, sent: _Sent) -> Iterator[TraceContext]:
        """Submissions of the batch's pods, exported if they were not yet; those but the one it belongs to are links."""
        pods = self._registry.pods
        sets = self._registry.directory.sets
        known = {
            sets[i].submission.key: sets[i].submission for i in np.unique(pods.pod_set[sent.rows]).tolist() if i in sets
        }
        for key, submission in list(known.items())[:_MOST_LINKS]:
            submitted = self._submissions.get(key)
            if submitted is None:
                continue
            if not submitted.exported:
                submitted.exported = True
                self._export(submission, submitted)
            if submitted is not sent.submission:
                yield submitted.context

    def _export(self, submission: Submission, submitted: _Submitted) -> None:
        happenings = [
            Happening(
                "pod set",
                submitted.ended_ns,
                {
                    "hoss.namespace": pod_set.namespace,
                    "hoss.name": pod_set.name,
                    "hoss.names": () if pod_set.names is None else pod_set.names[:_MOST_NAMES],
                    "hoss.uid_prefix": pod_set.uid_prefix.hex(),
                    "hoss.pods": pod_set.count,
                },
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
            attributes={"hoss.request_id": submission.request_id, "hoss.pods": sum(s.count for s in submission.sets)},
            happenings=happenings,
        )

    def _submission_of(self, row: int) -> Submission:
        return self._registry.set_of(row).submission


def _not_bound(uids: Uids, message: workerlink_pb2.Outcomes) -> Iterator[Happening]:
    """Of the pods that were not bound, what their worker said."""
    positions = decode(message.positions, U32, name="positions").tolist()
    reasons = decode(message.reasons, U16, name="reasons").tolist() if message.reasons else [NONE_U16] * len(positions)
    texts, now_ns = message.reason_texts, time.time_ns()
    told = [i for i, code in enumerate(message.codes) if code != OutcomeCode.BOUND and positions[i] < len(uids)]
    for i in told[:_MOST_OUTCOMES]:
        attributes = {
            "hoss.uid": uids[positions[i]].tobytes().hex(),
            "hoss.outcome": workerlink_pb2.OutcomeCode.Name(workerlink_pb2.OutcomeCode.ValueType(message.codes[i])),
            "hoss.reason": texts[reasons[i]] if reasons[i] < len(texts) else "",
        }
        yield Happening("not bound", now_ns, attributes)
