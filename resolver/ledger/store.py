"""The ledger in Redis: its writing operations. resolver.ledger.reading has the rest."""

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import msgpack
import numpy as np
from numpy.typing import NDArray

from hoss.errors import ConfigError, LedgerUnavailable
from hoss.host import THIS_HOST
from hoss.model.resources import BASE_RESOURCES
from hoss.redis.access import OpenRedis
from hoss.wire.columns import U32, U64, Uids
from hoss.wire.uids import UID_BYTES
from resolver.core import values
from resolver.core.moves import MoveResult, Moves, sources_by_shard
from resolver.core.rules import RuleQuery
from resolver.core.values import (
    ANYBODY,
    Decision,
    Group,
    Leases,
    LedgerNodeChange,
    Position,
    Proposal,
    Removed,
    Upserted,
    Verdict,
    Writer,
)
from resolver.ledger import packing, stored
from resolver.ledger.reading import LedgerReading
from resolver.ledger.rules import RULE_READS, SharedRules
from resolver.ledger.scripts import Call, FencedReply, OldCopy, is_tombstone
from resolver.ledger.shards import shard_keys


class CommitCall(NamedTuple):
    """A call of commit.lua or move.lua, and what is needed to read its reply."""

    call: Call
    shard: int
    proposal: Proposal
    order: NDArray[np.intp] | None  # in which the pods are served
    constraints: packing.SlotConstraints  # to validate afterwards; empty: none
    nonce: str  # of the change that it makes


# Rows per script call, so that no call takes Redis more than a few milliseconds.
_STEP = 1000
_REAPED_PODS = 1000  # in one call
_GRANTS_KEPT = 10_000

# Of what is stored. lua/bootstrap.lua says what each format has, and brings older ones forward.
FORMAT = 2


