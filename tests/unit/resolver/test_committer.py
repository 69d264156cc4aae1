"""Proposals that wait for a shard go together; what goes wrong reaches whoever asked and nobody else."""

import asyncio

import pytest
from waiting import until

from hoss.errors import LedgerUnavailable
from resolver.api.committing import Committer
from resolver.api.maintenance import Availability
from resolver.api.proposing import ProposeStream
from resolver.ledger.memory import MemoryLedger


class SlowLedger(MemoryLedger):
    """Answers when told to, and remembers what came together."""

    def __init__(self):
        super().__init__(1, lambda: 0)
        self.trips = []
        self.go = asyncio.Event()
        self.failure = None

    async def commit(self, shard, proposals):
        self.trips.append(len(proposals))
        await self.go.wait()
        if self.failure:
            raise self.failure
        return await super().commit(shard, proposals)


@pytest.fixture
async def slow():
    ledger = SlowLedger()
    committer = Committer(ledger, 0)
    running = asyncio.ensure_future(committer.run())
    yield ledger, committer
    running.cancel()


async def test_what_arrives_while_scripts_run_goes_in_one_round_trip(slow, make_proposal):
    ledger, committer = slow
    answers = []
    for pod in range(6):
        answers.append(asyncio.ensure_future(committer.decide(make_proposal([pod], [[0]]))))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert ledger.trips == [1, 1]  # two under way, four waiting
    ledger.go.set()
    await asyncio.gather(*answers)
    assert sum(ledger.trips) == 6
    assert max(ledger.trips) >= 3
    assert committer.counters["proposals"] == 6


async def test_a_ledger_that_fails_fails_the_waiting_and_serves_the_next(slow, make_proposal):
    ledger, committer = slow
    ledger.go.set()
    ledger.failure = LedgerUnavailable("away")
    with pytest.raises(LedgerUnavailable, match="away"):
        await committer.decide(make_proposal([1], [[0]]))
    ledger.failure = None
    assert len((await committer.decide(make_proposal([1], [[0]]))).verdicts) == 1


async def test_an_asker_that_left_does_not_hold_up_the_others(slow, make_proposal):
    ledger, committer = slow
    left = asyncio.ensure_future(committer.decide(make_proposal([1], [[0]])))
    stays = asyncio.ensure_future(committer.decide(make_proposal([2], [[0]])))
    await until(lambda: sum(ledger.trips) == 2, "both to be under way")
    left.cancel()
    ledger.go.set()
    assert len((await stays).verdicts) == 1


async def test_of_what_waits_the_most_urgent_goes_first_and_of_equals_the_first_that_came(
    slow, make_proposal
):
    ledger, committer = slow
    served = []
    commit = ledger.commit

    async def noting(shard, proposals):
        served.extend(int(proposal.uids[0, -1]) for proposal in proposals)
        return await commit(shard, proposals)

    ledger.commit = noting
    answers = []
    for pod, priority in enumerate([0, 0, 5, -1, 10, 5]):
        answers.append(
            asyncio.ensure_future(committer.decide(make_proposal([pod], [[0]], priorities=[priority])))
        )
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    ledger.go.set()
    await asyncio.gather(*answers)
    assert served == [0, 1, 4, 2, 5, 3]  # the first two were under way when the others came


async def test_no_more_proposals_are_prepared_at_once_than_are_finished_at_once(make_proposal):
    """What is prepared and waits for its second phase is in others' way, and may expire."""
    ledger, go, prepared = MemoryLedger(2, lambda: 0), asyncio.Event(), []

    class Waiting:
        """A committer that answers when told to."""

        async def decide(self, proposal):
            prepared.append(proposal)
            await go.wait()
            return (await ledger.commit(0, [proposal]))[0]

    async def ignore(*_):
        pass

    stream = ProposeStream(
        ledger, [Waiting()] * 2, Availability(ledger, ignore, ignore), allow_unchecked=False
    )
    asked = [make_proposal([pod], [[0]], groups=["web"]) for pod in range(20)]
    answers = [asyncio.ensure_future(stream.decide(0, proposal)) for proposal in asked]
    alone = asyncio.ensure_future(stream.decide(0, make_proposal([99], [[0]])))
    await until(lambda: len(prepared) == 17, "those that may begin to have begun")
    for _ in range(10):
        await asyncio.sleep(0)
    assert len(prepared) == 17, "sixteen, and the pod that no rule can look at"
    go.set()
    await asyncio.gather(*answers, alone)
    assert len(prepared) == 21
