"""The Dispatcher service: hoss.v1.Dispatcher over the runtime."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from typing import Any, NoReturn, TypeVar

import grpc
import grpc.aio
import numpy as np

from dispatcher import tenant_answers
from dispatcher.admission import Admission
from dispatcher.answers import Answers
from dispatcher.audit import Views
from dispatcher.candidate import Term
from dispatcher.chronicle import Chronicle
from dispatcher.core import messages as m
from dispatcher.core.membership import WorkerState
from dispatcher.core.podsets import AlreadyExists, Submission
from dispatcher.core.podtable import Phase, Rows
from dispatcher.decisions import Decisions
from dispatcher.nodes import NodeNames
from dispatcher.objects import Objects
from dispatcher.policies import Policies, StaleVersion
from dispatcher.runtime import Runtime
from dispatcher.steering import conflicts_message, steering_message, steering_wanted
from dispatcher.watch import RevisionTooOld, Watch
from hoss import version
from hoss.client.errors import refuse
from hoss.errors import InvalidInput, LedgerUnavailable, NotFound, Overloaded
from hoss.telemetry.context import context_of
from hoss.v1 import dispatcher_pb2 as pb
from hoss.v1.dispatcher_pb2_grpc import DispatcherServicer
from hoss.wire.columns import NONE_U32, UID_BYTES, decode_uids, uid_text

# Messages of one stream that are checked but not durable yet; beyond them gRPC's flow control slows the client.
STREAM_MESSAGES_UNDER_WAY = 16

OPERATOR_STATES = {state.value: state for state in (WorkerState.READY, WorkerState.CORDONED, WorkerState.DRAINING)}

Context = grpc.aio.ServicerContext[Any, Any]
ReplyT = TypeVar("ReplyT")


class DispatcherService(DispatcherServicer):
    """One method a call; each checks, asks, and answers."""

    def __init__(
        self,
        runtime: Runtime,
        names: NodeNames,
        views: Views,
        policies: Policies,
        decisions: Decisions,
        *,
        term: Term,
        chronicle: Chronicle,
        follows_cluster: bool = False,
    ) -> None:
        self._runtime = runtime
        self._registry = runtime.machine.registry
        self._names = names
        self._views = views
        self._policies = policies
        self._decisions = decisions
        self._objects = Objects(runtime, follows_cluster=follows_cluster)
        self._admission = Admission(runtime, self._objects, chronicle, follows_cluster=follows_cluster)
        self._answers = Answers(runtime, names, term)

    async def Submit(self, request: pb.SubmitRequest, context: Context) -> pb.SubmitReply:  # noqa: N802
        if self._runtime.traces is not None and not request.traceparent and (parent := context_of(context)) is not None:
            request.traceparent = str(parent)
        return await _answer(self._admission.submit(request), context)

    async def SubmitStream(  # noqa: N802
        self, request_iterator: AsyncIterator[pb.SubmitRequest], context: Context
    ) -> AsyncIterator[pb.SubmitReply]:
        under_way: asyncio.Queue[asyncio.Future[Submission] | Exception | None] = asyncio.Queue(
            STREAM_MESSAGES_UNDER_WAY
        )
        reader = asyncio.ensure_future(self._read_submissions(request_iterator, under_way))
        try:
            while (entry := await under_way.get()) is not None:
                if isinstance(entry, Exception):
                    await _end(context, entry)
                yield self._admission.reply(await _answer(asyncio.shield(entry), context))
        finally:
            reader.cancel()

    async def GetPod(self, request: pb.GetPodRequest, context: Context) -> pb.PodInfo:  # noqa: N802
        return await _answer(self._get_pod(request), context)

    async def ListPods(self, request: pb.ListPodsRequest, context: Context) -> pb.ListPodsReply:  # noqa: N802
        try:
            return self._answers.list_pods(request)
        except InvalidInput as exc:
            await _end(context, exc)

    async def ListJobs(self, request: pb.ListJobsRequest, context: Context) -> pb.ListJobsReply:  # noqa: ARG002, N802
        return self._answers.jobs(request)

    async def Watch(self, request: pb.WatchRequest, context: Context) -> AsyncIterator[pb.WatchBatch]:  # noqa: N802
        try:
            async for batch in Watch(self._runtime, self._names).messages(
                request.since_revision, states=request.states
            ):
                yield batch
        except RevisionTooOld as exc:
            await _end(context, exc)

    async def Delete(self, request: pb.DeleteRequest, context: Context) -> pb.DeleteReply:  # noqa: N802
        return await _answer(self._delete(request), context)

    async def RemoveGates(self, request: pb.RemoveGatesRequest, context: Context) -> pb.RemoveGatesReply:  # noqa: N802
        return await _answer(self._remove_gates(request), context)

    async def ListTenants(self, request: pb.ListTenantsRequest, context: Context) -> pb.ListTenantsReply:  # noqa: ARG002, N802
        return tenant_answers.tenants(self._runtime)

    async def Retry(self, request: pb.RetryRequest, context: Context) -> pb.RetryReply:  # noqa: N802
        return await _answer(self._retry(request), context)

    async def ApplyObjects(self, request: pb.ApplyObjectsRequest, context: Context) -> pb.ApplyObjectsReply:  # noqa: N802
        return await _answer(self._objects.apply(request), context)

    async def DeleteObjects(self, request: pb.DeleteObjectsRequest, context: Context) -> pb.DeleteObjectsReply:  # noqa: N802
        return await _answer(self._objects.remove(request), context)

    async def ListObjects(self, request: pb.ListObjectsRequest, context: Context) -> pb.ListObjectsReply:  # noqa: ARG002, N802
        return self._objects.listed(request)

    async def ListWorkers(self, request: pb.ListWorkersRequest, context: Context) -> pb.ListWorkersReply:  # noqa: ARG002, N802
        return self._answers.workers(request)

    async def SetWorkerState(  # noqa: N802
        self, request: pb.SetWorkerStateRequest, context: Context
    ) -> pb.SetWorkerStateReply:
        return await _answer(self._set_worker_state(request), context)

    async def GetPolicy(self, request: pb.GetPolicyRequest, context: Context) -> pb.Policy:  # noqa: ARG002, N802
        return self._policies.told(with_text=True)

    async def SetPolicy(self, request: pb.Policy, context: Context) -> pb.SetPolicyReply:  # noqa: N802
        await _answer(self._policies.set(request.yaml, request.if_version), context)
        return pb.SetPolicyReply(version=self._policies.policy.version, warnings=self._policies.warnings())

    async def TestPolicy(self, request: pb.TestPolicyRequest, context: Context) -> pb.TestPolicyReply:  # noqa: N802
        try:
            return self._policies.try_on(request)
        except InvalidInput as exc:
            await _end(context, exc)

    async def GetConflicts(self, request: pb.ConflictsRequest, context: Context) -> pb.Conflicts:  # noqa: ARG002, N802
        return conflicts_message(self._runtime.machine, self._names)

    async def Steer(self, request: pb.SteerRequest, context: Context) -> pb.Steering:  # noqa: N802
        machine = self._runtime.machine
        try:
            self._runtime.tell(steering_wanted(request, machine))
        except InvalidInput as exc:
            await _end(context, exc)
        return steering_message(machine, steps=True)

    async def GetStatus(self, request: pb.StatusRequest, context: Context) -> pb.DispatcherStatus:  # noqa: ARG002, N802
        status = self._answers.status(version())
        status.steering.CopyFrom(steering_message(self._runtime.machine, steps=False))
        status.policy.CopyFrom(self._policies.told(with_text=False))
        status.problems.extend(self._policies.problems())
        return status

    async def Audit(  # noqa: N802
        self,
        request: pb.DispatcherAuditRequest,
        context: Context,  # noqa: ARG002
    ) -> pb.DispatcherAuditReply:
        streams = [self._runtime.links[worker.link] for worker in self._runtime.machine.members.living()]
        views = await self._views.gather(streams, request.timeout_ms / 1000)
        uids, nodes = self._answers.bound()
        return pb.DispatcherAuditReply(
            views=views,
            bound_uids=uids,
            bound_nodes=nodes,
            broken_gangs=self._answers.broken_gangs(),
            reports=self._answers.misplaced(),
        )

    async def _read_submissions(
        self,
        requests: AsyncIterator[pb.SubmitRequest],
        under_way: "asyncio.Queue[asyncio.Future[Submission] | Exception | None]",
    ) -> None:
        try:
            async for request in requests:
                await under_way.put(self._admission.begin(request))
                await self._admission.breathe()
        except Exception as exc:  # noqa: BLE001 - raised by the call that reads the queue
            await under_way.put(exc)
        await under_way.put(None)

    async def _get_pod(self, request: pb.GetPodRequest) -> pb.PodInfo:
        if request.uid:
            if len(request.uid) != UID_BYTES:
                raise InvalidInput(f"{len(request.uid)} bytes; a UID has 16", where="uid")
            row: int | None = int(self._registry.directory.rows_of_uids(decode_uids(request.uid))[0])
            told = f"pod with UID {uid_text(request.uid)}"
        else:
            row = self._registry.directory.row_of_name(request.namespace, request.name)
            told = f"pod {request.name!r} in namespace {request.namespace!r}"
        if row is None or row == NONE_U32 or self._registry.pods.phase[row] == Phase.ABSENT:
            raise NotFound(f"there is no {told}")
        info = self._answers.pod(row, detail=True, steps=request.steps)
        if request.queue and (standing := self._answers.queue_standing(row)) is not None:
            info.queue.CopyFrom(standing)
        if request.decisions:
            await self._tell_decisions(info)
        return info

    async def _tell_decisions(self, info: pb.PodInfo) -> None:
        """What the workers that had it remember. Of those that are gone, that is gone too."""
        names = dict.fromkeys([*(step.worker for step in info.steps), info.worker])
        workers = [worker for name in names if (worker := self._runtime.machine.members.get(name)) is not None]
        links = [self._runtime.links.get(worker.link) for worker in workers if worker.living]
        asked = (self._decisions.ask(link, info.uid) for link in links if link is not None)
        decisions = [decision for answer in await asyncio.gather(*asked) for decision in answer]
        for decision in sorted(decisions, key=lambda decision: decision.at_unix_ms):
            decision.candidate_names.extend(map(self._names.get, decision.candidates))
            decision.node_name = self._names.get(decision.node)
            info.decisions.append(decision)

    async def _delete(self, request: pb.DeleteRequest) -> pb.DeleteReply:
        not_found: list[str] = []

        def find() -> Rows:
            not_found.clear()
            return self._named(request, not_found)

        deleted = await self._admission.delete(find)
        return pb.DeleteReply(deleted_pods=deleted, not_found=not_found)

    async def _remove_gates(self, request: pb.RemoveGatesRequest) -> pb.RemoveGatesReply:
        not_found: list[str] = []

        def find() -> Rows:
            not_found.clear()
            return self._named(request, not_found)

        changed, queued = await self._admission.remove_gates(find, frozenset(request.gates))
        return pb.RemoveGatesReply(changed_pods=changed, queued_pods=queued, not_found=not_found)

    async def _retry(self, request: pb.RetryRequest) -> pb.RetryReply:
        not_found: list[str] = []

        def find() -> Rows:
            not_found.clear()
            if not request.every:
                return self._named(request, not_found)
            every = pb.ListPodsRequest(namespace=request.namespace, phases=[pb.FAILED])
            return self._answers.matching(every)

        return pb.RetryReply(retried_pods=await self._admission.retry(find), not_found=not_found)

    def _named(self, request: pb.DeleteRequest | pb.RemoveGatesRequest | pb.RetryRequest, not_found: list[str]) -> Rows:
        """The rows a request names; what names nothing goes to `not_found`."""
        directory, phase = self._registry.directory, self._registry.pods.phase
        parts: list[Rows] = [np.empty(0, np.uint32)]
        for name in request.jobs:
            job = directory.job(request.namespace, name)
            if job is None:
                not_found.append(f"job {name}")
            else:
                parts.append(np.arange(job.first, job.first + job.count, dtype=np.uint32))
        for name in request.pods:
            row = directory.row_of_name(request.namespace, name)
            if row is None or phase[row] in {Phase.ABSENT, Phase.DELETED}:
                not_found.append(f"pod {name}")
            else:
                parts.append(np.array([row], np.uint32))
        uids = decode_uids(request.uids)
        rows = directory.rows_of_uids(uids)
        known = rows != NONE_U32
        not_found.extend(f"pod {uid_text(uid.tobytes())}" for uid in uids[~known])
        return np.concatenate([*parts, rows[known]])

    async def _set_worker_state(self, request: pb.SetWorkerStateRequest) -> pb.SetWorkerStateReply:
        if request.state not in OPERATOR_STATES:
            raise InvalidInput(f"{request.state!r} is none of {', '.join(OPERATOR_STATES)}", where="state")
        worker = self._runtime.machine.members.get(request.name)
        if worker is None:
            raise NotFound(f"there is no worker {request.name!r}")
        self._runtime.tell(m.StateWanted(worker.name, OPERATOR_STATES[request.state]))
        return pb.SetWorkerStateReply(worker=self._answers.worker(worker))


async def _answer(reply: Awaitable[ReplyT], context: Context) -> ReplyT:
    """The reply, or the call's end with the error's status."""
    try:
        return await reply
    except (InvalidInput, LedgerUnavailable, Overloaded) as exc:
        await _end(context, exc)


async def _end(context: Context, error: Exception) -> NoReturn:
    if isinstance(error, AlreadyExists):
        await context.abort(grpc.StatusCode.ALREADY_EXISTS, str(error))
    if isinstance(error, StaleVersion):
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
    if isinstance(error, RevisionTooOld):
        await context.abort(grpc.StatusCode.OUT_OF_RANGE, str(error))
    if isinstance(error, (InvalidInput, LedgerUnavailable, Overloaded)):
        await refuse(context, error)
    raise error
