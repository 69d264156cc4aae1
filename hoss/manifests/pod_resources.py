"""A pod's resources from its manifest: checked, completed with the API server's defaults, and summed up.

The sums are a pod's requests, limits and QoS class, by the rules of kube-scheduler and kubelet of 1.36
(component-helpers' resource package with KEP-753 sidecars, core/v1 helper/qos). Amounts that the ledger
cannot hold or that a node never grants are errors: negative requests, amounts beyond 2^53, fractions of an
extended resource, requests above their limit, and hugepages whose request differs from their limit."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from hoss.errors import InvalidInput, quoted
from hoss.manifests.fields import Object, check_key, mapping, mappings, text
from hoss.model.pod import QosClass
from hoss.model.quantity import Quantity, parse_quantity, read_quantity
from hoss.model.resources import MAX_AMOUNT

HUGEPAGES_PREFIX = "hugepages-"
_CONTAINER_RESOURCES = ("cpu", "memory", "ephemeral-storage")
_POD_LEVEL_RESOURCES = ("cpu", "memory")

# What scores count for a container without a request of cpu or memory (kube-scheduler's GetNonzeroRequests).
_DEFAULT_REQUESTS = {"cpu": Quantity(100 * 10**6), "memory": Quantity(200 * 2**20 * 10**9)}

Resources = dict[str, Quantity]  # by resource name


class Container(NamedTuple):
    """One container's resources. A missing request has the value of its limit."""

    name: str
    requests: Resources
    limits: Resources
    sidecar: bool = False  # an init container with restartPolicy Always: it runs as long as the pod


class PodLevel(NamedTuple):
    """The pod's own spec.resources (KEP-2837)."""

    requests: Resources
    limits: Resources


@dataclass(frozen=True, slots=True)
class PodResources:
    """The declarations that decide what a pod takes."""

    containers: tuple[Container, ...]
    init_containers: tuple[Container, ...] = ()
    pod_level: PodLevel | None = None
    overhead: Resources = field(default_factory=dict)


def read_pod_resources(spec: Object, path: str) -> PodResources:
    """The resources of a pod spec. Raises InvalidInput with the field's path."""
    containers, init_containers = (
        tuple(_read_container(c, f"{path}.{kind}[{i}]") for i, c in enumerate(mappings(spec, kind, path)))
        for kind in ("containers", "initContainers")
    )
    if not containers:
        raise InvalidInput("is empty; a pod has at least one container", where=f"{path}.containers")
    resources = PodResources(containers, init_containers, overhead=read_amounts(spec, "overhead", path))
    if spec.get("resources") is not None:
        resources = replace(resources, pod_level=_read_pod_level(spec, resources, path))
    return resources


def as_bound(resources: PodResources, status: Object) -> PodResources:
    """The resources of a pod that runs on a node, by the pod's status.

    A container whose status reports resources takes the largest of its requested, allocated and actual
    requests, and so does the pod as a whole for its pod-level requests. The requested amount does not count
    while a resize is infeasible (KEP-1287, KEP-5419)."""
    pending = [c for c in mappings(status, "conditions", "status") if c.get("type") == "PodResizePending"]
    infeasible = bool(pending) and pending[0].get("reason") == "Infeasible"

    def largest_of(requests: Resources, report: Object, place: str) -> Resources:
        largest = {} if infeasible else dict(requests)
        actual = read_amounts(mapping(report, "resources", place), "requests", f"{place}.resources")
        for reported in (actual, read_amounts(report, "allocatedResources", place)):
            for name, quantity in reported.items():
                if name not in largest or quantity.nano > largest[name].nano:
                    largest[name] = quantity
        return largest

    def in_use(container: Container, reports: dict[str, Object], place: str) -> Container:
        report = reports.get(container.name)
        if report is None or report.get("resources") is None:
            return container
        return container._replace(requests=largest_of(container.requests, report, place))

    pod_level = resources.pod_level
    if pod_level is not None and status.get("resources") is not None:
        largest = largest_of(pod_level.requests, status, "status")
        pod_level = pod_level._replace(
            requests={name: largest.get(name, Quantity(0)) for name in pod_level.requests}
        )

    reports = _by_name(status, "containerStatuses")
    init_reports = _by_name(status, "initContainerStatuses")
    return replace(
        resources,
        pod_level=pod_level,
        containers=tuple(
            in_use(c, reports, f"status.containerStatuses[{c.name}]") for c in resources.containers
        ),
        init_containers=tuple(
            in_use(c, init_reports, f"status.initContainerStatuses[{c.name}]") if c.sidecar else c
            for c in resources.init_containers
        ),
    )


