"""The quarantine of nodes that keep refusing what workers believe to fit.

Decisions never wait for it: they are only counted, and the background job `run` publishes nodes again,
compares them with their reservations, and quarantines them."""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hoss.errors import LedgerUnavailable
from hoss.host import THIS_HOST
from hoss.telemetry import logger
from hoss.v1 import common_pb2
from hoss.v1 import resolver_pb2 as pb
from resolver.core.quarantine import (
    QuarantineRecord,
    QuarantineRequest,
    QuarantineRules,
    QuarantineStep,
    Suspicions,
    difference,
)
from resolver.core.values import Decision, Proposal
from resolver.ledger.port import Ledger

_CHECK_SECONDS = 1.0
_EVENTS = 100


class QuarantineStore(Protocol):
    """What the quarantine needs of a ledger. Every method raises LedgerUnavailable."""

    async def schema(self) -> list[str]:
        """Resource names by index, for all amounts."""

    async def republish(self, shard: int, node: int) -> tuple[int, NDArray[np.int64]] | None:
        """Publish the node again in the feed. Returns the seq, and the requested amounts of its account;
        None: it is removed."""

    async def reserved(self, shard: int, node: int) -> NDArray[np.int64]:
        """The sum of the node's reservations, correct only if the node does not change meanwhile. Reads the
        whole shard."""

    async def take(self, shard: int, node: int, taking: QuarantineRequest) -> str:
        """Quarantine the node: "taken", or why not ("gone", "changed", "already", "limit")."""

    async def end(self, shard: int, node: int | None = None) -> list[int]:
        """End the quarantine of one node, or of all whose time is over. Returns the nodes."""

    async def quarantined(self, shard: int) -> dict[int, QuarantineRecord]:
        """All nodes in quarantine."""


@dataclass(frozen=True, slots=True)
class NodeEvent:
    """A finding about a node, or an action on it."""

    unix_ms: int
    node: int
    text: str


