"""Kubernetes mode: deletes the victims of preemptions at the API server, with the conditions and events of
kube-scheduler."""

import asyncio
from collections import Counter

from dispatcher.core import messages as m
from dispatcher.core.pods.table import Rows
from dispatcher.kubernetes.event_recorder import EventRecorder
from dispatcher.ledger.nodes import ClusterNodes
from dispatcher.runtime import Runtime
from hoss.errors import TransportError
from hoss.kube.api import STRATEGIC_PATCH, KubeApi, Object
from hoss.kube.paths import pod_path
from hoss.telemetry import logger
from hoss.wire.columns import NONE_U32, decode_uids
from hoss.wire.uids import uid_text

_TARGET = {
    "type": "DisruptionTarget",
    "status": "True",
    "reason": "PreemptionByScheduler",
    "message": "hoss: preempting to accommodate a higher priority pod",
}


class Evictor:
    """Repeats a deletion until the API server has answered."""

    def __init__(self, runtime: Runtime, api: KubeApi, nodes: ClusterNodes, recorder: EventRecorder) -> None:
        self._runtime = runtime
        self._registry = runtime.machine.registry
        self._api = api
        self._nodes = nodes
        self._recorder = recorder

    async def evict(self, instruction: m.Remove) -> None:
        """Nominate the preemptors for the nodes of their victims, and delete the victims."""
        victims = [
            (self._path(row), uid_text(uid.tobytes()))
            for row, uid in zip(instruction.rows.tolist(), instruction.uids, strict=True)
        ]
        nodes = [self._nodes.name(node) for node in self._registry.pods.node[instruction.rows].tolist()]
        for row, preemptor, node in zip(
            instruction.rows.tolist(), instruction.preemptors, nodes, strict=True
        ):
            if preemptor:
                self._recorder.preempted(row, uid_text(preemptor), node)
        nominations = dict(zip(instruction.preemptors, nodes, strict=True))
        nominations.pop(b"", None)
        evicted = Counter(instruction.preemptors)
        # First: a pod that is bound must not be told afterwards that it waits.
        await asyncio.gather(*(self._nominate(uid, node, evicted[uid]) for uid, node in nominations.items()))
        await asyncio.gather(*(self._delete(*victim) for victim in victims))

    async def _nominate(self, uid: bytes, node: str, victims: int) -> None:
        rows: Rows = self._registry.directory.rows_of_uids(decode_uids(uid))
        if rows[0] != NONE_U32:
            condition = self._recorder.preempting(int(rows[0]), node, victims)
            status = {"nominatedNodeName": node, "conditions": [condition]}
            await self._patch(
                self._path(int(rows[0])), {"metadata": {"uid": uid_text(uid)}, "status": status}
            )

    async def _delete(self, path: str, uid: str) -> None:
        await self._patch(path, {"metadata": {"uid": uid}, "status": {"conditions": [_TARGET]}})
        options: Object = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}}
        reply = await self._api.ask("DELETE", path, options)
        if not (reply.done or reply.status in (404, 409)):  # the pod is gone, or the name is another pod's
            logger().error("victim_not_deleted", pod=path, error=reply.message)
            self._runtime.machine.counters["victims_not_deleted"] += 1

    async def _patch(self, path: str, body: Object) -> None:
        """The status is for users to read, so a failure stops nothing."""
        try:
            reply = await self._api.send("PATCH", f"{path}/status", body, content_type=STRATEGIC_PATCH)
        except TransportError as exc:
            logger().warning("status_not_patched", pod=path, error=str(exc))
            return
        if not (reply.done or reply.status in (404, 409)):
            logger().warning("status_not_patched", pod=path, error=reply.message)

    def _path(self, row: int) -> str:
        pod = self._registry.set_of(row).pod_name(row)
        return pod_path(self._registry.namespace_of(row), pod)
