"""Kubernetes mode: kubelets' rejections of placed pods are counted, looked into, told, and cleaned up where that is wished."""

from collections.abc import Collection, Mapping, Sequence

from dispatcher.core.mirror import NodeMirror
from dispatcher.core.pod_objects import SeenPod
from dispatcher.core.rejections import compare, on_node
from dispatcher.runtime import Runtime
from hoss.errors import TransportError
from hoss.kube.api import KubeApi, Object
from hoss.telemetry import logger
from hoss.wire.columns import uid_text

_TOLD_SECONDS = 600.0  # in `hoss status`
_PATIENCE_SECONDS = 60.0


class SecondOpinion:
    """`hear` of rejections once their pods no longer count as being on their nodes."""

    def __init__(
        self,
        runtime: Runtime,
        api: KubeApi,
        nodes: NodeMirror,
        indexes: Mapping[str, int],
        *,
        schedulers: Collection[str],
        clean_up: bool,
    ) -> None:
        """`schedulers`: the names under which HOSS places; `clean_up`: delete their pods that were rejected."""
        self._runtime = runtime
        self._api = api
        self._nodes = nodes
        self._indexes = indexes
        self._schedulers = schedulers
        self._clean_up = clean_up
        self._told_at = float("-inf")

    def hear(self, rejected: Sequence[SeenPod]) -> None:
        """Find out, of each, whose account was wrong."""
        for pod in rejected:
            self._look_into(pod)
            self._clear(pod)

    def found_before(self, rejected: Sequence[SeenPod]) -> None:
        """These were rejected before anybody looked: what their nodes had then, nobody knows any more."""
        for pod in rejected:
            self._clear(pod)
        if rejected:
            logger().info("pods_rejected_before", pods=len(rejected))

    def forget_old(self) -> None:
        """What was told long enough ago is no problem of now."""
        if self._runtime.now() - self._told_at > _TOLD_SECONDS:
            self._runtime.problems.pop("rejected", None)

    def _look_into(self, pod: SeenPod) -> None:
        node, index = self._nodes.get(pod.node), self._indexes.get(pod.node)
        counters = self._runtime.machine.counters
        counters["pods_rejected"] += 1
        if pod.rejection is None or node is None or index is None:
            return
        counters[f"pods_rejected_{pod.rejection.reason}"] += 1
        resource = pod.rejection.figures.resource if pod.rejection.figures else ""
        others = on_node(self._runtime.machine.registry, index, resource, self._schedulers)
        found = compare(pod.rejection, node, others)
        counters[f"pods_rejected_because_{found.cause.value}"] += 1
        name = f"{pod.namespace}/{pod.name}"
        logger().warning(
            "pod_rejected",
            pod=name,
            node=pod.node,
            ours=pod.ours,
            reason=pod.rejection.reason,
            message=pod.rejection.message,
            cause=found.cause.value,
            difference=found.text,
        )
        self._told_at = self._runtime.now()
        self._runtime.problems["rejected"] = (
            f"kubelets have rejected {counters['pods_rejected']} pods, the latest {name} on node {pod.node} "
            f"({pod.rejection.reason}, {found.cause.value}): {found.text}"
        )

    def _clear(self, pod: SeenPod) -> None:
        if self._clean_up and pod.ours:
            self._runtime.spawn(self._delete(pod))

    async def _delete(self, pod: SeenPod) -> None:
        path, uid = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}", uid_text(pod.uid)
        options: Object = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}}
        try:
            reply = await self._api.ask("DELETE", path, options, patience_seconds=_PATIENCE_SECONDS)
        except TransportError as exc:
            logger().warning("rejected_pod_not_deleted", pod=path, error=str(exc))
            return
        if reply.done:
            self._runtime.machine.counters["rejected_pods_deleted"] += 1
        elif reply.status not in (404, 409):  # gone, or another one by now
            logger().warning("rejected_pod_not_deleted", pod=path, error=reply.message)
