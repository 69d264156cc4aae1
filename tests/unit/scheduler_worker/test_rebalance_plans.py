"""Which pods a plan moves where, which it leaves alone, and what it says remains impossible."""

from dataclasses import replace

import numpy as np
import pytest

from hoss.model.cluster import BoundPod, Cluster
from hoss.model.fit import card_mask, pick_cards
from hoss.model.node import NodeSpec, Taint
from hoss.model.pod import DeviceRequest, PodAffinity, PodAffinityTerm, PodSpec
from hoss.model.resources import DEVICE_RESOURCE
from hoss.model.selectors import LabelSelector, NodeSelector, NodeSelectorTerm, Requirement
from hoss.model.volumes import (
    ClaimMount,
    ClaimReference,
    CsiNode,
    CsiVolume,
    PersistentVolume,
    PersistentVolumeClaim,
    PodVolumes,
    StorageClass,
)
from scheduler_worker.core.offline.cluster_snapshot import ClusterSnapshot
from scheduler_worker.core.plugins import default_profile
from scheduler_worker.core.plugins.devices.fragmentation import Popularity, TaskClass
from scheduler_worker.core.rebalance.goals import drain, empty_nodes, fit_pending, spread
from scheduler_worker.core.rebalance.gpu_goal import defragment_gpus
from scheduler_worker.core.rebalance.movable_pods import PlacedPods, PlanLimits
from scheduler_worker.core.rebalance.plan_state import PlanState, WaitingPods
from scheduler_worker.core.rebalance.quiet_goal import NodeLoads, PodUsage, quiet_nodes

HOSTNAME = "kubernetes.io/hostname"
NOT_ALONE = "must stay"
NO_LIMITS = PlanLimits()


def node(name, cpu=1000, cards=0, **fields):
    allocatable = (
        ("cpu", cpu),
        ("memory", 1000),
        *(((DEVICE_RESOURCE, cards),) if cards else ()),
        ("pods", 10),
    )
    return NodeSpec(name, ((HOSTNAME, name),), allocatable=allocatable, cards=cards, **fields)


def spec(cpu, **fields):
    return PodSpec(requests=(("cpu", cpu),), nonzero_cpu_milli=cpu, **fields)


def share(milli, **fields):
    return spec(10, devices=DeviceRequest(1, milli), **fields)


def apart(app):
    term = PodAffinityTerm(HOSTNAME, LabelSelector((Requirement("app", "In", (app,)),)), ("default",))
    return {"labels": (("app", app),), "pod_affinity": PodAffinity(anti_required=(term,))}


class Situation:
    """Nodes with pods, given as (name, node, spec)."""

    def __init__(self, nodes, pods, *, fixed=(), workloads=None, budgets=(), limits=NO_LIMITS, storage=()):
        names = [each.name for each in nodes]
        bound = [
            BoundPod(name, on, of, of.requests, of.nonzero_cpu_milli, 0, started_at=0.0)
            for name, on, of in pods
        ]
        specs = list(dict.fromkeys(of for _, _, of in pods))
        used = {each.name: [0] * each.cards for each in nodes}
        masks = []
        for _, on, of in pods:
            slots = pick_cards(used[on], of.devices.count, of.devices.milli) if of.devices else ()
            for slot in slots:
                used[on][slot] += of.devices.milli
            masks.append(card_mask(slots))
        self.pods = PlacedPods(
            names=[name for name, _, _ in pods],
            specs=specs,
            classes=np.array([specs.index(of) for _, _, of in pods], np.intp),
            nodes=np.array([names.index(on) for _, on, _ in pods], np.intp),
            card_masks=np.array(masks, np.uint16),
            workloads=np.arange(len(pods)) if workloads is None else np.array(workloads),
            fixed=np.array([int(name in fixed) for name, _, _ in pods], np.intp),
            reasons=("", NOT_ALONE),
            covered=np.array(
                [[label in of.labels for label, _ in budgets] for of in specs], np.bool_
            ).reshape(len(specs), len(budgets)),
            allowed=np.array([allowed for _, allowed in budgets], np.int64),
        )
        self.snapshot = ClusterSnapshot(Cluster(nodes, bound, storage=tuple(storage)))
        self.state = PlanState(self.snapshot, default_profile(), self.pods, limits)
        self.names = names

    def moves(self, plan):
        return [(self.pods.names[m.row], self.names[m.source], self.names[m.target]) for m in plan.moves]

    def columns(self):
        cache = self.snapshot.cache
        return cache.requested[:, : cache.size].tolist(), cache.cards.used[: cache.size].tolist()


