"""Plans drawn from seeds, for the platform's own mode. A new kind of act is drawn apart, with a generator of
its own, so that all other plans stay as they were.

Some plans have a scene: several acts whose order and distance matter, on a platform on which they can."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tools.simulation.plan import (
    ADD_NODE,
    BREAK,
    CLOCK,
    COMMON_SLOT,
    CONTROL,
    CORDON,
    CUT,
    CUT_ONE_WAY,
    DELETE,
    DRIFT,
    FREEZE,
    FREEZE_AMID_MOVE,
    FREEZE_AT_STEP,
    KILL,
    KILL_AMID_MOVE,
    KILL_AT_STEP,
    KINDS,
    LEADER,
    LOSSES,
    MOVE,
    NODE_CPU,
    REDIS_CLOCK,
    REDIS_DRIFTS,
    REDIS_EMPTIED,
    REDIS_LOSES_REPLIES,
    REDIS_REFUSED,
    REDIS_RESTART,
    REDIS_ROLLS_BACK,
    REDIS_SILENT,
    REMOVE_NODE,
    SHARD_SLOT,
    SHRINK_NODE,
    STOP,
    SUBMIT,
    TENANT,
    UNCORDON,
    UNDO_MOVES,
    UNGATE,
    Act,
    Plan,
)

_WITHIN_A_LEASE = 1.0  # of the leader, 1.5 s


@dataclass(frozen=True)
class _Size:
    """How much is drawn. A platform's services and what happens are drawn from these, each as likely as any
    other; seconds are virtual."""

    dispatchers: tuple[int, ...] = (1, 2, 2)
    resolvers: tuple[int, ...] = (1, 2, 2)
    workers: tuple[int, ...] = (1, 2, 3)
    nodes: tuple[int, int] = (2, 8)
    jobs: tuple[int, int] = (3, 12)
    node_changes: tuple[int, ...] = (0, 0, 1, 2, 3)
    faults: tuple[int, ...] = (0, 1, 1, 2, 3, 4)
    seconds: tuple[float, float] = (4.0, 10.0)
    fault_seconds: tuple[float, ...] = (0.05, 0.5, 2.0, 5.0)
    scenes: tuple[float, float] = (0.6, 0.25)  # shares of plans without a loss; of those without a scene


_LONG = _Size()
_SHORT = _Size(
    dispatchers=(1, 1, 2),
    resolvers=(1, 1, 2),
    workers=(1, 1, 2),
    nodes=(2, 5),
    jobs=(2, 5),
    node_changes=(0, 0, 0, 1),
    faults=(0, 1, 1, 2),
    seconds=(0.6, 2.0),
    fault_seconds=(0.05, 0.5, 1.0),
    scenes=(0.4, 0.1),
)


def draw(seed: int) -> Plan:
    """The plan of a seed."""
    plan = _drawn(seed, random.Random(seed), random.Random(f"late release {seed}"), _LONG)
    # Drawn apart, as late releases are.
    acts = _refused(random.Random(f"refused {seed}"), plan)
    plan = replace(plan, acts=tuple(sorted((*plan.acts, *acts), key=lambda act: act.at)))
    full = random.Random(f"full {seed}")
    if full.random() < 0.1:
        return replace(plan, most_waiting=full.choice((4, 8, 16)))
    return _with_a_limited_tenant(random.Random(f"a tenant's limit {seed}"), plan)


def draw_short(seed: int) -> Plan:
    """A plan of a seed on few services, in which less happens, within two seconds. One takes half of the CPU
    time of others, and finds what few events show in many orders."""
    return _drawn(seed, random.Random(f"short {seed}"), random.Random(f"short late release {seed}"), _SHORT)


def _drawn(seed: int, rng: random.Random, late: random.Random, size: _Size) -> Plan:
    plan = Plan(
        seed,
        shards=rng.choice((1, 1, 2, 3)),
        dispatchers=rng.choice(size.dispatchers),
        resolvers=rng.choice(size.resolvers),
        workers=rng.choice(size.workers),
        nodes=rng.randint(*size.nodes),
        acts=(),
        named_nodes=True,
        lease_seconds=rng.choice((4.0, 30.0)),
    )
    seconds = rng.uniform(*size.seconds)
    loses = rng.random() < 0.3
    scene = None
    if not loses and rng.random() < size.scenes[0]:
        scene = rng.choice(_SCENES)
        plan = scene.fitted(plan)
    acts = _loads(rng, seconds, size.jobs)
    acts += node_changes(rng, plan, seconds, size.node_changes)
    acts += _faults(rng, plan, seconds, size, loses=loses)
    # Drawn apart: the other plans are what they were before there was this scene.
    if not loses and scene is None and late.random() < size.scenes[1]:
        rng, scene = late, _LATE_RELEASE
        plan = scene.fitted(plan)
    if scene is not None:
        acts += scene.acts(rng, plan, rng.uniform(0.3, seconds))
    return replace(plan, acts=tuple(sorted(acts, key=lambda act: act.at)))


def draw_moves(seed: int) -> Plan:
    """The plan of a seed, in which pods are moved as well and faults strike amid that. Drawn apart: the plans
    of `draw` are what they were."""
    rng, plan = random.Random(f"moves {seed}"), draw(seed)
    plan = replace(plan, shards=max(plan.shards, rng.choice((1, 2, 3))), nodes=max(plan.nodes, 4))
    seconds = max(act.at for act in plan.acts)
    loses = any(act.what in LOSSES for act in plan.acts)
    acts = [Act(0.1, SUBMIT, "moving", options={"replicas": 2 * plan.nodes, "cpu": 100})]
    for number in range(rng.randint(2, 4)):
        at = rng.uniform(1.0, seconds + 1.0)
        acts.append(
            Act(at, MOVE, number=rng.randrange(1, plan.nodes), options={"rate": rng.choice((5, 20, 50))})
        )
        if rng.random() < 0.7:
            acts.append(amid_moves(rng, plan, at, loses=loses))
        if rng.random() < 0.3:
            acts.append(Act(at + rng.uniform(0.2, 3.0), UNDO_MOVES))
        if rng.random() < 0.4:
            name, options = f"moved-{number}", {"replicas": rng.choice((2, 4, 8)), "cpu": 50}
            deleted = at + rng.uniform(0.0, 0.5)
            acts += [Act(max(0.0, at - 1.0), SUBMIT, name, options=options), Act(deleted, DELETE, name)]
            again = {**options, "again": True}
            acts.append(Act(deleted + rng.uniform(0.05, 2.0), SUBMIT, name, options=again))
    acts += control(random.Random(f"controller {seed}"))
    return replace(plan, acts=tuple(sorted((*plan.acts, *acts), key=lambda act: act.at)))


def control(rng: random.Random) -> list[Act]:
    """In two fifths of the plans a rebalance controller begins. Drawn apart, as late releases are."""
    if rng.random() >= 0.4:
        return []
    goal = {"goal": rng.choice(("empty-nodes", "spread"))}
    return [Act(rng.uniform(0.2, 2.0), CONTROL, options=goal)]


_OF_MOVES = (KILL_AT_STEP, FREEZE_AT_STEP, STOP, REDIS_REFUSED, REDIS_LOSES_REPLIES, CUT)


def amid_moves(rng: random.Random, plan: Plan, at: float, *, loses: bool) -> Act:
    """A fault of those who make moves."""
    resolver = f"resolver-{rng.randint(1, plan.resolvers)}"
    whom = rng.choice((resolver, resolver, "" if loses else LEADER, "" if loses else LEADER)) or resolver
    what = rng.choice((KILL_AMID_MOVE, FREEZE_AMID_MOVE, KILL_AMID_MOVE, FREEZE_AMID_MOVE, *_OF_MOVES))
    seconds, soon = rng.choice((0.3, 1.0, 5.0)) * rng.uniform(0.5, 1.5), at + rng.uniform(0.0, 0.3)
    if what in (KILL_AMID_MOVE, FREEZE_AMID_MOVE):
        return Act(at, what, whom, seconds=seconds, number=rng.choice((0, 0, 1, 2, 3, 5, 10, 20)))
    if what in (REDIS_REFUSED, REDIS_LOSES_REPLIES):
        return Act(soon, what, seconds=min(seconds, _longest_without_redis("", loses=loses)))
    if what == CUT:
        return Act(soon, what, f"dispatcher-{rng.randint(1, plan.dispatchers)}", resolver, seconds=seconds)
    steps = rng.randint(1, 60) if what != STOP else 0
    return Act(soon, what, whom, seconds=seconds, number=steps)


def _loads(rng: random.Random, seconds: float, jobs: tuple[int, int]) -> list[Act]:
    acts = []
    for number in range(rng.randint(*jobs)):
        at, name = rng.uniform(0.0, seconds), f"job-{number}"
        replicas = rng.choice((1, 1, 2, 4, 8, 16))
        options: dict[str, Any] = {"replicas": replicas, "cpu": rng.choice((50, 100, 300, 700))}
        kind = rng.random()
        if kind < 0.2 and replicas > 1:
            options["gang"] = rng.randint(2, replicas)
        elif kind < 0.3:
            options["port"] = rng.choice((8080, 9090))
        elif kind < 0.42:
            options["apart"] = rng.choice(("a", "b"))
        elif kind < 0.5:
            options["gate"] = "hold"
        if rng.random() < 0.2:
            options["priority"] = rng.choice((10, 100))
        acts.append(Act(at, SUBMIT, name, options=options))
        if "gate" in options and rng.random() < 0.8:
            acts.append(Act(at + rng.uniform(0.01, 3.0), UNGATE, name))
        if rng.random() < 0.35:
            acts.append(Act(at + rng.uniform(0.0, 3.0), DELETE, name))
            if rng.random() < 0.3 and "gate" not in options:
                # The same request again, under its id.
                acts.append(Act(at + rng.uniform(0.5, 4.0), SUBMIT, name, options={**options, "again": True}))
    return acts


def _refused(rng: random.Random, plan: Plan) -> list[Act]:
    """In a tenth of the plans: a job with the name of another, and one that asks for more pods than it
    has."""
    if rng.random() >= 0.1:
        return []
    first = rng.choice([act for act in plan.acts if act.what == SUBMIT])
    at, options = first.at + rng.uniform(0.0, 1.0), {"replicas": rng.choice((1, 4)), "cpu": 50}
    return [
        Act(at, SUBMIT, first.target, options={**options, "id": ", another"}),
        Act(at, SUBMIT, "too-few", options={**options, "minimum": 5}),
    ]


def _with_a_limited_tenant(rng: random.Random, plan: Plan) -> Plan:
    """In a tenth of the plans whose queue is not full for everybody: clients that are limited to a tenant
    submit more than nodes have room for, and few pods may wait. They go on within the time of the plan."""
    if rng.random() >= 0.11:
        return plan
    until, acts = max(act.at for act in plan.acts), []
    for number in range(rng.randint(6, 12)):
        at, name = rng.uniform(0.0, until), f"{TENANT}-{number}"
        options = {"replicas": rng.choice((2, 4, 8)), "cpu": 1900, "tenant": TENANT}
        acts.append(Act(at, SUBMIT, name, options=options))
        if rng.random() < 0.3:
            acts.append(Act(rng.uniform(at, until), DELETE, name))
    ordered = sorted((*plan.acts, *acts), key=lambda act: act.at)
    return replace(plan, acts=tuple(ordered), most_waiting=rng.choice((24, 40)))


def node_changes(
    rng: random.Random, plan: Plan, seconds: float, changes: Sequence[int] = _LONG.node_changes
) -> list[Act]:
    acts = []
    for _ in range(rng.choice(changes)):
        what = rng.choice((ADD_NODE, REMOVE_NODE, SHRINK_NODE, CORDON))
        number = rng.randrange(plan.nodes + 2)
        at = rng.uniform(0.5, seconds)
        acts.append(Act(at, what, f"n{number}"))
        if what == REMOVE_NODE and rng.random() < 0.6:
            acts.append(Act(at + rng.uniform(0.05, 2.0), ADD_NODE, f"n{number}"))
        if what == CORDON:
            acts.append(Act(at + rng.uniform(0.05, 2.0), UNCORDON, f"n{number}"))
    return acts


def _faults(rng: random.Random, plan: Plan, seconds: float, size: _Size, *, loses: bool) -> list[Act]:
    """Either Redis loses what it had acknowledged, or dispatchers die: no promise holds through both."""
    acts: list[Act] = []
    for _ in range(rng.choice(size.faults)):
        acts += fault(rng, plan, rng.uniform(0.3, seconds), loses=loses, lasting=size.fault_seconds)
    if loses:
        acts.append(loss(rng, plan, rng.uniform(min(1.0, seconds / 2), seconds)))
    return acts


def loss(rng: random.Random, plan: Plan, at: float) -> Act:
    """Redis loses everything, or some writes that it had acknowledged."""
    if rng.random() < 0.3:
        return Act(at, REDIS_EMPTIED)
    slots = ("", "", COMMON_SLOT, *(SHARD_SLOT.format(shard) for shard in range(plan.shards)))
    return Act(at, REDIS_ROLLS_BACK, rng.choice(slots), number=rng.choice((1, 2, 5, 20)))


def fault(
    rng: random.Random,
    plan: Plan,
    at: float,
    *,
    loses: bool,
    lasting: Sequence[float] = _LONG.fault_seconds,
) -> list[Act]:
    what = rng.choice(KINDS)
    seconds = rng.choice(lasting) * rng.uniform(0.5, 1.5)
    mortal = [name for name in plan.names if not (loses and name.startswith("dispatcher"))]
    if what in (KILL, KILL_AT_STEP, STOP, FREEZE, FREEZE_AT_STEP):
        steps = rng.randint(1, 300) if what in (KILL_AT_STEP, FREEZE_AT_STEP) else 0
        return [Act(at, what, rng.choice(mortal), seconds=seconds, number=steps)]
    if what in (CUT, CUT_ONE_WAY, BREAK):
        one, other = rng.sample(plan.names, 2)
        return [Act(at, what, one, other, seconds=0.0 if what == BREAK else seconds)]
    if what in (REDIS_CLOCK, CLOCK):
        target = rng.choice(plan.names) if what == CLOCK else ""
        return [Act(at, what, target, number=rng.choice((-3600, -5, 5, 40, 3600)))]
    if what in (REDIS_DRIFTS, DRIFT):
        target = rng.choice(plan.names) if what == DRIFT else ""
        return [Act(at, what, target, number=rng.choice((-30, -5, 5, 30)))]
    if what in (REDIS_SILENT, REDIS_REFUSED, REDIS_LOSES_REPLIES):
        # For everybody, or for one service.
        with_redis = [name for name in plan.names if not name.startswith("w")]
        target = rng.choice(("", rng.choice(with_redis)))
        return [Act(at, what, target, seconds=min(seconds, _longest_without_redis(target, loses=loses)))]
    longest = _longest_without_redis("", loses=loses)
    return [Act(at, what, seconds=0.0 if what == REDIS_RESTART else min(seconds, longest))]


def _longest_without_redis(target: str, *, loses: bool) -> float:
    """Seconds. In a plan with a loss, a leader without Redis for longer than its lease is as good as dead:
    its successor reads what Redis has kept, and the leader's knowledge is lost."""
    return 3.0 if not loses or target.startswith("resolver") else _WITHIN_A_LEASE


