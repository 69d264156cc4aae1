"""Pods that a kubelet did not take, though a scheduler had placed them: its second opinion, and whose account was wrong.

A kubelet judges a pod by what it counts itself. Where it has no room the pod ends as Failed with a reason such as OutOfcpu, and a message with
its figures (kubelet's lifecycle/predicate.go). Beside them stands what HOSS has of the node: what its object offers, and what
the pods that are on it ask for.
"""

import re
from collections.abc import Collection
from enum import Enum
from typing import NamedTuple

import numpy as np

from dispatcher.core.podtable import Phase
from dispatcher.core.registry import PodRegistry
from hoss.model.fields import Object
from hoss.model.node import NodeSpec
from hoss.model.pod import PodSpec
from hoss.model.resources import DEVICE_RESOURCE

_REASONS = ("UnexpectedAdmissionError", "TopologyAffinityError", "NodePorts", "NodeAffinity")
_OUT_OF = "OutOf"  # and the resource's name
_FIGURES = re.compile(r"enough resource: (\S+), requested: (\d+), used: (\d+), capacity: (\d+)")


class Figures(NamedTuple):
    """By a kubelet: of one resource, in schema units, what the pod asked for, others use and the node has."""

    resource: str
    asked: int
    used: int
    capacity: int


class Rejection(NamedTuple):
    """What a kubelet says of a pod that it did not take. `figures`: None where it names none."""

    reason: str
    message: str
    figures: Figures | None = None


class Cause(Enum):
    """Whose account was wrong, as far as the figures tell."""

    OVERCOMMITTED = "overcommitted"  # pods that were bound there ask for more than the node's object offers
    NODE_OBJECT = "node-object"  # the object offers more than the kubelet has
    UNSEEN = "unseen"  # the kubelet counts more in use than all pods that the API server has there
    LATE = "late"  # all say that it fits: the kubelet had not heard of an end yet
    NO_FIGURES = "no-figures"  # the kubelet names none: devices, topology, ports


class Difference(NamedTuple):
    """A finding, and in a sentence what it rests on."""

    cause: Cause
    text: str


def rejection_of(status: Object) -> Rejection | None:
    """Whether a pod of this status was rejected by its kubelet."""
    reason = str(status.get("reason", ""))
    if status.get("phase") != "Failed" or not (reason.startswith(_OUT_OF) or reason in _REASONS):
        return None
    message = str(status.get("message", ""))
    found = _FIGURES.search(message)
    return Rejection(reason, message, Figures(found[1], *map(int, found.groups()[1:])) if found else None)


class OnNode(NamedTuple):
    """What pods on a node ask for of one resource by HOSS's account, and how many of them others than HOSS have placed."""

    requested: int
    pods: int
    of_others: int


def on_node(registry: PodRegistry, node: int, resource: str, schedulers: Collection[str]) -> OnNode:
    """Of the pods that are on the node with this index now; `schedulers`: the names under which HOSS places."""
    pods, templates = registry.pods, registry.templates
    there = (pods.phase[: pods.size] == Phase.BOUND) & (pods.node[: pods.size] == node)
    ids, counts = np.unique(pods.template[: pods.size][there], return_counts=True)
    requested = of_others = 0
    for template, count in zip(ids.tolist(), counts.tolist(), strict=True):
        requested += count * _asked(templates.pod_spec(int(templates.class_id[template])), resource)
        of_others += count * (templates.kind(template).scheduler_name not in schedulers)
    return OnNode(requested, int(counts.sum()), of_others)


def compare(rejected: Rejection, node: NodeSpec, others: OnNode) -> Difference:
    """What of the accounts differs. `others`: of all pods there but the rejected one."""
    figures = rejected.figures
    if figures is None:
        return Difference(Cause.NO_FIGURES, f"its kubelet says: {rejected.message or 'nothing more'}")
    name, asked = figures.resource, figures.asked
    offered = node.cards if name == DEVICE_RESOURCE else dict(node.allocatable).get(name, 0)
    if others.requested + asked > offered:
        text = (
            f"{others.pods} other pods there ask for {others.requested} of {name}, this one for {asked}, and the node offers {offered}; "
            f"{others.of_others} of the others were placed by other schedulers"
        )
        return Difference(Cause.OVERCOMMITTED, text)
    if figures.capacity < offered:
        text = f"its object offers {offered} of {name}, and its kubelet has {figures.capacity}"
        return Difference(Cause.NODE_OBJECT, text)
    if figures.used > others.requested:
        text = f"its kubelet counts {figures.used} of {name} in use, and the pods that the API server has there ask for {others.requested}"
        return Difference(Cause.UNSEEN, text)
    text = f"{others.requested} of {name} are asked for there, and {offered - others.requested} are free: its kubelet had not heard of an end yet"
    return Difference(Cause.LATE, text)


def _asked(spec: PodSpec, resource: str) -> int:
    if resource == "pods":
        return 1
    if resource == DEVICE_RESOURCE:
        return spec.devices.count if spec.devices is not None else 0
    return dict(spec.requests).get(resource, 0)
