"""A recorded load: nodes, and pods with the times at which they came and went.

Traces give amounts as shares of a machine that they do not name. What such a machine has is for the reader to say: LARGEST
unless told otherwise.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from hoss.model.node import NodeSpec
from hoss.model.pod import PodSpec, PodTemplate, QosClass, Workload

HOSTNAME_LABEL = "kubernetes.io/hostname"
# Traces say nothing of a limit on pods. Generous, so that what they do tell of decides alone; the kubelet's default of 110
# could stop small pods on large machines.
PODS_PER_NODE = 256

_MIB = 2**20


@dataclass(frozen=True, slots=True)
class TracePod:
    """A pod, and when it came and went: seconds of the trace's own time. None: it is there when the recording ends."""

    workload: Workload
    creation_seconds: float
    deletion_seconds: float | None


@dataclass(frozen=True, slots=True)
class Recording:
    """What was read: pods in the order in which they came."""

    nodes: tuple[NodeSpec, ...]
    pods: Sequence[TracePod]
    left_out: dict[str, int] = field(default_factory=dict)  # why, and how many


@dataclass(frozen=True, slots=True)
class Window:
    """The part of a recording that is wanted: from `begin`, where those that are there already come at once, to before `end`, and
    of that the first `limit` pods (0: all). Seconds of the trace's time."""

    begin: float = 0.0
    end: float = math.inf
    limit: int = 0
    departures: bool = True  # False: nobody asks when pods go, so reading may end when there are enough

    def full(self, pods: int) -> bool:
        """Whether so many are as many as are wanted."""
        return bool(self.limit) and pods >= self.limit


@dataclass(frozen=True, slots=True)
class Machine:
    """What a share of 1 is."""

    cpu_milli: int
    memory_bytes: int


LARGEST = Machine(64_000, 256 * 2**30)


class Shapes:
    """Templates of pods that ask for shares of a machine; those alike share one object. Amounts are rounded up to 1m and 1 MiB, so
    that what did not fit in the trace does not fit here."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._templates: dict[tuple[object, ...], PodTemplate] = {}

    def template(
        self, cpu: float, memory: float, priority: int, others: tuple[tuple[str, int], ...] = ()
    ) -> PodTemplate:
        """For a pod that asks for these shares, and amounts of `others`. Its priority counts in the queue; nobody is preempted for it,
        as the trace tells itself who had to go."""
        cpu_milli = rounded_up(cpu * self._machine.cpu_milli)
        memory_bytes = rounded_up(memory * self._machine.memory_bytes / _MIB) * _MIB
        shape = (cpu_milli, memory_bytes, priority, others)
        template = self._templates.get(shape)
        if template is None:
            template = self._templates[shape] = _template(cpu_milli, memory_bytes, priority, others)
        return template


def rounded_up(amount: float) -> int:
    """The next whole number; what is above one by less than a float's error is that one."""
    return math.ceil(round(amount, 6))


def machines(count: int, machine: Machine, others: tuple[tuple[str, int], ...] = ()) -> tuple[NodeSpec, ...]:
    """So many nodes of this size, with amounts of `others` besides."""
    return tuple(
        node(f"machine-{number:05d}", machine.cpu_milli, machine.memory_bytes, others) for number in range(count)
    )


def node(name: str, cpu_milli: int, memory_bytes: int, others: tuple[tuple[str, int], ...] = ()) -> NodeSpec:
    """One of them."""
    allocatable = {"cpu": cpu_milli, "memory": memory_bytes, "pods": PODS_PER_NODE, **dict(others)}
    return NodeSpec(name, labels=((HOSTNAME_LABEL, name),), allocatable=tuple(sorted(allocatable.items())))


def _template(cpu_milli: int, memory_bytes: int, priority: int, others: tuple[tuple[str, int], ...]) -> PodTemplate:
    requests = {"cpu": cpu_milli, "memory": memory_bytes, **dict(others)}
    spec = PodSpec(
        priority=priority,
        requests=tuple(sorted((name, amount) for name, amount in requests.items() if amount)),
        nonzero_cpu_milli=cpu_milli,
        nonzero_memory_bytes=memory_bytes,
        may_preempt=False,
    )
    # No trace names limits, so by Kubernetes' rule whatever requests something is Burstable.
    return PodTemplate(spec, qos_class=QosClass.BURSTABLE if cpu_milli or memory_bytes else QosClass.BEST_EFFORT)
