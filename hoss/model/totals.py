"""Adding up the resources of a pod's containers, after component-helpers' resource package and KEP-753 (sidecars)."""

from collections.abc import Iterable, Sequence

from hoss.model.quantity import Quantity

Resources = dict[str, Quantity]  # by resource name


def container_total(containers: Sequence[Resources], init_containers: Iterable[tuple[Resources, bool]]) -> Resources:
    """What the containers take together: (resources, is a sidecar) for each init container, in their order.

    The sum of containers and sidecars, but of each resource no less than any step of initialisation needs: an
    ordinary init container runs beside the sidecars started before it.
    """
    total = dict(containers[0]) if containers else {}
    for resources in containers[1:]:
        add(total, resources)
    steps: Resources = {}
    sidecars: Resources = {}
    for resources, is_sidecar in init_containers:
        if is_sidecar:
            add(total, resources)
            add(sidecars, resources)
            raise_to(steps, sidecars)
        else:
            step = dict(resources)
            add(step, sidecars)
            raise_to(steps, step)
    raise_to(total, steps)
    return total


def add(total: Resources, more: Resources) -> None:
    """Add `more` to `total`, in place."""
    for name, quantity in more.items():
        total[name] = total[name].plus(quantity) if name in total else quantity


def raise_to(total: Resources, least: Resources) -> None:
    """Raise what is lower than `least`, in place."""
    for name, quantity in least.items():
        if name not in total or total[name].nano < quantity.nano:
            total[name] = quantity