def total_requests(pod: PodResources) -> Resources:
    """The sum of the pod's requests, with its overhead."""
    return _requests_of(pod, lambda c: c.requests)


def total_limits(pod: PodResources) -> Resources:
    """The sum of the pod's limits. Overhead counts only for resources that have a limit."""
    total = _container_total(pod, lambda c: c.limits)
    if pod.pod_level is not None:
        total.update(pod.pod_level.limits)
    _add(total, {name: more for name, more in pod.overhead.items() if name in total and total[name].nano})
    return total


def binding_limits(pod: PodResources) -> Resources:
    """Limits of the pod as a whole: `total_limits` for the resources that the pod itself or every container
    limits. A pod with an unlimited container may use all that the node has."""
    total = total_limits(pod)
    own = pod.pod_level.limits if pod.pod_level is not None else {}
    running = [*pod.containers, *(container for container in pod.init_containers if container.sidecar)]
    return {
        name: limit
        for name, limit in total.items()
        if limit.nano and (name in own or all(name in c.limits and c.limits[name].nano for c in running))
    }


def nonzero_requests(pod: PodResources) -> tuple[int, int]:
    """The sum of the requests as scores count them: (cpu in thousandths, memory in bytes).

    A container without a request counts 100m and 200 MiB; a request of zero is a request. In a pod with
    pod-level requests these defaults apply only to what the pod's total does not name."""
    defaults: Resources = _DEFAULT_REQUESTS
    if pod.pod_level is not None and pod.pod_level.requests:
        named = total_requests(pod)
        defaults = {name: quantity for name, quantity in defaults.items() if name not in named}
    total = _requests_of(
        pod, lambda c: defaults | {name: q for name, q in c.requests.items() if name in _DEFAULT_REQUESTS}
    )
    return (total["cpu"].milli, total["memory"].value)


def qos_class(pod: PodResources) -> QosClass:
    """The class by cpu and memory, of the pod-level resources if there are any. Zero counts as missing."""
    parts = [pod.pod_level] if pod.pod_level is not None else [*pod.containers, *pod.init_containers]
    requests: dict[str, int] = {}
    limits: dict[str, int] = {}
    all_limited = True
    for part in parts:
        for name in _DEFAULT_REQUESTS:
            request, limit = part.requests.get(name), part.limits.get(name)
            if request is not None and request.nano:
                requests[name] = requests.get(name, 0) + request.nano
            if limit is not None and limit.nano:
                limits[name] = limits.get(name, 0) + limit.nano
            else:
                all_limited = False
    if not requests and not limits:
        return QosClass.BEST_EFFORT
    return QosClass.GUARANTEED if all_limited and requests == limits else QosClass.BURSTABLE


def amounts(total: Resources, path: str) -> dict[str, int]:
    """A total in schema units, rounded up. Raises InvalidInput for more than 2^53."""
    for name, quantity in total.items():
        check_amount(name, quantity, f"{path}: total of {name}")
    return {name: q.milli if name == "cpu" else q.value for name, q in total.items()}


def read_amounts(parent: Object, key: str, path: str) -> Resources:
    """A mapping of quantities by resource name, checked; missing is empty."""
    found: Resources = {}
    for name, given in mapping(parent, key, path).items():
        place = f"{path}.{key}.{name}"
        try:
            quantity = read_quantity(given)
        except InvalidInput as exc:
            raise exc.at(place) from None
        check_key(name, f"{path}.{key}")
        found[name] = check_amount(name, quantity, place)
    return found


def check_amount(name: str, quantity: Quantity, path: str) -> Quantity:
    """A quantity that the ledger can hold: not negative, at most 2^53 in schema units."""
    if quantity.nano < 0:
        raise InvalidInput(f"is {quantity.canonical}; an amount cannot be negative", where=path)
    amount = quantity.milli if name == "cpu" else quantity.value
    if amount > MAX_AMOUNT:
        unit = "thousandths of a core" if name == "cpu" else "whole units"
        limit = f"HOSS counts up to 2^53 = {MAX_AMOUNT}, so ask for less"
        raise InvalidInput(f"is {quantity.canonical}, {quoted(amount)} {unit}; {limit}", where=path)
    return quantity


def _read_container(container: Object, path: str) -> Container:
    declared = mapping(container, "resources", path)
    sidecar = text(container, "restartPolicy", path) == "Always"
    name = text(container, "name", path)
    place = f"{path}.resources"
    limits = read_amounts(declared, "limits", place)
    requests = read_amounts(declared, "requests", place)
    for resource in {**limits, **requests}:
        _check_container_resource(resource, limits.get(resource) or requests[resource], place)
    for resource, limit in limits.items():
        requests.setdefault(resource, limit)
    _check_against_limits(requests, limits, place)
    return Container(name, requests, limits, sidecar)


