"""What is told of conflicts, and how they are steered by hand."""

import json

import pytest

from hoss.v1 import dispatcher_pb2 as pb


@pytest.fixture
def contended(hoss):
    """Two workers that were refused for each other."""
    hoss.dispatcher.refusals.CopyFrom(
        pb.Conflicts(
            pairs=[
                pb.ConflictPair(loser="w1", winner="w2", reason="CONFLICT_RESOURCE", pods=75),
                pb.ConflictPair(loser="w2", winner="w1", reason="CONFLICT_TOPOLOGY", pods=20),
                pb.ConflictPair(loser="w2", reason="NODE_GONE", pods=5),
            ],
            nodes=[pb.NodeConflicts(node="node-7", pods=60)],
            seqs_behind=[0, 60, 40],
            ages_ms=[0, 0, 0, 100],
            proposed=1000,
            refused=100,
            steering=pb.Steering(
                overlap="soft-partition",
                reason="kept: better",
                steps=[
                    pb.SteeringStep(overlap="shuffled", reason="the beginning"),
                    pb.SteeringStep(overlap="soft-partition", workers=3, reason="kept: better"),
                ],
            ),
        )
    )
    return hoss


def test_pairs_nodes_ages_and_every_step_are_shown(contended):
    told = contended("get", "conflicts").stdout
    head, first, second, third, *_ = told.splitlines()
    assert head.split() == ["REFUSED", "FOR", "REASON", "PODS", "SHARE"]
    assert first.split() == ["w1", "w2", "CONFLICT_RESOURCE", "75", "75.0%"]
    assert second.split() == ["w2", "w1", "CONFLICT_TOPOLOGY", "20", "20.0%"]
    assert third.split() == ["w2", "-", "NODE_GONE", "5", "5.0%"]
    for part in (
        "100 of 1,000 proposed (10.0%)",
        "node-7 (60)",
        "1+ changes: 60%",
        "4+ ms: 100%",
        "the beginning",
    ):
        assert part in " ".join(told.split())


def test_the_document_has_the_figures_as_numbers(contended):
    document = json.loads(contended("get", "conflicts", "-o", "json").stdout)
    assert document["conflictShare"] == 0.1
    assert document["pairs"][0] == {
        "loser": "w1", "winner": "w2", "reason": "CONFLICT_RESOURCE", "pods": 75, "share": 0.75
    }  # fmt: skip
    assert document["seqsBehind"] == [{"from": 1, "pods": 60}, {"from": 2, "pods": 40}]
    assert document["steering"]["steps"][1]["workers"] == 3


def test_nothing_to_tell_is_told_as_that(hoss):
    assert "0 of 0 proposed" in hoss("get", "conflicts").stdout


def test_conflicts_have_no_names(hoss):
    result = hoss("get", "conflicts", "w1")
    assert result.exit_code == 2
    assert "hoss describe worker" in result.stderr


def test_a_worker_s_description_says_for_whom_it_was_refused_and_who_for_it(contended):
    contended.dispatcher.workers.append(pb.WorkerInfo(name="w2", state="Ready"))
    document = json.loads(contended("describe", "worker", "w2", "-o", "json").stdout)
    assert document["refusedFor"] == [
        {"worker": "w1", "reason": "CONFLICT_TOPOLOGY", "pods": 20},
        {"worker": "nobody", "reason": "NODE_GONE", "pods": 5},
    ]
    assert document["othersRefusedForIt"] == [{"worker": "w1", "reason": "CONFLICT_RESOURCE", "pods": 75}]
    told = contended("describe", "worker", "w2").stdout
    assert "w1: 20 pods, CONFLICT_TOPOLOGY" in told
    assert "others refused for it  w1: 75 pods, CONFLICT_RESOURCE" in told


def test_status_says_what_is_in_force_and_why(hoss, monkeypatch):
    status = pb.DispatcherStatus(
        steering=pb.Steering(overlap="shared", workers=2, overlap_fixed=True, reason="by hand")
    )

    async def told():
        return status

    monkeypatch.setattr(hoss.dispatcher, "status", told)
    line = " ".join(hoss("status").stdout.split())
    assert "shared (fixed), 2 workers at once (auto): by hand" in line
    assert json.loads(hoss("status", "-o", "json").stdout)["dispatcher"]["steering"]["workers"] == 2


def test_steer_says_what_is_in_force_then(hoss):
    result = hoss("steer", "--overlap", "soft-partition", "--workers", "3")
    assert result.exit_code == 0
    assert result.stderr == "soft-partition (fixed), 3 workers at once (auto): by hand\n"
    assert json.loads(hoss("steer", "--workers", "3", "-o", "json").stdout)["workers"] == 3


@pytest.mark.parametrize(
    ("arguments", "told"), [((), "give one of them"), (("--overlap", "none"), "is none of auto")]
)
def test_steer_refuses_what_it_does_not_know(hoss, arguments, told):
    result = hoss("steer", *arguments)
    assert result.exit_code == 2
    assert told in result.stderr
