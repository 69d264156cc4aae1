"""Metrics pushed to a collector: what it gets, when, and what the environment may say."""

import asyncio

import numpy as np
import pytest
import structlog
from otlp_receiver import attributes, receiving

from hoss.errors import ConfigError
from hoss.model.histograms import Histogram, SizeHistogram
from hoss.telemetry.collector import ENDPOINT, HEADERS, PROTOCOL
from hoss.telemetry.metrics import Kind, Metric, Metrics, exposition
from hoss.telemetry.pushing import INTERVAL, metrics_pushed

OWN_ENDPOINT = "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"

GAUGE = Metric("hoss_g", Kind.GAUGE, "Of a test.")
COUNTER = Metric("hoss_c_total", Kind.COUNTER, "Of a test.", ("kind",))
TIMES = Metric("hoss_t_seconds", Kind.HISTOGRAM, "Of a test.")
SIZES = Metric("hoss_n", Kind.HISTOGRAM, "Of a test.")


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
            pass  # the last push comes with the end
    (posted,) = receiver.posted
    assert posted.path == "/v1/metrics"
    assert (posted.headers["content-type"], posted.headers["api-key"]) == ("application/json", "a b")
    assert posted.headers["other"] == "c"
    (resource,) = posted.request["resourceMetrics"]
    assert attributes(resource["resource"])["service.instance.id"] == "i"
    told = receiver.metrics()["hoss-tests"]
    (point,) = told["hoss_g"]["gauge"]["dataPoints"]
    assert point["asDouble"] == 1.5
    counted = told["hoss_c_total"]["sum"]
    assert counted["isMonotonic"]
    assert counted["aggregationTemporality"] == 2
    assert [(attributes(p)["kind"], p["asDouble"]) for p in counted["dataPoints"]] == [("a", 3), ("b", 0)]
    assert all(int(p["startTimeUnixNano"]) <= int(p["timeUnixNano"]) for p in counted["dataPoints"])
    (times,) = told["hoss_t_seconds"]["histogram"]["dataPoints"]
    assert (times["count"], times["sum"]) == ("3", pytest.approx(5000.0006))
    assert len(times["bucketCounts"]) == len(times["explicitBounds"]) + 1
    assert [int(count) for count in times["bucketCounts"][:3]] == [0, 0, 2]
    assert times["bucketCounts"][-1] == "1"
    (sizes,) = told["hoss_n"]["histogram"]["dataPoints"]
    assert sizes["bucketCounts"] == ["5", "0", "1", "0", "0", "0", "0", "2"]
    assert (sizes["explicitBounds"], sizes["count"], sizes["sum"]) == ([1, 2, 4, 8, 16, 32, 64], "8", 138)


def test_prometheus_reads_a_histogram_of_numbers_with_its_own_bounds():
    lines = exposition([SIZES.single(sizes())]).splitlines()
    assert lines[2:5] == ['hoss_n_bucket{le="1"} 5', 'hoss_n_bucket{le="2"} 5', 'hoss_n_bucket{le="4"} 6']
    assert lines[-3:] == ['hoss_n_bucket{le="+Inf"} 8', "hoss_n_sum 138", "hoss_n_count 8"]


async def test_what_counts_from_a_later_moment_says_so(monkeypatch):
    metrics = Metrics(lambda: [COUNTER.by([("process", 1)])])
    with receiving() as receiver:
        monkeypatch.setenv(ENDPOINT, receiver.endpoint)
        async with metrics_pushed("tests", metrics), metrics.showing(lambda: [SIZES.single(Histogram())]):
            (process, term) = metrics.readings()
    assert process.since_ns <= term.since_ns
    assert [family.metric for family in term.families] == [SIZES]


async def test_it_is_pushed_again_and_again_to_an_address_of_its_own(monkeypatch):
    with receiving() as receiver:
        monkeypatch.setenv(ENDPOINT, "http://127.0.0.1:9")
        monkeypatch.setenv(OWN_ENDPOINT, receiver.endpoint + "/in")
        monkeypatch.setenv(INTERVAL, "10")
        async with metrics_pushed("tests", Metrics(shown)):
            for _ in range(3):
                assert await asyncio.to_thread(receiver.arrived.acquire, timeout=60)
    assert {posted.path for posted in receiver.posted} == {"/in"}


async def test_a_collector_that_does_not_answer_is_told_once_and_ends_nothing(monkeypatch):
    monkeypatch.setenv(ENDPOINT, "http://127.0.0.1:9")  # the discard port: nobody listens
    with structlog.testing.capture_logs() as told:
        async with metrics_pushed("tests", Metrics(shown)):
            pass
    assert [entry["event"] for entry in told] == ["metrics_not_sent"]


async def test_nothing_is_read_where_there_is_no_collector_or_it_is_not_wanted(monkeypatch):
    def unread():
        raise AssertionError

    async with metrics_pushed("tests", Metrics(unread)):
        pass
    monkeypatch.setenv(ENDPOINT, "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "none")
    async with metrics_pushed("tests", Metrics(unread)):
        pass


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        (INTERVAL, "1m", "OTEL_METRIC_EXPORT_INTERVAL: '1m' is no number of milliseconds, such as 60000"),
        (INTERVAL, "0", "OTEL_METRIC_EXPORT_INTERVAL: '0' is no number of milliseconds, such as 60000"),
        (PROTOCOL, "grpc", "HOSS speaks OTLP over HTTP alone"),
        (OWN_ENDPOINT, "localhost:4317", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT: localhost:4317"),
    ],
)
async def test_what_the_environment_says_wrongly_is_one_sentence(monkeypatch, name, value, told):
    monkeypatch.setenv(ENDPOINT, "http://127.0.0.1:9")
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=told):
        async with metrics_pushed("tests", Metrics(shown)):
            pass
