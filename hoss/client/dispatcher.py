"""The dispatcher's client: typed calls with deadlines, and HOSS's errors in place of gRPC's.

A failed call raises TransportError (the dispatcher cannot be reached), LedgerUnavailable (it cannot accept
now; the same request may be sent again), OutcomeUnknown (it may have accepted; the same request settles it)
or InvalidInput (the request is wrong, or a name is unknown or in use), with the server's text."""

import asyncio
import random
import struct
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Sequence
from copy import copy
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import grpc
import grpc.aio

from hoss import rpc
from hoss.client import resuming
from hoss.client.access import found_channel
from hoss.client.backoff import Backoff, Patience
from hoss.client.errors import translate
from hoss.contexts import found_addresses
from hoss.errors import HossError, InvalidInput, OutcomeUnknown, Overloaded, TransportError
from hoss.host import THIS_HOST
from hoss.security.identity import metadata_of_tenant
from hoss.v1 import dispatcher_pb2 as pb
from hoss.v1.dispatcher_pb2_grpc import DispatcherStub
from hoss.wire.pages import PAGE_ENTRIES, pages
from hoss.wire.uids import random_uid_text, uid_from_text

# The model is imported by what converts it alone: a command that lists pods would wait for it as long as for
# everything else together.
if TYPE_CHECKING:
    from hoss.model.cluster import ClusterObject, ObjectKey, PodDisruptionBudget, StorageUpdate
    from hoss.model.pod import GangSpec, PodTemplate, Workload
    from hoss.v1.dispatcher_pb2_grpc import DispatcherAsyncStub

CALL_SECONDS = 10.0  # queries and small changes
# Between submissions whose outcome is unknown.
_FIRST_DELAY_SECONDS, _LONGEST_DELAY_SECONDS = 0.1, 1.0
SUBMIT_SECONDS = 60.0  # for 50,000 distinct pods in one message and a slow journal

# Bound pods in a page of an audit: 2 MB.
_AUDITED_PODS = 100_000

# Workloads in one message: enough that the cost of a call does not matter, and few enough that the first
# workloads are placed while the last ones are still being sent.
WORKLOADS_PER_MESSAGE = 500

SERVICE = pb.DESCRIPTOR.services_by_name["Dispatcher"]
# gRPC repeats these by itself. They are idempotent, `submit` by its request id.
_REPEATABLE = [
    method.name for method in SERVICE.methods if not (method.client_streaming or method.server_streaming)
]

RequestT = TypeVar("RequestT")
ReplyT = TypeVar("ReplyT")


