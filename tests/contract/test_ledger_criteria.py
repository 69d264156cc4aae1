"""What any ledger takes as a conflict although it fits. Shard 0 of two, so node indexes are even."""

import pytest

from hoss.model.conflicts import Criteria
from resolver.core.serving import HISTORY
from resolver.core.values import Verdict

C = Verdict.COMMITTED


@pytest.fixture
async def nodes(ledger, make_node):
    """Nodes 0 and 2; workers w1 and w2 have epochs 1 and 2."""
    await ledger.upsert_nodes(0, [make_node("a"), make_node("b")])
    assert (await ledger.grant("w1"), await ledger.grant("w2")) == (1, 2)
    return ledger


@pytest.fixture
def propose(nodes, make_proposal):
    """One pod for a node, by a worker that knows the shard up to `seen`: the verdict and what is told of
    it."""

    async def run(pod, node=0, *, seen, criteria=Criteria.FIT, worker="w1"):
        epoch = {"w1": 1, "w2": 2}[worker]
        proposal = make_proposal(
            [pod], [[node]], cpu=1, snapshot_seq=seen, criteria=criteria, worker=worker, epoch=epoch
        )
        [decision] = await nodes.commit(0, [proposal])
        asked = decision.conflicts["asked"].tolist()
        return Verdict(decision.verdicts[0]), asked[0] if asked else None

    return run


@pytest.mark.parametrize("criteria", Criteria)
async def test_a_node_that_did_not_change_since_the_snapshot_takes_what_fits_whatever_the_criteria(
    nodes, propose, criteria
):
    assert await propose(1, seen=await nodes.seq(0), criteria=criteria) == (C, None)


async def test_version_refuses_a_node_on_which_another_worker_placed_a_pod_since_and_fit_and_strict_do_not(
    nodes, propose
):
    seen = await nodes.seq(0)
    assert await propose(1, seen=seen, worker="w2") == (C, None)
    assert await propose(2, seen=seen, criteria=Criteria.VERSION) == (Verdict.CONFLICT_VERSION, seen + 1)
    assert await propose(3, 2, seen=seen, criteria=Criteria.VERSION) == (
        C,
        None,
    )  # the other node is as it was
    assert await propose(4, seen=seen, criteria=Criteria.STRICT) == (C, None)
    assert await propose(5, seen=seen, criteria=Criteria.FIT) == (C, None)


async def test_version_does_not_count_what_the_worker_itself_placed_since(nodes, propose):
    seen = await nodes.seq(0)
    for pod in range(3):
        assert await propose(pod, seen=seen, criteria=Criteria.VERSION) == (C, None)


async def test_an_own_commit_does_not_hide_what_another_placed_before_it(nodes, propose):
    seen = await nodes.seq(0)
    await propose(1, seen=seen, worker="w2")
    await propose(2, seen=seen, criteria=Criteria.FIT)
    assert await propose(3, seen=seen, criteria=Criteria.VERSION) == (Verdict.CONFLICT_VERSION, seen + 1)


async def test_version_counts_releases_as_well(nodes, propose, make_proposal):
    await propose(1, seen=await nodes.seq(0))
    seen = await nodes.seq(0)
    await nodes.release(0, make_proposal([1], [[0]]).uids)
    assert await propose(2, seen=seen, criteria=Criteria.VERSION) == (Verdict.CONFLICT_VERSION, seen + 1)


async def test_of_a_snapshot_older_than_the_history_that_is_read_every_change_counts_as_anothers(
    nodes, propose
):
    seen = await nodes.seq(0)
    for pod in range(HISTORY + 1):
        await propose(pod, seen=seen)
    assert await propose(200, seen=seen, criteria=Criteria.VERSION) == (
        Verdict.CONFLICT_VERSION,
        seen + HISTORY + 1,
    )
    assert await propose(201, seen=seen + 1, criteria=Criteria.VERSION) == (C, None)


async def test_strict_refuses_a_node_whose_spec_changed_since_though_pods_came_later(
    nodes, make_node, propose
):
    seen = await nodes.seq(0)
    await nodes.upsert_nodes(0, [make_node("a", labels=(("tainted", "or relabelled"),))])
    await propose(1, seen=seen + 1, worker="w2")
    assert await propose(2, seen=seen, criteria=Criteria.STRICT) == (Verdict.CONFLICT_VERSION, seen + 1)
    assert await propose(3, seen=seen, criteria=Criteria.FIT) == (C, None)
    assert await propose(4, seen=seen + 1, criteria=Criteria.STRICT) == (C, None)


async def test_a_node_that_is_told_of_as_it_was_did_not_change(nodes, make_node, propose):
    seen = await nodes.seq(0)
    await nodes.upsert_nodes(0, [make_node("a")])
    assert await propose(1, seen=seen, criteria=Criteria.STRICT) == (C, None)


async def test_an_alternate_is_held_to_the_criteria_too(nodes, propose, make_proposal):
    seen = await nodes.seq(0)
    await propose(1, 2, seen=seen, worker="w2")
    proposal = make_proposal([2], [[0, 2]], cpu=10**6, snapshot_seq=seen, criteria=Criteria.VERSION)
    [decision] = await nodes.commit(0, [proposal])
    assert decision.verdicts.tolist() == [Verdict.CONFLICT_RESOURCE]
    again = make_proposal([3], [[2, 0]], snapshot_seq=seen, criteria=Criteria.VERSION)
    [decision] = await nodes.commit(0, [again])
    assert (decision.verdicts.tolist(), decision.nodes.tolist()) == ([C], [0])
