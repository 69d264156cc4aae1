"""The WorkerLink service: one stream per worker, translated to the machine's events and from its
instructions."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache, partial
from itertools import count
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
import numpy as np

from dispatcher.core import messages as m
from dispatcher.core.workers.membership import MOST_REASON
from dispatcher.core.workers.reports import CostReport, Heartbeat
from dispatcher.ports import latest
from dispatcher.runtime import Runtime, TermFailed
from dispatcher.workers.overlap_control import read_refusals
from dispatcher.workers.preemption import PreemptionAnswers
from dispatcher.workers.queries import CacheViewQueries, DecisionQueries
from hoss.errors import AccessDenied, InvalidInput, clipped, quoted
from hoss.manifests.fields import check_key, check_label_value
from hoss.model.cluster import NamespaceSnapshot
from hoss.model.conflicts import DEFAULT_CONFLICT_RULE, Preference
from hoss.security.identity import caller
from hoss.tasks import end_tasks
from hoss.telemetry import logger
from hoss.v1 import objects_pb2
from hoss.v1 import workerlink_pb2 as pb
from hoss.v1.workerlink_pb2_grpc import WorkerLinkServicer
from hoss.wire import PROTOCOL_VERSION
from hoss.wire.columns import F32, U8, U16, U32, decode, encode
from hoss.wire.convert import conflict_rule_to_proto, scope_to_proto
from hoss.wire.convert_objects import namespace_to_proto, service_to_proto
from hoss.wire.convert_storage import storage_changes_to_proto

if TYPE_CHECKING:
    from dispatcher.tracing import DispatcherTraces

MAX_WINDOW_PODS = 100_000
MAX_NAME_BYTES = 253  # as the ledger has it
_BINDING_PLUGINS = ("VolumeBinding", "DynamicResources")  # those of Register.bind_seconds that have an effect
# Of why a pod was not placed. Longer ones are cut: they are kept, and watchers get them.
MAX_REASON_CHARACTERS = 1000

# Bounds of the measured time per pod. Beyond them one worker would get all pods, or none.
LEAST_MICROS, MOST_MICROS = 0.1, 1e9

Context = grpc.aio.ServicerContext[Any, Any]


class AllowedLabels:
    """Which labels a worker may register with. Policies select workers by labels, so a worker with false
    labels would get the wrong pods."""

    def __init__(self, by_pattern: Mapping[str, Mapping[str, Sequence[str]]]) -> None:
        """Allowed values by label, by pattern of worker names. Without patterns, workers are trusted."""
        self._by_pattern = by_pattern

    def check(self, name: str, labels: Mapping[str, str]) -> None:
        """Raises InvalidInput if a worker of this name may not have these labels."""
        if not self._by_pattern:
            return
        pattern = next((pattern for pattern in self._by_pattern if fnmatchcase(name, pattern)), None)
        if pattern is None:
            patterns = ", ".join(self._by_pattern)
            raise InvalidInput(
                f"{quoted(name)} matches none of the dispatcher's worker_labels ({patterns}); add it there",
                where="register.name",
            )
        allowed = self._by_pattern[pattern]
        for key, value in labels.items():
            if value not in allowed.get(key, ()):
                values = " or ".join(f"{key}={v}" for v in allowed.get(key, ())) or f"no {key} at all"
                raise InvalidInput(
                    f"{key}={value} is not {name}'s to claim: "
                    f"the dispatcher's worker_labels[{pattern}] allow {values}",
                    where="register.labels",
                )


class WorkerStream:
    """The messages to one worker. The worker's window bounds the queue, because pods are sent against
    credit."""

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
            case m.SendNamespaces():
                self.put(namespaces_message(instruction.snapshot))
            case m.SendStorage():
                for changes in storage_changes_to_proto(instruction.update):
                    self.put(pb.DispatcherMessage(storage=changes))
            case m.SendPreference():
                self.put(preference_message(instruction.preference))
            case m.SendDrain():
                self.put(pb.DispatcherMessage(drain=pb.Drain()))
            case m.SendRecall():
                recall = pb.Recall(batch_ids=instruction.batches, pods=instruction.pods)
                self.put(pb.DispatcherMessage(recall=recall))

    def put(self, message: pb.DispatcherMessage) -> None:
        self._queue.put_nowait(message)

    def close(self, text: str, *, taken: bool = False) -> None:
        self.end(grpc.StatusCode.ALREADY_EXISTS if taken else grpc.StatusCode.ABORTED, text)

    def end(self, code: grpc.StatusCode = grpc.StatusCode.OK, text: str = "") -> None:
        """End the stream after the queued messages. The first reason counts."""
        self.ended_with = self.ended_with or (code, text)
        self._queue.put_nowait(None)

    async def messages(self) -> AsyncIterator[pb.DispatcherMessage]:
        """The queued messages, until the stream is closed."""
        while (message := await self._queue.get()) is not None:
            yield message


class WorkerLinks(WorkerLinkServicer):
    def __init__(
        self,
        runtime: Runtime,
        views: CacheViewQueries,
        preemption: PreemptionAnswers,
        decisions: DecisionQueries,
        *,
        heartbeat_ms: int,
        allowed_labels: AllowedLabels,
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
        # The worker is gone when reading ends. gRPC may abandon this generator at its yield, and then nothing
        # resumes or closes it until it is collected.
        reader.add_done_callback(partial(self._ended, stream))
        try:
            async for message in stream.messages():
                yield message
            # Before the abort, which would be an error to a reader.
            await end_tasks((reader,))
            if stream.ended_with is not None and stream.ended_with[0] is not grpc.StatusCode.OK:
                await context.abort(*stream.ended_with)
        finally:
            await end_tasks((reader,))

    def _ended(self, stream: WorkerStream, reader: "asyncio.Future[None]") -> None:
        fault = None if reader.cancelled() else reader.exception()
        if fault is not None and not isinstance(fault, TermFailed):  # that is logged where it failed
            logger().error("worker_stream_failed", worker=stream.name, error=str(fault), exc_info=fault)
        self._runtime.links.pop(stream.number, None)
        self._views.left(stream.name)
        if self._runtime.traces is not None and stream.name:
            self._runtime.traces.lost(stream.name)
        with contextlib.suppress(TermFailed):  # all that this dispatcher knows ends
            self._runtime.handle(m.LinkClosed(stream.number))
        _, reason = stream.ended_with or (None, "")
        logger().info("worker_stream_ended", worker=stream.name, reason=reason)

    async def _read(self, stream: WorkerStream, requests: AsyncIterator[pb.WorkerMessage]) -> None:
        try:
            async for message in requests:
                self._take(stream, message)
        except AccessDenied as exc:
            stream.end(grpc.StatusCode.PERMISSION_DENIED, str(exc))
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
                event = read_registration(message.register, stream.number)
                check_registrant(event.name)
                self._allowed_labels.check(event.name, event.labels)
                stream.name = event.name
                self._runtime.links[stream.number] = stream
                self._runtime.handle(event)
            case "heartbeat":
                self._runtime.handle(read_heartbeat(message.heartbeat, stream.number))
            case "outcomes":
                outcomes = read_outcomes(message.outcomes, stream.number)
                self._runtime.ledger.note(latest(outcomes.commits))
                self._runtime.handle(outcomes)
                if self._runtime.traces is not None:
                    self._runtime.traces.answered(message.outcomes)
            case "leave":
                self._runtime.handle(m.Leaving(stream.number, message.leave.reason))
            case "preemption":
                stream.put(self._preemption.answer(message.preemption, stream.name))
            case "decisions":
                self._decisions.answered(message.decisions)
            case "view":
                self._views.answered(stream.name, message.view)


def check_registrant(name: str) -> None:
    """Raises AccessDenied for a worker that registers under another name than its certificate's."""
    registrant = caller()
    if registrant is not None and not registrant.may_be(name):
        raise AccessDenied(
            f"this connection is {registrant}'s, which may not register as {name!r}: give the worker the "
            "name of its certificate, or a certificate for its name (`hoss certs issue`)"
        )


