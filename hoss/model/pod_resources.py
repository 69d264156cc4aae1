"""What a pod's manifest says about resources: read, checked, and defaulted as the API server does.

Refused is what the ledger cannot hold or a node never grant: negative requests, amounts beyond 2^53, fractions of an
extended resource, requests above their limit, and hugepages whose request is not their limit.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

from hoss.errors import InvalidInput
from hoss.model.fields import Object, mapping, mappings, text
from hoss.model.names import check_key
from hoss.model.quantity import Quantity, parse_quantity, read_quantity
from hoss.model.resources import MAX_AMOUNT
from hoss.model.totals import Resources, container_total

HUGEPAGES_PREFIX = "hugepages-"

_CONTAINER_RESOURCES = ("cpu", "memory", "ephemeral-storage")
_POD_LEVEL_RESOURCES = ("cpu", "memory")


class Container(NamedTuple):
    """One container's resources, limits already standing in for requests that are missing."""

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
    """All declarations that decide what a pod takes."""

    containers: tuple[Container, ...]
    init_containers: tuple[Container, ...] = ()
    pod_level: PodLevel | None = None
    overhead: Resources | None = None


def read_pod_resources(spec: Object, path: str) -> PodResources:
    """The resources of a pod spec. Raises InvalidInput with the field's path."""
    containers = tuple(
        _read_container(c, f"{path}.containers[{i}]") for i, c in enumerate(mappings(spec, "containers", path))
    )
    if not containers:
        raise InvalidInput("is empty; a pod has at least one container", where=f"{path}.containers")
    init_containers = tuple(
        _read_container(c, f"{path}.initContainers[{i}]") for i, c in enumerate(mappings(spec, "initContainers", path))
    )
    resources = PodResources(containers, init_containers)
    if spec.get("overhead") is not None:
        resources = replace(resources, overhead=_read_amounts(spec, "overhead", path))
    if spec.get("resources") is not None:
        resources = replace(resources, pod_level=_read_pod_level(spec, resources, path))
    return resources


def as_bound(resources: PodResources, status: Object) -> PodResources:
    """The same once a node runs it: a container that reports resources takes the largest of asked, allocated and used.

    What was asked does not count while the node calls a resize infeasible (KEP-1287).
    """
    pending = [c for c in mappings(status, "conditions", "status") if c.get("type") == "PodResizePending"]
    infeasible = bool(pending) and pending[0].get("reason") == "Infeasible"

    def in_use(container: Container, reports: dict[str, Object], place: str) -> Container:
        report = reports.get(container.name)
        if report is None or report.get("resources") is None:
            return container
        largest = {} if infeasible else dict(container.requests)
        actual = _read_amounts(mapping(report, "resources", place), "requests", f"{place}.resources")
        for reported in (actual, _read_amounts(report, "allocatedResources", place)):
            for name, quantity in reported.items():
                if name not in largest or quantity.nano > largest[name].nano:
                    largest[name] = quantity
        return container._replace(requests=largest)

    reports = _by_name(status, "containerStatuses")
    init_reports = _by_name(status, "initContainerStatuses")
    return replace(
        resources,
        containers=tuple(in_use(c, reports, f"status.containerStatuses[{c.name}]") for c in resources.containers),
        init_containers=tuple(
            in_use(c, init_reports, f"status.initContainerStatuses[{c.name}]") if c.sidecar else c
            for c in resources.init_containers
        ),
    )


def check_amount(name: str, quantity: Quantity, path: str) -> Quantity:
    """A quantity that the ledger can hold: not negative, at most 2^53 in schema units."""
    if quantity.nano < 0:
        raise InvalidInput(f"is {quantity.canonical}; an amount cannot be negative", where=path)
    amount = quantity.milli if name == "cpu" else quantity.value
    if amount > MAX_AMOUNT:
        unit = "thousandths of a core" if name == "cpu" else "whole units"
        raise InvalidInput(
            f"is {quantity.canonical}, {amount} {unit}; HOSS counts up to 2^53 = {MAX_AMOUNT}, so ask for less",
            where=path,
        )
    return quantity


