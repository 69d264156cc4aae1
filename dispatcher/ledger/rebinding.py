"""Moves in the platform's own mode: a pod is bound to another node by the ledger. Each move is judged by what
the dispatcher knows, made in the ledger, and told to everybody. Between two shards that takes two steps: the
target is reserved, and then confirmed.

A pod may lose its source while the confirmation is under way: it is evicted, or its node is removed. If it
were placed anew then, a confirmation that comes late could leave it with two reservations, because the shard
of the target does not see what the pod holds on others. So the pods of a step are marked as uncertain:
whoever hears that one lost its reservation looks it up first, and its look-up waits until the step has
ended. If it is deleted, and its job is submitted again with the same UIDs, the submission waits as well."""

import asyncio
from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from dispatcher.core import messages as m
from dispatcher.core.bound.disruption_budgets import PodCounts, RemainingDisruptions
from dispatcher.core.moves import BegunRun, MoveRun, PlannedMove, RunProgress
from dispatcher.core.pods.table import Phase, Rows
from dispatcher.ledger.move_steps import RESULTS, MoveSteps, RunRecord, uids_of
from dispatcher.ledger.nodes import ClusterNodes
from dispatcher.runtime import Runtime
from hoss.v1 import resolver_pb2
from hoss.wire.columns import NONE_U32, Uids
from hoss.wire.uids import UID_BYTES, UID_PREFIX_BYTES


class Rebinding:
    """Makes moves that are due."""

    moves_back = True

    def __init__(self, runtime: Runtime, nodes: ClusterNodes) -> None:
        self._runtime = runtime
        self._nodes = nodes
        self._under_way = asyncio.Lock()  # a step
        self._moving: Rows = np.empty(0, np.uint32)  # the pods of the last step
        self._moving_uids: Uids = np.empty((0, UID_BYTES), np.uint8)
        self._looked_up: list[Rows] = []  # pods whose look-ups are under way
        self.steps, self.record = MoveSteps(runtime), RunRecord(runtime)
        runtime.set_executor(m.Verify, self._verify)

    async def _verify(self, instruction: m.Verify) -> None:
        moving = np.isin(instruction.rows, self._moving)
        await self._look_up(instruction, ~moving)
        if moving.any():
            async with self._under_way:
                await self._look_up(instruction, moving)

    async def _look_up(self, instruction: m.Verify, which: NDArray[np.bool_]) -> None:
        rows = instruction.rows[which]
        self._looked_up.append(rows)
        try:
            await self._runtime.verify(m.Verify(rows, instruction.uids[which]))
        finally:
            self._looked_up = [others for others in self._looked_up if others is not rows]

    async def until_moved(self, prefixes: Collection[bytes]) -> None:
        if any(uid[:UID_PREFIX_BYTES].tobytes() in prefixes for uid in self._moving_uids):
            async with self._under_way:
                pass

    async def take_over(self, _begun: BegunRun, _progress: RunProgress) -> None:
        """Where a pod is bound says whether its move was made, and that is known later."""

    def unmovable(self, _row: int) -> str:
        """What must stay, a plan knows: any pod can be bound to another node."""
        return ""

    async def end(self, run: MoveRun) -> None:
        """A step of the former term has ended with it."""

    async def make(self, run: MoveRun, step: Sequence[PlannedMove]) -> None:
        """Make these moves."""
        async with self._under_way:
            await self._make(run, step)

    async def _make(self, run: MoveRun, step: Sequence[PlannedMove]) -> None:
        judged = self._judged(run, step)
        if not judged:
            return
        registry = self._runtime.machine.registry
        self._moving_uids = uids_of(judged)
        self._moving = registry.directory.rows_of_uids(self._moving_uids)
        registry.pods.uncertain[self._moving] = True
        moved, reserved = await self.steps.rebind(run, judged)
        results = await self.steps.confirm(reserved) if reserved.moves else []
        uids = uids_of((*moved, *reserved.moves))
        if not len(uids):
            return
        found = await self._runtime.until_answered(lambda: self._runtime.ledger.lookup(uids))
        await self._told(uids, found.nodes)
        for move in moved:
            run.moved(move)
        for move, result in zip(reserved.moves, results, strict=True):
            if result == resolver_pb2.MOVED:
                run.moved(move)
            else:
                run.refused(move, RESULTS.get(result, "unknown"))

    def _judged(self, run: MoveRun, step: Sequence[PlannedMove]) -> list[PlannedMove]:
        """The moves that may be made, by the pods and the disruption budgets as they are. The others are
        refused, but for pods that are looked up at the moment: these wait."""
        machine = self._runtime.machine
        registry = machine.registry
        leaving = machine.taint_eviction.leaving()
        left = RemainingDisruptions(lambda: PodCounts(registry, leaving), lambda: machine.objects.budgets)
        looked_up = {row for rows in self._looked_up for row in rows.tolist()}
        may = []
        for move, row in zip(step, registry.directory.rows_of_uids(uids_of(step)).tolist(), strict=True):
            if row in looked_up:
                continue
            if why := not_at_source(self._runtime, self._nodes, move):
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


def not_at_source(runtime: Runtime, nodes: ClusterNodes, move: PlannedMove) -> str:
    """Why the pod is not where the plan has it; empty: it is."""
    machine = runtime.machine
    pods = machine.registry.pods
    row = int(machine.registry.directory.rows_of_uids(uids_of([move]))[0])
    if row == NONE_U32 or pods.phase[row] != Phase.BOUND or row in machine.taint_eviction.leaving():
        return "the pod is not bound any more, or is leaving"
    if pods.node[row] != move.source:
        return f"the pod is on {nodes.name(int(pods.node[row]))} by now"
    return ""
