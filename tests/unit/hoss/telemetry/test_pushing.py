"""Metrics pushed to a collector: what it gets, when, and how the environment configures it."""

import asyncio

import numpy as np
import pytest
import structlog
from otlp_receiver import attributes, receiving

from hoss.errors import ConfigError
from hoss.statistics import Histogram, SizeHistogram
from hoss.telemetry.collector import ENDPOINT, INTERVAL, PROTOCOL, metrics_pushed
from hoss.telemetry.exposition import exposition
from hoss.telemetry.metrics import Metric, MetricKind, Metrics

HEADERS = "OTEL_EXPORTER_OTLP_HEADERS"
OWN_ENDPOINT = "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"

GAUGE = Metric("hoss_g", MetricKind.GAUGE, "Of a test.")
COUNTER = Metric("hoss_c_total", MetricKind.COUNTER, "Of a test.", ("kind",))
TIMES = Metric("hoss_t_seconds", MetricKind.HISTOGRAM, "Of a test.")
SIZES = Metric("hoss_n", MetricKind.HISTOGRAM, "Of a test.")


@pytest.fixture(autouse=True)
def _no_collector(monkeypatch):
    for name in (ENDPOINT, OWN_ENDPOINT, PROTOCOL, HEADERS, INTERVAL, "OTEL_METRICS_EXPORTER"):
        monkeypatch.delenv(name, raising=False)


def sizes():
    found = SizeHistogram()
    for size in (1, 1, 1, 0, 1, 4, 65, 65):
        found.add(size)
    return found


def shown():
    times = Histogram()
    times.add(np.array([0.0003, 0.0003, 5000.0]))
    yield GAUGE.single(1.5)
    yield COUNTER.by([("a", 3), ("b", 0)])
    yield TIMES.single(times)
    yield SIZES.single(sizes())


async def test_a_collector_gets_every_metric_as_prometheus_would_read_it(monkeypatch):
    metrics = Metrics(shown)
    with receiving() as receiver:
        monkeypatch.setenv(ENDPOINT, receiver.endpoint + "/")
        monkeypatch.setenv(HEADERS, "api-key=a%20b,other=c")
        async with metrics_pushed("tests", metrics, instance="i"):
            pass  # the last push is at the end
    (posted,) = receiver.posted
    assert posted.path == "/v1/metrics"
    assert (posted.headers["content-type"], posted.headers["api-key"]) == ("application/x-protobuf", "a b")
    assert posted.headers["other"] == "c"
    (resource,) = posted.request["resourceMetrics"]
    assert attributes(resource["resource"])["service.instance.id"] == "i"
    pushed = receiver.metrics()["hoss-tests"]
    (point,) = pushed["hoss_g"]["gauge"]["dataPoints"]
    assert point["asDouble"] == 1.5
    counted = pushed["hoss_c_total"]["sum"]
    assert counted["isMonotonic"]
    assert counted["aggregationTemporality"] == 2
    assert [(attributes(p)["kind"], p["asDouble"]) for p in counted["dataPoints"]] == [("a", 3), ("b", 0)]
    assert all(int(p["startTimeUnixNano"]) <= int(p["timeUnixNano"]) for p in counted["dataPoints"])
    (times,) = pushed["hoss_t_seconds"]["histogram"]["dataPoints"]
    assert (times["count"], times["sum"]) == ("3", pytest.approx(5000.0006))
    assert len(times["bucketCounts"]) == len(times["explicitBounds"]) + 1
    assert [int(count) for count in times["bucketCounts"][:3]] == [0, 0, 2]
    assert times["bucketCounts"][-1] == "1"
    (sizes,) = pushed["hoss_n"]["histogram"]["dataPoints"]
    assert sizes["bucketCounts"] == ["5", "0", "1", "0", "0", "0", "0", "2"]
    assert (sizes["explicitBounds"], sizes["count"], sizes["sum"]) == ([1, 2, 4, 8, 16, 32, 64], "8", 138)


def test_prometheus_reads_a_histogram_of_numbers_with_its_own_bounds():
    lines = exposition(Metrics(lambda: [SIZES.single(sizes())]))[0].decode().splitlines()
    assert lines[2:5] == [
        'hoss_n_bucket{le="1"} 5.0',
        'hoss_n_bucket{le="2"} 5.0',
        'hoss_n_bucket{le="4"} 6.0',
    ]
    samples = set(lines[-3:])  # which come in an order of the library's
    assert samples == {'hoss_n_bucket{le="+Inf"} 8.0', "hoss_n_sum 138.0", "hoss_n_count 8.0"}


async def test_each_source_counts_from_the_moment_it_was_added(monkeypatch):
    metrics = Metrics(lambda: [COUNTER.by([("process", 1)])])
    with receiving() as receiver:
        monkeypatch.setenv(ENDPOINT, receiver.endpoint)
        async with metrics_pushed("tests", metrics), metrics.showing(lambda: [SIZES.single(Histogram())]):
            (process, term) = metrics.readings()
    assert process.since_ns <= term.since_ns
    assert [family.metric for family in term.families] == [SIZES]


async def test_metrics_are_pushed_at_every_interval_to_their_own_address(monkeypatch):
    with receiving() as receiver:
        monkeypatch.setenv(ENDPOINT, "http://127.0.0.1:9")
        monkeypatch.setenv(OWN_ENDPOINT, receiver.endpoint + "/in")
        monkeypatch.setenv(INTERVAL, "10")
        async with metrics_pushed("tests", Metrics(shown)):
            for _ in range(3):
                assert await asyncio.to_thread(receiver.arrived.acquire, timeout=60)
    assert {posted.path for posted in receiver.posted} == {"/in"}


async def test_a_collector_that_does_not_answer_is_logged_once_and_ends_nothing(monkeypatch):
    monkeypatch.setenv(ENDPOINT, "http://127.0.0.1:9")  # the discard port: nobody listens
    with structlog.testing.capture_logs() as logged:
        async with metrics_pushed("tests", Metrics(shown)):
            pass
    assert [entry["event"] for entry in logged] == ["metrics_not_sent"]
    assert "Connection refused" in logged[0]["error"]


async def test_nothing_is_read_without_a_collector_or_with_the_exporter_none(monkeypatch):
    def unread():
        raise AssertionError

    async with metrics_pushed("tests", Metrics(unread)):
        pass
    monkeypatch.setenv(ENDPOINT, "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "none")
    async with metrics_pushed("tests", Metrics(unread)):
        pass


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        (INTERVAL, "1m", "OTEL_METRIC_EXPORT_INTERVAL: '1m' is no number of milliseconds, such as 60000"),
        (INTERVAL, "0", "OTEL_METRIC_EXPORT_INTERVAL: '0' is no number of milliseconds, such as 60000"),
        (PROTOCOL, "grpc", "HOSS speaks OTLP over HTTP alone"),
        (OWN_ENDPOINT, "localhost:4317", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT: localhost:4317"),
    ],
)
async def test_a_wrong_variable_is_one_sentence(monkeypatch, name, value, error):
    monkeypatch.setenv(ENDPOINT, "http://127.0.0.1:9")
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=error):
        async with metrics_pushed("tests", Metrics(shown)):
            pass
