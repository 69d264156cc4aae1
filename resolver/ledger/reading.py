"""The ledger in Redis: where its keys are, how scripts and commands reach them, and what only looks."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hoss.wire.account import FLAG_GONE
from hoss.wire.columns import NONE_U32, U32, U64, UID_BYTES
from resolver.core.values import FeedEntry, GroupRun, Reservations, ShardState, Snapshot
from resolver.ledger import stored
from resolver.ledger.scripts import Call, ScriptRunner, another, went_back

SHARD_KEYS = (
    *("meta", "accounts", "cards", "specs", "names", "reservations", "pending", "workers", "feed"),
    *("ports", "groups", "group_pods", "labels", "rules", "stamps", "holds", "quarantine"),
)

_SCAN_STEP = 2000
_FEED_STEP = 64
_ASSUMED_READ = 4000  # reservations
_NO_NODE = NONE_U32.to_bytes(4, "little")
_DEADLINE_BYTES = 8  # of a pending record, before its UIDs


def shard_keys(prefix: str, shards: int) -> list[list[str]]:
    """The keys of each shard."""
    return [[f"{{{prefix}:{shard}}}:{key}" for key in SHARD_KEYS] for shard in range(shards)]


class LedgerReading:
    """See resolver.ledger.port.Ledger for what the operations promise. Who opens the ledger sets keys, epoch and shards."""

    def __init__(self, url: str, prefix: str) -> None:
        self.scripts = ScriptRunner(url)
        self._prefix = prefix
        self._keys: list[list[str]] = []
        self._heard_of: list[int] = []  # by shard, the highest seq
        self.resources: list[str] = []  # the schema, as last heard: caches go by its order, even if Redis loses it
        self.epoch = ""
        self.shards = 0

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

    def _call(self, script: str, shard: int, *arguments: Any) -> Call:
        return script, self._keys[shard], [f"{self.epoch} {self._heard_of[shard]}", *arguments]

    def keys_of(self, shard: int) -> list[str]:
        """The shard's keys, in the order of SHARD_KEYS."""
        return self._keys[shard]

    def highest_seq(self, shard: int) -> int:
        """The highest that the shard was heard to stand at."""
        return self._heard_of[shard]

    def heard_of(self, shard: int, seq: int) -> None:
        self._heard_of[shard] = max(self._heard_of[shard], seq)

    async def _run(self, script: str, shard: int, *arguments: Any) -> Any:
        return await self.scripts.run(*self._call(script, shard, *arguments))

    async def schema(self, names: Sequence[str] = (), *, left: bool = False) -> list[str]:
        least = 0 if left else len(self.resources)
        found = [name.decode() for name in await self.scripts.run("schema", [self._schema_key], [least, *names])]
        self.resources = max(self.resources, found, key=len)
        return found

    async def _read(self, shard: int, *commands: tuple[Any, ...], left: bool = False) -> tuple[int, list[Any]]:
        """Replies of commands run at one moment, and the shard's seq then. Not a script: native replies cost half.

        `left`: of a ledger that waits to be rebuilt, too.
        """
        heard_of = self._heard_of[shard]  # before it is asked: another reply may come first
        async with self.scripts.unavailable_when_failing():
            meta = self._keys[shard][0]
            transaction = (await self.scripts.access.at(meta)).pipeline(transaction=True)
            transaction.hmget(meta, ["epoch", "seq"])
            for command in commands:
                getattr(transaction, command[0])(*command[1:])
            (epoch, seq), *replies = await transaction.execute()
        found = (epoch or b"").decode()
        if found != self.epoch and not left:
            raise another(found)
        if found != self.epoch:
            return int(seq or 0), replies
        if int(seq) < heard_of:
            raise went_back(int(seq), heard_of)
        self.heard_of(shard, int(seq))
        return int(seq), replies

    async def node_indexes(self, shard: int, names: Sequence[str]) -> NDArray[np.uint32]:
        _, (indexes,) = await self._read(shard, ("hmget", self._keys[shard][4], list(names)))
        return np.frombuffer(b"".join(index or _NO_NODE for index in indexes), U32)

    async def seq(self, shard: int) -> int:
        return (await self._read(shard))[0]

    async def quarantine_records(self, shard: int) -> dict[bytes, bytes]:
        """Nodes in quarantine, as they are kept."""
        _, (records,) = await self._read(shard, ("hgetall", self._keys[shard][-1]))
        return dict(records)

    async def snapshot(self, shard: int, *, groups: bool = False, left: bool = False) -> Snapshot:
        keys = self._keys[shard]
        resources = len(await self.schema()) if groups else 0
        seq, (accounts, cards, specs, *pods) = await self._read(
            shard,
            *(("hgetall", keys[key]) for key in (1, 2, 3)),
            *(("hgetall", keys[key]) for key in (5, 10, 15) if groups),
            left=left,
        )
        runs: tuple[GroupRun, ...] = ()
        holds: tuple[int, ...] = ()
        if groups:
            _, records = stored.read_reservations(pods[0], resources)
            holds = tuple(sorted(map(int, pods[2])))
            records = records[~np.isin(records["seq"], np.array(holds, np.uint64))]
            runs = stored.runs_of_reservations(records, {_key(key): text for key, text in pods[1].items()})
        live = {i: a for i, a in accounts.items() if not a[16] & FLAG_GONE}
        return replace(_snapshot(seq, live, cards, specs), runs=runs, holds=holds)

    async def nodes_named(self, shard: int, names: Sequence[str]) -> dict[str, tuple[int, bytes]]:
        keys = self._keys[shard]
        _, (found,) = await self._read(shard, ("hmget", keys[4], list(names)))
        indexes = {name: index for name, index in zip(names, found, strict=True) if index is not None}
        if not indexes:
            return {}
        _, (specs,) = await self._read(shard, ("hmget", keys[3], list(indexes.values())))
        return {
            name: (_key(index), spec)
            for (name, index), spec in zip(indexes.items(), specs, strict=True)
            if spec is not None
        }

    async def state(self, shard: int) -> ShardState:
        keys = self._keys[shard]
        seq, (accounts, cards, specs, held, ports, groups, group_pods, pending, holds) = await self._read(
            shard,
            *(("hgetall", keys[key]) for key in (1, 2, 3, 5, 9, 10, 11)),
            *(("hkeys", keys[key]) for key in (6, 15)),
            left=True,
        )
        resources = max(len(await self.schema(left=True)), 1)
        return ShardState(
            replace(_snapshot(seq, accounts, cards, specs), holds=tuple(sorted(map(int, holds)))),
            _reservations(held, pending, resources),
            {_key(node): stored.read_ports(record) for node, record in ports.items()},
            {_key(key): (groups.get(key, b""), int(pods)) for key, pods in group_pods.items()},
        )

    async def reservations(self, shard: int) -> AsyncIterator[Reservations]:
        keys, cursor = self._keys[shard], 0
        while True:
            resources = max(len(await self.schema(left=True)), 1)
            _, ((cursor, held), pending) = await self._read(
                shard, ("hscan", keys[5], cursor, None, _SCAN_STEP), ("hkeys", keys[6]), left=True
            )
            if held:
                yield _reservations(held, pending, resources)
            if cursor == 0:
                return

    async def knows(self, shard: int, worker: str) -> bool:
        _, (there,) = await self._read(shard, ("hexists", self._keys[shard][7], worker))
        return bool(there)

    async def assumed(self, shard: int, nodes: NDArray[np.uint32]) -> Reservations:
        keys = self._keys[shard]
        resources = len(await self.schema())
        _, (pending,) = await self._read(shard, ("hgetall", keys[6]))
        latest = sorted(pending, key=int, reverse=True)
        uids: list[bytes] = []
        while latest and len(uids) < _ASSUMED_READ:
            listed = pending[latest.pop(0)][_DEADLINE_BYTES:]
            uids += [listed[at : at + UID_BYTES] for at in range(0, len(listed), UID_BYTES)]
        _, (records,) = await self._read(shard, ("hmget", keys[5], uids)) if uids else (0, ([],))
        held = {uid: record for uid, record in zip(uids, records, strict=True) if record is not None}
        found = _reservations(held, list(pending), resources)
        here = found.assumed & np.isin(found.records["node"], nodes)
        return Reservations(found.uids[here], found.records[here], found.assumed[here], resources)

    async def workers_of(self, epochs: Sequence[int]) -> dict[int, str]:
        if not epochs:
            return {}
        async with self.scripts.unavailable_when_failing():
            server = await self.scripts.access.at(self.grants_key)
            names: Any = await server.hmget(self.grants_key, list(map(str, epochs)))
        return {epoch: name.decode() for epoch, name in zip(epochs, names, strict=True) if name is not None}

    async def feed(self, shard: int, after: int, wait_ms: int) -> list[FeedEntry] | None:
        key = self._keys[shard][8]
        async with self.scripts.unavailable_when_failing():
            server = await self.scripts.waiting.at(key)
            reply: Any = await server.xread({key: f"{after}-0"}, count=_FEED_STEP, block=wait_ms)
        if not reply:
            return []
        raw = reply[key.encode()][0] if isinstance(reply, dict) else reply[0][1]
        entries = [_feed_entry(int(entry_id.split(b"-")[0]), fields) for entry_id, fields in raw]
        # Up to a gap: beyond it nobody may read on without the state.
        return [entry for place, entry in enumerate(entries, after + 1) if entry.seq == place] or None

    async def check(self) -> dict[str, str]:
        for shard in range(self.shards):
            await self._read(shard)
        async with self.scripts.unavailable_when_failing():
            facts = await (await self.scripts.access.at(self._schema_key)).info()
        # Valkey names itself and its own version; its redis_version is the one of Redis that it is compatible with.
        server = "valkey" if "valkey_version" in facts else "redis"
        return {
            "server": server,
            "version": str(facts[f"{server}_version"]),
            "mode": str(facts.get("server_mode") or facts["redis_mode"]),  # Valkey 9 has the first name alone
            "persistence": "append-only" if facts["aof_enabled"] else "none",
            "used_memory_bytes": str(facts["used_memory"]),
        }

    async def counts(self) -> tuple[int, int]:
        nodes = reservations = 0
        for shard, keys in enumerate(self._keys):
            _, (here, held) = await self._read(shard, ("hlen", keys[3]), ("hlen", keys[5]))
            nodes, reservations = nodes + int(here), reservations + int(held)
        return nodes, reservations


