"""Spans as OTLP's JSON (opentelemetry-proto, "OTLP/JSON"), to a file or a collector.

A file has one export request a line, as collectors' `otlpjsonfile` receivers read it. A line is appended by one write, so several
processes may share a file. OTLP over HTTP needs nothing but the standard library; over gRPC it would take generated
code for the same bytes.
"""

import os
import socket
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from hoss import version
from hoss.telemetry.collector import Collector
from hoss.telemetry.logs import logger

Json = dict[str, Any]


def resource_of(service: str, instance: str = "") -> dict[str, str]:
    """What this process is, by OpenTelemetry's names. `instance`: this process unless given."""
    return {
        "service.name": f"hoss-{service}",
        "service.instance.id": instance or f"{socket.gethostname()}-{os.getpid()}",
        "service.version": version(),
    }


def request_of(spans: Sequence[ReadableSpan]) -> Json:
    """An ExportTraceServiceRequest; all spans are of one process."""
    return {
        "resourceSpans": [
            {
                "resource": {"attributes": attributes_json(spans[0].resource.attributes)},
                "scopeSpans": [{"scope": {"name": "hoss"}, "spans": [_span(span) for span in spans]}],
            }
        ]
    }


def event_template(name: str, at_ns: int, common: Mapping[str, Any], own: Mapping[str, str]) -> str:
    """The encoding of an event of which there are thousands alike, to be filled in with `%` by the values of `own`, names -> kinds of
    values: stringValue (of characters that JSON need not escape), intValue, or arrayValue, whose values stand as `int_values` writes
    them. A hundredth of what it takes to encode attribute by attribute."""
    constant = orjson.dumps(attributes_json(common)).decode()[1:-1].replace("%", "%%")
    varying = [
        f'{{"key":"{key}","value":{{"{kind}":' + ('{"values":[%s]}' if kind == "arrayValue" else '"%s"') + "}}"
        for key, kind in own.items()
    ]
    attributes = ",".join([*varying, constant] if constant else varying)
    return f'{{"timeUnixNano":"{at_ns}","name":"{name}","attributes":[{attributes}]}}'


def int_values(numbers: Iterable[int]) -> str:
    """The inside of an arrayValue."""
    return ",".join([f'{{"intValue":"{number}"}}' for number in numbers])


class FileExporter(SpanExporter):
    """Appends to a file. What cannot be written is lost, and said once until it can be again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._failing = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        line = orjson.dumps(request_of(spans)) + b"\n"
        try:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                os.write(descriptor, line)
            finally:
                os.close(descriptor)
        except OSError as exc:
            if not self._failing:
                logger().warning("traces_not_written", file=str(self._path), error=exc.strerror)
            self._failing = True
            return SpanExportResult.FAILURE
        self._failing = False
        return SpanExportResult.SUCCESS


class HttpExporter(SpanExporter):
    """Posts to a collector."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return SpanExportResult.SUCCESS if self._collector.post(request_of(spans)) else SpanExportResult.FAILURE


def _span(span: ReadableSpan) -> Json:
    assert span.context is not None  # noqa: S101 - every span of ours has one
    return {
        "traceId": f"{span.context.trace_id:032x}",
        "spanId": f"{span.context.span_id:016x}",
        "parentSpanId": "" if span.parent is None else f"{span.parent.span_id:016x}",
        "name": span.name,
        "kind": span.kind.value + 1,  # the API counts from 0, the protocol has UNSPECIFIED there
        "startTimeUnixNano": str(span.start_time),
        "endTimeUnixNano": str(span.end_time),
        "attributes": attributes_json(span.attributes or {}),
        "events": [_event(event) for event in span.events],
        "links": [
            {"traceId": f"{link.context.trace_id:032x}", "spanId": f"{link.context.span_id:016x}"}
            for link in span.links
        ],
        "status": {"code": span.status.status_code.value, "message": span.status.description or ""},
    }


def _event(event: Any) -> Any:
    if isinstance(event, bytes):
        return orjson.Fragment(event)
    return {"timeUnixNano": str(event.timestamp), "name": event.name, "attributes": attributes_json(event.attributes)}


def attributes_json(attributes: Mapping[str, Any]) -> list[Json]:
    """As KeyValue messages."""
    return [{"key": key, "value": _value(value)} for key, value in attributes.items()]


def _value(value: Any) -> Json:
    if isinstance(value, str):
        return {"stringValue": value}
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    return {"arrayValue": {"values": [_value(part) for part in value]}}
