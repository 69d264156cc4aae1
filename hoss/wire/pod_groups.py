"""Groups of pods between the model and hoss.v1: a few of them, many times, so each is converted once."""

from functools import lru_cache

from hoss.model.pod import HostPort
from hoss.model.pod_groups import PodGroup
from hoss.v1 import common_pb2
from hoss.v1.resolver_pb2 import PodGroup as PodGroupMessage
from hoss.wire.convert import labels_from_proto, labels_to_proto
from hoss.wire.convert_rules import (
    affinity_from_proto,
    affinity_to_proto,
    constraint_from_proto,
    constraint_to_proto,
)

_EVERY_ADDRESS = "0.0.0.0"  # noqa: S104 - Kubernetes' word, nothing is bound here


@lru_cache(maxsize=4096)
def definition_of(group: PodGroup) -> bytes:
    """The group's PodGroup message. Pods that are being deleted are never proposed, so nothing says so."""
    message = PodGroupMessage(
        namespace=group.namespace,
        labels=labels_to_proto(group.labels),
        host_ports=[common_pb2.HostPort(host_ip=p.host_ip, protocol=p.protocol, port=p.port) for p in group.host_ports],
    )
    if group.affinity is not None:
        message.affinity.CopyFrom(affinity_to_proto(group.affinity))
    message.spread.extend(map(constraint_to_proto, group.spread))
    message.tolerates_cordon = group.tolerates_cordon
    if any(group.excess):
        cpu_milli, memory_bytes = group.excess
        message.excess.CopyFrom(common_pb2.CpuAndMemory(cpu_milli=cpu_milli, memory_bytes=memory_bytes))
    return message.SerializeToString(deterministic=True)


@lru_cache(maxsize=4096)
def group_defined(definition: bytes) -> PodGroup:
    """The group of a PodGroup message."""
    message = PodGroupMessage.FromString(definition)
    return PodGroup(
        namespace=message.namespace,
        labels=labels_from_proto(message.labels),
        affinity=affinity_from_proto(message.affinity) if message.HasField("affinity") else None,
        host_ports=tuple(
            HostPort(p.port, p.protocol or "TCP", p.host_ip or _EVERY_ADDRESS) for p in message.host_ports
        ),
        spread=tuple(map(constraint_from_proto, message.spread)),
        tolerates_cordon=message.tolerates_cordon,
        excess=(message.excess.cpu_milli, message.excess.memory_bytes),
    )