class DispatcherClient:
    """One channel to the dispatcher, at one address or at those of several dispatchers of which one is
    active. Without `addresses` it finds the platform as commands do (hoss.contexts), and without
    `open_channel` its certificate and token (hoss.client.access). Use it as an async context manager, or call
    `close`.

    The client survives a takeover: calls wait for the active dispatcher (10 s at most), interrupted calls are
    repeated, and streams are resumed. With one address, a call without an answer fails after two seconds."""

    def __init__(
        self,
        addresses: Sequence[str] | None = None,
        *,
        open_channel: rpc.OpenChannel = found_channel,
        clock: Callable[[], float] = THIS_HOST.monotonic,
        rng: random.Random = THIS_HOST.rng,
    ) -> None:
        addresses = found_addresses("dispatcher") if addresses is None else addresses
        self._clock = clock
        self._rng = rng
        self.metadata: tuple[tuple[str, str], ...] = ()  # of calls
        self._peer = "dispatcher " + ", ".join(addresses)
        self._channel = open_channel(
            addresses, kind="dispatcher", service=SERVICE.full_name, retried=_REPEATABLE
        )
        self.stub: DispatcherAsyncStub = DispatcherStub(self._channel)
        # Called whenever a submission waits because the dispatcher is full.
        self.on_full: Callable[[Overloaded], None] = lambda _: None
        self._several = rpc.of_several(addresses)
        self._streams = resuming.ResumablePeer(
            self.stub, self._peer, several=self._several, clock=clock, rng=rng
        )

    async def __aenter__(self) -> "DispatcherClient":  # noqa: PYI034 - typing.Self came with Python 3.11
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def of_tenant(self, tenant: str) -> "DispatcherClient":
        """The same channel for calls that may see and change no more than a client of that tenant; "": as
        this client. Not for streams."""
        client = copy(self)
        client.metadata = metadata_of_tenant(tenant)
        return client

    async def close(self) -> None:
        """Close the channel and cancel its calls."""
        await self._channel.close()

    async def submit(self, request: pb.SubmitRequest) -> pb.SubmitReply:
        """Submit jobs and pods. A repeated message is accepted once, by its request_id; a missing one is set.

        While the dispatcher is full, the client retries after its delay. Raises Overloaded after 5 minutes.
        Where the outcome is unknown, the client sends the message again, with its id. Raises OutcomeUnknown
        after 10 s: then whoever sends this `request` again, with the id that is in it, learns the outcome."""
        patience = Patience(self.on_full, clock=self._clock)
        backoff = Backoff(_FIRST_DELAY_SECONDS, _LONGEST_DELAY_SECONDS, CALL_SECONDS, rng=self._rng)
        self._identify(request)
        while True:
            try:
                return await self._call(self.stub.Submit, request, SUBMIT_SECONDS)
            except Overloaded as exc:  # noqa: PERF203 - the loop is the retry
                await patience.wait(exc)
            except OutcomeUnknown:
                delay = backoff.failed(self._clock())
                if delay is None:
                    raise
                await asyncio.sleep(delay)

    async def submit_stream(self, requests: AsyncIterable[pb.SubmitRequest]) -> AsyncIterator[pb.SubmitReply]:
        """Submit many messages. Yields their replies in order, each when its message is durable.

        Raises the server's error at the first message that the server refuses; the messages with replies are
        accepted. After a break the client sends the unanswered messages again, with their ids."""

        async def outgoing() -> AsyncIterator[pb.SubmitRequest]:
            async for request in requests:
                self._identify(request)
                yield request

        patience = Patience(self.on_full, clock=self._clock)
        async for reply in resuming.submit_stream(self._streams, outgoing(), patience):
            yield reply

    async def get_pod(
        self,
        namespace: str = "",
        name: str = "",
        *,
        uid: bytes = b"",
        queue: bool = False,
        decisions: bool = False,
        steps: bool = False,
    ) -> pb.PodInfo:
        """One pod with its template, by name or UID. `queue`: with its place in the queue. `decisions`: with
        the placement decisions that workers still have. `steps`: with its history."""
        request = pb.GetPodRequest(
            namespace=namespace, name=name, uid=uid, queue=queue, decisions=decisions, steps=steps
        )
        return await self._call(self.stub.GetPod, request)

    async def list_pods(
        self,
        namespace: str = "",
        *,
        job: str = "",
        phases: Iterable[pb.PodPhase] = (),
        node: str = "",
        label_selector: str = "",
        page_pods: int = PAGE_ENTRIES,
        templates: bool = False,
        unplaceable: bool = False,
    ) -> AsyncIterator[pb.PodInfo]:
        """Every pod that matches, page by page. An empty namespace means all. `templates`: with templates.
        `unplaceable`: in Kubernetes mode also the pods that HOSS cannot place at all."""
        request = pb.ListPodsRequest(
            namespace=namespace,
            job=job,
            phases=phases,
            node=node,
            label_selector=label_selector,
            limit=page_pods,
            templates=templates,
            unplaceable=unplaceable,
        )
        async for page in self._pages(self.stub.ListPods, request):
            for pod in page.pods:
                yield pod

    async def pods_page(self, request: pb.ListPodsRequest) -> pb.ListPodsReply:
        """One page of pods, the one that the request names."""
        return await self._call(self.stub.ListPods, request)

    async def jobs_page(self, request: pb.ListJobsRequest) -> pb.ListJobsReply:
        """One page of jobs, the one that the request names."""
        return await self._call(self.stub.ListJobs, request)

    async def list_jobs(
        self, namespace: str = "", name: str = "", *, steps: bool = False
    ) -> list[pb.JobInfo]:
        """Jobs with their counts by phase, in order of submission. An empty namespace or name means all.
        `steps`: with their history."""
        request = pb.ListJobsRequest(namespace=namespace, name=name, steps=steps, limit=PAGE_ENTRIES)
        return [job async for page in self._pages(self.stub.ListJobs, request) for job in page.jobs]

    async def pod_summary(self) -> pb.PodSummary:
        """How many pods are in each phase, and why those that wait do."""
        return await self._call(self.stub.GetPodSummary, pb.PodSummaryRequest())

    async def watch(self, since_revision: int = 0, *, states: bool = False) -> AsyncIterator[pb.WatchBatch]:
        """Events after a revision (0: from now), for as long as the caller iterates.

        With `states`, the present states of all live pods come first. Raises InvalidInput where the revision
        is too old, or where the caller reads too slowly: list the pods, then watch again.

        A watch is resumed after a break. With the same dispatcher it continues at its revision, so every
        event comes exactly once. After a takeover or restart the events in between are lost. Then the watch
        yields the pods whose phase or node differs from what it yielded last, and as DELETED the pods that no
        longer exist. States in between may be missing, and a pod that the watch never yielded may come
        unchanged. The last state of every pod always comes. After 15 s without a dispatcher it raises
        TransportError."""
        if not since_revision and not states:
            # The revision to resume at after a break before the first event.
            since_revision = (await self.status()).revision
        async for batch in resuming.watch(self._streams, since_revision, states=states):
            yield batch

    async def delete(
        self, namespace: str = "", *, pods: Iterable[str] = (), jobs: Iterable[str] = (), uids: bytes = b""
    ) -> pb.DeleteReply:
        """Delete pods by name or UID (a column of 16 bytes each), and whole jobs."""
        request = pb.DeleteRequest(namespace=namespace, pods=pods, jobs=jobs, uids=uids)
        return await self._call(self.stub.Delete, request, SUBMIT_SECONDS)

    async def remove_gates(
        self,
        namespace: str = "",
        *,
        pods: Iterable[str] = (),
        jobs: Iterable[str] = (),
        gates: Iterable[str] = (),
    ) -> pb.RemoveGatesReply:
        """Remove scheduling gates from pods and whole jobs. Without `gates`: all."""
        request = pb.RemoveGatesRequest(namespace=namespace, pods=pods, jobs=jobs, gates=gates)
        return await self._call(self.stub.RemoveGates, request)

    async def list_tenants(self) -> list[pb.TenantInfo]:
        """The tenants that have pods, by name."""
        request = pb.ListTenantsRequest(limit=PAGE_ENTRIES)
        replies = self._pages(self.stub.ListTenants, request)
        return [tenant async for page in replies for tenant in page.tenants]

    async def retry(
        self, namespace: str = "", *, pods: Iterable[str] = (), jobs: Iterable[str] = (), every: bool = False
    ) -> pb.RetryReply:
        """Put failed pods back in the queue: pods by name, whole jobs, or `every` failed pod of the namespace
        (empty: of all namespaces)."""
        request = pb.RetryRequest(namespace=namespace, pods=pods, jobs=jobs, every=every)
        return await self._call(self.stub.Retry, request)

    async def apply_objects(self, objects: "Sequence[ClusterObject]") -> list[str]:
        """Apply all objects or none. Returns "created", "configured" or "unchanged" for each."""
        from hoss.wire.convert_objects import object_to_proto  # noqa: PLC0415 - as said above

        request = pb.ApplyObjectsRequest(objects=map(object_to_proto, objects))
        return list((await self._call(self.stub.ApplyObjects, request)).results)

    async def delete_objects(self, keys: "Iterable[ObjectKey]") -> "list[ObjectKey]":
        """Delete objects. Returns the keys of objects that do not exist."""
        from hoss.model.cluster import ObjectKey  # noqa: PLC0415 - as said above

        refs = [pb.ObjectRef(kind=key.kind, namespace=key.namespace, name=key.name) for key in keys]
        request = pb.DeleteObjectsRequest(objects=refs)
        reply = await self._call(self.stub.DeleteObjects, request)
        return [ObjectKey(ref.kind, ref.namespace, ref.name) for ref in reply.not_found]

    async def list_objects(self, kind: str = "", namespace: str = "") -> "list[ClusterObject]":
        """Objects of a kind and namespace, by name. Empty means all."""
        from hoss.wire.convert_objects import object_from_proto  # noqa: PLC0415 - as said above

        request = pb.ListObjectsRequest(kind=kind, namespace=namespace, limit=PAGE_ENTRIES)
        replies = self._pages(self.stub.ListObjects, request)
        return [object_from_proto(message) async for page in replies for message in page.objects]

    async def list_storage(self) -> "StorageUpdate":
        """All storage and device objects of the cluster; none of a platform without a Kubernetes cluster, or
        of a dispatcher of an earlier release."""
        from hoss.model.cluster import StorageUpdate  # noqa: PLC0415 - as said above
        from hoss.wire.convert_storage import storage_changes_from_proto  # noqa: PLC0415 - as said above

        # gRPC repeats no stream by itself.
        backoff, deadline = self._streams.backoff(), self._clock() + CALL_SECONDS
        parts: list[StorageUpdate] = []
        while True:
            timeout = max(0.0, deadline - self._clock())
            call = self.stub.ListStorage(pb.ListStorageRequest(), timeout=timeout, metadata=self.metadata)
            try:
                parts = [storage_changes_from_proto(message) async for message in call]
                break
            except grpc.aio.AioRpcError as exc:
                if exc.code() is grpc.StatusCode.UNIMPLEMENTED:
                    break
                if exc.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                    raise self._translated(exc) from exc
                await self._streams.wait_or_raise(exc, backoff)
        return StorageUpdate(tuple(item for part in parts for item in part.objects), complete=True)

    async def list_budgets(self, namespace: str = "") -> "list[tuple[PodDisruptionBudget, pb.BudgetStatus]]":
        """Disruption budgets of a namespace (empty: of all) by name, with their present status."""
        from hoss.model.cluster import PodDisruptionBudget  # noqa: PLC0415 - as said above
        from hoss.wire.convert_objects import object_from_proto  # noqa: PLC0415 - as said above

        request = pb.ListObjectsRequest(
            kind=PodDisruptionBudget.__name__, namespace=namespace, limit=PAGE_ENTRIES
        )
        found: list[tuple[PodDisruptionBudget, pb.BudgetStatus]] = []
        async for page in self._pages(self.stub.ListObjects, request):
            items = map(object_from_proto, page.objects)
            budgets = [item for item in items if isinstance(item, PodDisruptionBudget)]
            found += zip(budgets, page.budgets, strict=True)
        return found

    async def list_workers(self, *, steps: bool = False) -> list[pb.WorkerInfo]:
        """Registered and lost workers. `steps`: with their recent history."""
        request = pb.ListWorkersRequest(steps=steps, limit=PAGE_ENTRIES)
        replies = self._pages(self.stub.ListWorkers, request)
        return [worker async for page in replies for worker in page.workers]

    async def work_timeline(self, after: int = 0) -> pb.WorkTimeline:
        """When workers had which batches, after the `last` of an earlier reply."""
        return await self._call(self.stub.GetWorkTimeline, pb.WorkTimelineRequest(after=after))

    async def set_worker_state(self, name: str, state: str) -> pb.WorkerInfo:
        """Cordon ("Cordoned"), drain ("Draining") or reopen ("Ready") a worker."""
        request = pb.SetWorkerStateRequest(name=name, state=state)
        return (await self._call(self.stub.SetWorkerState, request)).worker

    async def conflicts(self) -> pb.Conflicts:
        """Conflicts between workers since the dispatcher's start, and the settings against them."""
        return await self._call(self.stub.GetConflicts, pb.ConflictsRequest())

    async def steer(self, overlap: str = "", workers: str = "") -> pb.Steering:
        """Set how workers' preferences overlap, and how many workers get work at once. "auto" leaves a
        setting to the dispatcher, "" does not change it. Raises InvalidInput for an unknown value."""
        return await self._call(self.stub.Steer, pb.SteerRequest(overlap=overlap, workers=workers))

    async def rebalance(self, request: pb.RebalanceRequest) -> pb.RebalanceStatus:
        """Start, pause, resume or undo a run of moves, or tell how far it is. Raises InvalidInput and
        NotFound."""
        return await self._call(self.stub.Rebalance, request)

    async def report_rebalancing(self, report: pb.RebalanceController) -> pb.RebalanceStatus:
        """Report as a rebalance controller. Raises InvalidInput in Kubernetes mode, and while another
        controller is at work."""
        return await self._call(self.stub.ReportRebalancing, report)

    async def get_policy(self) -> pb.Policy:
        """The SchedulingPolicy in force."""
        return await self._call(self.stub.GetPolicy, pb.GetPolicyRequest())

    async def set_policy(self, yaml: str, *, if_version: int = 0) -> pb.SetPolicyReply:
        """Replace the policy; with `if_version` only the one of that version. InvalidInput names the wrong
        field; the old policy then stays."""
        request = pb.Policy(yaml=yaml, if_version=if_version)
        return await self._call(self.stub.SetPolicy, request)

    async def test_policy(self, templates: "Iterable[PodTemplate]", yaml: str = "") -> pb.TestPolicyReply:
        """Dry run: how the policy in force, or `yaml`, would treat pods of these templates now."""
        from hoss.wire.convert import template_to_proto  # noqa: PLC0415 - as said above

        request = pb.TestPolicyRequest(templates=map(template_to_proto, templates), yaml=yaml)
        return await self._call(self.stub.TestPolicy, request)

    async def status(self) -> pb.DispatcherStatus:
        """Pods by phase, counters since the start, and problems as sentences."""
        return await self._call(self.stub.GetStatus, pb.StatusRequest())

    async def audit(self, timeout_ms: int = 2000) -> pb.DispatcherAuditReply:
        """The workers' views of the nodes, and the bound pods, read in pages. Workers that do not answer in
        time are missing."""
        request = pb.DispatcherAuditRequest(timeout_ms=timeout_ms, limit=_AUDITED_PODS)
        timeout_seconds = CALL_SECONDS + timeout_ms / 1000
        whole, uids, nodes = pb.DispatcherAuditReply(), [], []
        async for page in pages(lambda asked: self._call(self.stub.Audit, asked, timeout_seconds), request):
            uids.append(page.bound_uids)
            nodes.append(page.bound_nodes)
            page.ClearField("bound_uids")
            page.ClearField("bound_nodes")
            whole.MergeFrom(page)
        whole.bound_uids, whole.bound_nodes = b"".join(uids), b"".join(nodes)
        whole.ClearField("next_page_token")
        return whole

    async def worker_views(self, timeout_ms: int = 2000) -> Sequence[pb.WorkerView]:
        """The workers' views of the nodes. Workers that do not answer in time are missing."""
        request = pb.DispatcherAuditRequest(timeout_ms=timeout_ms, limit=1)
        return (await self._call(self.stub.Audit, request, CALL_SECONDS + timeout_ms / 1000)).views

    def _identify(self, request: pb.SubmitRequest) -> None:
        """Set a missing id. A repetition without an id would be another submission."""
        if not request.request_id:
            request.request_id = random_uid_text(self._rng)

    def _pages(
        self, method: "grpc.aio.UnaryUnaryMultiCallable[Any, ReplyT]", request: Any
    ) -> AsyncIterator[ReplyT]:
        """Every page of a list."""
        return pages(partial(self._call, method), request)

    async def _call(
        self,
        method: "grpc.aio.UnaryUnaryMultiCallable[RequestT, ReplyT]",
        request: RequestT,
        timeout_seconds: float = CALL_SECONDS,
    ) -> ReplyT:
        try:
            return await method(request, timeout=timeout_seconds, metadata=self.metadata)
        except grpc.aio.AioRpcError as exc:
            raise self._translated(exc) from exc

    def _translated(self, exc: grpc.aio.AioRpcError) -> HossError:
        if exc.code() is grpc.StatusCode.DEADLINE_EXCEEDED and self._several:
            return TransportError(f"{self._peer}: none of them became active, or answered, in time")
        return translate(exc, self._peer)


