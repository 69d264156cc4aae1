"""Converts selectors, rules about other pods, and pod groups between the model and hoss.v1.

Most pods have no such rules. Pod groups are few and frequent: each is converted once and cached."""

import hashlib
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from google.protobuf.message import DecodeError, Message

from hoss.errors import ColumnError
from hoss.model.pod import (
    EVERY_ADDRESS,
    HostPort,
    PodAffinity,
    PodAffinityTerm,
    PodGroup,
    PodSpec,
    SpreadConstraint,
    WeightedPodTerm,
)
from hoss.model.volumes import ClaimMount, EphemeralOwner, InlineDisk, PodVolumes
from hoss.v1 import common_pb2 as pb
from hoss.v1.resolver_pb2 import PodGroup as PodGroupMessage
from hoss.wire.convert_devices import (
    held_claim_from_proto,
    held_claim_to_proto,
    pod_claims_from_proto,
    pod_claims_to_proto,
)
from hoss.wire.convert_selectors import (
    labels_from_proto,
    labels_to_proto,
    optional,
    optional_selector_to_proto,
    selector_from_proto,
    selector_to_proto,
)

ModelT = TypeVar("ModelT")
MessageT = TypeVar("MessageT", bound=Message)


def host_ports_to_proto(ports: Iterable[HostPort]) -> list[pb.HostPort]:
    return [pb.HostPort(host_ip=p.host_ip, protocol=p.protocol, port=p.port) for p in ports]


def host_ports_from_proto(ports: Iterable[pb.HostPort]) -> tuple[HostPort, ...]:
    return tuple(HostPort(p.port, p.protocol or "TCP", p.host_ip or EVERY_ADDRESS) for p in ports)


def write_rules(spec: PodSpec, message: pb.PodSpec) -> None:
    """Set the message's fields for other pods, images, gates and features. Defaults are not written."""
    if spec.pending_nonzero is not None:
        message.pending_nonzero.CopyFrom(_nonzero_to_proto(spec.pending_nonzero))
    if spec.pod_affinity is not None:
        message.pod_affinity.CopyFrom(affinity_to_proto(spec.pod_affinity))
    if spec.spread:
        message.spread.extend(map(constraint_to_proto, spec.spread))
    if spec.default_spread is not None:
        message.default_spread.CopyFrom(selector_to_proto(spec.default_spread))
    message.images.extend(spec.images)
    message.image_containers = spec.image_containers
    message.scheduling_gates.extend(spec.scheduling_gates)
    message.required_features.extend(spec.required_features)
    message.never_preempts = not spec.may_preempt
    if spec.volumes is not None:
        message.volumes.CopyFrom(_volumes_to_proto(spec.volumes))
    if spec.claims is not None:
        message.claims.CopyFrom(pod_claims_to_proto(spec.claims))


def read_rules(message: pb.PodSpec) -> dict[str, Any]:
    """The fields of PodSpec that `write_rules` writes."""
    return {
        "pending_nonzero": optional(message, "pending_nonzero", _nonzero_from_proto),
        "pod_affinity": optional(message, "pod_affinity", affinity_from_proto),
        "spread": tuple(map(constraint_from_proto, message.spread)),
        "default_spread": optional(message, "default_spread", selector_from_proto),
        "images": tuple(message.images),
        "image_containers": message.image_containers,
        "scheduling_gates": tuple(message.scheduling_gates),
        "required_features": tuple(message.required_features),
        "may_preempt": not message.never_preempts,
        "volumes": optional(message, "volumes", _volumes_from_proto),
        "claims": optional(message, "claims", pod_claims_from_proto),
    }


def affinity_to_proto(affinity: PodAffinity) -> pb.PodAffinity:
    return pb.PodAffinity(
        required=map(_term_to_proto, affinity.required),
        preferred=map(_weighted_to_proto, affinity.preferred),
        anti_required=map(_term_to_proto, affinity.anti_required),
        anti_preferred=map(_weighted_to_proto, affinity.anti_preferred),
    )


