"""Manifests as users write them: YAML with several documents or JSON, of workloads, nodes and lists, all or nothing.

An error anywhere refuses the whole manifest, before anything of it was used.
"""

import json
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import orjson

from hoss.errors import ColumnError, InvalidInput
from hoss.model.cluster_object_manifest import read_cluster_object
from hoss.model.cluster_objects import ClusterObject, key_of
from hoss.model.fields import Object, mappings, wrong_type
from hoss.model.gangs import (
    POD_GROUPS,
    VOLCANO_JOB,
    group_name,
    join_groups,
    min_available,
    read_pod_group,
    read_volcano_job,
)
from hoss.model.node import NodeSpec
from hoss.model.node_manifest import NO_RESERVATIONS, NodeReservations, read_node
from hoss.model.pod import Gang, PodTemplate, Workload
from hoss.model.workloads import kind_and_group, read_workload
from hoss.wire.columns import uid_from_text
from hoss.wire.yaml_documents import yaml_documents

# Ten times the largest manifests people keep, and what one Submit message can carry after parsing. A file beyond it is
# some other file, or wants to be a Job with replicas.
MAX_MANIFEST_BYTES = 32 * 1024 * 1024

_MAX_NESTED_LISTS = 8

# Kubernetes' alphabet for generated names: no vowels, so no words.
_SUFFIX_LETTERS = "bcdfghjklmnpqrstvwxz2456789"


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a manifest asks for, and sentences for the user about what it does not get."""

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
    """Read a manifest; `where` (a file's name) begins every error and warning.

    Equal pod templates come out as one object. Raises InvalidInput for anything that cannot be accepted, and for a name
    or UID that stands twice, naming the document, the field's path or line and column, the value and what would be right.
    """
    reader = _Reader(reservations, generate_suffix)
    for place, value in read_objects(data, where=where):
        reader.read(value, place)
    workloads = join_groups(reader.workloads, reader.groups, reader.warnings.append)
    return Manifest(tuple(workloads), tuple(reader.nodes), tuple(reader.objects), tuple(reader.warnings))


def read_objects(data: bytes | str, *, where: str) -> Iterator[tuple[str, Object]]:
    """(place, object) of every object of a manifest, those in lists one by one. Each has a kind and an apiVersion."""
    for place, value in _documents(_decode(data, where), where):
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
    """Collects the objects of one manifest and remembers where each name and UID stood."""

    def __init__(self, reservations: NodeReservations, generate_suffix: Callable[[], str]) -> None:
        self.workloads: list[tuple[Workload, str]] = []  # and the pod group it names
        self.groups: list[tuple[Gang, str]] = []  # and where it stands
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
            self.warnings.extend(f"{place}: {remark}" for remark in job.remarks)
            for workload in job.workloads:
                self._add(workload, "", f"{place}, {workload.name}")
            return
        item = read_cluster_object(value, kind, group)
        if item is not None:
            self._claim(("object", str(key_of(item))), str(key_of(item)), place)
            self.objects.append(item)
            return
        result = read_workload(value, self._generate_suffix)
        self.warnings.extend(f"{place}: {remark}" for remark in result.remarks)
        if result.workload is not None:
            self._add(min_available(value, result.workload), group_name(value), place)

    def _add(self, workload: Workload, pod_group: str, place: str) -> None:
        template = self._templates.setdefault(workload.template, workload.template)
        namespace, kind = template.spec.namespace, template.owner_kind
        # Owners share one space of names, whatever their kind: each names its pods <name>-<ordinal>.
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
    """The objects of a list, None for what is no list. Those of a typed list (PodList) may leave their kind out."""
    if not kind.endswith("List") or "items" not in value:
        return None
    item_kind = kind.removesuffix("List")
    items = mappings(value, "items", kind)
    return [{"apiVersion": value["apiVersion"], "kind": item_kind, **item} for item in items] if item_kind else items


def _decode(data: bytes | str, where: str) -> str:
    size = len(data)
    if size > MAX_MANIFEST_BYTES:
        raise InvalidInput(
            f"has {size:,} bytes; a manifest has {MAX_MANIFEST_BYTES:,} at most. Split it, or ask for equal pods by one Job",
            where=where,
        )
    if isinstance(data, str):
        return data.removeprefix("\ufeff")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        raise InvalidInput(f"is no UTF-8 text: byte {exc.start} is {data[exc.start]:#04x}", where=where) from exc


def _documents(text: str, where: str) -> Iterator[tuple[str, Any]]:
    """(place, value) of every document. Text that begins with a brace or bracket is JSON."""
    if text.lstrip()[:1] not in ("{", "["):
        return yaml_documents(text, where)
    return _json_documents(text, where)


def _json_documents(text: str, where: str) -> Iterator[tuple[str, Any]]:
    # Of two equal keys in an object the last counts, as in every JSON parser.
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        # Several values in a row, or none that is whole: the slower parser tells, and says where.
        yield from _json_values(text, where)
    else:
        yield f"{where} document 1", value


def _json_values(text: str, where: str) -> Iterator[tuple[str, Any]]:
    decoder = json.JSONDecoder()
    position, number, end = len(text) - len(text.lstrip()), 1, len(text.rstrip())
    while position < end:
        place = f"{where} document {number}"
        try:
            value, position = decoder.raw_decode(text, position)
        except json.JSONDecodeError as exc:
            problem = f"is no valid JSON or is cut off: {exc.msg} (line {exc.lineno}, column {exc.colno})"
            raise InvalidInput(problem, where=place) from exc
        except RecursionError as exc:
            raise InvalidInput("is nested deeper than any manifest needs", where=place) from exc
        yield place, value
        number += 1
        while position < end and text[position].isspace():
            position += 1
