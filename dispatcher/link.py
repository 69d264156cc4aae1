"""The WorkerLink service: one stream per worker, translated to the machine's events and from its instructions."""

import asyncio
from collections.abc import AsyncIterator
from functools import lru_cache, partial
from itertools import count
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
import numpy as np

from dispatcher.allowances import LabelAllowances
from dispatcher.audit import Views
from dispatcher.core import messages as m
from dispatcher.core.cluster_objects import Surroundings
from dispatcher.core.costs import CostReport
from dispatcher.core.membership import Vitals
from dispatcher.decisions import Decisions
from dispatcher.preemption import Preemption
from dispatcher.runtime import Runtime
from dispatcher.steering import refusals
from hoss.errors import InvalidInput
from hoss.model.conflicts import DEFAULT_CONFLICT_RULE
from hoss.model.names import check_key, check_label_value
from hoss.model.overlap import Preference
from hoss.telemetry import logger
from hoss.v1 import objects_pb2
from hoss.v1 import workerlink_pb2 as pb
from hoss.v1.workerlink_pb2_grpc import WorkerLinkServicer
from hoss.wire.columns import F32, U8, U16, U32, decode, encode
from hoss.wire.convert import conflict_rule_to_proto, scope_to_proto
from hoss.wire.convert_objects import namespace_to_proto, service_to_proto

if TYPE_CHECKING:
    from dispatcher.tracing import DispatcherTraces

MAX_WINDOW_PODS = 100_000

# A pod takes no less and no more: a worker that says so would get all there is, or nobody would.
LEAST_MICROS, MOST_MICROS = 0.1, 1e9

Context = grpc.aio.ServicerContext[Any, Any]


class WorkerStream:
    """What leaves on one worker's stream. Its queue is bounded by the worker's window: pods are sent against credit."""

    def __init__(self, number: int, heartbeat_ms: int, traces: "DispatcherTraces | None" = None) -> None:
        self.number = number
        self.name = ""
        self.ended_with: tuple[grpc.StatusCode, str] | None = None
        self._queue: asyncio.Queue[pb.DispatcherMessage | None] = asyncio.Queue()
        self._heartbeat_ms = heartbeat_ms
        self._traces = traces

    def send(self, instruction: m.ToWorker) -> None:
        match instruction:
            case m.SendWork():
                message = work_message(instruction)
                if self._traces is not None:
                    self._traces.sent(instruction, message.work, self.name)
                self.put(message)
            case m.Welcome():
                logger().info("worker_joined", worker=self.name, epoch=instruction.epoch)
                welcome = pb.Welcome(epoch=instruction.epoch, heartbeat_ms=self._heartbeat_ms)
                self.put(pb.DispatcherMessage(welcome=welcome))
            case m.SendSurroundings():
                self.put(surroundings_message(instruction.surroundings))
            case m.SendPreference():
                self.put(preference_message(instruction.preference))
            case m.SendDrain():
                self.put(pb.DispatcherMessage(drain=pb.Drain()))
            case m.SendRecall():
                recall = pb.Recall(batch_ids=instruction.batches, pods=instruction.pods)
                self.put(pb.DispatcherMessage(recall=recall))

    def put(self, message: pb.DispatcherMessage) -> None:
        """Queue a message as it is."""
        self._queue.put_nowait(message)

    def close(self, text: str, *, taken: bool = False) -> None:
        self.end(grpc.StatusCode.ALREADY_EXISTS if taken else grpc.StatusCode.ABORTED, text)

    def end(self, code: grpc.StatusCode = grpc.StatusCode.OK, text: str = "") -> None:
        """End the stream after what is queued; the first reason given stands."""
        self.ended_with = self.ended_with or (code, text)
        self._queue.put_nowait(None)

    async def messages(self) -> AsyncIterator[pb.DispatcherMessage]:
        """What was queued, until the stream is closed."""
        while (message := await self._queue.get()) is not None:
            yield message