# Scenes: what seldom comes together by chance, and where protocols break.


def _stalled_worker_and_takeover(rng: random.Random, _plan: Plan, at: float) -> list[Act]:
    """A worker stalls with pods in hand, the dispatcher dies, and the worker goes on when the next one
    leads."""
    options = {"replicas": rng.choice((2, 4, 8)), "cpu": 100}
    return [
        *(Act(at, SUBMIT, f"stalled-{number}", options=options) for number in range(4)),
        Act(at, FREEZE_AT_STEP, "w1", seconds=rng.uniform(1.7, 2.6), number=rng.randint(2, 25)),
        Act(at + rng.uniform(0.01, 0.2), KILL, LEADER, seconds=rng.uniform(0.5, 3.0)),
    ]


def _deleted_while_nobody_answers(rng: random.Random, plan: Plan, at: float) -> list[Act]:
    """Jobs are deleted while the resolvers are away, or answer to nobody."""
    away, seconds = (
        rng.choice((KILL, FREEZE, REDIS_REFUSED, REDIS_SILENT, REDIS_LOSES_REPLIES)),
        rng.uniform(1.0, 3.0),
    )
    names = [f"resolver-{number + 1}" for number in range(plan.resolvers)]
    acts = [Act(at + 1.0, away, name, seconds=seconds) for name in names]
    for number in range(3):
        options = {"replicas": rng.choice((1, 4, 8)), "cpu": rng.choice((50, 300))}
        acts.append(Act(at, SUBMIT, f"deleted-{number}", options=options))
        acts.append(Act(at + 1.0 + rng.uniform(0.0, seconds), DELETE, f"deleted-{number}"))
    return acts


