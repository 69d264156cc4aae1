"""bench plugins: rows for all plugins, on classes that share nothing."""

import json

import pytest
from typer.testing import CliRunner

from scheduler_worker.core.classes import DemandTable
from scheduler_worker.core.pod_index.selector_query import Peers
from tools.bench.__main__ import app
from tools.bench.plugin_cases import APPS, cases, filled_cache


@pytest.mark.parametrize("case", cases(1), ids=lambda case: case.title)
def test_no_two_new_classes_share_a_demand(case):
    cache = filled_cache(10, 100, seed=1)
    table = DemandTable(cache.schema, cache.catalogue.images, cache.pod_index)
    demands = [table.compile(case.spec(i)).demand for i in range(50)]
    assert len({id(demand) for demand in demands}) == 50


def test_the_rules_about_pods_find_pods_to_look_at():
    cache = filled_cache(50, 10 * APPS, seed=1)
    constraint = next(case for case in cases(1) if "DoNotSchedule" in case.title).spec(3).spread[0]
    assert cache.pod_index.counter(Peers("default", constraint.selector)).counts.sum() > 0


def test_every_row_has_its_figures_with_all_pods_and_with_a_tenth(tmp_path):
    file = tmp_path / "costs.json"
    result = CliRunner().invoke(
        app, ["plugins", "--nodes", "20", "--pods", "100", "--repeat", "2", "--json", str(file)]
    )
    assert result.exit_code == 0
    document = json.loads(file.read_text())
    assert document["fewerPods"] == 10
    rows = {row["plugin"]: row for row in document["plugins"]}
    assert {case.title for case in cases(1)} < set(rows)
    for title, row in rows.items():
        assert title in result.stdout
        assert row["knownMicros"] >= 0
        assert row["newMicrosFewer"] >= 0
    assert rows["no plugin"]["newMicros"] > 0
    assert (rows["TaintToleration"]["goalNewMicros"], rows["TaintToleration"]["goalKnownMicros"]) == (60, 5)
