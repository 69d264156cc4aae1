"""A real Redis server as a function: commands and the time go in, replies come out, one after the other.

It makes the server deterministic. Scripts and expiring keys see the given time and not the machine's. Replies
whose order Redis leaves open come in an order of the seed. Whatever depends on the machine is refused
(UnsupportedCommand). Invariant: equal commands at equal times after `begin` with an equal seed give equal
replies, on every server and whatever it did before.

Each script runs behind a prelude. It answers TIME and INFO, and turns the deadline of a key into an entry of
a sorted set. A key whose deadline has passed is deleted before the next command. Every write is logged, so
that the state can go back to any earlier position of that log.

What only reads the keys of one slot is answered from memory as long as nothing there was written
(tools/simulation/redis_answers.py)."""

import hashlib
import random
import re
import shutil
import socket
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import hiredis
from redis.asyncio.connection import Connection, DefaultParser
from redis.exceptions import InvalidResponse

from hossctl.local.redis_server import RedisServer
from tools.simulation.redis_answers import WROTE, AnswerMemory, question_of
from tools.simulation.redis_commands import (
    READS,
    WRITES,
    Command,
    Effect,
    PreparedCommand,
    UnsupportedCommand,
    as_bytes,
    may_find,
    name_of,
    parted,
    slots_of,
)

_DEADLINES = b"simulation:deadlines"  # key -> Unix milliseconds

# The first line of every script, so that the numbers of its lines stay. The last arguments are the run of the
# server and the time. With the script's last line it replies what the script did (1: it wrote; 2: it asked
# for the time), and what it replied.
_PRELUDE = """
local wrote, timed = false, false
local redis = (function(redis, now, run_id)
  local DEADLINES = 'simulation:deadlines'
  local READS = {READS}
  local function set(run, key, value, ...)
    local given, options, milliseconds, at = {...}, {}, nil, 1
    while at <= #given do
      local option = tostring(given[at]):upper()
      if option == 'PX' or option == 'EX' then
        milliseconds = given[at + 1] * (option == 'EX' and 1000 or 1)
        at = at + 2
      elseif option ~= 'NX' and option ~= 'XX' then
        error('SET with ' .. option .. ' is not simulated yet')
      else
        options[#options + 1] = given[at]
        at = at + 1
      end
    end
    local reply = run('SET', key, value, unpack(options))
    if type(reply) == 'table' and reply.ok then
      if milliseconds then
        run('ZADD', DEADLINES, math.floor(now / 1000) + milliseconds, key)
      else
        run('ZREM', DEADLINES, key)
      end
    end
    return reply
  end
  local function sorted_pairs(flat)
    if flat.err then return flat end
    local fields, values, sorted = {}, {}, {}
    for i = 1, #flat, 2 do
      fields[#fields + 1], values[flat[i]] = flat[i], flat[i + 1]
    end
    table.sort(fields)
    for i, field in ipairs(fields) do
      sorted[2 * i - 1], sorted[2 * i] = field, values[field]
    end
    return sorted
  end
  local function behind(run)
    return function(name, ...)
      if name == 'TIME' then
        timed = true
        return {string.format('%d', math.floor(now / 1000000)), string.format('%d', now % 1000000)}
      elseif name == 'INFO' then
        return 'run_id:' .. run_id
      elseif name == 'SET' then
        wrote = true
        return set(run, ...)
      elseif name == 'DEL' or name == 'UNLINK' then
        local reply = run(name, ...)
        run('ZREM', DEADLINES, ...)
        wrote = true
        return reply
      elseif name == 'HGETALL' then
        return sorted_pairs(run(name, ...))
      elseif name == 'HKEYS' or name == 'HVALS' or name == 'SMEMBERS' then
        local reply = run(name, ...)
        if not reply.err then table.sort(reply) end
        return reply
      end
      wrote = wrote or not READS[name]
      return run(name, ...)
    end
  end
  return setmetatable({call = behind(redis.call), pcall = behind(redis.pcall)}, {__index = redis})
end)(redis, tonumber(table.remove(ARGV)), table.remove(ARGV))
local function script()
"""
_LAST_LINE = "\nend\nlocal reply = script()\nreturn {wrote and 1 or timed and 2 or 0, reply}"

