"""Audits kubelet rejections: pods that a kubelet rejected although a scheduler had placed them, and whose
account was wrong.

A kubelet checks a pod against its own accounts. If it has no room, the pod fails with a reason such as
OutOfcpu and a message with figures (kubelet's lifecycle/predicate.go). These are compared with what HOSS
knows of the node: what its object offers, and what the pods on it request."""

import re
from collections.abc import Collection
from enum import Enum
from typing import NamedTuple

import numpy as np

from dispatcher.core.pods.registry import PodRegistry
from dispatcher.core.pods.table import Phase
from hoss.manifests.fields import Object
from hoss.model.node import NodeSpec
from hoss.model.pod import PodSpec
from hoss.model.resources import DEVICE_RESOURCE

_REASONS = ("UnexpectedAdmissionError", "TopologyAffinityError", "NodePorts", "NodeAffinity")
_OUT_OF = "OutOf"  # + the resource's name
_FIGURES = re.compile(r"enough resource: (\S+), requested: (\d+), used: (\d+), capacity: (\d+)")


class NodeFigures(NamedTuple):
    """A kubelet's figures for one resource, in schema units: requested by the pod, used by others,
    capacity."""

    resource: str
    requested: int
    used: int
    capacity: int


class KubeletRejection(NamedTuple):
    """A kubelet's rejection of a pod. `figures`: None where it names none."""

    reason: str
    message: str
    figures: NodeFigures | None = None


class Cause(Enum):
    """Whose account was wrong, as far as the figures show."""

    OVERCOMMITTED = "overcommitted"  # bound pods request more than the node's object offers
    NODE_OBJECT = "node-object"  # the node's object offers more than the kubelet has
    UNSEEN = "unseen"  # the kubelet counts more in use than all pods of the API server there
    LATE = "late"  # all accounts say that it fits: the kubelet had not seen the end of a pod yet
    NO_FIGURES = "no-figures"  # the kubelet gives none: devices, topology, ports


class AccountDifference(NamedTuple):
    """A cause, and a sentence with its evidence."""

    cause: Cause
    text: str


def rejection_of(status: Object) -> KubeletRejection | None:
    """The rejection in this pod status, if its kubelet rejected the pod."""
    reason = str(status.get("reason", ""))
    if status.get("phase") != "Failed" or not (reason.startswith(_OUT_OF) or reason in _REASONS):
        return None
    message = str(status.get("message", ""))
    found = _FIGURES.search(message)
    figures = NodeFigures(found[1], *map(int, found.groups()[1:])) if found else None
    return KubeletRejection(reason, message, figures)


class OnNode(NamedTuple):
    """What pods on a node request of one resource by HOSS's account, and how many of them other schedulers
    placed."""

    requested: int
    pods: int
    of_others: int


def on_node(registry: PodRegistry, node: int, resource: str, schedulers: Collection[str]) -> OnNode:
    """The pods that are on the node with this index now. `schedulers`: the names under which HOSS places
    pods."""
    pods, templates = registry.pods, registry.templates
    there = (pods.phase[: pods.size] == Phase.BOUND) & (pods.node[: pods.size] == node)
    ids, counts = np.unique(pods.template[: pods.size][there], return_counts=True)
    requested = of_others = 0
    for template, count in zip(ids.tolist(), counts.tolist(), strict=True):
        requested += count * _requested(templates.pod_spec(int(templates.class_id[template])), resource)
        of_others += count * (templates.kind(template).scheduler_name not in schedulers)
    return OnNode(requested, int(counts.sum()), of_others)


def compare(rejected: KubeletRejection, node: NodeSpec, others: OnNode) -> AccountDifference:
    """Which accounts differ. `others`: of all pods there but the rejected one."""
    figures = rejected.figures
    if figures is None:
        return AccountDifference(Cause.NO_FIGURES, f"its kubelet says: {rejected.message or 'nothing more'}")
    name, requested = figures.resource, figures.requested
    offered = node.cards if name == DEVICE_RESOURCE else dict(node.allocatable).get(name, 0)
    if others.requested + requested > offered:
        text = (
            f"{others.pods} other pods there ask for {others.requested} of {name}, this one for {requested}, "
            f"and the node offers {offered}; "
            f"{others.of_others} of the others were placed by other schedulers"
        )
        return AccountDifference(Cause.OVERCOMMITTED, text)
    if figures.capacity < offered:
        text = f"its object offers {offered} of {name}, and its kubelet has {figures.capacity}"
        return AccountDifference(Cause.NODE_OBJECT, text)
    if figures.used > others.requested:
        text = (
            f"its kubelet counts {figures.used} of {name} in use, "
            f"and the pods that the API server has there ask for {others.requested}"
        )
        return AccountDifference(Cause.UNSEEN, text)
    text = (
        f"{others.requested} of {name} are asked for there, and {offered - others.requested} are free: "
        "its kubelet had not heard of an end yet"
    )
    return AccountDifference(Cause.LATE, text)


def _requested(spec: PodSpec, resource: str) -> int:
    if resource == "pods":
        return 1
    if resource == DEVICE_RESOURCE:
        return spec.devices.count if spec.devices is not None else 0
    return dict(spec.requests).get(resource, 0)
