"""From the metadata and spec of a pod, as YAML or JSON gave them, to the template that HOSS schedules by."""

from dataclasses import replace

from hoss.errors import InvalidInput
from hoss.model.during_execution import read_during_execution
from hoss.model.fields import Object, integer, mapping, mappings, text
from hoss.model.names import check_key, check_namespace, read_labels
from hoss.model.placement_manifest import read_host_ports, read_node_affinity, read_tolerations
from hoss.model.pod import Amounts, DeviceRequest, PodSpec, PodTemplate
from hoss.model.pod_requests import amounts, binding_limits, nonzero_requests, qos_class, total_requests
from hoss.model.pod_resources import PodResources, read_pod_resources
from hoss.model.pod_rules_manifest import read_pod_affinity, read_spread_constraints
from hoss.model.resources import DEVICE_RESOURCE, DEVICE_SHARE_RESOURCE, MAX_CARDS

DEFAULT_NAMESPACE = "default"
_MOST_GRACE_SECONDS = 2**31 // 1000  # so that milliseconds of it stand in 32 bits

# The two classes that every Kubernetes cluster has. Others are PriorityClass objects, which the dispatcher knows.
WELL_KNOWN_PRIORITIES = {"system-node-critical": 2_000_001_000, "system-cluster-critical": 2_000_000_000}


def read_pod_template(
    metadata: Object, spec: Object, path: str, *, namespace: str, owner_kind: str = ""
) -> PodTemplate:
    """The template of a pod. `metadata` gives the labels; `path` is the place of both, such as "spec.template".

    Raises InvalidInput with the field's path, the value given and what would be right.
    """
    place = f"{path}.spec" if path else "spec"
    resources = read_pod_resources(spec, place)
    requests = amounts(total_requests(resources), place)
    devices = _read_devices(requests, place)
    cpu_milli, memory_bytes = nonzero_requests(resources)
    required, preferred = read_node_affinity(spec, place) if spec.get("affinity") else (None, ())
    priority_class = text(spec, "priorityClassName", place)
    labels = read_labels(metadata, "labels", f"{path}.metadata" if path else "metadata")
    pod_affinity = None
    if spec.get("affinity"):
        pod_affinity = read_pod_affinity(spec, place, namespace=namespace, labels=dict(labels))
    return PodTemplate(
        spec=PodSpec(
            namespace=namespace,
            labels=labels,
            priority=_read_priority(spec, priority_class, place),
            requests=_listed(requests),
            nonzero_cpu_milli=cpu_milli,
            nonzero_memory_bytes=memory_bytes,
            node_name=text(spec, "nodeName", place),
            node_selector=read_labels(spec, "nodeSelector", place),
            required_node_affinity=required,
            preferred_node_affinity=preferred,
            tolerations=read_tolerations(spec, place) if spec.get("tolerations") else (),
            host_ports=read_host_ports(spec, place),
            devices=devices,
            pending_nonzero=_pending_nonzero(resources),
            pod_affinity=pod_affinity,
            spread=read_spread_constraints(spec, place, labels=dict(labels)),
            images=_read_images(spec, place),
            image_containers=len(resources.containers) + len(resources.init_containers),
            scheduling_gates=_read_scheduling_gates(spec, place),
            may_preempt=read_preemption_policy(spec, place),
        ),
        scheduler_name=text(spec, "schedulerName", place, default="hoss"),
        priority_class_name=priority_class,
        qos_class=qos_class(resources),
        owner_kind=owner_kind,
        during_execution=read_during_execution(metadata, f"{path}.metadata" if path else "metadata"),
        termination_grace_seconds=integer(
            spec, "terminationGracePeriodSeconds", place, least=0, most=_MOST_GRACE_SECONDS, default=0
        ),
        limits=_listed(amounts(binding_limits(resources), place)),
    )


def read_namespace(metadata: Object, path: str) -> str:
    """metadata.namespace, "default" where it is missing."""
    namespace = text(metadata, "namespace", path) or DEFAULT_NAMESPACE
    return check_namespace(namespace, f"{path}.namespace")


def rules_not_obeyed(spec: Object) -> tuple[str, ...]:
    """The parts of a pod spec that HOSS reads over, though they would restrict placing."""
    return ("spec.resourceClaims",) if spec.get("resourceClaims") else ()


def _pending_nonzero(resources: PodResources) -> tuple[int, int] | None:
    if resources.pod_level is None:
        return None
    return nonzero_requests(replace(resources, pod_level=None))


def _read_images(spec: Object, path: str) -> tuple[str, ...]:
    images = [
        _with_tag(text(container, "image", f"{path}.{kind}[{i}]"))
        for kind in ("containers", "initContainers")
        for i, container in enumerate(mappings(spec, kind, path))
    ]
    for i, volume in enumerate(mappings(spec, "volumes", path)):
        place = f"{path}.volumes[{i}]"
        images.append(_with_tag(text(mapping(volume, "image", place), "reference", f"{place}.image")))
    return tuple(sorted(filter(None, images)))


def _with_tag(image: str) -> str:
    # A colon before the last slash belongs to a registry's port.
    return f"{image}:latest" if image and ":" not in image.rpartition("/")[2] else image


def _read_scheduling_gates(spec: Object, path: str) -> tuple[str, ...]:
    gates = set()
    for i, gate in enumerate(mappings(spec, "schedulingGates", path)):
        place = f"{path}.schedulingGates[{i}].name"
        gates.add(check_key(text(gate, "name", f"{path}.schedulingGates[{i}]"), place))
    return tuple(sorted(gates))


def read_preemption_policy(spec: Object, path: str) -> bool:
    """Whether preemptionPolicy lets pods preempt."""
    policy = text(spec, "preemptionPolicy", path) or "PreemptLowerPriority"
    if policy not in ("PreemptLowerPriority", "Never"):
        raise InvalidInput(f"is {policy!r}; allowed: PreemptLowerPriority, Never", where=f"{path}.preemptionPolicy")
    return policy != "Never"


def _read_priority(spec: Object, priority_class: str, path: str) -> int:
    default = WELL_KNOWN_PRIORITIES.get(priority_class, 0)
    return integer(spec, "priority", path, least=-(2**31), most=2**31 - 1, default=default)


def _read_devices(requests: dict[str, int], path: str) -> DeviceRequest | None:
    # Whole cards stay in `requests` too, where the node's count of them limits them like any resource. A share is
    # no amount of the node: it must fit on one card, which only the record of cards knows.
    cards = requests.get(DEVICE_RESOURCE, 0)
    milli = requests.pop(DEVICE_SHARE_RESOURCE, None)
    if milli is not None:
        if not 1 <= milli < 1000:
            raise InvalidInput(
                f"is {milli} in all; a share of a card is 1 to 999 thousandths, whole cards are asked for as {DEVICE_RESOURCE}",
                where=f"{path}: {DEVICE_SHARE_RESOURCE}",
            )
        if cards:
            raise InvalidInput(
                f"is asked for beside {DEVICE_RESOURCE}; a pod takes whole cards or a share of one",
                where=f"{path}: {DEVICE_SHARE_RESOURCE}",
            )
        return DeviceRequest(1, milli)
    if cards > MAX_CARDS:
        raise InvalidInput(
            f"is {cards} in all; no node can have more than {MAX_CARDS} cards", where=f"{path}: {DEVICE_RESOURCE}"
        )
    return DeviceRequest(cards, 1000) if cards else None


def _listed(requests: dict[str, int]) -> Amounts:
    # Asking for zero is asking for nothing: left out, so that such pods are of one class.
    return tuple(sorted((name, amount) for name, amount in requests.items() if amount))
