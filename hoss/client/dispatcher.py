"""The dispatcher as Python programs see it: typed calls, deadlines, and HOSS's own errors instead of gRPC's.

A call that fails raises TransportError (cannot be reached), LedgerUnavailable (cannot accept now; the same request
may be sent again) or InvalidInput (what was sent is wrong, taken, or not there), with the server's text.
"""

import uuid
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

import grpc
import grpc.aio

from hoss import rpc
from hoss.client import resuming
from hoss.client.errors import translate
from hoss.client.patience import Patience
from hoss.errors import InvalidInput, Overloaded, TransportError
from hoss.model.cluster_objects import ClusterObject, ObjectKey, PodDisruptionBudget
from hoss.model.pod import Gang, PodTemplate, Workload
from hoss.v1 import dispatcher_pb2 as pb
from hoss.v1.dispatcher_pb2_grpc import DispatcherStub
from hoss.wire.columns import U32, encode, uid_from_text
from hoss.wire.convert import template_to_proto
from hoss.wire.convert_objects import object_from_proto, object_to_proto

if TYPE_CHECKING:
    from hoss.v1.dispatcher_pb2_grpc import DispatcherAsyncStub

CALL_SECONDS = 10.0  # questions and small changes
SUBMIT_SECONDS = 60.0  # 50,000 distinct pods in one message, and a journal that may be slow

# Workloads in one message: enough that the call costs nothing beside its content, few enough that the first are
# being placed while the last are on their way.
WORKLOADS_PER_MESSAGE = 500

SERVICE = pb.DESCRIPTOR.services_by_name["Dispatcher"]
# gRPC repeats these by itself: each has the same effect however often it is asked, `submit` by its request id.
_REPEATABLE = [method.name for method in SERVICE.methods if not (method.client_streaming or method.server_streaming)]

ReplyT = TypeVar("ReplyT")


