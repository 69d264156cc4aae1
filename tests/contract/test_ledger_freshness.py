"""A refusal brings the node as it is now: its version and what it has left. Shard 0 of two, so node indexes
are even."""

from dataclasses import replace

import numpy as np
import pytest

from hoss.model.conflicts import Criteria
from hoss.model.pod import HostPort
from hoss.wire.columns import account_dtype
from resolver.core.values import Verdict

OTHERS = {"worker": "w2", "epoch": 2}


@pytest.fixture
async def nodes(ledger, make_node):
    """Node 0 with cpu 1,000 and a card, on which another worker placed a pod with port 80; node 2 is
    cordoned."""
    await ledger.upsert_nodes(0, [make_node("a", cpu=1000, cards=1), make_node("b", unschedulable=True)])
    for worker in ("w1", "w2"):
        await ledger.grant(worker)
    return ledger


@pytest.mark.parametrize(
    ("verdict", "node", "asked"),
    [
        (Verdict.CONFLICT_RESOURCE, 0, {"cpu": 901}),
        (Verdict.CONFLICT_PORT, 0, {"ports": [[HostPort(80)]]}),
        (Verdict.CONFLICT_DEVICE, 0, {"devices": [(1, 1000)]}),
        (Verdict.NODE_UNSCHEDULABLE, 2, {}),
        (Verdict.CONFLICT_VERSION, 0, {"criteria": Criteria.VERSION, "snapshot_seq": 1}),
        (Verdict.NODE_GONE, 0, {"snapshot_seq": 0}),
    ],
)
async def test_every_refusal_by_a_node_brings_its_account_of_this_moment(
    nodes, make_proposal, verdict, node, asked
):
    before = make_proposal([1], [[0]], cpu=100, ports=[[HostPort(80)]], devices=[(1, 500)], **OTHERS)
    [first] = await nodes.commit(0, [before])
    [decision] = await nodes.commit(0, [make_proposal([2], [[node]], **asked)])
    assert decision.verdicts.tolist() == [verdict]
    fresh = np.frombuffer(decision.fresh.records, account_dtype(decision.fresh.resources))
    assert np.frombuffer(decision.fresh.indexes, "<u4").tolist() == [node]
    assert fresh["seq"].tolist() == [first.seq if node == 0 else 1]
    assert fresh["amounts"][0, 0, 1] == (100 if node == 0 else 0)


async def test_a_pod_whose_victims_do_not_go_brings_the_account_too(nodes, make_proposal):
    [first] = await nodes.commit(0, [make_proposal([1], [[0]], cpu=1000, priorities=[9], **OTHERS)])
    late = make_proposal([2], [[0]], cpu=500, priorities=[5])
    [decision] = await nodes.commit(
        0, [replace(late, victims={0: (make_proposal([1], [[0]]).uids[0].tobytes(),)})]
    )
    fresh = np.frombuffer(decision.fresh.records, account_dtype(decision.fresh.resources))
    assert decision.verdicts.tolist() == [Verdict.CONFLICT_RESOURCE]
    assert fresh["seq"].tolist() == [first.seq]