def _dispatcher_without_resolvers(rng: random.Random, plan: Plan, at: float) -> list[Act]:
    """Workers place pods while the dispatcher reaches no resolver, for longer or shorter than leases last."""
    options = {"replicas": rng.choice((4, 8, 16)), "cpu": rng.choice((50, 100))}
    seconds = rng.choice((3.0, 6.0, 9.0))
    acts = [Act(at, SUBMIT, f"unconfirmed-{number}", options=options) for number in range(2)]
    return [*acts, *(Act(at, CUT, *pair, seconds=seconds) for pair in _dispatchers_and_resolvers(plan))]


def _same_job_after_a_lost_answer(rng: random.Random, plan: Plan, at: float) -> list[Act]:
    """A job is deleted and submitted again, while the dispatcher repeats releases that were carried out."""
    seconds = rng.uniform(2.0, 5.0)
    acts = [
        Act(at + 1.0, CUT_ONE_WAY, resolver, dispatcher, seconds=seconds)
        for dispatcher, resolver in _dispatchers_and_resolvers(plan)
    ]
    for number in range(3):
        options, name = {"replicas": rng.choice((2, 4, 8)), "cpu": 50}, f"twice-{number}"
        deleted = at + 1.0 + rng.uniform(0.0, 0.5)
        again = deleted + rng.uniform(0.05, seconds / 2)
        acts += [Act(at, SUBMIT, name, options=options), Act(deleted, DELETE, name)]
        acts.append(Act(again, SUBMIT, name, options={**options, "again": True}))
    return acts