def submission(
    workloads: "Iterable[Workload]",
    request_id: str | None = None,
    *,
    rng: random.Random = THIS_HOST.rng,
) -> Iterator[pb.SubmitRequest]:
    """Group workloads into messages for `submit` or `submit_stream`. A message has equal templates once.

    Workloads with an owner or several replicas become jobs, the others rows of a pod list. The k-th message
    (from 0) has the id `request_id/k`, so the same workloads with the same id are accepted once. Without an
    id each call is a new submission."""
    stem = request_id or random_uid_text(rng)
    number = 0
    # A pod list carries UIDs for all of its pods or for none.
    drafts = {False: _Draft(), True: _Draft()}
    for members in _by_gang(workloads):
        with_uids = _have_uids(members)
        draft = drafts[with_uids]
        for workload in members:
            draft.add(workload)
        if draft.workloads >= WORKLOADS_PER_MESSAGE:
            yield draft.finish(f"{stem}/{number}")
            number += 1
            drafts[with_uids] = _Draft()
    for draft in drafts.values():
        if draft.workloads:
            yield draft.finish(f"{stem}/{number}")
            number += 1


def _by_gang(workloads: "Iterable[Workload]") -> "Iterator[list[Workload]]":
    """Single workloads, then the workloads of each gang, which must be in one message."""
    gangs: dict[GangSpec, list[Workload]] = {}
    for workload in workloads:
        if workload.replicas == 0:
            continue  # a Deployment scaled to zero
        if workload.gang is None:
            yield [workload]
        else:
            gangs.setdefault(workload.gang, []).append(workload)
    yield from gangs.values()


