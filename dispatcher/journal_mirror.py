"""What the journal holds, kept in memory beside it: so that a Redis which has lost it can be given it again.

The mirror knows nothing of kinds of records: whatever is read or written through `MirroredRedis` is in it, as it is stored.
"""

from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

Word = bytes | str
_FIELDS = 500  # of one command


def _bytes(word: Word) -> bytes:
    return word.encode() if isinstance(word, str) else word


@dataclass(slots=True)
class Mirror:
    """By key: fields of hashes, members of sets, plain values."""

    hashes: defaultdict[str, dict[bytes, bytes]] = field(default_factory=lambda: defaultdict(dict))
    sets: defaultdict[str, set[bytes]] = field(default_factory=lambda: defaultdict(set))
    values: dict[str, bytes] = field(default_factory=dict)

    async def restore(self, redis: Any) -> None:
        """Write everything to `redis`, then remove what hashes there have besides. Stopped anywhere, nothing is missing there
        that was there before."""
        for key, fields in self.hashes.items():
            items = list(fields.items())
            for start in range(0, len(items), _FIELDS):
                await redis.hset(key, mapping=dict(items[start : start + _FIELDS]))
            found = [name async for name, _ in redis.hscan_iter(key, count=_FIELDS)]
            stale = [name for name in found if name not in fields]
            for start in range(0, len(stale), _FIELDS):
                await redis.hdel(key, *stale[start : start + _FIELDS])
        for key, members in self.sets.items():
            if members:
                await redis.sadd(key, *members)
        for key, value in self.values.items():
            await redis.set(key, value)


class MirroredRedis:
    """A server's client as the journal uses it. What fails is not noted."""

    def __init__(self, redis: Any, mirror: Mirror) -> None:
        self._redis = redis
        self._mirror = mirror

    async def hset(self, key: str, *, mapping: Mapping[Any, bytes]) -> None:
        """Set fields."""
        await self._redis.hset(key, mapping=mapping)
        self._mirror.hashes[key].update((_bytes(name), value) for name, value in mapping.items())

    async def hdel(self, key: str, *names: Word) -> None:
        """Remove fields."""
        await self._redis.hdel(key, *names)
        _forget(self._mirror, key, names)

    async def sadd(self, key: str, *members: Word) -> None:
        """Add to a set."""
        await self._redis.sadd(key, *members)
        self._mirror.sets[key].update(map(_bytes, members))

    async def set(self, key: str, value: Word) -> None:
        """Replace a value."""
        await self._redis.set(key, value)
        self._mirror.values[key] = _bytes(value)

    async def get(self, key: str) -> bytes | None:
        """A value, or None."""
        found: Word | None = await self._redis.get(key)
        if found is None:
            return None
        self._mirror.values[key] = _bytes(found)
        return self._mirror.values[key]

    async def hscan_iter(self, key: str, *, count: int) -> AsyncIterator[tuple[bytes, bytes]]:
        """Every field; one may come twice."""
        async for name, value in self._redis.hscan_iter(key, count=count):
            self._mirror.hashes[key][name] = value
            yield name, value

    async def smembers(self, key: str) -> AbstractSet[bytes]:
        """Every member of a set."""
        self._mirror.sets[key] = set(map(_bytes, await self._redis.smembers(key)))
        return self._mirror.sets[key]

    def pipeline(self, *, transaction: bool) -> "MirroredPipeline":
        """Collects writes to be done together."""
        return MirroredPipeline(self._redis.pipeline(transaction=transaction), self._mirror)


class MirroredPipeline:
    """Writes that are done together, or not at all."""

    def __init__(self, pipe: Any, mirror: Mirror) -> None:
        self._pipe = pipe
        self._mirror = mirror
        self._notes: list[Callable[[], None]] = []

    async def __aenter__(self) -> "MirroredPipeline":  # noqa: PYI034 - typing.Self came with Python 3.11
        await self._pipe.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._pipe.__aexit__(kind, error, trace)

    def hset(self, key: str, *, mapping: Mapping[bytes, bytes]) -> None:
        """Set fields."""
        fields = dict(mapping)
        self._pipe.hset(key, mapping=fields)
        self._notes.append(lambda: self._mirror.hashes[key].update(fields))

    def hdel(self, key: str, *names: Word) -> None:
        """Remove fields."""
        self._pipe.hdel(key, *names)
        self._notes.append(lambda: _forget(self._mirror, key, names))

    async def execute(self) -> None:
        """Do them."""
        await self._pipe.execute()
        for note in self._notes:
            note()


def _forget(mirror: Mirror, key: str, names: tuple[Word, ...]) -> None:
    for name in names:
        mirror.hashes[key].pop(_bytes(name), None)