def waiting(of, pods=1, **fields):
    return [WaitingPods("big", of, pods, **fields)]


def scattered(**fields):
    """Two nodes, each half full, with pods of 300 and 200."""
    return Situation(
        [node("n0"), node("n1")],
        [("a", "n0", spec(300)), ("b", "n0", spec(200)), ("c", "n1", spec(300)), ("d", "n1", spec(200))],
        **fields,
    )


def test_a_waiting_pod_that_fits_needs_no_move():
    found = scattered()
    plan = fit_pending(found.state, waiting(spec(500)))
    assert (found.moves(plan), plan.before, plan.after) == ([], 1, 0)
    assert [at.after_moves for at in plan.placements] == [0]


def test_room_is_made_by_the_fewest_moves():
    found = scattered()
    plan = fit_pending(found.state, waiting(spec(700)))
    assert len(plan.moves) == 1
    assert plan.after == 0
    [placed] = plan.placements
    assert placed.after_moves == 1
    assert plan.moves[0].source == placed.node


def test_a_pod_that_no_moves_make_room_for_says_why_and_the_state_is_as_it_was():
    found = scattered()
    before = found.columns()
    plan = fit_pending(found.state, waiting(spec(1001)))
    assert (plan.moves, plan.placements) == ([], [])
    assert plan.impossible[0].subject == "big"
    assert "Insufficient cpu" in plan.impossible[0].why
    assert found.columns() == before


def test_on_nodes_without_a_pod_nothing_is_moved_for_one_that_fits_nowhere():
    plan = fit_pending(Situation([node("a")], []).state, waiting(spec(1001)))
    assert (plan.placements, plan.moves) == ([], [])
    assert "Insufficient cpu" in plan.impossible[0].why


def test_a_gang_gets_all_its_room_or_no_move_is_made():
    found = scattered()
    before = found.columns()
    plan = fit_pending(found.state, waiting(spec(700), pods=2, together=2))
    assert (plan.moves, plan.placements) == ([], [])
    assert "of the 2 pods that it needs at once" in plan.impossible[0].why
    assert found.columns() == before


@pytest.mark.parametrize(
    "fields",
    [
        {"fixed": ("a", "b", "c", "d")},
        {"limits": PlanLimits(moves=0)},
        {"workloads": [0, 0, 0, 0], "limits": PlanLimits(per_workload=0)},
    ],
)
def test_pods_that_must_stay_are_not_moved(fields):
    found = scattered(**fields)
    plan = fit_pending(found.state, waiting(spec(700)))
    assert plan.moves == []
    assert len(plan.impossible) == 1


def test_more_important_pods_are_not_moved_for_a_less_important_one():
    found = Situation(
        [node("n0"), node("n1")],
        [("a", "n0", spec(500, priority=10)), ("b", "n1", spec(500, priority=10))],
    )
    assert fit_pending(found.state, waiting(spec(700, priority=9))).moves == []
    assert len(fit_pending(found.state, waiting(spec(700, priority=10))).moves) == 1


