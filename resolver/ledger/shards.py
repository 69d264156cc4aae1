"""The shards of a ledger in Redis: their keys, how scripts and commands reach them, and reads of one moment.

Invariant: what is read or written belongs to the ledger that is open, and to the history that this resolver
knows of it. Otherwise LedgerLostError is raised."""

import contextlib
import random
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from hoss.errors import LedgerUnavailable
from hoss.redis.access import OpenRedis
from resolver.core.values import ANYBODY, Position, Writer
from resolver.ledger import packing, stored
from resolver.ledger.scripts import Call, ScriptRunner, lost_changes, other_ledger

SHARD_KEYS = (
    *("meta", "accounts", "cards", "specs", "names", "reservations", "pending", "workers", "feed"),
    *(
        "ports",
        "groups",
        "group_pods",
        "labels",
        "rules",
        "stamps",
        "holds",
        "quarantine",
        "leases",
        "versions",
        "nonces",
        "removed",
        "moved",
        "terminating",
        "nominated",
        "damaged",
    ),
)

_SCAN_STEP = 2000
_AT_ONCE = 20_000  # reservations and definitions that are read in one step of Redis, which takes 8 ms


def shard_keys(prefix: str, shards: int) -> list[list[str]]:
    """The keys of each shard."""
    return [[f"{{{prefix}:{shard}}}:{key}" for key in SHARD_KEYS] for shard in range(shards)]


def writer_members(epoch: str, known: Position, nonce: str, writer: Writer = ANYBODY) -> packing.Members:
    """What every script has: who writes, and what the writer knows (lua/prelude.lua)."""
    return {
        "ledger": epoch,
        "known_seq": known.seq,
        "known_nonce": known.nonce or None,
        "nonce": nonce,
        "term": writer.term,
        "journal_write": writer.journal_write or None,
        "epoch": None if writer.epoch is None else str(writer.epoch),
        "worker": writer.worker,
    }