# Deletes what is over. Returns the next deadline, or "". KEYS: deadlines. ARGV: milliseconds.
_EXPIRE = """
for _, key in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', '(' .. ARGV[1])) do
  redis.call('DEL', key)
  redis.call('ZREM', KEYS[1], key)
end
return redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')[2] or ''
"""
_DEADLINES_OF = "return redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES')"

# Plain commands that need the prelude as well.
_PLAIN = "return redis.call(ARGV[1], unpack(ARGV, 2))"
_UNKNOWN_SCRIPT = "return redis.error_reply('NOSCRIPT No matching script.')"

_FIRST_LINE = " ".join(
    _PRELUDE.replace("{READS}", f"{{{', '.join(f'{name}=true' for name in sorted(READS))}}}").split("\n")
)
_TRANSACTION = frozenset({"MULTI", "EXEC"})
# What does not go to the server as it is: commands whose replies depend on the time, on chance or on an inner
# order.
_PREPARED = frozenset(
    (
        *("EVAL", "EVALSHA", "SCRIPT", "TIME", "SET", "DEL", "UNLINK", "HGETALL", "HKEYS", "HVALS"),
        *("SMEMBERS", "KEYS", "HSCAN", "INFO", "FLUSHALL", "FLUSHDB", "XREAD"),
    )
)
_AS_THEY_ARE = (READS | WRITES | _TRANSACTION) - _PREPARED
# In scripts: what depends on the server's clock, chance or inner order, or moves a key past its deadline; and
# what the prelude does not see.
_UNSUPPORTED = re.compile(
    r"""['"](H?P?EXPIRE\w*|P?TTL|P?SETEX|GETEX|PERSIST|[SHZ]?SCAN|SPOP|SRANDMEMBER|HRANDFIELD|ZRANDMEMBER"""
    r"""|RANDOMKEY|COPY|MOVE|SORT)['"]|\bserver\.p?call\b|\bp?call\(\s*['"][a-z]+"""
)
# A script may set a deadline if one of these is in its text or among its arguments.
_MAY_EXPIRE = re.compile(r"\b[PE]X\b", re.IGNORECASE)
_EXPIRY_OPTIONS = frozenset({"PX", "EX", "px", "ex", b"PX", b"EX", b"px", b"ex"})

# Redis refuses writes in the same place for too few replicas as for a full disk, and the former can be asked
# for.
_NO_REPLICAS = re.compile(r"NOREPLICAS Not enough good replicas to write\.?")
_DISK_FULL = "MISCONF Errors writing to the AOF file: No space left on device"

_INFO = "# Server\r\nredis_version:7.2.4\r\nredis_mode:standalone\r\naof_enabled:1\r\nused_memory:1000000\r\n"
_SCAN_STEP = 10  # Redis' own
_RECEIVE_BYTES = 1 << 18
_REPLAY_STEP = 200
_MISSING = object()


_pack: Callable[[Command], bytes] = hiredis.pack_command  # type: ignore[assignment]  # it takes any length


