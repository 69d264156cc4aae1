"""What `hoss simulate` takes and prints."""

import csv
import json
import multiprocessing

import pytest

SWEEP = ("simulate", "omega", "--hours", "0.02", "--nodes", "100", "--t-job", "0.1,20")


def test_omega_prints_the_document_it_promises(hoss):
    result = hoss(*SWEEP, "-o", "json")
    assert result.exit_code == 0
    document = json.loads(result.stdout)
    assert {key: document[key] for key in ("nodes", "fill", "horizonSeconds", "tTaskSeconds", "seed")} == {
        "nodes": 100, "fill": 0.6, "horizonSeconds": 72.0, "tTaskSeconds": 0.005, "seed": 1,
    }  # fmt: skip
    points = document["points"]
    variants = {(p["architecture"], p["conflicts"], p["transactions"]) for p in points}
    assert (len(points), len(variants)) == (12, 6)
    assert {p["serviceTJobSeconds"] for p in points} == {0.1, 20.0}
    assert points[0]["kinds"].keys() == {"batch", "service"}
    assert points[0]["kinds"]["batch"].keys() == {
        "busyness", "waitSeconds", "conflictFraction", "taskConflictShare", "triesPerJob", "submitted",
        "begun", "scheduled",
    }  # fmt: skip


def test_omega_prints_the_same_for_the_same_seed(hoss):
    tiny = (*SWEEP[:-1], "20", "-o", "json")
    first, again, other = (hoss(*tiny, "--seed", seed).stdout for seed in ("1", "1", "2"))
    assert first == again != other


def test_omega_writes_the_same_however_many_runs_it_plays_at_a_time(hoss, tmp_path):
    assert hoss(*SWEEP, "--json", "one.json").exit_code == 0
    assert hoss(*SWEEP, "--json", "two.json", "--jobs", "2").exit_code == 0
    one, two = ((tmp_path / name).read_text() for name in ("one.json", "two.json"))
    assert one == two
    assert multiprocessing.active_children() == []


def test_omega_goes_on_with_the_runs_that_a_file_does_not_have_yet(hoss, tmp_path):
    assert hoss(*SWEEP, "--json", "sweep.json").exit_code == 0
    file = tmp_path / "sweep.json"
    whole = json.loads(file.read_text())
    assert len(whole["points"]) == 12
    interrupted = {**whole, "points": whole["points"][:3] + whole["points"][7:]}
    # Told by the file, not simulated again.
    interrupted["points"][0] = {**whole["points"][0], "utilisation": 0.123}
    file.write_text(json.dumps(interrupted))
    result = hoss(*SWEEP, "--json", "sweep.json", "--csv", "sweep.csv")
    assert result.exit_code == 0
    assert "12 runs of 0.02 h, 8 of them in sweep.json, about " in result.stderr
    gone_on = json.loads(file.read_text())
    assert gone_on["points"] == [interrupted["points"][0], *whole["points"][1:]]
    assert [path.name for path in tmp_path.glob("*.part")] == []
    rows = list(csv.DictReader((tmp_path / "sweep.csv").read_text().splitlines()))
    assert len(rows) == 24
    assert (rows[0]["kind"], rows[0]["architecture"], rows[0]["utilisation"]) == (
        "batch",
        "monolithic-single-path",
        "0.123",
    )
    assert rows[1]["submitted"] == str(whole["points"][0]["kinds"]["service"]["submitted"])


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("no JSON", "is there and holds no sweep to go on with; name another file"),
        ("{}", "is there and holds no sweep to go on with; name another file"),
        (
            (
                '{"nodes": 100, "fill": 0.6, "horizonSeconds": 72.0, "tTaskSeconds": 0.005, "seed": 2,'
                ' "points": []}'
            ),
            "holds a sweep of other settings; name another file",
        ),
    ],
)
def test_omega_overwrites_no_file_that_it_cannot_go_on_with(hoss, tmp_path, content, problem):
    (tmp_path / "sweep.json").write_text(content)
    result = hoss(*SWEEP, "--json", "sweep.json")
    assert (result.exit_code, result.stderr) == (2, f"error: --json sweep.json: {problem}\n")
    assert (tmp_path / "sweep.json").read_text() == content


def test_omega_says_beforehand_how_long_it_takes_and_shows_a_table_for_each_variant(hoss):
    result = hoss(*SWEEP)
    assert "12 runs of 0.02 h, about " in result.stderr
    assert "shared-state, sequence-number, all-or-nothing" in result.stdout
    assert result.stdout.count("T_JOB (S)") == 6


