"""What happens to a platform in Kubernetes mode, drawn from a seed: users, nodes, another scheduler, and
faults of the API server and of the binding webhook, beside those of every platform."""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tools.simulation import plan as p
from tools.simulation.cluster import OTHER
from tools.simulation.plan import Act, ClusterPlan, Plan
from tools.simulation.plan_drawing import amid_moves, control, fault, loss, node_changes
from tools.simulation.storage import LOCAL, PROVISIONED

_OF_API = (
    *(p.API_SILENT, p.API_REFUSED, p.API_BUSY, p.API_LOSES_ANSWERS, p.API_LATE),
    *(p.WATCHES_LAG, p.WATCHES_LAG, p.WATCHES_CUT, p.HISTORY_FORGOTTEN),
)
_OF_WEBHOOK = (p.WEBHOOK_AWAY, p.WEBHOOK_LATE, p.BINDINGS_LATE, p.BINDINGS_ABANDONED)
_ON_JOBS = (p.DELETE, p.DELETE, p.EVICT, p.RESIZE, p.END_PODS)


def draw_kubernetes(seed: int) -> Plan:
    """The plan of a seed."""
    rng = random.Random(f"kubernetes {seed}")
    plan = Plan(
        seed,
        shards=rng.choice((1, 1, 2)),
        dispatchers=rng.choice((1, 2)),
        resolvers=rng.choice((1, 2)),
        workers=rng.choice((1, 2)),
        nodes=rng.randint(2, 6),
        acts=(),
        named_nodes=True,
        lease_seconds=rng.choice((4.0, 30.0)),
        cluster=ClusterPlan(
            webhook=rng.random() < 0.85,
            ignores_failures=rng.random() < 0.25,
            lease=rng.choice(("", "", "kube-system/hoss")),
            page=rng.choice((3, 10, 1000)),
        ),
    )
    scene = rng.choice(_SCENES) if rng.random() < 0.5 else None
    if scene is _late_bindings_on_full_nodes:  # which means nothing where nobody is asked, or leases are long
        plan = replace(plan, lease_seconds=4.0, cluster=replace(plan.cluster or ClusterPlan(), webhook=True))
    seconds = rng.uniform(4.0, 8.0)
    acts = [*_loads(rng, plan, seconds), *node_changes(rng, plan, seconds), *_faults(rng, plan, seconds)]
    if scene is not None:
        acts += scene(rng, plan, rng.uniform(0.3, seconds))
    acts = _with_priorities(random.Random(f"priorities {seed}"), plan, acts, seconds)
    acts = _with_gangs_and_budgets(random.Random(f"gangs {seed}"), acts)
    acts += _losses(random.Random(f"losses {seed}"), plan, acts, seconds)
    plan, acts = _with_storage(random.Random(f"storage {seed}"), plan, acts, seconds)
    return replace(plan, acts=tuple(sorted(acts, key=lambda act: act.at)))


def draw_kubernetes_moves(seed: int) -> Plan:
    """The plan of a seed, in which pods of a controller are moved as well, and faults strike amid that. Drawn
    apart: the plans of `draw_kubernetes` are what they were."""
    rng, plan = random.Random(f"kubernetes moves {seed}"), draw_kubernetes(seed)
    plan = replace(plan, nodes=max(plan.nodes, 3))
    seconds = max(act.at for act in plan.acts)
    options: dict[str, Any] = {
        "replicas": rng.choice((2, 4, 8)),
        "cpu": rng.choice((50, 300)),
        "controlled": True,
    }
    if rng.random() < 0.4:
        options["budget"] = rng.choice((1, 2))
    acts = [Act(0.1, p.SUBMIT, "moving", options=options)]
    for _ in range(rng.randint(1, 3)):
        at, rate = rng.uniform(1.0, seconds + 1.0), rng.choice((2, 5, 20))
        acts.append(Act(at, p.MOVE, "moving", number=rng.randrange(1, plan.nodes), options={"rate": rate}))
        if rng.random() < 0.8:
            acts.append(amid_moves(rng, plan, at, loses=False))
        if rng.random() < 0.25:
            acts.append(Act(at + rng.uniform(0.2, 3.0), p.UNDO_MOVES))
        if rng.random() < 0.2:
            deleted = at + rng.uniform(0.0, 2.0)
            acts.append(Act(deleted, p.DELETE, "moving"))
            acts.append(Act(deleted + rng.uniform(0.05, 4.0), p.SUBMIT, "moving", options=options))
    acts += control(random.Random(f"kubernetes controller {seed}"))
    return replace(plan, acts=tuple(sorted((*plan.acts, *acts), key=lambda act: act.at)))


