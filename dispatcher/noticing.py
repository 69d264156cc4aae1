"""Kubernetes mode: what users see of scheduling at the API server, in kube-scheduler's words.

A pod that fits nowhere gets the condition PodScheduled=False with the reason, and an event FailedScheduling; one that was bound gets an
event Scheduled, one that has to go for another Preempted. Conditions are written in the end; events beyond what the configuration
allows are left out and counted, for each is as much work for the API server as a binding.
"""

import asyncio
import secrets
from collections.abc import Sequence
from datetime import datetime, timezone

import numpy as np

from dispatcher.core.mirror import PodMirror
from dispatcher.core.notices import Allowance, Notices, Waiting
from dispatcher.core.podtable import Phase, Rows
from dispatcher.runtime import Runtime
from hoss.errors import TransportError
from hoss.kube.api import STRATEGIC_PATCH, KubeApi, Object
from hoss.telemetry import logger
from hoss.wire.columns import NONE_U32, uid_text

_LOOK_SECONDS = 0.1
_AT_ONCE = 8  # requests under way; bindings matter more
_COMPONENT = "hoss"
_REFUSED_BY = "hoss.dev/refused-by"  # annotation of FailedScheduling: the plugins behind it, for programs to read
_GATED = "SchedulingGated"  # the API server says so itself

# Those that are to be tried again at once are told of, too: their binding was refused, or their gang had too little room.
_WAITING = (Phase.UNSCHEDULABLE, Phase.BACKOFF, Phase.QUEUED, Phase.SCHEDULING)