class WorkerLinks(WorkerLinkServicer):
    """Accepts workers."""

    def __init__(
        self,
        runtime: Runtime,
        views: Views,
        preemption: Preemption,
        decisions: Decisions,
        *,
        heartbeat_ms: int,
        allowed_labels: LabelAllowances,
    ) -> None:
        self._runtime = runtime
        self._preemption = preemption
        self._decisions = decisions
        self._views = views
        self._heartbeat_ms = heartbeat_ms
        self._allowed_labels = allowed_labels
        self._numbers = count(1)

    async def Connect(  # noqa: N802 - the contract's name
        self, request_iterator: AsyncIterator[pb.WorkerMessage], context: Context
    ) -> AsyncIterator[pb.DispatcherMessage]:
        stream = WorkerStream(next(self._numbers), self._heartbeat_ms, self._runtime.traces)
        reader = asyncio.ensure_future(self._read(stream, request_iterator))
        # The worker is gone when it cannot be read any more. gRPC may give this generator up at its yield, and then nobody resumes or
        # closes it before it is collected.
        reader.add_done_callback(partial(self._ended, stream))
        try:
            async for message in stream.messages():
                yield message
            if stream.ended_with is not None and stream.ended_with[0] is not grpc.StatusCode.OK:
                await context.abort(*stream.ended_with)
        finally:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)

    def _ended(self, stream: WorkerStream, reader: "asyncio.Future[None]") -> None:
        if not reader.cancelled() and (fault := reader.exception()) is not None:
            logger().error("worker_stream_failed", worker=stream.name, error=str(fault), exc_info=fault)
        self._runtime.links.pop(stream.number, None)
        self._views.gone(stream.name)
        if self._runtime.traces is not None and stream.name:
            self._runtime.traces.lost(stream.name)
        self._runtime.tell(m.LinkClosed(stream.number))
        logger().info("worker_stream_ended", worker=stream.name)

    async def _read(self, stream: WorkerStream, requests: AsyncIterator[pb.WorkerMessage]) -> None:
        try:
            async for message in requests:
                self._take(stream, message)
        except InvalidInput as exc:
            stream.end(grpc.StatusCode.INVALID_ARGUMENT, str(exc))
        finally:
            stream.end()

    def _take(self, stream: WorkerStream, message: pb.WorkerMessage) -> None:
        kind = message.WhichOneof("kind")
        if (kind == "register") == bool(stream.name):
            raise InvalidInput("the first message, and no other, is Register", where="WorkerMessage.kind")
        match kind:
            case "register":
                event = registration(message.register, stream.number)
                self._allowed_labels.check(event.name, event.labels)
                stream.name = event.name
                self._runtime.links[stream.number] = stream
                self._runtime.tell(event)
            case "heartbeat":
                self._runtime.tell(heard(message.heartbeat, stream.number))
            case "outcomes":
                self._runtime.tell(outcomes(message.outcomes, stream.number))
                if self._runtime.traces is not None:
                    self._runtime.traces.answered(message.outcomes)
            case "leave":
                self._runtime.tell(m.Leaving(stream.number))
            case "preemption":
                stream.put(self._preemption.answer(message.preemption, stream.name))
            case "decisions":
                self._decisions.arrived(message.decisions)
            case "view":
                self._views.arrived(stream.name, message.view)


def registration(message: pb.Register, link: int) -> m.Registered:
    """Check a Register. Raises InvalidInput for a bad name, window or label, and for a label given twice."""
    if not message.name:
        raise InvalidInput("is empty; a worker needs a name that no other living worker has", where="register.name")
    if not 1 <= message.window <= MAX_WINDOW_PODS:
        raise InvalidInput(f"{message.window} is not from 1 to {MAX_WINDOW_PODS}", where="register.window")
    labels: dict[str, str] = {}
    for label in message.labels:
        check_key(label.key, "register.labels")
        if label.key in labels:
            raise InvalidInput(
                f"{label.key!r} is given twice ({labels[label.key]!r} and {label.value!r}); a label has one value",
                where="register.labels",
            )
        labels[label.key] = check_label_value(label.value, f"register.labels[{label.key}]")
    return m.Registered(link, message.name, labels, message.incarnation, message.window)