class DispatcherClient:
    """One channel to the dispatcher, at one address or at those of several of which one is active. Use it as an async context
    manager, or call `close`.

    It survives a takeover: calls wait for the active dispatcher (10 s at most) and are repeated when they break off, and streams
    are resumed. With one address, a call fails after some two seconds in which nobody answered.
    """

    def __init__(self, addresses: Sequence[str]) -> None:
        self._peer = "dispatcher " + ", ".join(addresses)
        self._channel = rpc.channel(addresses, service=SERVICE.full_name, retried=_REPEATABLE)
        self.stub: DispatcherAsyncStub = DispatcherStub(self._channel)
        # Told whenever a submission has to wait because the dispatcher is full.
        self.on_full: Callable[[Overloaded], None] = lambda _: None
        self._several = rpc.of_several(addresses)
        self._streams = resuming.Peer(self.stub, self._peer, several=self._several)

    async def __aenter__(self) -> "DispatcherClient":  # noqa: PYI034 - typing.Self came with Python 3.11
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End the channel; calls under way are cancelled."""
        await self._channel.close()

    async def submit(self, request: pb.SubmitRequest) -> pb.SubmitReply:
        """Hand over jobs and pods, once however often the message has to be sent: one without a request_id is given one.

        While the dispatcher is full it is asked again when it says; raises Overloaded after five minutes of that.
        """
        patience = Patience(self.on_full)
        while True:
            try:
                return await self._answer(self.stub.Submit(_identified(request), timeout=SUBMIT_SECONDS))
            except Overloaded as exc:  # noqa: PERF203 - the loop is the retry
                await patience.wait(exc)

    async def submit_stream(self, requests: AsyncIterable[pb.SubmitRequest]) -> AsyncIterator[pb.SubmitReply]:
        """Hand over many messages; yields their replies in order, each once its message is durable.

        Ends early with the server's error at the first message it refuses; those answered before it are accepted. A stream
        that breaks off is made anew and what was not answered is sent again, under the same ids.
        """

        async def outgoing() -> AsyncIterator[pb.SubmitRequest]:
            async for request in requests:
                yield _identified(request)

        async for reply in resuming.submit_stream(self._streams, outgoing(), Patience(self.on_full)):
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
        """One pod with its template, by name or by UID; with `queue` also where it waits, if it does, with `decisions` how it was
        placed, as far as its workers remember, and with `steps` how it came where it is."""
        request = pb.GetPodRequest(
            namespace=namespace, name=name, uid=uid, queue=queue, decisions=decisions, steps=steps
        )
        return await self._answer(self.stub.GetPod(request, timeout=CALL_SECONDS))

    async def list_pods(
        self,
        namespace: str = "",
        *,
        job: str = "",
        phases: Iterable[pb.PodPhase] = (),
        node: str = "",
        label_selector: str = "",
        page_pods: int = 1000,
        templates: bool = False,
    ) -> AsyncIterator[pb.PodInfo]:
        """Every pod that matches, page after page. An empty namespace means all. `templates`: of each pod, too."""
        request = pb.ListPodsRequest(
            namespace=namespace,
            job=job,
            phases=phases,
            node=node,
            label_selector=label_selector,
            limit=page_pods,
            templates=templates,
        )
        while True:
            page = await self._answer(self.stub.ListPods(request, timeout=CALL_SECONDS))
            for pod in page.pods:
                yield pod
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    async def list_jobs(self, namespace: str = "", name: str = "", *, steps: bool = False) -> list[pb.JobInfo]:
        """Jobs with their counts by phase. An empty namespace or name means all. With `steps` what their pods went through."""
        request = pb.ListJobsRequest(namespace=namespace, name=name, steps=steps)
        return list((await self._answer(self.stub.ListJobs(request, timeout=CALL_SECONDS))).jobs)

    async def watch(self, since_revision: int = 0, *, states: bool = False) -> AsyncIterator[pb.WatchBatch]:
        """Events after a revision (0: from now), for as long as the caller iterates.

        With `states`, present states of all live pods come first. Raises InvalidInput when the revision is too old, or
        when the caller reads too slowly: list the pods, then watch anew.

        A watch that breaks off is resumed. With the same dispatcher it goes on at the revision where it was, so every event
        comes exactly once. After a takeover or restart the events in between are gone; then come those pods whose phase or
        node differs from what this watch told last, and as DELETED those that are not there any more. So states in between
        may be missed, and a pod it never told of may come though it did not change, but no pod's last state is missed. After
        15 s without a dispatcher it raises TransportError.
        """
        if not since_revision and not states:
            since_revision = (await self.status()).revision  # where to resume, if it breaks off before the first event
        async for batch in resuming.watch(self._streams, since_revision, states=states):
            yield batch

    async def delete(
        self, namespace: str = "", *, pods: Iterable[str] = (), jobs: Iterable[str] = (), uids: bytes = b""
    ) -> pb.DeleteReply:
        """Delete pods by name or UID (a column of 16 bytes each), and whole jobs."""
        request = pb.DeleteRequest(namespace=namespace, pods=pods, jobs=jobs, uids=uids)
        return await self._answer(self.stub.Delete(request, timeout=SUBMIT_SECONDS))

    async def remove_gates(
        self, namespace: str = "", *, pods: Iterable[str] = (), jobs: Iterable[str] = (), gates: Iterable[str] = ()
    ) -> pb.RemoveGatesReply:
        """Take scheduling gates (none named: all) off pods and whole jobs."""
        request = pb.RemoveGatesRequest(namespace=namespace, pods=pods, jobs=jobs, gates=gates)
        return await self._answer(self.stub.RemoveGates(request, timeout=CALL_SECONDS))

    async def list_tenants(self) -> list[pb.TenantInfo]:
        """Who shares the cluster: tenants that have pods, by name."""
        reply = await self._answer(self.stub.ListTenants(pb.ListTenantsRequest(), timeout=CALL_SECONDS))
        return list(reply.tenants)

    async def retry(
        self, namespace: str = "", *, pods: Iterable[str] = (), jobs: Iterable[str] = (), every: bool = False
    ) -> pb.RetryReply:
        """Put pods that were given up back in the queue: those named, of whole jobs, or `every` one of the namespace (of all where
        it is empty)."""
        request = pb.RetryRequest(namespace=namespace, pods=pods, jobs=jobs, every=every)
        return await self._answer(self.stub.Retry(request, timeout=CALL_SECONDS))

    async def apply_objects(self, objects: Sequence[ClusterObject]) -> list[str]:
        """Make them so, all or none. Beside each: "created", "configured" or "unchanged"."""
        request = pb.ApplyObjectsRequest(objects=map(object_to_proto, objects))
        return list((await self._answer(self.stub.ApplyObjects(request, timeout=CALL_SECONDS))).results)

    async def delete_objects(self, keys: Iterable[ObjectKey]) -> list[ObjectKey]:
        """Remove objects; returns the keys that nothing had."""
        refs = [pb.ObjectRef(kind=key.kind, namespace=key.namespace, name=key.name) for key in keys]
        request = pb.DeleteObjectsRequest(objects=refs)
        reply = await self._answer(self.stub.DeleteObjects(request, timeout=CALL_SECONDS))
        return [ObjectKey(ref.kind, ref.namespace, ref.name) for ref in reply.not_found]

    async def list_objects(self, kind: str = "", namespace: str = "") -> list[ClusterObject]:
        """Objects of a kind and namespace, by name. Empty: of all."""
        request = pb.ListObjectsRequest(kind=kind, namespace=namespace)
        reply = await self._answer(self.stub.ListObjects(request, timeout=CALL_SECONDS))
        return [object_from_proto(message) for message in reply.objects]

    async def list_budgets(self, namespace: str = "") -> list[tuple[PodDisruptionBudget, pb.BudgetStatus]]:
        """Disruption budgets of a namespace (empty: of all) by name, and how each stands now."""
        request = pb.ListObjectsRequest(kind=PodDisruptionBudget.__name__, namespace=namespace)
        reply = await self._answer(self.stub.ListObjects(request, timeout=CALL_SECONDS))
        found = [item for item in map(object_from_proto, reply.objects) if isinstance(item, PodDisruptionBudget)]
        return list(zip(found, reply.budgets, strict=True))

    async def list_workers(self, *, steps: bool = False) -> list[pb.WorkerInfo]:
        """Workers that are registered, or were and are lost. With `steps` what happened to each of late."""
        request = pb.ListWorkersRequest(steps=steps)
        return list((await self._answer(self.stub.ListWorkers(request, timeout=CALL_SECONDS))).workers)

    async def set_worker_state(self, name: str, state: str) -> pb.WorkerInfo:
        """Cordon ("Cordoned"), drain ("Draining") or reopen ("Ready") a worker."""
        request = pb.SetWorkerStateRequest(name=name, state=state)
        return (await self._answer(self.stub.SetWorkerState(request, timeout=CALL_SECONDS))).worker

    async def conflicts(self) -> pb.Conflicts:
        """Who was refused for whom since the dispatcher's start, and what is done about it."""
        return await self._answer(self.stub.GetConflicts(pb.ConflictsRequest(), timeout=CALL_SECONDS))

    async def steer(self, overlap: str = "", workers: str = "") -> pb.Steering:
        """Fix by hand how workers' preferences overlap, and how many get work at once; "auto" leaves it to the dispatcher, an empty
        text leaves it as it is. InvalidInput for anything else."""
        return await self._answer(
            self.stub.Steer(pb.SteerRequest(overlap=overlap, workers=workers), timeout=CALL_SECONDS)
        )

    async def get_policy(self) -> pb.Policy:
        """The SchedulingPolicy in force."""
        return await self._answer(self.stub.GetPolicy(pb.GetPolicyRequest(), timeout=CALL_SECONDS))

    async def set_policy(self, yaml: str, *, if_version: int = 0) -> pb.SetPolicyReply:
        """Replace the policy, or only that of a certain version. InvalidInput names the field, and the old policy stays."""
        request = pb.Policy(yaml=yaml, if_version=if_version)
        return await self._answer(self.stub.SetPolicy(request, timeout=CALL_SECONDS))

    async def test_policy(self, templates: Iterable[PodTemplate], yaml: str = "") -> pb.TestPolicyReply:
        """What the policy in force, or the document given, would do with pods of these templates now. Changes nothing."""
        request = pb.TestPolicyRequest(templates=map(template_to_proto, templates), yaml=yaml)
        return await self._answer(self.stub.TestPolicy(request, timeout=CALL_SECONDS))

    async def status(self) -> pb.DispatcherStatus:
        """Pods by phase, counters since start, and problems as sentences."""
        return await self._answer(self.stub.GetStatus(pb.StatusRequest(), timeout=CALL_SECONDS))

    async def audit(self, timeout_ms: int = 2000) -> pb.DispatcherAuditReply:
        """Workers' views and the pods held as bound; workers that stay silent for `timeout_ms` are left out."""
        request = pb.DispatcherAuditRequest(timeout_ms=timeout_ms)
        return await self._answer(self.stub.Audit(request, timeout=CALL_SECONDS + timeout_ms / 1000))

    async def _answer(self, call: Awaitable[ReplyT]) -> ReplyT:
        try:
            return await call
        except grpc.aio.AioRpcError as exc:
            if exc.code() is grpc.StatusCode.DEADLINE_EXCEEDED and self._several:
                raise TransportError(f"{self._peer}: none of them became active, or answered, in time") from exc
            raise translate(exc, self._peer) from exc


