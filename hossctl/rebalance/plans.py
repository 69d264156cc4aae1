"""`hoss rebalance plan`: a plan of moves as a document and as a table.

The document (camel case):

    kind                  "RebalancePlan"
    goal, unit            what `before`, `after` and `gain` count
    seen                  by shard, the sequence number of the snapshot
    before, after
    moves[]               in the order in which they can be made: pod, from, to, gain, purpose, priority,
                          requests
    placements[]          waiting, node, afterMoves: a waiting pod fits there after so many moves
    impossible[]          subject, why
    newNodes              null, or of the nodes that a what-if adds: like, nodes (how many), pods (that they
                          get), used[] (those that get any: name, pods, requested), and of the used ones
                          together resources[]: resource, allocatable, requested
    cost                  pods (restarted), workloads, requests (of the moved pods, in schema units)
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from hoss.errors import HossError, InvalidInput, NotFound, counted
from hoss.model.resources import written_amount
from hoss.wire.convert import pod_spec_from_proto
from hossctl.choices import RebalanceGoal
from hossctl.console import Column, Document
from hossctl.endpoints import Endpoints, clients_of
from hossctl.rebalance.gathering import Gathered, gather, workload_of
from hossctl.rebalance.new_nodes import NewNodes, add_new_nodes, new_nodes_document, new_nodes_sentence
from hossctl.rebalance.room import popularity_of
from hossctl.rebalance.usage import UsageFile
from scheduler_worker.core.framework.profile import Profile
from scheduler_worker.core.nodes import Mask
from scheduler_worker.core.rebalance import goals
from scheduler_worker.core.rebalance.gpu_goal import defragment_gpus
from scheduler_worker.core.rebalance.movable_pods import PlanLimits
from scheduler_worker.core.rebalance.plan_state import MovePlan, PlanState, WaitingPods
from scheduler_worker.core.rebalance.quiet_goal import quiet_nodes


def plan_document(
    gathered: Gathered,
    profile: Profile,
    goal: RebalanceGoal,
    limits: PlanLimits,
    *,
    drain: str = "",
    more: Sequence[WaitingPods] = (),
    usage: UsageFile | None = None,
    new: NewNodes | None = None,
) -> Document:
    """The plan for a goal. `usage`: what pods use, for the goal quiet-nodes. `drain`: instead empty these
    nodes, a name or LABEL=VALUE. `more`: pods that would wait, instead of those that do. `new`: nodes that
    would be there as well. Changes the snapshot. Raises NotFound for nodes that are not there."""
    waiting = gathered.waiting
    seen = {str(shard): seq for shard, seq in sorted(gathered.snapshot.cache.seqs.items())}
    drained = nodes_of(gathered, drain) if drain else []
    # Added before the state compiles its classes; after the nodes to drain, whose labels the new ones may
    # have.
    added = None if new is None else add_new_nodes(gathered, new)
    state = PlanState(gathered.snapshot, profile, gathered.pods, limits)
    if drain:
        plan = goals.drain(state, drained)
    elif more:
        plan, waiting = goals.fit_pending(state, more), tuple(more)
    elif added is not None and goal is RebalanceGoal.EMPTY_NODES:
        plan = goals.empty_nodes(state, added.indexes)
    else:
        plan = plan_for(goal, state, gathered, usage)
    head = {"kind": "RebalancePlan", "goal": f"drain {drain}" if drain else goal.value}
    return head | {
        "seen": seen,
        **_document(gathered, state, plan, waiting),
        "newNodes": None if added is None else new_nodes_document(state.cache, added),
    }


def plan_for(
    goal: RebalanceGoal,
    state: PlanState,
    gathered: Gathered,
    usage: UsageFile | None,
    labels: Mapping[str, str] | None = None,
) -> MovePlan:
    """The plan for a goal, made in `state`. `labels`: of the nodes that empty-nodes may empty; None: all.
    Raises InvalidInput for quiet-nodes without usage, or with that of another platform."""
    if goal is RebalanceGoal.FIT_PENDING:
        return goals.fit_pending(state, gathered.waiting)
    if goal is RebalanceGoal.EMPTY_NODES:
        return goals.empty_nodes(state, only=None if labels is None else _with_labels(state, labels))
    if goal is RebalanceGoal.SPREAD:
        return goals.spread(state)
    if goal is RebalanceGoal.QUIET_NODES:
        if usage is None:
            raise InvalidInput("needs to know what pods use", where=goal.value)
        used = usage.of(state.pods)
        if len(state.pods) and not used.known.any():
            raise InvalidInput("the file with usage names none of the bound pods", where=goal.value)
        return quiet_nodes(state, used)
    return defragment_gpus(state, popularity_of(gathered))


def _with_labels(state: PlanState, labels: Mapping[str, str]) -> Mask:
    wanted, cache = labels.items(), state.cache
    found: Mask = np.array(
        [
            spec is not None and wanted <= dict(spec.labels).items()
            for spec in cache.catalogue.specs[: cache.size]
        ],
        np.bool_,
    )
    return found


FEW_MOVES = 10  # that `hoss describe` speaks of


def moves_that_help(gathered: Gathered, profile: Profile, entry: WaitingPods) -> str:
    """After which few moves one of these waiting pods fits, or its whole gang, in words; "" if after none.
    Changes the snapshot."""
    state = PlanState(gathered.snapshot, profile, gathered.pods, PlanLimits(FEW_MOVES))
    plan = goals.fit_pending(state, [replace(entry, pods=max(1, entry.together))])
    if not plan.placements or not plan.moves:
        return ""
    count, sources = len(plan.moves), sorted({state.name(move.source) for move in plan.moves})
    return f"fits after moving {counted(count, 'pod')} from {', '.join(sources)}"


async def moves_for_pod(endpoints: Endpoints, profile: Profile, namespace: str, name: str) -> str:
    """`moves_that_help` for a pod of the platform; "" also if the caller may not read what a plan needs."""
    try:
        async with clients_of(endpoints) as clients:
            pod = await clients.dispatcher.get_pod(namespace, name)
            gathered = await gather(clients)
    except HossError:
        return ""
    workload, spec = workload_of(pod), pod_spec_from_proto(pod.template.spec)
    entry = next((at for at in gathered.waiting if (at.name, at.spec) == (workload, spec)), None)
    return "" if entry is None else moves_that_help(gathered, profile, entry)


async def moves_for_job(endpoints: Endpoints, profile: Profile, namespace: str, name: str) -> str:
    """The same for a job: for its gang, or for one of its pods that wait."""
    try:
        async with clients_of(endpoints) as clients:
            gathered = await gather(clients)
    except HossError:
        return ""
    waiting = (entry for entry in gathered.waiting if entry.name == f"{namespace}/{name}")
    entry = next(waiting, None)
    return "" if entry is None else moves_that_help(gathered, profile, entry)


def nodes_of(gathered: Gathered, text: str) -> list[int]:
    """The nodes of a name, or of LABEL=VALUE. Raises NotFound."""
    cache = gathered.snapshot.cache
    key, equals, value = text.partition("=")
    if equals and not key:
        raise InvalidInput(f"{text!r} is no label; write LABEL=VALUE, or a node's name", where="--drain")
    found = [
        node
        for node in np.flatnonzero(cache.present).tolist()
        if (spec := cache.catalogue.specs[node]) is not None
        and (dict(spec.labels).get(key) == value if equals else spec.name == text)
    ]
    if not found:
        raise NotFound(f"no node {'has the label' if equals else 'is named'} {text}")
    return found


def _document(
    gathered: Gathered, state: PlanState, plan: MovePlan, waiting: Sequence[WaitingPods]
) -> Document:
    pods, name = gathered.pods, state.name
    requests: Counter[str] = Counter()
    for move in plan.moves:
        requests.update(dict(pods.specs[pods.classes[move.row]].requests))
    return {
        "unit": plan.unit,
        "before": round(plan.before, 3),
        "after": round(plan.after, 3),
        "moves": [
            {
                "pod": pods.names[move.row],
                "from": name(move.source),
                "to": name(move.target),
                "gain": round(move.gain, 3),
                "purpose": move.purpose,
                "priority": pods.specs[pods.classes[move.row]].priority,
                "requests": dict(pods.specs[pods.classes[move.row]].requests),
            }
            for move in plan.moves
        ],
        "placements": [
            {"waiting": waiting[at.waiting].name, "node": name(at.node), "afterMoves": at.after_moves}
            for at in plan.placements
        ],
        "impossible": [{"subject": entry.subject, "why": entry.why} for entry in plan.impossible],
        "cost": {
            "pods": len(plan.moves),
            "workloads": len({int(pods.workloads[move.row]) for move in plan.moves}),
            "requests": dict(sorted(requests.items())),
        },
    }


def _requested(row: Document) -> str:
    return (
        ",".join(f"{name}={written_amount(name, amount)}" for name, amount in row["requests"].items()) or "-"
    )


MOVE_COLUMNS: Sequence[Column] = (
    Column("POD", lambda row: row["pod"]),
    Column("FROM", lambda row: row["from"]),
    Column("TO", lambda row: row["to"]),
    Column("GAIN", lambda row: f"{row['gain']:g}" if row["gain"] else "-"),
    Column("REQUESTS", _requested),
    Column("FOR", lambda row: row["purpose"]),
)


def plan_lines(document: Document) -> list[tuple[str, object]]:
    """A plan in short: what it brings, what it costs, what remains."""
    cost = document["cost"]
    of_workloads = f"{counted(cost['pods'], 'pod')} of {counted(cost['workloads'], 'workload')}"
    moved = f"{of_workloads} to start again: {_requested(cost)}"
    lines: list[tuple[str, object]] = [
        (document["unit"], f"{document['before']:g} before, {document['after']:g} after"),
        ("cost", moved if cost["pods"] else "none: the plan moves no pod"),
    ]
    if document["newNodes"] is not None:
        lines.append(("new nodes", new_nodes_sentence(document["newNodes"])))
    by_waiting: Counter[tuple[str, str, int]] = Counter(
        (at["waiting"], at["node"], at["afterMoves"]) for at in document["placements"]
    )
    lines += [
        ("fits", f"{f'{pods} pods of ' if pods > 1 else ''}{name} on {node}, {_after(moves)}")
        for (name, node, moves), pods in by_waiting.items()
    ]
    lines += [("impossible", f"{entry['subject']}: {entry['why']}") for entry in document["impossible"]]
    return lines


def _after(moves: int) -> str:
    return "without a move" if not moves else "after the first move" if moves == 1 else f"after {moves} moves"