def _is_job(workload: "Workload") -> bool:
    return workload.replicas > 1 or bool(workload.template.owner_kind)


def _have_uids(members: "list[Workload]") -> bool:
    """Whether the pods have UIDs. Raises InvalidInput for a gang with some pods that have one."""
    found = {bool(workload.uid) for workload in members if not _is_job(workload)}
    gang = members[0].gang
    if len(found) > 1 and gang is not None:
        problem = "some of its pods have a metadata.uid and some have none"
        raise InvalidInput(problem, where=f"gang {gang.name}")
    return True in found


class _Draft:
    """A message being filled."""

    def __init__(self) -> None:
        self.workloads = 0
        self._message = pb.SubmitRequest()
        self._template_numbers: dict[PodTemplate, int] = {}
        self._pod_templates: list[int] = []
        self._uids: list[bytes] = []
        self._gang_numbers: dict[GangSpec, int] = {}
        self._pod_gangs: list[int] = []

    def add(self, workload: "Workload") -> None:
        self.workloads += 1
        template = self._number_of(workload.template)
        gang = 0 if workload.gang is None else self._number_of_gang(workload.gang)
        if _is_job(workload):
            self._message.jobs.add(
                name=workload.name, template=template, replicas=workload.replicas, gang=gang
            )
            return
        self._pod_gangs.append(gang)
        self._message.pods.names.append(workload.name)
        self._pod_templates.append(template)
        if workload.uid:
            self._uids.append(uid_from_text(workload.uid))

    def finish(self, request_id: str) -> pb.SubmitRequest:
        self._message.request_id = request_id
        if self._pod_templates:
            self._message.pods.templates = _column(self._pod_templates)
            self._message.pods.uids = b"".join(self._uids)
            if any(self._pod_gangs):
                self._message.pods.gangs = _column(self._pod_gangs)
        return self._message

    def _number_of_gang(self, gang: "GangSpec") -> int:
        """From 1; in a message 0 means no gang."""
        number = self._gang_numbers.get(gang)
        if number is None:
            number = self._gang_numbers[gang] = len(self._gang_numbers) + 1
            self._message.gangs.add(namespace=gang.namespace, name=gang.name, min_available=gang.minimum)
        return number

    def _number_of(self, template: "PodTemplate") -> int:
        number = self._template_numbers.get(template)
        if number is None:
            from hoss.wire.convert import template_to_proto  # noqa: PLC0415 - as said above

            number = self._template_numbers[template] = len(self._template_numbers)
            self._message.templates.append(template_to_proto(template))
        return number


def _column(numbers: list[int]) -> bytes:
    """A u32 column, as `hoss.wire.columns.encode` writes it, without NumPy."""
    return struct.pack(f"<{len(numbers)}I", *numbers)
