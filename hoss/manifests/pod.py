"""Reads a pod's metadata and spec into the template that HOSS schedules by."""

from dataclasses import replace

from hoss.errors import InvalidInput, quoted
from hoss.manifests.fields import (
    Object,
    boolean,
    check_key,
    check_namespace,
    choice,
    integer,
    mapping,
    mappings,
    read_labels,
    text,
)
from hoss.manifests.placement import read_host_ports, read_node_affinity, read_tolerations
from hoss.manifests.pod_resources import (
    PodResources,
    amounts,
    binding_limits,
    nonzero_requests,
    qos_class,
    read_pod_resources,
    total_requests,
)
from hoss.manifests.pod_rules import read_pod_affinity, read_spread_constraints
from hoss.model.pod import DeviceRequest, DuringExecution, Movable, PodSpec, PodTemplate
from hoss.model.resources import DEVICE_RESOURCE, DEVICE_SHARE_RESOURCE, MAX_CARDS, Amounts

ANNOTATION = "hoss.dev/required-during-execution"
MOVABLE_ANNOTATION = "hoss.dev/movable"
DEFAULT_NAMESPACE = "default"
_MOST_GRACE_SECONDS = 2**31 // 1000  # its milliseconds must fit in 32 bits

# The two classes that every Kubernetes cluster has. The dispatcher has the others, from objects.
WELL_KNOWN_PRIORITIES = {"system-node-critical": 2_000_001_000, "system-cluster-critical": 2_000_000_000}


def read_pod_template(
    metadata: Object, spec: Object, path: str, *, namespace: str, owner_kind: str = ""
) -> PodTemplate:
    """The template of a pod. `path` is the place of `metadata` and `spec`, such as "spec.template".

    Raises InvalidInput with the field's path, the value given and what would be right."""
    place = f"{path}.spec" if path else "spec"
    metadata_place = f"{path}.metadata" if path else "metadata"
    resources = read_pod_resources(spec, place)
    requests = amounts(total_requests(resources), place)
    devices = _read_devices(requests, place)
    cpu_milli, memory_bytes = nonzero_requests(resources)
    required, preferred = read_node_affinity(spec, place)
    priority_class = text(spec, "priorityClassName", place)
    labels = read_labels(metadata, "labels", metadata_place)
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
            tolerations=read_tolerations(spec, place),
            host_ports=read_host_ports(spec, place),
            devices=devices,
            pending_nonzero=_pending_nonzero(resources),
            pod_affinity=read_pod_affinity(spec, place, namespace=namespace, labels=dict(labels)),
            spread=read_spread_constraints(spec, place, labels=dict(labels)),
            images=_read_images(spec, place),
            image_containers=len(resources.containers) + len(resources.init_containers),
            scheduling_gates=_read_scheduling_gates(spec, place),
            required_features=_read_required_features(spec, place),
            may_preempt=read_preemption_policy(spec, place),
        ),
        scheduler_name=text(spec, "schedulerName", place, default="hoss"),
        priority_class_name=priority_class,
        qos_class=qos_class(resources),
        owner_kind=owner_kind,
        during_execution=read_during_execution(metadata, metadata_place),
        termination_grace_seconds=integer(
            spec, "terminationGracePeriodSeconds", place, least=0, most=_MOST_GRACE_SECONDS, default=0
        ),
        limits=_listed(amounts(binding_limits(resources), place)),
        movable=read_movable(metadata, metadata_place),
    )


def read_namespace(metadata: Object, path: str) -> str:
    """metadata.namespace; "default" where it is missing."""
    namespace = text(metadata, "namespace", path) or DEFAULT_NAMESPACE
    return check_namespace(namespace, f"{path}.namespace")


def rules_not_obeyed(spec: Object) -> tuple[str, ...]:
    """The fields of a pod spec that restrict placement in Kubernetes and that HOSS ignores."""
    return ("spec.resourceClaims",) if spec.get("resourceClaims") else ()


