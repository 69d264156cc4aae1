"""Checks SubmitRequest messages and converts them to orders of the core. The first fault refuses the whole
message.

This runs for every template and every name of a submission. So it reads messages directly, and decodes no
template into the model.
"""

import re
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from dispatcher.core.pods.gangs import MAX_GANG_PODS
from dispatcher.core.pods.sets import NewGang, NewJob, NewPods, NewTemplate, Order
from dispatcher.core.pods.templates import TemplateKind, too_many_terms
from hoss.errors import InvalidInput, quoted
from hoss.manifests.fields import check_key, check_name, check_namespace
from hoss.manifests.pod import during_execution, movable
from hoss.model.pod import QosClass
from hoss.model.resources import MAX_AMOUNT
from hoss.model.slices import Steps, finished
from hoss.v1 import common_pb2
from hoss.v1 import dispatcher_pb2 as pb
from hoss.wire.columns import U32, decode, decode_uids
from hoss.wire.convert_selectors import labels_from_proto

MAX_REPLICAS = 10_000_000

_NAME_MICROS, _BYTE_MICROS = 0.5, 0.003
_TEMPLATE_MICROS = 15.0

_QOS_CLASSES = {"": QosClass.BEST_EFFORT} | {qos.value: qos for qos in QosClass}

# Nearly all names are one DNS label. The others get the full check.
_PLAIN_NAME = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")


def read_order(message: pb.SubmitRequest) -> Order:
    """The order of a message. Raises InvalidInput naming field and value."""
    return finished(reading_order(message))


def reading_order(message: pb.SubmitRequest, max_pod_terms: int | None = None) -> Steps[Order]:
    """`read_order` in slices. `max_pod_terms`: see DispatcherConfig; None: any number, as for what was
    accepted under another limit."""
    kinds: dict[tuple[str, ...], TemplateKind] = {}
    read: list[NewTemplate] = []
    for number, template in enumerate(message.templates):
        found = _template(template, number, kinds)
        if found.has_pod_rules and max_pod_terms is not None:
            _check_terms(template.spec, max_pod_terms, number)
        read.append(found)
        yield _TEMPLATE_MICROS
    templates = tuple(read)
    if not message.jobs and not message.pods.names:
        raise InvalidInput("is empty: give jobs, or pods with names", where="submit")
    gangs = [_gang(gang, i) for i, gang in enumerate(message.gangs)]
    jobs = []
    for number, job in enumerate(message.jobs):
        new = _job(job, number, len(templates), len(message.gangs))
        if job.min_available:
            new = replace(new, gang=len(gangs))
            gangs.append(_gang_of_job(job, number, templates[job.template].kind.namespace))
        jobs.append(new)
    pods = _pods(message.pods, len(templates), len(message.gangs)) if message.pods.names else None
    yield len(message.pods.names) * _NAME_MICROS
    record_bytes = message.ByteSize()
    yield record_bytes * _BYTE_MICROS
    order = Order(
        request_id=message.request_id,
        templates=templates,
        jobs=tuple(jobs),
        pods=pods,
        gangs=tuple(gangs),
        record_bytes=record_bytes,
        submitted_by=message.submitted_by,
    )
    _check_members(order)
    return order


def read_template(message: pb.PodTemplate) -> NewTemplate:
    """A template by itself. Raises InvalidInput."""
    return _template(message, 0, {})


def _template(
    message: pb.PodTemplate, number: int, kinds: dict[tuple[str, ...], TemplateKind]
) -> NewTemplate:
    spec = message.spec
    if any(not 0 <= a.amount <= MAX_AMOUNT for a in spec.requests):
        bad = next(a for a in spec.requests if not 0 <= a.amount <= MAX_AMOUNT)
        raise InvalidInput(
            f"{bad.amount} of {quoted(bad.resource)} is not from 0 to 2^53",
            where=f"templates[{number}].spec.requests",
        )
    if not (0 <= spec.nonzero_cpu_milli <= MAX_AMOUNT and 0 <= spec.nonzero_memory_bytes <= MAX_AMOUNT):
        raise InvalidInput("an amount is not from 0 to 2^53", where=f"templates[{number}].spec.nonzero_*")
    _check_maps(spec, number)
    parts = (
        spec.namespace,
        message.scheduler_name,
        message.priority_class_name,
        message.qos_class,
        message.owner_kind,
        message.required_during_execution,
        str(message.termination_grace_seconds),
        message.movable,
        *spec.scheduling_gates,
        *(f"{limit.resource}={limit.amount}" for limit in message.limits),
    )
    kind = kinds.get(parts)
    if kind is None:  # checked once: a message has few kinds
        kind = kinds[parts] = _kind(message, number)
    if kind.gates:
        # A copy: the journal gets the message unchanged.
        spec = common_pb2.PodSpec()
        spec.CopyFrom(message.spec)
        spec.ClearField("scheduling_gates")
    rules = spec.host_ports or spec.spread or spec.HasField("pod_affinity") or spec.HasField("volumes")
    return NewTemplate(spec.SerializeToString(deterministic=True), kind, spec.priority, bool(rules))


