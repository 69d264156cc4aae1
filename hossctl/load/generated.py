"""Seeded loads of benchmarks and the demo, as messages that are made before any clock starts."""

import operator
import random
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, SupportsIndex

from hoss.client.dispatcher import submission
from hoss.errors import InvalidInput, quoted
from hoss.model.node import NodeSpec, Toleration
from hoss.model.pod import (
    DeviceRequest,
    PodAffinity,
    PodAffinityTerm,
    PodSpec,
    PodTemplate,
    QosClass,
    SpreadConstraint,
    Workload,
)
from hoss.model.resources import DEVICE_RESOURCE, MAX_CARDS, WHOLE_CARD_MILLI
from hoss.model.selectors import LabelSelector, Requirement
from hoss.v1 import dispatcher_pb2 as pb
from hossctl.choices import Mix
from hossctl.load.nodes import (
    CARD_TAINT,
    DEDICATED,
    GIB,
    HOSTNAME_LABEL,
    UNIFORM,
    ZONE_LABEL,
    ZONES,
    Shape,
    simulated_nodes,
)

MIB = 2**20
_UNITS = {"cpu": " of millicores", "memory": " of bytes"}
PODS_PER_JOB = 1000
JOBS_PER_MESSAGE = 10


@dataclass(frozen=True, slots=True)
class TraceClass:
    """Pods of a trace with equal requests, and their number."""

    pods: int
    cpu_milli: int
    memory_mib: int
    cards: int = 0
    card_milli: int = 0


# The shape of the openb trace without the trace: its 24 commonest requests of 151, rounded, with their
# counts, and the few that request several cards. They represent three quarters of its 8,152 pods.
OPENB_SHAPE = (
    TraceClass(1050, 3150, 5600, 1, 810),
    TraceClass(860, 11300, 49200, 1, 1000),
    TraceClass(530, 11400, 48100, 1, 1000),
    TraceClass(470, 3150, 5600, 1, 1000),
    TraceClass(390, 11900, 47100, 1, 470),
    TraceClass(360, 12500, 57300),
    TraceClass(360, 8000, 30500, 1, 470),
    TraceClass(280, 32000, 49200),
    TraceClass(255, 18700, 64500, 1, 1000),
    TraceClass(240, 11900, 47100, 1, 650),
    TraceClass(195, 9800, 41600, 1, 1000),
    TraceClass(160, 8000, 30500),
    TraceClass(160, 12000, 24600, 1, 1000),
    TraceClass(160, 15700, 58400, 1, 1000),
    TraceClass(150, 11900, 47100, 1, 1000),
    TraceClass(120, 15400, 51200),
    TraceClass(110, 4000, 22900, 1, 320),
    TraceClass(105, 16000, 32800, 1, 1000),
    TraceClass(100, 12000, 16400, 1, 1000),
    TraceClass(95, 16500, 51200),
    TraceClass(95, 14200, 58400, 1, 1000),
    TraceClass(85, 4000, 30500, 1, 230),
    TraceClass(60, 5000, 18000, 1, 160),
    TraceClass(44, 88000, 327000, 8, 1000),
    TraceClass(16, 24000, 98000, 2, 1000),
    TraceClass(15, 48000, 196000, 4, 1000),
)
# Machines for the openb mix, large and with as many cards as a node may have, so that a benchmark of many
# more pods than the trace holds finds room: the mix measures variety of classes, not scarcity.
OPENB_SHAPES = (Shape("openb", 1, 480_000, 2048 * GIB, cards=MAX_CARDS),)
_CARDS_REQUESTED = 0.6  # of all cards; pods beyond that keep their cpu and memory and want no card


def bench_nodes(mix: Mix, count: int, *, seed: int) -> list[NodeSpec]:
    """The nodes of a mix."""
    if mix is Mix.OPENB:
        nodes = simulated_nodes(count, seed=seed, shapes=OPENB_SHAPES)
        return [replace(node, taints=()) for node in nodes]
    return [replace(node, taints=()) for node in simulated_nodes(count, seed=seed, shapes=UNIFORM)]


