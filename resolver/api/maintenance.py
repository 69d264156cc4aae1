"""Background jobs on the ledger: the availability check, the expiry of leases, the expiry of rules about
pods, and removals of nodes that were broken off.

Every resolver runs them. The ledger's clock and its seqs decide, so any number of resolvers may."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable

from hoss.errors import LedgerUnavailable
from hoss.host import THIS_HOST
from hoss.telemetry import logger
from resolver.ledger.port import Ledger, LedgerLostError

_CHECK_SECONDS = 1.0
_RETRY_SECONDS = 0.25  # while it is away
_COUNT_SECONDS = 10.0
_MOST_NAMED = 10  # commits that a line of the log lists


class Availability:
    """Checks every second whether the ledger can be used. `problem` says why not; empty: it can. Run `run` in
    the background.

    If the ledger is lost, `recover` adopts another whole ledger, or marks the ledger as broken for all
    resolvers and raises LedgerLostError. Then `recovering` is set until a dispatcher has rebuilt the
    ledger."""

    def __init__(
        self,
        ledger: Ledger,
        on_change: Callable[[bool], Awaitable[None]],
        recover: Callable[[], Awaitable[None]],
        *,
        rebuild_wait_seconds: float = 30.0,
        advised_reservations_per_shard: int = 125_000,
        clock: Callable[[], float] = THIS_HOST.monotonic,
    ) -> None:
        self._ledger = ledger
        self._on_change = on_change
        self._clock = clock
        self._recover = recover
        self._rebuild_wait_seconds = rebuild_wait_seconds
        self._advised_reservations = advised_reservations_per_shard
        self.advice = ""  # on the ledger; empty: none
        self._lost_at: float | None = None
        self._rebuild_waits_for = ""  # as a dispatcher has said
        self._told_at = float("-inf")
        self.problem = ""
        self.facts: dict[str, str] = {}
        self.tables: dict[str, int] = {}  # entries of the ledger by key, at most ten seconds ago
        self._counted_at = float("-inf")

    @property
    def recovering(self) -> bool:
        """Whether the ledger waits to be rebuilt."""
        return self._lost_at is not None

    def announce_rebuild(self, waits_for: str) -> None:
        """A dispatcher will rebuild the ledger and says what it waits for. It does so again and again."""
        self._rebuild_waits_for, self._told_at = waits_for, self._clock()

    async def run(self) -> None:
        """Check until cancelled. Calls `on_change` whenever the ledger goes or comes back."""
        serving = True
        while True:
            self.problem = await self._check()
            if serving != (not self.problem):
                serving = not self.problem
                logger().warning("ledger_back" if serving else "ledger_away", problem=self.problem)
                await self._on_change(serving)
            await asyncio.sleep(_CHECK_SECONDS if serving else _RETRY_SECONDS)

    async def _check(self) -> str:
        try:
            self.facts = await self._ledger.check()
        except LedgerLostError as lost:
            return await self._try_recovery(lost)
        except LedgerUnavailable as exc:
            return str(exc)
        self._lost_at = None
        if self._clock() - self._counted_at >= _COUNT_SECONDS:
            self._counted_at = self._clock()
            with contextlib.suppress(LedgerUnavailable, LedgerLostError):  # the next check says so
                await self._count()
        if self.advice:
            self.facts["advice"] = self.advice
        return ""

    async def _count(self) -> None:
        damaged = self.tables.get("damaged", 0)
        self.tables = await self._ledger.table_sizes()
        if self.tables.get("damaged", 0) > damaged:
            logger().warning("reservations_damaged", set_aside=self.tables["damaged"], see="hoss audit")
        fullest, advised = self.tables.get("fullest_shard", 0), self._advised_reservations
        before, self.advice = self.advice, ""
        if fullest > advised:
            self.advice = (
                f"a shard has {fullest} reservations (advised_reservations_per_shard: {advised}): nothing is"
                " refused, but to read it holds up Redis; use more shards"
            )
            if not before:
                logger().warning(
                    "shard_crowded", reservations=fullest, advised_reservations_per_shard=advised
                )

    async def _try_recovery(self, lost: LedgerLostError) -> str:
        problem = str(lost)
        try:
            await self._recover()
        except LedgerLostError as exc:
            problem = str(exc)
        except LedgerUnavailable as exc:
            return str(exc)
        else:
            self._lost_at = None
            return ""
        now = self._clock()
        if self._lost_at is None:
            self._lost_at = now
        waited = now - max(self._lost_at, self._told_at)
        if self._told_at >= self._lost_at and waited <= self._rebuild_wait_seconds:
            problem += f"; a dispatcher rebuilds it, and waits for {self._rebuild_waits_for}"
        elif waited > self._rebuild_wait_seconds:
            missed = (
                f"no dispatcher has told of itself for {waited:.0f} s"
                if self._told_at >= self._lost_at
                else f"no dispatcher has rebuilt it for {waited:.0f} s"
            )
            problem += f"; {missed}: start one, or `hoss ledger bootstrap` goes on with what Redis has kept"
        return problem


async def reap_periodically(ledger: Ledger, counters: Counter[str], *, period_seconds: float) -> None:
    """Release expired leases, and what moved pods left on other shards, every `period_seconds`, until
    cancelled."""
    while True:
        await asyncio.sleep(period_seconds)
        for shard in range(ledger.shards):
            try:
                reaped = await ledger.reap(shard)
                if ledger.unfinished_moves[shard]:
                    counters["moves_finished"] += await ledger.finish_moves(shard)
            except LedgerUnavailable:
                continue  # Availability reports it; other shards may be there
            if reaped:
                counters["reaped"] += reaped
                logger().warning("leases_ended", shard=shard, pods=reaped)
            damaged, ledger.damaged_commits[shard] = ledger.damaged_commits[shard], []
            if damaged:
                counters["damaged_commits"] += len(damaged)
                logger().warning(
                    "commits_damaged", shard=shard, commits=damaged[:_MOST_NAMED], see="hoss audit"
                )


async def forget_periodically(ledger: Ledger, counters: Counter[str], *, period_seconds: float) -> None:
    """Every `period_seconds`, until cancelled, forget what matters only to proposals older than one
    period."""
    low_watermarks: list[int] | None = None
    while True:
        try:
            now = [await ledger.seq(shard) for shard in range(ledger.shards)]
            if low_watermarks is not None:
                # No watermark above the present: the ledger may have come back without its last second.
                forgotten = await ledger.forget_rules(
                    [min(pair) for pair in zip(low_watermarks, now, strict=True)]
                )
                counters["rules_forgotten"] += forgotten
            low_watermarks = now
        except LedgerUnavailable:
            pass  # Availability reports it
        await asyncio.sleep(period_seconds)


async def finish_removals(ledger: Ledger, counters: Counter[str], *, period_seconds: float) -> None:
    """Until cancelled, finish removals of nodes whose resolver has died or was cut off. A removal that was
    not finished `period_seconds` ago either counts as broken off."""
    before: list[set[int]] = [set() for _ in range(ledger.shards)]
    while True:
        for shard in range(ledger.shards):
            with contextlib.suppress(LedgerUnavailable):  # Availability reports it; other shards may be there
                unfinished = await ledger.removals(shard)
                broken_off, before[shard] = unfinished & before[shard], unfinished
                if broken_off:
                    forgotten = await ledger.forget_removed(shard, broken_off)
                    counters["nodes_forgotten"] += forgotten
                    logger().warning("removals_finished", shard=shard, nodes=forgotten)
        await asyncio.sleep(period_seconds)
