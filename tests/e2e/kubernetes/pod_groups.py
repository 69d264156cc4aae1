"""PodGroups of the three kinds that clusters have, as short as they can be."""

from typing import Any, NamedTuple

from e2e.kubernetes.api import MERGE, Api
from waiting import wait_until

_CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_FREE = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


class Kind(NamedTuple):
    """How groups of a kind are written."""

    api_group: str
    version: str
    subresource: bool  # whether its status is a subresource

    def spec(self, minimum: int) -> dict[str, Any]:
        """Of a group."""
        if self is WORKLOAD:
            return {"schedulingPolicy": {"gang": {"minCount": minimum}}}
        return {"minMember": minimum}

    def naming(self, group: str) -> dict[str, Any]:
        """What a pod that names this group is created with."""
        if self is WORKLOAD:
            return {"schedulingGroup": {"podGroupName": group}}
        if self is VOLCANO:
            return {"metadata": {"annotations": {"scheduling.k8s.io/group-name": group}}}
        return {"metadata": {"labels": {"scheduling.x-k8s.io/pod-group": group}}}


COSCHEDULING = Kind("scheduling.x-k8s.io", "v1alpha1", subresource=True)
VOLCANO = Kind("scheduling.volcano.sh", "v1beta1", subresource=False)
WORKLOAD = Kind("scheduling.k8s.io", "v1alpha2", subresource=True)  # built into the API server
KINDS = (COSCHEDULING, VOLCANO, WORKLOAD)


class Groups:
    """Those of one kind, of one test."""

    def __init__(self, api: Api, kind: Kind) -> None:
        self.kind = kind
        self._api = api
        self._base = f"/apis/{kind.api_group}/{kind.version}"
        self._crd = f"podgroups.{kind.api_group}"

    def install(self) -> None:
        """The cluster has the kind, and no group of it."""
        if self.kind is not WORKLOAD:
            version = {
                "name": self.kind.version,
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {"type": "object", "properties": {"spec": _FREE, "status": _FREE}}
                },
                "subresources": {"status": {}} if self.kind.subresource else {},
            }
            names = {
                "kind": "PodGroup",
                "plural": "podgroups",
                "singular": "podgroup",
                "listKind": "PodGroupList",
            }
            spec = {
                "group": self.kind.api_group,
                "scope": "Namespaced",
                "names": names,
                "versions": [version],
            }
            self._api.request("POST", _CRDS, {"metadata": {"name": self._crd}, "spec": spec})
        wait_until(self._served, f"{self._crd} is served")
        self._api.delete_all(f"{self._base}/podgroups")

    def uninstall(self) -> None:
        """The cluster does not have the kind."""
        self._api.request("DELETE", f"{_CRDS}/{self._crd}")
        wait_until(lambda: not self._served(), f"{self._crd} is not served")

    def create(self, name: str, minimum: int, *, namespace: str = "default", **spec: Any) -> None:
        body = {
            "apiVersion": f"{self.kind.api_group}/{self.kind.version}",
            "kind": "PodGroup",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {**self.kind.spec(minimum), **spec},
        }
        self._api("POST", self._path(namespace), body)

    def change(self, name: str, minimum: int) -> None:
        """Another minimum. The groups of Kubernetes itself cannot be changed: another group of the name."""
        if self.kind is WORKLOAD:
            self.delete(name)
            self.create(name, minimum)
        else:
            self._api("PATCH", f"{self._path()}/{name}", {"spec": self.kind.spec(minimum)}, **MERGE)

    def delete(self, name: str, namespace: str = "default") -> None:
        path = f"{self._path(namespace)}/{name}"
        # A controller that is not here protects the groups of Kubernetes itself.
        self._api.request("PATCH", path, {"metadata": {"finalizers": None}}, **MERGE)
        self._api("DELETE", path)

    def status(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self._api("GET", f"{self._path()}/{name}").get("status", {})
        return found

    def condition(self, name: str) -> tuple[str, str, str]:
        """Type, status and message of its only condition; empty without one."""
        conditions = self.status(name).get("conditions") or []
        assert len(conditions) < 2, conditions
        return next(((c["type"], c["status"], c.get("message", "")) for c in conditions), ("", "", ""))

    def create_pods(self, group: str, *names: str, cpu: str = "600m", **spec: Any) -> None:
        """Pods for HOSS that name the group."""
        for name in names:
            self._api.create_pod(name, scheduler="hoss", cpu=cpu, **self.kind.naming(group), **spec)

    def _path(self, namespace: str = "default") -> str:
        return f"{self._base}/namespaces/{namespace}/podgroups"

    def _served(self) -> bool:
        return self._api.request("GET", f"{self._base}/podgroups")[0] == 200
