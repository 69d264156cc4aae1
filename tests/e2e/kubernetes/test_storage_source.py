"""All sources of volumes and devices, held to one contract: the API server, and the dictionaries that stand
in for it elsewhere."""

import asyncio
import random
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from e2e.kubernetes.api import Api
from e2e.kubernetes.devices import DRIVER, SHAREABLE, Devices
from e2e.kubernetes.storage import PROVISIONER, Storage, mounting
from storage_in_memory import StorageInMemory
from waiting import DEADLINE_SECONDS, until

from hoss.errors import TransportError
from hoss.kube.access import load_access
from hoss.kube.api import KubeApi
from hoss.manifests.volumes import read_pod_volumes
from hoss.model.devices import Allocation, ClaimUse, DeviceId, DeviceResult, HeldClaim, PodClaims
from hoss.model.quantity import parse_quantity
from hoss.model.volumes import CsiVolume
from hoss.tasks import background
from hossctl.local.control_plane import ControlPlane
from resolver.core.kubernetes.held_view import HeldView
from resolver.kubernetes.storage_source import ClusterStorage, StorageSource

SHARE = "1c1b4a3e-0e62-4b1f-9a0c-6a3b8f7d2e51"  # the API server wants a UID


class Source:
    """A source, and how objects get into it."""

    def __init__(self, source: StorageSource, storage: Any, devices: Any) -> None:
        self.source, self.storage, self.devices = source, storage, devices


class InMemory:
    """Puts into the dictionaries what `Storage` and `Devices` make at an API server."""

    def __init__(self, source: StorageInMemory) -> None:
        self._source = source

    def create_volume(self, name: str) -> None:
        self._source.put(
            "PersistentVolume", name, spec={"csi": {"driver": PROVISIONER, "volumeHandle": name}}
        )

    def create_claim(self, name: str, *, modes: tuple[str, ...] = ()) -> None:
        self._source.put("PersistentVolumeClaim", name, spec={"accessModes": list(modes)})
        self._source.put("ResourceClaim", name)

    def bind(self, claim: str, volume: str) -> None:
        annotations = {"pv.kubernetes.io/bind-completed": "yes"}
        self._source.put(
            "PersistentVolumeClaim", claim, metadata={"annotations": annotations}, spec={"volumeName": volume}
        )

    def limit(self, node: str, count: int) -> None:
        driver = {"name": PROVISIONER, "allocatable": {"count": count}}
        self._source.put("CSINode", node, spec={"drivers": [driver]})

    def attach(self, volume: str, node: str) -> None:
        spec = {"attacher": PROVISIONER, "nodeName": node, "source": {"persistentVolumeName": volume}}
        self._source.put("VolumeAttachment", "csi-1", spec=spec)

    def detach(self) -> None:
        self._source.remove("VolumeAttachment", "csi-1")

    def give(self, claim: str, node: str, device: str, **given: Any) -> None:
        result = {"request": "one", "driver": DRIVER, "pool": node, "device": device, **given}
        self._source.put("ResourceClaim", claim, status={"allocation": {"devices": {"results": [result]}}})

    def free(self, claim: str) -> None:
        self._source.put("ResourceClaim", claim)

    def publish(self, node: str, device: Any) -> None:
        pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": DRIVER, "nodeName": node, "pool": pool, "devices": [device]}
        self._source.put("ResourceSlice", node, spec=spec)

    def create_class(self) -> None:
        """Nobody asks for classes."""


@pytest_asyncio.fixture(params=["API server", "memory"])
async def source(request: pytest.FixtureRequest) -> AsyncIterator[Source]:
    if request.param == "memory":
        memory = StorageInMemory()
        yield Source(memory, InMemory(memory), InMemory(memory))
        return
    api: Api = request.getfixturevalue("api")
    plane: ControlPlane = request.getfixturevalue("control_plane")
    storage, devices = Storage(api), Devices(api)
    storage.clear()
    devices.clear()
    api.create_node("n1")
    storage.limit("n1", 7)
    client = KubeApi(load_access(plane.kubeconfig))
    found = ClusterStorage(client, patience_seconds=10.0, clock=time.monotonic, rng=random.Random(1))
    async with background(*(reflector.run() for reflector in found.reflectors)):
        for reflector in found.reflectors:
            await asyncio.wait_for(reflector.complete.wait(), DEADLINE_SECONDS)
        yield Source(found, storage, devices)
    storage.clear()
    devices.clear()
    await client.close()


