"""Names of what several pods compete for: volumes, attachments and devices (docs/adr/0057-volumes.md).

A proposal carries the names of what its pod takes. The ledger refuses it if a pod that its author did not
know has taken an equal name since. So everybody who reserves has to form a name in the same way."""

from hoss.model.devices import DeviceId
from hoss.model.volumes import InlineDisk


def claim_for_one_pod(namespace: str, claim: str) -> str:
    """A claim with access mode ReadWriteOncePod."""
    return f"claim/{namespace}/{claim}"


def disk_on_node(node: str, disk: InlineDisk) -> str:
    """A disk that pods name themselves, on the node that mounts it."""
    return f"disk/{node}/{disk.kind}/{'/'.join(disk.names)}"


def attachments(node: str, driver: str) -> str:
    """The volumes that a driver has attached to a node, of which there is a most."""
    return f"attachments/{node}/{driver}"


def claim_binding(namespace: str, claim: str) -> str:
    """The choice of a volume for a claim that waited for its first consumer."""
    return f"binding/{namespace}/{claim}"


def chosen_volume(volume: str) -> str:
    """A volume that such a claim gets."""
    return f"volume/{volume}"


def resource_claim(namespace: str, claim: str) -> str:
    """The choice of devices for a resource claim."""
    return f"resourceclaim/{namespace}/{claim}"


def device(identity: DeviceId) -> str:
    """A device of a resource claim."""
    return f"device/{identity}"


def counters(driver: str, pool: str, counter_set: str) -> str:
    """Amounts that devices of a pool share."""
    return f"counters/{driver}/{pool}/{counter_set}"
