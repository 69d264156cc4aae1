"""Spans of batches, exported once they are over.

A service that handles a batch remembers when the batch came, and its context. Only when the batch is over
does the service decide whether to export its span: always if the trace was chosen (`TraceContext.kept`), and
always if something went wrong. So a batch that is not exported costs a few numbers. Each service decides
alone; a conflict keeps the spans of all services that took part in it. opentelemetry-sdk exports on a thread
of its own and drops what it cannot keep up with.

A trace file has one export request a line, in OTLP/JSON (opentelemetry-proto), as collectors' `otlpjsonfile`
receivers read it. One write appends a line, so several processes may share a file.

The SDK takes long to import, and most services are not traced. `options.tracing` imports this module only
where there is a tracer to make; a service imports its own `tracing` module only then, too.
"""

import os
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from hoss.errors import ConfigError
from hoss.telemetry.collector import collector_url, shut_down_in_time
from hoss.telemetry.context import TraceContext, now_ns
from hoss.telemetry.logs import logger

_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_SCOPE = InstrumentationScope("hoss")

Attributes = Mapping[str, Any]
Json = dict[str, Any]


class Tracer:
    """One process' spans."""

    def __init__(
        self, exporters: Sequence[SpanExporter], resource: Attributes, *, ratio: float = 0.0
    ) -> None:
        """`ratio`: share of the traces begun here that is chosen."""
        self._resource = Resource(resource)
        self._exporters = exporters
        self._processors = [BatchSpanProcessor(exporter) for exporter in exporters]
        self._ratio = ratio

    def chosen(self) -> bool:
        """Whether to keep the trace that begins now."""
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
        events: Sequence[Event] = (),
        links: Sequence[TraceContext] = (),
        error: str = "",
    ) -> None:
        """Export a span that is over. `parent` is a span's id; times are Unix nanoseconds, `ended_ns` now
        unless given."""
        trace_id = context.trace_id
        readable = ReadableSpan(
            name,
            context=SpanContext(trace_id, context.span_id, is_remote=False, trace_flags=_SAMPLED),
            parent=None if parent is None else SpanContext(trace_id, parent, is_remote=True),
            resource=self._resource,
            attributes=attributes,
            events=events,
            links=[Link(SpanContext(link.trace_id, link.span_id, is_remote=True)) for link in links],
            kind=kind,
            status=Status(StatusCode.ERROR, error) if error else Status(),
            start_time=began_ns,
            end_time=now_ns() if ended_ns is None else ended_ns,
            instrumentation_scope=_SCOPE,
        )
        for processor in self._processors:
            processor.on_end(readable)

    def close(self) -> None:
        """Export what is left."""
        with shut_down_in_time(*(exporter.shutdown for exporter in self._exporters)):
            for processor in self._processors:
                processor.shutdown()  # type: ignore[no-untyped-call]


def exporters(trace_file: Path | None) -> list[SpanExporter]:
    """Exporters to the file and to the collector that the environment names. Raises ConfigError for a file
    that cannot be written, and as `collector_url` does."""
    found: list[SpanExporter] = []
    if trace_file is not None:
        try:
            trace_file.open("ab").close()
        except OSError as exc:
            raise ConfigError(f"{trace_file} cannot be written: {exc.strerror}", where="trace_file") from exc
        found.append(FileExporter(trace_file))
    if url := collector_url("traces"):
        from hoss.telemetry.otlp import CollectorSpans  # noqa: PLC0415 - 50 ms, and a file needs none of it

        found.append(CollectorSpans(url))
    return found


class FileExporter(SpanExporter):
    """Appends to a file. Spans that cannot be written are lost, and logged once until a write succeeds."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._failing = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        line = orjson.dumps(_request(spans)) + b"\n"
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


def _request(spans: Sequence[ReadableSpan]) -> Json:
    """An ExportTraceServiceRequest; all spans are of one process."""
    return {
        "resourceSpans": [
            {
                "resource": {"attributes": _attributes(spans[0].resource.attributes)},
                "scopeSpans": [{"scope": {"name": _SCOPE.name}, "spans": [_span(span) for span in spans]}],
            }
        ]
    }


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
        "attributes": _attributes(span.attributes or {}),
        "events": [
            {
                "timeUnixNano": str(event.timestamp),
                "name": event.name,
                "attributes": _attributes(event.attributes or {}),
            }
            for event in span.events
        ],
        "links": [
            {"traceId": f"{link.context.trace_id:032x}", "spanId": f"{link.context.span_id:016x}"}
            for link in span.links
        ],
        "status": {"code": span.status.status_code.value, "message": span.status.description or ""},
    }


def _attributes(attributes: Attributes) -> list[Json]:
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
