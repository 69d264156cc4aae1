"""Proposals on their way to a shard.

Redis runs one script at a time, so proposals that arrive meanwhile wait here and go together, in one round trip: those with the
most urgent pods first, of equal ones the first that came. Two round trips are under way at once, so that Redis has the next
scripts at hand when it is done with the last.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count

from hoss.errors import LedgerUnavailable
from hoss.model.histograms import Histogram
from resolver.core.values import Decision, Proposal, Verdict
from resolver.ledger.port import Ledger

_LANES = 2

# Pods in one round trip: a quarter of a millisecond of Redis' time for each 100, and others want to be served as well.
_TRIP_PODS = 4000


@dataclass(slots=True, order=True)
class _Waiting:
    unimportance: int  # the highest priority of its pods, negated
    arrival: int
    proposal: Proposal = field(compare=False)
    answer: "asyncio.Future[Decision]" = field(compare=False)


@dataclass(slots=True)
class Committer:
    """Decides proposals of one shard. `run` must be running beside."""

    ledger: Ledger
    shard: int
    on_decision: Callable[[int, Proposal, Decision], None] = lambda _shard, _proposal, _decision: None
    counters: Counter[str] = field(default_factory=Counter)  # since start: proposals, pods, and verdicts by name
    round_trips: Histogram = field(default_factory=Histogram)  # that decided proposals
    _waiting: "asyncio.PriorityQueue[_Waiting]" = field(default_factory=asyncio.PriorityQueue)
    _arrivals: "count[int]" = field(default_factory=count)

    @property
    def waiting(self) -> int:
        """Proposals that wait for their round trip."""
        return self._waiting.qsize()

    async def decide(self, proposal: Proposal) -> Decision:
        """Raises LedgerUnavailable when it is not known to be decided; then the same proposal may be sent again."""
        unimportance = -int(proposal.priorities.max())
        entry = _Waiting(unimportance, next(self._arrivals), proposal, asyncio.get_running_loop().create_future())
        self._waiting.put_nowait(entry)
        return await entry.answer

    async def run(self) -> None:
        """Serve until cancelled."""
        await asyncio.gather(*(self._serve_lane() for _ in range(_LANES)))

    async def _serve_lane(self) -> None:
        while True:
            trip = [await self._waiting.get()]
            pods = len(trip[0].proposal)
            while pods < _TRIP_PODS and not self._waiting.empty():
                trip.append(self._waiting.get_nowait())
                pods += len(trip[-1].proposal)
            await self._commit(trip)

    async def _commit(self, trip: Sequence[_Waiting]) -> None:
        began = time.monotonic()
        try:
            decisions = await self.ledger.commit(self.shard, [entry.proposal for entry in trip])
        except LedgerUnavailable as exc:
            for entry in trip:
                if not entry.answer.done():
                    entry.answer.set_exception(exc)
            return
        self.round_trips.add_equal(time.monotonic() - began)
        for entry, decision in zip(trip, decisions, strict=True):
            self._count(entry.proposal, decision)
            self.on_decision(self.shard, entry.proposal, decision)
            if not entry.answer.done():  # its stream may have ended meanwhile
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