def _loads(rng: random.Random, plan: Plan, seconds: float) -> list[Act]:
    acts = []
    for number in range(rng.randint(3, 10)):
        at, name = rng.uniform(0.0, seconds), f"job{number}"
        options: dict[str, Any] = {
            "replicas": rng.choice((1, 2, 4, 8)),
            "cpu": rng.choice((50, 100, 300, 700)),
        }
        kind = rng.random()
        if kind < 0.15:
            options["port"] = rng.choice((8080, 9090))
        elif kind < 0.3:
            options["gate"] = "hold"
        elif kind < 0.55:
            options["scheduler"] = OTHER
        elif kind < 0.6:
            options |= {"scheduler": OTHER, "node": f"n{rng.randrange(plan.nodes)}"}
        acts.append(Act(at, p.SUBMIT, name, options=options))
        if "gate" in options and rng.random() < 0.8:
            acts.append(Act(at + rng.uniform(0.01, 3.0), p.UNGATE, name))
        if rng.random() < 0.6:
            acts += _changes(rng, name, at + rng.choice((0.02, 0.2, 2.0)) * rng.random(), options)
    return acts


def _with_priorities(rng: random.Random, plan: Plan, acts: list[Act], seconds: float) -> list[Act]:
    """Some jobs are more urgent than others, or less. In half of the plans urgent pods come to full nodes."""
    if rng.random() < 0.5:
        acts = acts + _urgent_on_full_nodes(rng, plan, rng.uniform(0.3, seconds))
    jobs = sorted({act.target for act in acts if act.what == p.SUBMIT})
    priorities = {job: rng.choice((0, 0, 0, -10, 10, 100)) for job in jobs}
    return [
        replace(act, options={"priority": priorities[act.target], **act.options})
        if act.what == p.SUBMIT and priorities[act.target]
        else act
        for act in acts
    ]


def _with_gangs_and_budgets(rng: random.Random, acts: list[Act]) -> list[Act]:
    """Some jobs of HOSS are gangs, by a PodGroup or by their controller's annotation; some have a disruption
    budget. A PodGroup may be deleted while its pods wait or run, and made again."""
    submitted = {act.target: act for act in acts if act.what == p.SUBMIT and "scheduler" not in act.options}
    resized = {act.target for act in acts if act.what == p.RESIZE}
    declared: dict[str, dict[str, Any]] = {}
    for job, act in sorted(submitted.items()):
        replicas, kind = act.options["replicas"], rng.random()
        if kind < 0.25 and replicas > 1 and job not in resized:
            minimum = rng.randint(2, min(replicas, 8))
            declared[job] = {rng.choice(("gang", "group")): minimum}
            if "group" in declared[job] and rng.random() < 0.3:
                deleted = act.at + rng.choice((0.02, 0.5, 3.0)) * rng.random()
                acts = [*acts, Act(deleted, p.DELETE_GROUP, job)]
        elif kind < 0.4:
            declared[job] = {"budget": rng.choice((0, 1, 2))}
    return [
        replace(act, options={**act.options, **declared[act.target]})
        if act.what == p.SUBMIT and act.target in declared
        else act
        for act in acts
    ]


def _losses(rng: random.Random, plan: Plan, acts: list[Act], seconds: float) -> list[Act]:
    """In a third of the plans Redis loses what it had acknowledged, once or twice. Whatever else happens, all
    pods are known to the API server. Where urgent pods come, some losses come while victims run."""
    if rng.random() > 0.35:
        return []
    urgent = [act.at for act in acts if act.target == "urgent"]
    lost = []
    for _ in range(rng.choice((1, 1, 2))):
        at = rng.uniform(0.5, seconds)
        if urgent and rng.random() < 0.5:
            at = urgent[0] + rng.uniform(0.0, 1.5)
        lost.append(loss(rng, plan, at))
    return lost


