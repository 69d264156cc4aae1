"""Watches over nodes that keep refusing what workers believe to fit: reads them again, and takes them out of scheduling.

Nothing here stands in the way of a decision: what decisions say is taken in at once, and what follows is done beside.
"""

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hoss.errors import LedgerUnavailable
from hoss.telemetry import logger
from resolver.core.quarantine import Kept, QuarantineRules, Step, Suspicions, Taking, difference
from resolver.core.values import Decision, Proposal

_LOOK_SECONDS = 1.0
_EVENTS = 100


class NodeWatch(Protocol):
    """What watching over nodes needs of a ledger. All raise LedgerUnavailable."""

    async def schema(self) -> list[str]:
        """Resource names by index: of all amounts that it tells."""

    async def tell_again(self, shard: int, node: int) -> tuple[int, NDArray[np.int64]] | None:
        """Tell the feed of the node as if it were new: the seq, and what its account says is requested. None: it is gone."""

    async def reserved(self, shard: int, node: int) -> NDArray[np.int64]:
        """What its reservations ask for together; right only if the node does not change meanwhile. Reads all of the shard."""

    async def take(self, shard: int, node: int, taking: Taking) -> str:
        """Take it out of scheduling: "taken", or why not ("gone", "changed", "already", "limit")."""

    async def end(self, shard: int, node: int | None = None) -> list[int]:
        """Give one node back, or all whose time is over. Those that were out."""

    async def kept(self, shard: int) -> dict[int, Kept]:
        """All that are out."""


@dataclass(frozen=True, slots=True)
class NodeEvent:
    """Something found out about a node, or done about it."""

    unix_ms: int
    node: int
    text: str


class Quarantine:
    """`run` must be running beside. Every resolver counts for itself; what is out, and for how long, is the ledger's."""

    def __init__(
        self,
        watch: NodeWatch,
        shards: int,
        rules: QuarantineRules,
        clock: Callable[[], float] = time.monotonic,
        unix_clock: Callable[[], float] = time.time,
    ) -> None:
        self._watch = watch
        self._rules = rules
        self._clock = clock
        self._unix_clock = unix_clock
        self._suspicions = [Suspicions(rules) for _ in range(shards)]
        self._steps: deque[tuple[int, int, Step]] = deque()
        self._due = asyncio.Event()
        self.events: deque[NodeEvent] = deque(maxlen=_EVENTS)
        self.counters: Counter[str] = Counter()

    def heard(self, shard: int, proposal: Proposal, decision: Decision) -> None:
        """Take in a decision."""
        if len(decision.conflicts):
            steps = self._suspicions[shard].heard(proposal, decision, self._clock())
            self._steps.extend((shard, node, step) for node, step in steps)
            if steps:
                self._due.set()

    async def kept(self, shard: int) -> dict[int, Kept]:
        """The shard's nodes that are out."""
        return await self._watch.kept(shard)

    async def release(self, shard: int, node: int) -> bool:
        """Give a node back by hand. Whether it was out."""
        ended = await self._watch.end(shard, node)
        self._ended(shard, ended, "by hand")
        return bool(ended)

    async def run(self) -> None:
        """Do what decisions call for, and give back what has been out long enough, until cancelled."""
        while True:
            await self._wait()
            try:
                while self._steps:
                    await self._do(*self._steps[0])
                    self._steps.popleft()
                for shard, suspicions in enumerate(self._suspicions):
                    suspicions.forget(self._clock())
                    self._ended(shard, await self._watch.end(shard), "its time is over")
            except LedgerUnavailable:
                continue  # told by resolver.availability already

    async def _wait(self) -> None:
        try:
            await asyncio.wait_for(self._due.wait(), _LOOK_SECONDS)
        except asyncio.TimeoutError:
            return
        self._due.clear()

    async def _do(self, shard: int, node: int, step: Step) -> None:
        if step is Step.READ_AGAIN:
            await self._read_again(shard, node)
        else:
            await self._take(shard, node, "workers that know its account go on believing in room that it has not")

    async def _read_again(self, shard: int, node: int) -> None:
        told = await self._watch.tell_again(shard, node)
        if told is None:
            self._suspicions[shard].clear(node)
            return
        seq, requested = told
        self._suspicions[shard].told(node, seq)
        self._note(
            node, "node_read_again", f"refused {self._rules.refusals} proposals that fitted it as it is; told anew"
        )
        reserved = await self._watch.reserved(shard, node)
        wrong = difference(requested, reserved, await self._watch.schema())
        if wrong:
            await self._take(shard, node, f"{wrong}; `hoss audit --repair` mends that", unchanged_since=seq)

    async def _take(self, shard: int, node: int, reason: str, *, unchanged_since: int = 0) -> None:
        rules = self._rules
        taking = Taking(reason, round(rules.seconds * 1000), round(rules.most_share * 1000), unchanged_since)
        outcome = await self._watch.take(shard, node, taking)
        if outcome == "taken":
            self._suspicions[shard].clear(node)
            self._note(node, "node_quarantined", f"taken out of scheduling for {rules.seconds:g} s: {reason}")
        elif outcome == "limit":
            self._note(node, "node_not_quarantined", f"stays, as too many are out of scheduling already: {reason}")

    def _ended(self, shard: int, nodes: list[int], why: str) -> None:
        for node in nodes:
            self._suspicions[shard].clear(node)
            self._note(node, "quarantine_ended", f"back in scheduling: {why}")

    def _note(self, node: int, kind: str, text: str) -> None:
        self.counters[kind] += 1
        self.events.append(NodeEvent(round(self._unix_clock() * 1000), node, text))
        logger().warning(kind, node=node, text=text)
