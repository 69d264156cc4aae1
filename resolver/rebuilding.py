"""Rebuilding, restoring, dumping and mending the ledger, as the service offers it."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Mapping

import numpy as np

from hoss.errors import InvalidInput, LedgerUnavailable
from hoss.model.resources import BASE_RESOURCES
from hoss.telemetry import logger
from hoss.v1 import common_pb2
from hoss.v1 import resolver_pb2 as pb
from hoss.wire.columns import U32
from resolver.core.contents import Contents, Pods, compose
from resolver.core.mending import Mending, mend
from resolver.core.values import NodeChange
from resolver.ledger.rebuild import RedisRebuild
from resolver.ledger.scripts import RECOVERING, RESTORING
from resolver.ledger.store import RedisLedger
from resolver.nodes import node_change, shard_of
from resolver.parts import Kept, PartWriter, read_parts
from resolver.proposals import group_of

_MEND_ATTEMPTS = 20


class Rebuilding:
    """`now_us` is the Unix time in microseconds: numbers of a ledger made anew begin there, above all that it ever reached."""

    def __init__(self, ledger: RedisLedger, store: RedisRebuild, *, now_us: Callable[[], int]) -> None:
        self._ledger = ledger
        self._store = store
        self._now_us = now_us

    async def standing(self) -> str:
        """What Rebuild would replace."""
        return (await self._store.standing()).epoch

    async def rebuild(self, head: pb.LedgerHead, kept: Kept) -> pb.RebuildReply:
        """Replace the ledger by what was read from parts. Raises InvalidInput, with nothing changed, for a head that does not
        hold, and LedgerUnavailable where another rebuild came between."""
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

    async def steps(self, head: pb.LedgerHead, kept: Kept, reply: pb.RebuildReply) -> AsyncIterator[str]:
        """Rebuild, step by step. Stopped after any of them, the ledger is seen to be broken and holds what it held."""
        if head.only_empty:
            left = read_parts([part async for part in self._left()])
            if left.specs or left.columns:
                raise InvalidInput("the ledger has nodes or reservations; --force replaces them", where="restore")
        epoch = head.ledger_epoch or secrets.token_hex(8)
        mark = (RESTORING if head.operator and not head.as_kept else RECOVERING) + f"{epoch}-{secrets.token_hex(4)}"
        await self._store.mark(0, mark, head.replaces)
        yield "shard 0 is marked"
        for shard in range(1, self._ledger.shards):
            await self._store.mark(shard, mark, "*")
            yield f"shard {shard} is marked"
        contents = await self._contents(head, kept)
        for shard, content in enumerate(contents):
            await self._store.load(shard, mark, content)
            yield f"shard {shard} is loaded"
        await self._store.raise_epochs(self._now_us())
        yield "worker epochs are raised"
        floors = [content.seq for content in contents]
        for shard, content in reversed(list(enumerate(contents))):
            await self._store.finish(shard, mark, epoch, content, floors)
            yield f"shard {shard} is finished"
        self._ledger.adopt(epoch)
        reply.ledger_epoch = epoch
        reply.nodes = sum(len(content.nodes) for content in contents)
        reply.reservations = sum(len(content.pods.uids) for content in contents)
        reply.unplaced_uids = b"".join(content.unplaced.tobytes() for content in contents)
        reply.overcommitted.extend(sorted(name for content in contents for name in content.overcommitted))

    async def _contents(self, head: pb.LedgerHead, kept: Kept) -> list[Contents]:
        left = read_parts([part async for part in self._left()])
        if head.as_kept:
            kept.specs, kept.kinds, kept.columns = left.specs, left.kinds, left.columns
        schema = await self._ledger.schema(
            [*BASE_RESOURCES, *self._ledger.resources, *head.schema, *kept.resources()], left=True
        )
        shards = self._ledger.shards
        indexes = _indexes(kept.specs, shards, keep=head.as_kept or head.shards == shards)
        pods = _moved(kept.pods(schema), indexes)
        _remember_cards(pods, left.pods(schema))
        nodes: list[dict[int, NodeChange]] = [{} for _ in range(shards)]
        for old, spec in kept.specs.items():
            nodes[indexes[old] % shards][indexes[old]] = node_change(spec, schema)
        first = [
            max(self._now_us(), (await self._store.standing(shard)).seq + 1, self._ledger.highest_seq(shard) + 1)
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
        writer = PartWriter(await self._ledger.schema(left=True))
        for shard in range(self._ledger.shards):
            for part in writer.shard(await self._ledger.state(shard)):
                yield part

    async def dump(self) -> AsyncIterator[pb.LedgerPart]:
        """The ledger in parts, each shard as at one moment."""
        standing = await self.standing()
        yield pb.LedgerPart(
            head=pb.LedgerHead(
                ledger_epoch=standing, shards=self._ledger.shards, schema=await self._ledger.schema(left=True)
            )
        )
        async for part in self._left():
            yield part

    async def repair(self) -> pb.RepairReply:
        """Mend every shard. Raises LedgerUnavailable where one changes too fast to be mended."""
        reply = pb.RepairReply()
        schema = await self._ledger.schema()
        for shard in range(self._ledger.shards):
            mending = await self._mend(shard, schema)
            reply.changes.extend(mending.changes)
            reply.remaining.extend(mending.remaining)
        for change in reply.changes:
            logger().warning("mended", change=change)
        return reply

    async def _mend(self, shard: int, schema: list[str]) -> Mending:
        for attempt in range(_MEND_ATTEMPTS):
            state = await self._ledger.state(shard)
            names = {i: common_pb2.NodeSpec.FromString(s).name for i, s in state.snapshot.specs.items()}
            claims = {key: group_of(text).ports for key, (text, _) in state.groups.items() if text}
            mending = mend(state, claims, schema, names)
            if not mending.changes or await self._store.mend(shard, state.snapshot.seq, mending):
                return mending
            await asyncio.sleep(0.01 * attempt)  # many commits come between: those of one burst end
        raise LedgerUnavailable(
            f"shard {shard} changes faster than it can be mended; cordon the workers (`hoss cordon worker NAME`) and try again"
        )


def _indexes(specs: Mapping[int, common_pb2.NodeSpec], shards: int, *, keep: bool) -> dict[int, int]:
    """By the node's index in the parts the one it gets: its own, or, where shards were others, the next on its shard."""
    if keep:
        for index, spec in specs.items():
            if index % shards != shard_of(spec.name, shards):
                raise InvalidInput(f"index {index} is not on the shard of that name", where=f"node {spec.name!r}")
        return {index: index for index in specs}
    given = [0] * shards
    found = {}
    for index, spec in sorted(specs.items()):
        shard = shard_of(spec.name, shards)
        found[index] = given[shard] * shards + shard
        given[shard] += 1
    return found


