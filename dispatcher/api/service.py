"""The Dispatcher service: hoss.v1.Dispatcher over the runtime."""
# ruff: noqa: ARG002, N802 - names and parameters of the contract

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Mapping
from functools import partial
from typing import Any, NoReturn, TypeVar

import grpc
import grpc.aio
import numpy as np

from dispatcher.api.admission import Admission
from dispatcher.api.cluster_objects import ClusterObjectStore
from dispatcher.api.pod_queries import PodQueries, UnplaceablePods
from dispatcher.api.pod_summary import pod_summary
from dispatcher.api.queries import Queries
from dispatcher.api.tenancy import TenantView
from dispatcher.api.watch import RevisionTooOld, Watch
from dispatcher.core import messages as m
from dispatcher.core.kubernetes.pod_objects import SeenPod
from dispatcher.core.pods.sets import AlreadyExists, Submission
from dispatcher.core.pods.table import Phase, Rows
from dispatcher.core.workers.membership import Worker, WorkerState
from dispatcher.journal.checkpointer import Checkpointer
from dispatcher.leader.leadership import Leadership
from dispatcher.ledger.moving import Mover
from dispatcher.ledger.nodes import ClusterNodes
from dispatcher.policy.source import ActivePolicy, StaleVersion
from dispatcher.runtime import Runtime
from dispatcher.workers.overlap_control import conflicts_message, overlap_message, overlap_request
from dispatcher.workers.queries import CacheViewQueries, DecisionQueries
from hoss import version
from hoss.client.errors import refuse
from hoss.errors import (
    AccessDenied,
    InvalidInput,
    LedgerUnavailable,
    NotFound,
    Overloaded,
    TransportError,
    quoted,
)
from hoss.security.identity import caller, callers_tenant
from hoss.tasks import in_turns
from hoss.telemetry.context import context_of
from hoss.v1 import dispatcher_pb2 as pb
from hoss.v1.dispatcher_pb2_grpc import DispatcherServicer
from hoss.v1.objects_pb2 import StorageChanges
from hoss.wire.columns import NONE_U32, decode_uids
from hoss.wire.convert_storage import storage_changes_to_proto
from hoss.wire.uids import UID_BYTES, uid_text

# Of a request, looked up in one step: some ten milliseconds.
_NAMES_AT_ONCE = 5000

# Messages of one stream that are checked but not durable yet. Beyond them gRPC's flow control slows the
# client.
MOST_PENDING_MESSAGES = 16

OPERATOR_STATES = {
    state.value: state for state in (WorkerState.READY, WorkerState.CORDONED, WorkerState.DRAINING)
}

Context = grpc.aio.ServicerContext[Any, Any]
ReplyT = TypeVar("ReplyT")