def _identified(request: pb.SubmitRequest) -> pb.SubmitRequest:
    """The request with an id, without which a repetition would be another submission."""
    if not request.request_id:
        request.request_id = str(uuid.uuid4())
    return request


def submission(workloads: Iterable[Workload], request_id: str | None = None) -> Iterator[pb.SubmitRequest]:
    """Group workloads into messages for `submit` or `submit_stream`, equal templates once in each.

    Owned workloads and those of several replicas become jobs, the others rows of a pod list. The k-th message (from 0) has
    the id `request_id/k`, so that the same workloads under the same id are accepted once; without one they are new each time.
    """
    stem = request_id or str(uuid.uuid4())
    number = 0
    # A pod list carries UIDs for all of its pods or for none.
    drafts = {False: _Draft(), True: _Draft()}
    for members in _together(workloads):
        given_uids = _have_uids(members)
        draft = drafts[given_uids]
        for workload in members:
            draft.add(workload)
        if draft.workloads >= WORKLOADS_PER_MESSAGE:
            yield draft.finish(f"{stem}/{number}")
            number += 1
            drafts[given_uids] = _Draft()
    for draft in drafts.values():
        if draft.workloads:
            yield draft.finish(f"{stem}/{number}")
            number += 1


def _together(workloads: Iterable[Workload]) -> Iterator[list[Workload]]:
    """Workloads one by one, and then those of each gang, which must come in one message."""
    gangs: dict[Gang, list[Workload]] = {}
    for workload in workloads:
        if workload.replicas == 0:
            continue  # a Deployment scaled to nothing asks for nothing
        if workload.gang is None:
            yield [workload]
        else:
            gangs.setdefault(workload.gang, []).append(workload)
    yield from gangs.values()


