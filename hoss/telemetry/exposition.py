"""A service's metrics in Prometheus' formats, by prometheus_client.

The collector converts a reading when a scrape asks for one. prometheus_client keeps no state of ours. Its
import takes 14 ms, so `endpoint` imports this module only where an endpoint is served.
"""

from collections.abc import Iterator
from itertools import accumulate

from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from hoss.telemetry.metrics import Family, MetricKind, Metrics


def exposition(metrics: Metrics, accept: str = "") -> tuple[bytes, str]:
    """A reading as text, and its content type: OpenMetrics where `accept`, an Accept header, names it."""
    encode, content_type = choose_encoder(accept)
    return encode(_MetricsCollector(metrics)), content_type


class _MetricsCollector(Collector):
    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        return map(_converted, self._metrics.collect())


def _converted(family: Family) -> Metric:
    metric = family.metric
    if metric.kind is MetricKind.HISTOGRAM:
        histogram = HistogramMetricFamily(metric.name, metric.text, labels=metric.labels)
        for labels, shown in family.histograms():
            bounds = [*(f"{bound:.7g}" for bound in shown.bounds), "+Inf"]
            buckets = list(zip(bounds, accumulate(shown.counts), strict=True))
            histogram.add_metric(labels, buckets, shown.total)
        return histogram
    made = (CounterMetricFamily if metric.kind is MetricKind.COUNTER else GaugeMetricFamily)(
        metric.name, metric.text, labels=metric.labels
    )
    for labels, value in family.numbers():
        made.add_metric(labels, value)
    return made
