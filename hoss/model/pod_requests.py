"""A pod's totals: what it requests, what limits it, and its QoS class.

The rules are kube-scheduler's and the kubelet's (component-helpers' resource package, core/v1 helper/qos) as of 1.36.
"""

from collections.abc import Callable

from hoss.model.pod import QosClass
from hoss.model.pod_resources import Container, PodResources, check_amount
from hoss.model.quantity import Quantity
from hoss.model.totals import Resources, add, container_total

# What a container that does not name cpu or memory counts as in scores (kube-scheduler's GetNonzeroRequests).
_UNNAMED = {"cpu": Quantity(100 * 10**6), "memory": Quantity(200 * 2**20 * 10**9)}


def total_requests(pod: PodResources) -> Resources:
    """What the pod asks of its node in all."""
    total = _of_containers(pod, lambda c: c.requests)
    if pod.pod_level is not None:
        total.update(pod.pod_level.requests)
    add(total, pod.overhead or {})
    return total


def total_limits(pod: PodResources) -> Resources:
    """What the pod may use in all; overhead counts only where there is a limit."""
    total = _of_containers(pod, lambda c: c.limits)
    if pod.pod_level is not None:
        total.update(pod.pod_level.limits)
    add(total, {name: more for name, more in (pod.overhead or {}).items() if name in total and total[name].nano})
    return total


def binding_limits(pod: PodResources) -> Resources:
    """Limits that bind the pod as a whole: `total_limits` of resources of which every container, or the pod itself, has one. Where one
    container has none, the pod may use whatever there is."""
    total = total_limits(pod)
    own = pod.pod_level.limits if pod.pod_level is not None else {}
    running = [*pod.containers, *(container for container in pod.init_containers if container.sidecar)]
    return {
        name: limit
        for name, limit in total.items()
        if limit.nano and (name in own or all(name in c.limits and c.limits[name].nano for c in running))
    }


def nonzero_requests(pod: PodResources) -> tuple[int, int]:
    """(cpu in thousandths, memory in bytes), counting 100m and 200 MiB for each container that does not name them.

    Naming zero is naming it. With requests for the whole pod only what its total leaves out altogether is filled in.
    """
    unnamed: Resources = _UNNAMED
    if pod.pod_level is not None and pod.pod_level.requests:
        named = total_requests(pod)
        unnamed = {name: quantity for name, quantity in _UNNAMED.items() if name not in named}

    def filled(container: Container) -> Resources:
        requests = {name: container.requests[name] for name in _UNNAMED if name in container.requests}
        return {**unnamed, **requests}

    total = _of_containers(pod, filled)
    if pod.pod_level is not None:
        total.update(pod.pod_level.requests)
    add(total, pod.overhead or {})
    return (total["cpu"].milli, total["memory"].value)


def amounts(total: Resources, path: str) -> dict[str, int]:
    """A total in schema units, rounded up. Raises InvalidInput for more than 2^53."""
    for name, quantity in total.items():
        check_amount(name, quantity, f"{path}: total of {name}")
    return {name: q.milli if name == "cpu" else q.value for name, q in total.items()}


def qos_class(pod: PodResources) -> QosClass:
    """From cpu and memory alone, zero counting as not given; from the pod's own resources where it has any."""
    parts = [pod.pod_level] if pod.pod_level is not None else [*pod.containers, *pod.init_containers]
    requests: dict[str, int] = {}
    limits: dict[str, int] = {}
    all_limited = True
    for part in parts:
        for name in _UNNAMED:
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


def _of_containers(pod: PodResources, of: Callable[[Container], Resources]) -> Resources:
    return container_total([of(c) for c in pod.containers], [(of(c), c.sidecar) for c in pod.init_containers])