def _with_storage(rng: random.Random, plan: Plan, acts: list[Act], seconds: float) -> tuple[Plan, list[Act]]:
    """In two fifths of the plans nodes have volumes and devices, for which the pods of some more jobs ask:
    each for its own, or all of a job for the same. Some are deleted, and made again on what they had."""
    if rng.random() > 0.4:
        return plan, acts
    more = []
    for number in range(rng.randint(2, 4)):
        name, at = f"stored{number}", rng.uniform(0.0, seconds)
        options: dict[str, Any] = {"replicas": rng.choice((1, 2, 4)), "cpu": rng.choice((50, 300))}
        wanted = rng.choice(("volume", "devices", "devices", "both"))
        if wanted != "devices":
            options["volume"] = rng.choice((PROVISIONED, LOCAL))
        if wanted != "volume":
            options["devices"] = rng.choice((1, 1, 2))
        if rng.random() < 0.3:
            options["shared"] = True
        if rng.random() < 0.2:
            options["priority"] = 50
        more.append(Act(at, p.SUBMIT, name, options=options))
        if rng.random() < 0.6:
            gone = at + rng.choice((0.05, 0.5, 2.0)) * rng.random()
            more.append(Act(gone, rng.choice((p.DELETE, p.DELETE, p.EVICT, p.END_PODS)), name))
            if rng.random() < 0.7:
                more.append(
                    Act(gone + rng.choice((0.1, 2.0)) * rng.random(), p.SUBMIT, name, options=options)
                )
    return replace(plan, cluster=replace(plan.cluster or ClusterPlan(), storage=True)), acts + more


def _urgent_on_full_nodes(rng: random.Random, plan: Plan, at: float) -> list[Act]:
    """Pods fill the nodes, of HOSS or of the other scheduler. Urgent pods of other sizes come, then more of
    the first; and some of them, or of their victims, are deleted while victims still run."""
    sizes = rng.choice(((700, 300), (600, 500), (300, 700), (500, 500)))
    filling: dict[str, Any] = {"cpu": sizes[0], "replicas": plan.nodes * 4, "priority": 0}
    if rng.random() < 0.3:
        filling["scheduler"] = OTHER
    urgent = {"cpu": sizes[1], "replicas": rng.randint(1, plan.nodes * 2), "priority": 50}
    late = at + rng.uniform(0.5, 2.0)
    acts = [
        Act(at, p.SUBMIT, "filling", options=filling),
        Act(late, p.SUBMIT, "urgent", options=urgent),
        Act(
            late + rng.uniform(0.0, 1.0),
            p.SUBMIT,
            "small",
            options={"cpu": 100, "replicas": 4, "priority": 0},
        ),
    ]
    if rng.random() < 0.5:
        more = {"cpu": rng.choice(sizes), "replicas": plan.nodes, "priority": 200}
        acts.append(Act(late + rng.uniform(0.0, 1.5), p.SUBMIT, "most-urgent", options=more))
    if rng.random() < 0.5:
        gone = rng.choice(("urgent", "urgent", "filling"))
        acts.append(Act(late + rng.uniform(0.0, 1.5), p.DELETE, gone))
    if rng.random() < 0.5:
        acts.append(Act(late + rng.uniform(0.0, 0.6), p.KILL, rng.choice(plan.names), seconds=1.0))
    return acts


def _changes(rng: random.Random, name: str, at: float, options: dict[str, Any]) -> list[Act]:
    what = rng.choice(_ON_JOBS)
    resized = {"cpu": rng.choice((50, 200, 500))} if what == p.RESIZE else {}
    acts = [Act(at, what, name, options=resized)]
    if what in (p.DELETE, p.EVICT) and rng.random() < 0.5:
        acts.append(Act(at + rng.uniform(0.0, 3.0), p.SUBMIT, name, options=options))
    return acts


def _faults(rng: random.Random, plan: Plan, seconds: float) -> list[Act]:
    acts: list[Act] = []
    for _ in range(rng.choice((0, 1, 2, 2, 3, 4))):
        at = rng.uniform(0.3, seconds)
        kind = rng.random()
        if kind < 0.35:
            acts += fault(rng, plan, at, loses=False)
        else:
            acts.append(_of_cluster(rng, plan, at, webhook=kind > 0.7 and plan.cluster is not None))
    return acts


