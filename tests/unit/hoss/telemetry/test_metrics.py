"""Metrics as Prometheus reads them. Services, dashboards and rules use the catalogue's names only."""

import asyncio
import json
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from waiting import until

from dispatcher.metrics import METRICS as OF_DISPATCHERS
from hoss.limits.callers import METRICS as OF_SERVERS
from hoss.security.options import METRICS as OF_DOORS
from hoss.statistics import Histogram
from hoss.telemetry.exposition import exposition
from hoss.telemetry.metrics import (
    PROCESS_METRICS,
    TABLES,
    Family,
    LoopDelay,
    Metric,
    MetricKind,
    Metrics,
    process_source,
    table,
)
from hossctl.rebalance.metrics import METRICS as OF_REBALANCING
from resolver.metrics import METRICS as OF_RESOLVERS
from scheduler_worker.metrics import METRICS as OF_WORKERS

ROOT = Path(__file__).parents[4]
CATALOGUE = (
    *PROCESS_METRICS,
    *OF_SERVERS,
    *OF_DOORS,
    *OF_DISPATCHERS,
    *OF_WORKERS,
    *OF_RESOLVERS,
    *OF_REBALANCING,
)
SERIES = {series: metric for metric in CATALOGUE for series in metric.series}
BY_PROMETHEUS = {"le", "job", "instance"}

_NAME = re.compile(r"\b(?:hoss|scheduler|process)_[a-z_]+\b")
_SELECTED = re.compile(r"\b([a-z_]+)\{([^}]*)\}")
_GROUPED = re.compile(r"\bby \(([^)]*)\)")


def expressions() -> list[tuple[str, str]]:
    """Every query of the dashboards and rules, with its place."""
    found = []
    for board in sorted((ROOT / "deploy" / "grafana").glob("*.json")):
        for panel in json.loads(board.read_text())["panels"]:
            found += [(f"{board.name}: {panel['title']}", target["expr"]) for target in panel["targets"]]
    rules = yaml.safe_load((ROOT / "deploy" / "prometheus" / "alerts.yml").read_text())
    return found + [(rule["alert"], rule["expr"]) for group in rules["groups"] for rule in group["rules"]]


def problems_of(expression: str) -> list[str]:
    """Names and labels that no service has."""
    names = _NAME.findall(expression)
    wrong = [name for name in names if name not in SERIES]
    labels = BY_PROMETHEUS.union(*(SERIES[name].labels for name in names if name in SERIES))
    selected = [part for by in _GROUPED.findall(expression) for part in re.split(r",\s*", by)]
    selected += [
        part.partition("=")[0].strip("!~ ")
        for _, inside in _SELECTED.findall(expression)
        for part in inside.split(",")
    ]
    return wrong + [label for label in selected if label not in labels]


@pytest.mark.parametrize(("where", "expression"), expressions())
def test_dashboards_and_rules_query_metrics_that_the_services_have(where: str, expression: str) -> None:
    assert _NAME.findall(expression), where
    assert problems_of(expression) == []


@pytest.mark.parametrize(
    "expression",
    ["rate(hoss_podz_total[1m])", "sum by (que) (scheduler_pending_pods)", 'hoss_pods{phas="x"}'],
)
def test_a_name_or_label_that_no_service_has_is_found(expression: str) -> None:
    assert problems_of(expression)


def test_every_metric_is_declared_once_and_explained() -> None:
    assert len({metric.name for metric in CATALOGUE}) == len(CATALOGUE)
    for metric in CATALOGUE:
        assert metric.text.endswith("."), metric.name
        assert metric.name.endswith("_total") == (metric.kind is MetricKind.COUNTER), metric.name
        assert "pod" not in metric.labels, metric.name


def test_the_page_on_metrics_lists_every_metric_as_it_is_declared() -> None:
    page = (ROOT / "docs" / "operations" / "observe.md").read_text()
    for metrics in (
        OF_DISPATCHERS,
        OF_WORKERS,
        OF_RESOLVERS,
        OF_REBALANCING,
        OF_SERVERS,
        OF_DOORS,
        PROCESS_METRICS,
    ):
        assert table(metrics) in page, f"docs/operations/observe.md lacks these rows:\n{table(metrics)}"


