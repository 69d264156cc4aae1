"""Replaces the ledger in Redis: loads each shard under keys of its own, beside the old shard, and renames
them.

The meta of shard 0 holds the ledger's identity. It gets a recovery tombstone first and its new epoch last. So
a resolver that dies on the way leaves a ledger that is visibly broken, still holds everything, and is rebuilt
by the next attempt. Every step checks the tombstone of its own rebuild, so of two concurrent rebuilds only
the later one can finish."""

import random
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgpack
import numpy as np

from hoss.host import THIS_HOST
from resolver.core.commits import LeaseRule
from resolver.core.consistency.contents import Contents
from resolver.core.consistency.repair import Repair
from resolver.core.values import Position, reservation_dtype
from resolver.ledger import packing, stored
from resolver.ledger.port import LedgerLostError
from resolver.ledger.scripts import RECOVERING, is_tombstone, other_ledger
from resolver.ledger.shards import SHARD_KEYS, writer_members
from resolver.ledger.store import FORMAT, RedisLedger

_LOADED = tuple(
    SHARD_KEYS.index(key)
    for key in (
        *("accounts", "cards", "specs", "names", "reservations", "pending", "workers"),
        *("ports", "groups", "group_pods", "labels", "rules", "stamps", "holds"),
    )
)
_STEP = 1000  # fields per script call

Hash = dict[bytes, bytes]


class StoredField(NamedTuple):
    """A field of one of a shard's hashes as it was read. None: it was missing."""

    key: str  # one of SHARD_KEYS
    field: bytes
    value: bytes | None


class RebuildStatus(NamedTuple):
    """What a shard's meta contains: the ledger's epoch, a recovery tombstone or ""; the seq; and the highest
    term of a dispatcher."""

    epoch: str
    seq: int
    term: int


