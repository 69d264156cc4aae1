"""Redis as the leader of one term may change it, with a copy of its contents in memory.

Every write carries the term and the *stamp* that this writer left last: its term and the number of the write.
One script compares both, writes, and leaves the next stamp. Three things follow:

- A dispatcher that was paused for longer than its lease, and does not know it yet, changes nothing.
- A Redis that went back, or lost what it had, holds another stamp. The next write or check notices that, and
  everything is written again from the copy.
- A write without an answer was carried out before the next write, or never. The next write begins with
  commands that undo it, by the copy.

The copy does not depend on kinds of records: it holds whatever was read or written, as stored."""

from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from hoss.errors import ConfigError, LedgerUnavailable
from hoss.redis.access import Redis, RedisAccess, ResponseError
from hoss.telemetry import logger

TERM = "{hoss}:journal:term"  # the newest term; missing before the first
# A hash: `format`, `stamp`, `gap` (why the journal may be incomplete, if so), and the fields of
# dispatcher.leader.lease.
STATE = "{hoss}:journal:state"

# What a dispatcher must understand to read the journal. 1: releases 0.1 and 0.2, which wrote no number.
# 2: STATE.
FORMAT = 2

Word = bytes | str
Command = tuple[Word, ...]  # name, key, arguments

_FIELDS = 500  # of one command: Lua passes some thousand values at once

_BROKE_OFF = "a dispatcher that wrote the journal again broke off"

# KEYS: TERM, STATE, the keys of the commands. ARGV: the writer's term, the stamp that it left last ("*":
# any), the number of its last write with an answer, the number of this one, the format, the gap, then
# commands, each behind its number of words. A stamp between the two numbers is that of a write without an
# answer.
_WRITE = """
local newest, term = tonumber(redis.call('GET', KEYS[1]) or '0'), tonumber(ARGV[1])
if newest > term then return redis.error_reply('SUPERSEDED by a newer term') end
if newest < term then return redis.error_reply('BEHIND: the newest term is lost') end
local stamp = redis.call('HGET', KEYS[2], 'stamp') or ''
if ARGV[2] ~= '*' and stamp ~= ARGV[2] then
  local of, number = string.match(stamp, '^(%d+) (%d+)$')
  if of ~= ARGV[1] or tonumber(number) <= tonumber(ARGV[3]) or tonumber(number) >= tonumber(ARGV[4]) then
    return redis.error_reply('LOST: the stamp is "' .. stamp .. '"')
  end
end
local at = 7
while at <= #ARGV do
  local last = at + tonumber(ARGV[at])
  redis.call(unpack(ARGV, at + 1, last))
  at = last + 1
end
redis.call('HSET', KEYS[2], 'stamp', ARGV[1] .. ' ' .. ARGV[4], 'format', ARGV[5])
if ARGV[6] == '' then redis.call('HDEL', KEYS[2], 'gap') else redis.call('HSET', KEYS[2], 'gap', ARGV[6]) end
return 1
"""

# KEYS: TERM, STATE, hashes, sets, values. ARGV: how many hashes and sets. Returns the newest term, the stamp,
# and how much each key holds.
_LOOK = """
local found = {redis.call('GET', KEYS[1]) or '0', redis.call('HGET', KEYS[2], 'stamp') or ''}
local sets = 2 + tonumber(ARGV[1])
local values = sets + tonumber(ARGV[2])
for at = 3, #KEYS do
  if at <= sets then found[at] = redis.call('HLEN', KEYS[at])
  elseif at <= values then found[at] = #redis.call('SMEMBERS', KEYS[at])
  else found[at] = redis.call('EXISTS', KEYS[at]) end
end
return found
"""


_RAISE_TERM = """
if tonumber(redis.call('GET', KEYS[1]) or '0') < tonumber(ARGV[1]) then
  redis.call('SET', KEYS[1], ARGV[1])
end
return 1
"""


