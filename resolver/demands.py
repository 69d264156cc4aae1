"""What pods ask for, as the ledger has to know it. Pods of one controller are alike, and to read one takes longer than to judge it, so what
was read is kept."""

from dataclasses import dataclass, replace

import orjson

from hoss.model.fields import Object, mapping
from hoss.model.pod import PodSpec
from hoss.model.pod_groups import group_of as group_of_spec
from hoss.model.pod_manifest import read_pod_template
from hoss.wire.pod_groups import definition_of
from resolver.core.values import Group
from resolver.proposals import group_of

_KEPT = 4096

# What differs between pods that are alike otherwise (the volume of each one's token has a name of its own) and asks for nothing.
_OF_ONE_POD = frozenset({"volumes", "hostname"})
_OF_ONE_CONTAINER = frozenset({"volumeMounts", "env"})


@dataclass(frozen=True, slots=True)
class Demand:
    """Of a pod that is to be bound: cordons do not count, they are its scheduler's to know."""

    spec: PodSpec
    group: Group


class Demands:
    """The demands of pods, those met before out of memory."""

    def __init__(self) -> None:
        self._kept: dict[bytes, Demand] = {}

    def of(self, pod: Object, namespace: str) -> Demand:
        """Of a pod as the API server has it. Raises InvalidInput where it cannot be counted."""
        metadata, spec = mapping(pod, "metadata", "pod"), mapping(pod, "spec", "pod")
        labels: Object = {"labels": metadata.get("labels") or {}}
        key = orjson.dumps((namespace, labels, _essence(spec)))
        demand = self._kept.get(key)
        if demand is None:
            read = read_pod_template(labels, spec, "pod", namespace=namespace).spec
            demand = Demand(read, group_of(definition_of(replace(group_of_spec(read), tolerates_cordon=True))))
            if len(self._kept) >= _KEPT:
                self._kept.clear()
            self._kept[key] = demand
        return demand


def _essence(spec: Object) -> Object:
    essence = {name: value for name, value in spec.items() if name not in _OF_ONE_POD}
    for kind in ("containers", "initContainers"):
        containers = essence.get(kind)
        if isinstance(containers, list):
            essence[kind] = [_without_its_own(container) for container in containers]
    return essence


def _without_its_own(container: object) -> object:
    if not isinstance(container, dict):
        return container
    return {name: value for name, value in container.items() if name not in _OF_ONE_CONTAINER}
