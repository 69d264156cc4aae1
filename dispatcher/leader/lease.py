"""The leader's lease: one dispatcher holds it at a time, and every new holder gets a higher term.

The term fences the holder's writes (dispatcher.journal.fenced_redis); the lease only says when others may
try. One store has both, so that no two dispatchers get the same term.

A store that was restarted, replaced by a replica or restored from a file may have gone back, and then its
lease says nothing: the holder most likely lives, and only the holder knows what was lost. So a dispatcher
that finds such a store takes nothing. It gives the last holder the length of a lease to renew.

The store's clock alone does not end a lease: a clock that jumps would end it while its holder lives. A
dispatcher that has seen the lease renewed also waits for its length by its own clock, unless the lease was
released. A clock that goes back does not keep the lease of a dead holder: a lease is over that was not
renewed for longer than its length, by the clock of the dispatcher that asks."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from dispatcher.journal.fenced_redis import FORMAT, STATE, TERM, check_format
from hoss.errors import LedgerUnavailable
from hoss.host import THIS_HOST
from hoss.redis.access import OpenRedis, RedisError, words

LEASE = "{hoss}:journal:lease"  # "<term> <address>"; expires
_OVER_AFTER = 1.25  # lengths of a lease, of two clocks that drift

# KEYS: lease, term, STATE. ARGV:
#   1, 2  address and milliseconds of the lease that is asked for
#   3, 4  the newest term that the caller knows, and its holder
#   5     the newest stamp of the journal that the caller has seen
#   6     the format that the caller understands
#   7     1: the lease that the caller saw held is not over by the caller's clock. Then it is only taken if it
#         was released
#   8, 9  the number of renewals that the caller has seen for longer than a lease lasts, -1 if none, and the
#         run of Redis that answered it. A lease that was not renewed since is over, if its holder counts
#         renewals.
#         Another run of Redis may have gone back and count the same numbers again
#   10    the caller's time, Unix seconds: of two lives of a Redis that is emptied and runs on, it differs
# Returns the format, the stamp, the new term or the present lease, how often leases were granted and renewed,
# the run of Redis, and the milliseconds of the lease of a holder that counts renewals, else 0.
#
# `server` in STATE is the run of Redis on which a dispatcher last asked, `holder_server` the one on which the
# newest term was granted or renewed. Another run of Redis, an older term or an older stamp shows a store that
# may have gone back, and one without a term may have been emptied. Terms that were granted before may be lost
# then, so the next one leaves many out: two dispatchers never have the same, and revisions of events
# (`hoss.v1.WatchRequest`) that a watcher had from a lost life are not taken for those of the next.
_ACQUIRE = """
local format, stamp, last_server, holder_server, released, renewals, counting = unpack(redis.call('HMGET',
  KEYS[3], 'format', 'stamp', 'server', 'holder_server', 'released', 'renewals', 'counting'))
renewals = tonumber(renewals or '0')
format, stamp = format or '1', stamp or ''
if tonumber(format) > tonumber(ARGV[6]) then return {format, stamp, '', renewals, '', 0} end
local server = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
local lease = redis.call('GET', KEYS[1])
local term, known = tonumber(redis.call('GET', KEYS[2]) or '0'), tonumber(ARGV[3])

local function older(one, other)
  local term_of_one, number_of_one = string.match(one, '^(%d+) (%d+)$')
  local term_of_other, number_of_other = string.match(other, '^(%d+) (%d+)$')
  if not term_of_one then return term_of_other ~= nil end
  if not term_of_other then return false end
  if term_of_one ~= term_of_other then return tonumber(term_of_one) < tonumber(term_of_other) end
  return tonumber(number_of_one) < tonumber(number_of_other)
end

local went_back = term < known or older(stamp, ARGV[5])
if went_back then
  redis.call('HSET', KEYS[3], 'gap', 'Redis went back to "' .. stamp .. '", and "' .. ARGV[5] .. '" was seen')
  redis.call('HDEL', KEYS[3], 'holder_server')
end
local counting_term, milliseconds = string.match(counting or '', '^(%d+) (%d+)$')
local length = tonumber(counting_term) == math.max(term, known) and tonumber(milliseconds) or 0
if went_back or (term > 0 and last_server ~= server) then
  local holder = lease and string.match(lease, '^%d+ (.*)$') or ''
  if term <= known then holder = ARGV[4] end
  term = math.max(term, known)
  lease = string.format('%.0f %s', term, holder)
  redis.call('SET', KEYS[2], string.format('%.0f', term))
  redis.call('SET', KEYS[1], lease, 'PX', ARGV[2])
  renewals = renewals + 1
  redis.call('HSET', KEYS[3], 'server', server, 'renewals', renewals)
elseif tonumber(ARGV[8]) == renewals and ARGV[9] == server and holder_server == server and length > 0 then
  lease = nil
end
if lease then return {format, stamp, lease, renewals, server, length} end
if ARGV[7] == '1' and tonumber(released or '0') ~= term then
  return {format, stamp, string.format('%.0f %s', term, ARGV[4]), renewals, server, length}
end
local step = 1
if holder_server ~= server then
  step = 1000 + (tonumber(string.sub(server, 1, 4), 16) + tonumber(ARGV[10])) % 65536