def _check_maps(spec: common_pb2.PodSpec, number: int) -> None:
    """What would be refused where the class is decoded must not be accepted."""
    for field in ("labels", "node_selector"):
        entries = getattr(spec, field)
        if len(entries) > 1:
            labels_from_proto(entries, f"templates[{number}].spec.{field}")


def _check_terms(spec: common_pb2.PodSpec, most: int, number: int) -> None:
    affinity = spec.pod_affinity
    required = len(affinity.required) + len(affinity.anti_required)
    terms = required + len(affinity.preferred) + len(affinity.anti_preferred) + len(spec.spread)
    if terms > most:
        raise InvalidInput(too_many_terms(terms, most), where=f"templates[{number}].spec")


def _kind(message: pb.PodTemplate, number: int) -> TemplateKind:
    where = f"templates[{number}]"
    if message.qos_class not in _QOS_CLASSES:
        allowed = ", ".join(qos.value for qos in QosClass)
        raise InvalidInput(f"{quoted(message.qos_class)} is none of {allowed}", where=f"{where}.qos_class")
    return TemplateKind(
        check_namespace(message.spec.namespace, f"{where}.spec.namespace"),
        message.scheduler_name,
        message.priority_class_name,
        _QOS_CLASSES[message.qos_class],
        message.owner_kind,
        message.termination_grace_seconds,
        tuple(
            sorted(
                {check_key(gate, f"{where}.spec.scheduling_gates") for gate in message.spec.scheduling_gates}
            )
        ),
        during_execution(message.required_during_execution, f"{where}.required_during_execution"),
        tuple((limit.resource, limit.amount) for limit in message.limits),
        movable(message.movable, f"{where}.movable"),
    )


def _gang(message: pb.Gang, number: int) -> NewGang:
    where = f"gangs[{number}]"
    if not 1 <= message.min_available <= MAX_GANG_PODS:
        raise InvalidInput(
            f"{message.min_available} is not from 1 to {MAX_GANG_PODS}, "
            "which is as many as the ledger decides at once",
            where=f"{where}.min_available",
        )
    namespace = check_namespace(message.namespace, f"{where}.namespace")
    return NewGang(namespace, check_name(message.name, f"{where}.name"), message.min_available)


def _gang_of_job(job: pb.Job, number: int, namespace: str) -> NewGang:
    where = f"jobs[{number}]"
    if job.gang:
        raise InvalidInput(
            f"is in gang {job.gang} and has a min_available of its own; give one of them", where=where
        )
    if job.min_available > min(job.replicas, MAX_GANG_PODS):
        most = (
            f"{job.replicas} replicas" if job.replicas <= MAX_GANG_PODS else f"{MAX_GANG_PODS} pods of a gang"
        )
        raise InvalidInput(f"{job.min_available} is over its {most}", where=f"{where}.min_available")
    return NewGang(namespace, job.name, job.min_available)


def _check_members(order: Order) -> None:
    """Raises InvalidInput for a gang with fewer pods than its minimum: it would wait for ever."""
    if not order.gangs:
        return
    members = np.zeros(len(order.gangs), np.int64)
    for job in order.jobs:
        if job.gang is not None:
            members[job.gang] += job.replicas
    if order.pods is not None and order.pods.gangs is not None:
        numbers = order.pods.gangs[order.pods.gangs > 0]
        members += np.bincount(numbers - 1, minlength=len(members))
    for number, (gang, count) in enumerate(zip(order.gangs, members.tolist(), strict=True)):
        if gang.minimum > count:
            raise InvalidInput(
                f"{gang.minimum} is over the {count} pods of gang {gang.namespace}/{gang.name} "
                "in this message; all of them must come in one",
                where=f"gangs[{number}].min_available",
            )


def _job(message: pb.Job, number: int, templates: int, gangs: int) -> NewJob:
    where = f"jobs[{number}]"
    check_name(message.name, f"{where}.name")
    if message.template >= templates:
        raise InvalidInput(
            f"{message.template} names no template; there are {templates}", where=f"{where}.template"
        )
    if not 1 <= message.replicas <= MAX_REPLICAS:
        raise InvalidInput(f"{message.replicas} is not from 1 to {MAX_REPLICAS}", where=f"{where}.replicas")
    if message.gang > gangs:
        raise InvalidInput(f"{message.gang} names no gang; there are {gangs}", where=f"{where}.gang")
    return NewJob(
        message.name, message.template, message.replicas, message.gang - 1 if message.gang else None
    )


def _pods(message: pb.PodList, templates: int, gangs: int) -> NewPods:
    names = tuple(message.names)
    for name in names:
        if not _PLAIN_NAME.fullmatch(name):
            check_name(name, "pods.names")
    numbers: NDArray[np.uint32] = decode(message.templates, U32, name="pods.templates", rows=len(names))
    if numbers.max() >= templates:
        raise InvalidInput(
            f"{numbers.max()} names no template; there are {templates}", where="pods.templates"
        )
    uids = decode_uids(message.uids, name="pods.uids", rows=len(names)) if message.uids else None
    of_gangs = decode(message.gangs, U32, name="pods.gangs", rows=len(names)) if message.gangs else None
    if of_gangs is not None and of_gangs.max() > gangs:
        raise InvalidInput(f"{of_gangs.max()} names no gang; there are {gangs}", where="pods.gangs")
    return NewPods(names, numbers, uids, of_gangs)
