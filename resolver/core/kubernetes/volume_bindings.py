"""How the claims of a pod get the volumes that its worker chose, before the pod is bound (kube-scheduler's
PreBind of VolumeBinding): what is written to the API server, and what its objects show. Objects are as the
API server stores them.

A volume is reserved by its claimRef; the cluster's controller manager then binds claim and volume. A volume
is provisioned because its claim names the pod's node in an annotation; a provisioner that fails removes
it."""

from typing import Any

from hoss.manifests.fields import Object

SELECTED_NODE = "volume.kubernetes.io/selected-node"
_BIND_COMPLETED = "pv.kubernetes.io/bind-completed"
_BOUND_BY_CONTROLLER = "pv.kubernetes.io/bound-by-controller"

_PLUGIN = 'running PreBind plugin "VolumeBinding"'


class VolumeRefused(Exception):  # noqa: N818 - says what happened
    """The claims of a pod cannot get the volumes that were chosen, in kube-scheduler's words."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"{_PLUGIN}: {reason}")


def unselected(name: str, version: str) -> Object:
    """What matters of a claim that names no volume and no node at this resourceVersion."""
    return {"metadata": {"name": name, "resourceVersion": version}, "spec": {}}


def is_bound(claim: Object) -> bool:
    """Whether the claim has its volume for good (kube-scheduler's isPVCFullyBound)."""
    return bool(claim["spec"].get("volumeName")) and _BIND_COMPLETED in _annotations(claim)


def reserving_patch(volume: Object, claim: Object, *, written: bool = False) -> dict[str, Any] | None:
    """The merge patch that reserves the volume for the claim; None: it is reserved already. Raises
    VolumeRefused if it is another claim's (GetBindVolumeToClaim), or was reserved (`written`) and is not."""
    metadata, held = claim["metadata"], volume["spec"].get("claimRef") or {}
    own = (held.get("namespace"), held.get("name")) == (metadata["namespace"], metadata["name"])
    if held and not (own and held.get("uid", "") in ("", metadata["uid"])):
        raise VolumeRefused(f'volume "{volume["metadata"]["name"]}" already bound to a different claim.')
    if held.get("uid"):
        return None
    if written:
        raise VolumeRefused(f'binding volumes: ClaimRef got reset for pv "{volume["metadata"]["name"]}"')
    reference = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "namespace": metadata["namespace"],
        "name": metadata["name"],
        "uid": metadata["uid"],
        "resourceVersion": metadata["resourceVersion"],
    }
    # A volume that its owner reserved beforehand keeps its claimRef when the claim goes: no annotation.
    annotations = {} if held else {_BOUND_BY_CONTROLLER: "yes"}
    return _patch(volume, annotations) | {"spec": {"claimRef": reference}}


def selecting_patch(claim: Object, node: str, *, written: bool = False) -> dict[str, Any] | None:
    """The merge patch that asks for a volume for this node; None: it is asked for already. Raises
    VolumeRefused if one for another node is, or if it was asked for (`written`) and the provisioner gave
    up."""
    selected = _annotations(claim).get(SELECTED_NODE, "")
    if selected == node:
        return None
    if selected or written:
        raise VolumeRefused(f'binding volumes: provisioning failed for PVC "{claim["metadata"]["name"]}"')
    return _patch(claim, {SELECTED_NODE: node})


def unselecting_patch(claim: Object, node: str) -> dict[str, Any] | None:
    """The merge patch that takes back what `selecting_patch` asked for; None: there is nothing to take
    back."""
    if is_bound(claim) or _annotations(claim).get(SELECTED_NODE, "") != node:
        return None
    return _patch(claim, {SELECTED_NODE: None})


def _annotations(item: Object) -> dict[str, str]:
    return item["metadata"].get("annotations") or {}


def _patch(item: Object, annotations: dict[str, Any]) -> dict[str, Any]:
    """Of this very object in this very state: the API server answers 409 if it has changed."""
    same = {key: item["metadata"][key] for key in ("uid", "resourceVersion") if key in item["metadata"]}
    return {"metadata": same | ({"annotations": annotations} if annotations else {})}
