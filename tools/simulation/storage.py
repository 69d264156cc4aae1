"""Volumes and devices of a simulated cluster: what its administrator made, and the controllers that serve
claims. Nothing ever fails of these but what a real provisioner may refuse.

Each node has two local volumes and two devices, which go and come with it. The controller manager binds a
claim to the volume that was reserved for it. A provisioner makes volumes for the node that a claim names, or
gives up. The resourceclaim controller takes pods that are gone out of `reservedFor`, and frees the devices of
claims that nobody uses."""

import random
from collections.abc import Callable
from typing import Any

from tools.simulation.api_model import CLAIM, DEVICE_CLAIM, NODE, POD, SLICE, VOLUME, ApiModel, Object

PROVISIONED, LOCAL = "disks", "local"  # storage classes: of volumes that are made, and of those of the nodes
DRIVER = "gpu.example.com"
_PER_NODE = 2  # local volumes, and devices
_NAMESPACE = "default"
CLAIMS_PATH = f"/api/v1/namespaces/{_NAMESPACE}/persistentvolumeclaims"
VOLUMES_PATH = "/api/v1/persistentvolumes"
DEVICES_PATH = "/apis/resource.k8s.io/v1"
DEVICE_CLAIMS_PATH = f"{DEVICES_PATH}/namespaces/{_NAMESPACE}/resourceclaims"
_SELECTED_NODE = "volume.kubernetes.io/selected-node"
_BOUND = {"metadata": {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}}}
_GIVES_UP = 0.15  # of provisionings: the claim names no node any more
_IDLE = 0.5  # of looks at something to do: it is done later

Do = Callable[[str, str, Object], None]  # a request: method, path, body