class RedisRebuild:
    """Rebuilds and repairs the shards of an opened ledger. Raises LedgerUnavailable, as the ledger does."""

    def __init__(
        self,
        ledger: RedisLedger,
        *,
        feed_window: int,
        lease_ms: int,
        rng: random.Random = THIS_HOST.rng,
    ) -> None:
        self._rng = rng
        self._ledger = ledger
        self._feed_window = feed_window
        self._lease_ms = lease_ms

    async def status(self, shard: int = 0) -> RebuildStatus:
        meta = self._ledger.keys_of(shard)[0]
        scripts = self._ledger.scripts
        async with scripts.unavailable_when_failing():
            fields: Any = await (await scripts.access.at(meta)).hmget(meta, ["epoch", "seq", "term"])
        return RebuildStatus((fields[0] or b"").decode(), int(fields[1] or 0), int(fields[2] or 0))

    async def recover(self) -> None:
        """After LedgerLostError: adopt the ledger in Redis if it is whole. A broken one gets a recovery
        tombstone, so that no resolver commits to it and the dispatcher learns of it. Raises LedgerLostError
        while there is no whole ledger."""
        ledger = self._ledger
        found = [await self.status(shard) for shard in range(ledger.shards)]
        ours = ledger.epoch
        if is_tombstone(found[0].epoch):
            raise other_ledger(found[0].epoch)
        broken = next((one for one in found if one.epoch != found[0].epoch or not one.epoch), None)
        if broken is not None:
            problem = other_ledger("" if is_tombstone(broken.epoch) else broken.epoch)
        elif found[0].epoch != ours:
            ledger.adopt(found[0].epoch)
            return
        else:
            try:
                for shard in range(ledger.shards):
                    await ledger.position(shard)
            except LedgerLostError as exc:
                problem = exc
            else:
                return
        tombstone = f"{RECOVERING}{self._rng.getrandbits(64):016x}"
        await self.set_tombstone(0, tombstone, found[0].epoch)
        raise problem

    async def set_tombstone(self, shard: int, tombstone: str, *current: str, term: int = 0) -> None:
        """Replace the epoch or tombstone `current` ("*": any) by a tombstone, and drop what an earlier
        rebuild loaded. `term`: of the dispatcher that has the ledger rebuilt. Raises LedgerLostError if
        something else is there, and LedgerUnavailable after a dispatcher with a higher term."""
        keys = self._ledger.keys_of(shard)
        loaded = [_loaded(keys[key]) for key in _LOADED]
        arguments = [tombstone, self._ledger.shards, term, *current]
        found = (await self._ledger.scripts.run("set_tombstone", [keys[0], *loaded], arguments)).decode()
        if "*" not in current and found not in current:
            raise LedgerLostError(
                f"the ledger is another by now (it stands at {found or 'nothing'}); look again"
            )

    async def load(self, shard: int, tombstone: str, contents: Contents) -> None:
        """Write the shard beside the old one."""
        keys = self._ledger.keys_of(shard)
        for key, fields in _hashes(contents).items():
            target, items = _loaded(keys[SHARD_KEYS.index(key)]), list(fields.items())
            for start in range(0, len(items), _STEP):
                flat = [part for item in items[start : start + _STEP] for part in item]
                await self._run("load", [*keys, target], tombstone, fields=flat)

    async def finish(
        self, shard: int, tombstone: str, epoch: str, contents: Contents, low_watermarks: Sequence[int]
    ) -> None:
        """Put the loaded shard in place. `low_watermarks`: the seqs of all shards. Placement constraints
        start anew, and a worker that has not seen these seqs cannot know what to respect."""
        keys, shards = self._ledger.keys_of(shard), self._ledger.shards
        next_index = int(contents.indexes[-1]) // shards + 1 if len(contents.indexes) else 0
        free = np.setdiff1d(np.arange(next_index) * shards + shard, contents.indexes).tolist()
        await self._run(
            "finish",
            [*keys, *(_loaded(keys[key]) for key in _LOADED)],
            tombstone,
            replaced=[key + 1 for key in _LOADED],
            new_epoch=epoch,
            seq=contents.seq,
            next_index=next_index,
            free=b"".join(map(stored.node_field, free)),
            low_watermarks=packing.seqs(low_watermarks),
            lease_ms=self._lease_ms,
            format=FORMAT,
            window=self._feed_window,
        )

    async def _run(self, script: str, keys: Sequence[str], tombstone: str, **members: Any) -> None:
        """Run a script of the rebuild that set this tombstone."""
        who = writer_members(tombstone, Position(0), self._ledger.new_nonce())
        await self._ledger.scripts.run(script, keys, [packing.argument({**who, **members})])

    async def repair(
        self, shard: int, seq: int, repair: Repair, *, based_on: Iterable[StoredField] = ()
    ) -> bool:
        """Write a repair that was planned on the state at `seq`, and on these fields, which change without a
        seq: what is damaged, and the specs and quarantines of its nodes. False: the shard has changed since.

        Sequence numbers have no gaps, with one exception: a repair that a feed entry cannot express. A
        follower that sees the gap takes a new snapshot."""
        written = seq + 2 if repair.needs_gap else seq + 1
        changes: list[Any] = []
        accounts: list[bytes] = []
        for key, fields, gone in _repair_fields(repair, written):
            changes += [SHARD_KEYS.index(key) + 1, [part for item in fields.items() for part in item], gone]
            accounts = list(fields.values()) if key == "accounts" else accounts
        resources = next((len(account["amounts"]) for account in repair.accounts.values()), 0)
        entry = [
            b"n",
            b"".join(map(stored.node_field, repair.accounts)),
            b"R",
            b"%d" % resources,
            b"a",
            b"".join(accounts),
        ]
        # Released: pods that wait for room may fit now.
        entry += [b"x", b"%d" % (len(repair.accounts) + len(repair.labels) + len(repair.versions))]
        if repair.cards:
            entry += [
                b"k",
                b"".join(map(stored.node_field, repair.cards)),
                b"c",
                b"".join(map(bytes, repair.cards.values())),
            ]
        done = await self._ledger.run(
            "repair",
            shard,
            read_at=seq,
            seq=written,
            based_on=[
                part
                for key, field, value in based_on
                for part in (SHARD_KEYS.index(key) + 1, field, False if value is None else value)
            ],
            changes=changes,
            entry=entry,
            leases=[part for seq, rule in repair.leases.items() for part in (str(seq), rule.value)],
            lease_ms=self._lease_ms,
        )
        return done is not None


def _loaded(key: str) -> str:
    return f"{key}:loaded"