def _is_job(workload: Workload) -> bool:
    return workload.replicas > 1 or bool(workload.template.owner_kind)


def _have_uids(members: list[Workload]) -> bool:
    """Whether pods carry UIDs. Raises InvalidInput for a gang of which some do."""
    carried = {bool(workload.uid) for workload in members if not _is_job(workload)}
    gang = members[0].gang
    if len(carried) > 1 and gang is not None:
        raise InvalidInput("some of its pods have a metadata.uid and some have none", where=f"gang {gang.name}")
    return True in carried


class _Draft:
    """A message being filled."""

    def __init__(self) -> None:
        self.workloads = 0
        self._message = pb.SubmitRequest()
        self._template_numbers: dict[PodTemplate, int] = {}
        self._pod_templates: list[int] = []
        self._uids: list[bytes] = []
        self._gang_numbers: dict[Gang, int] = {}
        self._pod_gangs: list[int] = []

    def add(self, workload: Workload) -> None:
        self.workloads += 1
        template = self._number_of(workload.template)
        gang = 0 if workload.gang is None else self._number_of_gang(workload.gang)
        if _is_job(workload):
            self._message.jobs.add(name=workload.name, template=template, replicas=workload.replicas, gang=gang)
            return
        self._pod_gangs.append(gang)
        self._message.pods.names.append(workload.name)
        self._pod_templates.append(template)
        if workload.uid:
            self._uids.append(uid_from_text(workload.uid))

    def finish(self, request_id: str) -> pb.SubmitRequest:
        self._message.request_id = request_id
        if self._pod_templates:
            self._message.pods.templates = encode(self._pod_templates, U32)
            self._message.pods.uids = b"".join(self._uids)
            if any(self._pod_gangs):
                self._message.pods.gangs = encode(self._pod_gangs, U32)
        return self._message

    def _number_of_gang(self, gang: Gang) -> int:
        """From 1 on; 0 in a message is no gang."""
        number = self._gang_numbers.get(gang)
        if number is None:
            number = self._gang_numbers[gang] = len(self._gang_numbers) + 1
            self._message.gangs.add(namespace=gang.namespace, name=gang.name, min_available=gang.minimum)
        return number

    def _number_of(self, template: PodTemplate) -> int:
        number = self._template_numbers.get(template)
        if number is None:
            number = self._template_numbers[template] = len(self._template_numbers)
            self._message.templates.append(template_to_proto(template))
        return number
