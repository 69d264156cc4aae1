"""The loads of a comparison, made from a seed, sized by the share of the nodes that they ask for or by a
number of pods.

Jobs are many and small, as one scheduler's share of a large job would be. On nodes of 32 cpus and 128 GiB:

    uniform      jobs of 10 to 100 pods of 500m and 1 GiB
    openb        single pods drawn from the commonest of the Alibaba GPU trace, on nodes of 16 cards;
                 sized by cards
    unique       single pods, no two with equal requests
    gangs        jobs of 8 to 32 pods of several sizes, each bound whole or not at all
    constrained  jobs of 10 to 40 pods of 2 cpus: half keep apart by host, half are spread over the
    zones
    churn        jobs of several sizes that end after 1 to 4 s, each followed by another at once, for 6 s
    skewed       80 % of the pods select 20 % of the nodes, the others the rest

and `trace`, a recording. A load of your own is a class with a method `trace`, or a subclass of
`GeneratedLoad` with a method `jobs` (docs/tutorials/comparison.md)."""

import random
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, count
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol, runtime_checkable

from hoss.errors import InvalidInput
from hoss.model.node import NodeSpec
from hoss.model.pod import (
    GangSpec,
    PodAffinity,
    PodAffinityTerm,
    PodTemplate,
    SpreadConstraint,
    Workload,
)
from hoss.model.resources import WHOLE_CARD_MILLI
from hoss.model.selectors import LabelSelector, Requirement
from hossctl.choices import Load, Mix
from hossctl.compare.document import Cell
from hossctl.compare.registry import PartRegistry
from hossctl.load.generated import MIB, OPENB_SHAPE, bench_nodes, card_request, pod_template
from hossctl.load.nodes import GIB, ZONE_LABEL
from hossctl.load.playing import Arrival, Trace, arrivals_of

CHURN_SECONDS = 6.0
TIER = "tier"
JOBS_A_MESSAGE = 20

