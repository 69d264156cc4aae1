"""Who is the active dispatcher: a lease that one candidate holds at a time, and a term that grows with every new holder.

The dispatcher owns this port. The term fences what a holder writes (see dispatcher.fenced_redis); the lease only says when
others may try. Both are methods of one store, so that no two candidates are given the same term.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from dispatcher.fenced_redis import TERM
from hoss.errors import LedgerUnavailable
from hoss.redis_access import RedisError, reach
from hoss.redis_words import words

LEASE = "{hoss}:journal:lease"  # "<term> <address>", gone when its time is up

# KEYS: lease, term. ARGV: address, milliseconds, the newest term that this candidate has heard of and its holder. The new term, or
# the lease that stands. Where Redis has lost that term, its holder most likely lives, and alone knows what was lost with it: it
# is given the time of a lease to take its own up again.
_ACQUIRE = """
local standing = redis.call('GET', KEYS[1])
if standing then return standing end
if tonumber(redis.call('GET', KEYS[2]) or '0') < tonumber(ARGV[3]) then
  redis.call('SET', KEYS[2], ARGV[3])
  standing = ARGV[3] .. ' ' .. ARGV[4]
  redis.call('SET', KEYS[1], standing, 'PX', ARGV[2])
  return standing
end
local term = redis.call('INCR', KEYS[2])
redis.call('SET', KEYS[1], term .. ' ' .. ARGV[1], 'PX', ARGV[2])
return term
"""

# ARGV: term, address, milliseconds. A lease that ran out is taken up again if nobody has had a newer term. A Redis that
# came back without its latest writes, or all, is told of the term: it is the newest that anybody knows of.
_RENEW = """
if tonumber(redis.call('GET', KEYS[2]) or '0') > tonumber(ARGV[1]) then return 0 end
redis.call('SET', KEYS[2], ARGV[1])
redis.call('SET', KEYS[1], ARGV[1] .. ' ' .. ARGV[2], 'PX', ARGV[3])
return 1
"""

# ARGV: term.
_RELEASE = """
if redis.call('GET', KEYS[2]) == ARGV[1] then redis.call('DEL', KEYS[1]) end
return 1
"""


@dataclass(frozen=True, slots=True)
class Granted:
    """The lease is ours."""

    term: int


@dataclass(frozen=True, slots=True)
class Held:
    """Another has it."""

    term: int
    address: str


class Lease(Protocol):
    """Methods raise LedgerUnavailable when nothing is known; all may be repeated. A call that takes longer than the lease
    lasts raises, too."""

    @property
    def seconds(self) -> float:
        """How long it lasts from each renewal."""
        ...

    async def acquire(self, address: str) -> Granted | Held:
        """Take it if nobody has it; others reach the holder at `address`."""
        ...

    async def renew(self, term: int, address: str) -> bool:
        """Prolong it, or take it up again where it ran out. False: somebody has had a newer term."""
        ...

    async def release(self, term: int) -> None:
        """Give it up, unless somebody has had a newer term."""
        ...

    async def close(self) -> None:
        """End connections; the lease stays until its time is up."""
        ...


class MemoryLease:
    """For tests: candidates in one process share one, on a clock of the test's."""

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self.seconds = seconds
        self._clock = clock
        self._term = 0
        self._holder = ""
        self._until = float("-inf")

    async def acquire(self, address: str) -> Granted | Held:
        if self._clock() < self._until:
            return Held(self._term, self._holder)
        self._term += 1
        self._holder, self._until = address, self._clock() + self.seconds
        return Granted(self._term)

    async def renew(self, term: int, address: str) -> bool:
        if term != self._term:
            return False
        self._holder, self._until = address, self._clock() + self.seconds
        return True

    async def release(self, term: int) -> None:
        if term == self._term:
            self._until = float("-inf")

    async def close(self) -> None:
        """Nothing is open."""


class RedisLease:
    """The lease as a key that expires, on Redis' own clock."""

    def __init__(self, url: str, seconds: float) -> None:
        self.seconds = seconds
        self._milliseconds = int(seconds * 1000)
        self._heard_of = Held(0, "")  # the newest
        self._access = reach(url, timeout_seconds=seconds / 2)

    async def acquire(self, address: str) -> Granted | Held:
        heard = self._heard_of
        answer = await self._ask(_ACQUIRE, address, self._milliseconds, heard.term, heard.address)
        if isinstance(answer, int):
            self._heard_of = Held(answer, address)
            return Granted(answer)
        term, _, holder = answer.decode().partition(" ")
        self._heard_of = Held(int(term), holder)
        return self._heard_of

    async def renew(self, term: int, address: str) -> bool:
        return bool(await self._ask(_RENEW, term, address, self._milliseconds))

    async def release(self, term: int) -> None:
        await self._ask(_RELEASE, term)

    async def close(self) -> None:
        await self._access.close()

    async def _ask(self, script: str, *arguments: str | int) -> int | bytes:
        try:
            answer: int | bytes = await asyncio.wait_for(self._run(script, arguments), self.seconds)
        except (RedisError, OSError, asyncio.TimeoutError) as exc:
            self._access.doubt()
            raise LedgerUnavailable(f"the dispatcher's lease cannot be asked for ({words(exc) or 'too late'})") from exc
        return answer

    async def _run(self, script: str, arguments: tuple[str | int, ...]) -> int | bytes:
        redis = await self._access.at(LEASE)
        answer: int | bytes = await redis.register_script(script)(keys=[LEASE, TERM], args=arguments)
        return answer