end
term = redis.call('INCRBY', KEYS[2], step)
redis.call('SET', KEYS[1], term .. ' ' .. ARGV[1], 'PX', ARGV[2])
redis.call('HSET', KEYS[3], 'server', server, 'holder_server', server, 'renewals', renewals + 1)
redis.call('HSET', KEYS[3], 'counting', term .. ' ' .. ARGV[2])
return {format, stamp, term, renewals + 1, server, 0}
"""

# KEYS: lease, term, STATE. ARGV: term, address, milliseconds. An expired lease is recovered if nobody has had
# a newer term. The term is written again too, for a Redis that came back without its latest writes: it is the
# newest term that exists.
_RENEW = """
if tonumber(redis.call('GET', KEYS[2]) or '0') > tonumber(ARGV[1]) then return 0 end
local server = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
redis.call('SET', KEYS[2], ARGV[1])
redis.call('SET', KEYS[1], ARGV[1] .. ' ' .. ARGV[2], 'PX', ARGV[3])
local renewals = tonumber(redis.call('HGET', KEYS[3], 'renewals') or '0') + 1
redis.call('HSET', KEYS[3], 'server', server, 'holder_server', server, 'renewals', renewals)
return 1
"""

# KEYS: lease, term, STATE. ARGV: term.
_RELEASE = """
if redis.call('GET', KEYS[2]) == ARGV[1] then
  redis.call('DEL', KEYS[1])
  redis.call('HSET', KEYS[3], 'released', ARGV[1])
end
return 1
"""


@dataclass(frozen=True, slots=True)
class Granted:
    """The caller holds the lease."""

    term: int


@dataclass(frozen=True, slots=True)
class LeaseHeld:
    """Another dispatcher holds the lease."""

    term: int
    address: str


class Lease(Protocol):
    """Methods raise LedgerUnavailable if the outcome is unknown, also after the length of a lease without an
    answer. All may be repeated."""

    @property
    def seconds(self) -> float:
        """The length of the lease, from each renewal."""

    async def acquire(self, address: str) -> Granted | LeaseHeld:
        """Take the lease if nobody holds it. Others reach the holder at `address`."""

    async def renew(self, term: int, address: str) -> bool:
        """Prolong the lease, or recover it after it expired. False: another dispatcher has had a newer
        term."""

    async def release(self, term: int) -> None:
        """End the lease, unless another dispatcher has had a newer term."""

    async def close(self) -> None:
        """Close connections. The lease stays until it expires."""


class MemoryLease:
    """For tests: electors in one process share one lease, on the test's clock."""

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self.seconds = seconds
        self._clock = clock
        self._term = 0
        self._holder = ""
        self._until = float("-inf")

    async def acquire(self, address: str) -> Granted | LeaseHeld:
        if self._clock() < self._until:
            return LeaseHeld(self._term, self._holder)
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
    """The lease as a key that expires, on Redis' own clock; others wait by theirs too."""

    def __init__(
        self,
        url: str,
        seconds: float,
        *,
        open_redis: OpenRedis = THIS_HOST.redis,
        clock: Callable[[], float] = THIS_HOST.monotonic,
        unix: Callable[[], float] = THIS_HOST.unix,
    ) -> None:
        self.seconds = seconds
        self._clock, self._unix = clock, unix
        # By our clock: until when the lease runs at least that was seen renewed; when it was asked for last,
        # and how many renewals there had been.
        self._held_until = self._asked_at = float("-inf")
        self._renewals: int | None = None
        self._server = b""  # the run of Redis that answered that number
        self._holder_seconds = seconds  # the length of the holder's lease, if that is longer than ours
        self._unchanged_since = float("inf")  # by our clock: when that number was answered first
        self._milliseconds = int(seconds * 1000)
        self._newest = LeaseHeld(0, "")  # the newest lease known
        self._stamp = ""  # of the journal, as last seen
        self._access = open_redis(url, timeout_seconds=seconds / 2)

    async def acquire(self, address: str) -> Granted | LeaseHeld:
        """Raises ConfigError for a journal of a newer format."""
        newest, asked_at = self._newest, self._clock()
        may_run = int(asked_at < self._held_until)
        is_over = asked_at > self._unchanged_since + _OVER_AFTER * self._holder_seconds
        unchanged = self._renewals if is_over and self._renewals is not None else -1
        seen = (newest.term, newest.address, self._stamp)
        arguments = (
            address,
            self._milliseconds,
            *seen,
            FORMAT,
            may_run,
            unchanged,
            self._server,
            int(self._unix()),
        )
        form, stamp, answer, renewals, server, milliseconds = await self._ask(_ACQUIRE, *arguments)
        check_format(int(form))
        self._stamp = stamp.decode()
        if isinstance(answer, int):
            self._newest, self._renewals, self._held_until = LeaseHeld(answer, address), None, float("-inf")
            return Granted(answer)
        if (self._renewals, self._server) != (renewals, server):
            self._unchanged_since = self._clock()
        self._holder_seconds = max(self.seconds, milliseconds / 1000)
        if self._renewals not in (None, renewals):  # it was renewed after the last time we asked
            self._held_until = self._asked_at + self._holder_seconds
        self._renewals, self._server, self._asked_at = renewals, server, asked_at
        term, _, holder = answer.decode().partition(" ")
        self._newest = LeaseHeld(int(term), holder)
        return self._newest

    async def renew(self, term: int, address: str) -> bool:
        return bool(await self._ask(_RENEW, term, address, self._milliseconds))

    async def release(self, term: int) -> None:
        await self._ask(_RELEASE, term)

    async def close(self) -> None:
        await self._access.close()

    async def _ask(self, script: str, *arguments: str | bytes | int) -> Any:
        try:
            return await asyncio.wait_for(self._run(script, arguments), self.seconds)
        except (RedisError, OSError, asyncio.TimeoutError) as exc:
            self._access.doubt()
            raise LedgerUnavailable(
                f"the dispatcher's lease cannot be asked for ({words(exc) or 'too late'})"
            ) from exc

    async def _run(self, script: str, arguments: tuple[str | bytes | int, ...]) -> Any:
        redis = await self._access.at(LEASE)
        return await redis.register_script(script)(keys=[LEASE, TERM, STATE], args=arguments)
