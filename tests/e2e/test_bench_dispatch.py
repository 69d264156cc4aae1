"""bench dispatch, on a dispatcher and a Redis of its own."""


def test_every_mode_accepts_and_dispatches_all_pods(hoss):
    for mode in ("replicas", "distinct"):
        result = hoss.json("bench", "dispatch", "--mode", mode, "--pods", "3000", "--rules", "5", "--tenants", "2")
        assert result["podsPerCpuSecond"] > 0
        assert result["runs"][0]["accept"]["seconds"] > 0
        assert result["runs"][0]["dispatch"]["seconds"] > 0


def test_a_million_queued_pods_fit_in_500_mb_in_one_job_and_in_10000_classes(hoss):
    rows = hoss.json("bench", "dispatch", "--memory", "--pods", "1000000")["memory"]
    assert [row["classes"] for row in rows] == [1, 10_000]
    for row in rows:
        assert row["peakMib"] < row["goalMib"], row
