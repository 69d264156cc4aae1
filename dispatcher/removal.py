"""Kubernetes mode: deletes, at the API server, pods that had to go for others, and says so of both as kube-scheduler does."""

import asyncio

from dispatcher.core import messages as m
from dispatcher.core.podtable import Rows
from dispatcher.nodes import NodeNames
from dispatcher.noticing import Noticing
from dispatcher.runtime import Runtime
from hoss.errors import TransportError
from hoss.kube.api import STRATEGIC_PATCH, KubeApi, Object
from hoss.telemetry import logger
from hoss.wire.columns import NONE_U32, decode_uids, uid_text

_TARGET = {
    "type": "DisruptionTarget",
    "status": "True",
    "reason": "PreemptionByScheduler",
    "message": "hoss: preempting to accommodate a higher priority pod",
}


class Removal:
    """Carries out Remove, until the API server has answered."""

    def __init__(self, runtime: Runtime, api: KubeApi, names: NodeNames, noticing: Noticing) -> None:
        self._noticing = noticing
        self._runtime = runtime
        self._registry = runtime.machine.registry
        self._api = api
        self._names = names
        runtime.carry_out(m.Remove, self._remove)

    async def _remove(self, wanted: m.Remove) -> None:
        pods = [
            (self._path(row), uid_text(uid.tobytes()))
            for row, uid in zip(wanted.rows.tolist(), wanted.uids, strict=True)
        ]
        nodes = [self._names.get(int(node)) for node in self._registry.pods.node[wanted.rows].tolist()]
        for row, preemptor, node in zip(wanted.rows.tolist(), wanted.preemptors, nodes, strict=True):
            self._noticing.preempted(row, uid_text(preemptor), node)
        nominations = dict(zip(wanted.preemptors, nodes, strict=True))
        await asyncio.gather(
            *(self._nominate(uid, node) for uid, node in nominations.items()), *(self._delete(*pod) for pod in pods)
        )

    async def _nominate(self, uid: bytes, node: str) -> None:
        rows: Rows = self._registry.directory.rows_of_uids(decode_uids(uid))
        if rows[0] != NONE_U32:
            body: Object = {"metadata": {"uid": uid_text(uid)}, "status": {"nominatedNodeName": node}}
            await self._patch(self._path(int(rows[0])), body)

    async def _delete(self, path: str, uid: str) -> None:
        await self._patch(path, {"metadata": {"uid": uid}, "status": {"conditions": [_TARGET]}})
        options: Object = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}}
        reply = await self._api.ask("DELETE", path, options)
        if not (reply.done or reply.status in (404, 409)):  # gone, or another one by now
            logger().error("victim_not_deleted", pod=path, error=reply.message)
            self._runtime.machine.counters["victims_not_deleted"] += 1

    async def _patch(self, path: str, body: Object) -> None:
        """What it says is for people to read; that it could not be said stops nothing."""
        try:
            reply = await self._api.send("PATCH", f"{path}/status", body, content_type=STRATEGIC_PATCH)
        except TransportError as exc:
            logger().warning("pod_not_told", pod=path, error=str(exc))
            return
        if not (reply.done or reply.status in (404, 409)):
            logger().warning("pod_not_told", pod=path, error=reply.message)

    def _path(self, row: int) -> str:
        return f"/api/v1/namespaces/{self._registry.namespace_of(row)}/pods/{self._registry.set_of(row).pod_name(row)}"
