"""Storage objects of tests, as short as they can be, and what binds and provisions volumes in a cluster that
has no controller manager: the test itself, step by step."""

from typing import Any

from e2e.kubernetes.api import MERGE, Api

GIB = 1 << 30
PROVISIONER = "disks.example.com"

_CLEARED = (
    "/api/v1/persistentvolumeclaims",
    "/api/v1/persistentvolumes",
    "/apis/storage.k8s.io/v1/storageclasses",
    "/apis/storage.k8s.io/v1/csinodes",
    "/apis/storage.k8s.io/v1/csidrivers",
    "/apis/storage.k8s.io/v1/volumeattachments",
    "/apis/storage.k8s.io/v1/csistoragecapacities",
)


class Storage:
    """Claims, volumes and classes of one test."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def clear(self) -> None:
        """No storage object is left."""
        for kind in _CLEARED:
            self._api.delete_all(kind)

    def create_class(
        self, name: str, *, provisioner: str = PROVISIONER, waits: bool = True, **more: Any
    ) -> None:
        """A storage class, by default of volumes that wait for their first consumer."""
        mode = "WaitForFirstConsumer" if waits else "Immediate"
        body = {
            "metadata": {"name": name},
            "provisioner": provisioner,
            "volumeBindingMode": mode,
            **more,
        }
        self._api("POST", "/apis/storage.k8s.io/v1/storageclasses", body)

    def create_volume(
        self,
        name: str,
        *,
        node: str = "",
        storage_class: str = "disks",
        gib: int = 1,
        driver: str = PROVISIONER,
    ) -> None:
        """An available volume that `node` alone reaches; "": every node."""
        affinity = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
        spec: dict[str, Any] = {
            "capacity": {"storage": f"{gib}Gi"},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": storage_class,
            "csi": {"driver": driver, "volumeHandle": name},
        }
        if node:
            spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": [{"matchExpressions": [affinity]}]}}
        self._api("POST", "/api/v1/persistentvolumes", {"metadata": {"name": name}, "spec": spec})
        status = {"status": {"phase": "Available"}}
        self._api("PATCH", f"/api/v1/persistentvolumes/{name}/status", status, **MERGE)

    def create_claim(
        self,
        name: str,
        *,
        storage_class: str = "disks",
        gib: int = 1,
        modes: tuple[str, ...] = ("ReadWriteOnce",),
        owner: Any = None,
    ) -> None:
        """A claim. `owner`: the pod that it was made for."""
        metadata: dict[str, Any] = {"name": name}
        if owner is not None:
            of_pod = {"apiVersion": "v1", "kind": "Pod", "controller": True}
            metadata["ownerReferences"] = [of_pod | {key: owner["metadata"][key] for key in ("name", "uid")}]
        spec = {
            "accessModes": list(modes),
            "storageClassName": storage_class,
            "resources": {"requests": {"storage": f"{gib}Gi"}},
        }
        path = "/api/v1/namespaces/default/persistentvolumeclaims"
        self._api("POST", path, {"metadata": metadata, "spec": spec})

    def delete_claim(self, name: str) -> None:
        """As a user does. The API server keeps it while it is protected."""
        path = f"/api/v1/namespaces/default/persistentvolumeclaims/{name}"
        self._api("PATCH", path, {"metadata": {"finalizers": ["kubernetes.io/pvc-protection"]}}, **MERGE)
        self._api("DELETE", path)

    def claim(self, name: str) -> Any:
        return self._api("GET", f"/api/v1/namespaces/default/persistentvolumeclaims/{name}")

    def volume(self, name: str) -> Any:
        return self._api("GET", f"/api/v1/persistentvolumes/{name}")

    def create_bound_claim(self, name: str, *, node: str = "", **claim: Any) -> None:
        """A claim with its own volume, which `node` alone reaches; "": every node."""
        self.create_volume(f"pv-{name}", node=node)
        self.create_claim(name, **claim)
        self.bind(name, f"pv-{name}")

    def bind(self, claim: str, volume: str) -> None:
        """Bind for good, as the controller manager does."""
        found = self.claim(claim)
        reference = {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "namespace": "default",
            "name": claim,
            "uid": found["metadata"]["uid"],
        }
        path = f"/api/v1/persistentvolumes/{volume}"
        self._api("PATCH", path, {"spec": {"claimRef": reference}}, **MERGE)
        self._api("PATCH", path + "/status", {"status": {"phase": "Bound"}}, **MERGE)
        path = f"/api/v1/namespaces/default/persistentvolumeclaims/{claim}"
        annotations = {"pv.kubernetes.io/bind-completed": "yes"}
        body = {"metadata": {"annotations": annotations}, "spec": {"volumeName": volume}}
        self._api("PATCH", path, body, **MERGE)
        self._api("PATCH", path + "/status", {"status": {"phase": "Bound"}}, **MERGE)

    def selected_node(self, claim: str) -> str:
        """The node that a scheduler chose for the claim; "": none."""
        annotations = self.claim(claim)["metadata"].get("annotations") or {}
        return str(annotations.get("volume.kubernetes.io/selected-node", ""))

    def claim_of(self, volume: str) -> str:
        """The claim that the volume is reserved for; "": none."""
        return str((self.volume(volume)["spec"].get("claimRef") or {}).get("name", ""))

    def unselect(self, claim: str) -> None:
        """Provisioning failed: say so as a provisioner does."""
        path = f"/api/v1/namespaces/default/persistentvolumeclaims/{claim}"
        annotations = {"volume.kubernetes.io/selected-node": None}
        self._api("PATCH", path, {"metadata": {"annotations": annotations}}, **MERGE)

    def provision(self, claim: str) -> None:
        """Make the volume that a claim with a selected node waits for, and bind it."""
        self.create_volume(f"pv-{claim}", node=self.selected_node(claim))
        self.bind(claim, f"pv-{claim}")

    def attach(self, volume: str, node: str, name: str = "csi-1") -> None:
        """The volume is attached to the node, as the controller manager has it."""
        source = {"persistentVolumeName": volume}
        body = {
            "metadata": {"name": name},
            "spec": {"attacher": PROVISIONER, "nodeName": node, "source": source},
        }
        self._api("POST", "/apis/storage.k8s.io/v1/volumeattachments", body)

    def detach(self, name: str = "csi-1") -> None:
        self._api("DELETE", f"/apis/storage.k8s.io/v1/volumeattachments/{name}")

    def limit(self, node: str, count: int, driver: str = PROVISIONER) -> None:
        """The driver attaches so many volumes to the node."""
        uid = self._api("GET", f"/api/v1/nodes/{node}")["metadata"]["uid"]
        owner = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid}
        of_driver = {"name": driver, "nodeID": node, "topologyKeys": [], "allocatable": {"count": count}}
        body = {"metadata": {"name": node, "ownerReferences": [owner]}, "spec": {"drivers": [of_driver]}}
        self._api("POST", "/apis/storage.k8s.io/v1/csinodes", body)


def mounting(*claims: str) -> list[Any]:
    """spec.volumes with these claims."""
    return [{"name": f"v{i}", "persistentVolumeClaim": {"claimName": name}} for i, name in enumerate(claims)]