def test_a_plan_that_makes_no_room_says_how_many_pods_stay_and_why():
    label = ("app", "web")
    pods = [
        ("a", "n0", spec(500, labels=(label,))),
        ("b", "n0", spec(100, priority=10)),
        ("c", "n1", spec(499, labels=(label,))),
        ("d", "n1", spec(50)),
        ("e", "n1", spec(51)),
    ]
    found = Situation([node("n0"), node("n1")], pods, fixed=("d",), budgets=[(label, 0)])
    [left] = fit_pending(found.state, waiting(spec(700, priority=9))).impossible
    assert left.why == (
        "0/2 nodes are available: 2 Insufficient cpu. Pods that stay: 2 because its disruption budget"
        " allows no"
        f" more, 1 because {NOT_ALONE}, 1 because its priority is higher"
    )
    found = Situation([node("n0"), node("n1")], pods[:4], budgets=[(label, 1)])
    [left] = fit_pending(found.state, waiting(spec(1000, priority=10))).impossible
    assert left.why.endswith("Pods that stay: 2 because its disruption budget allows 1 more")
    unlimited = Situation([node("n0"), node("n1")], pods[-1:], budgets=[(label, 0)]).state
    [left] = fit_pending(unlimited, waiting(spec(1001))).impossible
    assert left.why == "0/2 nodes are available: 2 Insufficient cpu."


def test_a_pod_that_the_plan_moves_is_not_among_those_that_stay():
    label = ("app", "web")
    pods = [("a", "n0", spec(500, labels=(label,))), ("b", "n1", spec(499, labels=(label,)))]
    found = Situation([node("n0"), node("n1")], pods, budgets=[(label, 1)])
    plan = fit_pending(found.state, [*waiting(spec(700)), *waiting(spec(701))])
    assert len(plan.moves) == 1
    assert plan.impossible[0].why.endswith("Pods that stay: 1 because its disruption budget allows no more")


def test_a_disruption_budget_bounds_the_moves_of_a_plan():
    label = ("app", "web")
    web = spec(200, labels=(label,))
    pods = [("a", "n0", web), ("b", "n0", replace(web, requests=(("cpu", 201),)))]
    found = Situation([node("n0"), node("n1")], pods, budgets=[(label, 1)])
    plan = drain(found.state, [0])
    assert len(plan.moves) == 1
    assert plan.impossible[0].why == "its disruption budget allows no more"


def test_a_moved_pod_keeps_to_taints_and_to_rules_about_other_pods():
    pods = [("a", "n0", spec(100, **apart("web"))), ("b", "n1", spec(100, **apart("web")))]
    nodes = [node("n0"), node("n1"), node("n2", taints=(Taint("k"),)), node("n3")]
    found = Situation(nodes, pods)
    assert found.moves(drain(found.state, [0])) == [("a", "n0", "n3")]
    none = Situation(nodes[:3], pods)
    plan = drain(none.state, [0])
    assert (plan.moves, plan.after) == ([], 1)
    assert "anti-affinity" in plan.impossible[0].why


def test_a_node_is_emptied_only_as_a_whole():
    found = Situation(
        [node("n0"), node("n1"), node("n2")],
        [("a", "n0", spec(100)), ("b", "n1", spec(100)), ("c", "n1", spec(900)), ("d", "n2", spec(500))],
    )
    plan = empty_nodes(found.state)
    assert found.moves(plan) == [("a", "n0", "n2")]
    assert (plan.before, plan.after) == (3, 2)


def test_load_goes_from_the_fullest_node_to_the_emptiest():
    found = Situation(
        [node("n0"), node("n1"), node("n2")],
        [("a", "n0", spec(300)), ("b", "n0", spec(300)), ("c", "n0", spec(300)), ("d", "n1", spec(300))],
    )
    plan = spread(found.state)
    assert found.moves(plan) == [("a", "n0", "n2")]
    assert plan.after < plan.before
    assert plan.before - plan.after == pytest.approx(sum(move.gain for move in plan.moves))


