"""The ledger in Redis: its read operations."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hoss.wire.columns import FLAG_GONE, NONE_U32, U32, U64, Uids
from hoss.wire.uids import UID_BYTES
from resolver.core.commits import UnconfirmedCommits, commit_seqs
from resolver.core.values import (
    UNCOUNTED,
    DispatcherMarks,
    FeedEntry,
    Position,
    Reservations,
    ShardState,
    Snapshot,
)
from resolver.ledger import packing, stored
from resolver.ledger.port import LedgerSummary
from resolver.ledger.rules import RULES_STEP
from resolver.ledger.shards import SHARD_KEYS, RedisShards

# What counts the entries of a key that is no hash. The nonces have a fixed size.
_SIZE_COMMANDS = {"feed": "xlen", "leases": "zcard"}
_UNSIZED = frozenset(("meta", "nonces"))

_FEED_STEP = 64
_ASSUMED_READ = 4000  # reservations
_NO_NODE = NONE_U32.to_bytes(4, "little")


def _sized(keys: list[str]) -> list[tuple[str, str]]:
    return [(name, key) for name, key in zip(SHARD_KEYS, keys, strict=True) if name not in _UNSIZED]


class LedgerReading(RedisShards):
    """See resolver.ledger.port.Ledger for what the operations promise."""

    async def node_indexes(self, shard: int, names: Sequence[str]) -> NDArray[np.uint32]:
        _, (indexes,) = await self._read(shard, ("hmget", self._keys[shard][4], list(names)))
        return np.frombuffer(b"".join(index or _NO_NODE for index in indexes), U32)

    async def seq(self, shard: int) -> int:
        with stored.damage_named(shard):
            return (await self._read(shard))[0].seq

    async def quarantine_records(self, shard: int) -> dict[bytes, bytes]:
        """Nodes in quarantine, as stored."""
        _, (records,) = await self._read(shard, ("hgetall", self._keys[shard][16]))
        return dict(records)

    async def snapshot(self, shard: int, *, groups: bool = False, incomplete: bool = False) -> Snapshot:
        with stored.damage_named(shard):
            keys = self._keys[shard]
            resources = len(await self.schema()) if groups else 0
            nodes = [("hgetall", keys[key]) for key in (1, 2, 3)]
            if not groups:
                position, columns = await self._read(shard, *nodes, incomplete=incomplete)
                return _live_snapshot(position, *columns)
            position, held, definitions, replies = await self._read_with_reservations(
                shard, *nodes, ("hkeys", keys[15]), incomplete=incomplete
            )
            accounts, cards, specs, holds = replies
            await asyncio.sleep(0)  # others get their turn between steps
            _, records = stored.read_reservations(await self._readable(shard, held), resources)
            prepared = tuple(sorted(commit_seqs(holds)))
            records = records[~np.isin(records["seq"], np.array(prepared, np.uint64))]
            await asyncio.sleep(0)
            runs = stored.runs_of_reservations(
                records, {stored.number(key): text for key, text in definitions.items()}
            )
            await asyncio.sleep(0)
            return replace(_live_snapshot(position, accounts, cards, specs), runs=runs, prepared=prepared)

    async def node_names(self, shard: int) -> list[str]:
        with stored.damage_named(shard):
            _, (names,) = await self._read(shard, ("hkeys", self._keys[shard][4]))
            return [name.decode() for name in names]

    async def snapshot_of(self, shard: int, names: Sequence[str]) -> Snapshot:
        with stored.damage_named(shard):
            keys = self._keys[shard]
            _, (found,) = await self._read(shard, ("hmget", keys[4], list(names)))
            nodes = [index for index in found if index is not None]
            commands = [("hmget", keys[key], nodes) for key in (1, 2, 3)] if nodes else []
            position, columns = await self._read(shard, *commands)
            accounts, cards, specs = [_present(nodes, column) for column in columns] or ({}, {}, {})
            return _live_snapshot(position, accounts, cards, specs)

    async def nodes_named(self, shard: int, names: Sequence[str]) -> dict[str, tuple[int, bytes]]:
        with stored.damage_named(shard):
            keys = self._keys[shard]
            _, (found,) = await self._read(shard, ("hmget", keys[4], list(names)))
            indexes = {name: index for name, index in zip(names, found, strict=True) if index is not None}
            if not indexes:
                return {}
            _, (specs,) = await self._read(shard, ("hmget", keys[3], list(indexes.values())))
            return {
                name: (stored.number(index), spec)
                for (name, index), spec in zip(indexes.items(), specs, strict=True)
                if spec is not None
            }

    async def state(self, shard: int) -> ShardState:
        with stored.damage_named(shard):
            keys = self._keys[shard]
            position, held, groups, columns = await self._read_with_reservations(
                shard,
                *(("hgetall", keys[key]) for key in (1, 2, 3, 9, 11)),
                ("hgetall", keys[6]),
                ("hgetall", keys[15]),
                ("zrangebyscore", keys[17], "-inf", "+inf", None, None, True),
                ("hmget", keys[0], ["lease_time", "lease_seen"]),
                ("time",),
                ("hgetall", keys[21]),
                ("hgetall", keys[SHARD_KEYS.index("terminating")]),
                ("hgetall", keys[SHARD_KEYS.index("damaged")]),
                ("hgetall", keys[12]),
                incomplete=True,
            )
            accounts, cards, specs, ports, group_pods, pending, prepared, leases, *clocks = columns
            *clocks, moved, shares, damaged, labels = clocks
            await asyncio.sleep(0)  # others get their turn between steps
            readable = await self._readable(shard, held)
            damaged |= {uid: record for uid, record in held.items() if uid not in readable}
            resources = max(len(await self.schema(incomplete=True)), 1)
            nodes = stored.readable_nodes(accounts, cards, specs)
            reservations = _reservations(readable, list(pending), list(prepared), resources)
            await asyncio.sleep(0)
            counts, uncounted = stored.pod_counts(group_pods)
            holds, unheld = stored.pod_counts(prepared)
            unheld |= {field: pods for field, pods in prepared.items() if not commit_seqs([field])}
            unlisted = stored.unreadable_lists(pending, reservations.uids, reservations.records["seq"])
            odd = {
                "group_pods": uncounted,
                "pending": unlisted,
                "holds": unheld,
                "rules": await self._damaged_rules(shard),
            }
            commits = _unconfirmed(list(pending.keys() - unlisted.keys()), leases, holds, *clocks)
            return ShardState(
                replace(
                    _snapshot(position, nodes.accounts, nodes.cards, specs),
                    prepared=tuple(sorted(commit_seqs(prepared))),
                ),
                reservations,
                {stored.number(node): stored.read_ports(record) for node, record in ports.items()},
                {
                    stored.number(key): (groups.get(key, b""), counts.get(key, UNCOUNTED))
                    for key in group_pods
                    if len(key) == U64.itemsize
                },
                replace(
                    commits,
                    unlisted=frozenset(commit_seqs(unlisted)),
                    uncounted=frozenset(commit_seqs(unheld)),
                ),
                {uid: stored.read_source(record) for uid, record in moved.items()},
                {uid: stored.read_share(record) for uid, record in shares.items()},
                damaged,
                nodes.damaged_accounts,
                nodes.damaged_cards,
                labels,
                {key: records for key, records in odd.items() if records},
            )

    async def damaged_versions(self, shard: int) -> dict[bytes, bytes]:
        damaged: dict[bytes, bytes] = {}
        async for _, versions, _ in self.scan(shard, 14, incomplete=True):
            damaged |= stored.unreadable_versions(versions, self.shards)
        return damaged

    async def _damaged_rules(self, shard: int) -> dict[bytes, bytes]:
        damaged: dict[bytes, bytes] = {}
        async for at, rules, _ in self.scan(shard, 13, step=RULES_STEP, incomplete=True):
            damaged |= packing.read_rules(rules, at.seq, {})[1]
        return damaged

    async def reservations(self, shard: int) -> AsyncIterator[Reservations]:
        commits = [("hkeys", self._keys[shard][key]) for key in (6, 15)]
        async for _, held, (pending, prepared) in self.scan(shard, 5, *commits, incomplete=True):
            resources = max(len(await self.schema(incomplete=True)), 1)
            readable = await self._readable(shard, held)
            if readable:
                with stored.damage_named(shard):
                    read = _reservations(readable, pending, prepared, resources)
                yield read

    async def reservations_of(self, shard: int, uids: Uids) -> Reservations:
        with stored.damage_named(shard):
            keys, asked = self._keys[shard], [uid.tobytes() for uid in uids]
            resources = len(await self.schema())
            if not asked:
                return _reservations({}, [], [], resources)
            _, (records, pending, prepared) = await self._read(
                shard, ("hmget", keys[5], asked), ("hkeys", keys[6]), ("hkeys", keys[15])
            )
            held = await self._readable(shard, _present(asked, records))
            return _reservations(held, pending, prepared, resources)

    async def nominated(self, shard: int, uids: Uids) -> NDArray[np.bool_]:
        key, asked = self._keys[shard][SHARD_KEYS.index("nominated")], [uid.tobytes() for uid in uids]
        _, (found,) = await self._read(shard, ("hmget", key, asked)) if asked else (0, ([],))
        return np.array([victims is not None for victims in found], np.bool_)

    async def definitions(self, shard: int, uids: Uids) -> list[bytes]:
        with stored.damage_named(shard):
            keys, asked = self._keys[shard], [uid.tobytes() for uid in uids]
            resources = len(await self.schema())
            _, (records,) = await self._read(shard, ("hmget", keys[5], asked)) if asked else (0, ([],))
            held = await self._readable(shard, _present(asked, records))
            found, rows = stored.read_reservations(held, resources)
            of_pods = dict(zip(map(bytes, found), rows["group"].tolist(), strict=True))
            groups = sorted({key for key in of_pods.values() if key})
            fields = [key.to_bytes(8, "little") for key in groups]
            _, (texts,) = await self._read(shard, ("hmget", keys[10], fields)) if fields else (0, ([],))
            by_key = dict(zip(groups, texts, strict=True))
            return [by_key.get(of_pods.get(uid, 0)) or b"" for uid in asked]

    async def is_registered(self, shard: int, worker: str) -> bool:
        _, (there,) = await self._read(shard, ("hexists", self._keys[shard][7], worker))
        return bool(there)

    async def assumed(self, shard: int, nodes: NDArray[np.uint32]) -> Reservations:
        with stored.damage_named(shard):
            keys = self._keys[shard]
            resources = len(await self.schema())
            _, (pending,) = await self._read(shard, ("hgetall", keys[6]))
            latest = sorted(commit_seqs(pending), reverse=True)
            uids: list[bytes] = []
            while latest and len(uids) < _ASSUMED_READ:
                listed = pending.get(b"%d" % latest.pop(0), b"")
                uids += [listed[at : at + UID_BYTES] for at in range(0, len(listed), UID_BYTES)]
            _, (records,) = await self._read(shard, ("hmget", keys[5], uids)) if uids else (0, ([],))
            held = await self._readable(shard, _present(uids, records))
            found = _reservations(held, list(pending), [], resources)
            return found.of(found.assumed & np.isin(found.records["node"], nodes))

    async def workers_of(self, epochs: Sequence[int]) -> dict[int, str]:
        if not epochs:
            return {}
        async with self.scripts.unavailable_when_failing():
            server = await self.scripts.access.at(self.grants_key)
            names: Any = await server.hmget(self.grants_key, list(map(str, epochs)))
        return {epoch: name.decode() for epoch, name in zip(epochs, names, strict=True) if name is not None}

    async def feed(self, shard: int, after: int, wait_ms: int) -> list[FeedEntry] | None:
        with stored.damage_named(shard):
            key, epoch = self._keys[shard][8], self.epoch
            async with self.scripts.unavailable_when_failing():
                server = await self.scripts.waiting.at(key)
                reply: Any = await server.xread({key: f"{after}-0"}, count=_FEED_STEP, block=wait_ms)
            if not reply:
                return []
            raw = reply[key.encode()][0] if isinstance(reply, dict) else reply[0][1]
            entries = [feed_entry(int(entry_id.split(b"-")[0]), fields) for entry_id, fields in raw]
            if entries and self.epoch == epoch:  # else it is the history of a ledger that was left meanwhile
                self._raise_watermark(shard, entries[-1].seq, entries[-1].nonce)
            # Up to a gap: after it a follower needs a snapshot.
            return [entry for place, entry in enumerate(entries, after + 1) if entry.seq == place] or None

    async def table_sizes(self) -> dict[str, int]:
        sizes: Counter[str] = Counter()
        for shard, keys in enumerate(self._keys):
            commands = [(_SIZE_COMMANDS.get(name, "hlen"), key) for name, key in _sized(keys)]
            _, replies = await self._read(shard, *commands)
            here = {name: int(size) for (name, _), size in zip(_sized(keys), replies, strict=True)}
            sizes.update(here)
            sizes["fullest_shard"] = max(sizes["fullest_shard"], here["reservations"])
        async with self.scripts.unavailable_when_failing():
            server = await self.scripts.access.at(self.grants_key)
            sizes["grants"] = int(await server.hlen(self.grants_key))
        return dict(sizes)

    async def check(self) -> dict[str, str]:
        for shard in range(self.shards):
            await self.position(shard)
        async with self.scripts.unavailable_when_failing():
            facts = await (await self.scripts.access.at(self._schema_key)).info()
        # Valkey names itself and its own version; its redis_version is the one of Redis that it is compatible
        # with.
        server = "valkey" if "valkey_version" in facts else "redis"
        return {
            "server": server,
            "version": str(facts[f"{server}_version"]),
            "mode": str(facts.get("server_mode") or facts["redis_mode"]),  # Valkey 9 has the first name alone
            "persistence": "append-only" if facts["aof_enabled"] else "none",
            "used_memory_bytes": str(facts["used_memory"]),
        }

    async def nonce_at(self, shard: int, seq: int) -> str:
        entry_id, key = f"{seq}-0", self._keys[shard][8]
        async with self.scripts.unavailable_when_failing():
            server = await self.scripts.access.at(key)
            found = _position_of(await server.xrange(key, entry_id, entry_id))
        return "" if found is None else found.nonce

    async def summary(self) -> LedgerSummary:
        found = LedgerSummary()
        for shard, keys in enumerate(self._keys):
            _, (nodes, reservations, (term, journal), quarantined) = await self._read(
                shard,
                ("hlen", keys[3]),
                ("hlen", keys[5]),
                ("hmget", keys[0], ["term", "journal"]),
                ("hgetall", keys[16]),
            )
            with stored.damage_named(shard):
                of, number = map(int, (journal or b"0 0").split())
            found.nodes += int(nodes)
            found.reservations += int(reservations)
            found.marks = found.marks.newest(DispatcherMarks(int(term or 0), (of, number)))
            found.quarantined |= stored.read_quarantine(quarantined)
        return found


def _position_of(entries: Any) -> Position | None:
    """The position of the only feed entry; None: the feed does not have it any more."""
    if not entries:
        return None
    entry_id, fields = entries[0]
    return Position(int(entry_id.split(b"-")[0]), fields.get(b"o", b"").decode())


def _present(fields: list[bytes], values: list[bytes | None]) -> dict[bytes, bytes]:
    """The fields of a hash that have a value."""
    return {field: value for field, value in zip(fields, values, strict=True) if value is not None}


def _live_snapshot(
    position: Position, accounts: dict[bytes, bytes], cards: dict[bytes, bytes], specs: dict[bytes, bytes]
) -> Snapshot:
    """Of the nodes that are not removed."""
    nodes = stored.readable_nodes(accounts, cards, specs)
    live = {index: account for index, account in nodes.accounts.items() if not account[16] & FLAG_GONE}
    return _snapshot(position, live, nodes.cards, specs)


def _snapshot(
    position: Position, accounts: dict[bytes, bytes], cards: dict[bytes, bytes], specs: dict[bytes, bytes]
) -> Snapshot:
    return Snapshot(
        position.seq,
        stored.joined_accounts(accounts, cards),
        {stored.number(index): spec for index, spec in specs.items() if len(index) == U32.itemsize},
        nonce=position.nonce,
    )


def _reservations(
    held: dict[bytes, bytes], pending: list[bytes], prepared: list[bytes], resources: int
) -> Reservations:
    uids, records = stored.read_reservations(held, resources)

    def of_commits(seqs: list[bytes]) -> NDArray[np.bool_]:
        return np.isin(records["seq"], np.array(commit_seqs(seqs), np.uint64))

    resources = records["requests"].shape[1]
    return Reservations(uids, records, of_commits(pending), resources, of_commits(prepared))


def _unconfirmed(
    pending: list[bytes],
    leases: list[tuple[bytes, float]],
    prepared: dict[bytes, int],
    lease_clock: tuple[bytes | None, bytes | None],
    time: tuple[int, int],
) -> UnconfirmedCommits:
    clock_ms = stored.milliseconds(*time)
    return UnconfirmedCommits(
        frozenset(commit_seqs(pending)),
        {seq: int(deadline_ms) for field, deadline_ms in leases for seq in commit_seqs([field])},
        {seq: pods for field, pods in prepared.items() for seq in commit_seqs([field])},
        now_ms=clock_ms - stored.behind_clock_ms(*lease_clock, *time),
        unreaped_ms=0 if lease_clock[1] is None else clock_ms - int(lease_clock[1]),
    )


def feed_entry(seq: int, fields: dict[bytes, bytes]) -> FeedEntry:
    """An entry of the feed, from the fields that Redis stores."""
    specs, packed, at = [], fields.get(b"s", b""), 0
    while at < len(packed):
        index, length = np.frombuffer(packed, U32, 2, at).tolist()
        specs.append((index, packed[at + 8 : at + 8 + length]))
        at += 8 + length
    return FeedEntry(
        seq,
        stored.account_rows(
            fields[b"R"], fields[b"n"], fields[b"a"], fields.get(b"k", b""), fields.get(b"c", b"")
        ),
        tuple(specs),
        tuple(np.frombuffer(fields.get(b"g", b""), U32).tolist()),
        int(fields.get(b"x", 0)),
        stored.read_runs(fields.get(b"p", b"")),
        stored.read_evictions(fields.get(b"v", b"")),
        b"h" in fields,
        tuple(np.frombuffer(fields.get(b"e", b""), U64).tolist()),
        int(fields.get(b"w", 0)),
        fields.get(b"o", b"").decode(),
    )
