"""Judges what became of volumes and devices, by nothing but the objects of the API server.

It shares no code with the services. At every moment: a volume is one claim's for good, a claim has one volume
for good, no device is in two claims' allocations, and a claim that pods use keeps its devices. At rest: the
claims of each pod on a node have volumes and devices that the node reaches, the pods that a claim lists are
those on nodes that use it, and nobody holds a device without a pod. A pod whose reservation was lost after it
had got volumes and devices of a node may keep them while it waits: its volume lets it go nowhere else."""

from collections.abc import Iterable, Mapping
from typing import Any

Object = Mapping[str, Any]

_VOLUME, _CLAIM, _DEVICE_CLAIM = "PersistentVolume", "PersistentVolumeClaim", "ResourceClaim"
_LOCAL = "local"  # the storage class of volumes that the nodes have; those of the other are made on demand


class StorageJudge:
    """Sees every change of claims and volumes. `problems`: a sentence for each broken promise."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = problems
        self._owners: dict[str, str] = {}  # of volumes, by name: the claim's UID
        self._volumes: dict[str, str] = {}  # of claims, by UID
        self._devices: dict[str, frozenset[str]] = {}  # of resource claims, by name

    def see(self, change: Any) -> None:
        """A change of an object of any kind."""
        if change.kind == _VOLUME:
            self._see_volume(change.after)
        elif change.kind == _CLAIM and change.after is not None:
            self._see_claim(change.after)
        elif change.kind == _DEVICE_CLAIM:
            self._see_device_claim(change.object["metadata"]["name"], change.before, change.after)

    def _see_volume(self, volume: Object | None) -> None:
        owner = "" if volume is None else (volume["spec"].get("claimRef") or {}).get("uid", "")
        if volume is None or not owner:
            return
        name = volume["metadata"]["name"]
        before = self._owners.setdefault(name, owner)
        if before != owner:
            self.problems.append(f"volume given twice: {name} was claim {before}'s and is {owner}'s")

    def _see_claim(self, claim: Object) -> None:
        volume, uid = claim["spec"].get("volumeName", ""), claim["metadata"]["uid"]
        if not volume:
            return
        before = self._volumes.setdefault(uid, volume)
        if before != volume:
            self.problems.append(f"claim {_name(claim)} had volume {before} and has {volume}")
        others = [other for other, theirs in self._volumes.items() if theirs == volume and other != uid]
        if others:
            self.problems.append(
                f"volume given twice: {volume} is of {_name(claim)} and of claim {others[0]}"
            )

    def _see_device_claim(self, name: str, before: Object | None, after: Object | None) -> None:
        here = frozenset() if after is None else devices_of(after)
        had = self._devices.get(name, frozenset())
        for other, theirs in self._devices.items():
            if other != name and (twice := here & theirs - had):
                self.problems.append(f"device given twice: {min(twice)} is of claims {other} and {name}")
        if before is not None and after is not None and had and here != had and users_of(after):
            text = f"claim {name} had {sorted(had)} and has {sorted(here)} while pods use it"
            self.problems.append(text)
        self._devices[name] = here

    def at_rest(self, pods: Iterable[Object], objects: "StoredObjects") -> list[str]:
        """What is not as it must be once nothing moves. `pods`: those that are not over."""
        found: list[str] = []
        users: dict[str, set[str]] = {}
        waiting: dict[str, set[str]] = {}  # likewise, of pods that keep devices
        for pod in pods:
            if not (node := pod["spec"].get("nodeName")):
                for name in objects.kept_claims(pod):
                    waiting.setdefault(name, set()).add(pod["metadata"]["uid"])
                continue
            for name in volume_claims_of(pod):
                if objects.node_of_claim(name) != node:
                    where = objects.node_of_claim(name) or "nowhere"
                    found.append(f"pod {_name(pod)} is on {node}, and the volume of its claim {name} {where}")
            for name in device_claims_of(pod):
                users.setdefault(name, set()).add(pod["metadata"]["uid"])
                if objects.node_of_devices(name) != node:
                    where = objects.node_of_devices(name) or "nowhere"
                    found.append(
                        f"pod {_name(pod)} is on {node}, and the devices of its claim {name} {where}"
                    )
        return found + _disagreements(objects, users, waiting)


def _disagreements(
    objects: "StoredObjects", users: Mapping[str, set[str]], waiting: Mapping[str, set[str]]
) -> list[str]:
    """What resource claims say that is not so. Both by claim: UIDs of pods that use it, and of those that
    wait for the node of its devices."""
    found = []
    for name, claim in objects.device_claims.items():
        listed = users_of(claim)
        if listed - waiting.get(name, set()) != users.get(name, set()):
            wanted = sorted(users.get(name, set()))
            found.append(f"claim {name} is reserved for {sorted(listed)}, and {wanted} use it")
        if devices_of(claim) and not listed:
            found.append(f"claim {name} has devices, and nobody uses it")
    return found


class StoredObjects:
    """The claims, volumes and slices of one moment."""

    def __init__(
        self,
        claims: Iterable[Object],
        volumes: Iterable[Object],
        device_claims: Iterable[Object],
        slices: Iterable[Object],
    ) -> None:
        self.device_claims = {_name(claim): claim for claim in device_claims}
        self._claims = {_name(claim): claim for claim in claims}
        self._volumes = {_name(volume): volume for volume in volumes}
        self._offered = {
            part["spec"]["nodeName"]: {
                f"{_name(part)}/{device['name']}" for device in part["spec"]["devices"]
            }
            for part in slices
        }

    def node_of_claim(self, name: str) -> str:
        """The node that reaches the claim's volume; "": it has none."""
        claim = self._claims.get(name)
        volume = None if claim is None else self._volumes.get(claim["spec"].get("volumeName", ""))
        return "" if volume is None else _node_of_volume(volume)

    def node_of_devices(self, name: str) -> str:
        """The node that has the devices of the claim; "": it has none."""
        claim = self.device_claims.get(name)
        devices = frozenset() if claim is None else devices_of(claim)
        return min(devices).partition("/")[0] if devices else ""

    def kept_claims(self, pod: Object) -> list[str]:
        """The pod's resource claims with devices of the node that its volume is on."""
        places = {self.node_of_claim(name) for name in volume_claims_of(pod)} - {""}
        return [name for name in device_claims_of(pod) if self.node_of_devices(name) in places]

    def takes(self, pod: Object, node: str) -> bool:
        """Whether the pod can have its volumes and devices on the node."""
        return all(self._has_volume(name, node) for name in volume_claims_of(pod)) and all(
            self._has_devices(name, node) for name in device_claims_of(pod)
        )

    def _has_volume(self, name: str, node: str) -> bool:
        claim = self._claims.get(name)
        if claim is None:
            return False
        if claim["spec"].get("volumeName"):
            return self.node_of_claim(name) == node
        if claim["spec"]["storageClassName"] != _LOCAL:
            return True
        return any(
            volume["spec"]["storageClassName"] == _LOCAL
            and _node_of_volume(volume) == node
            and (volume["spec"].get("claimRef") or {}).get("uid") in (None, claim["metadata"]["uid"])
            for volume in self._volumes.values()
        )

    def _has_devices(self, name: str, node: str) -> bool:
        claim = self.device_claims.get(name)
        if claim is None:
            return False
        if devices_of(claim):
            return self.node_of_devices(name) == node
        taken = frozenset().union(*map(devices_of, self.device_claims.values()))
        [request] = claim["spec"]["devices"]["requests"]
        wanted: int = request["exactly"].get("count", 1)
        return len(self._offered.get(node, set()) - taken) >= wanted


def devices_of(claim: Object) -> frozenset[str]:
    """What the claim has, as pool/device."""
    allocation = (claim.get("status") or {}).get("allocation") or {}
    results = allocation.get("devices", {}).get("results", ())
    return frozenset(f"{result['pool']}/{result['device']}" for result in results)


def users_of(claim: Object) -> set[str]:
    """UIDs of the pods that a resource claim lists."""
    return {user["uid"] for user in (claim.get("status") or {}).get("reservedFor") or ()}


def volume_claims_of(pod: Object) -> list[str]:
    """Claims of volumes that the pod mounts."""
    volumes = pod["spec"].get("volumes") or ()
    return [v["persistentVolumeClaim"]["claimName"] for v in volumes if "persistentVolumeClaim" in v]


def device_claims_of(pod: Object) -> list[str]:
    """Claims of devices that the pod uses."""
    return [use["resourceClaimName"] for use in pod["spec"].get("resourceClaims") or ()]


def _node_of_volume(volume: Object) -> str:
    [term] = volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]
    return str(term["matchExpressions"][0]["values"][0])


def _name(item: Object) -> str:
    return str(item["metadata"]["name"])
