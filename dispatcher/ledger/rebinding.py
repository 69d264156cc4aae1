"""Moves in the platform's own mode: a pod is bound to another node in one step of the ledger. Each move is
judged by what the dispatcher knows, reserved and confirmed in the ledger, and told to everybody."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dispatcher.core import messages as m
from dispatcher.core.bound.disruption_budgets import PodCounts, RemainingDisruptions
from dispatcher.core.moves import MoveRun, PlannedMove
from dispatcher.core.pods.table import Phase
from dispatcher.ledger.move_steps import RESULTS, MoveSteps, uids_of
from dispatcher.ledger.nodes import ClusterNodes
from dispatcher.runtime import Runtime
from hoss.v1 import resolver_pb2
from hoss.wire.columns import NONE_U32, Uids


class Rebinding:
    """Makes moves that are due."""

    moves_back = True

    def __init__(self, runtime: Runtime, nodes: ClusterNodes) -> None:
        self._runtime = runtime
        self._nodes = nodes
        self.steps = MoveSteps(runtime)

    async def make(self, run: MoveRun, step: Sequence[PlannedMove]) -> None:
        """Reserve and confirm these moves. Raises what the ledger raises while nothing is reserved."""
        judged = self._judged(run, step)
        if not judged:
            return
        reserved = await self.steps.reserve(run, judged)
        if not reserved.moves:
            return
        results = await self.steps.confirm(reserved)
        found = await self._runtime.until_answered(lambda: self._runtime.ledger.lookup(reserved.uids))
        await self._told(reserved.uids, found.nodes)
        for move, result in zip(reserved.moves, results, strict=True):
            if result == resolver_pb2.MOVED:
                run.moved(move)
            else:
                run.refused(move, RESULTS.get(result, "unknown"))

    def _judged(self, run: MoveRun, step: Sequence[PlannedMove]) -> list[PlannedMove]:
        """The moves that may be made, by the pods and the disruption budgets as they are. The others are
        refused."""
        machine = self._runtime.machine
        registry = machine.registry
        leaving = machine.taint_eviction.leaving()
        left = RemainingDisruptions(lambda: PodCounts(registry, leaving), lambda: machine.objects.budgets)
        may = []
        for move, row in zip(step, registry.directory.rows_of_uids(uids_of(step)).tolist(), strict=True):
            if why := misplaced(self._runtime, self._nodes, move):
                run.refused(move, why)
                continue
            template = int(registry.pods.template[row])
            spec = registry.templates.pod_spec(int(registry.templates.class_id[template]))
            granted, budget = left.take(spec, 1)
            if granted:
                may.append(move)
            else:
                run.refused(move, f"the disruption budget {budget} allows none of its pods to be disrupted")
        return may

    async def _told(self, uids: Uids, nodes: NDArray[np.uint32]) -> None:
        """Tell the machine where these pods are. What was moved of a pod that was deleted or evicted
        meanwhile is released."""
        registry = self._runtime.machine.registry
        rows = registry.directory.rows_of_uids(uids)
        known = (rows != NONE_U32) & (nodes != NONE_U32)
        self._runtime.handle(m.Moved(rows[known], uids[known], nodes[known]))
        gone = nodes != NONE_U32
        gone[known] = registry.pods.phase[rows[known]] != Phase.BOUND
        if gone.any():
            as_of = self._runtime.ledger.known()
            await self._runtime.until_answered(
                lambda: self._runtime.ledger.release(uids[gone], nodes[gone], as_of)
            )


def misplaced(runtime: Runtime, nodes: ClusterNodes, move: PlannedMove) -> str:
    """Why the pod is not where the plan has it; empty: it is."""
    machine = runtime.machine
    pods = machine.registry.pods
    row = int(machine.registry.directory.rows_of_uids(uids_of([move]))[0])
    if row == NONE_U32 or pods.phase[row] != Phase.BOUND or row in machine.taint_eviction.leaving():
        return "the pod is not bound any more, or is leaving"
    if pods.node[row] != move.source:
        return f"the pod is on {nodes.name(int(pods.node[row]))} by now"
    return ""