class RedisShards:
    """All shards of one ledger. Who opens the ledger sets keys, epoch and shards."""

    def __init__(
        self, url: str, prefix: str, open_redis: OpenRedis, rng: random.Random, feed_window: int
    ) -> None:
        self.scripts = ScriptRunner(url, open_redis)
        self._feed_window = feed_window
        self._rng = rng  # for nonces
        self._prefix = prefix
        self._keys: list[list[str]] = []
        self._watermarks: list[Position] = []  # by shard, the highest
        # The schema as last read: caches rely on its order, even if Redis loses it.
        self.resources: list[str] = []
        self.epoch = ""
        self.shards = 0
        self.leases_ended: list[int] = []
        self.damaged_commits: list[list[str]] = []
        self.unfinished_moves: list[int] = []

    @property
    def _schema_key(self) -> str:
        return f"{{{self._prefix}}}:schema"

    @property
    def epochs_key(self) -> str:
        """The last worker epoch granted."""
        return f"{{{self._prefix}}}:epochs"

    @property
    def grants_key(self) -> str:
        """To whom the latest worker epochs were granted."""
        return f"{{{self._prefix}}}:grants"

    def _call(
        self, script: str, shard: int, members: packing.Members, writer: Writer, nonce: str = ""
    ) -> Call:
        """The call of a script, with what prelude.lua checks."""
        who = writer_members(self.epoch, self._watermarks[shard], nonce or self.new_nonce(), writer)
        return (
            script,
            self._keys[shard],
            [packing.argument({**who, "window": self._feed_window, **members})],
        )

    def new_nonce(self) -> str:
        """Marks one change of a shard."""
        return f"{self._rng.getrandbits(48):012x}"

    def keys_of(self, shard: int) -> list[str]:
        """The shard's keys, in the order of SHARD_KEYS."""
        return self._keys[shard]

    def watermark(self, shard: int) -> Position:
        """The highest position of the shard that this resolver knows."""
        return self._watermarks[shard]

    def _raise_watermark(self, shard: int, seq: int, nonce: str) -> None:
        if seq > self._watermarks[shard].seq:
            self._watermarks[shard] = Position(seq, nonce)

    async def run(self, script: str, shard: int, writer: Writer = ANYBODY, **members: Any) -> Any:
        """Run a script on the shard, with these members of its argument."""
        return await self.scripts.run(*self._call(script, shard, members, writer))

    async def position(self, shard: int) -> Position:
        """The shard's position now. Raises LedgerLostError where it is not the history that is known."""
        with stored.damage_named(shard):
            seq, nonce = await self.run("check", shard)
            found = Position(int(seq), nonce.decode())
            self._raise_watermark(shard, *found)
            return found

    async def schema(self, names: Sequence[str] = (), *, incomplete: bool = False) -> list[str]:
        least = 0 if incomplete else len(self.resources)
        found = [
            name.decode() for name in await self.scripts.run("schema", [self._schema_key], [least, *names])
        ]
        self.resources = max(self.resources, found, key=len)
        return found

    async def _read(
        self, shard: int, *commands: tuple[Any, ...], incomplete: bool = False
    ) -> tuple[Position, list[Any]]:
        """Replies of commands run at one moment, and the shard's position then. Not a script: native replies
        cost half.

        `incomplete`: of a ledger that waits to be rebuilt, too.
        """
        watermark = self._watermarks[shard]  # before it is asked: another reply may come first
        async with self.scripts.unavailable_when_failing():
            meta = self._keys[shard][0]
            transaction = (await self.scripts.access.at(meta)).pipeline(transaction=True)
            transaction.hmget(meta, ["epoch", "seq", "nonce"])
            transaction.getrange(self._keys[shard][19], *stored.nonce_range(watermark.seq))
            for command in commands:
                getattr(transaction, command[0])(*command[1:])
            (epoch, seq, nonce), kept_nonce, *replies = await transaction.execute()
        found = (epoch or b"").decode()
        if found != self.epoch and not incomplete:
            raise other_ledger(found)
        found_at = Position(int(seq or 0), (nonce or b"").decode())
        if found != self.epoch:
            return found_at, replies
        is_kept = found_at.seq - watermark.seq < stored.NONCES_KEPT
        there = Position(watermark.seq, kept_nonce.decode() if is_kept else "")
        if found_at.seq < watermark.seq or there.differs(watermark):
            raise lost_changes(found_at.seq, watermark.seq)
        self._raise_watermark(shard, *found_at)
        return found_at, replies

    async def scan(
        self,
        shard: int,
        key: int,
        *commands: tuple[Any, ...],
        step: int = _SCAN_STEP,
        incomplete: bool = False,
    ) -> AsyncGenerator[tuple[Position, dict[bytes, bytes], list[Any]], None]:
        """A hash in slices of about `step` entries, each at a moment of its own, with the replies of the
        commands then. `key` is a position in SHARD_KEYS. An entry may be in two slices, and one that comes or
        goes meanwhile in none."""
        cursor = 0
        while True:
            slice_of_hash = ("hscan", self._keys[shard][key], cursor, None, step)
            at, ((cursor, part), *replies) = await self._read(
                shard, slice_of_hash, *commands, incomplete=incomplete
            )
            yield at, part, replies
            if cursor == 0:
                return

    async def _read_with_reservations(
        self, shard: int, *commands: tuple[Any, ...], incomplete: bool
    ) -> tuple[Position, dict[bytes, bytes], dict[bytes, bytes], list[Any]]:
        """As `_read`, with all reservations and all definitions of groups of the same moment.

        Many are read in slices, so that they do not hold up Redis. If the shard has changed meanwhile, they
        are read once more, in one step. A shard that waits to be rebuilt does not change."""
        large = self._keys[shard][5], self._keys[shard][10]
        position, counts = await self._read(shard, *(("hlen", key) for key in large), incomplete=incomplete)
        if sum(counts) > _AT_ONCE:
            held = await self._unchanged(shard, 5, position, incomplete=incomplete)
            if held is not None:
                definitions = await self._unchanged(shard, 10, position, incomplete=incomplete)
                now, replies = await self._read(shard, *commands, incomplete=incomplete)
                if definitions is not None and now == position:
                    return now, held, definitions, replies
        position, (held, definitions, *replies) = await self._read(
            shard, *(("hgetall", key) for key in large), *commands, incomplete=incomplete
        )
        return position, held, definitions, replies

    async def _unchanged(
        self, shard: int, key: int, position: Position, *, incomplete: bool
    ) -> dict[bytes, bytes] | None:
        """A hash, read in slices; None if the shard was not at this position at each of them."""
        found: dict[bytes, bytes] = {}
        async with contextlib.aclosing(self.scan(shard, key, incomplete=incomplete)) as slices:
            async for at, part, _ in slices:
                if at != position:
                    return None
                found |= part
        return found

    async def _readable(self, shard: int, held: dict[bytes, bytes]) -> dict[bytes, bytes]:
        """Those of these reservations that can be read. The others are set aside, unless the ledger waits to
        be rebuilt or is away."""
        unreadable = set(stored.unreadable(held))
        if not unreadable:
            return held
        with contextlib.suppress(LedgerUnavailable):
            await self.run("set_aside", shard, uids=sorted(unreadable))
        return {uid: record for uid, record in held.items() if uid not in unreadable}
