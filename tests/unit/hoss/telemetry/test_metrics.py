"""What Prometheus is shown: its text format, and that nothing is shown or asked for under another name than the catalogue's."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from dispatcher.metrics import METRICS as OF_DISPATCHERS
from hoss.model.histograms import Histogram
from hoss.telemetry.metrics import PROCESS_METRICS, Kind, Metric, Metrics, exposition, process_source, table
from resolver.metrics import METRICS as OF_RESOLVERS
from scheduler_worker.metrics import METRICS as OF_WORKERS

ROOT = Path(__file__).parents[4]
CATALOGUE = (*PROCESS_METRICS, *OF_DISPATCHERS, *OF_WORKERS, *OF_RESOLVERS)
SERIES = {series: metric for metric in CATALOGUE for series in metric.series}
BY_PROMETHEUS = {"le", "job", "instance"}

_NAME = re.compile(r"\b(?:hoss|scheduler|process)_[a-z_]+\b")
_SELECTED = re.compile(r"\b([a-z_]+)\{([^}]*)\}")
_GROUPED = re.compile(r"\bby \(([^)]*)\)")


def expressions() -> list[tuple[str, str]]:
    """Every query of the dashboards and rules, with where it stands."""
    found = []
    for board in sorted((ROOT / "deploy" / "grafana").glob("*.json")):
        for panel in json.loads(board.read_text())["panels"]:
            found += [(f"{board.name}: {panel['title']}", target["expr"]) for target in panel["targets"]]
    rules = yaml.safe_load((ROOT / "deploy" / "prometheus" / "alerts.yml").read_text())
    return found + [(rule["alert"], rule["expr"]) for group in rules["groups"] for rule in group["rules"]]


def problems_of(expression: str) -> list[str]:
    """Names and labels that no service shows."""
    names = _NAME.findall(expression)
    wrong = [name for name in names if name not in SERIES]
    labels = BY_PROMETHEUS.union(*(SERIES[name].labels for name in names if name in SERIES))
    asked = [part for by in _GROUPED.findall(expression) for part in re.split(r",\s*", by)]
    asked += [
        part.partition("=")[0].strip("!~ ") for _, inside in _SELECTED.findall(expression) for part in inside.split(",")
    ]
    return wrong + [label for label in asked if label not in labels]


@pytest.mark.parametrize(("where", "expression"), expressions())
def test_dashboards_and_rules_ask_for_what_the_services_show(where: str, expression: str) -> None:
    assert _NAME.findall(expression), where
    assert problems_of(expression) == []


@pytest.mark.parametrize(
    "expression", ["rate(hoss_podz_total[1m])", "sum by (que) (scheduler_pending_pods)", 'hoss_pods{phas="x"}']
)
def test_a_name_or_label_that_nobody_shows_is_found(expression: str) -> None:
    assert problems_of(expression)


def test_every_metric_is_declared_once_and_explained() -> None:
    assert len({metric.name for metric in CATALOGUE}) == len(CATALOGUE)
    for metric in CATALOGUE:
        assert metric.text.endswith("."), metric.name
        assert metric.name.endswith("_total") == (metric.kind is Kind.COUNTER), metric.name
        assert "pod" not in metric.labels, metric.name


def test_the_operations_page_lists_every_metric_as_it_is_declared() -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    for metrics in (OF_DISPATCHERS, OF_WORKERS, OF_RESOLVERS, PROCESS_METRICS):
        assert table(metrics) in page, f"docs/operations.md lacks these rows:\n{table(metrics)}"


def test_labels_are_escaped_and_numbers_written_as_prometheus_reads_them() -> None:
    metric = Metric("hoss_x_total", Kind.COUNTER, "Of a test.", ("name", "kind"))
    text = exposition([metric.by([(('a"b\\c\nd', "k"), 3.0), (("e", "k"), 0.25)])])
    assert text.splitlines() == [
        "# HELP hoss_x_total Of a test.",
        "# TYPE hoss_x_total counter",
        'hoss_x_total{name="a\\"b\\\\c\\nd",kind="k"} 3',
        'hoss_x_total{name="e",kind="k"} 0.25',
    ]


def test_a_histogram_is_shown_cumulative_with_its_sum() -> None:
    histogram = Histogram()
    histogram.add(np.array([0.00005, 0.0003, 5000.0]))
    histogram.add_equal(0.0003, 2)
    lines = exposition([Metric("hoss_t_seconds", Kind.HISTOGRAM, "Of a test.").single(histogram)]).splitlines()
    counts = {line.partition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}
    assert counts['hoss_t_seconds_bucket{le="0.0001"}'] == 1
    assert counts['hoss_t_seconds_bucket{le="0.0002"}'] == 1
    assert counts['hoss_t_seconds_bucket{le="0.0004"}'] == 4
    assert counts['hoss_t_seconds_bucket{le="+Inf"}'] == counts["hoss_t_seconds_count"] == 5
    assert counts["hoss_t_seconds_sum"] == pytest.approx(0.00005 + 3 * 0.0003 + 5000)


async def test_a_source_is_shown_for_the_length_of_its_block() -> None:
    metrics, metric = Metrics(process_source("tests")), Metric("hoss_y", Kind.GAUGE, "Of a test.")
    shown: list[Any] = []
    async with metrics.showing(lambda: [metric.single(1)]):
        shown.append([family.metric.name for family in metrics.collect()])
    shown.append([family.metric.name for family in metrics.collect()])
    assert "hoss_y" in shown[0]
    assert shown[1] == [metric.name for metric in PROCESS_METRICS]