def test_shares_of_cards_are_joined_so_that_a_whole_card_is_free():
    found = Situation(
        [node("n0", cards=1), node("n1", cards=1)], [("a", "n0", share(500)), ("b", "n1", share(500))]
    )
    whole = Popularity.of({TaskClass(10, 0, 1, 1000): 1})
    plan = defragment_gpus(found.state, whole)
    assert (plan.before, plan.after) == (1000, 0)
    assert len(plan.moves) == 1
    assert found.snapshot.cache.cards.used[:2, 0].tolist() in ([1000, 0], [0, 1000])


def test_what_is_gained_is_what_the_moves_say_they_gain():
    rng = np.random.default_rng(1)
    nodes = [node(f"n{i}", cards=4) for i in range(8)]
    pods = [(f"p{i}", f"n{i % 8}", share(int(rng.choice([250, 400, 500])))) for i in range(24)]
    found = Situation(nodes, pods)
    usual = Popularity.of(
        {TaskClass(10, 0, 1, 500): 2, TaskClass(10, 0, 4, 1000): 1, TaskClass(500, 0, 0, 0): 1}
    )
    plan = defragment_gpus(found.state, usual)
    assert plan.moves
    assert plan.before - plan.after == pytest.approx(sum(move.gain for move in plan.moves))
    used = found.snapshot.cache.cards.used[:8, :4]
    assert used.max() <= 1000
    assert used.sum() == sum(of.devices.milli for _, _, of in pods)
    found.state.undo_to(0)
    assert found.snapshot.cache.cards.used[:8, :4].sum() == used.sum()


def test_nodes_whose_pods_are_more_than_the_plan_has_moves_left_are_told():
    pods = [("a", "n0", spec(100)), ("b", "n0", spec(101)), ("c", "n1", spec(500))]
    found = Situation([node("n0"), node("n1")], pods, fixed=("c",), limits=PlanLimits(moves=1))
    plan = empty_nodes(found.state)
    assert plan.moves == []
    assert ("1 node", "the plan has fewer moves left than they have pods") in told(plan)


def test_nodes_that_a_workloads_limit_keeps_from_being_emptied_are_told_as_that():
    pods = [("a", "n0", spec(100)), ("b", "n0", spec(101)), ("c", "n1", spec(500))]
    limits = PlanLimits(per_workload=1)
    found = Situation([node("n0"), node("n1")], pods, fixed=("c",), workloads=[0, 0, 1], limits=limits)
    plan = empty_nodes(found.state)
    assert plan.moves == []
    assert ("1 node", "a pod stays there: 1 pods of its workload are moved already") in told(plan)


def test_what_a_full_plan_leaves_above_the_mean_load_is_told():
    pods = [(f"p{i}", f"n{i % 2}", spec(150 + i)) for i in range(8)]
    found = Situation([node(f"n{i}") for i in range(4)], pods, limits=PlanLimits(moves=1))
    plan = spread(found.state)
    assert len(plan.moves) == 1
    assert told(plan) == [("2 nodes above the mean load", "the plan has its 1 moves")]


def test_a_full_plan_for_cards_says_that_more_would_gain():
    pods = [(f"p{i}", f"n{i}", share(500)) for i in range(4)]
    found = Situation([node(f"n{i}", cards=1) for i in range(4)], pods, limits=PlanLimits(moves=1))
    whole = Popularity.of({TaskClass(10, 0, 1, 1000): 1})
    assert told(defragment_gpus(found.state, whole)) == [
        ("further moves", "would gain, but the plan has its 1 moves")
    ]


def test_a_plan_whose_workloads_have_no_moves_left_says_so_of_a_pod_that_waits():
    found = scattered(workloads=[0, 0, 0, 0], limits=PlanLimits(per_workload=2, moved_before={0: 2}))
    plan = fit_pending(found.state, waiting(spec(700)))
    assert plan.moves == []
    assert plan.impossible[0].why.endswith(
        "Pods that stay: 4 because 2 pods of its workload are moved already"
    )


def test_what_is_undone_counts_against_no_budget():
    found = scattered(limits=PlanLimits(moves=1, per_workload=1), workloads=[0, 0, 0, 0])
    budget = found.state.budget
    assert len(drain(found.state, [0]).moves) == 1
    assert budget.used_up
    assert not budget.movable().any()
    found.state.undo_all()
    assert budget.movable().all()
    assert [budget.why_fixed(row) for row in range(4)] == [""] * 4