def bench_load(
    mix: Mix,
    pods: int,
    *,
    cards: int,
    seed: int,
    trace: Sequence[TraceClass] = OPENB_SHAPE,
    name: str = "uniform",
) -> list[pb.SubmitRequest]:
    """The messages of a benchmark's load. `cards`: of all nodes together. `name`: the prefix of uniform jobs'
    names."""
    if mix is Mix.UNIFORM:
        return list(_messages(_jobs(name, pod_template(_requests(250, 512 * MIB)), pods)))
    if mix is Mix.UNIQUE:
        return list(submission(_distinct("unique", pods, seed)))
    if mix is Mix.CONSTRAINED:
        return list(_messages(_constrained(pods, seed)))
    return list(submission(_openb(pods, cards, trace, seed)))


def lone_pods(count: int) -> list[pb.SubmitRequest]:
    template = pod_template(_requests(100, 128 * MIB), app="lone")
    return [next(submission([Workload(f"lone-{i}", template)])) for i in range(count)]


def filling(nodes: Sequence[NodeSpec], fill: float, *, seed: int) -> list[pb.SubmitRequest]:
    """Pods of several sizes, in many small jobs, that together request the fraction `fill` of the nodes'
    cpu."""
    chance = random.Random(seed)
    left = fill * sum(dict(node.allocatable)["cpu"] for node in nodes)
    workloads: list[Workload] = []
    while left > 0:
        cpu, memory = chance.choice(
            ((125, GIB // 4), (250, GIB // 2), (500, GIB), (1000, 2 * GIB), (2000, 4 * GIB))
        )
        replicas = min(chance.randint(10, 100), max(1, int(left / cpu)))
        template = pod_template(_requests(cpu, memory), owner="Job")
        workloads.append(Workload(f"fill-{len(workloads)}", template, replicas))
        left -= cpu * replicas
    return list(_messages(workloads, per_message=20))


def mixed(pods: int, nodes: Sequence[NodeSpec], *, seed: int) -> list[Workload]:
    """The demo's load: services, batch jobs, accelerator jobs, and bare pods that are all different. Sizes
    are chosen for 50 pods a node. Training requests about a tenth more whole cards than are left beside the
    shares, so some of it has to wait; everything else fits."""
    cards = sum(node.cards for node in nodes)
    sharing = min(pods // 25, 2 * cards)  # half a card each at the most: a third of the cards
    whole = min(pods // 25, int(0.55 * cards))
    bare = pods * 6 // 100
    rest = pods - sharing - whole - bare
    counts = {name: int(rest * part) for name, part in _CLASSES}
    counts["sweep"] += rest - sum(counts.values())
    workloads = [job for name, count in counts.items() for job in _class_jobs(name, count)]
    workloads += _sharing_jobs(sharing) + _training_jobs(whole) + _distinct("tool", bare, seed)
    random.Random(seed).shuffle(workloads)
    return workloads


# Part of the demo's ordinary pods that each class has.
_CLASSES = (("web", 0.30), ("api", 0.15), ("cache", 0.05), ("etl", 0.15), ("sweep", 0.35))


def _class_jobs(name: str, pods: int) -> list[Workload]:
    tolerating = (Toleration(DEDICATED.key, "Equal", DEDICATED.value, DEDICATED.effect),)
    size = max(1, min(PODS_PER_JOB, pods // 4))
    if name == "web":
        zoned = [
            pod_template(
                _requests(500, GIB),
                owner="Deployment",
                priority=1000,
                selector=((ZONE_LABEL, zone),),
                app="web",
            )
            for zone in ZONES
        ]
        return [
            job for i, t in enumerate(zoned) for job in _jobs(f"web-{i}", t, _part(pods, i, len(zoned)), size)
        ]
    template = {
        "api": pod_template(
            _requests(750, 2 * GIB), owner="Deployment", priority=1000, selector=(("disk", "ssd"),), app="api"
        ),
        "cache": pod_template(_requests(1000, 4 * GIB), owner="StatefulSet", priority=500, app="cache"),
        "etl": pod_template(_requests(1000, 3 * GIB), owner="Job", tolerations=tolerating, app="etl"),
        "sweep": pod_template(
            _requests(400, 768 * MIB), owner="Job", priority=-10, tolerations=tolerating, app="sweep"
        ),
    }[name]
    return _jobs(name, template, pods, size)


def _sharing_jobs(pods: int) -> list[Workload]:
    tolerating = (Toleration(CARD_TAINT.key, "Exists"),)
    jobs = []
    for i, milli in enumerate((100, 150, 250)):
        requests, devices = card_request(1, milli)
        template = pod_template(
            _requests(1000, 2 * GIB, requests), owner="Deployment", tolerations=tolerating, devices=devices
        )
        jobs += _jobs(f"notebook-{milli}", template, _part(pods, i, 3), 200)
    return jobs


def _training_jobs(pods: int) -> list[Workload]:
    tolerating = (Toleration(CARD_TAINT.key, "Exists"),)
    jobs = []
    for i, count in enumerate((1, 2)):
        requests, devices = card_request(count, 1000)
        template = pod_template(
            _requests(4000 * count, 16 * GIB * count, requests),
            owner="Job",
            tolerations=tolerating,
            devices=devices,
        )
        jobs += _jobs(f"train-{count}", template, _part(pods, i, 2), 100)
    return jobs


def card_request(count: int, milli: int) -> tuple[dict[str, int], DeviceRequest]:
    """The requests of a pod for `count` cards, `milli` thousandths of each."""
    # A share is no amount of the node: only the devices contain it, see hoss.manifests.pod.
    if milli == WHOLE_CARD_MILLI:
        return {DEVICE_RESOURCE: count}, DeviceRequest(count, milli)
    return {}, DeviceRequest(count, milli)


def _openb(pods: int, cards: int, trace: Sequence[TraceClass], seed: int) -> list[Workload]:
    chance = random.Random(seed)
    requested = (
        pods
        * sum(k.pods * k.cards * k.card_milli for k in trace)
        / sum(k.pods for k in trace)
        / WHOLE_CARD_MILLI
    )
    kept = min(1.0, _CARDS_REQUESTED * cards / requested) if requested else 1.0
    templates, weights = [], []
    for kind in trace:
        amounts = _requests(kind.cpu_milli, kind.memory_mib * MIB)
        if kind.cards:
            requests, devices = card_request(kind.cards, kind.card_milli)
            templates.append(pod_template(amounts | requests, devices=devices))
            weights.append(kind.pods * kept)
        templates.append(pod_template(amounts))
        weights.append(kind.pods * (1 - kept if kind.cards else 1.0))
    drawn = chance.choices(templates, weights, k=pods)
    return [Workload(f"openb-{i}", template) for i, template in enumerate(drawn)]


def _distinct(name: str, pods: int, seed: int) -> list[Workload]:
    """Bare pods, no two of which have equal requests."""
    chance = random.Random(seed)
    return [
        Workload(
            f"{name}-{i}", pod_template(_requests(chance.randrange(50, 400), 64 * MIB + 4096 * i), app=name)
        )
        for i in range(pods)
    ]


def _constrained(pods: int, seed: int) -> list[Workload]:
    """Jobs of 50 to 100 replicas. Of ten jobs one is plain, three are spread over the zones (DoNotSchedule,
    maxSkew 1), three keep their pods apart by host, and three only go to zones with a pod of that plain job.
    The plain jobs come first: a pod that waits for one would have to be placed twice, which is not what is
    measured."""
    return sorted(
        _constrained_jobs(pods, seed),
        key=lambda job: bool(job.template.spec.spread or job.template.spec.pod_affinity),
    )


def _constrained_jobs(pods: int, seed: int) -> Iterator[Workload]:
    chance = random.Random(seed)
    number, plain = 0, ""
    while pods > 0:
        name, kind = f"constrained-{number}", number % 10
        plain = plain if kind else name
        own, near = (
            PodAffinityTerm(key, _app(app), ("default",))
            for key, app in ((HOSTNAME_LABEL, name), (ZONE_LABEL, plain))
        )
        rules: dict[str, Any] = {}
        if kind % 3 == 1:
            rules["spread"] = (SpreadConstraint(1, ZONE_LABEL, _app(name)),)
        elif kind:
            rules["pod_affinity"] = (
                PodAffinity(anti_required=(own,)) if kind % 3 == 2 else PodAffinity(required=(near,))
            )
        template = pod_template(_requests(chance.randrange(100, 400), 256 * MIB), owner="Job", app=name)
        replicas = min(pods, chance.randint(50, 100))
        yield Workload(name, replace(template, spec=replace(template.spec, **rules)), replicas)
        pods -= replicas
        number += 1


def _app(name: str) -> LabelSelector:
    return LabelSelector((Requirement("app", "In", (name,)),))


def _jobs(name: str, template: PodTemplate, pods: int, size: int = PODS_PER_JOB) -> list[Workload]:
    """Jobs of `size` replicas; the last has the rest."""
    starts = range(0, pods, size)
    owned = template if template.owner_kind else replace(template, owner_kind="Job")
    return [Workload(f"{name}-{i}", owned, min(size, pods - start)) for i, start in enumerate(starts)]


def _messages(
    workloads: Sequence[Workload], per_message: int = JOBS_PER_MESSAGE
) -> Iterator[pb.SubmitRequest]:
    """Small messages, so that the first jobs are placed while the last are under way."""
    stem = uuid.uuid4().hex
    for number, start in enumerate(range(0, len(workloads), per_message)):
        yield from submission(workloads[start : start + per_message], f"{stem}-{number}")


def _requests(cpu_milli: int, memory_bytes: int, others: dict[str, int] | None = None) -> dict[str, int]:
    return {"cpu": cpu_milli, "memory": memory_bytes, **(others or {})}


def _part(total: int, index: int, parts: int) -> int:
    return total * (index + 1) // parts - total * index // parts


def _whole(name: str, amount: SupportsIndex) -> int:
    """The amount, also where it is one of NumPy's."""
    try:
        whole = -1 if isinstance(amount, bool) else operator.index(amount)
    except TypeError:
        whole = -1
    if whole < 0:
        unit = _UNITS.get(name, "")
        raise InvalidInput(f"is {quoted(amount)}; it is a whole number{unit}, 0 or more", where=name)
    return whole


def pod_template(
    requests: dict[str, int],
    *,
    owner: str = "",
    priority: int = 0,
    selector: tuple[tuple[str, str], ...] = (),
    tolerations: tuple[Toleration, ...] = (),
    devices: DeviceRequest | None = None,
    app: str = "load",
) -> PodTemplate:
    """A pod of one container with these requests, in millicores and bytes where the resource is cpu or
    memory. Raises InvalidInput for an amount that is no whole number, 0 or more."""
    requests = {name: _whole(name, amount) for name, amount in requests.items()}
    spec = PodSpec(
        labels=(("app", app),),
        priority=priority,
        requests=tuple(sorted(requests.items())),
        # What a container without a request counts where nodes are scored, as in kube-scheduler.
        nonzero_cpu_milli=requests.get("cpu", 100),
        nonzero_memory_bytes=requests.get("memory", 200 * MIB),
        node_selector=selector,
        tolerations=tolerations,
        devices=devices,
    )
    return PodTemplate(spec, qos_class=QosClass.GUARANTEED, owner_kind=owner)