def during_execution(value: str, where: str) -> DuringExecution:
    """Raises InvalidInput for an unknown value."""
    try:
        return DuringExecution(value)
    except ValueError:
        raise InvalidInput(f"is {quoted(value)}; allowed: report, evict", where=where) from None


def read_during_execution(metadata: Object, path: str) -> DuringExecution:
    """The annotation ANNOTATION. Raises InvalidInput for an unknown value."""
    annotations = mapping(metadata, "annotations", path)
    where = f"{path}.annotations"
    return during_execution(text(annotations, ANNOTATION, where), f"{where}[{ANNOTATION}]")


def movable(value: str, where: str) -> Movable:
    """Raises InvalidInput for an unknown value."""
    try:
        return Movable(value)
    except ValueError:
        raise InvalidInput(f'is {quoted(value)}; allowed: "true", "false"', where=where) from None


def read_movable(metadata: Object, path: str) -> Movable:
    """The annotation MOVABLE_ANNOTATION. Raises InvalidInput for an unknown value."""
    annotations = mapping(metadata, "annotations", path)
    where = f"{path}.annotations"
    return movable(text(annotations, MOVABLE_ANNOTATION, where), f"{where}[{MOVABLE_ANNOTATION}]")


def read_preemption_policy(spec: Object, path: str) -> bool:
    """Whether preemptionPolicy lets pods preempt."""
    default = "PreemptLowerPriority"
    return choice(spec, "preemptionPolicy", path, (default, "Never"), default) != "Never"


def _read_priority(spec: Object, priority_class: str, path: str) -> int:
    default = WELL_KNOWN_PRIORITIES.get(priority_class, 0)
    return integer(spec, "priority", path, least=-(2**31), most=2**31 - 1, default=default)


def _read_devices(requests: dict[str, int], path: str) -> DeviceRequest | None:
    # Whole cards also stay in `requests`: the node's number of cards limits them like any resource. A share
    # leaves `requests`: it must fit on one card, and only the record of the cards shows that.
    cards = requests.get(DEVICE_RESOURCE, 0)
    milli = requests.pop(DEVICE_SHARE_RESOURCE, None)
    if milli is not None:
        where = f"{path}: {DEVICE_SHARE_RESOURCE}"
        if not 1 <= milli < 1000:
            rule = (
                f"a share of a card is 1 to 999 thousandths, whole cards are asked for as {DEVICE_RESOURCE}"
            )
            raise InvalidInput(f"is {milli} in all; {rule}", where=where)
        if cards:
            problem = f"is asked for beside {DEVICE_RESOURCE}; a pod takes whole cards or a share of one"
            raise InvalidInput(problem, where=where)
        return DeviceRequest(1, milli)
    if cards > MAX_CARDS:
        problem = f"is {cards} in all; no node can have more than {MAX_CARDS} cards"
        raise InvalidInput(problem, where=f"{path}: {DEVICE_RESOURCE}")
    return DeviceRequest(cards, 1000) if cards else None


def _listed(requests: dict[str, int]) -> Amounts:
    # A request of zero is left out, so that such a pod is in the same class as a pod without the request.
    return tuple(sorted((name, amount) for name, amount in requests.items() if amount))


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


def _read_required_features(spec: Object, path: str) -> tuple[str, ...]:
    """The kubelet's features without which a pod does not run as it says (k8s.io/component-helpers,
    nodedeclaredfeatures of 1.36). Its other features matter to updates of pods only."""
    found = []
    for kind in ("containers", "initContainers"):
        for i, container in enumerate(mappings(spec, kind, path)):
            place = f"{path}.{kind}[{i}]"
            for j, rule in enumerate(mappings(container, "restartPolicyRules", place)):
                if text(rule, "action", f"{place}.restartPolicyRules[{j}]") == "RestartAllContainers":
                    found.append("RestartAllContainersOnContainerExits")
    if boolean(spec, "hostNetwork", path) and spec.get("hostUsers") is False:
        found.append("UserNamespacesHostNetworkSupport")
    return tuple(sorted(set(found)))