def test_nodes_that_a_pod_keeps_from_being_emptied_say_why_it_stays():
    found = Situation(
        [node("n0"), node("n1")], [("a", "n0", spec(100)), ("b", "n1", spec(101))], fixed=("a", "b")
    )
    assert told(empty_nodes(found.state)) == [("2 nodes", f"a pod stays there: {NOT_ALONE}")]


def test_a_drain_says_how_many_nodes_would_take_the_pod_and_are_drained_themselves():
    pods = [("a", "n0", spec(600)), ("b", "n2", spec(700))]
    found = Situation([node("n0"), node("n1"), node("n2")], pods)
    plan = drain(found.state, [0, 1])
    assert told(plan) == [
        (
            "a on n0",
            (
                "no other node takes it: 0/3 nodes are available: 1 Insufficient cpu. The other 2 are to be"
                " left alone."
            ),
        )
    ]


def test_nodes_that_may_not_be_emptied_are_not_and_the_plan_says_so():
    found = Situation([node("n0"), node("n1")], [("a", "n0", spec(100)), ("b", "n1", spec(200))])
    plan = empty_nodes(found.state, only=np.array([False, True]))
    assert found.moves(plan) == [("b", "n1", "n0")]
    assert told(plan) == [("1 node", "not among those that may be emptied")]


CANDIDATE = Taint("DeletionCandidateOfClusterAutoscaler", "1", "PreferNoSchedule")


@pytest.mark.parametrize(
    "goal",
    [
        lambda found: drain(found.state, [0]),
        lambda found: spread(found.state),
        lambda found: quiet_nodes(found.state, usage_of(found, a=300, b=500, c=10)),
        lambda found: defragment_gpus(found.state, Popularity.of({TaskClass(10, 0, 1, 1000): 1})),
    ],
)
def test_no_pod_is_moved_to_a_node_that_an_autoscaler_is_about_to_remove(goal):
    def cluster(*taints):
        nodes = [node("n0", cards=1), node("n1", cards=1, taints=taints)]
        return Situation(
            nodes, [("a", "n0", share(500)), ("b", "n0", spec(400)), ("c", "n1", share(500))], fixed=("c",)
        )

    assert goal(cluster()).moves
    assert goal(cluster(CANDIDATE)).moves == []


def test_without_cards_a_plan_for_cards_says_so():
    found = Situation([node("n0")], [("a", "n0", spec(100))])
    assert told(defragment_gpus(found.state, Popularity.of({}))) == [("cards", "no node has any")]


def told(plan):
    return [(entry.subject, entry.why) for entry in plan.impossible]


# --- quiet-nodes ---


def usage_of(found, **cpu):
    """Use of cpu by pod; other pods' use is not known."""
    known = np.array([name in cpu for name in found.pods.names])
    amounts = np.array([[cpu.get(name, 0) for name in found.pods.names], [0] * len(found.pods)], np.int64)
    return PodUsage(amounts, known)


def neighbours(**fields):
    """Two loud pods on n0, one quiet one on n1, nothing on n2."""
    pods = [("loud", "n0", spec(200)), ("louder", "n0", spec(201)), ("quiet", "n1", spec(202))]
    return Situation([node("n0"), node("n1"), node("n2")], pods, **fields)


def test_a_pod_leaves_a_noisy_node_for_one_that_stays_quiet_with_it():
    found = neighbours()
    plan = quiet_nodes(found.state, usage_of(found, loud=350, louder=400, quiet=200))
    assert found.moves(plan) == [("louder", "n0", "n2")]
    assert plan.after < plan.before
    assert plan.impossible == []


def test_by_requests_alone_no_node_is_noisy():
    found = neighbours()
    assert quiet_nodes(found.state, usage_of(found)).moves == []
    assert not NodeLoads(found.state, usage_of(found)).noisy.any()


