"""Which pods the re-created strategies of the descheduler evict."""

import numpy as np

from hoss.model.cluster import BoundPod, Cluster
from hoss.model.node import NodeSpec
from hoss.model.pod import PodSpec
from scheduler_worker.core.offline.cluster_snapshot import ClusterSnapshot
from scheduler_worker.core.plugins import default_profile
from scheduler_worker.core.rebalance.movable_pods import PlacedPods, PlanLimits
from scheduler_worker.core.rebalance.plan_state import PlanState
from tools.bench import descheduler


def cluster(*pods, moves=100):
    """Three nodes of 1000, with pods (node, cpu). Pods of equal cpu have one owner."""
    nodes = [
        NodeSpec(f"n{i}", allocatable=(("cpu", 1000), ("memory", 1000), ("pods", 100))) for i in range(3)
    ]
    specs = [PodSpec(requests=(("cpu", cpu),), nonzero_cpu_milli=cpu) for _, cpu in pods]
    kinds = list(dict.fromkeys(specs))
    bound = [
        BoundPod(f"p{i}", f"n{node}", spec, spec.requests, spec.nonzero_cpu_milli, 0, started_at=0.0)
        for i, ((node, _), spec) in enumerate(zip(pods, specs, strict=True))
    ]
    classes = np.array([kinds.index(spec) for spec in specs], np.intp)
    placed = PlacedPods(
        names=[f"p{i}" for i in range(len(pods))],
        specs=kinds,
        classes=classes,
        nodes=np.array([node for node, _ in pods], np.intp),
        card_masks=np.zeros(len(pods), np.uint16),
        workloads=classes,
        fixed=np.zeros(len(pods), np.intp),
        reasons=("",),
        covered=np.zeros((len(kinds), 0), np.bool_),
        allowed=np.zeros(0, np.int64),
    )
    return PlanState(ClusterSnapshot(Cluster(nodes, bound)), default_profile(), placed, PlanLimits(moves))


def evicted(number, state, *, to=-1):
    """The pods that the strategy evicts, each of which the scheduler puts on this node."""
    found = []

    def place(row):
        found.append(row)
        return to

    before = state.cache.requested[:, :3].tolist()
    done = descheduler.run(descheduler.STRATEGIES[number], state, place)
    assert done.evicted == len(found)
    assert len(done.unplaced) == (len(found) if to < 0 else 0)
    done.undo(state)
    assert state.cache.requested[:, :3].tolist() == before
    return found


HIGH, LOW, DUPLICATES = range(3)


def test_nodes_that_are_used_little_are_emptied():
    assert evicted(HIGH, cluster((0, 100), (0, 50), (1, 600), (2, 300)), to=1) == [0, 1]


def test_full_nodes_lose_pods_until_they_are_under_the_target_while_others_are_empty():
    assert evicted(LOW, cluster((0, 300), (0, 250), (1, 100), (2, 400)), to=1) == [0]
    assert (
        evicted(LOW, cluster((0, 300), (0, 250), (1, 300), (2, 400)), to=1) == []
    )  # nobody is under the low one


def test_what_fits_nowhere_is_counted_and_the_limit_ends_it():
    assert evicted(LOW, cluster((0, 300), (0, 300), (0, 300), (1, 100)), to=-1) == [0, 1]
    assert evicted(LOW, cluster((0, 300), (0, 300), (0, 300), (1, 100), moves=1), to=-1) == [0]


def test_pods_of_one_owner_beyond_an_even_share_leave_the_node():
    assert evicted(DUPLICATES, cluster((0, 100), (0, 100), (0, 100), (1, 50)), to=2) == [1, 2]
    assert evicted(DUPLICATES, cluster((0, 100), (0, 100), (1, 100), (1, 100), (0, 7)), to=2) == []
