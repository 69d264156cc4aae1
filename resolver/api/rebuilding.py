"""Rebuild, restore, dump and repair of the ledger, for the service."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Mapping

import numpy as np

from hoss.errors import InvalidInput, LedgerUnavailable, quoted
from hoss.host import THIS_HOST
from hoss.model.resources import BASE_RESOURCES
from hoss.telemetry import logger
from hoss.v1 import common_pb2
from hoss.v1 import resolver_pb2 as pb
from hoss.wire.columns import U32
from resolver.api.nodes import decoded, slices, wrong_labels
from resolver.core.accounts import sum_reservations
from resolver.core.consistency.contents import Contents, ReservedPods, compose
from resolver.core.consistency.repair import Repair, plan_repair, replace_rule_records
from resolver.core.values import LedgerNodeChange
from resolver.ledger.rebuild import RebuildStatus, RedisRebuild, StoredField
from resolver.ledger.scripts import RECOVERING, RESTORING, superseded
from resolver.ledger.store import RedisLedger
from resolver.ledger.stored import number
from resolver.messages.nodes import node_change, shard_of
from resolver.messages.parts import LedgerContents, PartWriter, read_parts
from resolver.messages.proposals import group_of

_REPAIR_ATTEMPTS = 20


class RebuildService:
    """`now_us`: the Unix time in microseconds. The seqs of a rebuilt ledger start there, above everything it
    ever reached."""

    def __init__(
        self,
        ledger: RedisLedger,
        store: RedisRebuild,
        *,
        now_us: Callable[[], int],
        rng: random.Random = THIS_HOST.rng,
    ) -> None:
        self._rng = rng
        self._ledger = ledger
        self._store = store
        self._now_us = now_us

    async def status(self) -> RebuildStatus:
        """The epoch or tombstone that Rebuild would replace, and the highest term of a dispatcher."""
        return await self._store.status()

    async def rebuild(self, head: pb.LedgerHead, kept: LedgerContents) -> pb.RebuildReply:
        """Replace the ledger by what was read from parts. Raises InvalidInput, with nothing changed, for an
        invalid head, and LedgerUnavailable if another rebuild interfered."""
        reply = pb.RebuildReply()
        async for _ in self.steps(head, kept, reply):
            pass
        logger().warning(
            "ledger_rebuilt",
            ledger_epoch=reply.ledger_epoch,
            nodes=reply.nodes,
            reservations=reply.reservations,
            unplaced=len(reply.unplaced_uids) // 16,
        )
        return reply

    async def steps(
        self, head: pb.LedgerHead, kept: LedgerContents, reply: pb.RebuildReply
    ) -> AsyncIterator[str]:
        """Rebuild, step by step. If it stops after any step, the ledger is visibly broken and still holds
        everything."""
        if head.only_empty:
            left = read_parts([part async for part in self._left()])
            if left.specs or left.columns:
                raise InvalidInput(
                    "the ledger has nodes or reservations; --force replaces them", where="restore"
                )
        # Each shard checks the term when it is marked. Asked first, so that a refused rebuild marks none.
        highest = max([(await self._store.status(shard)).term for shard in range(self._ledger.shards)])
        if 0 < head.term < highest:
            raise superseded(highest)
        epoch = head.ledger_epoch or f"{self._rng.getrandbits(64):016x}"
        tombstone = (
            RESTORING if head.operator and not head.as_kept else RECOVERING
        ) + f"{epoch}-{self._rng.getrandbits(32):08x}"
        await self._store.set_tombstone(0, tombstone, head.replaces, term=head.term)
        yield "shard 0 is marked"
        for shard in range(1, self._ledger.shards):
            await self._store.set_tombstone(shard, tombstone, "*", term=head.term)
            yield f"shard {shard} is marked"
        contents = await self._contents(head, kept)
        for shard, content in enumerate(contents):
            await self._store.load(shard, tombstone, content)
            yield f"shard {shard} is loaded"
        await self._ledger.next_epoch(above=self._now_us())
        yield "worker epochs are raised"
        low_watermarks = [content.seq for content in contents]
        for shard, content in reversed(list(enumerate(contents))):
            await self._store.finish(shard, tombstone, epoch, content, low_watermarks)
            yield f"shard {shard} is finished"
        self._ledger.adopt(epoch)
        reply.ledger_epoch = epoch
        reply.nodes = sum(len(content.nodes) for content in contents)
        reply.reservations = sum(len(content.pods.uids) for content in contents)
        reply.unplaced_uids = b"".join(content.unplaced.tobytes() for content in contents)
        reply.overcommitted.extend(sorted(name for content in contents for name in content.overcommitted))

    async def _contents(self, head: pb.LedgerHead, kept: LedgerContents) -> list[Contents]:
        left = read_parts([part async for part in self._left()])
        if head.as_kept:
            kept.specs, kept.kinds, kept.columns = left.specs, left.kinds, left.columns
        schema = await self._ledger.schema(
            [*BASE_RESOURCES, *self._ledger.resources, *head.schema, *kept.resources()], incomplete=True
        )
        shards = self._ledger.shards
        indexes = _indexes(kept.specs, shards, keep=head.as_kept or head.shards == shards)
        pods = _moved(kept.pods(schema, standing=head.as_kept), indexes)
        _remember_cards(pods, left.pods(schema, standing=True))
        nodes: list[dict[int, LedgerNodeChange]] = [{} for _ in range(shards)]
        for old, spec in kept.specs.items():
            nodes[indexes[old] % shards][indexes[old]] = node_change(spec, schema)
        first = [
            max(
                self._now_us(),
                (await self._store.status(shard)).seq + 1,
                self._ledger.watermark(shard).seq + 1,
            )
            for shard in range(shards)
        ]
        groups = kept.groups()
        return [
            compose(
                nodes[shard],
                pods.of(pods.records["node"] % shards == shard),
                groups,
                first_seq=first[shard],
                resources=len(schema),
            )
            for shard in range(shards)
        ]

    async def _left(self) -> AsyncIterator[pb.LedgerPart]:
        writer = PartWriter(await self._ledger.schema(incomplete=True))
        for shard in range(self._ledger.shards):
            for part in writer.shard(await self._ledger.state(shard)):
                yield part
                await asyncio.sleep(0)  # others get their turn

    async def dump(self) -> AsyncIterator[pb.LedgerPart]:
        """The ledger in parts, each shard at one moment."""
        current = (await self.status()).epoch
        yield pb.LedgerPart(
            head=pb.LedgerHead(
                ledger_epoch=current,
                shards=self._ledger.shards,
                schema=await self._ledger.schema(incomplete=True),
            )
        )
        async for part in self._left():
            yield part

    async def repair(self) -> pb.RepairReply:
        """Repair every shard. Raises LedgerUnavailable if a shard changes too fast."""
        reply = pb.RepairReply()
        schema = await self._ledger.schema()
        for shard in range(self._ledger.shards):
            repair = await self._repair_shard(shard, schema)
            reply.changes.extend(repair.changes)
            reply.remaining.extend(repair.remaining)
        async for part in slices(reply.changes):
            for change in part:
                logger().warning("ledger_repaired", change=change)
        return reply

    async def _repair_shard(self, shard: int, schema: list[str]) -> Repair:
        await self._ledger.reap(shard)  # what should have ended
        for attempt in range(_REPAIR_ATTEMPTS):
            state = await self._ledger.state(shard)
            parsed = {i: spec async for i, spec in decoded(state.snapshot.specs)}
            names = {i: spec.name for i, spec in parsed.items()}
            labels = await wrong_labels(state.labels, parsed)
            versions = await self._ledger.damaged_versions(shard)
            # After the versions: see replace_rule_records.
            seqs = (
                [await self._ledger.seq(of_shard) for of_shard in range(self._ledger.shards)]
                if versions
                else []
            )
            claims = {
                key: group_of(text).ports
                async for part in slices(list(state.groups.items()))
                for key, (text, _) in part
                if text
            }
            specs = state.snapshot.specs
            damaged = {*state.damaged_accounts, *state.damaged_cards, *labels}
            described = {
                number(field): node_change(parsed[number(field)], schema)
                for field in damaged
                if number(field) in parsed
            }
            in_quarantine = await self._ledger.quarantine_records(shard) if damaged else {}
            quarantined = set(map(number, in_quarantine))
            held = state.reservations
            nodes = np.frombuffer(state.snapshot.accounts.indexes, U32)
            sums = sum_reservations(nodes, held.uids, held.records, claims)
            await asyncio.sleep(0)  # others get their turn
            repair = plan_repair(state, sums, schema, names, described=described, quarantined=quarantined)
            await asyncio.sleep(0)
            replace_rule_records(repair, labels, versions, described=described, seqs=seqs)
            based_on = [
                one
                for field in sorted(damaged)
                if len(field) == U32.itemsize
                for one in (
                    StoredField("specs", field, specs.get(number(field))),
                    StoredField("quarantine", field, in_quarantine.get(field)),
                )
            ]
            based_on += [StoredField("labels", field, record or None) for field, record in labels.items()]
            based_on += [StoredField("stamps", field, record) for field, record in versions.items()]
            based_on += [
                StoredField(key, field, record)
                for key, records in state.damaged_records.items()
                for field, record in records.items()
            ]
            if "rules" in repair.forgotten:  # pods may still bear them
                await self._ledger.read_rules()
            if not repair.changes or await self._store.repair(
                shard, state.snapshot.seq, repair, based_on=based_on
            ):
                return repair
            await asyncio.sleep(0.01 * attempt)  # the shard gets commits in bursts
        raise LedgerUnavailable(
            f"shard {shard} changes faster than it can be repaired; cordon the workers (`hoss "
            "cordon worker NAME`) and try again"
        )


def _indexes(specs: Mapping[int, common_pb2.NodeSpec], shards: int, *, keep: bool) -> dict[int, int]:
    """The new index of each node index in the parts: the same, or, for another number of shards, the next on
    its shard."""
    if keep:
        for index, spec in specs.items():
            if index % shards != shard_of(spec.name, shards):
                raise InvalidInput(
                    f"index {index} is not on the shard of that name", where=f"node {quoted(spec.name)}"
                )
        return {index: index for index in specs}
    given = [0] * shards
    found = {}
    for index, spec in sorted(specs.items()):
        shard = shard_of(spec.name, shards)
        found[index] = given[shard] * shards + shard
        given[shard] += 1
    return found


def _moved(pods: ReservedPods, indexes: Mapping[int, int]) -> ReservedPods:
    """The pods with their nodes' new indexes. Pods on an unknown node get the index of no node."""
    old = np.array(list(indexes), U32)
    new = np.array(list(indexes.values()), U32)
    order = np.argsort(old)
    nodes = pods.records["node"]
    if len(old):
        at = order[np.searchsorted(old[order], nodes).clip(max=len(old) - 1)]
        nodes = np.where(old[at] == nodes, new[at], np.uint32(0xFFFFFFFF))
    else:
        nodes = np.full(len(nodes), 0xFFFFFFFF, U32)
    pods.records["node"] = nodes
    return pods


def _remember_cards(pods: ReservedPods, left: ReservedPods) -> None:
    """Pods that the old ledger has on the same node keep their cards."""
    held: dict[bytes, tuple[int, int]] = {
        left.uids[row].tobytes(): (int(left.records["node"][row]), int(left.records["card_mask"][row]))
        for row in np.flatnonzero(left.records["card_mask"]).tolist()
    }
    for row in (
        np.flatnonzero((pods.card_counts > 0) & (pods.records["card_mask"] == 0)).tolist() if held else ()
    ):
        node, mask = held.get(pods.uids[row].tobytes(), (-1, 0))
        if node == int(pods.records["node"][row]):
            pods.records["card_mask"][row] = mask


async def collect(messages: AsyncIterator[pb.LedgerPart]) -> tuple[pb.LedgerHead, LedgerContents]:
    """Read a stream of parts. Raises InvalidInput if it does not begin with a head."""
    head: pb.LedgerHead | None = None
    kept = LedgerContents()
    async for message in messages:
        if head is None:
            if not message.HasField("head"):
                raise InvalidInput("the first part has no head", where="head")
            head = message.head
        kept.add(message)
    if head is None:
        raise InvalidInput("no part came", where="head")
    return head, kept
