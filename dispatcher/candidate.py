"""A dispatcher among several: stands by until the lease is its own, serves a term, and stands by again.

While a renewal is overdue the term is in doubt: nothing is accepted and the ledger is asked to change nothing, but what is
known is kept, for most often it was only Redis that was away. Once somebody else has had a newer term, all of it is dropped.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager

from dispatcher.core.tenure import Tenure
from dispatcher.lease import Granted, Lease
from hoss.errors import LedgerUnavailable
from hoss.telemetry import logger

_ATTEMPTS_PER_LEASE = 12  # how often a standby asks: what is lost of a lease's length before it notices
_RENEWALS_PER_LEASE = 4


class Term:
    """One time of being active, at an address that others can reach."""

    def __init__(self, number: int, address: str, tenure: Tenure, clock: Callable[[], float]) -> None:
        self.number = number
        self.address = address
        self.trouble = ""  # what the last renewal met with, if it failed
        self._tenure = tenure
        self._clock = clock

    def certain(self) -> bool:
        """Whether nobody else can be active at this moment."""
        return self._tenure.certain(self._clock())

    def renewed(self, asked_at: float) -> None:
        """The lease was prolonged."""
        self.trouble = ""
        self._tenure.renewed(asked_at)

    def doubt(self) -> str:
        """Why it is not certain, where it is not: for people."""
        return self.trouble or "the lease could not be renewed in time"


Serving = Callable[[Term], AbstractAsyncContextManager[None]]


class Candidate:
    """`stand` runs until cancelled. `standing_by` is told who is active, or why nobody is known to be; `doubted` whether the
    present term is in doubt."""

    def __init__(
        self,
        lease: Lease,
        address: str,
        *,
        serve: Serving,
        standing_by: Callable[[str, str], Awaitable[None]],
        doubted: Callable[[bool], Awaitable[None]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._lease = lease
        self._address = address
        self._serve = serve
        self._standing_by = standing_by
        self._doubted = doubted
        self._clock = clock
        self.settled = asyncio.Event()  # it serves, or another has been seen to

    async def stand(self) -> None:
        """Take the lease whenever nobody has it. Raises what serving a term raises."""
        begun = self._clock()
        while True:
            asked_at = self._clock()
            try:
                answer = await self._lease.acquire(self._address)
            except LedgerUnavailable as exc:
                await self._standing_by(f"this dispatcher does not know who is active: {exc}", "")
            else:
                if isinstance(answer, Granted):
                    await self._hold(
                        Term(answer.term, self._address, Tenure(self._lease.seconds, asked_at), self._clock)
                    )
                    begun = self._clock()
                    continue
                await self._standing_by("this dispatcher stands by", answer.address)
                if self._clock() - begun > self._lease.seconds:  # so that it is no dead one's lease
                    self.settled.set()
            # Jitter, so that several standbys do not always ask together.
            await asyncio.sleep(self._lease.seconds / _ATTEMPTS_PER_LEASE * random.uniform(0.8, 1.2))

    async def _hold(self, term: Term) -> None:
        """Serve until somebody else has a newer term; when cancelled, give the lease up."""
        logger().info("term_begins", term=term.number)
        renewing = asyncio.ensure_future(self._renew(term))
        serving = asyncio.ensure_future(self._serve_until_cancelled(term))
        try:
            await asyncio.wait({renewing, serving}, return_when=asyncio.FIRST_COMPLETED)
            over = renewing.done() and not renewing.cancelled() and renewing.exception() is None
        except asyncio.CancelledError:
            over = False
            raise
        finally:
            for task in (renewing, serving):
                task.cancel()
            results = await asyncio.gather(renewing, serving, return_exceptions=True)
            if not over:
                await self._give_up(term)
        for result in results:
            if isinstance(result, Exception):
                raise result
        logger().warning("term_over", term=term.number)

    async def _serve_until_cancelled(self, term: Term) -> None:
        async with self._serve(term):
            self.settled.set()
            await asyncio.get_running_loop().create_future()

    async def _renew(self, term: Term) -> None:
        """Renew, and return once it is known that the term is over."""
        in_doubt = False
        while True:
            await asyncio.sleep(self._lease.seconds / _RENEWALS_PER_LEASE)
            asked_at = self._clock()
            try:
                if not await self._lease.renew(term.number, self._address):
                    return
                term.renewed(asked_at)
            except LedgerUnavailable as exc:
                term.trouble = str(exc)
                logger().warning("lease_not_renewed", term=term.number, error=str(exc))
            if in_doubt is term.certain():
                in_doubt = not in_doubt
                await self._doubted(in_doubt)

    async def _give_up(self, term: Term) -> None:
        try:
            await self._lease.release(term.number)
        except LedgerUnavailable:
            logger().info("lease_not_released", term=term.number)  # it ends by itself
