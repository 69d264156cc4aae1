"""A recorded load: nodes, and pods with the times at which they came and went. Traces give amounts as shares
of an unnamed machine. The reader chooses the size of that machine; the default is LARGEST."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from hoss.model.node import NodeSpec
from hoss.model.pod import PodSpec, PodTemplate, QosClass, Workload

HOSTNAME_LABEL = "kubernetes.io/hostname"
# Traces contain no limit on pods. This one is generous, so that only recorded resources decide; the kubelet's
# default of 110 could stop small pods on large machines.
PODS_PER_NODE = 256

_MIB = 2**20


@dataclass(frozen=True, slots=True)
class TracePod:
    """A pod, created and deleted at seconds of the trace's own time. None: it exists when the recording
    ends."""

    workload: Workload
    creation_seconds: float
    deletion_seconds: float | None


@dataclass(frozen=True, slots=True)
class Recording:
    """Nodes and pods; pods are in the order of their creation."""

    nodes: tuple[NodeSpec, ...]
    pods: Sequence[TracePod]
    left_out: dict[str, int] = field(default_factory=dict)  # why, and how many


@dataclass(frozen=True, slots=True)
class TraceWindow:
    """A part of a recording, in seconds of the trace's time. Pods that exist at `begin` come at once; pods
    from `end` on are left out. Of the rest only the first `limit` pods are kept (0: all)."""

    begin: float = 0.0
    end: float = math.inf
    limit: int = 0
    departures: bool = True  # False: deletions are not needed, so reading ends at the limit

    def full(self, pods: int) -> bool:
        """Whether the limit is reached."""
        return bool(self.limit) and pods >= self.limit


@dataclass(frozen=True, slots=True)
class TraceMachine:
    """The machine of which traces give shares."""

    cpu_milli: int
    memory_bytes: int


LARGEST = TraceMachine(64_000, 256 * 2**30)


class Shapes:
    """Templates of pods that request shares of a machine; equal requests share one object. Amounts are
    rounded up to 1m and 1 MiB, so that a pod that did not fit in the trace does not fit here."""

    def __init__(self, machine: TraceMachine) -> None:
        self._machine = machine
        self._templates: dict[tuple[object, ...], PodTemplate] = {}

    def template(
        self, cpu: float, memory: float, priority: int, others: tuple[tuple[str, int], ...] = ()
    ) -> PodTemplate:
        """The template for these shares and amounts of `others`. Its priority orders the queue; the pod
        preempts no other, because the trace itself contains the preemptions."""
        cpu_milli = rounded_up(cpu * self._machine.cpu_milli)
        memory_bytes = rounded_up(memory * self._machine.memory_bytes / _MIB) * _MIB
        shape = (cpu_milli, memory_bytes, priority, others)
        template = self._templates.get(shape)
        if template is None:
            template = self._templates[shape] = _template(cpu_milli, memory_bytes, priority, others)
        return template


def rounded_up(amount: float) -> int:
    """The next whole number. A value that exceeds a whole number by less than a float's error is that
    number."""
    return math.ceil(round(amount, 6))


def machines(
    count: int, machine: TraceMachine, others: tuple[tuple[str, int], ...] = ()
) -> tuple[NodeSpec, ...]:
    """`count` equal nodes, with amounts of `others`."""
    return tuple(
        node(f"machine-{number:05d}", machine.cpu_milli, machine.memory_bytes, others)
        for number in range(count)
    )


def node(name: str, cpu_milli: int, memory_bytes: int, others: tuple[tuple[str, int], ...] = ()) -> NodeSpec:
    allocatable = {"cpu": cpu_milli, "memory": memory_bytes, "pods": PODS_PER_NODE, **dict(others)}
    return NodeSpec(name, labels=((HOSTNAME_LABEL, name),), allocatable=tuple(sorted(allocatable.items())))


def _template(
    cpu_milli: int, memory_bytes: int, priority: int, others: tuple[tuple[str, int], ...]
) -> PodTemplate:
    requests = {"cpu": cpu_milli, "memory": memory_bytes, **dict(others)}
    spec = PodSpec(
        priority=priority,
        requests=tuple(sorted((name, amount) for name, amount in requests.items() if amount)),
        nonzero_cpu_milli=cpu_milli,
        nonzero_memory_bytes=memory_bytes,
        may_preempt=False,
    )
    # No trace has limits, so by Kubernetes' rule every pod with requests is Burstable.
    return PodTemplate(
        spec, qos_class=QosClass.BURSTABLE if cpu_milli or memory_bytes else QosClass.BEST_EFFORT
    )
