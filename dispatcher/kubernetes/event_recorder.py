"""Kubernetes mode: writes pod conditions and events to the API server, in kube-scheduler's words.

A pod that fits nowhere gets the condition PodScheduled=False with the reason, and an event FailedScheduling;
so does a pod that has no worker for some seconds.
A bound pod gets an event Scheduled, a victim an event Preempted. A PodGroup whose gang waits for too long
gets an event FailedScheduling. Conditions are always written, if late. Events beyond the configured rate are
dropped and counted, because each costs the API server as much as a binding."""

import asyncio
import random
from collections.abc import Callable, Sequence
from datetime import datetime

import numpy as np

from dispatcher.core.kubernetes.conditions import PodConditions, RateLimiter, WaitingPod
from dispatcher.core.kubernetes.mirror import PodMirror
from dispatcher.core.kubernetes.pod_group_status import Overdue
from dispatcher.core.pods.table import Phase, Rows
from dispatcher.runtime import Runtime
from hoss.errors import TransportError
from hoss.kube.api import STRATEGIC_PATCH, KubeApi, Object
from hoss.kube.paths import object_path, pod_path
from hoss.telemetry import logger
from hoss.wire.columns import NONE_U32
from hoss.wire.uids import uid_text

_POLL_SECONDS = 0.1
_CONCURRENT_REQUESTS = 8  # few, because bindings matter more
# Pods without a worker are told after this: a worker that restarts is back by then. At each look the next so
# many of a sub-queue.
_UNSERVED_SECONDS = 10.0
_UNSERVED_LOOK_SECONDS = 1.0
_UNSERVED_PODS = 500
_COMPONENT = "hoss"
_REFUSED_BY = "hoss.dev/refused-by"  # annotation of FailedScheduling: its plugins, for programs to read
_UNREVIEWED = "BindingNotReviewed"
_WARNINGS = ("FailedScheduling", _UNREVIEWED)
_GATED = "SchedulingGated"  # a condition that the API server writes itself

# Queued pods with a reason are included: their binding was refused, or their gang did not fit.
_WAITING = (Phase.UNSCHEDULABLE, Phase.BACKOFF, Phase.QUEUED, Phase.SCHEDULING)


