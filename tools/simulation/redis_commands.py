"""Commands of Redis as the simulation has them: what they are called, whether they write, and the slots of
the keys that they touch."""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

Word = bytes | str | int | float
Command = tuple[Word, ...]  # name and arguments

READS = frozenset(
    (
        *(
            "ECHO",
            "EXISTS",
            "GET",
            "GETRANGE",
            "HEXISTS",
            "HGET",
            "HGETALL",
            "HKEYS",
            "HLEN",
            "HMGET",
            "HSCAN",
        ),
        *("HSTRLEN", "HVALS", "INFO", "KEYS", "LINDEX", "LLEN", "LRANGE", "MGET", "PING", "SCARD", "SCRIPT"),
        *("SISMEMBER", "SMEMBERS", "SMISMEMBER", "STRLEN", "TIME", "TYPE", "XLEN", "XRANGE", "XREAD"),
        *("XREVRANGE", "ZCARD", "ZCOUNT", "ZRANGE", "ZRANGEBYSCORE", "ZRANK", "ZSCORE", "ZMSCORE"),
    )
)
WRITES = frozenset(
    (
        *("APPEND", "DECR", "DECRBY", "DEL", "EVAL", "EVALSHA", "FLUSHALL", "FLUSHDB", "HDEL", "HINCRBY"),
        *("HMSET", "HSET", "HSETNX", "INCR", "INCRBY", "LPOP", "LPUSH", "LREM", "LTRIM", "RPOP", "RPUSH"),
        *("SADD", "SET", "SREM", "UNLINK", "XADD", "XDEL", "XTRIM", "ZADD", "ZINCRBY", "ZPOPMAX", "ZPOPMIN"),
        *("ZREM", "ZREMRANGEBYRANK", "ZREMRANGEBYSCORE"),
    )
)

ANYWHERE = b"*"  # in place of a slot: the keys are not known
_ONE_KEY_EACH = frozenset({"DEL", "UNLINK", "EXISTS", "MGET"})
_WITHOUT_KEYS = frozenset({"MULTI", "EXEC", "SCRIPT", "INFO", "ECHO", "PING"})
_ANY_KEY = frozenset({"KEYS", "TIME", "FLUSHALL", "FLUSHDB"})


class UnsupportedCommand(Exception):  # noqa: N818 - a mistake of a test or of this module
    """The simulation cannot carry out this command as Redis would."""


class Effect(NamedTuple):
    """A command that was carried out, by itself or in a transaction."""

    command: Command
    reply: Any  # an exception for an error
    position: int  # of the log of writes, after it
    wrote: bool = True  # False: it has certainly changed nothing


class PreparedCommand(NamedTuple):
    """A command, and what the server gets instead of it."""

    name: str
    command: Command
    words: Command  # what the server gets
    ordered: Callable[[Any], Any] | None = None  # what becomes of the server's reply
    is_script: bool = False  # which also replies whether it wrote
    logged: bool = False
    may_expire: bool = False


def slots_of(one: PreparedCommand) -> set[bytes]:
    """The slots of the keys that a command may touch. All keys of a script share one, as in a Redis
    Cluster."""
    name, command = one.name, one.command
    if name in _WITHOUT_KEYS:
        return set()
    if name in _ANY_KEY or len(command) < 2:
        return {ANYWHERE}
    if name in _ONE_KEY_EACH:
        return {_slot(key) for key in command[1:]}
    if name == "XREAD":
        return _slots_read(command)
    if name in ("EVALSHA", "EVAL"):
        return {_slot(command[3]) if int(command[2]) else ANYWHERE}
    return {_slot(command[1])}


def _slots_read(command: Command) -> set[bytes]:
    """Of the streams of an XREAD."""
    words = list(map(as_bytes, command))
    at = next(at for at, word in enumerate(words) if word.upper() == b"STREAMS") + 1
    return {_slot(key) for key in words[at : at + (len(words) - at) // 2]}


def may_find(read: Command, written: set[bytes]) -> bool:
    """Whether a blocked XREAD may find what was written to these slots."""
    return ANYWHERE in written or not written.isdisjoint(_slots_read(read))


@cache
def _slot(key: Word) -> bytes:
    """The part of the key that a Redis Cluster hashes."""
    text = as_bytes(key)
    begins = text.find(b"{")
    ends = text.find(b"}", begins + 1)
    return text[begins + 1 : ends] if 0 <= begins < ends - 1 else text


def name_of(command: Command) -> str:
    """The command's name, in capitals."""
    return _in_capitals(command[0])


@cache
def _in_capitals(word: Word) -> str:
    """There are few commands, each is asked for a thousand times."""
    return (word if isinstance(word, str) else as_bytes(word).decode()).upper()


def parted(command: Command) -> tuple[str, Command]:
    """The command's name in capitals, and the command with it. redis-py says "SCRIPT LOAD" in one word."""
    name = name_of(command)
    if " " not in name:
        return name, command if command[0] == name else (name, *command[1:])
    words = name.split()
    return words[0], (*words, *command[1:])


def as_bytes(word: Word) -> bytes:
    return word if isinstance(word, bytes) else str(word).encode()