class DispatcherService(DispatcherServicer):
    """One method per call: it checks the request, and answers."""

    def __init__(
        self,
        runtime: Runtime,
        nodes: ClusterNodes,
        views: CacheViewQueries,
        policy: ActivePolicy,
        decisions: DecisionQueries,
        *,
        mover: Mover,
        leadership: Leadership,
        checkpointer: Checkpointer,
        rng: random.Random,
        follows_cluster: bool = False,
        max_pod_terms: int | None = None,
        unplaceable: Mapping[bytes, SeenPod] | None = None,
    ) -> None:
        """`unplaceable`: see PodMirror."""
        self._runtime = runtime
        self._unplaceable = UnplaceablePods({} if unplaceable is None else unplaceable)
        self._registry = runtime.machine.registry
        self._nodes = nodes
        self._views = views
        self._policy = policy
        self._decisions = decisions
        self._objects = ClusterObjectStore(runtime, follows_cluster=follows_cluster)
        self._admission = Admission(
            runtime,
            self._objects,
            checkpointer,
            rng=rng,
            until_moved=mover.until_moved,
            follows_cluster=follows_cluster,
            max_pod_terms=max_pod_terms,
        )
        self._mover = mover
        self._pods = PodQueries(runtime, nodes, mover, self._unplaceable)
        self._queries = Queries(runtime, nodes, leadership)

    async def Submit(self, request: pb.SubmitRequest, context: Context) -> pb.SubmitReply:
        if (
            self._runtime.traces is not None
            and not request.traceparent
            and (parent := context_of(context)) is not None
        ):
            request.traceparent = str(parent)
        return await _answer(self._submit(request), context)

    async def _submit(self, request: pb.SubmitRequest) -> pb.SubmitReply:
        view = self._view()
        self._check_submission(view, request)
        return await self._admission.submit(request, view.tenant)

    def _check_submission(self, view: TenantView, request: pb.SubmitRequest) -> None:
        """Raises AccessDenied. Writes into the request who sends it."""
        view.check_submission(request)
        sender = caller()
        # Tokens of one name may be of several tenants.
        request.submitted_by = "" if sender is None else f"{sender}@{sender.tenant}"

    async def SubmitStream(
        self, request_iterator: AsyncIterator[pb.SubmitRequest], context: Context
    ) -> AsyncIterator[pb.SubmitReply]:
        pending: asyncio.Queue[asyncio.Future[Submission] | Exception | None] = asyncio.Queue(
            MOST_PENDING_MESSAGES
        )
        reader = asyncio.ensure_future(self._read_submissions(request_iterator, pending))
        try:
            while (entry := await pending.get()) is not None:
                if isinstance(entry, Exception):
                    await _abort(context, entry)
                yield self._admission.reply(await _answer(asyncio.shield(entry), context))
        finally:
            reader.cancel()

    async def GetPod(self, request: pb.GetPodRequest, context: Context) -> pb.PodInfo:
        return await _answer(self._get_pod(request), context)

    async def ListPods(self, request: pb.ListPodsRequest, context: Context) -> pb.ListPodsReply:
        return await _answer(in_turns(self._pods.list_pods(request, self._view())), context)

    async def ListJobs(self, request: pb.ListJobsRequest, context: Context) -> pb.ListJobsReply:
        return await _answer(in_turns(self._queries.jobs(request, self._view())), context)

    async def GetPodSummary(self, request: pb.PodSummaryRequest, context: Context) -> pb.PodSummary:
        return pod_summary(self._runtime.machine, self._view())

    async def Watch(self, request: pb.WatchRequest, context: Context) -> AsyncIterator[pb.WatchBatch]:
        try:
            async for batch in Watch(self._runtime, self._nodes, self._view()).messages(
                request.since_revision, states=request.states
            ):
                yield batch
        except RevisionTooOld as exc:
            await _abort(context, exc)

    async def Delete(self, request: pb.DeleteRequest, context: Context) -> pb.DeleteReply:
        return await _answer(self._delete(request), context)

    async def RemoveGates(self, request: pb.RemoveGatesRequest, context: Context) -> pb.RemoveGatesReply:
        return await _answer(self._remove_gates(request), context)

    async def ListTenants(self, request: pb.ListTenantsRequest, context: Context) -> pb.ListTenantsReply:
        return await _answer(in_turns(self._queries.tenants(request, self._view())), context)

    async def Retry(self, request: pb.RetryRequest, context: Context) -> pb.RetryReply:
        return await _answer(self._retry(request), context)

    async def ApplyObjects(self, request: pb.ApplyObjectsRequest, context: Context) -> pb.ApplyObjectsReply:
        return await _answer(self._objects.apply(request), context)

    async def DeleteObjects(
        self, request: pb.DeleteObjectsRequest, context: Context
    ) -> pb.DeleteObjectsReply:
        return await _answer(self._objects.remove(request), context)

    async def ListObjects(self, request: pb.ListObjectsRequest, context: Context) -> pb.ListObjectsReply:
        return await _answer(in_turns(self._objects.listed(request)), context)

    async def ListStorage(
        self, request: pb.ListStorageRequest, context: Context
    ) -> AsyncIterator[StorageChanges]:
        for part in storage_changes_to_proto(self._runtime.machine.storage.everything):
            yield part
            await asyncio.sleep(0)  # others get their turn

    async def ListWorkers(self, request: pb.ListWorkersRequest, context: Context) -> pb.ListWorkersReply:
        return await _answer(in_turns(self._queries.workers(request)), context)

    async def GetWorkTimeline(self, request: pb.WorkTimelineRequest, context: Context) -> pb.WorkTimeline:
        return self._queries.work_timeline(request.after)

    async def SetWorkerState(
        self, request: pb.SetWorkerStateRequest, context: Context
    ) -> pb.SetWorkerStateReply:
        return await _answer(self._set_worker_state(request), context)

    async def GetPolicy(self, request: pb.GetPolicyRequest, context: Context) -> pb.Policy:
        return self._policy.message(with_text=True)

    async def SetPolicy(self, request: pb.Policy, context: Context) -> pb.SetPolicyReply:
        await _answer(self._policy.set(request.yaml, request.if_version), context)
        return pb.SetPolicyReply(version=self._policy.policy.version, warnings=self._policy.warnings())

    async def TestPolicy(self, request: pb.TestPolicyRequest, context: Context) -> pb.TestPolicyReply:
        return await _answer(self._policy.dry_run(request), context)

    async def GetConflicts(self, request: pb.ConflictsRequest, context: Context) -> pb.Conflicts:
        return conflicts_message(self._runtime.machine, self._nodes)

    async def Steer(self, request: pb.SteerRequest, context: Context) -> pb.Steering:
        machine = self._runtime.machine
        try:
            self._runtime.handle(overlap_request(request, machine))
        except InvalidInput as exc:
            await _abort(context, exc)
        return overlap_message(machine, steps=True)

    async def Rebalance(self, request: pb.RebalanceRequest, context: Context) -> pb.RebalanceStatus:
        return await _answer(self._mover.serve(request), context)

    async def ReportRebalancing(
        self, request: pb.RebalanceController, context: Context
    ) -> pb.RebalanceStatus:
        return await _answer(self._mover.hear(request), context)

    async def GetStatus(self, request: pb.StatusRequest, context: Context) -> pb.DispatcherStatus:
        view = self._view()
        if view.tenant:
            return self._queries.tenant_status(version(), view)
        status = self._queries.status(version())
        status.steering.CopyFrom(overlap_message(self._runtime.machine, steps=False))
        status.policy.CopyFrom(self._policy.message(with_text=False))
        status.problems.extend(self._policy.problems())
        return status

    async def Audit(
        self,
        request: pb.DispatcherAuditRequest,
        context: Context,
    ) -> pb.DispatcherAuditReply:
        views: list[pb.WorkerView] = []
        if not request.page_token:
            streams = [self._runtime.links[worker.link] for worker in self._runtime.machine.members.living()]
            views = await self._views.ask(streams, request.timeout_ms / 1000)
        reply = await _answer(in_turns(self._queries.audit(request)), context)
        reply.views.extend(views)
        return reply

    async def _read_submissions(
        self,
        requests: AsyncIterator[pb.SubmitRequest],
        pending: "asyncio.Queue[asyncio.Future[Submission] | Exception | None]",
    ) -> None:
        try:
            view = self._view()
            async for request in requests:
                self._check_submission(view, request)
                await pending.put(await self._admission.begin(request, view.tenant))
                await self._admission.throttle()
        except Exception as exc:  # noqa: BLE001 - raised by the call that reads the queue
            await pending.put(exc)
        await pending.put(None)

    async def _get_pod(self, request: pb.GetPodRequest) -> pb.PodInfo:
        if request.uid:
            if len(request.uid) != UID_BYTES:
                raise InvalidInput(f"{len(request.uid)} bytes; a UID has 16", where="uid")
            row: int | None = int(self._registry.directory.rows_of_uids(decode_uids(request.uid))[0])
            pod = f"pod with UID {uid_text(request.uid)}"
        else:
            row = self._registry.directory.row_of_name(request.namespace, request.name)
            pod = f"pod {quoted(request.name)} in namespace {quoted(request.namespace)}"
        view = self._view()
        absent = row is None or row == NONE_U32 or self._registry.pods.phase[row] == Phase.ABSENT
        if row is None or absent or not view.has_row(row):
            if (unplaceable := self._unplaceable.find(request)) is not None and not view.tenant:
                return unplaceable
            raise NotFound(f"there is no {pod}; `hoss get pods -A` lists all")
        info = self._pods.pod(row, detail=True, steps=request.steps)
        if request.queue and (position := self._pods.queue_position(row)) is not None:
            info.queue.CopyFrom(position)
        view.redact(info)
        if request.decisions:
            await self._add_decisions(info)
        return info

    async def _add_decisions(self, info: pb.PodInfo) -> None:
        """The decisions that the pod's workers remember. Those of workers that have left are lost."""
        names = dict.fromkeys([*(step.worker for step in info.steps), info.worker])
        workers = [
            worker for name in names if (worker := self._runtime.machine.members.get(name)) is not None
        ]
        links = [self._runtime.links.get(worker.link) for worker in workers if worker.living]
        queries = (self._decisions.ask(link, info.uid) for link in links if link is not None)
        decisions = [decision for answer in await asyncio.gather(*queries) for decision in answer]
        for decision in sorted(decisions, key=lambda decision: decision.at_unix_ms):
            decision.candidate_names.extend(map(self._nodes.name, decision.candidates))
            decision.node_name = self._nodes.name(decision.node)
            info.decisions.append(decision)

    async def _delete(self, request: pb.DeleteRequest) -> pb.DeleteReply:
        not_found: list[str] = []
        deleted = await self._admission.delete(partial(self._named, self._view(), request, not_found))
        return pb.DeleteReply(deleted_pods=deleted, not_found=not_found)

    async def _remove_gates(self, request: pb.RemoveGatesRequest) -> pb.RemoveGatesReply:
        not_found: list[str] = []
        find = partial(self._named, self._view(), request, not_found)
        changed, queued = await self._admission.remove_gates(find, frozenset(request.gates))
        return pb.RemoveGatesReply(changed_pods=changed, queued_pods=queued, not_found=not_found)

    async def _retry(self, request: pb.RetryRequest) -> pb.RetryReply:
        not_found: list[str] = []
        every = pb.ListPodsRequest(namespace=request.namespace, phases=[pb.FAILED])
        view = self._view()

        async def find(newest: int) -> Rows:
            if not request.every:
                return await self._named(view, request, not_found, newest)
            return view.of_rows(await in_turns(self._pods.matching(every)))

        return pb.RetryReply(retried_pods=await self._admission.retry(find), not_found=not_found)

    def _view(self) -> TenantView:
        """What the present call may see."""
        return TenantView(self._runtime.machine, callers_tenant())

    async def _named(
        self,
        view: TenantView,
        request: pb.DeleteRequest | pb.RemoveGatesRequest | pb.RetryRequest,
        not_found: list[str],
        newest: int,
    ) -> Rows:
        """The rows that a request names, of sets up to `newest`. `not_found` gets the names that the view
        does not know, and those that were given to newer pods. Others get their turn in between, so rows may
        have got other pods since."""
        not_found.clear()
        directory, pods = self._registry.directory, self._registry.pods
        parts: list[Rows] = [np.empty(0, np.uint32)]
        for looked_up, name in enumerate(request.jobs, 1):
            if looked_up % _NAMES_AT_ONCE == 0:
                await asyncio.sleep(0)
            job = directory.job(request.namespace, name)
            # One that is not durable yet has no pods. It may be refused, or come a moment later.
            if job is None or not job.submission.durable or job.index > newest or not view.has_job(job):
                not_found.append(f"job {name}")
            else:
                parts.append(self._registry.rows_of(job))
        for looked_up, name in enumerate(request.pods, 1):
            if looked_up % _NAMES_AT_ONCE == 0:
                await asyncio.sleep(0)
            row = directory.row_of_name(request.namespace, name)
            if (
                row is None
                or pods.phase[row] in {Phase.ABSENT, Phase.DELETED}
                or pods.pod_set[row] > newest
                or not view.has_row(row)
            ):
                not_found.append(f"pod {name}")
            else:
                parts.append(np.array([row], np.uint32))
        uids = decode_uids(request.uids)
        for start in range(0, len(uids), _NAMES_AT_ONCE):
            part = uids[start : start + _NAMES_AT_ONCE]
            rows = directory.rows_of_uids(part)
            known = rows != NONE_U32
            known[known] = (pods.pod_set[rows[known]] <= newest) & np.isin(
                rows[known], view.of_rows(rows[known])
            )
            not_found.extend(f"pod {uid_text(uid.tobytes())}" for uid in part[~known])
            parts.append(rows[known])
            await asyncio.sleep(0)
        return np.concatenate(parts)

    async def _set_worker_state(self, request: pb.SetWorkerStateRequest) -> pb.SetWorkerStateReply:
        worker = set_worker_state(self._runtime, request.name, request.state)
        return pb.SetWorkerStateReply(worker=self._queries.worker(worker))