def _of_cluster(rng: random.Random, plan: Plan, at: float, *, webhook: bool) -> Act:
    what = rng.choice(_OF_WEBHOOK if webhook else _OF_API)
    seconds = rng.choice((0.5, 2.0, 5.0)) * rng.uniform(0.5, 1.5)
    if what in (p.WATCHES_CUT, p.HISTORY_FORGOTTEN):
        seconds = 0.0
    with_api = [name for name in plan.names if not name.startswith("w")]
    target = rng.choice(("", rng.choice(with_api))) if what in (p.API_SILENT, p.API_REFUSED) else ""
    return Act(at, what, target, seconds=seconds)


# Scenes: what seldom comes together by chance.


def _late_bindings_on_full_nodes(rng: random.Random, plan: Plan, at: float) -> list[Act]:
    """The nodes become full while another's bindings, allowed long ago, are still to come."""
    half = {"cpu": 700, "replicas": plan.nodes, "scheduler": OTHER}
    rest = {"cpu": 300, "replicas": plan.nodes * 8}
    return [
        Act(at, p.BINDINGS_LATE, seconds=10.0),
        Act(at + 0.1, p.SUBMIT, "late", options=half),
        Act(at + rng.uniform(0.5, 2.0), p.SUBMIT, "filling", options=rest),
        Act(at + rng.uniform(0.2, 6.0), rng.choice((p.API_BUSY, p.WATCHES_LAG, p.WATCHES_CUT)), seconds=2.0),
    ]


def _node_back_at_once(rng: random.Random, plan: Plan, at: float) -> list[Act]:
    """Nodes with pods go and come back under their names, while pods arrive."""
    acts = [Act(at, p.SUBMIT, "there", options={"cpu": 300, "replicas": plan.nodes * 5})]
    for number in range(plan.nodes):
        gone = at + rng.uniform(0.2, 1.5)
        acts.append(Act(gone, p.REMOVE_NODE, f"n{number}"))
        acts.append(Act(gone + rng.choice((0.01, 0.5, 2.0)) * rng.random(), p.ADD_NODE, f"n{number}"))
    acts.append(Act(at + 1.0, p.SUBMIT, "arriving", options={"cpu": 300, "replicas": plan.nodes * 5}))
    return [*acts, Act(at + 0.2, p.WATCHES_LAG, seconds=3.0)]


def _same_names_again(rng: random.Random, _plan: Plan, at: float) -> list[Act]:
    """Pods are deleted and made again under their names while bindings are on their way."""
    options = {"cpu": 100, "replicas": 6}
    acts = [Act(at, rng.choice((p.API_LATE, p.API_LOSES_ANSWERS, p.WATCHES_LAG)), seconds=4.0)]
    for round_ in range(3):
        begins = at + 0.1 + round_ * rng.uniform(0.3, 1.0)
        acts.append(Act(begins, p.SUBMIT, "again", options=options))
        acts.append(Act(begins + rng.choice((0.01, 0.05, 0.5)) * rng.random(), p.DELETE, "again"))
    return [*acts, Act(at + 4.0, p.SUBMIT, "again", options=options)]


def _other_scheduler_everywhere(rng: random.Random, plan: Plan, at: float) -> list[Act]:
    """Another scheduler fills the nodes that HOSS is filling."""
    size = rng.choice((300, 700))
    return [
        Act(at, p.SUBMIT, "others", options={"cpu": size, "replicas": plan.nodes * 3, "scheduler": OTHER}),
        Act(at + rng.uniform(0.0, 0.3), p.SUBMIT, "ours", options={"cpu": size, "replicas": plan.nodes * 3}),
        Act(at + rng.uniform(0.0, 1.0), rng.choice(_OF_WEBHOOK), seconds=rng.uniform(0.5, 3.0)),
        Act(at + rng.uniform(1.0, 3.0), p.DELETE, rng.choice(("ours", "others"))),
    ]


_SCENES: tuple[Callable[[random.Random, Plan, float], list[Act]], ...] = (
    _late_bindings_on_full_nodes,
    _node_back_at_once,
    _same_names_again,
    _other_scheduler_everywhere,
)
