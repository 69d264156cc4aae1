"""The ledger in Redis: what changes it. See resolver.ledger.reading for the rest."""

import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import msgpack
import numpy as np
from numpy.typing import NDArray

from hoss.errors import ConfigError, LedgerUnavailable
from hoss.model.resources import BASE_RESOURCES
from hoss.wire.columns import U32, U64, UID_BYTES, Uids
from resolver.core.rules import Question
from resolver.core.values import (
    Decision,
    Group,
    Leases,
    NodeChange,
    Proposal,
    Removed,
    Upserted,
)
from resolver.ledger import packing, stored
from resolver.ledger.reading import LedgerReading, shard_keys
from resolver.ledger.rules import RULE_READS, SharedRules
from resolver.ledger.scripts import Call, is_mark


class PreparedCommit(NamedTuple):
    """A call of commit.lua, and what its reply has to be read with."""

    call: Call
    shard: int
    proposal: Proposal
    order: NDArray[np.intp] | None  # in which its pods are served
    guards: packing.SlotGuards  # that are judged afterwards; empty: none is


# One script call handles this many rows at most, so that none holds Redis for more than a few milliseconds.
_STEP = 1000
_REAP_LOOKS = 1000
_GRANTS_KEPT = 10_000


class RedisLedger(LedgerReading):
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
        super().__init__(url, prefix)
        self._leases = Leases(lease_ms, hold_ms)
        self._feed_window = feed_window
        self._rules = SharedRules(self._run, self._read, feed_window)

    async def open(self, shards: int) -> None:
        """Find the ledger, or make it where there is none. Raises ConfigError when it has another number of shards.

        One that waits to be rebuilt is opened, too; all but reading what is left raises LedgerLost until `adopt`.
        """
        await self.scripts.load()
        self._keys = shard_keys(self._prefix, shards)
        self.shards = shards
        epoch = secrets.token_hex(8)
        for shard in range(shards):
            found, found_shards, seq = await self.scripts.run("bootstrap", self._keys[shard][:1], [epoch, shards])
            if int(found_shards) != shards:
                raise ConfigError(
                    f"is {shards}, but the ledger in this Redis was made with {int(found_shards)}; nodes cannot change "
                    f"shards: set {int(found_shards)}, or use another Redis database",
                    where="shards",
                )
            # Shard 0 is made first and so decides the epoch of a ledger that several resolvers make at once.
            epoch = found.decode() if shard == 0 else epoch
            if is_mark(epoch):
                break
            if found.decode() != epoch:
                raise LedgerUnavailable(
                    f"shard {shard} belongs to another ledger (epoch {found.decode()}, seq {int(seq)}) than shard 0 ({epoch})"
                )
        self.adopt("" if is_mark(epoch) else epoch)
        await self.schema(BASE_RESOURCES)

    def adopt(self, epoch: str) -> None:
        """Go on with the whole ledger that has this epoch; nothing known of another one counts."""
        self.epoch = epoch
        self._heard_of = [0] * self.shards
        self._rules.open(self._keys)

    async def close(self) -> None:
        """Close every connection."""
        await self.scripts.close()

    async def erase(self) -> None:
        """Delete every key of this ledger: for scratch ledgers of benchmarks."""
        async with self.scripts.unavailable_when_failing():
            for keys in (*self._keys, [self._schema_key, self.epochs_key, self.grants_key]):
                await (await self.scripts.access.at(keys[0])).delete(*keys)

    async def run(self, script: str, shard: int, *arguments: Any) -> Any:
        """Run a script that changes the shard; its arguments begin after the feed window."""
        return await self._run(script, shard, self._feed_window, *arguments)

    # -- pods ---------------------------------------------------------------------------------------------------------

    async def commit(self, shard: int, proposals: Sequence[Proposal]) -> list[Decision]:
        try:
            return await self._commit(shard, proposals)
        except LedgerUnavailable:
            self._rules.distrust()
            raise

    async def _commit(self, shard: int, proposals: Sequence[Proposal]) -> list[Decision]:
        decisions: list[Decision | None] = [None] * len(proposals)
        for _ in range(RULE_READS):
            left = [position for position, decision in enumerate(decisions) if decision is None]
            missing = self._rules.missing(shard, [proposals[position] for position in left])
            if missing:
                await self._rules.register(missing)
            prepared = self.prepare(shard, [proposals[position] for position in left])
            for position, decision in zip(left, await self.run_prepared(prepared), strict=True):
                decisions[position] = decision
            decided = [decision for decision in decisions if decision is not None]
            self.heard_of(shard, max((decision.seq for decision in decided), default=0))
            if len(decided) == len(proposals):
                return decided
            await self._rules.read()  # another resolver registered one meanwhile, or forgot one
        raise LedgerUnavailable("rules about pods change faster than proposals are decided; try again")

    def prepare(self, shard: int, proposals: Sequence[Proposal]) -> list[PreparedCommit]:
        """The calls that decide the proposals, ready to be sent."""
        prepared, book = [], self._rules.books[shard]
        for proposal in proposals:
            order, guards = proposal.serving_order(), packing.slot_guards(proposal, book)
            judged = guards if self.shards > 1 and not proposal.unchecked else ()
            held = proposal.held or bool(judged)
            arguments = packing.commit_arguments(
                proposal,
                order,
                guards,
                lease_ms=self._leases.of(held=held),
                rules_version=book.version,
                shards=self.shards,
                held=held,
            )
            call = self._call("commit", shard, self._feed_window, *arguments)
            prepared.append(PreparedCommit(call, shard, proposal, order, judged))
        return prepared

    async def run_prepared(self, prepared: Sequence[PreparedCommit]) -> list[Decision | None]:
        """Send what `prepare` made, in one round trip. None: prepared by rules that are out of date."""
        replies = await self.scripts.run_all([commit.call for commit in prepared])
        return [
            None if reply is None else _decision(reply, commit) for reply, commit in zip(replies, prepared, strict=True)
        ]

    async def judge(
        self, questions: Sequence[Question], *, epoch: int, seen: Sequence[int], spare: int
    ) -> list[tuple[int, int] | None]:
        return await self._rules.judge(questions, epoch, seen, spare)

    async def announce(self, groups: Sequence[Group]) -> list[int]:
        try:
            return await self._rules.announce(groups)
        except LedgerUnavailable:
            self._rules.distrust()
            raise

    async def forget_rules(self, floors: Sequence[int]) -> int:
        return await self._rules.forget(floors)

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

    async def keep(self, shard: int, uids: Uids, seqs: NDArray[np.uint64]) -> NDArray[np.uint64]:
        lease_ms, commits = self._leases.commit_ms, packing.seqs(seqs.tolist())
        reply = await self._run("keep", shard, lease_ms, packing.string_array(uids), commits, self._feed_window)
        return np.frombuffer(reply, U64)

    async def withdraw(self, shard: int, uids: Uids, seqs: NDArray[np.uint64]) -> int:
        return len(await self._release(shard, uids, seqs))

    async def reap(self, shard: int) -> int:
        reaped, more = 0, 1
        while more:
            released, more = await self._run("reap", shard, self._feed_window, _REAP_LOOKS)
            reaped += int(released)
        return reaped

    async def leases(self, shard: int, seqs: NDArray[np.uint64]) -> NDArray[np.int64]:
        distinct, which = np.unique(seqs, return_inverse=True)
        found = np.zeros((len(distinct), 2), np.int64)
        if len(distinct):
            keys = self.keys_of(shard)
            commands = ("hmget", keys[6], distinct.tolist()), ("hkeys", keys[15])
            _, (records, holds) = await self._read(shard, *commands, left=True)
            held = set(map(int, holds))
            for row, (seq, record) in enumerate(zip(distinct.tolist(), records, strict=True)):
                if record is not None:
                    ends_ms = stored.deadline_ms(record)
                    found[row] = ends_ms - self._leases.of(held=seq in held), ends_ms
        return found[which]

    async def lookup(self, shard: int, uids: Uids) -> NDArray[Any]:
        parts = [
            await self._run("lookup", shard, packing.string_array(uids[start : start + _STEP]))
            for start in range(0, len(uids), _STEP)
        ]
        return packing.read_lookup(b"".join(parts))

    async def grant(self, worker: str) -> int:
        while True:
            async with self.scripts.unavailable_when_failing():
                server = await self.scripts.access.at(self.epochs_key)
                epoch = int(await server.incr(self.epochs_key))
                await server.hset(self.grants_key, str(epoch), worker)
                await server.hdel(self.grants_key, str(epoch - _GRANTS_KEPT))
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
        gone: dict[int, int] = {}  # node -> what has a lower seq was reserved before its removal
        for start in range(0, len(names), _STEP):
            packed = msgpack.packb(list(names[start : start + _STEP]))
            seq, indexes, absent, before = await self._run("remove_nodes", shard, self._feed_window, packed)
            gone.update(dict.fromkeys(np.frombuffer(indexes, U32).tolist(), int(seq)))
            # Whoever removed these may have died before it released what they held.
            gone.update(dict.fromkeys(np.frombuffer(before, U32).tolist(), int(seq) + 1))
            missing.extend(start + int(position) for position in absent)
        if not gone:
            return Removed(np.empty((0, UID_BYTES), np.uint8), missing)
        released = [np.empty((0, UID_BYTES), np.uint8)]
        # Nothing is reserved on a gone node any more, so one walk over the reservations finds all that was.
        async for part in self.reservations(shard):
            removed_at = np.array([gone.get(node, 0) for node in part.records["node"].tolist()], np.uint64)
            ours = part.records["seq"] < removed_at
            if ours.any():
                released.append(await self._release(shard, part.uids[ours], part.records["seq"][ours]))
        return Removed(np.concatenate(released), missing)


def _decision(reply: list[Any], commit: PreparedCommit) -> Decision:
    decision = packing.read_decision(reply, commit.order)
    if not commit.guards:
        return decision
    slots = commit.proposal.slots.tolist()
    questions = packing.read_questions(reply, decision, slots, commit.guards, commit.order)
    return replace(decision, questions=tuple(q and replace(q, shard=commit.shard) for q in questions))
