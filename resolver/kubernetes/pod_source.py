"""Where the binding webhook learns what a pod asks for: from a watch, or from the API server.

Pods of one controller are alike, and to parse one takes longer than to check it, so parsed requests are
cached."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import orjson

from hoss.errors import TransportError
from hoss.kube.api import KubeApi, Object, Refused
from hoss.kube.paths import pod_path
from hoss.kube.reflector import Change, ObjectGone
from hoss.manifests.devices import (
    ExtendedClaimStatus,
    is_extended_resource,
    read_extended_claim_status,
    read_pod_claims,
)
from hoss.manifests.fields import mapping
from hoss.manifests.pod import read_pod_template
from hoss.manifests.volumes import CLAIM_SOURCES, DISK_SOURCES, read_pod_volumes
from hoss.model.devices import ClaimUse, PodClaims, ResourceClaim
from hoss.model.pod import PodGroup, PodSpec
from hoss.model.pod import group_of as group_of_spec
from hoss.model.resources import DEVICE_RESOURCE
from hoss.wire.convert_rules import definition_of
from hoss.wire.uids import uid_from_text
from resolver.core.values import Group
from resolver.messages.proposals import group_of

_CACHED = 4096

# Fields in which otherwise equal pods differ (each has a token volume of its own) and that request nothing.
_OF_ONE_POD = frozenset({"volumes", "hostname"})
_OF_ONE_CONTAINER = frozenset({"volumeMounts", "env"})
# Of a pod's status: the names of claims that were made for it.
_ABOUT_CLAIMS = ("resourceClaimStatuses", "extendedResourceClaimStatus")
_NAMED_SOURCES = CLAIM_SOURCES | DISK_SOURCES


@dataclass(frozen=True, slots=True)
class PodDemand:
    """What a pod to be bound asks for. It tolerates cordons: those are its scheduler's business."""

    spec: PodSpec
    group: Group  # without volumes and devices
    extended: ExtendedClaimStatus | None = None

    def having(self, device_claims: Mapping[str, ResourceClaim]) -> "PodDemand":
        """What it asks for with these claims: extended resources that it has as devices are no amounts of the
        node. The status of a pod may name a claim of an earlier attempt, which is gone."""
        made = None if self.extended is None else device_claims.get(self.extended.claim)
        if self.extended is None or made is None or made.allocation is None:
            return self
        requests = tuple(amount for amount in self.spec.requests if amount[0] not in self.extended.resources)
        cards = None if DEVICE_RESOURCE in self.extended.resources else self.spec.devices
        return replace(self, spec=replace(self.spec, requests=requests, devices=cards))

    @property
    def group_model(self) -> PodGroup:
        """The group with the pod's volumes."""
        return replace(group_of_spec(self.spec), tolerates_cordon=True)


def takes_names(pod: Object) -> bool:
    """Whether a pod may have volumes or devices for which pods compete by name."""
    spec = pod["spec"]
    volumes = spec.get("volumes") or ()
    if _extended_status(pod):
        return True
    return bool(spec.get("resourceClaims")) or not all(_NAMED_SOURCES.isdisjoint(v) for v in volumes)


def may_have_devices(pod: Object) -> bool:
    """Whether a scheduler may have given the pod devices for its extended resources since it was read."""
    return not _extended_status(pod) and any(
        is_extended_resource(resource)
        for kind in ("containers", "initContainers")
        for container in pod["spec"].get(kind) or ()
        for resource in (container.get("resources") or {}).get("requests") or ()
    )


def _extended_status(pod: Object) -> object:
    return (pod.get("status") or {}).get("extendedResourceClaimStatus")


class DemandCache:
    """A cache of the demands of pods."""

    def __init__(self) -> None:
        self._pods: dict[bytes, PodDemand] = {}

    def of(self, pod: Object, namespace: str) -> PodDemand:
        """The demand of a pod from the API server. Raises InvalidInput if its requests cannot be read."""
        metadata, spec = mapping(pod, "metadata", "pod"), mapping(pod, "spec", "pod")
        labels: Object = {"labels": metadata.get("labels") or {}}
        key = orjson.dumps((namespace, labels, _essence(spec)))
        demand = self._pods.get(key)
        if demand is None:
            read = read_pod_template(labels, spec, "pod", namespace=namespace).spec
            demand = PodDemand(
                read, group_of(definition_of(replace(group_of_spec(read), tolerates_cordon=True)))
            )
            if len(self._pods) >= _CACHED:
                self._pods.clear()
            self._pods[key] = demand
        return _with_names(demand, pod) if takes_names(pod) else demand


def _with_names(demand: PodDemand, pod: Object) -> PodDemand:
    metadata, spec, status = pod["metadata"], pod["spec"], mapping(pod, "status", "pod")
    claims, extended = None, read_extended_claim_status(status)
    if spec.get("resourceClaims") or extended is not None:
        found = read_pod_claims(metadata, spec, status, "pod.spec")
        uses = () if found is None else found.uses
        if extended is not None:
            uses = (*uses, ClaimUse(extended.claim))
        claims = PodClaims(metadata["name"], metadata["uid"], uses)
    volumes = read_pod_volumes(metadata, spec, "pod.spec")
    return replace(demand, spec=replace(demand.spec, volumes=volumes, claims=claims), extended=extended)


