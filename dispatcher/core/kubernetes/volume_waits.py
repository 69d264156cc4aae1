"""Kubernetes mode: which reserved pods must have their volumes bound before they are bound themselves, and
what is to be done for them (kube-scheduler's PreBind of VolumeBinding). A resolver writes what the pod's
worker chose. The controller manager and provisioners do the rest, and the informers show it here.

A wait ends when its pod is bound, refused or gone, and at the latest after the time limit."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from types import MappingProxyType
from typing import NamedTuple

from dispatcher.core.cluster.storage import StorageObjects
from hoss.model.pod import PodSpec
from hoss.model.volume_topology import affinity_on
from hoss.model.volumes import PersistentVolumeClaim

_PLUGIN = 'running PreBind plugin "VolumeBinding": binding volumes'
_TIMED_OUT = "context deadline exceeded"

ClaimKey = tuple[str, str]  # namespace and name


class VolumeStep(IntEnum):
    """What a resolver is to do before it binds a pod. Numbered as hoss.v1.VolumeStep, which has no WAIT."""

    WAIT = -1  # nothing: it has done its part
    BOUND_ALREADY = 0
    BIND = 1
    UNDO = 2
    CHECK = 3


class VolumeJudgement(NamedTuple):
    """The next step for a pod. `reason`: why its volumes cannot be bound, with UNDO. `versions`: by name the
    claims that were last seen to ask for no node yet, with BIND."""

    step: VolumeStep
    reason: str = ""
    versions: Mapping[str, str] = MappingProxyType({})


READY = VolumeJudgement(VolumeStep.BOUND_ALREADY)
_CHECK = VolumeJudgement(VolumeStep.CHECK)
_WAIT = VolumeJudgement(VolumeStep.WAIT)


class PlacedPod(NamedTuple):
    """A reserved pod, and its node as the feed last described it."""

    uid: bytes
    spec: PodSpec
    node: str
    node_labels: Mapping[str, str]
    timeout_seconds: float | None = None  # by the profile of its worker; None: it does not say


@dataclass(slots=True)
class _Wait:
    begun: float
    node: str
    claims: tuple[ClaimKey, ...]
    written_at: float | None = None  # when a resolver last said that all is written
    selected: set[ClaimKey] = field(default_factory=set)  # claims that were seen to name the pod's node
    reason: str = ""  # why it is being undone


class VolumeWaits:
    """By UID, the pods whose volumes are being bound."""

    def __init__(self, storage: StorageObjects, *, timeout_seconds: float, repeat_seconds: float) -> None:
        """`timeout_seconds`: kube-scheduler's bindTimeoutSeconds, unless the pod has another.
        `repeat_seconds`: when a resolver is to look again that all is written."""
        self._repeat_seconds = repeat_seconds
        self._storage = storage
        self._timeout_seconds = timeout_seconds
        self._waits: dict[bytes, _Wait] = {}
        self._by_claim: dict[ClaimKey, dict[bytes, None]] = {}

    def __len__(self) -> int:
        return len(self._waits)

    def judge(self, pod: PlacedPod, now: float) -> VolumeJudgement:
        """The next step for the pod, as of `now`. The pod waits from the first step that is not READY until
        `forget`."""
        mounts = () if pod.spec.volumes is None else pod.spec.volumes.claims
        if not mounts:
            return READY
        keys = tuple((pod.spec.namespace, mount.claim) for mount in mounts)
        wait = self._waits.get(pod.uid)
        if wait is not None and wait.reason:
            return VolumeJudgement(VolumeStep.UNDO, wait.reason)
        reason = self._problem(pod, keys, wait)
        claims = [self._storage.claim(*key) for key in keys]
        if not reason and all(claim is not None and claim.bound for claim in claims):
            return READY
        if wait is None:
            wait = self._waits[pod.uid] = _Wait(now, pod.node, keys)
            for key in keys:
                self._by_claim.setdefault(key, {})[pod.uid] = None
        limit = self._timeout_seconds if pod.timeout_seconds is None else pod.timeout_seconds
        if not reason and now - wait.begun >= limit:
            reason = _TIMED_OUT
        if reason:
            wait.reason = f"{_PLUGIN}: {reason}"
            return VolumeJudgement(VolumeStep.UNDO, wait.reason)
        self._note_selected(wait, keys)
        if wait.written_at is None:
            free = [c for c in claims if c is not None and not c.volume_name and not c.selected_node]
            return VolumeJudgement(VolumeStep.BIND, versions={claim.name: claim.version for claim in free})
        # A provisioner may give up so soon that the informers never show the claim with its node.
        return _WAIT if now - wait.written_at < self._repeat_seconds else _CHECK

    def written(self, uid: bytes, now: float) -> None:
        """A resolver has written all that the pod's claims need."""
        if (wait := self._waits.get(uid)) is not None:
            wait.written_at = now

    def changed(self, claims: Iterable[ClaimKey]) -> list[bytes]:
        """These claims changed, or went. Returns the pods that wait for any of them."""
        found: dict[bytes, None] = {}
        for key in claims:
            for uid in self._by_claim.get(key, ()):
                found[uid] = None
                self._note_selected(self._waits[uid], (key,))
        return list(found)

    def forget(self, uid: bytes) -> None:
        """The pod's wait is over."""
        wait = self._waits.pop(uid, None)
        for key in () if wait is None else wait.claims:
            waiting = self._by_claim.get(key, {})
            waiting.pop(uid, None)
            if not waiting:
                self._by_claim.pop(key, None)

    def _note_selected(self, wait: _Wait, keys: Iterable[ClaimKey]) -> None:
        for key in keys:
            claim = self._storage.claim(*key)
            if claim is not None and claim.selected_node == wait.node:
                wait.selected.add(key)

    def _problem(self, pod: PlacedPod, keys: tuple[ClaimKey, ...], wait: _Wait | None) -> str:
        """Why the pod cannot get its volumes on its node, as kube-scheduler's checkBindings says it."""
        for key in keys:
            claim = self._storage.claim(*key)
            if claim is None:
                return f'failed to check binding: persistentvolumeclaim "{key[1]}" not found'
            if claim.volume_name and (problem := self._unreachable(claim, pod)):
                return problem
            lost = wait is not None and key in wait.selected and claim.selected_node != pod.node
            if lost and not claim.bound:
                return f'provisioning failed for PVC "{claim.name}"'
        return ""

    def _unreachable(self, claim: PersistentVolumeClaim, pod: PlacedPod) -> str:
        volume = self._storage.volume(claim.volume_name)
        if volume is None:
            return ""
        affinity = affinity_on(volume, self._storage.csi_node(pod.node))
        if affinity is None or affinity.matches(pod.node_labels, ""):
            return ""
        return (
            f'pv "{volume.name}" node affinity doesn\'t match node "{pod.node}": no matching'
            " NodeSelectorTerms"
        )
