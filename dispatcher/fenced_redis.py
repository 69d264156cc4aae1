"""Redis as the dispatcher of one term may change it: every write carries the term, and none is done under an older one.

The check and the write are one script, so a dispatcher that was paused for longer than its lease and does not know it yet
changes nothing. Whoever writes through this class is fenced, whatever the record.
"""

from collections.abc import AsyncIterator, Mapping
from collections.abc import Set as AbstractSet
from types import TracebackType

from hoss.errors import LedgerUnavailable
from hoss.redis_access import Redis, ResponseError

TERM = "{hoss}:journal:term"  # the newest term; missing before the first

Word = bytes | str
Command = tuple[Word, ...]  # name, key, arguments

_FIELDS = 500  # of one command: Lua hands over some thousand values at once
_SUPERSEDED = "SUPERSEDED"

# ARGV: the writer's term, then commands, each behind its number of words.
_WRITE = """
if (redis.call('GET', KEYS[1]) or '0') ~= ARGV[1] then return redis.error_reply('SUPERSEDED by a newer term') end
local at = 2
while at <= #ARGV do
  local last = at + tonumber(ARGV[at])
  redis.call(unpack(ARGV, at + 1, last))
  at = last + 1
end
return 1
"""


class Superseded(LedgerUnavailable):
    """Another dispatcher has a newer term: nothing that this one does counts any more."""


class Writes:
    """Commands that are done together, in order, or not at all."""

    def __init__(self, fenced: "FencedRedis") -> None:
        self._fenced = fenced
        self._commands: list[Command] = []

    async def __aenter__(self) -> "Writes":  # noqa: PYI034 - typing.Self came with Python 3.11
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """What was not executed is dropped."""

    def hset(self, key: str, *, mapping: Mapping[bytes, bytes]) -> None:
        """Set fields."""
        fields = list(mapping.items())
        for start in range(0, len(fields), _FIELDS):
            part = fields[start : start + _FIELDS]
            self._commands.append(("HSET", key, *(word for field in part for word in field)))

    def hdel(self, key: str, *fields: Word) -> None:
        """Remove fields, if they are there."""
        for start in range(0, len(fields), _FIELDS):
            self._commands.append(("HDEL", key, *fields[start : start + _FIELDS]))

    def sadd(self, key: str, *members: Word) -> None:
        """Add to a set."""
        self._commands.append(("SADD", key, *members))

    def set(self, key: str, value: Word) -> None:
        """Replace a value."""
        self._commands.append(("SET", key, value))

    def delete(self, *keys: str) -> None:
        """Remove keys."""
        self._commands.extend(("DEL", key) for key in keys)

    async def execute(self) -> None:
        """Do them. Raises RedisError, OSError or Superseded."""
        commands, self._commands = self._commands, []
        if commands:
            await self._fenced.write(commands)


class FencedRedis:
    """A server and a term; 0 is the term of whoever writes where no lease was ever taken."""

    def __init__(self, redis: Redis, term: int) -> None:
        self._redis = redis
        self._term = term

    async def write(self, commands: list[Command]) -> None:
        """Do commands together. Raises RedisError or OSError when nothing is known, Superseded when nothing was done."""
        words: list[Word] = [str(self._term)]
        for command in commands:
            words += (str(len(command)), *command)
        try:
            await self._redis.register_script(_WRITE)(
                keys=[TERM, *dict.fromkeys(str(command[1]) for command in commands)], args=words
            )
        except ResponseError as exc:
            if _SUPERSEDED not in str(exc):
                raise
            raise Superseded("another dispatcher has taken over; nothing was accepted, try again") from exc

    def pipeline(self, *, transaction: bool = True) -> Writes:  # noqa: ARG002 - redis-py's word; all are transactions
        """Collects writes to be done together."""
        return Writes(self)

    async def hset(self, key: str, *, mapping: Mapping[bytes, bytes]) -> None:
        """Set fields."""
        writes = Writes(self)
        writes.hset(key, mapping=mapping)
        await writes.execute()

    async def hdel(self, key: str, *fields: Word) -> None:
        """Remove fields."""
        writes = Writes(self)
        writes.hdel(key, *fields)
        await writes.execute()

    async def sadd(self, key: str, *members: Word) -> None:
        """Add to a set."""
        await self.write([("SADD", key, *members)])

    async def set(self, key: str, value: Word) -> None:
        """Replace a value."""
        await self.write([("SET", key, value)])

    async def get(self, key: str) -> bytes | None:
        """A value, or None."""
        found = await self._redis.get(key)
        return found.encode() if isinstance(found, str) else found

    async def hscan_iter(self, key: str, *, count: int) -> AsyncIterator[tuple[bytes, bytes]]:
        """Every field of a hash, `count` or so a round trip; one may come twice."""
        async for field, value in self._redis.hscan_iter(key, count=count):
            yield field, value

    async def smembers(self, key: str) -> AbstractSet[bytes]:
        """Every member of a set."""
        return {member.encode() if isinstance(member, str) else member for member in await self._redis.smembers(key)}