def _moved(pods: Pods, indexes: Mapping[int, int]) -> Pods:
    """The pods on their nodes' new indexes; those on none stay where they are, on a node that is not there."""
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


def _remember_cards(pods: Pods, left: Pods) -> None:
    """Pods that stand in what is left of the ledger, on the same node, keep the cards they have there."""
    held: dict[bytes, tuple[int, int]] = {
        left.uids[row].tobytes(): (int(left.records["node"][row]), int(left.records["card_mask"][row]))
        for row in np.flatnonzero(left.records["card_mask"]).tolist()
    }
    for row in np.flatnonzero((pods.card_counts > 0) & (pods.records["card_mask"] == 0)).tolist() if held else ():
        node, mask = held.get(pods.uids[row].tobytes(), (-1, 0))
        if node == int(pods.records["node"][row]):
            pods.records["card_mask"][row] = mask


async def collect(messages: AsyncIterator[pb.LedgerPart]) -> tuple[pb.LedgerHead, Kept]:
    """Read a stream of parts. Raises InvalidInput where it does not begin with a head."""
    head: pb.LedgerHead | None = None
    kept = Kept()
    async for message in messages:
        if head is None:
            if not message.HasField("head"):
                raise InvalidInput("the first part has no head", where="head")
            head = message.head
        kept.add(message)
    if head is None:
        raise InvalidInput("no part came", where="head")
    return head, kept
