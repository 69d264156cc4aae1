"""The loads of a comparison, made from a seed, sized by the share of the nodes that they ask for or by a number of pods.

Jobs are many and small, as one scheduler's share of a large job would be. On nodes of 32 cpus and 128 GiB:

    uniform      jobs of 10 to 100 pods of 500m and 1 GiB
    openb        single pods drawn from the commonest of the Alibaba GPU trace, on nodes of 16 cards; sized by cards
    unique       single pods of which no two ask for the same
    gangs        jobs of 8 to 32 pods of several sizes, each bound whole or not at all
    constrained  jobs of 10 to 40 pods of 2 cpus: half may stand on a node only once, half are spread over the zones
    churn        jobs of several sizes that end after 1 to 4 s, each followed by another at once, for 6 s
    skewed       80 % of the pods may stand on 20 % of the nodes only, the others on the rest
"""

import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, count

from hoss.model.fit import WHOLE_CARD_MILLI
from hoss.model.node import NodeSpec
from hoss.model.pod import DeviceRequest, Gang, PodSpec, PodTemplate, QosClass, Workload
from hoss.model.pod_rules import PodAffinity, PodAffinityTerm, SpreadConstraint
from hoss.model.selectors import LabelSelector, Requirement
from hossctl.choices import Mix
from hossctl.compare.axes import Load
from hossctl.compare.document import Cell
from hossctl.compare.traces import Arrival, Trace, arriving
from hossctl.load import MIB, OPENB_SHAPE, bench_nodes, card_request
from hossctl.node_pools import ZONE_LABEL
from hossctl.nodes import GIB

CHURN_SECONDS = 6.0
TIER = "tier"
JOBS_A_MESSAGE = 20

_HOSTNAME = "kubernetes.io/hostname"
_SIZES = ((250, GIB // 2), (500, GIB), (1000, 2 * GIB), (2000, 4 * GIB), (4000, 8 * GIB))
_CHURN_LIVES = (1.0, 4.0)
_HOT_EVERY = 5
# So that four of five pods fill one of five nodes, and one of five the others: 4 x 400m of 20 % is 6,400m of 80 %.
_HOT_REQUESTS, _COLD_REQUESTS = (400, GIB // 2), (6400, 8 * GIB)

Jobs = Iterator[Workload]


def made(cell: Cell, seed: int) -> Trace:
    """The load of a cell, any but a recorded trace: for the same load, nodes, size and seed always the same."""
    nodes = tuple(nodes_of(cell))
    chance = random.Random(f"{seed} {cell.load.value}")
    if cell.load is Load.CHURN:
        return _churn(nodes, cell, chance)
    workloads = list(_sized(_JOBS[cell.load](chance), nodes, cell))
    if cell.load in {Load.OPENB, Load.UNIQUE}:  # single pods, which travel as long lists
        return Trace(nodes, tuple(arriving(workloads)))
    groups = (workloads[i : i + JOBS_A_MESSAGE] for i in range(0, len(workloads), JOBS_A_MESSAGE))
    return Trace(nodes, tuple(chain.from_iterable(map(arriving, groups))))


def nodes_of(cell: Cell) -> Sequence[NodeSpec]:
    """The nodes of a cell; which they are does not depend on the seed."""
    nodes = bench_nodes(Mix.OPENB if cell.load is Load.OPENB else Mix.UNIFORM, cell.nodes, seed=1)
    if cell.load is not Load.SKEWED:
        return nodes
    return [labelled(node, TIER, "cold" if i % _HOT_EVERY else "hot") for i, node in enumerate(nodes)]


def labelled(node: NodeSpec, key: str, value: str) -> NodeSpec:
    """The node with one label more."""
    return replace(node, labels=tuple(sorted({**dict(node.labels), key: value}.items())))


def _sized(jobs: Jobs, nodes: Sequence[NodeSpec], cell: Cell) -> Iterator[Workload]:
    """The first of the jobs, until they have the pods or ask for the share of the nodes that the cell says. The last has as many
    replicas as are left for it."""
    wanted = asked = 0.0
    measure: Callable[[Workload], float]
    if cell.pods:
        wanted, measure = cell.pods, lambda _: 1.0
    elif cell.load is Load.OPENB:
        wanted, measure = cell.fill * sum(node.cards for node in nodes), _cards
    else:
        wanted, measure = cell.fill * sum(dict(node.allocatable)["cpu"] for node in nodes), _cpu
    for job in jobs:
        one = measure(job)
        fitting = job.replicas if not one else min(job.replicas, int((wanted - asked) / one + 1e-9))
        if fitting < 1:
            return
        asked += fitting * one
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
        yield Workload(name, chance.choice(templates), pods, gang=Gang("default", name, pods))


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
        # In turn and not drawn: the two must fill their nodes alike.
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
    """What fills the nodes at the start, and for each job that ends before the time is over another one like it."""
    coming = deque((0.0, job) for job in _sized(_mixed(chance), nodes, cell))
    arrivals: list[Arrival] = []
    while coming:
        at, job = coming.popleft()
        life = chance.uniform(*_CHURN_LIVES)
        ends = at + life < CHURN_SECONDS
        arrivals += arriving([replace(job, name=f"churn-{len(arrivals)}")], at, life if ends else None)
        if ends:
            coming.append((at + life, job))
    arrivals.sort(key=lambda arrival: arrival.at_seconds)
    return Trace(nodes, tuple(arrivals))


def _template(
    cpu_milli: int,
    memory_bytes: int,
    *,
    owner: str = "",
    app: str = "load",
    others: dict[str, int] | None = None,
    devices: DeviceRequest | None = None,
    selector: tuple[tuple[str, str], ...] = (),
) -> PodTemplate:
    spec = PodSpec(
        labels=(("app", app),),
        requests=tuple(sorted({"cpu": cpu_milli, "memory": memory_bytes, **(others or {})}.items())),
        nonzero_cpu_milli=cpu_milli,
        nonzero_memory_bytes=memory_bytes,
        node_selector=selector,
        devices=devices,
    )
    return PodTemplate(spec, qos_class=QosClass.GUARANTEED, owner_kind=owner)