def set_worker_state(runtime: Runtime, name: str, state: str) -> Worker:
    """Cordon, drain or reopen a worker (`hoss cordon`, `drain` and `uncordon worker`). Raises InvalidInput
    and NotFound."""
    if state not in OPERATOR_STATES:
        raise InvalidInput(f"{quoted(state)} is none of {', '.join(OPERATOR_STATES)}", where="state")
    worker = runtime.machine.members.get(name)
    if worker is None:
        raise NotFound(f"there is no worker {quoted(name)}")
    runtime.handle(m.WorkerStateRequested(name, OPERATOR_STATES[state]))
    return worker


async def _answer(reply: Awaitable[ReplyT], context: Context) -> ReplyT:
    """The reply. On an error the call ends with the status for it."""
    try:
        return await reply
    except (AccessDenied, InvalidInput, LedgerUnavailable, Overloaded) as exc:
        await _abort(context, exc)
    except TransportError as exc:  # of a resolver
        await _abort(context, LedgerUnavailable(str(exc)))


async def _abort(context: Context, error: Exception) -> NoReturn:
    if isinstance(error, AccessDenied):
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, str(error))
    if isinstance(error, AlreadyExists):
        await context.abort(grpc.StatusCode.ALREADY_EXISTS, str(error))
    if isinstance(error, StaleVersion):
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
    if isinstance(error, RevisionTooOld):
        await context.abort(grpc.StatusCode.OUT_OF_RANGE, str(error))
    if isinstance(error, (InvalidInput, LedgerUnavailable, Overloaded)):
        await refuse(context, error)
    raise error
