"""The ledger in Redis."""

import secrets
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgpack
import numpy as np
from numpy.typing import NDArray

from hoss.errors import ConfigError, LedgerUnavailable
from hoss.model.resources import BASE_RESOURCES
from hoss.wire.account import FLAG_GONE
from hoss.wire.columns import U32, UID_BYTES, Uids
from resolver.core.rules import RuleBook
from resolver.core.values import (
    Decision,
    FeedEntry,
    GroupRun,
    Leases,
    NodeChange,
    Proposal,
    Removed,
    Reservations,
    ShardState,
    Snapshot,
    Upserted,
)
from resolver.ledger import packing
from resolver.ledger.scripts import Call, ScriptRunner, went_back

_SHARD_KEYS = (
    *("meta", "accounts", "cards", "specs", "names", "reservations", "pending", "workers", "feed"),
    *("ports", "groups", "group_pods", "labels", "rules", "stamps", "quarantine"),
)

PreparedCommit = tuple[Call, NDArray[np.intp] | None]  # and the order in which its pods are served

# One script call handles this many rows at most, so that none holds Redis for more than a few milliseconds.
_STEP = 1000
_SCAN_STEP = 2000
_REAP_LOOKS = 1000
_FEED_STEP = 64
_RULE_READS = 10


class RedisLedger:
    """See resolver.ledger.port.Ledger for what the operations promise."""

    def __init__(
        self,
        url: str,
        *,
        prefix: str = "hoss",
        lease_ms: int = 30_000,
        hold_ms: int = 5_000,
        feed_window: int = 1000,
    ) -> None:
        """`prefix` begins every key. `lease_ms`, `hold_ms`: see Leases. `feed_window`: entries kept."""
        self._scripts = ScriptRunner(url)
        self._prefix = prefix
        self._leases = Leases(lease_ms, hold_ms)
        self._feed_window = feed_window
        self._keys: list[list[str]] = []
        self._rules: list[RuleBook] = []  # by shard, as last read
        self._heard_of: list[int] = []  # by shard, the highest seq
        self.epoch = ""
        self.shards = 0

    async def open(self, shards: int) -> None:
        """Find the ledger, or make it where there is none. Raises ConfigError when it has another number of shards."""
        await self._scripts.load()
        self._keys = [[f"{{{self._prefix}:{shard}}}:{key}" for key in _SHARD_KEYS] for shard in range(shards)]
        epoch = secrets.token_hex(8)
        for shard in range(shards):
            found, found_shards, seq = await self._scripts.run("bootstrap", self._keys[shard][:1], [epoch, shards])
            if int(found_shards) != shards:
                raise ConfigError(
                    f"is {shards}, but the ledger in this Redis was made with {int(found_shards)}; nodes cannot change "
                    f"shards: set {int(found_shards)}, or use another Redis database",
                    where="shards",
                )
            # Shard 0 is made first and so decides the epoch of a ledger that several resolvers make at once.
            epoch = found.decode() if shard == 0 else epoch
            if found.decode() != epoch:
                raise LedgerUnavailable(
                    f"shard {shard} belongs to another ledger (epoch {found.decode()}, seq {int(seq)}) than shard 0 ({epoch})"
                )
        self.epoch, self.shards = epoch, shards
        self._rules = [RuleBook() for _ in range(shards)]
        self._heard_of = [0] * shards
        await self.schema(BASE_RESOURCES)

    async def close(self) -> None:
        """Close every connection."""
        await self._scripts.close()

    async def erase(self) -> None:
        """Delete every key of this ledger: for scratch ledgers of benchmarks."""
        async with self._scripts.unavailable_when_failing():
            for keys in (*self._keys, [self._schema_key, self._epochs_key]):
                await (await self._scripts.access.at(keys[0])).delete(*keys)

    @property
    def _schema_key(self) -> str:
        return f"{{{self._prefix}}}:schema"

    @property
    def _epochs_key(self) -> str:
        return f"{{{self._prefix}}}:epochs"

    def _call(self, script: str, shard: int, *arguments: Any) -> Call:
        return script, self._keys[shard], [f"{self.epoch} {self._heard_of[shard]}", *arguments]

    def heard_of(self, shard: int, seq: int) -> None:
        """The shard stood at `seq`. Found below that later it has lost what it acknowledged, and is unavailable."""
        self._heard_of[shard] = max(self._heard_of[shard], seq)

    async def _run(self, script: str, shard: int, *arguments: Any) -> Any:
        return await self._scripts.run(*self._call(script, shard, *arguments))

    async def run(self, script: str, shard: int, *arguments: Any) -> Any:
        """Run a script that changes the shard; its arguments begin after the feed window."""
        return await self._run(script, shard, self._feed_window, *arguments)

    async def quarantine_records(self, shard: int) -> dict[bytes, bytes]:
        """Nodes in quarantine, as they are kept."""
        _, (records,) = await self._read(shard, ("hgetall", self._keys[shard][-1]))
        return dict(records)

    # -- pods ---------------------------------------------------------------------------------------------------------

    async def commit(self, shard: int, proposals: Sequence[Proposal]) -> list[Decision]:
        try:
            return await self._commit(shard, proposals)
        except LedgerUnavailable:
            self._rules[shard] = RuleBook()  # it may come back without its last second, and the last rules
            raise

    async def _commit(self, shard: int, proposals: Sequence[Proposal]) -> list[Decision]:
        missing = self._rules[shard].missing(group for proposal in proposals for group in proposal.groups)
        if missing:
            await self._run("register_rules", shard, self._feed_window, packing.rule_arguments(missing))
            await self._read_rules(shard)
        decisions: list[Decision | None] = [None] * len(proposals)
        for _ in range(_RULE_READS):
            left = [position for position, decision in enumerate(decisions) if decision is None]
            prepared = self.prepare(shard, [proposals[position] for position in left])
            for position, decision in zip(left, await self.run_prepared(prepared), strict=True):
                decisions[position] = decision
            decided = [decision for decision in decisions if decision is not None]
            self.heard_of(shard, max((decision.seq for decision in decided), default=0))
            if len(decided) == len(proposals):
                return decided
            await self._read_rules(shard)  # another resolver registered one meanwhile
        raise LedgerUnavailable("rules about pods change faster than proposals are decided; try again")

    async def _read_rules(self, shard: int) -> None:
        keys = self._keys[shard]
        _, (version, records) = await self._read(shard, ("hget", keys[0], "rules"), ("hgetall", keys[13]))
        self._rules[shard] = packing.read_rules(records, int(version or 0))

    def prepare(self, shard: int, proposals: Sequence[Proposal]) -> list[PreparedCommit]:
        """The calls that decide the proposals, ready to be sent."""
        prepared = []
        for proposal in proposals:
            order = proposal.serving_order()
            arguments = packing.commit_arguments(proposal, order, self._leases.of(proposal), self._rules[shard])
            prepared.append((self._call("commit", shard, self._feed_window, *arguments), order))
        return prepared

    async def run_prepared(self, prepared: Sequence[PreparedCommit]) -> list[Decision | None]:
        """Send what `prepare` made, in one round trip. None: prepared by rules that are out of date."""
        replies = await self._scripts.run_all([call for call, _ in prepared])
        return [
            None if reply is None else packing.read_decision(reply, order)
            for reply, (_, order) in zip(replies, prepared, strict=True)
        ]

    async def release(self, shard: int, uids: Uids) -> int:
        return len(await self._release(shard, uids))

    async def _release(self, shard: int, uids: Uids, seqs: NDArray[np.uint64] | None = None) -> Uids:
        """Release what the pods hold; with `seqs`, only what that very commit reserved. Returns whose it was."""
        released = []
        for start in range(0, len(uids), _STEP):
            step = slice(start, start + _STEP)
            guard = b"" if seqs is None else seqs[step].astype("<u8").tobytes()
            released.append(
                await self._run("release", shard, self._feed_window, packing.string_array(uids[step]), guard)
            )
        return np.frombuffer(b"".join(released), np.uint8).reshape(-1, UID_BYTES)

    async def confirm(self, shard: int, seqs: NDArray[np.uint64]) -> int:
        confirmed = 0
        for start in range(0, len(seqs), _STEP):
            confirmed += int(await self._run("confirm", shard, *seqs[start : start + _STEP].tolist()))
        return confirmed

    async def keep(self, shard: int, uids: Uids, seqs: NDArray[np.uint64]) -> int:
        lease_ms, commits = self._leases.commit_ms, seqs.astype("<u8").tobytes()
        return int(await self._run("keep", shard, lease_ms, packing.string_array(uids), commits))

    async def withdraw(self, shard: int, uids: Uids, seqs: NDArray[np.uint64]) -> int:
        return len(await self._release(shard, uids, seqs))

    async def reap(self, shard: int) -> int:
        reaped, more = 0, 1
        while more:
            released, more = await self._run("reap", shard, self._feed_window, _REAP_LOOKS)
            reaped += int(released)
        return reaped

    async def lookup(self, shard: int, uids: Uids) -> NDArray[Any]:
        parts = [
            await self._run("lookup", shard, packing.string_array(uids[start : start + _STEP]))
            for start in range(0, len(uids), _STEP)
        ]
        return packing.read_lookup(b"".join(parts))

    async def grant(self, worker: str) -> int:
        while True:
            async with self._scripts.unavailable_when_failing():
                epoch = int(await (await self._scripts.access.at(self._epochs_key)).incr(self._epochs_key))
            holding = [int(await self._run("grant", shard, worker, epoch)) for shard in range(self.shards)]
            if holding == [epoch] * self.shards:
                return epoch
            # Another resolver granted this worker a later epoch at the same moment: ours is fenced already.

    # -- nodes --------------------------------------------------------------------------------------------------------

    async def upsert_nodes(self, shard: int, nodes: Sequence[NodeChange], expected: bytes = b"") -> Upserted | None:
        seq, indexes = 0, []
        over: list[int] = []
        for start in range(0, len(nodes), _STEP):
            step = nodes[start : start + _STEP]
            resources = max(len(node.allocatable) for node in step)
            rows = [amount for n in step for amount in (*n.allocatable, *[0] * (resources - len(n.allocatable)))]
            reply = await self._run(
                "upsert_nodes",
                shard,
                self._feed_window,
                resources,
                *(
                    msgpack.packb(values, use_bin_type=False)
                    for values in (
                        [node.name for node in step],
                        [node.spec for node in step],
                        rows,
                        [int(node.unschedulable) for node in step],
                        [node.cards for node in step],
                    )
                ),
                expected,
                msgpack.packb([msgpack.packb(dict(n.labels)) if n.labels else b"" for n in step], use_bin_type=False),
            )
            if reply is None:
                return None
            seq = int(reply[0])
            indexes.append(reply[1])
            over.extend(start + int(position) for position in reply[2])
        return Upserted(seq, np.frombuffer(b"".join(indexes), U32), over)

    async def remove_nodes(self, shard: int, names: Sequence[str]) -> Removed:
        missing: list[int] = []
        gone: dict[int, int] = {}  # node -> seq of its removal
        for start in range(0, len(names), _STEP):
            packed = msgpack.packb(list(names[start : start + _STEP]))
            seq, indexes, absent = await self._run("remove_nodes", shard, self._feed_window, packed)
            gone.update(dict.fromkeys(np.frombuffer(indexes, U32).tolist(), int(seq)))
            missing.extend(start + int(position) for position in absent)
        released = [np.empty((0, UID_BYTES), np.uint8)]
        # Nothing is reserved on a gone node any more, so one walk over the reservations finds all that was.
        async for part in self.reservations(shard):
            removed_at = np.array([gone.get(node, 0) for node in part.records["node"].tolist()], np.uint64)
            ours = part.records["seq"] < removed_at
            if ours.any():
                released.append(await self._release(shard, part.uids[ours], part.records["seq"][ours]))
        return Removed(np.concatenate(released), missing)

    async def schema(self, names: Sequence[str] = ()) -> list[str]:
        reply = await self._scripts.run("schema", [self._schema_key], names)
        return [name.decode() for name in reply]

    # -- reading ------------------------------------------------------------------------------------------------------

    async def _read(self, shard: int, *commands: tuple[Any, ...]) -> tuple[int, list[Any]]:
        """Replies of commands run at one moment, and the shard's seq then. Not a script: native replies cost half."""
        heard_of = self._heard_of[shard]  # before it is asked: another reply may come first
        async with self._scripts.unavailable_when_failing():
            meta = self._keys[shard][0]
            transaction = (await self._scripts.access.at(meta)).pipeline(transaction=True)
            transaction.hmget(meta, ["epoch", "seq"])
            for command in commands:
                getattr(transaction, command[0])(*command[1:])
            (epoch, seq), *replies = await transaction.execute()
        if epoch != self.epoch.encode():
            found = epoch.decode() if epoch else "none"
            raise LedgerUnavailable(f"the ledger in Redis has epoch {found}, this resolver opened {self.epoch}")
        if int(seq) < heard_of:
            raise LedgerUnavailable(went_back(int(seq), heard_of))
        self.heard_of(shard, int(seq))
        return int(seq), replies

    async def seq(self, shard: int) -> int:
        return (await self._read(shard))[0]

    async def snapshot(self, shard: int, *, groups: bool = False) -> Snapshot:
        keys = self._keys[shard]
        resources = len(await self.schema()) if groups else 0
        seq, (accounts, cards, specs, *pods) = await self._read(
            shard,
            *(("hgetall", keys[key]) for key in (1, 2, 3)),
            *(("hgetall", keys[key]) for key in (5, 10) if groups),
        )
        runs: tuple[GroupRun, ...] = ()
        if groups:
            _, records = packing.read_reservations(pods[0], resources)
            runs = packing.runs_of_reservations(records, {_key(key): text for key, text in pods[1].items()})
        return _snapshot(seq, {i: a for i, a in accounts.items() if not a[16] & FLAG_GONE}, cards, specs, runs)

    async def state(self, shard: int) -> ShardState:
        keys = self._keys[shard]
        seq, (accounts, cards, specs, held, ports, groups, group_pods, pending) = await self._read(
            shard,
            *(("hgetall", keys[key]) for key in (1, 2, 3, 5, 9, 10, 11)),
            ("hkeys", keys[6]),
        )
        resources = max(len(await self.schema()), 1)
        return ShardState(
            _snapshot(seq, accounts, cards, specs),
            _reservations(held, pending, resources),
            {_key(node): packing.read_ports(record) for node, record in ports.items()},
            {_key(key): (groups.get(key, b""), int(pods)) for key, pods in group_pods.items()},
        )

    async def reservations(self, shard: int) -> AsyncIterator[Reservations]:
        keys, cursor = self._keys[shard], 0
        while True:
            resources = len(await self.schema())
            _, ((cursor, held), pending) = await self._read(
                shard, ("hscan", keys[5], cursor, None, _SCAN_STEP), ("hkeys", keys[6])
            )
            if held:
                yield _reservations(held, pending, resources)
            if cursor == 0:
                return

    async def feed(self, shard: int, after: int, wait_ms: int) -> list[FeedEntry] | None:
        key = self._keys[shard][8]
        async with self._scripts.unavailable_when_failing():
            server = await self._scripts.access.at(key)
            reply: Any = await server.xread({key: f"{after}-0"}, count=_FEED_STEP, block=wait_ms)
        if not reply:
            return []
        raw = reply[key.encode()][0] if isinstance(reply, dict) else reply[0][1]
        entries = [_feed_entry(int(entry_id.split(b"-")[0]), fields) for entry_id, fields in raw]
        return entries if entries[0].seq == after + 1 else None

    async def check(self) -> dict[str, str]:
        for shard in range(self.shards):
            await self._read(shard)
        async with self._scripts.unavailable_when_failing():
            facts = await (await self._scripts.access.at(self._schema_key)).info()
        return {
            "version": str(facts["redis_version"]),
            "mode": str(facts["redis_mode"]),
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
    runs: tuple[GroupRun, ...] = (),
) -> Snapshot:
    return Snapshot(
        seq,
        packing.joined_accounts(accounts, cards),
        {_key(index): spec for index, spec in specs.items()},
        runs,
    )


def _reservations(held: dict[bytes, bytes], pending: list[bytes], resources: int) -> Reservations:
    uids, records = packing.read_reservations(held, resources)
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
        packing.account_rows(fields[b"R"], fields[b"n"], fields[b"a"], fields.get(b"k", b""), fields.get(b"c", b"")),
        tuple(specs),
        tuple(np.frombuffer(fields.get(b"g", b""), U32).tolist()),
        int(fields.get(b"x", 0)),
        packing.read_runs(fields.get(b"p", b"")),
        packing.read_evictions(fields.get(b"v", b"")),
    )