class DrivenRedis:
    """A server process that serves one caller. Times are Unix microseconds. Start one for many seeds."""

    def __init__(self, server: RedisServer, directory: Path) -> None:
        self._server = server
        self._directory = directory
        self.round_trips = 0  # to the server, since `begin`
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(str(directory / "redis.sock"))
        self._reader = hiredis.Reader(
            protocolError=InvalidResponse, replyError=_error, notEnoughData=_MISSING
        )
        # As the clients' redis-py would: what replies look like depends on it.
        self._run([("HELLO", Connection().protocol)])
        self._loaded: dict[str, str] = {}  # by the digest that HOSS knows, the digest behind the prelude
        self._expiring: set[str] = set()  # digests of scripts that may set deadlines
        self._expire_digest = self._load(_EXPIRE)
        self._plain_digest = self._wrapped(_PLAIN)[1]
        self.begin(random.Random(0))

    @classmethod
    def start(cls, binary: Path | None = None) -> "DrivenRedis":
        """`binary`: instead of the server that is found."""
        directory = Path(tempfile.mkdtemp(prefix="redis-"))
        options = {"unixsocket": str(directory / "redis.sock"), "hz": "1"}
        server = RedisServer.start(directory, options=options, binary=binary, ends_with_us=True)
        return cls(server, directory)

    def close(self) -> None:
        self._socket.close()
        self._server.kill()
        shutil.rmtree(self._directory, ignore_errors=True)

    def begin(self, rng: random.Random) -> None:
        """Forget everything, for a new seed."""
        self._rng = rng
        self._salt = rng.getrandbits(32)
        self._runs = 0
        self._begin_run()
        self._known: set[str] = set()
        self._next_deadline_ms: float | None = None
        self._cursors: dict[int, bytes] = {}
        self._log: list[tuple[Command, ...]] = []
        self.round_trips = 0
        self.refuse_writes(refused=False)
        self._run([("FLUSHALL",)])

    # -- commands

    def carry_out(
        self, commands: Sequence[Command], now_us: int, reads: Sequence[Command] = ()
    ) -> tuple[list[Any], list[Effect], list[Any]]:
        """Run the commands, MULTI and EXEC among them, in order. Then, if any of them wrote, run `reads`.

        Returns the replies, what each command but MULTI and EXEC did, and the replies to `reads` ([] if
        nothing was written; None for one of a slot where nothing was). An error is an exception among the
        replies."""
        self._expire(now_us)
        prepared, written, may_expire = [], set[bytes](), False
        for command in commands:
            prepared.append(one := self._prepare(command, now_us))
            if one.name in WRITES:
                written |= slots_of(one)
            may_expire = may_expire or one.may_expire
        question = question_of(prepared)
        if question is not None and (known := self._memory.answer(question)) is not None:
            return known, list(self._settle(prepared, known)), []
        # A reader who waits has found nothing so far: nothing is there without a write to the same slot.
        affected = [read for read in reads if may_find(read, written)]
        words = [*(one.words for one in prepared), *affected]
        learns = may_expire and not self._refusing
        if learns:  # in the same exchange
            words.append(self._expire_command(now_us))
        replies = self._exchange(words)
        found, replies = replies[len(prepared) :], replies[: len(prepared)]
        if question is not None:
            self._memory.remember(question, prepared, replies)
        effects = list(self._settle(prepared, replies))
        if learns:
            self._note_deadline(found.pop())
        elif may_expire:
            self._learn_deadline(now_us)
        if not written:
            return replies, effects, []
        entries = iter(found)
        return replies, effects, [next(entries) if may_find(read, written) else None for read in reads]

    def read(self, command: Command, now_us: int) -> Any:
        """The reply to a reading command. Raises what Redis replies as an error."""
        return self.read_all([command], now_us)[0]

    def read_all(self, commands: Sequence[Command], now_us: int) -> list[Any]:
        """The replies to reading commands, of one moment. Raises the first error among them."""
        self._expire(now_us)
        prepared = [self._prepare(command, now_us) for command in commands]
        for one in prepared:
            if one.name not in READS:
                raise UnsupportedCommand(f"{one.name} is no reading command")
        question = question_of(prepared)
        replies = None if question is None else self._memory.answer(question)
        if replies is None:
            replies = self._run([one.words for one in prepared])
            if question is not None:
                self._memory.remember(question, prepared, replies)
        return [self._effect(one, reply).reply for one, reply in zip(prepared, replies, strict=True)]

    def _settle(self, prepared: Sequence[PreparedCommand], replies: list[Any]) -> Iterator[Effect]:
        """Put replies in order, log what was written, and yield what was done."""
        queued: list[PreparedCommand] | None = None
        for at, one in enumerate(prepared):
            name = one.name
            if name == "MULTI":
                queued = []
            elif name == "EXEC":
                done = replies[at]
                if isinstance(done, list) and queued is not None:
                    self._note(*queued)
                    for place, (inner, reply) in enumerate(zip(queued, done, strict=True)):
                        effect = self._effect(inner, reply)
                        done[place] = effect.reply
                        yield effect
                queued = None
            elif queued is not None:
                queued.append(one)
            else:
                if one.logged:
                    self._note(one)
                effect = self._effect(one, replies[at])
                replies[at] = effect.reply
                yield effect

    def _effect(self, one: PreparedCommand, reply: Any) -> Effect:
        """Of the server's reply, after what it did was logged."""
        wrote = one.logged
        if one.is_script and isinstance(reply, list):
            wrote, reply = (
                reply[0] == WROTE,
                reply[1] if len(reply) > 1 else None,
            )  # Redis leaves a last nil out
        if wrote:
            self._memory.forget(one)
        if one.ordered is not None:
            reply = one.ordered(reply)
        return Effect(one.command, reply, len(self._log), wrote)

    def _prepare(self, command: Command, now_us: int) -> PreparedCommand:
        name, command = parted(command)
        if name in _AS_THEY_ARE:
            return PreparedCommand(name, command, command, logged=name in WRITES)
        return self._prepare_otherwise(name, command, now_us)

    def _prepare_otherwise(self, name: str, command: Command, now_us: int) -> PreparedCommand:
        words, ordered, may_expire, is_script = command, None, False, False
        match name:
            case "EVALSHA" | "EVAL":
                return self._prepare_script(command, now_us)
            case "SCRIPT":
                words = ("ECHO", self._script(command))
            case "TIME" | "SET" | "DEL" | "UNLINK":
                words = ("EVALSHA", self._plain_digest, 0, *command, self._run_id, now_us)
                is_script, may_expire = True, not _EXPIRY_OPTIONS.isdisjoint(command[3:])
            case "HGETALL" | "HKEYS" | "HVALS" | "SMEMBERS" | "KEYS":
                ordered = self._ordered
            case "HSCAN":
                words, ordered = ("HGETALL", command[1]), partial(self._page, command)
            case "INFO":
                words = ("ECHO", f"{_INFO}run_id:{self._run_id}\r\n")
            case "FLUSHALL" | "FLUSHDB":
                words, self._next_deadline_ms = ("FLUSHDB",), None
            case "XREAD" if {b"BLOCK", b"$"}.intersection(map(as_bytes, command)):
                raise UnsupportedCommand("XREAD that waits, or with $, depends on when it is carried out")
            case "XREAD":
                pass
            case _:
                raise UnsupportedCommand(f"{name} is not simulated yet")
        logged = name in WRITES
        return PreparedCommand(name, command, words, ordered, is_script, logged=logged, may_expire=may_expire)

    # -- scripts

    def _prepare_script(self, command: Command, now_us: int) -> PreparedCommand:
        name, (_, script, *arguments) = name_of(command), command
        text = script.decode() if isinstance(script, bytes) else str(script)
        if name == "EVAL":
            digest, behind = self._wrapped(text)
            self._known.add(digest)
        else:
            digest, behind = text, self._loaded.get(text, "")
        if digest not in self._known:
            return PreparedCommand(name, command, ("EVAL", _UNKNOWN_SCRIPT, 0))
        may_expire = digest in self._expiring or not _EXPIRY_OPTIONS.isdisjoint(arguments)
        words = ("EVALSHA", behind, *arguments, self._run_id, now_us)
        return PreparedCommand(name, command, words, None, is_script=True, logged=True, may_expire=may_expire)

    def _script(self, command: Command) -> str:
        """What SCRIPT LOAD and SCRIPT FLUSH reply."""
        what = as_bytes(command[1]).decode().upper()
        if what == "LOAD":
            digest, _ = self._wrapped(as_bytes(command[2]).decode())
            self._known.add(digest)
            return digest
        if what == "FLUSH":
            self.forget_scripts()
            return "OK"
        raise UnsupportedCommand(f"SCRIPT {what} is not simulated yet")

    def _wrapped(self, text: str) -> tuple[str, str]:
        """The script's digest as HOSS computes it, and the one behind the prelude."""
        digest = hashlib.sha1(text.encode()).hexdigest()  # noqa: S324 - Redis names scripts so
        if digest not in self._loaded:
            if unsupported := _UNSUPPORTED.search(text):
                raise UnsupportedCommand(f"{unsupported[0]} in a script is not simulated yet")
            self._loaded[digest] = self._load(_FIRST_LINE + text + _LAST_LINE)
            if _MAY_EXPIRE.search(text):
                self._expiring.add(digest)
        return digest, self._loaded[digest]

    def _load(self, text: str) -> str:
        (digest,) = self._run([("SCRIPT", "LOAD", text)])
        return str(digest.decode())

    def forget_scripts(self) -> None:
        """EVALSHA replies NOSCRIPT until a script is loaded again."""
        self._known.clear()

    def restart(self) -> None:
        """Begin another run of the server, with its data and without its scripts."""
        self.forget_scripts()
        self._begin_run()

    def _begin_run(self) -> None:
        self._runs += 1
        self._memory = AnswerMemory()
        self._run_id = hashlib.sha1(f"{self._salt} {self._runs}".encode(), usedforsecurity=False).hexdigest()

    # -- order

    def _by_seed(self, word: bytes) -> tuple[int, bytes]:
        return zlib.crc32(word, self._salt), word

    def _ordered(self, reply: Any) -> Any:
        if isinstance(reply, dict):
            return dict(sorted(reply.items(), key=lambda item: self._by_seed(item[0])))
        if isinstance(reply, set):  # has no order
            return reply
        if not isinstance(reply, list):
            return reply
        return sorted((word for word in reply if word != _DEADLINES), key=self._by_seed)

    def _page(self, command: Command, reply: Any) -> Any:
        """A reply to HSCAN, made of all fields: pages of any size, whose ends may overlap."""
        if isinstance(reply, Exception):
            return reply
        _, _, cursor, *options = map(as_bytes, command)
        count = _SCAN_STEP
        if options:
            if options[0].upper() != b"COUNT" or len(options) > 2:
                raise UnsupportedCommand("HSCAN with other options than COUNT is not simulated yet")
            count = int(options[1])
        fields = reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))
        left = sorted(fields, key=self._by_seed)
        page: list[bytes] = []
        if last := self._cursors.get(int(cursor)):
            left = [field for field in left if self._by_seed(field) > self._by_seed(last)]
            page = [last] if last in fields and self._rng.random() < 0.25 else []
        size = min(count, len(left))
        if size > 1 and self._rng.random() < 0.5:
            size = self._rng.randint(1, size)
        page += left[:size]
        following = 0
        if size < len(left):
            following = len(self._cursors) + 1
            self._cursors[following] = page[-1]
        return [b"%d" % following, [word for field in page for word in (field, fields[field])]]

    # -- time

    def _expire(self, now_us: int) -> None:
        if self._next_deadline_ms is not None and now_us // 1000 > self._next_deadline_ms:
            self._log.append((self._learn_deadline(now_us),))

    def _learn_deadline(self, now_us: int) -> Command:
        """Delete what is over, and note when something will be. Returns the command that deletes."""
        expire = self._expire_command(now_us)
        self._memory.forget()
        with self._accepting_writes():
            (found,) = self._run([expire])
        self._note_deadline(found)
        return expire

    def _expire_command(self, now_us: int) -> Command:
        return ("EVALSHA", self._expire_digest, 1, _DEADLINES, now_us // 1000)

    def _note_deadline(self, found: Any) -> None:
        """Of the reply to the command that deletes."""
        if isinstance(found, Exception):
            raise found
        self._next_deadline_ms = float(found) if found else None

    # -- faults of the server

    def refuse_writes(self, *, refused: bool) -> None:
        """Whether writes get the error of a full disk. Scripts run up to their first write, as in Redis."""
        self._refusing = refused
        self._run([("CONFIG", "SET", "min-replicas-to-write", int(refused))])

    @contextmanager
    def _accepting_writes(self) -> Iterator[None]:
        """For writes of our own."""
        refusing = self._refusing
        if refusing:
            self.refuse_writes(refused=False)
        yield
        if refusing:
            self.refuse_writes(refused=True)

    def empty(self) -> None:
        """Lose every key."""
        with self._accepting_writes():
            self._run([("FLUSHDB",)])
        self._memory.forget()
        self._next_deadline_ms = None
        self._log.append((("FLUSHDB",),))

    @property
    def position(self) -> int:
        """How many entries the log of writes has. Transactions and rollbacks are one each."""
        return len(self._log)

    def roll_back(self, position: int, now_us: int, keys: Callable[[bytes], bool] | None = None) -> None:
        """Restore the state after that many entries: of every key, or of those for which `keys` is true."""
        kept = self._log[:position]
        emptied = [at for at, entry in enumerate(kept) if entry[0] == ("FLUSHDB",)]
        commands = [command for entry in kept[emptied[-1] if emptied else 0 :] for command in entry]
        with self._accepting_writes():
            self._run([("SELECT", 1), ("FLUSHDB",)])
            for start in range(0, len(commands), _REPLAY_STEP):
                self._exchange(commands[start : start + _REPLAY_STEP])  # what failed then fails now
            if keys is None:
                self._run([("SWAPDB", 0, 1), ("FLUSHDB",), ("SELECT", 0)])
            else:
                self._merge(keys)
        self._learn_deadline(now_us)
        self._log.append(self._whole_state())

    def _merge(self, keys: Callable[[bytes], bool]) -> None:
        """Replace those keys of database 0 by those of 1, with their deadlines. Database 1 is selected."""
        old, deadlines, _, new = self._run(
            [("KEYS", "*"), ("EVAL", _DEADLINES_OF, 1, _DEADLINES), ("SELECT", 0), ("KEYS", "*")]
        )
        moved = [key for key in sorted(old) if key != _DEADLINES and keys(key)]
        gone = [key for key in sorted(new) if key != _DEADLINES and keys(key)]
        commands: list[Command] = [("DEL", *gone), ("ZREM", _DEADLINES, *gone)] if gone else []
        for key, ends_ms in zip(deadlines[::2], deadlines[1::2], strict=True):
            commands += [("ZADD", _DEADLINES, ends_ms, key)] if key in moved else []
        commands += [("SELECT", 1), *(("MOVE", key, 0) for key in moved), ("FLUSHDB",), ("SELECT", 0)]
        self._run(commands)

    def _whole_state(self) -> tuple[Command, ...]:
        """Commands that make the present state."""
        (keys,) = self._run([("KEYS", "*")])
        keys = sorted(keys)
        dumps = self._run([("DUMP", key) for key in keys])
        restored = (("RESTORE", key, 0, dump, "REPLACE") for key, dump in zip(keys, dumps, strict=True))
        return (("FLUSHDB",), *restored)

    def _note(self, *done: PreparedCommand) -> None:
        # What was refused changed nothing, and would not be refused when it is repeated.
        if not self._refusing and (entry := tuple(one.words for one in done if one.logged)):
            self._log.append(entry)

    # -- the socket

    def _run(self, commands: Sequence[Command]) -> list[Any]:
        """Replies to commands of our own, which must not fail."""
        replies = self._exchange(commands)
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        return replies

    def _exchange(self, commands: Sequence[Command]) -> list[Any]:
        if not commands:
            return []
        self.round_trips += 1
        self._socket.sendall(b"".join([_pack(command) for command in commands]))
        reader, replies = self._reader, []
        for _ in commands:
            while (reply := reader.gets()) is _MISSING:
                received = self._socket.recv(_RECEIVE_BYTES)
                if not received:
                    raise InvalidResponse("the Redis server of the simulation has ended")
                reader.feed(received)
            replies.append(reply)
        return replies


def _error(text: str) -> Exception:
    """An error reply as redis-py's exception."""
    text = _NO_REPLICAS.sub(_DISK_FULL, text)
    error: Exception = DefaultParser.parse_error(text)  # type: ignore[no-untyped-call]
    return error
