"""`python -m tools.bench resolver` on a real Redis and real resolvers."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from hoss.v1 import resolver_pb2 as pb
from hoss.wire.columns import U32, decode, decode_uids
from tools.bench.__main__ import app
from tools.bench.resolver import Target, proposals

TARGET = Target(0, np.arange(10, dtype=np.uint32), np.array([100], np.uint32))


def made(**changes):
    setting = {"pods": 250, "batch": 100, "conflict_share": 0.5, "seed": 1, **changes}
    return proposals(TARGET, worker="w", epoch=1, **setting)


def uids(batches: list[pb.ProposalBatch]) -> set[bytes]:
    return {uid.tobytes() for batch in batches for uid in decode_uids(batch.uids)}


def test_every_pod_is_proposed_once_and_the_share_asked_for_goes_to_full_nodes():
    batches = made()
    assert [len(decode_uids(batch.uids)) for batch in batches] == [100, 100, 50]
    assert len(uids(batches)) == 250
    nodes = np.concatenate([decode(batch.nodes, U32, name="nodes") for batch in batches])
    assert 75 < (nodes == 100).sum() < 175
    assert np.isin(nodes, [*range(10), 100]).all()


def test_other_seeds_name_other_pods():
    assert not uids(made(seed=1)) & uids(made(seed=2))


def test_each_case_decides_every_pod_and_refuses_those_on_full_nodes():
    arguments = [
        "--nodes",
        "50",
        "--resolvers",
        "1,2",
        "--shards",
        "2",
        "--batch",
        "10",
        "--conflicts",
        "0,50",
    ]
    done = CliRunner().invoke(app, ["resolver", *arguments, "--pods", "400", "-o", "json"])
    assert done.exit_code == 0, done.output
    cases = json.loads(done.stdout)["cases"]
    assert [(c["resolvers"], c["conflictPercent"], c["hotNode"]) for c in cases] == [
        (1, 0, False), (1, 50, False), (1, 0, True), (2, 0, False), (2, 50, False), (2, 0, True),
    ]  # fmt: skip
    for case in cases:
        share = case["committedPerSecond"] / case["podsPerSecond"]
        assert 0.3 < share < 0.7 if case["conflictPercent"] else share == pytest.approx(1)
        assert case["ceilingPerSecond"] > 0
        assert case["p99Ms"] > 0
        assert case["redisMicros"] is not None
