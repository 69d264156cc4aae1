"""What the pods of `hoss bench kubernetes --claim` claim: nothing, a volume or a device each.

All claims of a turn exist before the turn is measured, so that it measures schedulers and not the creation of
claims. The volumes' class waits for the first consumer: the scheduler chooses a node for the claim, then
`provisioning` makes the volume there and binds it, as the provisioner and the volume controller of a cluster
do in two writing requests. The devices need nobody: the scheduler writes which one a claim has.

After a turn claims and volumes are deleted. Their finalizers go first, because no controller serves them."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager

from hoss.errors import HossError
from hoss.kube.api import MERGE_PATCH, KubeApi, Object
from hoss.kube.reflector import Change, ObjectGone, Reflector
from hoss.tasks import background
from hossctl.bench import api_server
from hossctl.choices import Claim

_DRIVER = "bench.example.com"
_CLASS = "bench"
_VOLUMES = "/api/v1/persistentvolumes"
_VOLUME_CLAIMS = "/api/v1/namespaces/default/persistentvolumeclaims"
_STORAGE_CLASSES = "/apis/storage.k8s.io/v1/storageclasses"
_DEVICES = "/apis/resource.k8s.io/v1"
_DEVICE_CLAIMS = f"{_DEVICES}/namespaces/default/resourceclaims"
_MOST_DEVICES = 110  # of a node, as it has room for no more pods; a slice may have 128

_SELECTED_NODE = "volume.kubernetes.io/selected-node"
_BIND_COMPLETED = "pv.kubernetes.io/bind-completed"
_PROVISIONING = 32  # requests at a time
_PATIENCE_SECONDS = 120.0


async def prepare(api: KubeApi, claim: Claim, *, nodes: int, pods: int) -> None:
    """What the cluster offers to `pods` pods, for all turns."""
    if claim is Claim.VOLUME:
        body = {
            "metadata": {"name": _CLASS},
            "provisioner": _DRIVER,
            "volumeBindingMode": "WaitForFirstConsumer",
        }
        await api_server.create(api, _STORAGE_CLASSES, body)
    elif claim is Claim.DEVICE:
        await api_server.create(api, f"{_DEVICES}/deviceclasses", {"metadata": {"name": _CLASS}})
        # Some more than an even share: the choice of nodes is the scheduler's.
        each = min(_MOST_DEVICES, 2 * -(-pods // nodes) + 2)
        slices = (_slice(f"n{number}", each) for number in range(nodes))
        await api_server.create_all(api, f"{_DEVICES}/resourceslices", slices)


async def create(api: KubeApi, claim: Claim, count: int) -> None:
    """The claims of pods p0, p1, ..."""
    if claim is Claim.VOLUME:
        await api_server.create_all(api, _VOLUME_CLAIMS, (_volume_claim(f"p{n}") for n in range(count)))
    elif claim is Claim.DEVICE:
        await api_server.create_all(api, _DEVICE_CLAIMS, (_device_claim(f"p{n}") for n in range(count)))


def pod(number: int, scheduler: str, claim: Claim) -> Object:
    """Pod p<number>, which claims what has its name."""
    name = f"p{number}"
    made = api_server.pod(name, scheduler, api_server.POD_AMOUNTS)
    if claim is Claim.VOLUME:
        made["spec"]["volumes"] = [{"name": "v", "persistentVolumeClaim": {"claimName": name}}]
    elif claim is Claim.DEVICE:
        made["spec"]["resourceClaims"] = [{"name": "d", "resourceClaimName": name}]
        made["spec"]["containers"][0]["resources"]["claims"] = [{"name": "d"}]
    return made


@asynccontextmanager
async def provisioning(api: KubeApi, claim: Claim) -> AsyncIterator[None]:
    """Volumes are made for claims with a selected node within the block. Raises HossError where one cannot be
    made."""
    if claim is not Claim.VOLUME:
        yield
        return
    selected: asyncio.Queue[Object] = asyncio.Queue()
    begun: set[str] = set()

    def note(changes: Sequence[Change]) -> None:
        for change in changes:
            if isinstance(change, ObjectGone):
                continue
            metadata, spec = change.object["metadata"], change.object["spec"]
            waits = _SELECTED_NODE in (metadata.get("annotations") or {}) and not spec.get("volumeName")
            if waits and metadata["uid"] not in begun:
                begun.add(metadata["uid"])
                selected.put_nowait(change.object)

    async def make() -> None:
        while True:
            await _provision(api, await selected.get())

    reflector = Reflector(api, _VOLUME_CLAIMS, note)
    async with background(reflector.run(), *(make() for _ in range(_PROVISIONING))):
        yield


async def delete(api: KubeApi, claim: Claim) -> None:
    """The claims of a turn, and their volumes."""
    for path in {Claim.VOLUME: (_VOLUME_CLAIMS, _VOLUMES), Claim.DEVICE: (_DEVICE_CLAIMS,)}.get(claim, ()):
        listed = iter((await api.get(path))["items"])
        await asyncio.gather(*(_release(api, path, listed) for _ in range(api_server.CREATING)))
        await api.ask("DELETE", path, timeout_seconds=_PATIENCE_SECONDS)


async def _release(api: KubeApi, path: str, items: Iterator[Object]) -> None:
    for item in items:
        if item["metadata"].get("finalizers"):
            await _patch(api, f"{path}/{item['metadata']['name']}", {"metadata": {"finalizers": None}})


async def _provision(api: KubeApi, claim: Object) -> None:
    metadata, spec = claim["metadata"], claim["spec"]
    volume = f"pv-{metadata['uid']}"
    at = {
        "key": "kubernetes.io/hostname",
        "operator": "In",
        "values": [metadata["annotations"][_SELECTED_NODE]],
    }
    of_volume = {
        "capacity": spec["resources"]["requests"],
        "accessModes": spec["accessModes"],
        "storageClassName": spec["storageClassName"],
        "csi": {"driver": _DRIVER, "volumeHandle": volume},
        "claimRef": {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            **{key: metadata[key] for key in ("namespace", "name", "uid")},
        },
        "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [at]}]}},
    }
    await api_server.create(api, _VOLUMES, {"metadata": {"name": volume}, "spec": of_volume})
    bound = {"metadata": {"annotations": {_BIND_COMPLETED: "yes"}}, "spec": {"volumeName": volume}}
    await _patch(api, f"{_VOLUME_CLAIMS}/{metadata['name']}", bound)


async def _patch(api: KubeApi, path: str, body: Object) -> None:
    reply = await api.send("PATCH", path, body, content_type=MERGE_PATCH, timeout_seconds=_PATIENCE_SECONDS)
    if not reply.done:
        raise HossError(f"{path} cannot be changed: {reply.status} {reply.message}")


def _volume_claim(name: str) -> Object:
    spec = {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": _CLASS,
        "resources": {"requests": {"storage": "1Gi"}},
    }
    return {"metadata": {"name": name}, "spec": spec}


def _device_claim(name: str) -> Object:
    requests = [{"name": "one", "exactly": {"deviceClassName": _CLASS}}]
    return {"metadata": {"name": name}, "spec": {"devices": {"requests": requests}}}


def _slice(node: str, devices: int) -> Object:
    spec = {
        "driver": _DRIVER,
        "nodeName": node,
        "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": f"d{number}"} for number in range(devices)],
    }
    return {"metadata": {"name": node}, "spec": spec}