class EventRecorder:
    """`run` must be running. `on_unschedulable` gets the row of a pod that fits nowhere, and why."""

    def __init__(
        self,
        runtime: Runtime,
        api: KubeApi,
        pods: PodMirror,
        *,
        events_per_second: float,
        utc_now: Callable[[], datetime],
        rng: random.Random,
    ) -> None:
        self.on_unschedulable: Callable[[int, WaitingPod], None] = lambda _row, _pod: None
        self._utc_now = utc_now
        self._rng = rng
        self._runtime = runtime
        self._registry = runtime.machine.registry
        self._api = api
        self._pods = pods
        self._conditions = PodConditions()
        self._rate_limiter = RateLimiter(events_per_second)
        self._revision = runtime.machine.log.revision
        self._events: asyncio.Queue[Object] = asyncio.Queue()
        self._unplaceable: set[bytes] = set()
        self._unserved: dict[int, float] = {}  # sub-queues that no worker may have, and since when
        self._unserved_looks = 0
        self._next_unserved_look = 0.0

    def bound(self, rows: Rows, nodes: Sequence[str]) -> None:
        """The API server has bound these pods to the nodes of these names."""
        for row, node in zip(rows.tolist(), nodes, strict=True):
            namespace, name, uid = self._identity(row)
            text = f"Successfully assigned {namespace}/{name} to {node}"
            self._record(self._event(namespace, name, uid, "Scheduled", text, action="Binding"))

    def volumes_refused(self, rows: Rows, reasons: Sequence[str]) -> None:
        """The volumes or devices of these pods were refused. The pods are placed anew, often before a
        condition would be written, so their users are told at once."""
        for row, reason in zip(rows.tolist(), reasons, strict=True):
            namespace, name, uid = self._identity(row)
            self._record(self._event(namespace, name, uid, "FailedScheduling", reason, action="Scheduling"))

    def devices_pending(self, rows: Rows, texts: Sequence[str]) -> None:
        """These pods have their nodes, and wait there for their devices to become ready."""
        for row, text in zip(rows.tolist(), texts, strict=True):
            namespace, name, uid = self._identity(row)
            event = self._event(namespace, name, uid, "BindingConditionsPending", text, action="Scheduling")
            self._record(event)

    def claim_deallocated(self, row: int, text: str) -> None:
        """A claim of this pod has given its devices back, so that the pod may get others."""
        namespace, name, uid = self._identity(row)
        self._record(self._event(namespace, name, uid, "FailedScheduling", text, action="Scheduling"))

    def unreviewed(self, rows: Rows, nodes: Sequence[str]) -> None:
        """These pods of other schedulers were bound to the nodes of these names, and no resolver was
        asked."""
        for row, node in zip(rows.tolist(), nodes, strict=True):
            namespace, name, uid = self._identity(row)
            text = (
                f"Bound to node {node} without a review by HOSS: its binding webhook had no answer, or the"
                " pod was created with spec.nodeName. The pod is counted there now, whether there was room"
                " or not"
            )
            self._record(self._event(namespace, name, uid, _UNREVIEWED, text, action="Binding"))

    def preempted(self, row: int, preemptor: str, node: str) -> None:
        """This pod is evicted from the node for the pod with that UID."""
        namespace, name, uid = self._identity(row)
        text = f"Preempted by pod {preemptor} on node {node}"
        self._record(self._event(namespace, name, uid, "Preempted", text, action="Preempting"))

    def preempting(self, row: int, node: str, victims: int) -> Object:
        """So many pods of the node are evicted for this pod, which waits until they have left. Returns its
        condition, to be written with its nomination: before the victims leave and it is bound."""
        namespace, name, uid = self._identity(row)
        text = f"waiting for {victims} less urgent pod{'s' * (victims > 1)} to leave node {node}"
        self._record(self._event(namespace, name, uid, "FailedScheduling", text, action="Scheduling"))
        pod = WaitingPod(self._registry.pods.uid[row].tobytes(), namespace, name, text)
        self._conditions.remove([pod.uid])  # what was written before is not there any more
        condition: Object = _condition(pod, self._now())["status"]["conditions"][0]
        return condition

    def group_overdue(self, overdue: Overdue, api_version: str) -> None:
        """The gang of this PodGroup has waited longer than the group allows."""
        group = overdue.group
        namespace, name = group.ref.namespace, group.ref.name
        event = self._event(namespace, name, group.uid, "FailedScheduling", overdue.text, action="Scheduling")
        event["involvedObject"] |= {"apiVersion": api_version, "kind": "PodGroup"}
        self._record(event)

    async def run(self) -> None:
        """Write until cancelled."""
        await asyncio.gather(
            self._write_conditions(), *(self._send_events() for _ in range(_CONCURRENT_REQUESTS // 2))
        )

    async def _write_conditions(self) -> None:
        while True:
            self._read_log()
            self._read_unplaceable()
            self._read_unserved()
            due = self._conditions.take_due(self._runtime.now(), _CONCURRENT_REQUESTS)
            if due:
                await asyncio.gather(*map(self._write_condition, due))
            if len(due) < _CONCURRENT_REQUESTS:
                await asyncio.sleep(_POLL_SECONDS)

    def _read_log(self) -> None:
        log = self._runtime.machine.log
        while batches := log.since(self._revision):
            self._revision = batches[-1].revision
            for batch in batches:
                ended = np.isin(batch.phases, (Phase.BOUND, Phase.DELETED))
                self._conditions.remove(uid.tobytes() for uid in batch.uids[ended])
                waits = np.isin(batch.phases, (Phase.UNSCHEDULABLE, Phase.BACKOFF))
                self._note_waiting(self._registry.directory.rows_of_uids(batch.uids[waits]))
        if batches is None:  # the log has dropped some: take all pods that wait now
            self._revision = log.revision
            pods = self._registry.pods
            waits = np.isin(pods.phase[: pods.size], _WAITING)
            self._note_waiting(np.flatnonzero(waits).astype(np.uint32))

    def _note_waiting(self, rows: Rows) -> None:
        for row in rows[rows != NONE_U32].tolist():
            if (pod := self._waiting_pod(row)) is not None:
                self._conditions.update(pod, self._runtime.now())
                if self._registry.pods.phase[row] == Phase.UNSCHEDULABLE:
                    self.on_unschedulable(row, pod)

    def _waiting_pod(self, row: int, unserved: str = "") -> WaitingPod | None:
        """`unserved`: why the pod has no worker, instead of its own reason."""
        pods, reasons = self._registry.pods, self._registry.reasons
        number = 0 if unserved else int(pods.reason[row])
        text = unserved or reasons.texts[number]
        if pods.phase[row] not in _WAITING or not text or text.startswith(_GATED):
            return None
        return WaitingPod(
            pods.uid[row].tobytes(),
            self._registry.namespace_of(row),
            self._registry.set_of(row).pod_name(row),
            text,
            tuple(sorted(reasons.refused_by[number])),
            reasons.failed[number],
        )

    def _read_unserved(self) -> None:
        now, machine = self._runtime.now(), self._runtime.machine
        if now < self._next_unserved_look:
            return
        self._next_unserved_look = now + _UNSERVED_LOOK_SECONDS
        active = machine.queues.active
        problems = {
            sub_queue: problem
            for sub_queue in active.sub_queues()
            if (problem := machine.routing.destination(sub_queue).problem)
        }
        self._unserved = {sub_queue: self._unserved.get(sub_queue, now) for sub_queue in problems}
        for sub_queue, since in self._unserved.items():
            if now - since < _UNSERVED_SECONDS:
                continue
            first = self._unserved_looks * _UNSERVED_PODS % max(active.count(sub_queue), 1)
            rows = active.rows(sub_queue, first, _UNSERVED_PODS)
            rows = rows[self._registry.pods.phase[rows] == Phase.QUEUED]
            for row in rows.tolist():
                if (pod := self._waiting_pod(row, problems[sub_queue])) is not None:
                    self._conditions.update(pod, now)
        self._unserved_looks += 1

    def _read_unplaceable(self) -> None:
        unplaceable = self._pods.unplaceable
        if not (unplaceable or self._unplaceable):
            return
        self._conditions.remove(self._unplaceable - unplaceable.keys())
        for uid, pod in unplaceable.items():
            if uid in self._unplaceable:
                continue
            self._conditions.update(
                WaitingPod(uid, pod.namespace, pod.name, pod.problem, failed=True), self._runtime.now()
            )
        self._unplaceable = set(unplaceable)

    async def _write_condition(self, pod: WaitingPod) -> None:
        path = pod_path(pod.namespace, pod.name, "status")
        try:
            reply = await self._api.send(
                "PATCH", path, _condition(pod, self._now()), content_type=STRATEGIC_PATCH
            )
        except TransportError:
            self._conditions.retry(pod, self._runtime.now())
            return
        if reply.passing:
            self._conditions.retry(pod, self._runtime.now())
        elif reply.done:
            self._runtime.machine.counters["conditions_written"] += 1
            event = self._event(
                pod.namespace,
                pod.name,
                uid_text(pod.uid),
                "FailedScheduling",
                pod.message,
                action="Scheduling",
            )
            refused_by = ",".join(pod.refused_by)
            event["metadata"]["annotations"] = {_REFUSED_BY: refused_by} if refused_by else {}
            self._record(event)
        elif reply.status not in (404, 409):  # the pod is gone, or the name is another pod's
            logger().warning("condition_refused", pod=f"{pod.namespace}/{pod.name}", error=reply.message)

    def _event(
        self, namespace: str, name: str, uid: str, reason: str, message: str, *, action: str
    ) -> Object:
        now = self._now()
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{name}.{self._rng.getrandbits(64):016x}", "namespace": namespace},
            "involvedObject": {
                "apiVersion": "v1",
                "kind": "Pod",
                "namespace": namespace,
                "name": name,
                "uid": uid,
            },
            "type": "Warning" if reason in _WARNINGS else "Normal",
            "reason": reason,
            "message": message[:1024],  # the API server's limit
            "action": action,
            "count": 1,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "source": {"component": _COMPONENT},
            "reportingComponent": _COMPONENT,
        }

    def _now(self) -> str:
        return self._utc_now().strftime("%Y-%m-%dT%H:%M:%SZ")

    def _identity(self, row: int) -> tuple[str, str, str]:
        uid = uid_text(self._registry.pods.uid[row].tobytes())
        return self._registry.namespace_of(row), self._registry.set_of(row).pod_name(row), uid

    def _record(self, event: Object) -> None:
        if self._rate_limiter.take(self._runtime.now()):
            self._events.put_nowait(event)
        else:
            self._runtime.machine.counters["events_left_out"] += 1

    async def _send_events(self) -> None:
        while True:
            event = await self._events.get()
            try:
                path = object_path("/api/v1/namespaces", event["metadata"]["namespace"], "events")
                reply = await self._api.send("POST", path, event)
            except TransportError:
                self._runtime.machine.counters["events_left_out"] += 1
                continue
            self._runtime.machine.counters["events_written" if reply.done else "events_left_out"] += 1


def _condition(pod: WaitingPod, now: str) -> Object:
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": pod.condition_reason,
        "message": pod.message,
    }
    if pod.first:
        condition["lastTransitionTime"] = now
    return {"metadata": {"uid": uid_text(pod.uid)}, "status": {"conditions": [condition]}}