class Noticing:
    """`run` must be running; `bound` is told of what was bound."""

    def __init__(self, runtime: Runtime, api: KubeApi, pods: PodMirror, *, events_per_second: float) -> None:
        self._runtime = runtime
        self._registry = runtime.machine.registry
        self._api = api
        self._pods = pods
        self._notices = Notices()
        self._allowance = Allowance(events_per_second)
        self._revision = runtime.machine.log.revision
        self._events: asyncio.Queue[Object] = asyncio.Queue()
        self._unplaceable: set[bytes] = set()

    def bound(self, rows: Rows, nodes: Sequence[str]) -> None:
        """The API server has bound these pods to the nodes of these names, as we asked."""
        for row, node in zip(rows.tolist(), nodes, strict=True):
            namespace, name = self._registry.namespace_of(row), self._registry.set_of(row).pod_name(row)
            uid = uid_text(self._registry.pods.uid[row].tobytes())
            said = f"Successfully assigned {namespace}/{name} to {node}"
            self._tell_event(_event(namespace, name, uid, "Scheduled", said, action="Binding"))

    def preempted(self, row: int, preemptor: str, node: str) -> None:
        """This pod has to leave the node for the one with that UID."""
        namespace, name = self._registry.namespace_of(row), self._registry.set_of(row).pod_name(row)
        uid = uid_text(self._registry.pods.uid[row].tobytes())
        said = f"Preempted by pod {preemptor} on node {node}"
        self._tell_event(_event(namespace, name, uid, "Preempted", said, action="Preempting"))

    async def run(self) -> None:
        """Tell until cancelled."""
        await asyncio.gather(self._look(), *(self._send_events() for _ in range(_AT_ONCE // 2)))

    async def _look(self) -> None:
        while True:
            self._read_log()
            self._read_unplaceable()
            due = self._notices.take_due(self._runtime.now(), _AT_ONCE)
            if due:
                await asyncio.gather(*map(self._tell_waiting, due))
            if len(due) < _AT_ONCE:
                await asyncio.sleep(_LOOK_SECONDS)

    def _read_log(self) -> None:
        log = self._runtime.machine.log
        while batches := log.since(self._revision):
            self._revision = batches[-1].revision
            for batch in batches:
                ended = np.isin(batch.phases, (Phase.BOUND, Phase.DELETED))
                self._notices.over(uid.tobytes() for uid in batch.uids[ended])
                waits = np.isin(batch.phases, (Phase.UNSCHEDULABLE, Phase.BACKOFF))
                self._hear_waiting(self._registry.directory.rows_of_uids(batch.uids[waits]))
        if batches is None:  # more has happened than the log keeps; who waits now is what counts
            self._revision = log.revision
            pods = self._registry.pods
            waits = np.isin(pods.phase[: pods.size], _WAITING)
            self._hear_waiting(np.flatnonzero(waits).astype(np.uint32))

    def _hear_waiting(self, rows: Rows) -> None:
        for row in rows[rows != NONE_U32].tolist():
            if (pod := self._waiting(row)) is not None:
                self._notices.waits(pod, self._runtime.now())

    def _waiting(self, row: int) -> Waiting | None:
        pods, reasons = self._registry.pods, self._registry.reasons
        number = int(pods.reason[row])
        text = reasons.texts[number]
        if pods.phase[row] not in _WAITING or not text or text.startswith(_GATED):
            return None
        name = self._registry.set_of(row).pod_name(row)
        refused_by = tuple(sorted(reasons.refused_by[number]))
        return Waiting(pods.uid[row].tobytes(), self._registry.namespace_of(row), name, text, refused_by)

    def _read_unplaceable(self) -> None:
        there = self._pods.unplaceable
        if not (there or self._unplaceable):
            return
        self._notices.over(self._unplaceable - there.keys())
        for uid in there.keys() - self._unplaceable:
            pod = there[uid]
            self._notices.waits(Waiting(uid, pod.namespace, pod.name, pod.problem), self._runtime.now())
        self._unplaceable = set(there)

    async def _tell_waiting(self, pod: Waiting) -> None:
        path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}/status"
        try:
            reply = await self._api.send("PATCH", path, _condition(pod), content_type=STRATEGIC_PATCH)
        except TransportError:
            self._notices.failed(pod, self._runtime.now())
            return
        if reply.passing:
            self._notices.failed(pod, self._runtime.now())
        elif reply.done:
            self._runtime.machine.counters["conditions_written"] += 1
            event = _event(
                pod.namespace, pod.name, uid_text(pod.uid), "FailedScheduling", pod.message, action="Scheduling"
            )
            event["metadata"]["annotations"] = {_REFUSED_BY: ",".join(pod.refused_by)} if pod.refused_by else {}
            self._tell_event(event)
        elif reply.status not in (404, 409):  # the pod is gone, or is another one by now
            logger().warning("condition_refused", pod=f"{pod.namespace}/{pod.name}", error=reply.message)

    def _tell_event(self, event: Object) -> None:
        if self._allowance.take(self._runtime.now()):
            self._events.put_nowait(event)
        else:
            self._runtime.machine.counters["events_left_out"] += 1

    async def _send_events(self) -> None:
        while True:
            event = await self._events.get()
            try:
                reply = await self._api.send(
                    "POST", f"/api/v1/namespaces/{event['metadata']['namespace']}/events", event
                )
            except TransportError:
                self._runtime.machine.counters["events_left_out"] += 1
                continue
            self._runtime.machine.counters["events_written" if reply.done else "events_left_out"] += 1


def _now() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def _condition(pod: Waiting) -> Object:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": pod.message}
    if pod.first:
        condition["lastTransitionTime"] = _now()
    return {"metadata": {"uid": uid_text(pod.uid)}, "status": {"conditions": [condition]}}


def _event(namespace: str, name: str, uid: str, reason: str, message: str, *, action: str) -> Object:
    now = _now()
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{name}.{secrets.token_hex(8)}", "namespace": namespace},
        "involvedObject": {"apiVersion": "v1", "kind": "Pod", "namespace": namespace, "name": name, "uid": uid},
        "type": "Warning" if reason == "FailedScheduling" else "Normal",
        "reason": reason,
        "message": message[:1024],  # as the API server's limit is
        "action": action,
        "count": 1,
        "firstTimestamp": now,
        "lastTimestamp": now,
        "source": {"component": _COMPONENT},
        "reportingComponent": _COMPONENT,
    }
