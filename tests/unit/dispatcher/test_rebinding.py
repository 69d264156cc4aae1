"""Steps of moves in the platform's own mode, and who waits for them."""

import asyncio

import pytest

from dispatcher.core import messages as m
from dispatcher.core.moves import MoveRun, PlannedMove
from dispatcher.ledger.move_steps import ReservedTargets
from dispatcher.ledger.nodes import ClusterNodes
from dispatcher.ledger.rebinding import Rebinding
from dispatcher.runtime import Runtime
from hoss.wire.uids import UID_PREFIX_BYTES


class HeldSteps:
    """Answers when it is let go: nothing is moved."""

    def __init__(self) -> None:
        self.asked, self.let_go = asyncio.Event(), asyncio.Event()

    async def rebind(self, _run, _step):
        self.asked.set()
        await self.let_go.wait()
        return [], ReservedTargets.of_evicted([], [])


@pytest.mark.parametrize("of_the_step", [True, False])
async def test_a_submission_waits_for_the_step_that_moves_pods_with_its_uids_and_for_no_other(
    bench, of_the_step
):
    bench.join("w1")
    (row,) = bench.job("job", 1)
    bench.answer("w1", m.OutcomeCode.BOUND, node=3)
    rebinding = Rebinding(Runtime(bench.machine, None, None, clock=lambda: bench.now), ClusterNodes())
    rebinding.steps = steps = HeldSteps()
    uid = bench.machine.registry.pods.uid[row].tobytes()
    move = PlannedMove(uid, "default/job-0", 3, 4)
    making = asyncio.ensure_future(rebinding.make(MoveRun([move], (1,), 0, 1.0), [move]))
    await steps.asked.wait()
    prefix = uid[:UID_PREFIX_BYTES] if of_the_step else bytes(UID_PREFIX_BYTES)
    waiting = asyncio.ensure_future(rebinding.until_moved((prefix,)))
    await asyncio.sleep(0)
    assert waiting.done() is not of_the_step
    steps.let_go.set()
    await making
    await waiting