class Superseded(LedgerUnavailable):
    """Another dispatcher has a newer term. This dispatcher cannot write any more."""


class _Lost(Exception):  # noqa: N818 - says what happened
    """Redis does not hold what this writer left. The message has the stamp that it holds."""


def check_format(found: int) -> None:
    """Raises ConfigError for a journal that this release cannot read."""
    if found > FORMAT:
        raise ConfigError(
            f"the journal has format {found}, and this release of HOSS reads formats up to {FORMAT}: start "
            "the newer release that wrote it, or give this one another Redis",
            where=STATE,
        )


class JournalKeys(NamedTuple):
    """Every key of the journal but TERM and STATE, by type."""

    hashes: tuple[str, ...]
    sets: tuple[str, ...]
    values: tuple[str, ...]


Place = tuple[str, Word]  # key, and field or member; "" for a plain value


def hset(key: str, fields: Mapping[bytes, bytes]) -> Iterator[Command]:
    items = list(fields.items())
    for start in range(0, len(items), _FIELDS):
        yield ("HSET", key, *(word for item in items[start : start + _FIELDS] for word in item))


def hdel(key: str, *names: Word) -> Iterator[Command]:
    """Remove fields of a hash, if they exist."""
    return _in_parts("HDEL", key, names)


def _in_parts(name: str, key: str, words: Sequence[Word]) -> Iterator[Command]:
    for start in range(0, len(words), _FIELDS):
        yield (name, key, *words[start : start + _FIELDS])


@dataclass(slots=True)
class JournalCopy:
    """By key: fields of hashes, members of sets, plain values."""

    hashes: defaultdict[str, dict[bytes, bytes]] = field(default_factory=lambda: defaultdict(dict))
    sets: defaultdict[str, set[bytes]] = field(default_factory=lambda: defaultdict(set))
    values: dict[str, bytes] = field(default_factory=dict)

    def apply(self, command: Command) -> None:
        key, words = str(command[1]), list(map(_bytes, command[2:]))
        match command[0]:
            case "HSET":
                self.hashes[key].update(zip(words[::2], words[1::2], strict=True))
            case "HDEL":
                for name in words:
                    self.hashes[key].pop(name, None)
            case "SADD":
                self.sets[key].update(words)
            case "SREM":
                self.sets[key].difference_update(words)
            case "SET":
                (self.values[key],) = words

    def present(self, keys: JournalKeys, places: Iterable[Place]) -> Iterator[Command]:
        """Commands that put these places as the copy has them."""
        by_key: dict[str, list[bytes]] = {}
        for key, name in places:
            by_key.setdefault(key, []).append(_bytes(name))
        for key, names in by_key.items():
            if key in keys.hashes:
                has: Mapping[bytes, bytes] = self.hashes[key]
                yield from hset(key, {name: has[name] for name in names if name in has})
                yield from hdel(key, *(name for name in names if name not in has))
            elif key in keys.sets:
                members = self.sets[key]
                yield from _in_parts("SADD", key, [name for name in names if name in members])
                yield from _in_parts("SREM", key, [name for name in names if name not in members])
            else:
                yield ("SET", key, self.values[key]) if key in self.values else ("DEL", key)

    def sizes(self, keys: JournalKeys) -> list[int]:
        """What `_LOOK` finds if nothing is lost."""
        return [
            *(len(self.hashes[key]) for key in keys.hashes),
            *(len(self.sets[key]) for key in keys.sets),
            *(int(key in self.values) for key in keys.values),
        ]


def _places(command: Command) -> Iterator[Place]:
    key = str(command[1])
    match command[0]:
        case "HSET":
            yield from ((key, name) for name in command[2::2])
        case "HDEL" | "SADD" | "SREM":
            yield from ((key, name) for name in command[2:])
        case _:
            yield key, ""


