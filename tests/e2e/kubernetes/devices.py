"""Devices of tests: what a DRA driver publishes and what the resourceclaim controller does, in a cluster that
has neither: the test itself, step by step."""

from typing import Any

from e2e.kubernetes.api import MERGE, Api

DRIVER = "gpu.example.com"
RESOURCE = "example.com/gpu"  # of classes that are created with it as their extendedResourceName
# Metadata of a claim that a scheduler made for a pod's extended resources.
LEFT_OVER = {
    "annotations": {"resource.kubernetes.io/extended-resource-claim": "true"},
    "finalizers": ["resource.kubernetes.io/delete-protection"],
}
# A device of which claims take memory.
SHAREABLE = {"name": "gpu-0", "allowMultipleAllocations": True, "capacity": {"memory": {"value": "80Gi"}}}
_GROUP = "/apis/resource.k8s.io/v1"
_CLAIMS = f"{_GROUP}/namespaces/default/resourceclaims"


class Devices:
    """Slices, classes and claims of one test."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def clear(self) -> None:
        """No device object is left."""
        for kind in ("resourceclaims", "resourceslices", "deviceclasses"):
            self._api.delete_all(f"{_GROUP}/{kind}")

    def create_class(self, name: str = "gpu", expression: str = "", **spec: Any) -> None:
        """A class of the driver's devices, or of those that an expression selects."""
        cel = {"expression": expression or f'device.driver == "{DRIVER}"'}
        body = {"metadata": {"name": name}, "spec": {"selectors": [{"cel": cel}], **spec}}
        self._api("POST", f"{_GROUP}/deviceclasses", body)

    def publish(self, node: str, *devices: Any, slices: int = 1, counters: Any = (), name: str = "") -> None:
        """The node has these devices, each a name or what a slice says of it. `slices`: of how many its pool
        is said to consist. `counters`: a slice of its own offers them. `name`: of the slice."""
        if counters:
            self._publish(f"{node}-counters", node, slices + 1, {"sharedCounters": list(counters)})
        named = [{"name": device} if isinstance(device, str) else device for device in devices]
        self._publish(name or f"{node}-slice", node, slices + bool(counters), {"devices": named})

    def withdraw(self, name: str) -> None:
        """There is no slice of this name."""
        self._api("DELETE", f"{_GROUP}/resourceslices/{name}")

    def _publish(self, name: str, node: str, slices: int, offer: Any) -> None:
        body = {
            "metadata": {"name": name},
            "spec": {
                "driver": DRIVER,
                "nodeName": node,
                "pool": {"name": node, "generation": 1, "resourceSliceCount": slices},
                **offer,
            },
        }
        self._api("POST", f"{_GROUP}/resourceslices", body)

    def extended_claim(self, pod: str) -> Any:
        """The claim that was made for the pod's extended resources; None: there is none."""
        claims = self._api("GET", _CLAIMS)["items"]
        owned = [c for c in claims if any(o["name"] == pod for o in c["metadata"].get("ownerReferences", ()))]
        return owned[0] if owned else None

    def create_claim(
        self,
        name: str,
        *,
        device_class: str = "gpu",
        owner: Any = None,
        config: Any = None,
        marks: Any = None,
        **request: Any,
    ) -> None:
        """A claim to one device. `owner`: the pod that it was made for. `marks`: more of its metadata."""
        metadata: dict[str, Any] = {"name": name, **(marks or {})}
        if owner is not None:
            of_pod = {"apiVersion": "v1", "kind": "Pod", "controller": True}
            metadata["ownerReferences"] = [of_pod | {key: owner["metadata"][key] for key in ("name", "uid")}]
        exactly = {"deviceClassName": device_class, **request}
        devices: dict[str, Any] = {"requests": [{"name": "one", "exactly": exactly}]}
        if config is not None:
            devices["config"] = config
        self._api("POST", _CLAIMS, {"metadata": metadata, "spec": {"devices": devices}})

    def claim(self, name: str) -> Any:
        return self._api("GET", f"{_CLAIMS}/{name}")

    def delete_claim(self, name: str) -> None:
        self._api("DELETE", f"{_CLAIMS}/{name}")

    def device_of(self, claim: str) -> str:
        """The device that the claim has, as pool/device; "": none."""
        allocation = self.claim(claim).get("status", {}).get("allocation")
        if not allocation:
            return ""
        [result] = allocation["devices"]["results"]
        return f"{result['pool']}/{result['device']}"

    def tell(self, claim: str, condition: str) -> None:
        """The driver of the claim's device says that this is true of it."""
        path = f"{_CLAIMS}/{claim}"
        [result] = self._api("GET", path)["status"]["allocation"]["devices"]["results"]
        told = {"type": condition, "status": "True", "reason": "Told", "message": "by the driver"}
        told["lastTransitionTime"] = "2026-11-24T12:00:00Z"
        device = {key: result[key] for key in ("driver", "pool", "device")} | {"conditions": [told]}
        self._api("PATCH", f"{path}/status", {"status": {"devices": [device]}}, **MERGE)

    def users_of(self, claim: str) -> list[str]:
        """The pods that the claim is reserved for, sorted."""
        return sorted(user["name"] for user in self.claim(claim).get("status", {}).get("reservedFor", ()))

    def name_claim_of(self, pod: str, entry: str, claim: str) -> None:
        """Say in the pod's status which claim was made for a template, as the controller does."""
        path = f"/api/v1/namespaces/default/pods/{pod}/status"
        made = {"status": {"resourceClaimStatuses": [{"name": entry, "resourceClaimName": claim}]}}
        self._api("PATCH", path, made, **MERGE)

    def give(self, claim: str, node: str, device: str, *, on: str = "", **given: Any) -> None:
        """The claim has this device of the node, by some scheduler. `on`: the only node that reaches it."""
        result = {"request": "one", "driver": DRIVER, "pool": node, "device": device, **given}
        allocation: dict[str, Any] = {"devices": {"results": [result]}}
        if on:
            at = {"key": "metadata.name", "operator": "In", "values": [on]}
            allocation["nodeSelector"] = {"nodeSelectorTerms": [{"matchFields": [at]}]}
        body = {"status": {"allocation": allocation}}
        self._api("PATCH", f"{_CLAIMS}/{claim}/status", body, **MERGE)

    def list_users(self, claim: str, users: list[Any]) -> None:
        """The claim is reserved for exactly these, as other schedulers have it."""
        self._api("PATCH", f"{_CLAIMS}/{claim}/status", {"status": {"reservedFor": users}}, **MERGE)

    def collect(self, claim: str) -> None:
        """The pod that owns the claim is gone: so is the claim, as the garbage collector has it."""
        path = f"{_CLAIMS}/{claim}"
        self._api("PATCH", path, {"metadata": {"finalizers": None}}, **MERGE)
        self._api("DELETE", path)

    def free(self, claim: str) -> None:
        """No pod uses the claim any more: take its devices, as the controller does."""
        body = {"status": {"allocation": None, "reservedFor": None}}
        self._api("PATCH", f"{_CLAIMS}/{claim}/status", body, **MERGE)


def claiming(*claims: str) -> list[Any]:
    """spec.resourceClaims with these claims."""
    return [{"name": f"c{i}", "resourceClaimName": name} for i, name in enumerate(claims)]


def wanting(count: str, resource: str = RESOURCE) -> list[Any]:
    """spec.containers with so much of an extended resource."""
    amounts = {"cpu": "10m", resource: count}
    return [{"name": "c", "image": "i", "resources": {"requests": amounts, "limits": amounts}}]