def _volumes(*claims: str) -> Any:
    return read_pod_volumes({}, {"volumes": mounting(*claims)}, "spec")


def _claims(name: str) -> PodClaims:
    return PodClaims("p", "uid", (ClaimUse(name),))


async def test_a_claim_and_its_volume_are_known_the_moment_they_are_bound(source: Source) -> None:
    for number in range(3):
        name = f"data-{number}"
        source.storage.create_volume(f"pv-{name}")
        source.storage.create_claim(name, modes=("ReadWriteOncePod",))
        view = await source.source.storage_for("default", _volumes(name))
        assert view.claim("default", name).access_modes == ("ReadWriteOncePod",)
        assert not view.claim("default", name).bound
        source.storage.bind(name, f"pv-{name}")
        view = await source.source.storage_for("default", _volumes(name))
        assert view.claim("default", name).volume_name == f"pv-{name}"
        assert view.volume(f"pv-{name}").csi == CsiVolume(PROVISIONER, f"pv-{name}")


async def test_claims_that_do_not_exist_are_none_and_nothing_fails(source: Source) -> None:
    view = await source.source.storage_for("default", _volumes("nowhere"))
    assert view.claim("default", "nowhere") is None
    assert view.volume("nowhere") is None
    assert await source.source.device_claims("default", _claims("nowhere")) == {}


async def test_drivers_with_a_limit_are_known_by_node(source: Source) -> None:
    if isinstance(source.storage, InMemory):
        source.storage.limit("n1", 7)
    view = await source.source.storage_for("default", _volumes("any"))
    assert view.csi_node("n1").limits == ((PROVISIONER, 7),)
    assert view.csi_node("n2") is None
    assert len(source.source) >= 1


async def test_volumes_that_are_attached_to_a_node_are_known_until_they_are_detached(source: Source) -> None:
    source.storage.create_volume("pv-left")
    source.storage.attach("pv-left", "n1")
    view = await source.source.storage_for("default", _volumes("any"))
    await until(lambda: list(view.attachments("n1")), "the attachment is known")
    [attachment] = view.attachments("n1")
    assert (attachment.attacher, attachment.volume_name) == (PROVISIONER, "pv-left")
    assert list(view.attachments("n2")) == []
    source.storage.detach()
    await until(lambda: not list(view.attachments("n1")), "the attachment is gone")


async def test_devices_are_known_the_moment_a_claim_has_them(source: Source) -> None:
    source.devices.create_class()
    source.devices.create_claim("gpus")
    claims = _claims("gpus")
    assert (await source.source.device_claims("default", claims))["gpus"].allocation is None
    source.devices.give("gpus", "n1", "gpu-0")
    found = (await source.source.device_claims("default", claims))["gpus"].allocation
    assert found is not None
    assert [(result.id.pool, result.id.device) for result in found.results] == [("n1", "gpu-0")]


async def test_what_shared_devices_have_left_follows_slices_and_claims(source: Source) -> None:
    source.devices.create_class()
    source.devices.publish("n1", SHAREABLE)
    shared = source.source.shared_devices

    def lack(memory: str) -> str:
        """Of a claim that nobody has seen."""
        device = DeviceId(DRIVER, "n1", "gpu-0")
        result = DeviceResult("one", device, shared=True, consumed=(("memory", parse_quantity(memory)),))
        return shared.lack([HeldClaim("default", "new", Allocation((result,)))], HeldView(1))

    async def become(memory: str, expected: str) -> None:
        await until(lambda: lack(memory) == expected, lambda: lack(memory))

    await become("81Gi", f"device {DRIVER}/n1/gpu-0 has 80Gi and not 81Gi left of capacity memory")
    source.devices.create_claim("gpus")
    source.devices.give("gpus", "n1", "gpu-0", consumedCapacity={"memory": "50Gi"}, shareID=SHARE)
    await become("40Gi", f"device {DRIVER}/n1/gpu-0 has 30Gi and not 40Gi left of capacity memory")
    source.devices.free("gpus")
    await become("40Gi", "")


async def test_volumes_that_are_not_listed_yet_are_no_answer(own_control_plane: ControlPlane) -> None:
    own_control_plane.kill("kube-apiserver")
    client = KubeApi(load_access(own_control_plane.kubeconfig))
    found = ClusterStorage(client, patience_seconds=0.3, clock=time.monotonic, rng=random.Random(1))
    with pytest.raises(TransportError):
        await found.storage_for("default", _volumes("data"))
    with pytest.raises(TransportError):
        await found.device_claims("default", _claims("gpus"))
    await client.close()
