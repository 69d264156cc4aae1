"""Plans of moves by goal. All of them are heuristics: they make the best move they find and go on from there.

A plan contains only moves that its goal gains from: what does not work out is undone and reported. Only a
drain has all the moves that can be made, also from a node that keeps some pods."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hoss.errors import counted
from hoss.model.resources import WHOLE_CARD_MILLI
from scheduler_worker.core.nodes import Mask, NodeIndexes
from scheduler_worker.core.placement.diagnosis import ExaminedPod, diagnose, resolvable
from scheduler_worker.core.preemption.search import PreemptionSearch, VictimCandidates
from scheduler_worker.core.rebalance.plan_state import (
    CountedPod,
    Impossible,
    Move,
    MovePlan,
    PlanState,
    WaitingPlacement,
    WaitingPods,
)

# Room is made on the nodes that lack the least. Where rules about other pods or cards are in play, each node
# is tried by itself and fewer are tried.
_NODES_BY_AMOUNTS = 64
_NODES_ONE_BY_ONE = 24
_SETS_OF_MOVES = 16  # tried for one waiting pod
_NODES_IN_VAIN = 300  # nodes in a row that could not be emptied, before the search ends
_CLASSES_PER_NODE = 8  # whose moves are compared when a node's load is taken down
_LEAST_GAIN = 1e-4  # of squared load: a move that gains less is not worth a restart


# --- fit-pending ---


def fit_pending(state: PlanState, waiting: Sequence[WaitingPods]) -> MovePlan:
    """Make room for pods that wait, the most urgent first. The gain is in pods that fit."""
    total = sum(entry.pods for entry in waiting)
    plan = MovePlan("waiting pods", before=total, after=total)
    for number in sorted(range(len(waiting)), key=lambda n: -waiting[n].spec.priority):
        _fit(state, number, waiting[number], plan)
    plan.moves = state.moves
    plan.after = total - len(plan.placements)
    return plan


def _fit(state: PlanState, number: int, entry: WaitingPods, plan: MovePlan) -> None:
    moves_before = len(state.moves)
    pod, pod_class = state.examine(entry.spec)
    placed: list[CountedPod] = []
    after_moves: list[int] = []  # of each
    why = ""
    while len(placed) < entry.pods:
        pod.refresh()
        there = np.flatnonzero(state.accepting(pod))
        node = state.tightest(pod.demand, there) if len(there) else -1
        if node < 0:
            why = diagnose(pod, state.profile, state.cache).text
            if state.budget.used_up and state.budget.limits.moves:
                why = f"{state.budget.used_up}; {why}"
            node = _make_room(state, entry, pod)
            if (
                node < 0
                and state.budget.limits.moves
                and (stay := state.budget.who_stays(entry.spec.priority))
            ):
                why = f"{why} Pods that stay: {stay}"
        if node < 0:
            break
        placed.append(state.place(pod, pod_class, node))
        after_moves.append(len(state.moves))
    if len(placed) < min(entry.together, entry.pods):
        for last in reversed(placed):
            state.displace(last)
        state.undo_to(moves_before)
        left = entry.pods
        found = f"{len(placed)} of the {entry.together} pods that it needs at once would fit; {why}"
        plan.impossible.append(Impossible(_pods_of(entry, left), found))
        return
    state.placed += placed
    if entry.together > 1 and len(state.moves) > moves_before:
        state.credit_together(moves_before, float(len(placed)))
    plan.placements += [
        WaitingPlacement(number, at.node, moves) for at, moves in zip(placed, after_moves, strict=True)
    ]
    if len(placed) < entry.pods:
        plan.impossible.append(Impossible(_pods_of(entry, entry.pods - len(placed)), why))


def _pods_of(entry: WaitingPods, pods: int) -> str:
    return f"{pods} of {entry.pods} pods of {entry.name}" if entry.pods > 1 else entry.name


def _make_room(state: PlanState, entry: WaitingPods, pod: ExaminedPod) -> int:
    """Move pods away from some node so that this one fits. Returns the node, -1 if none was found."""
    pods = state.pods
    nodes = resolvable(pod, state.profile, state.cache)
    priorities = np.array([spec.priority for spec in pods.specs], np.int64)[pods.classes]
    # More important pods are not restarted for a less important one.
    rows = np.flatnonzero(state.budget.movable() & (priorities <= entry.spec.priority))
    if not len(rows):
        return -1
    nodes = _nearest(state, pod, nodes, rows)
    rows = rows[np.isin(state.nodes[rows], nodes)]
    if not len(rows):
        return -1
    found: dict[tuple[int, ...], int] = {}
    for prefer in (1.0, -1.0):  # keep small pods, and move few large ones; or the other way round
        candidates = _candidates(state, rows, prefer)
        search = PreemptionSearch(pod, state.profile, _Rows(state, rows), candidates, nodes)
        for option in search.candidates():
            if not option.violations and len(option.victims):
                found[tuple(rows[option.victims].tolist())] = option.node
    sizes = {row: state.size_of(int(pods.classes[row])) for victims in found for row in victims}
    by_cost = sorted(found, key=lambda victims: (len(victims), sum(sizes[row] for row in victims)))
    for victims in by_cost[:_SETS_OF_MOVES]:
        node = found[victims]
        before = len(state.moves)
        purpose = f"room for {entry.name}"
        moved = _move_all(state, sorted(victims, key=lambda row: -sizes[row]), node, purpose)
        if moved is None and state.accepts(pod, node):
            state.credit(1.0)
            return node
        state.undo_to(before)
    return -1


def _nearest(state: PlanState, pod: ExaminedPod, nodes: NodeIndexes, rows: NDArray[np.intp]) -> NodeIndexes:
    """Of these nodes those that lack the least, and whose movable pods hold as much."""
    request = pod.demand.request[:, None]
    requests = np.stack([state.demand(k).request for k in range(len(state.pods.specs))], axis=1)
    held = np.zeros((len(request), state.cache.size), np.int64)
    for resource in pod.demand.rows.tolist():
        np.add.at(held[resource], state.nodes[rows], requests[resource, state.pods.classes[rows]])
    has_pods = np.zeros(state.cache.size, np.bool_)
    has_pods[state.nodes[rows]] = True
    free = state.cache.accounts.allocatable[:, nodes] - state.cache.requested[:, nodes]
    lacking = np.where(request > 0, np.maximum(request - free, 0), 0)
    possible = (lacking <= held[:, nodes]).all(axis=0) & has_pods[nodes]
    share = (lacking / np.maximum(request, 1)).max(axis=0)
    if pod.demand.devices is not None:
        used = state.cache.cards.used[nodes]
        enough = (used <= WHOLE_CARD_MILLI - pod.demand.devices.milli).sum(axis=1)
        share = share + np.maximum(pod.demand.devices.count - enough, 0) / pod.demand.devices.count
    kept = np.flatnonzero(possible)
    most = _NODES_BY_AMOUNTS if PreemptionSearch.sees_amounts_only(pod) else _NODES_ONE_BY_ONE
    nearest: NodeIndexes = nodes[kept[np.argsort(share[kept], kind="stable")[:most]]]
    return np.sort(nearest)


def _candidates(state: PlanState, rows: NDArray[np.intp], prefer: float) -> VictimCandidates:
    """Movable pods as the search of preemption wants them. Of equal priority the search keeps those that
    `started` first: here the small ones, or with `prefer` = -1 the large ones."""
    pods = state.pods
    classes = pods.classes[rows]
    used = np.unique(classes).tolist()
    requests = np.zeros((len(pods.specs), len(state.cache.schema)), np.int64)
    priorities = np.zeros(len(pods.specs), np.int64)
    sizes = np.zeros(len(pods.specs))
    for number in used:
        requests[number] = state.demand(number).request
        priorities[number] = pods.specs[number].priority
        sizes[number] = prefer * state.size_of(number)
    return VictimCandidates(
        nodes=state.nodes[rows],
        priorities=priorities[classes],
        started_at=sizes[classes],
        requests=requests[classes],
        covered=pods.covered[classes],
        allowed=state.budget.disruptions_left,
    )


class _Rows:
    """Some placed pods, for the search: see PreemptionCluster."""

    def __init__(self, state: PlanState, rows: NDArray[np.intp]) -> None:
        self.cache = state.cache
        self._state = state
        self._rows = rows
        self._held: dict[int, tuple[int, int]] = {}

    def evict(self, row: int) -> None:
        """The pod leaves its node for a moment."""
        placed = int(self._rows[row])
        self._held[row] = int(self._state.nodes[placed]), self._state.card_mask(placed)
        self._state.take(placed)

    def restore(self, row: int) -> None:
        """The pod is back where it was."""
        self._state.put_back(int(self._rows[row]), *self._held.pop(row))


def _move_all(
    state: PlanState, rows: Sequence[int], source: int, purpose: str, among: Mask | None = None
) -> tuple[int, str] | None:
    """Move these pods from a node to others, of `among` where that is given. If one cannot be moved, it and
    why not; the moves before it stay."""
    for row in rows:
        why = state.budget.why_fixed(row)
        if why:
            return row, why
        mask = state.card_mask(row)
        state.take(row)
        pod = state.examined(int(state.pods.classes[row]))
        there = state.targets(pod, source)
        if among is not None:
            there &= among
        targets = np.flatnonzero(there)
        if not len(targets):
            why = diagnose(pod, state.profile, state.cache).text
            if left_out := int(state.accepting(pod).sum()):  # the source among them
                why = f"{why} The other {left_out} {'is' if left_out == 1 else 'are'} to be left alone."
            state.put_back(row, source, mask)
            return row, f"no other node takes it: {why}"
        target = state.tightest(pod.demand, targets)
        state.put(row, target)
        state.record(Move(row, source, target, 0.0, purpose))
    return None


# --- empty-nodes, and nodes that are to be drained ---


def empty_nodes(state: PlanState, also: Sequence[int] = (), only: Mask | None = None) -> MovePlan:
    """Free nodes of all their pods, so that they can be switched off. The gain is in nodes.

    Pods go to nodes that are in use; `also`: to these empty ones as well, which then count as used. `only`:
    nodes that may be emptied, where not all may, (size,)."""
    used = _nodes_with_pods(state)
    plan = MovePlan("nodes in use", before=len(used), after=len(used))
    candidates, blocked = _candidates_to_empty(state, used, only)
    open_targets = np.zeros(state.cache.size, np.bool_)
    open_targets[used] = True
    open_targets[list(also)] = True
    in_vain = 0
    for pods, _, node in candidates:
        if len(state.rows_on(node)) > pods:
            continue  # pods of another node have moved here
        if in_vain >= _NODES_IN_VAIN:
            blocked[f"not tried, because {_NODES_IN_VAIN} nodes in a row could not be emptied"] += 1
            continue
        if pods > state.budget.moves_left:
            blocked["the plan has fewer moves left than they have pods"] += 1
            continue
        before = len(state.moves)
        open_targets[node] = False
        rows = sorted(state.rows_on(node), key=lambda row: -state.size_of(int(state.pods.classes[row])))
        stuck = _move_all(state, rows, node, f"empties {state.name(node)}", open_targets)
        if stuck is not None:
            fixed_by = state.budget.why_fixed(stuck[0])
            blocked[_a_pod_stays(fixed_by) if fixed_by else "no room or no fitting place elsewhere"] += 1
            state.undo_to(before)
            open_targets[node] = True
            in_vain += 1
            continue
        in_vain = 0
        state.credit(1.0)
    plan.after = len(_nodes_with_pods(state))
    if plan.after >= plan.before:  # pods would only change places with the empty nodes
        state.undo_to(0)
        plan.after = plan.before
    plan.moves = state.moves
    plan.impossible = [Impossible(counted(nodes, "node"), why) for why, nodes in blocked.most_common()]
    return plan


def _candidates_to_empty(
    state: PlanState, used: Sequence[int], only: Mask | None
) -> tuple[list[tuple[int, float, int]], Counter[str]]:
    """Nodes all of whose pods may be moved, as (pods, load, node), those with the fewest pods first; and of
    the others how many there are for each reason."""
    load, movable = state.load(), state.budget.movable()
    blocked: Counter[str] = Counter()
    candidates = []
    for node in used:
        rows = state.rows_on(node)
        fixed = [row for row in rows if not movable[row]]
        if only is not None and not only[node]:
            blocked["not among those that may be emptied"] += 1
        elif fixed:
            blocked[_a_pod_stays(state.budget.why_fixed(fixed[0]))] += 1
        elif state.only_known_pods(node):
            candidates.append((len(rows), float(load[node]), node))
        else:
            blocked["pods that the dispatcher does not know"] += 1
    return sorted(candidates), blocked


def _a_pod_stays(why: str) -> str:
    return f"a pod stays there: {why}"


def drain(state: PlanState, nodes: Sequence[int]) -> MovePlan:
    """Move all pods from these nodes to others. The gain is in nodes."""
    plan = MovePlan("nodes to drain", before=len(nodes), after=len(nodes))
    others = np.ones(state.cache.size, np.bool_)
    others[list(nodes)] = False
    for node in nodes:
        stuck = False
        for row in sorted(state.rows_on(node), key=lambda r: -state.size_of(int(state.pods.classes[r]))):
            found = _move_all(state, [row], node, f"empties {state.name(node)}", others)
            if found is not None:
                stuck = True
                plan.impossible.append(Impossible(f"{state.pods.names[row]} on {state.name(node)}", found[1]))
        if not state.only_known_pods(node):
            stuck = True
            plan.impossible.append(Impossible(state.name(node), "has pods that the dispatcher does not know"))
        if not stuck:
            plan.after -= 1
            if state.moves and state.moves[-1].source == node:
                state.credit(1.0)
    plan.moves = state.moves
    return plan


def _nodes_with_pods(state: PlanState) -> list[int]:
    return [node for node in np.flatnonzero(state.cache.present).tolist() if state.rows_on(node)]


# --- spread ---


def spread(state: PlanState) -> MovePlan:
    """Take load from the fullest nodes to the emptiest. The gain is in per cent of the mean squared load, of
    cpu or memory, whichever is larger."""
    present = np.flatnonzero(state.cache.present)
    scale = 100.0 / max(len(present), 1)
    load = state.load()
    plan = MovePlan("mean squared load, %", before=float((load[present] ** 2).sum()) * scale, after=0.0)
    done: set[int] = set()
    while state.budget.moves_left:
        by_load = present[np.argsort(-load[present], kind="stable")].tolist()
        hottest = next((node for node in by_load if node not in done), None)
        if hottest is None or load[hottest] <= float(load[present].mean()):
            break
        move = _coolest_move(state, hottest, load, scale)
        if move is None:
            done.add(hottest)
            continue
        state.take(move.row)
        state.put(move.row, move.target)
        state.record(move)
        load = state.load()
        done.discard(move.target)
    plan.moves = state.moves
    plan.after = float((load[present] ** 2).sum()) * scale
    load = state.load()
    above = {node for node in present.tolist() if load[node] > float(load[present].mean())}
    if done & above:
        why = "hold only pods that must stay, or that lower no load elsewhere"
        plan.impossible.append(Impossible(f"{counted(len(done & above), 'node')} above the mean load", why))
    if state.budget.used_up and (further := len(above - done)):
        plan.impossible.append(
            Impossible(f"{counted(further, 'node')} above the mean load", state.budget.used_up)
        )
    return plan


def _coolest_move(state: PlanState, source: int, load: NDArray[np.float64], scale: float) -> Move | None:
    """The move from this node that lowers the sum of squared loads the most."""
    of_class: dict[int, int] = {}
    for row in state.rows_on(source):
        if not state.budget.why_fixed(row):
            of_class.setdefault(int(state.pods.classes[row]), row)
    rows = sorted(of_class.values(), key=lambda row: -state.size_of(int(state.pods.classes[row])))
    best: Move | None = None
    for row in rows[:_CLASSES_PER_NODE]:
        mask = state.card_mask(row)
        state.take(row)
        pod = state.examined(int(state.pods.classes[row]))
        targets = np.flatnonzero(state.targets(pod, source))
        if len(targets):
            without = float(state.load_with(np.array((source,)), None)[0])
            after = state.load_with(targets, pod.demand)
            gains = load[source] ** 2 - without**2 + load[targets] ** 2 - after**2
            at = int(gains.argmax())
            gain = float(gains[at])
            if gain > _LEAST_GAIN and (best is None or gain * scale > best.gain):
                purpose = f"lowers {state.name(source)} from {load[source]:.0%} to {without:.0%}"
                best = Move(row, source, int(targets[at]), gain * scale, purpose)
        state.put_back(row, source, mask)
    return best
