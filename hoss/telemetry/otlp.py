"""OpenTelemetry's OTLP exporters, as HOSS uses them: what cannot be sent is lost, and logged once until an
export succeeds.

Metrics are exported directly, as MetricsData made from a reading. The SDK's instruments are not used: they
would count every number a second time, under locks.
"""

import logging
from collections.abc import Iterable, Mapping
from logging.handlers import BufferingHandler
from typing import Any, cast

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import export as sdk
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from hoss.telemetry.logs import logger
from hoss.telemetry.metrics import Family, MetricKind, Reading

_CUMULATIVE = sdk.AggregationTemporality.CUMULATIVE


class _LogsFailuresOnce:
    """Logs the first export that fails, until one succeeds. The reason is the first warning that the exporter
    itself writes to the standard library's logging."""

    _signal: str
    _logger_name: str

    def __init__(self, url: str) -> None:
        super().__init__(url)  # type: ignore[call-arg]
        self._url, self._failing, self._warnings = url, False, BufferingHandler(100)
        source = logging.getLogger(self._logger_name)
        source.addHandler(self._warnings)
        source.propagate = False

    def export(self, *args: Any, **kwargs: Any) -> Any:
        result = super().export(*args, **kwargs)  # type: ignore[misc]
        failed = result.name == "FAILURE"
        if failed and not self._failing:
            reason = next((record.getMessage() for record in self._warnings.buffer), "")
            logger().warning(f"{self._signal}_not_sent", to=self._url, error=reason)
        self._failing = failed
        self._warnings.flush()
        return result


class CollectorSpans(_LogsFailuresOnce, OTLPSpanExporter):
    """Sends spans to a collector."""

    _signal, _logger_name = "traces", OTLPSpanExporter.__module__


class CollectorMetrics(_LogsFailuresOnce, OTLPMetricExporter):
    """Sends metrics to a collector."""

    _signal, _logger_name = "metrics", OTLPMetricExporter.__module__


def metrics_data(readings: Iterable[Reading], resource: Mapping[str, str], *, now_ns: int) -> sdk.MetricsData:
    """One process' readings, taken at `now_ns`, Unix nanoseconds. It shares nothing with what the sources
    count."""
    metrics = [
        sdk.Metric(family.metric.name, family.metric.text, "", _points(family, reading.since_ns, now_ns))
        for reading in readings
        for family in reading.families
        if family.samples
    ]
    scope = sdk.ScopeMetrics(InstrumentationScope("hoss"), metrics, "")
    return sdk.MetricsData([sdk.ResourceMetrics(Resource(resource), [scope], "")])


def _points(family: Family, since_ns: int, now_ns: int) -> sdk.DataT:
    metric = family.metric
    if metric.kind is MetricKind.HISTOGRAM:
        histograms = [
            sdk.HistogramDataPoint(
                attributes=dict(zip(metric.labels, labels, strict=True)),
                start_time_unix_nano=since_ns,
                time_unix_nano=now_ns,
                count=sum(shown.counts),
                sum=shown.total,
                bucket_counts=shown.counts,
                explicit_bounds=shown.bounds,
                min=cast("float", None),  # not counted, and optional in the protocol
                max=cast("float", None),
            )
            for labels, shown in family.histograms()
        ]
        return sdk.Histogram(histograms, _CUMULATIVE)
    numbers = [
        sdk.NumberDataPoint(dict(zip(metric.labels, labels, strict=True)), since_ns, now_ns, float(value))
        for labels, value in family.numbers()
    ]
    return (
        sdk.Gauge(numbers)
        if metric.kind is MetricKind.GAUGE
        else sdk.Sum(numbers, _CUMULATIVE, is_monotonic=True)
    )