_HOSTNAME = "kubernetes.io/hostname"
_SIZES = ((250, GIB // 2), (500, GIB), (1000, 2 * GIB), (2000, 4 * GIB), (4000, 8 * GIB))
_CHURN_LIVES = (1.0, 4.0)
_HOT_EVERY = 5
# So that four of five pods fill one of five nodes, and one of five the others: 4 x 400m of 20 % is 6,400m of
# 80 %.
_HOT_REQUESTS, _COLD_REQUESTS = (400, GIB // 2), (6400, 8 * GIB)

Jobs = Iterator[Workload]


class LoadSize(NamedTuple):
    """How large a load is: so many pods, or (`pods` is 0) as many as request the share `fill` of all."""

    nodes: int
    fill: float
    pods: int = 0


@runtime_checkable
class ComparisonLoad(Protocol):
    """What is scheduled in a cell."""

    def trace(self, size: LoadSize, seed: int) -> Trace:
        """Nodes, and pods with their times. Equal sizes and seeds give equal traces."""
        ...


class GeneratedLoad(ABC):
    """Jobs drawn from a seed that come at once and stay, on machines all alike."""

    single_pods = False  # all jobs have one pod: they travel as long lists

    @abstractmethod
    def jobs(self, chance: random.Random) -> Jobs:
        """Jobs without an end; as many of them are taken as the size says."""

    def nodes(self, number: int) -> Sequence[NodeSpec]:
        """So many nodes, whatever the seed."""
        return bench_nodes(Mix.UNIFORM, number, seed=1)

    def requested(self, job: Workload) -> float:
        """What one pod of the job counts of a fill: its cpu."""
        return dict(job.template.spec.requests)["cpu"]

    def offered(self, node: NodeSpec) -> float:
        """What a node counts of a fill, in the same unit."""
        return dict(node.allocatable)["cpu"]

    def trace(self, size: LoadSize, seed: int) -> Trace:
        """See ComparisonLoad."""
        nodes = tuple(self.nodes(size.nodes))
        workloads = list(self.sized(nodes, size, self.chance(seed)))
        if self.single_pods:
            return Trace(nodes, tuple(arrivals_of(workloads)))
        groups = (workloads[i : i + JOBS_A_MESSAGE] for i in range(0, len(workloads), JOBS_A_MESSAGE))
        return Trace(nodes, tuple(chain.from_iterable(map(arrivals_of, groups))))

    def chance(self, seed: int) -> random.Random:
        """The chance of a seed, another one for each load."""
        return random.Random(f"{seed} {type(self).__name__.lower()}")

    def sized(self, nodes: Sequence[NodeSpec], size: LoadSize, chance: random.Random) -> Jobs:
        """The first jobs, until they have the size. The last job has as many replicas as are left."""
        target = float(size.pods) or size.fill * sum(map(self.offered, nodes))
        taken = 0.0
        for job in self.jobs(chance):
            one = 1.0 if size.pods else self.requested(job)
            fitting = job.replicas if not one else min(job.replicas, int((target - taken) / one + 1e-9))
            if fitting < 1:
                return
            taken += fitting * one
            gang = job.gang and replace(job.gang, minimum=fitting)
            yield replace(job, replicas=fitting, gang=gang)


class Uniform(GeneratedLoad):
    """See the module."""

    def jobs(self, chance: random.Random) -> Jobs:
        """See GeneratedLoad."""
        template = _template(500, GIB, owner="Job")
        for number in count():
            yield Workload(f"uniform-{number}", template, chance.randint(10, 100))


class Openb(GeneratedLoad):
    """See the module."""

    single_pods = True

    def jobs(self, chance: random.Random) -> Jobs:
        """See GeneratedLoad."""
        templates = []
        for kind in OPENB_SHAPE:
            requests, devices = card_request(kind.cards, kind.card_milli) if kind.cards else ({}, None)
            templates.append(
                _template(kind.cpu_milli, kind.memory_mib * MIB, others=requests, devices=devices)
            )
        weights = [kind.pods for kind in OPENB_SHAPE]
        for number in count():
            yield Workload(f"openb-{number}", chance.choices(templates, weights)[0])

    def nodes(self, number: int) -> Sequence[NodeSpec]:
        """See GeneratedLoad."""
        return bench_nodes(Mix.OPENB, number, seed=1)

    def requested(self, job: Workload) -> float:
        """Cards."""
        devices = job.template.spec.devices
        return devices.count * devices.milli / WHOLE_CARD_MILLI if devices else 0.0

    def offered(self, node: NodeSpec) -> float:
        """Cards."""
        return node.cards


class Unique(GeneratedLoad):
    """See the module."""

    single_pods = True

    def jobs(self, chance: random.Random) -> Jobs:
        """See GeneratedLoad."""
        for number in count():
            template = _template(chance.randrange(250, 750), 512 * MIB + 4096 * number)
            yield Workload(f"unique-{number}", template)


class GangLoad(GeneratedLoad):
    """See the module."""

    def jobs(self, chance: random.Random) -> Jobs:
        """See GeneratedLoad."""
        templates = [_template(cpu, memory, owner="Job") for cpu, memory in _SIZES]
        for number in count():
            pods, name = chance.randint(8, 32), f"gang-{number}"
            yield Workload(name, chance.choice(templates), pods, gang=GangSpec("default", name, pods))


class Constrained(GeneratedLoad):
    """See the module."""

    def jobs(self, chance: random.Random) -> Jobs:
        """See GeneratedLoad."""
        for number in count():
            name = f"constrained-{number}"
            own = LabelSelector((Requirement("app", "In", (name,)),))
            template = _template(2000, 4 * GIB, owner="ReplicaSet", app=name)
            if number % 2:
                apart = PodAffinity(anti_required=(PodAffinityTerm(_HOSTNAME, own, ("default",)),))
                spec = replace(template.spec, pod_affinity=apart)
            else:
                spec = replace(template.spec, spread=(SpreadConstraint(1, ZONE_LABEL, own),))
            yield Workload(name, replace(template, spec=spec), chance.randint(10, 40))


class Skewed(GeneratedLoad):
    """See the module."""

    def nodes(self, number: int) -> Sequence[NodeSpec]:
        """See GeneratedLoad."""
        nodes = super().nodes(number)
        return [with_label(node, TIER, "cold" if i % _HOT_EVERY else "hot") for i, node in enumerate(nodes)]

    def jobs(self, chance: random.Random) -> Jobs:
        """See GeneratedLoad."""
        hot = _template(*_HOT_REQUESTS, owner="Job", selector=((TIER, "hot"),))
        cold = _template(*_COLD_REQUESTS, owner="Job", selector=((TIER, "cold"),))
        for number in count():
            # In turn and not drawn, so that both fill their nodes equally.
            replicas = chance.randint(5, 25)
            yield Workload(f"hot-{number}", hot, 4 * replicas)
            yield Workload(f"cold-{number}", cold, replicas)


class Churn(GeneratedLoad):
    """See the module: jobs that fill the nodes at the start, and for each that ends another like it."""

    def jobs(self, chance: random.Random) -> Jobs:
        """See GeneratedLoad."""
        templates = [_template(cpu, memory, owner="Job") for cpu, memory in _SIZES]
        for number in count():
            yield Workload(f"mixed-{number}", chance.choice(templates), chance.randint(5, 50))

    def trace(self, size: LoadSize, seed: int) -> Trace:
        """See ComparisonLoad."""
        nodes, chance = tuple(self.nodes(size.nodes)), self.chance(seed)
        coming = deque((0.0, job) for job in self.sized(nodes, size, chance))
        arrivals: list[Arrival] = []
        while coming:
            at, job = coming.popleft()
            life = chance.uniform(*_CHURN_LIVES)
            ends = at + life < CHURN_SECONDS
            arrivals += arrivals_of([replace(job, name=f"churn-{len(arrivals)}")], at, life if ends else None)
            if ends:
                coming.append((at + life, job))
        arrivals.sort(key=lambda arrival: arrival.at_seconds)
        return Trace(nodes, tuple(arrivals))


class RecordedLoad:
    """The name `trace`, in whose place the recordings that a comparison was given are played."""

    def trace(self, size: LoadSize, seed: int) -> Trace:  # noqa: ARG002
        """See ComparisonLoad."""
        raise InvalidInput("trace needs --trace-nodes and --trace-pods", where="--loads")


_BUILT_IN: Final[Mapping[str, Callable[[], ComparisonLoad]]] = {
    Load.UNIFORM.value: Uniform,
    Load.OPENB.value: Openb,
    Load.UNIQUE.value: Unique,
    Load.GANGS.value: GangLoad,
    Load.CONSTRAINED.value: Constrained,
    Load.CHURN.value: Churn,
    Load.SKEWED.value: Skewed,
    Load.TRACE.value: RecordedLoad,
}
LOAD_REGISTRY: Final = PartRegistry(
    "hoss.loads",
    ComparisonLoad,  # type: ignore[type-abstract]  # its shape is what is asked for
    "load: it has no method trace(size, seed)",
    _BUILT_IN,
)


def make_trace(cell: Cell, seed: int, recordings: Mapping[str, Trace] = MappingProxyType({})) -> Trace:
    """The load of a cell, whatever its mode and scheduler: the recording of that name, or what is generated.
    InvalidInput where a load of others raises."""
    if cell.load in recordings:
        return recordings[cell.load]
    size = LoadSize(cell.nodes, cell.fill, cell.pods)
    load = LOAD_REGISTRY.find(cell.load, where="--loads")
    try:
        trace = load.trace(size, seed)
    except Exception as exc:  # code of others may raise anything
        raise InvalidInput(f"{cell.load}: {type(exc).__name__}: {exc}", where="--loads") from exc
    if not isinstance(trace, Trace) or not trace.nodes or not trace.arrivals:
        raise InvalidInput(f"{cell.load}: gives no trace of nodes and pods", where="--loads")
    return trace


def with_label(node: NodeSpec, key: str, value: str) -> NodeSpec:
    """The node with one more label."""
    return replace(node, labels=tuple(sorted({**dict(node.labels), key: value}.items())))


def _template(
    cpu_milli: int, memory_bytes: int, others: dict[str, int] | None = None, **fields: Any
) -> PodTemplate:
    return pod_template({"cpu": cpu_milli, "memory": memory_bytes, **(others or {})}, **fields)
