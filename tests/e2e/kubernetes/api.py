"""What tests ask of an API server: a few verbs on raw objects, and objects as short as they can be."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import orjson
import urllib3
from waiting import wait_until

from hossctl.local.control_plane import ControlPlane

MERGE = {"Content-Type": "application/merge-patch+json"}  # the header of a merge patch

_CLEARED = (
    "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations",  # first: they may refuse the rest
    "/api/v1/pods",
    "/api/v1/nodes",
    "/apis/policy/v1/poddisruptionbudgets",
    "/apis/apps/v1/replicasets",
    "/apis/apps/v1/statefulsets",
)


class Api:
    """An administrator's calls. `request` gives status and body; the other verbs insist on success."""

    def __init__(self, plane: ControlPlane) -> None:
        self._base = plane.url
        self._headers = {"Authorization": f"Bearer {plane.token}", "Content-Type": "application/json"}
        self._pool = urllib3.PoolManager(ca_certs=str(plane.certificate_authority), maxsize=32, retries=False)

    def request(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        """`path` from the server's root, with its query."""
        reply = self._pool.request(
            method,
            self._base + path,
            body=None if body is None else orjson.dumps(body),
            headers={**self._headers, **headers},
        )
        return reply.status, orjson.loads(reply.data) if reply.data.startswith(b"{") else reply.data

    def __call__(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        status, answer = self.request(method, path, body, **headers)
        assert status < 300, f"{method} {path}: {status} {answer}"
        return answer

    def create_node(
        self,
        name: str,
        *,
        cpu: str = "4",
        memory: str = "8Gi",
        pods: int = 110,
        labels: Mapping[str, str] = MappingProxyType({}),
        extended: Mapping[str, str] = MappingProxyType({}),
        **spec: Any,
    ) -> Any:
        """A plain Node object, ready, as KWOK's are. `extended`: amounts of extended resources."""
        amounts = {"cpu": cpu, "memory": memory, "pods": str(pods), **extended}
        return self(
            "POST",
            "/api/v1/nodes",
            {
                "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **labels}},
                "spec": spec,
                "status": {
                    "capacity": amounts,
                    "allocatable": amounts,
                    "conditions": [{"type": "Ready", "status": "True"}],
                },
            },
        )

    def create_pod(
        self,
        name: str,
        *,
        cpu: str = "100m",
        memory: str = "64Mi",
        extended: Mapping[str, str] = MappingProxyType({}),
        namespace: str = "default",
        scheduler: str = "somebody-else",
        image: str = "none",
        metadata: Any = None,
        container: Any = None,
        **spec: Any,
    ) -> Any:
        """A pod of one container. `metadata` and `container` are more of these, and `spec` of its spec, as
        `nodeName="n1"`."""
        resources = {"requests": {"cpu": cpu, "memory": memory, **extended}, "limits": dict(extended)}
        only = {"name": "c", "image": image, "resources": resources, **(container or {})}
        return self(
            "POST",
            f"/api/v1/namespaces/{namespace}/pods",
            {
                "metadata": {"name": name, **(metadata or {})},
                "spec": {"schedulerName": scheduler, "containers": [only], **spec},
            },
        )

    def bind(self, pod: Any, node: str, *, dry_run: bool = False, **headers: str) -> tuple[int, Any]:
        """As any scheduler does."""
        metadata = pod["metadata"]
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}/binding"
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {name: metadata[name] for name in ("name", "namespace", "uid")},
            "target": {"kind": "Node", "name": node},
        }
        return self.request("POST", path + ("?dryRun=All" if dry_run else ""), binding, **headers)

    def pod(self, name: str, namespace: str = "default") -> Any:
        return self("GET", f"/api/v1/namespaces/{namespace}/pods/{name}")

    def delete_pod(self, name: str, namespace: str = "default") -> None:
        self("DELETE", f"/api/v1/namespaces/{namespace}/pods/{name}?gracePeriodSeconds=0")

    def create_namespace(self, name: str, **labels: str) -> None:
        self("POST", "/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})

    def delete_all(self, kind: str) -> None:
        """Delete the objects of a kind in all namespaces, as "/api/v1/pods", at once. Their finalizers are
        removed: nobody serves them here."""
        group, _, resource = kind.rpartition("/")
        collections = set()
        for item in self("GET", kind)["items"]:
            metadata = item["metadata"]
            namespaced = "namespace" in metadata
            collection = f"{group}/namespaces/{metadata['namespace']}/{resource}" if namespaced else kind
            collections.add(collection)
            if metadata.get("finalizers"):
                kept = f"{collection}/{metadata['name']}"
                # One that is being deleted may be gone by now.
                self.request("PATCH", kept, {"metadata": {"finalizers": None}}, **MERGE)
        for collection in collections:
            self("DELETE", f"{collection}?gracePeriodSeconds=0")

    def clear(self) -> None:
        """Without webhooks, pods, nodes, budgets and sets, also those that a failed test has left to a
        finalizer or a long grace period. Namespaces stay: nobody is there to end them."""
        for kind in _CLEARED:
            self.delete_all(kind)


def find_events(api: Api, name: str) -> list[Any]:
    """Of a pod of this name."""
    found: list[Any] = api(
        "GET", f"/api/v1/namespaces/default/events?fieldSelector=involvedObject.name={name}"
    )["items"]
    return found


def events_of(api: Api, name: str) -> list[tuple[str, str]]:
    """Their reasons and messages."""
    return [(event["reason"], event["message"]) for event in find_events(api, name)]


def node_of(api: Api, name: str) -> str:
    """The node of a pod; empty: it has none."""
    return str(api.pod(name)["spec"].get("nodeName", ""))


def placed(api: Api, name: str) -> str:
    """The node of a pod, once it has one."""
    return str(wait_until(lambda: node_of(api, name), f"{name} is bound"))


def told(api: Api, name: str) -> str:
    """Why a pod waits, by its condition."""
    conditions = api.pod(name)["status"].get("conditions", ())
    return next(
        (c["message"] for c in conditions if c["type"] == "PodScheduled" and c["status"] == "False"), ""
    )


def await_reason(api: Api, pod: str, reason: str) -> None:
    """Wait for an event that says why the pod is not placed."""
    told = lambda: any(reason in text for _, text in events_of(api, pod))  # noqa: E731
    wait_until(told, lambda: f"{pod}: {reason}; told: {events_of(api, pod)}")


def patch_pod(api: Api, name: str, body: Any) -> None:
    """A merge patch."""
    api(
        "PATCH",
        f"/api/v1/namespaces/default/pods/{name}",
        body,
        **MERGE,
    )


def resize(api: Api, name: str, cpu: str) -> None:
    """In place, as `kubectl patch --subresource resize` does."""
    container = {"name": "c", "resources": {"requests": {"cpu": cpu}}}
    patch = {"Content-Type": "application/strategic-merge-patch+json"}
    api(
        "PATCH",
        f"/api/v1/namespaces/default/pods/{name}/resize",
        {"spec": {"containers": [container]}},
        **patch,
    )
