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
"""

import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, count
from typing import Any

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


def make_trace(cell: Cell, seed: int) -> Trace:
    """The load of a cell, but not of a recorded trace. Equal loads, nodes, sizes and seeds give equal
    traces."""
    nodes = tuple(nodes_of(cell))
    chance = random.Random(f"{seed} {cell.load.value}")
    if cell.load is Load.CHURN:
        return _churn(nodes, cell, chance)
    workloads = list(_sized(_JOBS[cell.load](chance), nodes, cell))
    if cell.load in {Load.OPENB, Load.UNIQUE}:  # single pods, which travel as long lists
        return Trace(nodes, tuple(arrivals_of(workloads)))
    groups = (workloads[i : i + JOBS_A_MESSAGE] for i in range(0, len(workloads), JOBS_A_MESSAGE))
    return Trace(nodes, tuple(chain.from_iterable(map(arrivals_of, groups))))


def nodes_of(cell: Cell) -> Sequence[NodeSpec]:
    """The nodes of a cell, independent of the seed."""
    nodes = bench_nodes(Mix.OPENB if cell.load is Load.OPENB else Mix.UNIFORM, cell.nodes, seed=1)
    if cell.load is not Load.SKEWED:
        return nodes
    return [with_label(node, TIER, "cold" if i % _HOT_EVERY else "hot") for i, node in enumerate(nodes)]


def with_label(node: NodeSpec, key: str, value: str) -> NodeSpec:
    """The node with one more label."""
    return replace(node, labels=tuple(sorted({**dict(node.labels), key: value}.items())))


def _sized(jobs: Jobs, nodes: Sequence[NodeSpec], cell: Cell) -> Iterator[Workload]:
    """The first jobs, until they have the cell's number of pods or request the cell's share of the nodes. The
    last job has as many replicas as are left."""
    target = requested = 0.0
    measure: Callable[[Workload], float]
    if cell.pods:
        target, measure = cell.pods, lambda _: 1.0
    elif cell.load is Load.OPENB:
        target, measure = cell.fill * sum(node.cards for node in nodes), _cards
    else:
        target, measure = cell.fill * sum(dict(node.allocatable)["cpu"] for node in nodes), _cpu
    for job in jobs:
        one = measure(job)
        fitting = job.replicas if not one else min(job.replicas, int((target - requested) / one + 1e-9))
        if fitting < 1:
            return
        requested += fitting * one
        gang = job.gang and replace(job.gang, minimum=fitting)
        yield replace(job, replicas=fitting, gang=gang)


def _cpu(job: Workload) -> float:
    return dict(job.template.spec.requests)["cpu"]


def _cards(job: Workload) -> float:
    devices = job.template.spec.devices
    return devices.count * devices.milli / WHOLE_CARD_MILLI if devices else 0.0


def _uniform(chance: random.Random) -> Jobs:
    template = _template(500, GIB, owner="Job")
    for number in count():
        yield Workload(f"uniform-{number}", template, chance.randint(10, 100))


def _mixed(chance: random.Random) -> Jobs:
    templates = [_template(cpu, memory, owner="Job") for cpu, memory in _SIZES]
    for number in count():
        yield Workload(f"mixed-{number}", chance.choice(templates), chance.randint(5, 50))


def _openb(chance: random.Random) -> Jobs:
    templates = []
    for kind in OPENB_SHAPE:
        requests, devices = card_request(kind.cards, kind.card_milli) if kind.cards else ({}, None)
        templates.append(_template(kind.cpu_milli, kind.memory_mib * MIB, others=requests, devices=devices))
    weights = [kind.pods for kind in OPENB_SHAPE]
    for number in count():
        yield Workload(f"openb-{number}", chance.choices(templates, weights)[0])


def _unique(chance: random.Random) -> Jobs:
    for number in count():
        yield Workload(f"unique-{number}", _template(chance.randrange(250, 750), 512 * MIB + 4096 * number))


def _gangs(chance: random.Random) -> Jobs:
    templates = [_template(cpu, memory, owner="Job") for cpu, memory in _SIZES]
    for number in count():
        pods, name = chance.randint(8, 32), f"gang-{number}"
        yield Workload(name, chance.choice(templates), pods, gang=GangSpec("default", name, pods))


def _constrained(chance: random.Random) -> Jobs:
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


def _skewed(chance: random.Random) -> Jobs:
    hot = _template(*_HOT_REQUESTS, owner="Job", selector=((TIER, "hot"),))
    cold = _template(*_COLD_REQUESTS, owner="Job", selector=((TIER, "cold"),))
    for number in count():
        # In turn and not drawn, so that both fill their nodes equally.
        replicas = chance.randint(5, 25)
        yield Workload(f"hot-{number}", hot, 4 * replicas)
        yield Workload(f"cold-{number}", cold, replicas)


_JOBS: dict[Load, Callable[[random.Random], Jobs]] = {
    Load.UNIFORM: _uniform,
    Load.OPENB: _openb,
    Load.UNIQUE: _unique,
    Load.GANGS: _gangs,
    Load.CONSTRAINED: _constrained,
    Load.SKEWED: _skewed,
}


def _churn(nodes: tuple[NodeSpec, ...], cell: Cell, chance: random.Random) -> Trace:
    """Jobs that fill the nodes at the start, and for each job that ends in time another job like it."""
    coming = deque((0.0, job) for job in _sized(_mixed(chance), nodes, cell))
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


def _template(
    cpu_milli: int, memory_bytes: int, others: dict[str, int] | None = None, **fields: Any
) -> PodTemplate:
    return pod_template({"cpu": cpu_milli, "memory": memory_bytes, **(others or {})}, **fields)
