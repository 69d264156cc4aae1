"""Replacing the ledger in Redis: a shard is loaded under keys of its own beside the old one, and put in its place whole.

Shard 0 says what the ledger is. It is marked first and finished last, so that whoever dies on the way leaves a ledger that is
seen to be broken, holds all that it held, and is rebuilt by the next who tries. Every step goes by the mark of its own rebuild,
so of two at once only the later can finish.
"""

import secrets
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgpack
import numpy as np

from resolver.core.contents import Contents
from resolver.core.mending import Mending
from resolver.core.values import reservation_dtype
from resolver.ledger import stored
from resolver.ledger.port import LedgerLost
from resolver.ledger.reading import SHARD_KEYS
from resolver.ledger.scripts import RECOVERING, another, is_mark, went_back
from resolver.ledger.store import RedisLedger

_LOADED = tuple(
    SHARD_KEYS.index(key)
    for key in (
        *("accounts", "cards", "specs", "names", "reservations", "pending", "workers"),
        *("ports", "groups", "group_pods", "labels", "rules", "stamps", "holds"),
    )
)
_STEP = 1000  # fields that one script writes

Hash = dict[bytes, bytes]


class Standing(NamedTuple):
    """What stands in a shard's meta: the ledger's epoch or a mark, "" where there is nothing; and the seq."""

    epoch: str
    seq: int


class RedisRebuild:
    """Marks, loads and finishes shards of an opened ledger, and mends them. Raises LedgerUnavailable as all of a ledger does."""

    def __init__(self, ledger: RedisLedger, *, feed_window: int, lease_ms: int) -> None:
        self._ledger = ledger
        self._feed_window = feed_window
        self._lease_ms = lease_ms

    async def standing(self, shard: int = 0) -> Standing:
        """Of one shard."""
        meta = self._ledger.keys_of(shard)[0]
        scripts = self._ledger.scripts
        async with scripts.unavailable_when_failing():
            fields: Any = await (await scripts.access.at(meta)).hmget(meta, ["epoch", "seq"])
        return Standing((fields[0] or b"").decode(), int(fields[1] or 0))

    async def take_up(self) -> None:
        """After LedgerLost: adopt what whole ledger there is. One that is broken is marked, so that no resolver commits to it
        and the dispatcher learns of it. Raises LedgerLost while there is none."""
        ledger = self._ledger
        found = [await self.standing(shard) for shard in range(ledger.shards)]
        ours = ledger.epoch
        if is_mark(found[0].epoch):
            raise another(found[0].epoch)
        broken = next((one for one in found if one.epoch != found[0].epoch or not one.epoch), None)
        if broken is not None:
            problem = another("" if is_mark(broken.epoch) else broken.epoch)
        elif found[0].epoch != ours:
            ledger.adopt(found[0].epoch)
            return
        else:
            lost = [s for s, one in enumerate(found) if one.seq < ledger.highest_seq(s)]
            if not lost:
                return
            problem = went_back(found[lost[0]].seq, ledger.highest_seq(lost[0]))
        mark = RECOVERING + secrets.token_hex(8)
        await self.mark(0, mark, found[0].epoch)
        raise problem

    async def mark(self, shard: int, mark: str, *standing: str) -> None:
        """Put a mark in the place of `standing` ("*": of anything), and drop what an earlier rebuild had loaded. Raises
        LedgerLost where something else stands."""
        keys = self._ledger.keys_of(shard)
        loaded = [_loaded(keys[key]) for key in _LOADED]
        arguments = [mark, self._ledger.shards, *standing]
        stood = (await self._ledger.scripts.run("mark", [keys[0], *loaded], arguments)).decode()
        if "*" not in standing and stood not in standing:
            raise LedgerLost(f"the ledger is another by now (it stands at {stood or 'nothing'}); look again")

    async def load(self, shard: int, mark: str, contents: Contents) -> None:
        """Write the shard beside the one there is."""
        keys = self._ledger.keys_of(shard)
        deadline_ms = await self._redis_ms(keys[0]) + self._lease_ms
        for key, fields in _hashes(contents, deadline_ms).items():
            target, items = _loaded(keys[SHARD_KEYS.index(key)]), list(fields.items())
            for start in range(0, len(items), _STEP):
                flat = [part for item in items[start : start + _STEP] for part in item]
                arguments = [f"{mark} 0", msgpack.packb(flat, use_bin_type=False)]
                await self._ledger.scripts.run("load", [*keys, target], arguments)

    async def finish(self, shard: int, mark: str, epoch: str, contents: Contents, floors: Sequence[int]) -> None:
        """Put what was loaded in its place. `floors`: the seqs of all shards; rules about pods begin anew, and whoever has not
        seen the shards stand there cannot know what they are to be held against."""
        keys, shards = self._ledger.keys_of(shard), self._ledger.shards
        next_index = int(contents.indexes[-1]) // shards + 1 if len(contents.indexes) else 0
        arguments = [f"{mark} 0", epoch, contents.seq, next_index, self._feed_window]
        arguments += [b"".join(seq.to_bytes(8, "little") for seq in floors), *(key + 1 for key in _LOADED)]
        await self._ledger.scripts.run("finish", [*keys, *(_loaded(keys[key]) for key in _LOADED)], arguments)

    async def raise_epochs(self, above: int) -> None:
        """Worker epochs granted from now on are above this one."""
        key, scripts = self._ledger.epochs_key, self._ledger.scripts
        async with scripts.unavailable_when_failing():
            server = await scripts.access.at(key)
            await server.set(key, max(int(await server.get(key) or 0), above))

    async def mend(self, shard: int, seq: int, mending: Mending) -> bool:
        """Write what a repair found, read at `seq`; false where the shard has changed since.

        Where the feed cannot tell all of it a number is left out: whoever follows finds the gap and reads the state anew.
        """
        written = seq + 2 if mending.untold else seq + 1
        changes: list[Any] = []
        accounts: list[bytes] = []
        for key, fields, gone in _mended(mending, written):
            changes += [SHARD_KEYS.index(key) + 1, [part for item in fields.items() for part in item], gone]
            accounts = list(fields.values()) if key == "accounts" else accounts
        resources = next((len(account["amounts"]) for account in mending.accounts.values()), 0)
        entry = [b"n", b"".join(map(_index, mending.accounts)), b"R", b"%d" % resources, b"a", b"".join(accounts)]
        entry += [b"x", b"%d" % len(mending.accounts)]  # who waits for room may have it now
        if mending.cards:
            entry += [b"k", b"".join(map(_index, mending.cards)), b"c", b"".join(map(bytes, mending.cards.values()))]
        done = await self._ledger.scripts.run(
            "mend",
            self._ledger.keys_of(shard),
            [
                f"{self._ledger.epoch} {self._ledger.highest_seq(shard)}",
                self._feed_window,
                seq,
                msgpack.packb(changes, use_bin_type=False),
                msgpack.packb(entry, use_bin_type=False),
                written,
            ],
        )
        return done is not None

    async def _redis_ms(self, key: str) -> int:
        scripts = self._ledger.scripts
        async with scripts.unavailable_when_failing():
            seconds, micros = await (await scripts.access.at(key)).time()
        return int(seconds) * 1000 + int(micros) // 1000