def read_registration(message: pb.Register, link: int) -> m.Registered:
    """Check a Register. Raises InvalidInput for a newer protocol, a bad name, window or label, and for a
    label given twice."""
    if message.protocol > PROTOCOL_VERSION:  # older ones are taken, also those without a number
        raise InvalidInput(
            f"{message.protocol}: the worker speaks a newer protocol than this dispatcher, which knows"
            f" versions 1 to {PROTOCOL_VERSION}; upgrade resolvers and dispatchers before workers, or use an"
            " older worker",
            where="register.protocol",
        )
    if not message.name:
        raise InvalidInput(
            "is empty; a worker needs a name that no other living worker has", where="register.name"
        )
    if len(message.name.encode()) > MAX_NAME_BYTES:
        raise InvalidInput(
            f"{quoted(message.name)} is longer than {MAX_NAME_BYTES} bytes; give a shorter one",
            where="register.name",
        )
    if not 1 <= message.window <= MAX_WINDOW_PODS:
        raise InvalidInput(f"{message.window} is not from 1 to {MAX_WINDOW_PODS}", where="register.window")
    labels: dict[str, str] = {}
    for label in message.labels:
        check_key(label.key, "register.labels")
        if label.key in labels:
            raise InvalidInput(
                f"{quoted(label.key)} is given twice ({quoted(labels[label.key])} and {quoted(label.value)});"
                " a label has one value",
                where="register.labels",
            )
        labels[label.key] = check_label_value(label.value, f"register.labels[{label.key}]")
    return m.Registered(
        link,
        message.name,
        labels,
        message.incarnation,
        message.window,
        clipped(message.profile, MAX_NAME_BYTES),
        _bind_seconds(message.bind_seconds),
        message.packs,
    )


