"""Traces: spans of batches, written once they are over.

Whoever sees a batch remembers when it came and under which context; only when it is over is it decided whether its span is
exported: always where the trace was chosen (`TraceContext.kept`), and always where something went wrong. So a batch that is not exported
costs a few numbers, and each service decides alone: a conflict keeps the spans of all who had to do with it. Exporting is
opentelemetry-sdk's, on a thread of its own; what it cannot keep up with is dropped.
"""

import contextlib
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from hoss.errors import ConfigError
from hoss.telemetry.collector import collector_of
from hoss.telemetry.context import TraceContext
from hoss.telemetry.otlp import FileExporter, HttpExporter, resource_of

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


@contextlib.contextmanager
def tracing(
    service: str, trace_file: Path | None, *, instance: str = "", ratio: float = 0.0
) -> Iterator[Tracer | None]:
    """A tracer for the length of the block where there is somewhere to export to: `trace_file`, or a collector named by the
    environment. Else None, and nothing is traced. Raises ConfigError as `exporters` does."""
    destinations = exporters(trace_file)
    if not destinations:
        yield None
        return
    tracer = Tracer(destinations, resource_of(service, instance), ratio=ratio)
    try:
        yield tracer
    finally:
        tracer.close()


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