class Storage:
    """Call `look` again and again."""

    def __init__(self, model: ApiModel, rng: random.Random, do: Do) -> None:
        self._model = model
        self._rng = rng
        self._do = do

    # -- the administrator

    def create_classes(self) -> None:
        """Storage classes whose volumes wait for their first consumer, and a class of devices."""
        for name, provisioner in (
            (PROVISIONED, "disks.example.com"),
            (LOCAL, "kubernetes.io/no-provisioner"),
        ):
            body = {"metadata": {"name": name}, "provisioner": provisioner}
            waits = {"volumeBindingMode": "WaitForFirstConsumer"}
            self._do("POST", "/apis/storage.k8s.io/v1/storageclasses", {**body, **waits})
        selectors = [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]
        body = {"metadata": {"name": "gpu"}, "spec": {"selectors": selectors}}
        self._do("POST", f"{DEVICES_PATH}/deviceclasses", body)

    def node_came(self, node: str) -> None:
        """A node has its local volumes, as it had before, and its driver publishes its devices."""
        for number in range(_PER_NODE):
            if self._model.find(VOLUME, "", f"local-{node}-{number}") is None:
                self._do("POST", VOLUMES_PATH, _volume(f"local-{node}-{number}", LOCAL, node))
        if self._model.find(SLICE, "", node) is None:
            pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
            devices = [{"name": f"gpu-{number}"} for number in range(_PER_NODE)]
            spec = {"driver": DRIVER, "nodeName": node, "pool": pool, "devices": devices}
            self._do("POST", f"{DEVICES_PATH}/resourceslices", {"metadata": {"name": node}, "spec": spec})

    def node_went(self, node: str) -> None:
        """The slice of a node goes with it."""
        if self._model.find(SLICE, "", node) is not None:
            self._do("DELETE", f"{DEVICES_PATH}/resourceslices/{node}", {})

    # -- users

    def claims_of(self, job: str, pod: str, options: dict[str, Any]) -> Object:
        """What the spec of a pod says of its claims, which are made where they are missing."""
        spec: Object = {}
        if "volume" in options:
            name = f"{job}-data" if options.get("shared") else f"{pod}-data"
            if self._model.find(CLAIM, _NAMESPACE, name) is None:
                self._do("POST", CLAIMS_PATH, _claim(name, options["volume"]))
            spec["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": name}}]
        if "devices" in options:
            name = f"{job}-gpu" if options.get("shared") else f"{pod}-gpu"
            if self._model.find(DEVICE_CLAIM, _NAMESPACE, name) is None:
                exactly = {"deviceClassName": "gpu", "count": options["devices"]}
                requests = {"devices": {"requests": [{"name": "one", "exactly": exactly}]}}
                self._do("POST", DEVICE_CLAIMS_PATH, {"metadata": {"name": name}, "spec": requests})
            spec["resourceClaims"] = [{"name": "gpu", "resourceClaimName": name}]
        return spec

    # -- controllers

    def look(self) -> None:
        """Each controller does what is due. Sometimes it takes its time."""
        for claim in self._model.objects(CLAIM):
            if not claim["spec"].get("volumeName") and self._rng.random() >= _IDLE:
                self._serve(claim)
        for claim in self._model.objects(DEVICE_CLAIM):
            if self._rng.random() >= _IDLE:
                self._free(claim)

    def _serve(self, claim: Object) -> None:
        metadata = claim["metadata"]
        volumes = self._model.objects(VOLUME)
        own = [v for v in volumes if (v["spec"].get("claimRef") or {}).get("uid") == metadata["uid"]]
        if own:
            self._bind(claim, own[0]["metadata"]["name"])
            return
        node = (metadata.get("annotations") or {}).get(_SELECTED_NODE)
        if not node:
            return
        if self._rng.random() < _GIVES_UP or self._model.find(NODE, "", node) is None:
            unselected = {"metadata": {"annotations": {_SELECTED_NODE: None}}}
            self._do("PATCH", f"{CLAIMS_PATH}/{metadata['name']}", unselected)
            return
        volume = _volume(f"made-{metadata['uid']}", PROVISIONED, node)
        volume["spec"]["claimRef"] = _reference(claim)
        self._do("POST", VOLUMES_PATH, volume)
        self._bind(claim, volume["metadata"]["name"])

    def _bind(self, claim: Object, volume: str) -> None:
        path = f"{CLAIMS_PATH}/{claim['metadata']['name']}"
        self._do("PATCH", f"{VOLUMES_PATH}/{volume}/status", {"status": {"phase": "Bound"}})
        self._do("PATCH", path, {**_BOUND, "spec": {"volumeName": volume}})
        self._do("PATCH", f"{path}/status", {"status": {"phase": "Bound"}})

    def _free(self, claim: Object) -> None:
        status, path = claim.get("status") or {}, f"{DEVICE_CLAIMS_PATH}/{claim['metadata']['name']}"
        users = status.get("reservedFor") or []
        living = {
            pod["metadata"]["uid"]
            for pod in self._model.objects(POD)
            if pod["status"].get("phase") not in ("Succeeded", "Failed")
        }
        left = [user for user in users if user["uid"] in living]
        if len(left) < len(users):
            self._do("PATCH", f"{path}/status", {"status": {"reservedFor": left or None}})
        if not left and status.get("allocation"):
            self._do("PATCH", f"{path}/status", {"status": {"allocation": None}})
            self._do("PATCH", path, {"metadata": {"finalizers": None}})


def _volume(name: str, storage_class: str, node: str) -> Object:
    """An available volume that one node reaches."""
    here = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
    spec = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": storage_class,
        "csi": {"driver": "disks.example.com", "volumeHandle": name},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}},
    }
    return {"metadata": {"name": name}, "spec": spec, "status": {"phase": "Available"}}


def _claim(name: str, storage_class: str) -> Object:
    resources = {"requests": {"storage": "1Gi"}}
    spec = {"accessModes": ["ReadWriteOnce"], "storageClassName": storage_class, "resources": resources}
    return {"metadata": {"name": name}, "spec": spec, "status": {"phase": "Pending"}}


def _reference(claim: Object) -> Object:
    metadata = claim["metadata"]
    names = {name: metadata[name] for name in ("namespace", "name", "uid")}
    return {"apiVersion": "v1", "kind": CLAIM, **names}
