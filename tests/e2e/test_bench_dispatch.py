"""bench dispatch, on a dispatcher and a Redis of its own."""

import json

from typer.testing import CliRunner

from tools.bench.__main__ import app


def _document(*arguments):
    done = CliRunner().invoke(app, ["dispatch", *arguments, "-o", "json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_every_mode_accepts_and_dispatches_all_pods():
    for mode in ("replicas", "distinct"):
        # So many that their CPU time, which is counted in hundredths of a second, is none too small.
        result = _document("--mode", mode, "--pods", "30000", "--rules", "5", "--tenants", "2")
        assert result["podsPerCpuSecond"] > 0
        assert result["runs"][0]["accept"]["seconds"] > 0
        assert result["runs"][0]["dispatch"]["seconds"] > 0


def test_a_million_queued_pods_fit_in_500_mb_in_one_job_and_in_10000_classes():
    rows = _document("--memory", "--pods", "1000000")["memory"]
    assert [row["classes"] for row in rows] == [1, 10_000]
    for row in rows:
        assert row["peakMib"] < row["goalMib"], row