def _loaded(key: str) -> str:
    return f"{key}:loaded"


def _index(node: int) -> bytes:
    return node.to_bytes(4, "little")


def _mended(mending: Mending, seq: int) -> Iterable[tuple[str, Hash, list[bytes]]]:
    """Of each key the fields to set and those to remove."""
    accounts = {}
    for node, account in mending.accounts.items():
        account["seq"] = seq
        accounts[_index(node)] = account.tobytes() + stored.spread(node)
    yield "accounts", accounts, []
    yield "cards", {_index(node): cards.astype("<u2").tobytes() for node, cards in mending.cards.items()}, []
    ports = {_index(node): b"".join(uid + claim for uid, claim in holds) for node, holds in mending.ports.items()}
    yield (
        "ports",
        {node: held for node, held in ports.items() if held},
        [node for node, held in ports.items() if not held],
    )
    counts = {key.to_bytes(8, "little"): pods for key, pods in mending.group_pods.items()}
    gone = [key for key, pods in counts.items() if not pods]
    yield "group_pods", {key: b"%d" % pods for key, pods in counts.items() if pods}, gone
    yield "groups", {}, gone


def _hashes(contents: Contents, deadline_ms: int) -> dict[str, Hash]:
    """The shard's hashes, by key."""
    nodes, sums, pods = contents.nodes, contents.tallies, contents.pods
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
        pending[field] = pending.get(field, deadline_ms.to_bytes(8, "little")) + uid.tobytes()
    used = {key: pods for key, pods in sums.group_pods.items() if key in contents.groups}
    return {
        "accounts": {_index(i): contents.accounts[row].tobytes() + stored.spread(i) for row, i in enumerate(indexes)},
        "cards": {_index(i): cards.astype("<u2").tobytes() for i, cards in contents.cards.items()},
        "specs": {_index(i): nodes[i].spec for i in indexes},
        "names": {nodes[i].name.encode(): _index(i) for i in indexes},
        "reservations": {uid.tobytes(): record.tobytes() for uid, record in zip(pods.uids, records, strict=True)},
        "pending": pending,
        "ports": {_index(i): b"".join(uid + claim for uid, claim in holds) for i, holds in sums.ports.items() if holds},
        "groups": {key.to_bytes(8, "little"): contents.groups[key].definition for key in used},
        "group_pods": {key.to_bytes(8, "little"): b"%d" % pods for key, pods in used.items()},
        "labels": {_index(i): msgpack.packb(dict(nodes[i].labels)) for i in indexes if nodes[i].labels},
    }
