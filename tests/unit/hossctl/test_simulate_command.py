"""What `hoss simulate` takes and prints."""

import json

import pytest

SMALL = ("simulate", "omega", "--hours", "0.1", "--nodes", "500", "--t-job", "0.1,20")


def test_omega_prints_the_document_it_promises(hoss):
    result = hoss(*SMALL, "-o", "json")
    assert result.exit_code == 0
    document = json.loads(result.stdout)
    assert {key: document[key] for key in ("nodes", "fill", "horizonSeconds", "tTaskSeconds", "seed")} == {
        "nodes": 500, "fill": 0.6, "horizonSeconds": 360.0, "tTaskSeconds": 0.005, "seed": 1,
    }  # fmt: skip
    points = document["points"]
    variants = {(p["architecture"], p["conflicts"], p["transactions"]) for p in points}
    assert (len(points), len(variants)) == (12, 6)
    assert {p["serviceTJobSeconds"] for p in points} == {0.1, 20.0}
    assert points[0]["kinds"].keys() == {"batch", "service"}
    assert points[0]["kinds"]["batch"].keys() == {
        "busyness", "waitSeconds", "conflictFraction", "taskConflictShare", "triesPerJob", "submitted", "begun", "scheduled",
    }  # fmt: skip


def test_omega_prints_the_same_for_the_same_seed(hoss):
    first, again, other = (hoss(*SMALL, "-o", "json", "--seed", seed).stdout for seed in ("1", "1", "2"))
    assert first == again != other


def test_omega_says_beforehand_how_long_it_takes_and_shows_a_table_for_each_variant(hoss):
    result = hoss(*SMALL)
    assert "12 runs of 0.1 h, about " in result.stderr
    assert "shared-state, sequence-number, all-or-nothing" in result.stdout
    assert result.stdout.count("T_JOB (S)") == 6


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
        "nodes", "pods", "workers", "resolvers", "shards", "cores", "seed", "serviceMicros", "hopSeconds", "seconds", "bound",
        "podsPerSecond", "ledgerRatio", "proposed", "conflicts", "conflictShare", "overcommittedNodes", "busyness", "busiest", "measured",
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
        "podsPerSecond", "nodes", "reached", "workers", "resolvers", "shards", "redisCores", "firstLimit", "steps",
    }  # fmt: skip
    assert (document["reached"], document["redisCores"], len(document["steps"])) == (True, 1, 1)


def test_a_plan_that_cannot_be_met_fails_and_names_the_limit(hoss):
    result = hoss("bench", "plan", "--pods-per-second", "5e6", "--nodes", "500")
    assert result.exit_code == 1
    assert "saturates first" in result.stdout
    assert "5,000,000 pods/s are not reached: the dispatcher is the limit" in result.stderr