def test_a_pod_that_would_make_every_node_noisy_stays_and_the_plan_says_so():
    found = neighbours()
    plan = quiet_nodes(found.state, usage_of(found, loud=350, louder=900, quiet=200))
    assert found.moves(plan) == [("loud", "n0", "n2")]
    [left] = plan.impossible
    assert left.subject == "noisy node n0"
    assert (
        left.why == "pods that stay: 1 because no other node takes it and stays quiet, or it uses too little"
    )


def test_a_pod_whose_use_is_not_known_stays_and_the_plan_says_so():
    found = neighbours()
    plan = quiet_nodes(found.state, usage_of(found, louder=900, quiet=200))
    assert found.moves(plan) == []
    noisy, unknown = plan.impossible
    assert noisy.subject == "noisy node n0"
    assert "1 because what it uses is not known" in noisy.why
    assert (unknown.subject, unknown.why) == (
        "1 of 3 pods",
        "what they use is missing or old; they count with their requests, and stay",
    )


def test_a_node_of_which_no_pods_use_is_known_gets_none_and_the_plan_names_it():
    pods = [("loud", "n0", spec(200)), ("louder", "n0", spec(201)), ("quiet", "n1", spec(202))]
    found = Situation([node("n0"), node("n1")], pods)
    plan = quiet_nodes(found.state, usage_of(found, loud=350, louder=400))
    assert found.moves(plan) == []
    assert [entry.subject for entry in plan.impossible] == ["noisy node n0", "1 node: n1", "1 of 3 pods"]
    assert plan.impossible[1].why == (
        "what their pods use is missing or old: they may be noisy, and get no pods"
    )
    known = Situation([node("n0"), node("n1")], pods)
    assert found_moves(known, loud=350, louder=400, quiet=200) == [("loud", "n0", "n1")]


def found_moves(found, **cpu):
    return found.moves(quiet_nodes(found.state, usage_of(found, **cpu)))


def test_where_many_nodes_are_not_measured_ten_are_named():
    nodes = [node(f"n{i:02}") for i in range(13)]
    found = Situation(nodes, [(f"p{i}", f"n{i:02}", spec(100)) for i in range(13)])
    first, _ = quiet_nodes(found.state, usage_of(found, p0=100)).impossible
    assert first.subject.startswith("12 nodes: n01, n02,")
    assert first.subject.endswith("n10 and 2 more")


def test_noisy_nodes_for_which_the_plan_has_no_more_moves_are_told_as_that():
    found = neighbours(limits=PlanLimits(moves=1))
    plan = quiet_nodes(found.state, usage_of(found, loud=450, louder=350, quiet=200))
    assert len(plan.moves) == 1
    assert [(entry.subject, entry.why) for entry in plan.impossible] == [
        ("1 noisy node", "the plan has its 1 moves")
    ]


def test_where_the_largest_users_find_no_quiet_node_the_others_are_tried():
    pods = [(f"large-{i}", "n0", spec(20 + i, node_name="n0")) for i in range(9)]
    pods += [("small", "n0", spec(19)), ("quiet", "n1", spec(10))]
    found = Situation([node("n0"), node("n1")], pods)
    use = {name: 90 for name, _, _ in pods} | {"small": 80, "quiet": 10}
    assert found_moves(found, **use) == [("small", "n0", "n1")]


def test_pods_that_must_stay_stay_also_on_noisy_nodes():
    found = neighbours(fixed=("loud", "louder"))
    before = found.columns()
    plan = quiet_nodes(found.state, usage_of(found, loud=350, louder=400))
    assert (plan.moves, found.columns()) == ([], before)


def test_a_node_is_as_loaded_as_it_is_used_or_requested_whichever_is_more():
    found = neighbours()
    loads = NodeLoads(found.state, usage_of(found, loud=350, louder=400, quiet=10))
    assert np.allclose(loads.load, [0.75, 0.202, 0.0])
    assert loads.noisy.tolist() == [True, False, False]
    assert loads.largest_first(0) == [1, 0]