def _by_name(status: Object, key: str) -> dict[str, Object]:
    return {text(report, "name", f"status.{key}"): report for report in mappings(status, key, "status")}


def _read_container(container: Object, path: str) -> Container:
    declared = mapping(container, "resources", path)
    sidecar = text(container, "restartPolicy", path) == "Always"
    name = text(container, "name", path)
    if not declared:
        return Container(name, {}, {}, sidecar)
    place = f"{path}.resources"
    limits = _read_amounts(declared, "limits", place)
    requests = _read_amounts(declared, "requests", place)
    for resource in {**limits, **requests}:
        _check_container_resource(resource, limits.get(resource) or requests[resource], place)
    for resource, limit in limits.items():
        requests.setdefault(resource, limit)
    _check_against_limits(requests, limits, place)
    return Container(name, requests, limits, sidecar)


def _read_pod_level(spec: Object, resources: PodResources, path: str) -> PodLevel:
    declared, place = mapping(spec, "resources", path), f"{path}.resources"
    limits, requests = _read_amounts(declared, "limits", place), _read_amounts(declared, "requests", place)
    for resource in {**limits, **requests}:
        if resource not in _POD_LEVEL_RESOURCES and not resource.startswith(HUGEPAGES_PREFIX):
            raise InvalidInput(
                f"{resource!r} cannot be set for a whole pod; cpu, memory and hugepages can", where=place
            )
    if limits:
        totals = container_total(
            [c.requests for c in resources.containers], [(c.requests, c.sidecar) for c in resources.init_containers]
        )
        for resource in _POD_LEVEL_RESOURCES:
            if resource in totals:
                requests.setdefault(resource, totals[resource])
        for resource, limit in limits.items():
            requests.setdefault(resource, limit)
    _check_against_limits(requests, limits, place)
    return PodLevel(requests, limits)


def _read_amounts(parent: Object, key: str, path: str) -> Resources:
    amounts: Resources = {}
    for name, given in mapping(parent, key, path).items():
        try:
            quantity = read_quantity(given)
        except InvalidInput as exc:
            raise exc.at(f"{path}.{key}.{name}") from None
        check_key(name, f"{path}.{key}")
        amounts[name] = check_amount(name, quantity, f"{path}.{key}.{name}")
    return amounts


def _check_container_resource(name: str, quantity: Quantity, path: str) -> None:
    if name in _CONTAINER_RESOURCES:
        return
    if name.startswith(HUGEPAGES_PREFIX):
        _check_hugepages(name, quantity, path)
    elif "/" not in name:
        raise InvalidInput(
            f"{name!r} is no resource of a container: cpu, memory, ephemeral-storage, hugepages-<size> or an extended "
            "resource such as example.com/fpga",
            where=path,
        )
    elif not quantity.whole:
        raise InvalidInput(
            f"{name} is {quantity.canonical}; an extended resource is counted in whole pieces", where=path
        )


def _check_hugepages(name: str, quantity: Quantity, path: str) -> None:
    size = name.removeprefix(HUGEPAGES_PREFIX)
    try:
        page = parse_quantity(size)
    except InvalidInput as exc:
        raise InvalidInput(f"{name!r} names no page size: {exc.text}", where=path) from None
    if page.nano <= 0 or quantity.nano % page.nano:
        raise InvalidInput(f"{name} is {quantity.canonical}, which is no multiple of the page size {size}", where=path)


def _check_against_limits(requests: Resources, limits: Resources, path: str) -> None:
    for name, request in requests.items():
        limit = limits.get(name)
        hugepages = name.startswith(HUGEPAGES_PREFIX)
        if limit is None:
            if hugepages and request.nano:
                raise InvalidInput(
                    f"is {request.canonical} without a limit; hugepages are never overcommitted, so set the same limit",
                    where=f"{path}.requests.{name}",
                )
        elif request.nano != limit.nano and (hugepages or request.nano > limit.nano):
            rule = (
                "hugepages are never overcommitted: make them equal" if hugepages else "a request is at most its limit"
            )
            raise InvalidInput(
                f"is {request.canonical}, but the limit is {limit.canonical}; {rule}", where=f"{path}.requests.{name}"
            )