def _bind_seconds(given: Mapping[str, float]) -> dict[str, float]:
    found = {plugin: given[plugin] for plugin in _BINDING_PLUGINS if plugin in given}
    for plugin, seconds in found.items():
        if not (np.isfinite(seconds) and seconds >= 0):
            raise InvalidInput(
                f"is {seconds}; it is a number of seconds", where=f"register.bind_seconds[{plugin}]"
            )
        if plugin == "DynamicResources" and seconds < 1:  # as kube-scheduler; 0 means 600 to a resolver
            raise InvalidInput(
                f"is {seconds}; it is at least 1 second", where=f"register.bind_seconds[{plugin}]"
            )
    return found


def read_heartbeat(message: pb.Heartbeat, link: int) -> m.HeartbeatReceived:
    """Decode a Heartbeat. Raises ColumnError where lengths disagree, InvalidInput for a time that is negative
    or no number."""
    classes = decode(message.cost_classes, U32, name="heartbeat.cost_classes")
    micros = decode(message.cost_micros, F32, name="heartbeat.cost_micros", rows=len(classes)).astype(
        np.float64
    )
    means = (message.micros_per_pod, message.first_micros, message.seen_micros)
    times = np.array([message.busy_seconds, message.working_seconds, message.clock_seconds, *means, *micros])
    if not (np.isfinite(times).all() and (times >= 0).all()):
        raise InvalidInput("holds a time that is negative or no number", where="heartbeat")
    # A mean of 0: nothing was measured yet.
    per_pod, first, seen = (min(max(mean, LEAST_MICROS), MOST_MICROS) if mean else 0.0 for mean in means)
    heartbeat = Heartbeat(
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
        failing=clipped(message.failing, MOST_REASON),
    )
    costs = CostReport(classes, micros.clip(LEAST_MICROS, MOST_MICROS)) if len(classes) else None
    return m.HeartbeatReceived(link, heartbeat, costs, read_refusals(message))


def read_outcomes(message: pb.Outcomes, link: int) -> m.OutcomesArrived:
    """Decode Outcomes. Columns are views of the message. Raises ColumnError where lengths disagree."""
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
        texts=tuple(clipped(text, MAX_REASON_CHARACTERS) for text in message.reason_texts),
        commits={shard: np.array(seqs, np.uint64) for shard, seqs in commits.items()},
        refused_by=tuple(frozenset(refused.plugins) for refused in message.refused_by),
        failed=tuple(refused.failed for refused in message.refused_by),
        view={position.shard: position.seq for position in message.seen},
        leaving_ms=(
            decode(message.leaving_ms, U32, name="outcomes.leaving_ms", rows=rows)
            if message.leaving_ms
            else None
        ),
        deciding_seconds=message.deciding_seconds,
        committing_seconds=message.committing_seconds,
        refused=decode(message.refused, U32, name="outcomes.refused") if message.refused else None,
    )


@lru_cache(maxsize=1)
def namespaces_message(snapshot: NamespaceSnapshot) -> pb.DispatcherMessage:
    """Encode namespaces and services, once for all workers. The message must not be changed."""
    message = objects_pb2.Surroundings(
        version=snapshot.version,
        namespaces=map(namespace_to_proto, snapshot.namespaces),
        services=map(service_to_proto, snapshot.services),
    )
    return pb.DispatcherMessage(surroundings=message)


def preference_message(preference: Preference) -> pb.DispatcherMessage:
    """Encode how a worker orders nodes with equal scores."""
    overlap, number, shares = preference.overlap.value, preference.number, preference.shares
    return pb.DispatcherMessage(preference=pb.Preference(overlap=overlap, number=number, shares=shares))


def work_message(work: m.SendWork) -> pb.DispatcherMessage:
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