def test_omega_draws_busyness_conflicts_and_waits(hoss, tmp_path):
    result = hoss(*SWEEP, "-o", "json", "--plots", "plots")
    assert result.exit_code == 0
    names = ("omega-busyness", "omega-conflicts", "omega-waits")
    assert {path.name for path in (tmp_path / "plots").iterdir()} == {
        f"{n}.{kind}" for n in names for kind in ("png", "svg")
    }
    conflicts = (tmp_path / "plots" / "omega-conflicts.svg").read_text()
    assert all(
        word in conflicts for word in ("sequence-number", "all-or-nothing", "service jobs", "batch jobs")
    )


def test_plots_are_refused_before_anything_is_simulated_where_they_cannot_be_written(hoss):
    result = hoss("simulate", "omega", "--plots", "/nowhere/plots")
    assert (result.exit_code, "its directory /nowhere is not there" in result.stderr) == (2, True)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a,b", "--t-job: 'a,b' is no list of seconds; write 0.1,1,10"),
        ("-1", "--t-job: -1 is no decision time; give seconds from 0 to 86400"),
        ("nan", "--t-job: nan is no decision time; give seconds from 0 to 86400"),
    ],
)
def test_decision_times_that_are_none_are_refused(hoss, text, problem):
    result = hoss("simulate", "omega", "--t-job", text)
    assert (result.exit_code, result.stderr) == (2, f"error: {problem}\n")


CLUSTER = ("simulate", "cluster", "--nodes", "50", "--pods", "5000", "--workers", "3")


def test_cluster_prints_the_document_it_promises(hoss):
    result = hoss(*CLUSTER, "-o", "json")
    assert result.exit_code == 0
    document = json.loads(result.stdout)
    assert document.keys() == {
        "nodes", "pods", "workers", "resolvers", "shards", "cores", "seed", "serviceMicros", "hopSeconds",
        "seconds", "bound",
        "podsPerSecond", "ledgerRatio", "proposed", "conflicts", "conflictShare", "overcommittedNodes",
        "busyness", "busiest", "measured",
    }  # fmt: skip
    assert (document["bound"], document["overcommittedNodes"], document["measured"]) == (5000, 0, None)
    assert document["serviceMicros"].keys() == {
        "client", "dispatcher", "worker", "feed", "resolver", "follower", "ledger",
    }  # fmt: skip
    assert document["busyness"].keys() == {
        "client", "dispatcher", "worker-1", "worker-2", "worker-3", "resolver-1", "ledger-1",
    }  # fmt: skip


def test_cluster_shows_what_a_benchmark_of_the_same_size_measured_beside_what_it_simulates(hoss, tmp_path):
    document = {
        "nodes": 50, "pods": 4000, "workers": 2, "mix": "uniform", "ratio": 0.77, "podsPerSecond": 54321.0,
        "runs": [{
            "microsPerPod": {"workers": 3, "dispatcher": 1, "resolvers": 1, "redis": 3},
            "placement": {"bound": 4000, "conflicts": 0},
        }],
    }  # fmt: skip
    (tmp_path / "bench.json").write_text(json.dumps(document))
    same = hoss("simulate", "cluster", "--bench", "bench.json")
    assert same.exit_code == 0
    assert "4,000 of 4,000" in same.stdout
    assert "measured 54,321" in same.stdout
    assert "measured 0.77" in same.stdout
    assert "measured" not in hoss("simulate", "cluster", "--bench", "bench.json", "--workers", "3").stdout


def test_pods_that_fit_nowhere_are_counted_and_the_simulation_ends(hoss):
    result = hoss("simulate", "cluster", "--nodes", "10", "--pods", "1200", "--workers", "2")
    assert result.exit_code == 0
    assert "1,100 of 1,200" in result.stdout
    assert "100: no node has room for them" in result.stdout


def test_a_benchmark_that_is_not_there_is_refused(hoss):
    result = hoss("simulate", "cluster", "--bench", "none.json")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: --bench none.json: cannot be read")


def test_plan_says_what_is_needed_and_what_saturates_first(hoss):
    result = hoss("bench", "plan", "--pods-per-second", "1000", "--nodes", "100", "-o", "json")
    assert result.exit_code == 0
    document = json.loads(result.stdout)
    assert document.keys() == {
        "podsPerSecond", "nodes", "reached", "workers", "resolvers", "shards", "redisCores", "firstLimit",
        "steps",
    }  # fmt: skip
    assert (document["reached"], document["redisCores"], len(document["steps"])) == (True, 1, 1)


def test_a_plan_that_cannot_be_met_fails_and_names_the_limit(hoss):
    result = hoss("bench", "plan", "--pods-per-second", "5e6", "--nodes", "500")
    assert result.exit_code == 1
    assert "saturates first" in result.stdout
    assert "5,000,000 pods/s are not reached: the dispatcher is the limit" in result.stderr


