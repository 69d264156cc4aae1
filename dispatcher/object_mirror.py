"""Kubernetes mode: objects beside pods and nodes that rules of scheduling look at, taken in as the API server tells of them."""

from collections.abc import Callable

from dispatcher.core import messages as m
from dispatcher.core.controllers import Controllers
from dispatcher.runtime import Runtime
from hoss.errors import InvalidInput
from hoss.kube.api import KubeApi, Object
from hoss.kube.reflector import Change, Gone, Reflector
from hoss.model.cluster import OwnerReference
from hoss.model.cluster_manifest import read_controller
from hoss.model.cluster_object_manifest import read_cluster_object
from hoss.model.cluster_objects import ObjectKey
from hoss.telemetry import logger

_OBJECTS = {
    "/api/v1/namespaces": ("Namespace", ""),
    "/api/v1/services": ("Service", ""),
    "/apis/policy/v1/poddisruptionbudgets": ("PodDisruptionBudget", "policy"),
    "/apis/scheduling.k8s.io/v1/priorityclasses": ("PriorityClass", "scheduling.k8s.io"),
}
_CONTROLLERS = {
    "/api/v1/replicationcontrollers": ("ReplicationController", "", {}),
    # Those of Deployments have this label, and nothing is to be learned of them.
    "/apis/apps/v1/replicasets": ("ReplicaSet", "apps", {"labelSelector": "!pod-template-hash"}),
    "/apis/apps/v1/statefulsets": ("StatefulSet", "apps", {}),
}


class ObjectMirror:
    """Its `reflectors` must be running."""

    def __init__(self, runtime: Runtime, api: KubeApi) -> None:
        self.controllers = Controllers()
        self._runtime = runtime
        self.reflectors = [
            *(Reflector(api, path, self._hearing(*kind)) for path, kind in _OBJECTS.items()),
            *(
                Reflector(api, path, self._hearing_controllers(kind, group), params=params)
                for path, (kind, group, params) in _CONTROLLERS.items()
            ),
        ]

    def _hearing(self, kind: str, group: str) -> Callable[[list[Change]], None]:
        def hear(changes: list[Change]) -> None:
            applied = []
            for change in changes:
                if isinstance(change, Gone):
                    self._runtime.tell(m.ObjectsRemoved((ObjectKey(kind, change.namespace, change.name),)))
                    continue
                name = change.object["metadata"]["name"]
                if kind == "PriorityClass" and name.startswith("system-"):
                    continue  # every cluster has them, and pods have their priority from the API server anyway
                try:
                    item = read_cluster_object(change.object, kind, group)
                except InvalidInput as exc:
                    _warn(kind, change.object, exc)
                else:
                    applied += [item] if item is not None else []
            if applied:
                self._runtime.tell(m.ObjectsApplied(tuple(applied)))

        return hear

    def _hearing_controllers(self, kind: str, group: str) -> Callable[[list[Change]], None]:
        def hear(changes: list[Change]) -> None:
            for change in changes:
                if isinstance(change, Gone):
                    self.controllers.remove(OwnerReference(kind, group, change.name), change.namespace)
                    continue
                try:
                    self.controllers.apply(read_controller(change.object, kind))
                except InvalidInput as exc:
                    _warn(kind, change.object, exc)

        return hear


def _warn(kind: str, item: Object, error: InvalidInput) -> None:
    logger().warning("object_unreadable", kind=kind, name=item["metadata"]["name"], problem=str(error))