class RedisLedger(LedgerReading):
    """Implements resolver.ledger.port.Ledger."""

    def __init__(
        self,
        url: str,
        *,
        prefix: str = "hoss",
        lease_ms: int = 30_000,
        prepare_ms: int = 5_000,
        feed_window: int = 1000,
        open_redis: OpenRedis = THIS_HOST.redis,
        rng: random.Random = THIS_HOST.rng,
    ) -> None:
        """`prefix` begins every key. `lease_ms`, `prepare_ms`: see Leases. `feed_window`: feed entries
        kept. `rng`: for epochs and nonces."""
        super().__init__(url, prefix, open_redis, rng, feed_window)
        self._leases = Leases(lease_ms, prepare_ms)
        self._rules = SharedRules(self.run, self.scan)
        self.own_tables = self._rules.table_sizes

    async def open(self, shards: int) -> None:
        """Find the ledger, or create it if there is none. A ledger of an older release is brought forward.
        Raises ConfigError if it has another number of shards, or was written by a newer release.

        A ledger that waits to be rebuilt is opened, too. Everything but reading what is left of it raises
        LedgerLostError until `adopt`."""
        await self.scripts.load()
        self._keys = shard_keys(self._prefix, shards)
        self.shards = shards
        epoch = f"{self._rng.getrandbits(64):016x}"
        for shard in range(shards):
            reply = await self.scripts.run("bootstrap", self._keys[shard], [epoch, shards, FORMAT])
            with stored.damage_named(shard):
                found, *numbers = (field or b"" for field in reply)
                found, (found_shards, seq, found_format) = found.decode(), map(int, numbers)
            if found_format > FORMAT:
                raise ConfigError(
                    f"has format {found_format}, and this release reads formats up to {FORMAT}: it was"
                    " written by a newer release. Run that release, or go back as docs/operations/upgrade.md"
                    " says",
                    where="the ledger in this Redis",
                )
            if found_shards != shards:
                raise ConfigError(
                    f"is {shards}, but the ledger in this Redis was made with "
                    f"{found_shards}; nodes cannot change shards: set {found_shards}, or use "
                    "another Redis database",
                    where="shards",
                )
            # Shard 0 is created first, so it decides the epoch if several resolvers create the ledger at
            # once.
            epoch = found if shard == 0 else epoch
            if is_tombstone(epoch):
                break
            if found != epoch:
                raise LedgerUnavailable(
                    f"shard {shard} belongs to another ledger (epoch {found}, seq "
                    f"{seq}) than shard 0 ({epoch})"
                )
        self.adopt("" if is_tombstone(epoch) else epoch)
        await self.schema(BASE_RESOURCES)

    def adopt(self, epoch: str) -> None:
        """Continue with the whole ledger of this epoch. Nothing that was known of another ledger counts."""
        self.epoch = epoch
        self._watermarks = [Position(0)] * self.shards
        self.leases_ended = [0] * self.shards
        self.damaged_commits = [[] for _ in range(self.shards)]
        self.unfinished_moves = [0] * self.shards
        self._rules.open(self._keys)

    async def close(self) -> None:
        await self.scripts.close()

    async def erase(self) -> None:
        """Delete every key of this ledger: for scratch ledgers of benchmarks."""
        async with self.scripts.unavailable_when_failing():
            for keys in (*self._keys, [self._schema_key, self.epochs_key, self.grants_key]):
                await (await self.scripts.access.at(keys[0])).delete(*keys)

    # -- pods

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
            calls = self.commit_calls(shard, [proposals[position] for position in left])
            for position, call, decision in zip(left, calls, await self.run_calls(calls), strict=True):
                decisions[position] = decision
                if decision is not None:
                    self._raise_watermark(shard, decision.seq, call.nonce)
            decided = [decision for decision in decisions if decision is not None]
            if len(decided) == len(proposals):
                return decided
            await self._rules.read()  # another resolver registered or forgot one meanwhile
        raise LedgerUnavailable("rules about pods change faster than proposals are decided; try again")

    def commit_calls(self, shard: int, proposals: Sequence[Proposal]) -> list[CommitCall]:
        """The calls that decide the proposals."""
        calls, book = [], self._rules.books[shard]
        for proposal in proposals:
            order, constraints = proposal.serving_order(), packing.slot_constraints(proposal, book)
            to_validate = constraints if self.shards > 1 and not proposal.unchecked else ()
            prepared = proposal.prepared or bool(to_validate)
            arguments = packing.commit_arguments(
                proposal,
                order,
                constraints,
                lease_ms=self._leases.of(prepared=prepared, asked_ms=proposal.lease_ms),
                rules_version=book.version,
                shards=self.shards,
                prepared=prepared,
            )
            nonce = self.new_nonce()
            script = "commit" if proposal.source_seqs is None else "move"
            call = self._call(script, shard, arguments, proposal.writer, nonce)
            calls.append(CommitCall(call, shard, proposal, order, to_validate, nonce))
        return calls

    async def run_calls(self, calls: Sequence[CommitCall]) -> list[Decision | None]:
        """Send the calls in one round trip. None: the call was made by outdated rules."""
        replies = await self.scripts.run_all([commit.call for commit in calls])
        return [
            None if reply is None else _decision(reply, commit)
            for reply, commit in zip(replies, calls, strict=True)
        ]

    async def validate(
        self, queries: Sequence[RuleQuery], *, epoch: int, seen: Sequence[int], may_refuse: int
    ) -> list[tuple[int, int] | None]:
        return await self._rules.validate(queries, epoch, seen, may_refuse)

    async def register_rules(self, groups: Sequence[Group]) -> list[int]:
        try:
            return await self._rules.register_rules(groups)
        except LedgerUnavailable:
            self._rules.distrust()
            raise

    async def read_rules(self) -> None:
        """Damaged rules count as forgotten from now on, and whoever has not seen all until now is refused."""
        await self._rules.read()

    async def forget_rules(self, low_watermarks: Sequence[int]) -> int:
        return await self._rules.forget(low_watermarks)

    async def release(
        self, shard: int, uids: Uids, writer: Writer = ANYBODY, *, as_of: int | None = None
    ) -> int:
        return len(await self._release(shard, uids, writer, as_of=as_of))

    async def _release(
        self,
        shard: int,
        uids: Uids,
        writer: Writer,
        seqs: NDArray[np.uint64] | None = None,
        as_of: int | None = None,
        *,
        unconfirmed: bool | None = None,
    ) -> Uids:
        """Release what the pods hold. With `seqs`, release only what that very commit reserved; with `as_of`,
        only what is not newer; with `unconfirmed`, nothing that is confirmed. Returns the released pods."""
        released = []
        for start in range(0, len(uids), _STEP):
            step = slice(start, start + _STEP)
            expected = None if seqs is None else seqs[step].astype("<u8").tobytes()
            reply = await self.run(
                "release",
                shard,
                writer,
                uids=packing.string_array(uids[step]),
                seqs=expected,
                as_of=as_of,
                unconfirmed=unconfirmed,
            )
            released.append(b"" if isinstance(reply, FencedReply) else reply)
        return np.frombuffer(b"".join(released), np.uint8).reshape(-1, UID_BYTES)

    async def confirm(self, shard: int, seqs: NDArray[np.uint64], writer: Writer = ANYBODY) -> int:
        confirmed = 0
        for start in range(0, len(seqs), _STEP):
            step = seqs[start : start + _STEP].tolist()
            nonce = self.new_nonce()
            reply = await self.scripts.run(*self._call("confirm", shard, {"seqs": step}, writer, nonce))
            if isinstance(reply, FencedReply):
                break
            confirmed += int(reply[0])
            if reply[0]:
                self._raise_watermark(shard, int(reply[1]), nonce)
        return confirmed

    async def commit_prepared(
        self, shard: int, uids: Uids, seqs: NDArray[np.uint64], writer: Writer, *, lease_ms: int = 0
    ) -> NDArray[np.uint64]:
        reply = await self.run(
            "commit_prepared",
            shard,
            writer,
            lease_ms=lease_ms or self._leases.commit_ms,
            uids=packing.string_array(uids),
            seqs=packing.seqs(seqs.tolist()),
        )
        return np.zeros(len(uids), U64) if isinstance(reply, FencedReply) else np.frombuffer(reply, U64)

    async def renew(
        self, shard: int, uids: Uids, seqs: NDArray[np.uint64], writer: Writer, *, lease_ms: int
    ) -> NDArray[np.bool_]:
        reply = await self.run(
            "renew",
            shard,
            writer,
            lease_ms=lease_ms,
            uids=packing.string_array(uids),
            seqs=packing.seqs(seqs.tolist()),
        )
        if isinstance(reply, FencedReply):
            return np.zeros(len(uids), np.bool_)
        return np.frombuffer(reply, np.bool_)

    async def abort(self, shard: int, uids: Uids, seqs: NDArray[np.uint64], writer: Writer) -> int:
        return len(await self._release(shard, uids, writer, seqs, unconfirmed=True))

    async def confirm_moves(self, shard: int, moves: Moves, writer: Writer) -> NDArray[np.uint8]:
        results = [b""]
        for start in range(0, len(moves), _STEP):
            step = moves.of(slice(start, start + _STEP))
            reply = await self.run(
                "confirm_moves", shard, writer, **packing.move_arguments(step, self.shards, shard)
            )
            results.append(
                bytes([MoveResult.FENCED] * len(step)) if isinstance(reply, FencedReply) else reply
            )
        return np.frombuffer(b"".join(results), np.uint8)

    async def finish_moves(self, shard: int) -> int:
        _, (noted,) = await self._read(shard, ("hgetall", self.keys_of(shard)[21]))
        sources = {uid: stored.read_source(record) for uid, record in noted.items()}
        released = 0
        for of_shard, (uids, seqs) in sources_by_shard(sources, self.shards).items():
            released += len(await self._release(of_shard, uids, ANYBODY, seqs))
        done = list(noted)
        for start in range(0, len(done), _STEP):
            step = done[start : start + _STEP]
            await self.run("forget_moved", shard, uids=step, sources=[noted[uid] for uid in step])
        return released

    async def reap(self, shard: int) -> int:
        reaped, more = 0, 1
        while more:
            released, more, ended, damaged, moves = await self.run("reap", shard, most=_REAPED_PODS)
            reaped += int(released)
            self.leases_ended[shard] = int(ended)
            self.damaged_commits[shard] += [commit.decode(errors="replace") for commit in damaged]
            self.unfinished_moves[shard] = int(moves)
        return reaped

    async def leases(self, shard: int, seqs: NDArray[np.uint64]) -> NDArray[np.int64]:
        distinct, which = np.unique(seqs, return_inverse=True)
        found = np.zeros((len(distinct), 2), np.int64)
        if len(distinct):
            keys = self.keys_of(shard)
            commands = (
                ("zmscore", keys[17], distinct.tolist()),
                ("hkeys", keys[15]),
                ("hmget", keys[0], ["lease_time", "lease_seen"]),
                ("time",),
            )
            _, (deadlines, prepared, lease_clock, time) = await self._read(shard, *commands, incomplete=True)
            behind_ms = stored.behind_clock_ms(*lease_clock, *time)
            prepared_seqs, now_ms = set(map(int, prepared)), time[0] * 1000 + time[1] // 1000
            for row, (seq, deadline_ms) in enumerate(zip(distinct.tolist(), deadlines, strict=True)):
                if deadline_ms is not None:
                    ends_ms = int(deadline_ms) + behind_ms
                    since_ms = ends_ms - self._leases.of(prepared=seq in prepared_seqs)
                    found[row] = min(since_ms, now_ms), ends_ms  # a lease may be a longer one
        return found[which]

    async def lookup(self, shard: int, uids: Uids) -> NDArray[Any]:
        parts = [
            await self.run("lookup", shard, uids=packing.string_array(uids[start : start + _STEP]))
            for start in range(0, len(uids), _STEP)
        ]
        return packing.read_lookup(b"".join(parts))

    async def grant(self, worker: str, writer: Writer = ANYBODY) -> int:
        epoch = 0
        while True:
            epoch = await self.next_epoch(worker, above=epoch)
            holding = [
                int(
                    await self.run(
                        "grant", shard, writer, name=worker, granted=epoch, most=values.MOST_WORKERS
                    )
                )
                for shard in range(self.shards)
            ]
            if holding == [epoch] * self.shards:
                return epoch
            # Another resolver granted this worker a later epoch meanwhile: ours is fenced already. Or the
            # server of the count has lost some of it.
            epoch = max(holding)

    async def next_epoch(self, worker: str = "", *, above: int) -> int:
        """An epoch for the worker, or one that nobody gets, that is higher than `above` and than every one
        before."""
        keys = [self.epochs_key, self.grants_key]
        return int(await self.scripts.run("next_epoch", keys, [worker, above, _GRANTS_KEPT]))

    # -- nodes

    async def upsert_nodes(
        self,
        shard: int,
        nodes: Sequence[LedgerNodeChange],
        expected: bytes = b"",
        writer: Writer = ANYBODY,
    ) -> Upserted | None:
        seq, indexes = 0, []
        over: list[int] = []
        for start in range(0, len(nodes), _STEP):
            step = nodes[start : start + _STEP]
            resources = max(len(node.allocatable) for node in step)
            rows = [
                amount for n in step for amount in (*n.allocatable, *[0] * (resources - len(n.allocatable)))
            ]
            reply = await self.run(
                "upsert_nodes",
                shard,
                writer,
                names=[node.name for node in step],
                specs=[node.spec for node in step],
                resources=resources,
                allocatable=rows,
                unschedulable=[node.unschedulable for node in step],
                card_counts=[node.cards for node in step],
                labels=[msgpack.packb(dict(n.labels)) if n.labels else b"" for n in step],
                resource_versions=[node.resource_version for node in step],
                expected=expected or None,
            )
            if reply is None:
                return None
            seq = int(reply[0])
            indexes.append(reply[1])
            over.extend(start + int(position) for position in reply[2])
        return Upserted(seq, np.frombuffer(b"".join(indexes), U32), over)

    async def remove_nodes(self, shard: int, names: Sequence[str], writer: Writer = ANYBODY) -> Removed:
        missing: list[int] = []
        gone: dict[int, int] = {}  # node -> reservations of a lower seq were made before its removal
        for start in range(0, len(names), _STEP):
            step = list(names[start : start + _STEP])
            seq, indexes, absent, before = await self.run("remove_nodes", shard, writer, names=step)
            gone.update(dict.fromkeys(np.frombuffer(indexes, U32).tolist(), int(seq)))
            # A resolver may have died after it removed these nodes, and before it released what they held.
            gone.update(dict.fromkeys(np.frombuffer(before, U32).tolist(), int(seq) + 1))
            missing.extend(start + int(position) for position in absent)
        if not gone:
            return Removed(np.empty((0, UID_BYTES), np.uint8), missing)
        return Removed(await self._release_nodes(shard, gone, writer), missing)

    async def removals(self, shard: int) -> set[int]:
        return (await self._removals(shard))[1]

    async def _removals(self, shard: int) -> tuple[Position, set[int]]:
        position, (fields,) = await self._read(shard, ("hkeys", self.keys_of(shard)[20]))
        return position, set(map(stored.number, fields))

    async def forget_removed(self, shard: int, nodes: Iterable[int]) -> int:
        position, unfinished = await self._removals(shard)
        removed = sorted(unfinished.intersection(nodes))
        if not removed:
            return 0
        # What is reserved on them is older than now, also if one of them has come back since.
        await self._release_nodes(shard, dict.fromkeys(removed, position.seq + 1), ANYBODY)
        return len(set(removed) - (await self._removals(shard))[1])

    async def _release_nodes(self, shard: int, gone: Mapping[int, int], writer: Writer) -> Uids:
        """Release what was reserved on removed nodes before these seqs, and forget the nodes. Returns the
        released pods."""
        released = [np.empty((0, UID_BYTES), np.uint8)]
        # Nothing is reserved on a removed node any more, so one scan of the reservations finds all that
        # was.
        async for part in self.reservations(shard):
            removed_at = np.array([gone.get(node, 0) for node in part.records["node"].tolist()], np.uint64)
            ours = part.records["seq"] < removed_at
            if ours.any():
                seqs = part.records["seq"][ours]
                released.append(await self._release(shard, part.uids[ours], writer, seqs))
        nodes = np.array(list(gone), U32)
        for start in range(0, len(nodes), _STEP):
            step = packing.string_array(nodes[start : start + _STEP])
            await self.run("forget_nodes", shard, writer, nodes=step)
        return np.concatenate(released)


def _decision(reply: "list[Any] | FencedReply | OldCopy", commit: CommitCall) -> Decision:
    if isinstance(reply, FencedReply | OldCopy):
        verdict = Verdict.STALE_EPOCH if isinstance(reply, FencedReply) else Verdict.OLD_COPY
        verdicts = np.full(len(commit.proposal), verdict, np.uint8)
        return replace(Decision.of_none(verdicts, commit.proposal), as_of=reply.seq)
    decision = packing.read_decision(reply, commit.order)
    if not commit.constraints:
        return decision
    slots = commit.proposal.slots.tolist()
    queries = packing.read_queries(reply, decision, slots, commit.constraints, commit.order)
    queries = tuple(q and replace(q, shard=commit.shard) for q in queries)
    return replace(decision, queries=queries, prepared=packing.reserves(decision))