def _key(field: bytes) -> int:
    return int.from_bytes(field, "little")


def _snapshot(
    seq: int,
    accounts: dict[bytes, bytes],
    cards: dict[bytes, bytes],
    specs: dict[bytes, bytes],
) -> Snapshot:
    return Snapshot(
        seq,
        stored.joined_accounts(accounts, cards),
        {_key(index): spec for index, spec in specs.items()},
    )


def _reservations(held: dict[bytes, bytes], pending: list[bytes], resources: int) -> Reservations:
    uids, records = stored.read_reservations(held, resources)
    assumed = np.isin(records["seq"], np.array([int(seq) for seq in pending], np.uint64))
    return Reservations(uids, records, assumed, resources)


def _feed_entry(seq: int, fields: dict[bytes, bytes]) -> FeedEntry:
    specs, packed, at = [], fields.get(b"s", b""), 0
    while at < len(packed):
        index, length = np.frombuffer(packed, U32, 2, at).tolist()
        specs.append((index, packed[at + 8 : at + 8 + length]))
        at += 8 + length
    return FeedEntry(
        seq,
        stored.account_rows(fields[b"R"], fields[b"n"], fields[b"a"], fields.get(b"k", b""), fields.get(b"c", b"")),
        tuple(specs),
        tuple(np.frombuffer(fields.get(b"g", b""), U32).tolist()),
        int(fields.get(b"x", 0)),
        stored.read_runs(fields.get(b"p", b"")),
        stored.read_evictions(fields.get(b"v", b"")),
        b"h" in fields,
        tuple(np.frombuffer(fields.get(b"e", b""), U64).tolist()),
        int(fields.get(b"w", 0)),
    )