def heard(message: pb.Heartbeat, link: int) -> m.Heard:
    """Decode a Heartbeat. Raises ColumnError where lengths disagree, InvalidInput for a figure that is negative or no number."""
    classes = decode(message.cost_classes, U32, name="heartbeat.cost_classes")
    micros = decode(message.cost_micros, F32, name="heartbeat.cost_micros", rows=len(classes)).astype(np.float64)
    means = (message.micros_per_pod, message.first_micros, message.seen_micros)
    told = np.array([message.busy_seconds, message.working_seconds, message.clock_seconds, *means, *micros])
    if not (np.isfinite(told).all() and (told >= 0).all()):
        raise InvalidInput("holds a time that is negative or no number", where="heartbeat")
    # 0 of a mean: nothing was measured yet.
    per_pod, first, seen = (min(max(mean, LEAST_MICROS), MOST_MICROS) if mean else 0.0 for mean in means)
    vitals = Vitals(
        busy_seconds=message.busy_seconds,
        micros_per_pod=per_pod,
        backlog=message.backlog,
        ready=message.ready,
        conflicts=message.conflicts,
        proposed=message.proposed,
        first_micros=first,
        seen_micros=seen,
        synchronisation=message.synchronisation,
        lags=tuple((lag.shard, lag.seqs, lag.seconds) for lag in message.lags),
        fill_seconds=message.fill_seconds,
        working_seconds=message.working_seconds,
        clock_seconds=message.clock_seconds,
    )
    costs = CostReport(classes, micros.clip(LEAST_MICROS, MOST_MICROS)) if len(classes) else None
    return m.Heard(link, vitals, costs, refusals(message))


def outcomes(message: pb.Outcomes, link: int) -> m.OutcomesArrived:
    """Decode Outcomes; columns are views of the message. Raises ColumnError where lengths disagree."""
    positions = decode(message.positions, U32, name="outcomes.positions")
    rows = len(positions)
    commits: dict[int, list[int]] = {}
    for commit in message.commits:
        commits.setdefault(commit.shard, []).append(commit.seq)
    return m.OutcomesArrived(
        link=link,
        batch=message.batch_id,
        positions=positions,
        codes=decode(message.codes, U8, name="outcomes.codes", rows=rows),
        nodes=decode(message.nodes, U32, name="outcomes.nodes", rows=rows),
        reasons=decode(message.reasons, U16, name="outcomes.reasons", rows=rows) if message.reasons else None,
        texts=tuple(message.reason_texts),
        commits={shard: np.array(seqs, np.uint64) for shard, seqs in commits.items()},
        refused_by=tuple(frozenset(refused.plugins) for refused in message.refused_by),
        seen={position.shard: position.seq for position in message.seen},
        leaving_ms=(
            decode(message.leaving_ms, U32, name="outcomes.leaving_ms", rows=rows) if message.leaving_ms else None
        ),
        deciding_seconds=message.deciding_seconds,
        committing_seconds=message.committing_seconds,
        refused=decode(message.refused, U32, name="outcomes.refused") if message.refused else None,
    )


@lru_cache(maxsize=1)
def surroundings_message(surroundings: Surroundings) -> pb.DispatcherMessage:
    """Encode surroundings, for all workers once. To be sent and not changed."""
    message = objects_pb2.Surroundings(
        version=surroundings.version,
        namespaces=map(namespace_to_proto, surroundings.namespaces),
        services=map(service_to_proto, surroundings.services),
    )
    return pb.DispatcherMessage(surroundings=message)


def preference_message(preference: Preference) -> pb.DispatcherMessage:
    """Encode how a worker is to order equally good nodes."""
    overlap, number, shares = preference.overlap.value, preference.number, preference.shares
    return pb.DispatcherMessage(preference=pb.Preference(overlap=overlap, number=number, shares=shares))


def work_message(work: m.SendWork) -> pb.DispatcherMessage:
    """Encode a work batch."""
    message = pb.DispatcherMessage()
    batch = message.work
    batch.batch_id = work.batch
    for class_id, spec in work.classes:
        definition = batch.classes.add(id=class_id)
        definition.spec.ParseFromString(spec)
    batch.forgotten_classes.extend(work.forgotten)
    batch.run_classes = encode(work.run_classes, U32)
    batch.run_counts = encode(work.run_counts, U32)
    batch.run_attempts = encode(work.run_attempts, U16)
    batch.uids = work.uids.tobytes()
    batch.gang, batch.gang_minimum = work.gang, work.gang_minimum
    if work.scope is not None:
        batch.scope.CopyFrom(scope_to_proto(work.scope))
    if work.conflicts != DEFAULT_CONFLICT_RULE:
        batch.conflicts.CopyFrom(conflict_rule_to_proto(work.conflicts))
    batch.lowest_priority = work.lowest_priority
    return message