def a_measured_run(mode, workers, pods_per_second):
    return {
        "cell": {"mode": mode, "load": "uniform", "workers": workers, "nodes": 20, "fill": 0.8,
            "decision": {"jobMs": 10, "taskMs": 0.5}},
        "repetition": 0, "seed": 1, "started": "", "pods": 1024, "bound": 1024, "unschedulable": 0,
        "seconds": 1,
        "podsPerSecond": pods_per_second, "latency": {}, "latencyCurve": [], "jobs": 1, "proposals": 1024,
        "conflicts": 0,
        "jobsWithConflicts": 0, "retries": 0, "wastedDecisions": 0, "workers": [],
        "overcommit": {"nodes": 0, "worst": 1, "excess": {}},
        "unschedulableWithRoom": 0, "utilisation": {}, "fragmentation": {}, "violations": [],
        "services": {s: {"cpuSeconds": 0.004, "peakMib": 1} for s in ("dispatcher", "workers", "resolvers",
                "redis")},
    }  # fmt: skip


@pytest.fixture
def comparison(tmp_path):
    def write(*runs):
        machine = {"cpu": "c", "cores": 2, "memoryMib": 1, "system": "s", "python": "3", "versions": {}}
        document = {
            "schema": "hoss.dev/bench-compare/v1",
            "machine": machine,
            "command": "",
            "started": "",
            "runs": runs,
        }
        (tmp_path / "compare.json").write_text(json.dumps(document))
        return "compare.json"

    return write


def test_check_puts_measured_and_simulated_side_by_side(hoss, comparison):
    file = comparison(a_measured_run("single", 1, 1890), a_measured_run("multi-locked", 2, 1))
    result = hoss("simulate", "check", "--measured", file, "--seeds", "1")
    assert result.exit_code == 0
    heading, row = result.stdout.splitlines()
    assert heading.split()[:5] == ["MODE", "WORKERS", "NODES", "FILL", "PODS"]
    assert row.startswith("single   1         20      80%    1,024   1,890 (1,890 to 1,890)")
    assert row.endswith("yes")
    assert "not simulated: 1 runs" in result.stderr


def test_check_fails_where_simulation_and_measurement_are_apart(hoss, comparison):
    result = hoss(
        "simulate", "check", "--measured", comparison(a_measured_run("single", 1, 5000)), "-o", "json"
    )
    assert result.exit_code == 1
    document = json.loads(result.stdout)
    assert document.keys() == {"seeds", "cores", "serviceMicros", "hopSeconds", "notPlayed", "cells"}
    (cell,) = document["cells"]
    assert cell.keys() == {
        "mode", "workers", "nodes", "pods", "fill", "decisionJobMs", "decisionTaskMs", "podsPerSecond",
        "conflictShare", "agrees", "unclear",
    }  # fmt: skip
    assert cell["podsPerSecond"].keys() == {
        "measured", "lowest", "highest", "standardError", "simulated", "agrees", "unclear",
    }  # fmt: skip
    assert (cell["podsPerSecond"]["agrees"], cell["conflictShare"]["agrees"]) == (False, True)
    assert "1 of 1 cells are further apart" in result.stderr


def test_check_says_where_the_measured_runs_differ_too_much_to_tell(hoss, comparison):
    file = comparison(*(a_measured_run("single", 1, speed) for speed in (1000, 4200)))
    result = hoss("simulate", "check", "--measured", file, "--seeds", "1")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[1].endswith("unclear")
    assert "1 of 1 cells are unclear" in result.stderr


def test_check_wants_a_comparison_with_runs_it_can_play(hoss, comparison):
    result = hoss("simulate", "check", "--measured", comparison(a_measured_run("multi-locked", 2, 1)))
    assert (result.exit_code, "--measured compare.json: holds no whole run" in result.stderr) == (2, True)
    missing = hoss("simulate", "check", "--measured", "none.json")
    assert (missing.exit_code, "none.json: cannot be read" in missing.stderr) == (2, True)


def test_rebalance_prints_each_case_and_refuses_goals_that_it_cannot_simulate(hoss, tmp_path):
    days = ("simulate", "rebalance", "--nodes", "4", "--days", "0.1")
    document = json.loads(hoss(*days, "-o", "json").stdout)
    assert [case["name"] for case in document["cases"]] == ["none", "nightly", "controller"]
    assert len({case["podsCame"] for case in document["cases"]}) == 1
    assert "MOVES A DAY" in hoss(*days).stdout
    policy = tmp_path / "policy.yaml"
    policy.write_text(
        "apiVersion: hoss.dev/v1alpha1\nkind: RebalancePolicy\ngoals: [{goal: defragment-gpus}]\n"
    )
    assert "knows no defragment-gpus" in hoss(*days, "--policy", str(policy)).stderr