def _repair_fields(repair: Repair, seq: int) -> Iterable[tuple[str, Hash, list[bytes]]]:
    """For each key, the fields to set and the fields to remove."""
    accounts = {}
    for node, account in repair.accounts.items():
        account["seq"] = seq
        accounts[stored.node_field(node)] = account.tobytes() + stored.spread(node)
    yield "accounts", accounts, repair.no_accounts
    yield (
        "cards",
        {stored.node_field(node): cards.astype("<u2").tobytes() for node, cards in repair.cards.items()},
        repair.no_cards,
    )
    ports = {
        stored.node_field(node): b"".join(uid + claim for uid, claim in holds)
        for node, holds in repair.ports.items()
    }
    yield (
        "ports",
        {node: held for node, held in ports.items() if held},
        [node for node, held in ports.items() if not held],
    )
    counts = {key.to_bytes(8, "little"): pods for key, pods in repair.group_pods.items()}
    gone = [key for key, pods in counts.items() if not pods]
    no_groups, no_commits = repair.forgotten.get("group_pods", []), repair.forgotten.get("holds", [])
    yield "group_pods", {key: b"%d" % pods for key, pods in counts.items() if pods}, gone + no_groups
    yield "groups", {}, gone
    prepared = {b"%d" % commit: pods for commit, pods in repair.prepared_pods.items()}
    kept = {commit: b"%d" % pods for commit, pods in prepared.items() if pods}
    yield "holds", kept, [commit for commit in prepared if commit not in kept] + no_commits
    if "rules" in repair.forgotten:
        yield "rules", {}, repair.forgotten["rules"]
        yield "meta", {b"rules": b"%d" % seq}, []
    forgotten = repair.forgotten.get("pending", []) + [
        b"%d" % commit for commit, rule in repair.leases.items() if rule is LeaseRule.FORGET
    ]
    yield (
        "labels",
        {stored.node_field(node): msgpack.packb(dict(labels)) for node, labels in repair.labels.items()},
        repair.no_labels,
    )
    yield "stamps", {name: stored.version_record(seqs) for name, seqs in repair.versions.items()}, []
    yield "damaged", {}, repair.damaged
    yield "pending", {b"%d" % commit: uids for commit, uids in repair.lists.items()}, forgotten


def _hashes(contents: Contents) -> dict[str, Hash]:
    nodes, sums, pods = contents.nodes, contents.sums, contents.pods
    indexes = contents.indexes.tolist()
    resources = pods.records["requests"].shape[1]
    records = np.zeros(len(pods.records), reservation_dtype(resources, spread_bytes=stored.SPREAD_BYTES))
    for name in pods.records.dtype.names or ():
        if name != "spread":
            records[name] = pods.records[name]
    spreads = b"".join(map(stored.spread, pods.records["node"].tolist()))
    records["spread"] = np.frombuffer(spreads, f"V{stored.SPREAD_BYTES}")
    pending: Hash = {}
    for uid, seq in zip(pods.uids[pods.assumed], pods.records["seq"][pods.assumed].tolist(), strict=True):
        field = b"%d" % seq
        pending[field] = pending.get(field, b"") + uid.tobytes()
    used = {key: pods for key, pods in sums.group_pods.items() if key in contents.groups}
    return {
        "accounts": {
            stored.node_field(i): contents.accounts[row].tobytes() + stored.spread(i)
            for row, i in enumerate(indexes)
        },
        "cards": {stored.node_field(i): cards.astype("<u2").tobytes() for i, cards in contents.cards.items()},
        "specs": {stored.node_field(i): nodes[i].spec for i in indexes},
        "names": {nodes[i].name.encode(): stored.node_field(i) for i in indexes},
        "reservations": {
            uid.tobytes(): record.tobytes() for uid, record in zip(pods.uids, records, strict=True)
        },
        "pending": pending,
        "ports": {
            stored.node_field(i): b"".join(uid + claim for uid, claim in holds)
            for i, holds in sums.ports.items()
            if holds
        },
        "groups": {key.to_bytes(8, "little"): contents.groups[key].definition for key in used},
        "group_pods": {key.to_bytes(8, "little"): b"%d" % pods for key, pods in used.items()},
        "labels": {
            stored.node_field(i): msgpack.packb(dict(nodes[i].labels)) for i in indexes if nodes[i].labels
        },
    }