def _release_that_comes_late(rng: random.Random, plan: Plan, at: float) -> list[Act]:
    """Requests to one resolver stall. Releases are repeated by the other one, and the same jobs are submitted
    again and bound; then what had stalled arrives."""
    stalls, seconds = at + 0.8, rng.uniform(6.5, 7.5)
    acts = [
        Act(stalls, CUT_ONE_WAY, dispatcher, "resolver-1", seconds=seconds)
        for dispatcher in plan.names
        if dispatcher.startswith("dispatcher")
    ]
    for number in range(6):
        options, name = {"replicas": rng.choice((2, 4, 8)), "cpu": 50}, f"late-{number}"
        again = stalls + rng.uniform(5.4, seconds - 0.4)
        acts += [Act(at, SUBMIT, name, options=options), Act(stalls + rng.uniform(0.005, 0.05), DELETE, name)]
        acts.append(Act(again, SUBMIT, name, options={**options, "again": True}))
    return acts


def _dispatchers_and_resolvers(plan: Plan) -> list[tuple[str, str]]:
    dispatchers = [name for name in plan.names if name.startswith("dispatcher")]
    return [(one, other) for one in dispatchers for other in plan.names if other.startswith("resolver")]


def _urgent_pods_on_full_nodes(rng: random.Random, plan: Plan, at: float) -> list[Act]:
    """The nodes are full of pods, then several jobs of more urgent ones come."""
    size = rng.choice((300, 700))
    full = {"replicas": plan.nodes * (NODE_CPU // size), "cpu": size}
    acts = [Act(at, SUBMIT, "full", options=full)]
    for number in range(rng.randint(2, 4)):
        options = {
            "replicas": rng.choice((1, 2, 4)),
            "cpu": rng.choice((300, 700)),
            "priority": 10 * (number + 1),
        }
        acts.append(
            Act(
                at + 1.0 + rng.choice((0.0, rng.uniform(0.0, 0.5))),
                SUBMIT,
                f"urgent-{number}",
                options=options,
            )
        )
    return acts


def _one_port_on_few_nodes(rng: random.Random, plan: Plan, at: float) -> list[Act]:
    """Several jobs want the same port of every node at once; later some go, and their ports are free."""
    acts = []
    for number in range(max(2, plan.workers)):
        options = {"replicas": max(1, plan.nodes - rng.choice((0, 1))), "cpu": 50, "port": 7070}
        acts.append(Act(at, SUBMIT, f"port-{number}", options=options))
        if rng.random() < 0.5:
            acts.append(Act(at + rng.uniform(0.5, 2.0), DELETE, f"port-{number}"))
    return acts


def _room_comes_during_backoff(rng: random.Random, plan: Plan, at: float) -> list[Act]:
    """Pods that do not fit wait; room comes a moment later."""
    full = {"replicas": plan.nodes * 2, "cpu": 700}
    waiting = {"replicas": rng.choice((2, 4)), "cpu": 1300}
    return [
        Act(at, SUBMIT, "before", options=full),
        Act(at + 0.5, SUBMIT, "waiting", options=waiting),
        Act(at + 0.5 + rng.uniform(0.05, 1.2), DELETE, "before"),
    ]


@dataclass(frozen=True)
class _Scene:
    """What happens, and the least platform on which that means something."""

    acts: Callable[[random.Random, Plan, float], list[Act]]
    shards: int = 1
    dispatchers: int = 1
    resolvers: int = 1
    workers: int = 1
    lease_seconds: float = 0.0  # 0: any

    def fitted(self, plan: Plan) -> Plan:
        """The plan on such a platform."""
        return replace(
            plan,
            shards=max(plan.shards, self.shards),
            dispatchers=max(plan.dispatchers, self.dispatchers),
            resolvers=max(plan.resolvers, self.resolvers),
            workers=max(plan.workers, self.workers),
            lease_seconds=self.lease_seconds or plan.lease_seconds,
        )


_LATE_RELEASE = _Scene(_release_that_comes_late, resolvers=2, lease_seconds=30.0)
_SCENES = (
    _Scene(_stalled_worker_and_takeover, shards=2, dispatchers=2, workers=2),
    _Scene(_dispatcher_without_resolvers, lease_seconds=4.0),
    _Scene(_deleted_while_nobody_answers),
    _Scene(_same_job_after_a_lost_answer),
    _Scene(_urgent_pods_on_full_nodes),
    _Scene(_one_port_on_few_nodes, workers=2),
    _Scene(_room_comes_during_backoff),
)