# --- volumes ---


def volume(name, *, on=(), driver="disks", **fields):
    """A volume that is bound to the claim of its name, and that these nodes reach; none: every node."""
    term = NodeSelectorTerm((Requirement(HOSTNAME, "In", tuple(on)),))
    return (
        PersistentVolume(
            name,
            phase="Bound",
            claim=ClaimReference("default", name),
            node_affinity=NodeSelector((term,)) if on else None,
            csi=CsiVolume(driver, name),
        ),
        PersistentVolumeClaim(
            "default", name, volume_name=name, bind_completed=True, phase="Bound", **fields
        ),
    )


def mounting(cpu, *claims):
    return spec(cpu, volumes=PodVolumes(tuple(map(ClaimMount, claims))))


def test_a_pod_goes_where_its_volume_can_be_mounted():
    nodes = [node("n0"), node("n1"), node("n2")]
    found = Situation(nodes, [("db", "n0", mounting(300, "data"))], storage=volume("data", on=("n0", "n2")))
    assert found.moves(drain(found.state, [0])) == [("db", "n0", "n2")]


def test_a_local_volume_keeps_its_pod_and_the_plan_says_why():
    found = Situation(
        [node("n0"), node("n1")], [("db", "n0", mounting(300, "data"))], storage=volume("data", on=("n0",))
    )
    plan = drain(found.state, [0])
    assert plan.moves == []
    [left] = plan.impossible
    assert left.subject == "db on n0"
    assert "node(s) didn't match PersistentVolume's node affinity" in left.why


def test_a_plan_attaches_no_more_volumes_to_a_node_than_its_driver_does():
    nodes = [node("n0"), node("n1"), node("n2")]
    pods = [(name, "n0", mounting(100, name)) for name in ("a", "b", "c")]
    limits = [CsiNode("n1", (("disks", 1),)), CsiNode("n2", (("disks", 1),))]
    found = Situation(
        nodes, pods, storage=[*limits, *(item for name in ("a", "b", "c") for item in volume(name))]
    )
    plan = drain(found.state, [0])
    assert sorted(target for _, _, target in found.moves(plan)) == ["n1", "n2"]
    assert "2 node(s) exceed max volume count" in plan.impossible[0].why


def test_a_claim_for_one_pod_moves_with_its_pod():
    mine = volume("mine", access_modes=("ReadWriteOncePod",))
    found = Situation([node("n0"), node("n1")], [("db", "n0", mounting(100, "mine"))], storage=mine)
    assert found.moves(drain(found.state, [0])) == [("db", "n0", "n1")]


def test_what_is_undone_gives_attachments_back():
    found = Situation(
        [node("n0"), node("n1")],
        [("a", "n0", mounting(100, "a")), ("b", "n0", mounting(100, "b"))],
        storage=[CsiNode("n1", (("disks", 1),)), *volume("a"), *volume("b")],
    )
    first = found.moves(drain(found.state, [0]))
    found.state.undo_all()
    assert found.moves(drain(found.state, [0])) == first


def test_pods_that_wait_for_one_volume_do_not_both_get_it():
    """Each has a claim of its own that is bound with its pod, and there is one volume for both."""
    storage = [
        StorageClass("local", "kubernetes.io/no-provisioner", waits_for_consumer=True),
        PersistentVolume("pv", storage_class="local", phase="Available", capacity_bytes=10),
        *(PersistentVolumeClaim("default", name, storage_class="local", request_bytes=1) for name in "ab"),
    ]
    found = Situation([node("n0"), node("n1")], [], storage=storage)
    entries = [WaitingPods(name, mounting(100, name), 1) for name in "ab"]
    plan = fit_pending(found.state, entries)
    assert [at.waiting for at in plan.placements] == [0]
    assert "didn't find available persistent volumes to bind" in plan.impossible[0].why
