"""SubmitRequest messages, checked and turned into orders of the core. All or nothing: the first fault refuses the message.

This runs once per template and once per name, on the path of every distinct pod: it reads messages directly and decodes
no template into the model.
"""

import re
import uuid

import numpy as np
from numpy.typing import NDArray

from dispatcher.core.podsets import NewJob, NewPods, NewTemplate, Order
from dispatcher.core.templates import Kind
from hoss.errors import InvalidInput
from hoss.model.names import check_key, check_name, check_namespace
from hoss.model.pod import QosClass
from hoss.model.resources import MAX_AMOUNT
from hoss.v1 import common_pb2
from hoss.v1 import dispatcher_pb2 as pb
from hoss.wire.columns import U32, decode, decode_uids

MAX_REPLICAS = 10_000_000

_QOS_CLASSES = {"": QosClass.BEST_EFFORT} | {qos.value: qos for qos in QosClass}

# The plainest names, one DNS label, are nearly all there are; the rest go through the full check.
_PLAIN_NAME = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")


def read_order(message: pb.SubmitRequest) -> Order:
    """The order a message gives; a missing request id is made up. Raises InvalidInput naming field and value."""
    kinds: dict[tuple[str, ...], Kind] = {}
    templates = tuple(_template(t, i, kinds) for i, t in enumerate(message.templates))
    if not message.jobs and not message.pods.names:
        raise InvalidInput("is empty: give jobs, or pods with names", where="submit")
    return Order(
        request_id=message.request_id or str(uuid.uuid4()),
        templates=templates,
        jobs=tuple(_job(job, i, len(templates)) for i, job in enumerate(message.jobs)),
        pods=_pods(message.pods, len(templates)) if message.HasField("pods") and message.pods.names else None,
    )


def _template(message: pb.PodTemplate, number: int, kinds: dict[tuple[str, ...], Kind]) -> NewTemplate:
    spec = message.spec
    if any(not 0 <= a.amount <= MAX_AMOUNT for a in spec.requests):
        bad = next(a for a in spec.requests if not 0 <= a.amount <= MAX_AMOUNT)
        raise InvalidInput(
            f"{bad.amount} of {bad.resource!r} is not from 0 to 2^53", where=f"templates[{number}].spec.requests"
        )
    if not (0 <= spec.nonzero_cpu_milli <= MAX_AMOUNT and 0 <= spec.nonzero_memory_bytes <= MAX_AMOUNT):
        raise InvalidInput("an amount is not from 0 to 2^53", where=f"templates[{number}].spec.nonzero_*")
    parts = (
        spec.namespace,
        message.scheduler_name,
        message.priority_class_name,
        message.qos_class,
        message.owner_kind,
        *spec.scheduling_gates,
    )
    kind = kinds.get(parts)
    if kind is None:  # a message has few kinds: what they share is checked once
        kind = kinds[parts] = _kind(message, number)
    if kind.gates:
        # A copy: the journal gets the message as it came.
        spec = common_pb2.PodSpec()
        spec.CopyFrom(message.spec)
        spec.ClearField("scheduling_gates")
    minds_pods = bool(spec.host_ports or spec.spread or spec.HasField("pod_affinity"))
    return NewTemplate(spec.SerializeToString(deterministic=True), kind, spec.priority, minds_pods)


def _kind(message: pb.PodTemplate, number: int) -> Kind:
    where = f"templates[{number}]"
    if message.qos_class not in _QOS_CLASSES:
        allowed = ", ".join(qos.value for qos in QosClass)
        raise InvalidInput(f"{message.qos_class!r} is none of {allowed}", where=f"{where}.qos_class")
    return Kind(
        check_namespace(message.spec.namespace, f"{where}.spec.namespace"),
        message.scheduler_name,
        message.priority_class_name,
        _QOS_CLASSES[message.qos_class],
        message.owner_kind,
        tuple(sorted({check_key(gate, f"{where}.spec.scheduling_gates") for gate in message.spec.scheduling_gates})),
    )


def _job(message: pb.Job, number: int, templates: int) -> NewJob:
    where = f"jobs[{number}]"
    check_name(message.name, f"{where}.name")
    if message.template >= templates:
        raise InvalidInput(f"{message.template} names no template; there are {templates}", where=f"{where}.template")
    if not 1 <= message.replicas <= MAX_REPLICAS:
        raise InvalidInput(f"{message.replicas} is not from 1 to {MAX_REPLICAS}", where=f"{where}.replicas")
    return NewJob(message.name, message.template, message.replicas)


def _pods(message: pb.PodList, templates: int) -> NewPods:
    names = tuple(message.names)
    for name in names:
        if not _PLAIN_NAME.fullmatch(name):
            check_name(name, "pods.names")
    numbers: NDArray[np.uint32] = decode(message.templates, U32, name="pods.templates", rows=len(names))
    if numbers.max() >= templates:
        raise InvalidInput(f"{numbers.max()} names no template; there are {templates}", where="pods.templates")
    uids = decode_uids(message.uids, name="pods.uids", rows=len(names)) if message.uids else None
    return NewPods(names, numbers, uids)
