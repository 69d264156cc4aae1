"""The spans of one pod in a file of traces (OTLP/JSON, one export a line), in order of time."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from hoss.errors import InvalidInput, reading
from hossctl.console import Document

POD_EVENTS = ("decision", "not bound", "binding")  # span events that name a pod by hoss.uid
_OF_SOME = ("propose", "bind")  # spans that concern only the pods of a work batch that their events name


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """A span event. Attribute names are without their prefix "hoss."."""

    name: str
    attributes: Document


@dataclass(frozen=True, slots=True)
class Span:
    """A span. `parent` is empty for a trace's root; links are ids of spans."""

    trace_id: str
    id: str
    parent: str
    name: str
    service: str
    began_ns: int
    ended_ns: int
    attributes: Document
    events: tuple[TraceEvent, ...]
    links: tuple[str, ...]
    error: str


def read_spans(path: Path) -> list[Span]:
    """All spans of a file. Raises InvalidInput naming a line that is no export. An incomplete last line is
    ignored."""
    with reading(str(path)):
        lines = path.read_bytes().split(b"\n")
    spans: list[Span] = []
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            spans += _spans(orjson.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError) as exc:
            if number == len(lines):
                break  # its writer has not finished it, or was killed
            raise InvalidInput("is no export of traces in OTLP/JSON", where=f"{path}: line {number}") from exc
    return spans


def uid_of(spans: Iterable[Span], namespace: str, name: str) -> str:
    """The UID, as hex digits, of the latest pod of that name, from the span of its submission; "" if there is
    none."""
    found = ""
    for span in sorted(spans, key=lambda span: span.began_ns):
        for event in span.events:
            if event.name == "pod set":
                found = _uid_in(event.attributes, namespace, name) or found
    return found


def spans_of(spans: Iterable[Span], uid: str) -> list[Span]:
    """The spans that concern a pod, by time: its work batches with their parents and children, its
    submission, and the confirmations."""
    by_id = {span.id: span for span in spans}
    children: dict[str, list[Span]] = {}
    linked: dict[str, list[Span]] = {}
    for span in by_id.values():
        children.setdefault(span.parent, []).append(span)
        for link in span.links:
            linked.setdefault(link, []).append(span)
    found: dict[str, Span] = {}
    for span in by_id.values():
        if not any(_names(event, uid) for event in span.events):
            continue
        batch = span if span.name == "work batch" else by_id.get(span.parent, span)
        confirms = [other for other in linked.get(batch.id, ()) if other.name == "confirm"]
        others = {
            child.id
            for child in children.get(batch.id, ())
            if child.name in _OF_SOME and not any(_names(event, uid) for event in child.events)
        }
        for part in (
            *_above(batch, by_id),
            *_below(batch, children, others),
            *(p for c in confirms for p in _below(c, children, set())),
        ):
            found[part.id] = part
        for link in batch.links:
            if link in by_id and _submits(by_id[link], uid):
                found[link] = by_id[link]
    return sorted(found.values(), key=lambda span: (span.began_ns, -span.ended_ns))


def document(namespace: str, name: str, uid: str, spans: list[Span]) -> Document:
    """The spans of a pod with those of their events that name it."""
    began_ns = spans[0].began_ns
    return {
        "kind": "PodTrace",
        "namespace": namespace,
        "name": name,
        "uid": uid,
        "beganUnixMs": began_ns // 1_000_000,
        "spans": [
            {
                "name": span.name,
                "service": span.service,
                "afterMs": round((span.began_ns - began_ns) / 1e6, 3),
                "tookMs": round((span.ended_ns - span.began_ns) / 1e6, 3),
                "traceId": span.trace_id,
                "spanId": span.id,
                "parent": span.parent,
                "attributes": span.attributes,
                "events": [{"name": e.name, **e.attributes} for e in span.events if _names(e, uid)],
                "error": span.error,
            }
            for span in spans
        ],
    }


def _uid_in(pod_set: Document, namespace: str, name: str) -> str:
    if pod_set["namespace"] not in ("", namespace):
        return ""
    names = pod_set["names"]
    stem, _, digits = name.rpartition("-")
    if names:
        ordinal = names.index(name) if name in names else -1
    else:
        ordinal = int(digits) if stem == pod_set["name"] and digits.isdecimal() else -1
    if not 0 <= ordinal < pod_set["pods"]:
        return ""
    return str(pod_set["uid_prefix"]) + ordinal.to_bytes(4, "big").hex()


def _names(event: TraceEvent, uid: str) -> bool:
    return event.name in POD_EVENTS and event.attributes.get("uid") == uid


def _submits(span: Span, uid: str) -> bool:
    return any(uid.startswith(event.attributes.get("uid_prefix", "-")) for event in span.events)


def _above(span: Span, by_id: dict[str, Span]) -> Iterator[Span]:
    """The span and its ancestors."""
    current: Span | None = span
    while current is not None:
        yield current
        current = by_id.get(current.parent)


def _below(span: Span, children: dict[str, list[Span]], but: set[str]) -> Iterator[Span]:
    """The span and its descendants; not those of the children in `but`."""
    yield span
    for child in children.get(span.id, ()):
        if child.id not in but:
            yield from _below(child, children, but)


def _spans(export: Document) -> Iterator[Span]:
    for process in export["resourceSpans"]:
        resource = _attributes(process["resource"]["attributes"])
        service = str(resource.get("service.name", "")).removeprefix("hoss-")
        for scope in process["scopeSpans"]:
            for raw in scope["spans"]:
                yield _span(raw, service)


def _span(raw: Document, service: str) -> Span:
    status = raw.get("status", {})
    return Span(
        trace_id=raw["traceId"],
        id=raw["spanId"],
        parent=raw.get("parentSpanId", ""),
        name=raw["name"],
        service=service,
        began_ns=int(raw["startTimeUnixNano"]),
        ended_ns=int(raw["endTimeUnixNano"]),
        attributes=_attributes(raw.get("attributes", [])),
        events=tuple(
            TraceEvent(e["name"], _attributes(e.get("attributes", []))) for e in raw.get("events", [])
        ),
        links=tuple(link["spanId"] for link in raw.get("links", [])),
        error=status.get("message", "") if status.get("code") == 2 else "",
    )


def _attributes(raw: list[Document]) -> Document:
    return {a["key"].removeprefix("hoss."): _value(a["value"]) for a in raw}


def _value(raw: Document) -> Any:
    ((kind, value),) = raw.items()
    if kind == "arrayValue":
        return [_value(part) for part in value.get("values", [])]
    return int(value) if kind == "intValue" else value
