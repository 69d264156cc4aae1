"""Traces: spans of batches, written once they are over.

Whoever sees a batch remembers when it came and under which context; only when it is over is it decided whether its span is
exported: always where the trace was chosen (`TraceContext.kept`), and always where something went wrong. So a batch that is not exported
costs a few numbers, and each service decides alone: a conflict keeps the spans of all who had to do with it. Exporting is
opentelemetry-sdk's, on a thread of its own; what it cannot keep up with is dropped.

A file has one export request a line, as collectors' `otlpjsonfile` receivers read it. A line is appended by one write, so several
processes may share a file.

The SDK takes long to import, and most services are not traced: `options.tracing` imports this module where there is a tracer to make,
and the services' own `tracing` modules do, which are imported where there is one.
"""

import os
import random
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import orjson
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from hoss.errors import ConfigError
from hoss.telemetry.collector import Collector, collector_of
from hoss.telemetry.context import TraceContext
from hoss.telemetry.logs import logger
from hoss.telemetry.otlp import Json, attributes_json

_SAMPLED = TraceFlags(TraceFlags.SAMPLED)

Attributes = Mapping[str, Any]


class Happening(NamedTuple):
    """A span event; as the exporters look at it, it is an SDK's. (Those copy and lock their attributes, which takes 20 us each.)"""

    name: str
    timestamp: int  # Unix nanoseconds
    attributes: Attributes


class Tracer:
    """One process' spans."""

    def __init__(self, exporters: Sequence[SpanExporter], resource: Attributes, *, ratio: float = 0.0) -> None:
        """`ratio`: share of the traces begun here that is chosen."""
        self._resource = Resource(resource)
        self._processors = [BatchSpanProcessor(exporter) for exporter in exporters]
        self._ratio = ratio

    def chosen(self) -> bool:
        """Whether the trace that begins now is."""
        return random.random() < self._ratio

    def span(
        self,
        name: str,
        context: TraceContext,
        *,
        parent: int | None,
        began_ns: int,
        ended_ns: int | None = None,
        kind: SpanKind = SpanKind.INTERNAL,
        attributes: Attributes | None = None,
        happenings: Sequence[Happening | bytes] = (),
        links: Sequence[TraceContext] = (),
        error: str = "",
    ) -> None:
        """Export a span that is over. `parent` is a span's id; times are Unix nanoseconds, `ended_ns` now unless given. `happenings`
        that are bytes are encoded already (otlp.event_template)."""
        trace_id = context.trace_id
        readable = ReadableSpan(
            name,
            context=SpanContext(trace_id, context.span_id, is_remote=False, trace_flags=_SAMPLED),
            parent=None if parent is None else SpanContext(trace_id, parent, is_remote=True),
            resource=self._resource,
            attributes=attributes,
            events=cast("Sequence[Event]", happenings),
            links=[Link(SpanContext(link.trace_id, link.span_id, is_remote=True)) for link in links],
            kind=kind,
            status=Status(StatusCode.ERROR, error) if error else Status(),
            start_time=began_ns,
            end_time=time.time_ns() if ended_ns is None else ended_ns,
        )
        for processor in self._processors:
            processor.on_end(readable)

    def close(self) -> None:
        """Export what is left."""
        for processor in self._processors:
            processor.shutdown()  # type: ignore[no-untyped-call]


def exporters(trace_file: Path | None) -> list[SpanExporter]:
    """Raises ConfigError where the file cannot be written, or the collector is to be spoken to in a way that HOSS does not."""
    found: list[SpanExporter] = []
    if trace_file is not None:
        try:
            trace_file.open("ab").close()
        except OSError as exc:
            raise ConfigError(f"{trace_file} cannot be written: {exc.strerror}", where="trace_file") from exc
        found.append(FileExporter(trace_file))
    if (collector := collector_of("traces")) is not None:
        found.append(HttpExporter(collector))
    return found


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