class Quarantine:
    """Run `run` in the background. Every resolver counts refusals for itself; the ledger holds the
    quarantined nodes."""

    def __init__(
        self,
        store: QuarantineStore,
        shards: int,
        rules: QuarantineRules,
        *,
        clock: Callable[[], float] = THIS_HOST.monotonic,
        unix_clock: Callable[[], float] = THIS_HOST.unix,
    ) -> None:
        self._store = store
        self._rules = rules
        self._clock = clock
        self._unix_clock = unix_clock
        self._suspicions = [Suspicions(rules) for _ in range(shards)]
        self._steps: deque[tuple[int, int, QuarantineStep]] = deque()
        self._due = asyncio.Event()
        self.events: deque[NodeEvent] = deque(maxlen=_EVENTS)
        self.counters: Counter[str] = Counter()

    def observe(self, shard: int, proposal: Proposal, decision: Decision) -> None:
        """Count the refusals of a decision."""
        if len(decision.conflicts):
            steps = self._suspicions[shard].observe(proposal, decision, self._clock())
            self._steps.extend((shard, node, step) for node, step in steps)
            if steps:
                self._due.set()

    async def quarantined(self, shard: int) -> dict[int, QuarantineRecord]:
        """The shard's nodes in quarantine."""
        return await self._store.quarantined(shard)

    async def release(self, shard: int, node: int) -> bool:
        """End a node's quarantine by hand. Returns whether it was in quarantine."""
        ended = await self._store.end(shard, node)
        self._ended(shard, ended, "by hand")
        return bool(ended)

    async def run(self) -> None:
        """Do the steps that are due, and end quarantines whose time is over, until cancelled."""
        while True:
            await self._wait()
            try:
                while self._steps:
                    await self._do(*self._steps[0])
                    self._steps.popleft()
                for shard, suspicions in enumerate(self._suspicions):
                    suspicions.forget(self._clock())
                    self._ended(shard, await self._store.end(shard), "its time is over")
            except LedgerUnavailable:
                continue  # Availability reports it

    async def _wait(self) -> None:
        try:
            await asyncio.wait_for(self._due.wait(), _CHECK_SECONDS)
        except asyncio.TimeoutError:
            return
        self._due.clear()

    async def _do(self, shard: int, node: int, step: QuarantineStep) -> None:
        if step is QuarantineStep.REPUBLISH:
            await self._republish(shard, node)
        else:
            await self._take(
                shard, node, "workers that know its account go on believing in room that it has not"
            )

    async def _republish(self, shard: int, node: int) -> None:
        published = await self._store.republish(shard, node)
        if published is None:
            self._suspicions[shard].clear(node)
            return
        seq, requested = published
        self._suspicions[shard].republished(node, seq)
        self._note(
            node,
            "node_read_again",
            f"refused {self._rules.refusals} proposals that its account has room for; published again",
        )
        reserved = await self._store.reserved(shard, node)
        wrong = difference(requested, reserved, await self._store.schema())
        if wrong:
            await self._take(shard, node, f"{wrong}; `hoss audit --repair` repairs that", unchanged_since=seq)

    async def _take(self, shard: int, node: int, reason: str, *, unchanged_since: int = 0) -> None:
        rules = self._rules
        taking = QuarantineRequest(
            reason, round(rules.seconds * 1000), round(rules.most_share * 1000), unchanged_since
        )
        outcome = await self._store.take(shard, node, taking)
        if outcome == "taken":
            self._suspicions[shard].clear(node)
            self._note(node, "node_quarantined", f"taken out of scheduling for {rules.seconds:g} s: {reason}")
        elif outcome == "limit":
            self._note(
                node, "node_not_quarantined", f"stays, as too many are out of scheduling already: {reason}"
            )

    def _ended(self, shard: int, nodes: list[int], why: str) -> None:
        for node in nodes:
            self._suspicions[shard].clear(node)
            self._note(node, "quarantine_ended", f"back in scheduling: {why}")

    def _note(self, node: int, kind: str, text: str) -> None:
        self.counters[kind] += 1
        self.events.append(NodeEvent(round(self._unix_clock() * 1000), node, text))
        logger().warning(kind, node=node, text=text)


async def add_quarantine(quarantine: Quarantine, shards: int, nodes: Iterable[pb.NodeInfo]) -> None:
    """Add the quarantine of each node that is in one."""
    quarantined = {
        node: found
        for shard in range(shards)
        for node, found in (await quarantine.quarantined(shard)).items()
    }
    for node in nodes if quarantined else ():
        found = quarantined.get(node.index)
        if found is not None:
            status = pb.Quarantine(
                reason=found.reason, since_unix_ms=found.since_ms, until_unix_ms=found.until_ms
            )
            node.quarantine.CopyFrom(status)


async def add_quarantine_status(
    quarantine: Quarantine,
    ledger: Ledger,
    quarantined: Mapping[int, QuarantineRecord],
    status: pb.ResolverStatus,
) -> None:
    """Add the latest events, and a sentence for each node in quarantine. Looks names up only if there are
    any."""
    shards = {node % ledger.shards for node in (*(event.node for event in quarantine.events), *quarantined)}
    names: dict[int, str] = {}
    for shard in shards:
        specs = (await ledger.snapshot(shard)).specs
        names.update((index, common_pb2.NodeSpec.FromString(spec).name) for index, spec in specs.items())
    for event in quarantine.events:
        status.events.add(unix_ms=event.unix_ms, node=names.get(event.node, str(event.node)), text=event.text)
    for node, found in quarantined.items():
        until = datetime.fromtimestamp(found.until_ms / 1000, timezone.utc).strftime("%H:%M:%S UTC")
        name = names.get(node, str(node))
        status.quarantined.append(
            f"node {name} gets nothing until {until} (`hoss uncordon node {name}` ends that): {found.reason}"
        )
