"""Metrics pushed to a collector: what Prometheus would read, read as often as OTEL_METRIC_EXPORT_INTERVAL says, as OTLP's JSON.

Read on the service's own event loop, so that a reading is of one moment, and sent on another thread. The SDK's instruments and
reader are not used: they would have every number counted a second time, under locks, and read by a thread of their own.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

from hoss.errors import ConfigError
from hoss.telemetry.collector import collector_of
from hoss.telemetry.metrics import BoundedCounts, Family, Kind, Metric, Metrics, Reading, counts_of
from hoss.telemetry.otlp import Json, attributes_json, resource_of

INTERVAL = "OTEL_METRIC_EXPORT_INTERVAL"

_DEFAULT_INTERVAL_MS = 60_000
_CUMULATIVE = 2  # AggregationTemporality


@contextlib.asynccontextmanager
async def metrics_pushed(service: str, metrics: Metrics, *, instance: str = "") -> AsyncIterator[None]:
    """Push for the length of the block, and once at its end, where the environment names a collector. Raises ConfigError."""
    collector = collector_of("metrics")
    if collector is None:
        yield
        return
    interval, resource = _interval_seconds(), resource_of(service, instance)

    async def push() -> None:
        request = metrics_request(metrics.readings(), resource, now_ns=time.time_ns())
        await asyncio.to_thread(collector.post, request)

    async def push_for_ever() -> None:
        while True:
            await asyncio.sleep(interval)
            await push()

    pushing = asyncio.ensure_future(push_for_ever())
    try:
        yield
    finally:
        pushing.cancel()
        await asyncio.gather(pushing, return_exceptions=True)
        await push()


def metrics_request(readings: Iterable[Reading], resource: dict[str, str], *, now_ns: int) -> Json:
    """An ExportMetricsServiceRequest."""
    metrics = [
        _metric(family, since_ns=reading.since_ns, now_ns=now_ns)
        for reading in readings
        for family in reading.families
        if family.samples
    ]
    return {
        "resourceMetrics": [
            {
                "resource": {"attributes": attributes_json(resource)},
                "scopeMetrics": [{"scope": {"name": "hoss"}, "metrics": metrics}],
            }
        ]
    }


def _metric(family: Family, *, since_ns: int, now_ns: int) -> Json:
    metric = family.metric
    points = [_point(metric, labels, value, since_ns, now_ns) for labels, value in family.samples]
    described: Json = {"name": metric.name, "description": metric.text}
    if metric.kind is Kind.GAUGE:
        return described | {"gauge": {"dataPoints": points}}
    if metric.kind is Kind.COUNTER:
        return described | {"sum": {"dataPoints": points, "aggregationTemporality": _CUMULATIVE, "isMonotonic": True}}
    return described | {"histogram": {"dataPoints": points, "aggregationTemporality": _CUMULATIVE}}


def _point(metric: Metric, labels: Sequence[str], value: Any, since_ns: int, now_ns: int) -> Json:
    point: Json = {
        "attributes": attributes_json(dict(zip(metric.labels, labels, strict=True))),
        "timeUnixNano": str(now_ns),
    }
    if metric.kind is not Kind.GAUGE:
        point["startTimeUnixNano"] = str(since_ns)
    if metric.kind is not Kind.HISTOGRAM:
        return point | {"asDouble": float(value)}
    counts: BoundedCounts = counts_of(value)
    return point | {
        "count": str(sum(counts.counts)),
        "sum": counts.total,
        "bucketCounts": [str(count) for count in counts.counts],
        "explicitBounds": list(counts.bounds),
    }


def _interval_seconds() -> float:
    text = os.environ.get(INTERVAL, "") or str(_DEFAULT_INTERVAL_MS)
    if not text.isdecimal() or not int(text):
        raise ConfigError(f"{text!r} is no number of milliseconds, such as {_DEFAULT_INTERVAL_MS}", where=INTERVAL)
    return int(text) / 1000
