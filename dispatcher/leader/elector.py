"""Leader election: a dispatcher stands by until it gets the lease, serves for a term, and stands by again."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager

from dispatcher.leader.leadership import Leadership, LeaderTerm, LeaseValidity
from dispatcher.leader.lease import Granted, Lease
from dispatcher.runtime import TermFailed
from hoss.errors import LedgerUnavailable
from hoss.host import THIS_HOST
from hoss.tasks import end_tasks
from hoss.telemetry import logger

_ATTEMPTS_PER_LEASE = 12  # of a standby; the interval delays a takeover
_RENEWALS_PER_LEASE = 4
_LEASES_OF_THE_DEAD = 1.25


class LeaderElector:
    """`run` must be running."""

    def __init__(
        self,
        lease: Lease,
        address: str,
        *,
        serve: Callable[[Leadership], AbstractAsyncContextManager[None]],
        on_standby: Callable[[str, str], Awaitable[None]],
        on_lease_uncertain: Callable[[bool], Awaitable[None]],
        newest_term: Callable[[], Awaitable[int]],
        clock: Callable[[], float] = THIS_HOST.monotonic,
        rng: random.Random = THIS_HOST.rng,
    ) -> None:
        """`serve` is entered for every term. `on_standby` gets a reason and the leader's address, "" if it is
        not known; `on_lease_uncertain` gets True when the lease of the present term becomes uncertain, and
        False when it is valid again. `newest_term` tells the highest term that the ledger has seen, by
        another way than the lease, and 0 where that is not known."""
        self._lease = lease
        self._address = address
        self._serve = serve
        self._on_standby = on_standby
        self._on_lease_uncertain = on_lease_uncertain
        self._newest_term = newest_term
        self._clock = clock
        self._rng = rng
        self.failed_terms = 0
        self.role_known = asyncio.Event()  # this dispatcher serves, or another one has been seen to

    async def run(self) -> None:
        """Take the lease whenever nobody holds it, until cancelled. Raises what serving a term raises, but
        TermFailed: then another dispatcher, or this one, begins the next term."""
        waiting_since = self._clock()
        while True:
            requested_at = self._clock()
            try:
                answer = await self._lease.acquire(self._address)
            except LedgerUnavailable as exc:
                await self._on_standby(f"this dispatcher does not know who is active: {exc}", "")
            else:
                if isinstance(answer, Granted):
                    validity = LeaseValidity(self._lease.seconds, requested_at)
                    await self._lead_once(LeaderTerm(answer.term, self._address, validity, self._clock))
                    waiting_since = self._clock()
                    continue
                await self._on_standby("this dispatcher stands by", answer.address)
                # Before that, the lease may be that of a dead dispatcher. It may have been prolonged when
                # this one asked first, if Redis was restarted.
                if self._clock() - waiting_since > _LEASES_OF_THE_DEAD * self._lease.seconds:
                    self.role_known.set()
            # Jitter, so that several standbys do not always ask together.
            jitter = self._rng.uniform(0.8, 1.2)
            await asyncio.sleep(self._lease.seconds / _ATTEMPTS_PER_LEASE * jitter)

    async def _lead_once(self, term: LeaderTerm) -> None:
        try:
            await self._lead(term)
        except TermFailed as exc:
            self.failed_terms += 1
            logger().error("term_failed", term=term.term, error=str(exc))
            await self._on_standby(f"this dispatcher's term has failed and the next one begins: {exc}", "")
            await asyncio.sleep(self._lease.seconds)  # another dispatcher may do better

    async def _lead(self, term: LeaderTerm) -> None:
        """Serve until another dispatcher has a newer term. When cancelled, release the lease."""
        logger().info("term_begins", term=term.term)
        renewing = asyncio.ensure_future(self._renew(term))
        serving = asyncio.ensure_future(self._serve_until_cancelled(term))
        superseded = False
        try:
            await asyncio.wait({renewing, serving}, return_when=asyncio.FIRST_COMPLETED)
            superseded = renewing.done() and not renewing.cancelled() and renewing.exception() is None
        finally:
            try:
                await end_tasks((renewing, serving))
            finally:
                if not superseded:
                    await self._release(term)
        for task in (renewing, serving):
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error
        logger().warning("term_over", term=term.term)

    async def _serve_until_cancelled(self, term: LeaderTerm) -> None:
        async with self._serve(term):
            self.role_known.set()
            await asyncio.get_running_loop().create_future()

    async def _renew(self, term: LeaderTerm) -> None:
        """Renew the lease. Returns once another dispatcher has had a newer term."""
        uncertain = False
        while True:
            await asyncio.sleep(self._lease.seconds / _RENEWALS_PER_LEASE)
            requested_at = self._clock()
            try:
                if not await self._lease.renew(term.term, self._address):
                    return
                term.renewed(requested_at)
            except LedgerUnavailable as exc:
                term.renewal_error = str(exc)
                logger().warning("lease_not_renewed", term=term.term, error=str(exc))
                # Only this dispatcher may be cut off from the lease's store. Workers and watchers that it can
                # still reach stay with it until its term ends, and the successor waits for them.
                if not term.lease_valid() and await self._newest_term() > term.term:
                    return
            if uncertain is term.lease_valid():
                uncertain = not uncertain
                await self._on_lease_uncertain(uncertain)

    async def _release(self, term: LeaderTerm) -> None:
        try:
            await self._lease.release(term.term)
        except LedgerUnavailable:
            logger().info("lease_not_released", term=term.term)  # it expires by itself