def affinity_from_proto(message: pb.PodAffinity) -> PodAffinity:
    return PodAffinity(
        required=tuple(map(_term_from_proto, message.required)),
        preferred=tuple(map(_weighted_from_proto, message.preferred)),
        anti_required=tuple(map(_term_from_proto, message.anti_required)),
        anti_preferred=tuple(map(_weighted_from_proto, message.anti_preferred)),
    )


def _weighted_to_proto(weighted: WeightedPodTerm) -> pb.WeightedPodTerm:
    return pb.WeightedPodTerm(weight=weighted.weight, term=_term_to_proto(weighted.term))


def _weighted_from_proto(message: pb.WeightedPodTerm) -> WeightedPodTerm:
    return WeightedPodTerm(message.weight, _term_from_proto(message.term))


def _term_to_proto(term: PodAffinityTerm) -> pb.PodAffinityTerm:
    return pb.PodAffinityTerm(
        topology_key=term.topology_key,
        selector=optional_selector_to_proto(term.selector),
        namespaces=term.namespaces,
        namespace_selector=optional_selector_to_proto(term.namespace_selector),
    )


def _term_from_proto(message: pb.PodAffinityTerm) -> PodAffinityTerm:
    return PodAffinityTerm(
        topology_key=message.topology_key,
        selector=optional(message, "selector", selector_from_proto),
        namespaces=tuple(message.namespaces),
        namespace_selector=optional(message, "namespace_selector", selector_from_proto),
    )


def constraint_to_proto(constraint: SpreadConstraint) -> pb.SpreadConstraint:
    return pb.SpreadConstraint(
        max_skew=constraint.max_skew,
        topology_key=constraint.topology_key,
        selector=optional_selector_to_proto(constraint.selector),
        schedule_anyway=not constraint.required,
        min_domains=constraint.min_domains,
        ignore_node_affinity=not constraint.honor_node_affinity,
        honor_taints=constraint.honor_taints,
    )


def constraint_from_proto(message: pb.SpreadConstraint) -> SpreadConstraint:
    return SpreadConstraint(
        max_skew=message.max_skew,
        topology_key=message.topology_key,
        selector=optional(message, "selector", selector_from_proto),
        required=not message.schedule_anyway,
        min_domains=message.min_domains,
        honor_node_affinity=not message.ignore_node_affinity,
        honor_taints=message.honor_taints,
    )


def _volumes_to_proto(volumes: PodVolumes) -> pb.PodVolumes:
    message = pb.PodVolumes(
        disks=[
            pb.InlineDisk(kind=d.kind, names=d.names, read_only=d.read_only, monitors=d.monitors)
            for d in volumes.disks
        ]
    )
    for mount in volumes.claims:
        written = message.claims.add(claim=mount.claim, volume=mount.volume, provisioned=mount.provisioned)
        if mount.owner is not None:
            written.owner.CopyFrom(pb.EphemeralOwner(name=mount.owner.name, uid=mount.owner.uid))
    return message


def _volumes_from_proto(message: pb.PodVolumes) -> PodVolumes:
    return PodVolumes(
        tuple(
            ClaimMount(
                m.claim,
                optional(m, "owner", lambda o: EphemeralOwner(o.name, o.uid)),
                m.volume,
                m.provisioned,
            )
            for m in message.claims
        ),
        tuple(InlineDisk(d.kind, tuple(d.names), d.read_only, tuple(d.monitors)) for d in message.disks),
    )


