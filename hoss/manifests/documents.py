"""Reads manifests: YAML or JSON with workloads, nodes, cluster objects and lists, in one document or several.

A manifest with an error is refused as a whole."""

import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from hoss.errors import ColumnError, InvalidInput
from hoss.manifests.cluster_objects import read_cluster_object
from hoss.manifests.fields import Object, mappings, wrong_type
from hoss.manifests.gangs import (
    POD_GROUPS,
    VOLCANO_JOB,
    group_name,
    join_groups,
    min_available,
    read_pod_group,
    read_volcano_job,
)
from hoss.manifests.guarded import decoded, json_documents, yaml_documents
from hoss.manifests.node import NO_RESERVATIONS, NodeReservations, read_node
from hoss.manifests.workloads import kind_and_group, read_workload
from hoss.model.cluster import ClusterObject, key_of
from hoss.model.node import NodeSpec
from hoss.model.pod import GangSpec, PodTemplate, Workload
from hoss.wire.uids import uid_from_text

_MAX_NESTED_LISTS = 8

# Kubernetes' alphabet for generated names. It has no vowels, so that no words come out.
_SUFFIX_LETTERS = "bcdfghjklmnpqrstvwxz2456789"


@dataclass(frozen=True, slots=True)
class Manifest:
    """The contents of a manifest, and warnings for the user about what HOSS ignores."""

    workloads: tuple[Workload, ...] = ()
    nodes: tuple[NodeSpec, ...] = ()
    objects: tuple[ClusterObject, ...] = ()
    warnings: tuple[str, ...] = ()


def random_suffix() -> str:
    """Five characters that complete a metadata.generateName."""
    return "".join(secrets.choice(_SUFFIX_LETTERS) for _ in range(5))


def read_manifest(
    data: bytes | str,
    *,
    where: str,
    reservations: NodeReservations = NO_RESERVATIONS,
    generate_suffix: Callable[[], str] = random_suffix,
) -> Manifest:
    """Read a manifest. `where` (a file's name) begins every error and warning.

    Equal pod templates become one object. Raises InvalidInput for invalid input and for a name or UID that is
    used twice. The error names the document, the field's path or line and column, the value and a remedy."""
    reader = _Reader(reservations, generate_suffix)
    for place, value in read_objects(data, where=where):
        reader.read(value, place)
    workloads = join_groups(reader.workloads, reader.groups, reader.warnings.append)
    return Manifest(tuple(workloads), tuple(reader.nodes), tuple(reader.objects), tuple(reader.warnings))


def read_objects(data: bytes | str, *, where: str) -> Iterator[tuple[str, Object]]:
    """(place, object) of every object, also of those in lists. Each has a kind and an apiVersion."""
    for place, value in _documents(decoded(data, where), where):
        yield from _flattened(value, place, lists=0)


def _flattened(value: Any, place: str, *, lists: int) -> Iterator[tuple[str, Object]]:
    if not isinstance(value, dict):
        raise wrong_type(value, "a mapping with apiVersion and kind", place)
    try:
        items = _items(value, kind_and_group(value)[0])
    except InvalidInput as exc:
        raise exc.at(place) from None
    if items is None:
        yield place, value
    elif lists == _MAX_NESTED_LISTS:
        raise InvalidInput(f"is a list within {lists} others; no more are read", where=place)
    else:
        for i, item in enumerate(items):
            yield from _flattened(item, f"{place} items[{i}]", lists=lists + 1)


class _Reader:
    """Collects the objects of one manifest and the place of each name and UID."""

    def __init__(self, reservations: NodeReservations, generate_suffix: Callable[[], str]) -> None:
        self.workloads: list[tuple[Workload, str]] = []  # with the name of its pod group
        self.groups: list[tuple[GangSpec, str]] = []  # with its place
        self.nodes: list[NodeSpec] = []
        self.objects: list[ClusterObject] = []
        self.warnings: list[str] = []
        self._reservations = reservations
        self._generate_suffix = generate_suffix
        self._templates: dict[PodTemplate, PodTemplate] = {}
        self._places: dict[tuple[str, ...] | bytes, str] = {}

    def read(self, value: Object, place: str) -> None:
        try:
            kind, group = kind_and_group(value)
            self._read_object(value, kind, group, place)
        except InvalidInput as exc:
            raise exc.at(place) from None

    def _read_object(self, value: Object, kind: str, group: str, place: str) -> None:
        if kind == "Node" and not group:
            node = read_node(value, self._reservations)
            self._claim(("node", node.name), f"node {node.name}", place)
            self.nodes.append(node)
            return
        if (kind, group) in POD_GROUPS:
            pod_group = read_pod_group(value)
            title = f"PodGroup {pod_group.namespace}/{pod_group.name}"
            self._claim(("group", pod_group.namespace, pod_group.name), title, place)
            self.groups.append((pod_group, place))
            return
        if (kind, group) == VOLCANO_JOB:
            job = read_volcano_job(value)
            self.warnings.extend(f"{place}: {warning}" for warning in job.warnings)
            for workload in job.workloads:
                self._add(workload, "", f"{place}, {workload.name}")
            return
        item = read_cluster_object(value, kind, group)
        if item is not None:
            self._claim(("object", str(key_of(item))), str(key_of(item)), place)
            self.objects.append(item)
            return
        result = read_workload(value, self._generate_suffix)
        self.warnings.extend(f"{place}: {warning}" for warning in result.warnings)
        if result.workload is not None:
            self._add(min_available(value, result.workload), group_name(value), place)

    def _add(self, workload: Workload, pod_group: str, place: str) -> None:
        template = self._templates.setdefault(workload.template, workload.template)
        namespace, kind = template.spec.namespace, template.owner_kind
        # Owners of all kinds share one namespace of names, because each names its pods <name>-<ordinal>.
        title = f"{kind or 'pod'} {namespace}/{workload.name}"
        self._claim(("owner" if kind else "pod", namespace, workload.name), title, place)
        if workload.uid:
            try:
                uid = uid_from_text(workload.uid)
            except ColumnError as exc:
                raise InvalidInput(exc.text, where="metadata.uid") from None
            self._claim(uid, f"pod UID {workload.uid}", place)
        self.workloads.append((replace(workload, template=template), pod_group))

    def _claim(self, key: tuple[str, ...] | bytes, title: str, place: str) -> None:
        taken = self._places.setdefault(key, place)
        if taken != place:
            raise InvalidInput(f"{title} stands in {taken} already; each may stand once")


def _items(value: Object, kind: str) -> list[Object] | None:
    """The objects of a list; None for another kind. Objects of a typed list (PodList) may omit their kind."""
    if not kind.endswith("List") or "items" not in value:
        return None
    item_kind = kind.removesuffix("List")
    items = mappings(value, "items", kind)
    if not item_kind:
        return items
    return [{"apiVersion": value["apiVersion"], "kind": item_kind, **item} for item in items]


def _documents(text: str, where: str) -> Iterator[tuple[str, Any]]:
    """(place, value) of every document. Text that begins with a brace or bracket is JSON."""
    if text.lstrip()[:1] not in ("{", "["):
        return yaml_documents(text, where)
    return json_documents(text, where)
