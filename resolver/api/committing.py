"""Proposals on their way to one shard: in batches, and with preemption where a policy allows it.

Redis runs one script at a time, so proposals that arrive meanwhile wait here and share the next round trip:
the ones with the highest priority first, then in order of arrival. Two round trips are under way at once, so
that Redis has the next scripts at hand when it finishes the last.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count

from hoss.errors import LedgerUnavailable
from hoss.host import THIS_HOST
from hoss.statistics import Histogram
from resolver.core.preemption import choose_victims, merge_decisions, refused_for_room
from resolver.core.values import Decision, Proposal, Verdict
from resolver.ledger.port import Ledger

_CONCURRENT_TRIPS = 2

# Pods per round trip. 100 pods take Redis a quarter of a millisecond, and others want to be served as well.
_TRIP_PODS = 4000


@dataclass(slots=True, order=True)
class _Waiting:
    unimportance: int  # the highest priority of its pods, negated
    arrival: int
    proposal: Proposal = field(compare=False)
    answer: "asyncio.Future[Decision]" = field(compare=False)


@dataclass(slots=True)
class Committer:
    """Decides proposals of one shard. Run `run` in the background."""

    ledger: Ledger
    shard: int
    on_decision: Callable[[int, Proposal, Decision], None] = lambda _shard, _proposal, _decision: None
    clock: Callable[[], float] = THIS_HOST.monotonic
    counters: Counter[str] = field(default_factory=Counter)  # since start: proposals, pods, verdicts by name
    round_trips: Histogram = field(default_factory=Histogram)  # that decided proposals
    _waiting: "asyncio.PriorityQueue[_Waiting]" = field(default_factory=asyncio.PriorityQueue)
    _arrivals: "count[int]" = field(default_factory=count)

    @property
    def waiting(self) -> int:
        """Proposals that wait for a round trip."""
        return self._waiting.qsize()

    async def decide(self, proposal: Proposal) -> Decision:
        """Raises LedgerUnavailable if the outcome is unknown; then the same proposal may be sent again."""
        unimportance = -max(proposal.priorities.tolist())  # few: one of each slot
        entry = _Waiting(
            unimportance, next(self._arrivals), proposal, asyncio.get_running_loop().create_future()
        )
        self._waiting.put_nowait(entry)
        return await entry.answer

    async def run(self) -> None:
        """Serve until cancelled."""
        await asyncio.gather(*(self._serve() for _ in range(_CONCURRENT_TRIPS)))

    async def _serve(self) -> None:
        while True:
            trip = [await self._waiting.get()]
            pods = len(trip[0].proposal)
            while pods < _TRIP_PODS and not self._waiting.empty():
                trip.append(self._waiting.get_nowait())
                pods += len(trip[-1].proposal)
            await self._commit(trip)

    async def _commit(self, trip: Sequence[_Waiting]) -> None:
        began = self.clock()
        try:
            decisions = await self.ledger.commit(self.shard, [entry.proposal for entry in trip])
        except LedgerUnavailable as exc:
            for entry in trip:
                if not entry.answer.done():
                    entry.answer.set_exception(exc)
            return
        self.round_trips.add_equal(self.clock() - began)
        for entry, decision in zip(trip, decisions, strict=True):
            self._count(entry.proposal, decision)
            self.on_decision(self.shard, entry.proposal, decision)
            if not entry.answer.done():  # the stream may have ended meanwhile
                entry.answer.set_result(decision)

    def _count(self, proposal: Proposal, decision: Decision) -> None:
        self.counters["proposals"] += 1
        self.counters["pods"] += len(proposal)
        verdicts = decision.verdicts.tobytes()
        self.counters["committed"] += verdicts.count(Verdict.COMMITTED)
        if len(decision.conflicts) or len(decision.duplicate_seqs) or not decision.seq:
            for verdict in Verdict:
                if verdict is not Verdict.COMMITTED:
                    self.counters[verdict.name.lower()] += verdicts.count(verdict)


async def decide_with_preemption(
    ledger: Ledger, committer: Committer, proposal: Proposal
) -> tuple[Decision, int]:
    """The decision, and the number of preempted pods. Raises LedgerUnavailable; then the same call may be
    repeated.

    A second commit, of the pods that the first refused for room, names the victims. The script checks again
    that these are unconfirmed. So no pod is evicted in vain, and no confirmed pod is evicted at all."""
    decision = await committer.decide(proposal)
    refused = refused_for_room(proposal, decision)
    if not len(refused) or decision.queries or decision.prepared:
        return decision, 0
    assumed = await ledger.assumed(committer.shard, proposal.nodes[refused, 0])
    found = choose_victims(proposal, decision, refused, assumed)
    if found is None:
        return decision, 0
    positions, second_proposal = found
    second = await committer.decide(second_proposal)
    if second.queries or second.prepared:  # nobody was evicted, and the prepared pods expire
        return decision, 0
    won = [place for place, verdict in enumerate(second.verdicts.tolist()) if verdict == Verdict.COMMITTED]
    displaced = sum(len(second_proposal.victims[place]) for place in won)
    return merge_decisions(decision, positions, second), displaced