def _essence(spec: Object) -> Object:
    essence = {name: value for name, value in spec.items() if name not in _OF_ONE_POD}
    for kind in ("containers", "initContainers"):
        containers = essence.get(kind)
        if isinstance(containers, list):
            essence[kind] = [_without_its_own(container) for container in containers]
    return essence


def _without_its_own(container: object) -> object:
    if not isinstance(container, dict):
        return container
    return {name: value for name, value in container.items() if name not in _OF_ONE_CONTAINER}


def pods_of_other_schedulers(own: Sequence[str]) -> dict[str, str]:
    """Parameters of a watch of pods that other schedulers are about to bind. Pods of our `own` schedulers
    pass by their reservations, so nobody reads them."""
    return {"fieldSelector": ",".join(["spec.nodeName=", *(f"spec.schedulerName!={name}" for name in own)])}


class PodSource(Protocol):
    """The pods, as the webhook needs them."""

    def cached(self, namespace: str, name: str, uid: bytes) -> Object | None:
        """`find` without a request, for the expected pod only; None: a request is needed."""

    async def find(self, namespace: str, name: str, uid: bytes) -> Object | None:
        """The pod that has the name now, as a Kubernetes object; None: there is none. `uid`: the expected
        pod, or empty. Another pod is returned only if it is the latest. Raises TransportError if that is
        unknown."""

    async def latest(self, namespace: str, name: str) -> Object | None:
        """The pod as it is at this moment; None: there is none. Raises TransportError if that is unknown."""

    async def on_node(self, node: str) -> list[Object]:
        """The pods that take room on a node, as Kubernetes objects. Raises TransportError if that is
        unknown."""


class KubePods:
    """Pods read one by one from the API server."""

    def __init__(self, api: KubeApi, *, patience_seconds: float) -> None:
        self._api = api
        self._patience_seconds = patience_seconds

    def cached(self, namespace: str, name: str, uid: bytes) -> None:  # noqa: ARG002 - has no cache
        return None

    async def find(self, namespace: str, name: str, uid: bytes) -> Object | None:
        # A read from the server's cache costs the server next to nothing, but may be some milliseconds
        # behind. If the pod is missing there, a second read goes to etcd.
        pod = await self._get(namespace, name, {"resourceVersion": "0"})
        if pod is not None and (not uid or uid_from_text(str(pod["metadata"]["uid"])) == uid):
            return pod
        return await self._get(namespace, name, {})

    async def latest(self, namespace: str, name: str) -> Object | None:
        return await self._get(namespace, name, {})

    async def on_node(self, node: str) -> list[Object]:
        living = f"spec.nodeName={node},status.phase!=Succeeded,status.phase!=Failed"
        # The latest state: what the server's cache does not show yet would lose its room to another pod.
        pods = await self._read("/api/v1/pods", {"fieldSelector": living})
        found: list[Object] = (pods or {}).get("items") or []
        return found

    async def _get(self, namespace: str, name: str, params: dict[str, str]) -> Object | None:
        return await self._read(pod_path(namespace, name), params)

    async def _read(self, path: str, params: dict[str, str]) -> Object | None:
        try:
            return await self._api.find(path, params, patience_seconds=self._patience_seconds)
        except Refused as refused:
            raise TransportError(str(refused)) from refused


class _WatchedPod(NamedTuple):
    uid: str
    text: bytes  # metadata and spec as JSON: a tenth of the memory that objects take


class WatchedPods:
    """Pods from a watch; another source has the rest. Saves the API server a request per binding, and the
    binding its time."""

    def __init__(self, others: PodSource) -> None:
        self._others = others
        self._pods: dict[tuple[str, str], _WatchedPod] = {}

    def on_changes(self, changes: Sequence[Change]) -> None:
        """Handle changes of a reflector with `pods_of_other_schedulers`. A bound pod leaves that watch."""
        for change in changes:
            if isinstance(change, ObjectGone):
                gone = self._pods.get((change.namespace, change.name))
                if gone is not None and gone.uid == change.uid:
                    del self._pods[change.namespace, change.name]
                continue
            metadata = {
                name: value for name, value in change.object["metadata"].items() if name != "managedFields"
            }
            known = {"metadata": metadata, "spec": change.object["spec"]}
            status = change.object.get("status", {})
            if made := {name: status[name] for name in _ABOUT_CLAIMS if status.get(name)}:
                known["status"] = made
            text = orjson.dumps(known)
            self._pods[metadata["namespace"], metadata["name"]] = _WatchedPod(metadata["uid"], text)

    def cached(self, namespace: str, name: str, uid: bytes) -> Object | None:
        known = self._pods.get((namespace, name))
        if known is None or not uid or uid_from_text(known.uid) != uid:
            return self._others.cached(namespace, name, uid)
        pod: Object = orjson.loads(known.text)
        return pod

    async def find(self, namespace: str, name: str, uid: bytes) -> Object | None:
        return self.cached(namespace, name, uid) or await self._others.find(namespace, name, uid)

    async def latest(self, namespace: str, name: str) -> Object | None:
        return await self._others.latest(namespace, name)

    async def on_node(self, node: str) -> list[Object]:
        return await self._others.on_node(node)