def _read_pod_level(spec: Object, resources: PodResources, path: str) -> PodLevel:
    declared, place = mapping(spec, "resources", path), f"{path}.resources"
    limits, requests = read_amounts(declared, "limits", place), read_amounts(declared, "requests", place)
    for resource in {**limits, **requests}:
        if resource not in _POD_LEVEL_RESOURCES and not resource.startswith(HUGEPAGES_PREFIX):
            problem = f"{quoted(resource)} cannot be set for a whole pod; cpu, memory and hugepages can"
            raise InvalidInput(problem, where=place)
    if limits:
        totals = _container_total(resources, lambda c: c.requests)
        for resource in _POD_LEVEL_RESOURCES:
            if resource in totals:
                requests.setdefault(resource, totals[resource])
        for resource, limit in limits.items():
            requests.setdefault(resource, limit)
    _check_against_limits(requests, limits, place)
    return PodLevel(requests, limits)


def _by_name(status: Object, key: str) -> dict[str, Object]:
    return {text(report, "name", f"status.{key}"): report for report in mappings(status, key, "status")}


def _check_container_resource(name: str, quantity: Quantity, path: str) -> None:
    if name in _CONTAINER_RESOURCES:
        return
    if name.startswith(HUGEPAGES_PREFIX):
        _check_hugepages(name, quantity, path)
    elif "/" not in name:
        known = ", ".join(_CONTAINER_RESOURCES)
        raise InvalidInput(
            f"{quoted(name)} is no resource of a container: {known}, hugepages-<size> or an extended resource"
            " such as example.com/fpga",
            where=path,
        )
    elif not quantity.whole:
        problem = f"{name} is {quantity.canonical}; an extended resource is counted in whole pieces"
        raise InvalidInput(problem, where=path)


def _check_hugepages(name: str, quantity: Quantity, path: str) -> None:
    size = name.removeprefix(HUGEPAGES_PREFIX)
    try:
        page = parse_quantity(size)
    except InvalidInput as exc:
        raise InvalidInput(f"{quoted(name)} names no page size: {exc.text}", where=path) from None
    if page.nano <= 0 or quantity.nano % page.nano:
        problem = f"{name} is {quantity.canonical}, which is no multiple of the page size {size}"
        raise InvalidInput(problem, where=path)


def _check_against_limits(requests: Resources, limits: Resources, path: str) -> None:
    for name, request in requests.items():
        limit = limits.get(name)
        problem = ""
        if name.startswith(HUGEPAGES_PREFIX):
            if limit is None and request.nano:
                problem = " without a limit; hugepages are never overcommitted, so set the same limit"
            elif limit is not None and request.nano != limit.nano:
                rule = "hugepages are never overcommitted: make them equal"
                problem = f", but the limit is {limit.canonical}; {rule}"
        elif limit is not None and request.nano > limit.nano:
            problem = f", but the limit is {limit.canonical}; a request is at most its limit"
        if problem:
            raise InvalidInput(f"is {request.canonical}{problem}", where=f"{path}.requests.{name}")


def _requests_of(pod: PodResources, of: Callable[[Container], Resources]) -> Resources:
    total = _container_total(pod, of)
    if pod.pod_level is not None:
        total.update(pod.pod_level.requests)
    _add(total, pod.overhead)
    return total


def _container_total(pod: PodResources, of: Callable[[Container], Resources]) -> Resources:
    """What the pod's containers take together. `of`: the amounts of one container.

    The sum of containers and sidecars, but of each resource no less than any step of initialisation needs. An
    ordinary init container runs beside the sidecars before it."""
    total: Resources = {}
    for container in pod.containers:
        _add(total, of(container))
    steps: Resources = {}
    sidecars: Resources = {}
    for container in pod.init_containers:
        resources = of(container)
        if container.sidecar:
            _add(total, resources)
            _add(sidecars, resources)
            _raise_to(steps, sidecars)
        else:
            step = dict(resources)
            _add(step, sidecars)
            _raise_to(steps, step)
    _raise_to(total, steps)
    return total


def _add(total: Resources, more: Resources) -> None:
    for name, quantity in more.items():
        total[name] = total[name].plus(quantity) if name in total else quantity


def _raise_to(total: Resources, least: Resources) -> None:
    for name, quantity in least.items():
        if name not in total or total[name].nano < quantity.nano:
            total[name] = quantity
