"""What policies match on, read from a class's bytes. Decoding all of a class would take three times as long."""

from dispatcher.core.policy import ClassFacts
from hoss.model.fit import WHOLE_CARD_MILLI
from hoss.model.resources import DEVICE_SHARE_RESOURCE
from hoss.v1 import common_pb2

_read = common_pb2.PodSpec.FromString


def facts_from_bytes(spec: bytes) -> ClassFacts:
    """The same as `facts_of_spec` of the decoded class."""
    message = _read(spec)
    resources = [amount.resource for amount in message.requests if amount.amount > 0]
    if message.HasField("devices") and message.devices.milli < WHOLE_CARD_MILLI:
        resources.append(DEVICE_SHARE_RESOURCE)
    labels = {label.key: label.value for label in message.labels}
    return message.namespace, labels, message.priority, tuple(resources)