@lru_cache(maxsize=4096)
def definition_of(group: PodGroup) -> bytes:
    """The group's PodGroup message, without `deleting`: deleted pods are never proposed."""
    message = PodGroupMessage(
        namespace=group.namespace,
        labels=labels_to_proto(group.labels),
        host_ports=host_ports_to_proto(group.host_ports),
    )
    if group.affinity is not None:
        message.affinity.CopyFrom(affinity_to_proto(group.affinity))
    message.spread.extend(map(constraint_to_proto, group.spread))
    message.tolerates_cordon = group.tolerates_cordon
    if any(group.excess):
        message.excess.CopyFrom(_nonzero_to_proto(group.excess))
    if group.volumes is not None:
        message.volumes.CopyFrom(_volumes_to_proto(group.volumes))
    message.claims_devices = group.claims_devices
    message.held_claims.extend(map(held_claim_to_proto, group.held_claims))
    return message.SerializeToString(deterministic=True)


def group_key(definition: bytes) -> int:
    """The number under which the ledger has the group of this definition; never 0."""
    return int.from_bytes(hashlib.blake2b(definition, digest_size=8).digest(), "little") or 1


def definition_taking(definition: bytes, names: Sequence[str]) -> bytes:
    """The definition of a group with the names of what its pods take. Messages one after the other are one
    message with the fields of both."""
    return definition + PodGroupMessage(reserved_names=names).SerializeToString()


@lru_cache(maxsize=4096)
def definition_moved(definition: bytes, names: tuple[str, ...]) -> bytes:
    """The definition of the group of a pod that is moved: the names of what it takes there, in place of what
    it took where it is. Empty where it has no group and takes nothing."""
    message = parsed(PodGroupMessage, definition, name="groups") if definition else PodGroupMessage()
    if tuple(message.reserved_names) == names:
        return definition
    del message.reserved_names[:]
    message.reserved_names.extend(names)
    return message.SerializeToString(deterministic=True)


def unreviewed_definition(definition: bytes) -> bytes:
    """The definition of a group of pods that were found on their nodes, bound by nobody knows whom."""
    return definition + PodGroupMessage(unreviewed=True).SerializeToString()


@lru_cache(maxsize=4096)
def is_unreviewed(definition: bytes) -> bool:
    """Whether it is an `unreviewed_definition`."""
    return parsed(PodGroupMessage, definition, name="groups").unreviewed


def parsed(message: type[MessageT], data: bytes, *, name: str) -> MessageT:
    """The message that a field holds as bytes. Raises ColumnError."""
    try:
        return message.FromString(data)
    except DecodeError as exc:
        raise ColumnError(f"is no {message.DESCRIPTOR.name} message", where=name) from exc


# Groups by definition, as long as anybody has them.
_groups: WeakValueDictionary[bytes, PodGroup] = WeakValueDictionary()


@lru_cache(maxsize=4096)
def group_defined(definition: bytes) -> PodGroup:
    """The group, without the names of what its pods take: views count by volumes.

    It is the same object for the same definition while anybody has it. So whoever counts the pods of more
    groups than are remembered here reads none of them again."""
    group = _groups.get(definition)
    if group is None:
        _groups[definition] = group = _group_of(parsed(PodGroupMessage, definition, name="groups"))
    return group


def _group_of(message: PodGroupMessage) -> PodGroup:
    return PodGroup(
        namespace=message.namespace,
        labels=labels_from_proto(message.labels),
        affinity=optional(message, "affinity", affinity_from_proto),
        host_ports=host_ports_from_proto(message.host_ports),
        spread=tuple(map(constraint_from_proto, message.spread)),
        tolerates_cordon=message.tolerates_cordon,
        excess=_nonzero_from_proto(message.excess),
        volumes=optional(message, "volumes", _volumes_from_proto),
        claims_devices=message.claims_devices,
        held_claims=tuple(map(held_claim_from_proto, message.held_claims)),
    )


def _nonzero_to_proto(amounts: tuple[int, int]) -> pb.CpuAndMemory:
    return pb.CpuAndMemory(cpu_milli=amounts[0], memory_bytes=amounts[1])


def _nonzero_from_proto(message: pb.CpuAndMemory) -> tuple[int, int]:
    return message.cpu_milli, message.memory_bytes