class FencedRedis:
    """A store, a term and the copy. Term 0 writes to a Redis in which no lease was ever taken.

    Methods raise RedisError or OSError if the outcome is unknown, and LedgerUnavailable, such as Superseded,
    if nothing was written. The caller runs one at a time."""

    def __init__(self, access: RedisAccess, term: int, keys: JournalKeys) -> None:
        self.copy = JournalCopy()
        self.gap = ""  # why the journal may be incomplete, as it was found; "" if nothing is known
        self.last_write = (0, 0)  # of an earlier term, as it was found: its term and number
        self.rewrites = 0
        self._access = access
        self._term = term
        self._keys = keys
        self._stamp: str | None = None  # as found or left last; None before the first look
        self._answered = 0  # the number of the last write with an answer
        self._number = 0  # of the last write
        self._doubtful: dict[Place, None] = {}  # what writes without an answer would have changed
        self._complete = False  # the copy has everything
        self._torn = False  # a rewrite has begun and not ended

    @property
    def answered(self) -> int:
        """The number of the last write in this term that was answered; 0: none."""
        return self._answered

    async def raise_term(self, least: int) -> None:
        """The next term is higher than this number. If this term is not, it cannot write any more."""
        await (await self._redis()).register_script(_RAISE_TERM)(keys=[TERM], args=[least])

    async def write(self, *commands: Command) -> None:
        """Run commands as one transaction."""
        if not commands:
            return
        await self._find_stamp()
        if self._torn:
            await self.restore()
        try:
            await self._write(commands)
        except _Lost as exc:
            await self._write_all_again(str(exc))
            await self._write(commands)

    async def check(self) -> None:
        """Undo writes without an answer. Write everything again if Redis does not hold what it should."""
        await self._find_stamp()
        if self._torn:
            await self.restore()
        try:
            if self._doubtful:
                await self._write(())
            if self._complete:
                await self._look()
        except _Lost as exc:
            await self._write_all_again(str(exc))

    async def begin_reading(self) -> None:
        """Forget the copy. It is complete once everything was read between this and `end_reading`."""
        await self.check()
        self._complete = False
        self.copy = JournalCopy()

    async def end_reading(self) -> None:
        """Raises LedgerUnavailable if Redis went back in between; then read once more."""
        try:
            await self._look()
        except _Lost as exc:
            self._stamp = None
            raise _changed_while_read(exc) from exc
        self._complete = True

    async def get(self, key: str) -> bytes | None:
        await self._find_stamp()
        found = await (await self._redis()).get(key)
        if found is None:
            return None
        self.copy.values[key] = _bytes(found)
        return self.copy.values[key]

    async def fields(self, key: str) -> AsyncIterator[tuple[bytes, bytes]]:
        """Every field of a hash. A field may come twice."""
        async for name, value in (await self._redis()).hscan_iter(key, count=_FIELDS):
            self.copy.hashes[key][name] = value
            yield name, value

    async def members(self, key: str) -> set[bytes]:
        self.copy.sets[key] = set(map(_bytes, await (await self._redis()).smembers(key)))
        return self.copy.sets[key]

    async def restore(self) -> None:
        """Write the whole copy, then delete everything else. An interrupted restore loses nothing that Redis
        had before, and leaves a gap. Small transactions, so that Redis answers others in between."""
        redis = await self._redis()
        try:
            await self._run((), expected="*", gap=_BROKE_OFF)
            self._torn = True
            for key in self._keys.hashes:
                found = [name async for name, _ in redis.hscan_iter(key, count=_FIELDS)]
                fields = self.copy.hashes[key]
                for command in (*hset(key, fields), *hdel(key, *(n for n in found if n not in fields))):
                    await self._run((command,), gap=_BROKE_OFF)
            rest: list[Place] = [(key, "") for key in self._keys.values]
            for key in self._keys.sets:
                found_members = await redis.smembers(key)
                rest += [(key, name) for name in sorted(self.copy.sets[key] | found_members)]
            await self._run(tuple(self.copy.present(self._keys, rest)))
        except _Lost as exc:
            raise LedgerUnavailable(
                "Redis went back again while the journal was written to it; try again"
            ) from exc
        self._doubtful.clear()
        self._torn = False
        self.rewrites += 1

    async def _redis(self) -> Redis:
        return await self._access.at(TERM)

    async def _find_stamp(self) -> None:
        """At first: find out where the journal stands. Raises ConfigError for a format that this release does
        not know."""
        if self._stamp is not None:
            return
        found = await (await self._redis()).hmget(STATE, ["format", "stamp", "gap"])
        form, stamp, gap = (_bytes(word or b"").decode() for word in found)
        check_format(int(form or 1))
        term, _, number = stamp.partition(" ")
        if term == str(self._term):  # of this writer, or of one before it that had no lease
            self._answered = self._number = max(self._number, int(number))
        elif stamp:
            self.last_write = int(term), int(number)
        self._stamp, self.gap = stamp, gap

    async def _write(self, commands: Sequence[Command]) -> None:
        undo = tuple(self.copy.present(self._keys, self._doubtful))
        try:
            await self._run((*undo, *commands))
        except (LedgerUnavailable, _Lost):  # the script says that it wrote nothing
            raise
        except BaseException:  # also when the caller gives up
            self._doubtful.update((place, None) for command in commands for place in _places(command))
            raise
        self._doubtful.clear()
        for command in commands:
            self.copy.apply(command)

    async def _look(self) -> None:
        """Raises _Lost unless Redis holds what this writer left."""
        keys = [TERM, STATE, *self._keys.hashes, *self._keys.sets, *self._keys.values]
        counts = [len(self._keys.hashes), len(self._keys.sets)]
        term, stamp, *sizes = await (await self._redis()).register_script(_LOOK)(keys=keys, args=counts)
        if int(term) > self._term:
            raise _superseded()
        if int(term) < self._term:
            raise _behind()
        found = _bytes(stamp).decode()
        if found != self._stamp or sizes != self.copy.sizes(self._keys):
            raise _Lost(f'the stamp is "{found}"')

    async def _write_all_again(self, found: str) -> None:
        if not self._complete:
            self._stamp = None
            raise _changed_while_read(found)
        logger().warning("journal_lost", found=found, expected=self._stamp)
        await self.restore()
        logger().warning("journal_rewritten", stamp=self._stamp)

    async def _run(self, commands: Sequence[Command], *, expected: str = "", gap: str = "") -> None:
        self._number += 1
        words: list[Word] = [
            str(self._term),
            expected or self._stamp or "",
            str(self._answered),
            str(self._number),
            str(FORMAT),
            gap,
        ]
        for command in commands:
            words += (str(len(command)), *command)
        keys = [TERM, STATE, *dict.fromkeys(str(command[1]) for command in commands)]
        number = self._number
        try:
            await self._send(keys, words)
        except ResponseError as exc:
            text = str(exc)
            if "SUPERSEDED" in text:
                raise _superseded() from exc
            if "BEHIND" in text:
                raise _behind() from exc
            if "LOST" in text:
                raise _Lost(text.partition("LOST: ")[2]) from exc
            raise
        self._stamp, self._answered = f"{self._term} {number}", number

    async def _send(self, keys: list[str], words: list[Word]) -> None:
        await (await self._redis()).register_script(_WRITE)(keys=keys, args=words)


def _superseded() -> Superseded:
    return Superseded("another dispatcher has taken over: make the same call again")


def _behind() -> LedgerUnavailable:
    return LedgerUnavailable(
        "Redis has lost the dispatcher's term, which the lease restores: make the same call again"
    )


def _changed_while_read(found: object) -> LedgerUnavailable:
    return LedgerUnavailable(f"Redis went back while the journal was read ({found}); try again")


def _bytes(word: Word) -> bytes:
    return word.encode() if isinstance(word, str) else word
