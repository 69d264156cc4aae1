"""Kubernetes mode: audits the pods that kubelets rejected (OutOfcpu and the like): counts and explains them,
and deletes them if configured."""

from collections.abc import Collection, Mapping, Sequence

from dispatcher.core.kubernetes.mirror import NodeMirror
from dispatcher.core.kubernetes.pod_objects import SeenPod
from dispatcher.core.kubernetes.rejections import compare, on_node
from dispatcher.runtime import Runtime
from hoss.errors import TransportError
from hoss.kube.api import KubeApi, Object
from hoss.kube.paths import pod_path
from hoss.telemetry import logger
from hoss.wire.uids import uid_text

_PROBLEM_SECONDS = 600.0  # how long `hoss status` names a rejection
_PATIENCE_SECONDS = 60.0


class KubeletRejectionAudit:
    """`audit` rejected pods once they no longer count on their nodes."""

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
        """`schedulers`: the scheduler names of HOSS; `clean_up`: delete their rejected pods."""
        self._runtime = runtime
        self._api = api
        self._nodes = nodes
        self._indexes = indexes
        self._schedulers = schedulers
        self._clean_up = clean_up
        self._latest_at = float("-inf")

    def audit(self, rejected: Sequence[SeenPod]) -> None:
        """Find out why each pod did not fit: which account of its node was wrong."""
        for pod in rejected:
            self._explain(pod)
            self._clean(pod)

    def skip(self, rejected: Sequence[SeenPod]) -> None:
        """For pods that were rejected before the dispatcher started: the state of their nodes then is
        unknown."""
        for pod in rejected:
            self._clean(pod)
        if rejected:
            logger().info("pods_rejected_before", pods=len(rejected))

    def expire(self) -> None:
        """Remove an old rejection from the problems."""
        if self._runtime.now() - self._latest_at > _PROBLEM_SECONDS:
            self._runtime.problems.pop("rejected", None)

    def _explain(self, pod: SeenPod) -> None:
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
        self._latest_at = self._runtime.now()
        self._runtime.problems["rejected"] = (
            f"kubelets have rejected {counters['pods_rejected']} pods, the latest {name} on node {pod.node} "
            f"({pod.rejection.reason}, {found.cause.value}): {found.text}"
        )

    def _clean(self, pod: SeenPod) -> None:
        if self._clean_up and pod.ours:
            self._runtime.spawn(self._delete(pod))

    async def _delete(self, pod: SeenPod) -> None:
        path, uid = pod_path(pod.namespace, pod.name), uid_text(pod.uid)
        options: Object = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}}
        try:
            reply = await self._api.ask("DELETE", path, options, patience_seconds=_PATIENCE_SECONDS)
        except TransportError as exc:
            logger().warning("rejected_pod_not_deleted", pod=path, error=str(exc))
            return
        if reply.done:
            self._runtime.machine.counters["rejected_pods_deleted"] += 1
        elif reply.status not in (404, 409):  # the pod is gone, or the name is another pod's
            logger().warning("rejected_pod_not_deleted", pod=path, error=reply.message)