def text_of(*families: Family, accept: str = "") -> str:
    return exposition(Metrics(lambda: families), accept)[0].decode()


def test_labels_are_escaped_and_numbers_written_as_prometheus_reads_them() -> None:
    metric = Metric("hoss_x_total", MetricKind.COUNTER, "Of a test.", ("name", "kind"))
    text = text_of(metric.by([(('a"b\\c\nd', "k"), 3.0), (("e", "k"), 0.25)]))
    assert text.splitlines() == [
        "# HELP hoss_x_total Of a test.",
        "# TYPE hoss_x_total counter",
        'hoss_x_total{kind="k",name="a\\"b\\\\c\\nd"} 3.0',
        'hoss_x_total{kind="k",name="e"} 0.25',
    ]


def test_openmetrics_is_written_for_those_who_accept_it() -> None:
    metrics = Metrics(lambda: [Metric("hoss_x_total", MetricKind.COUNTER, "Of a test.").single(1)])
    content, content_type = exposition(
        metrics, "text/html, application/openmetrics-text; version=1.0.0; q=0.5"
    )
    assert content_type.startswith("application/openmetrics-text; version=1.0.0; charset=utf-8")
    assert content.decode().splitlines() == [
        "# HELP hoss_x Of a test.",
        "# TYPE hoss_x counter",
        "hoss_x_total 1.0",
        "# EOF",
    ]
    assert exposition(metrics)[1] == "text/plain; version=0.0.4; charset=utf-8"


def test_a_histogram_is_shown_cumulative_with_its_sum() -> None:
    histogram = Histogram()
    histogram.add(np.array([0.00005, 0.0003, 5000.0]))
    histogram.add_equal(0.0003, 2)
    lines = text_of(
        Metric("hoss_t_seconds", MetricKind.HISTOGRAM, "Of a test.").single(histogram)
    ).splitlines()
    counts = {
        line.partition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")
    }
    assert counts['hoss_t_seconds_bucket{le="0.0001"}'] == 1
    assert counts['hoss_t_seconds_bucket{le="0.0002"}'] == 1
    assert counts['hoss_t_seconds_bucket{le="0.0004"}'] == 4
    assert counts['hoss_t_seconds_bucket{le="+Inf"}'] == counts["hoss_t_seconds_count"] == 5
    assert counts["hoss_t_seconds_sum"] == pytest.approx(0.00005 + 3 * 0.0003 + 5000)


async def test_a_source_is_read_within_its_block() -> None:
    metrics = Metrics(process_source("tests"), LoopDelay())
    metric = Metric("hoss_y", MetricKind.GAUGE, "Of a test.")
    shown: list[Any] = []
    async with metrics.showing(lambda: [metric.single(1)]):
        shown.append([family.metric.name for family in metrics.collect()])
    shown.append([family.metric.name for family in metrics.collect()])
    assert "hoss_y" in shown[0]
    assert shown[1] == [metric.name for metric in PROCESS_METRICS if metric is not TABLES]


@pytest.mark.usefixtures("virtual_time")
async def test_an_event_loop_is_probed_from_the_first_reading_on() -> None:
    delays = LoopDelay()
    probing = asyncio.ensure_future(delays.run())

    async def probes_of_a_second() -> int:
        await asyncio.sleep(1.0)
        (family,) = delays()
        ((_, counted),) = family.histograms()
        return sum(counted.counts)

    assert await probes_of_a_second() == 0
    assert await probes_of_a_second() >= 10
    probing.cancel()
    await asyncio.gather(probing, return_exceptions=True)


async def test_a_step_that_holds_up_the_event_loop_is_seen() -> None:
    delays = LoopDelay()

    def seen(least_seconds: float) -> bool:
        (family,) = delays()
        ((_, counted),) = family.histograms()
        return any(
            count and bound > least_seconds
            for count, bound in zip(counted.counts, (*counted.bounds, float("inf")), strict=True)
        )

    probing = asyncio.ensure_future(delays.run())
    await until(lambda: seen(0.0), "a first probe")
    time.sleep(0.5)  # noqa: ASYNC251 - the step
    await until(lambda: seen(0.4), "the step to be seen")
    probing.cancel()
    await asyncio.gather(probing, return_exceptions=True)
