"""The service's node calls: upsert, remove, cordon and list, shard by shard."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from hoss.errors import InvalidInput, LedgerUnavailable, NotFound, quoted
from hoss.manifests.fields import parse_label_selector
from hoss.model.selectors import Requirement
from hoss.security.identity import CallerKind, caller
from hoss.v1 import common_pb2
from hoss.v1 import resolver_pb2 as pb
from hoss.wire.columns import CARD_CLOSED, CARDS, MAX_RESOURCES, NO_CARD, U32, account_dtype
from hoss.wire.pages import first_page, key_before
from resolver.api.quarantine import Quarantine
from resolver.core.values import AccountRows, Writer
from resolver.ledger.port import Ledger
from resolver.messages.nodes import (
    are_labels_of,
    check_nodes,
    date_taints,
    has_undated_taints,
    node_change,
    shard_of,
)

_CORDON_ATTEMPTS = 10
_MOST_EVENTS = 100

# Nodes that are checked, converted and written in one step of the event loop. A node takes up to 30
# microseconds, or more where it has many labels.
_SLICE_ROWS = 250

SlicedT = TypeVar("SlicedT", bound=Any)  # a sequence, an array or a repeated field: slices are like the whole


def writer_of_term(term: int, journal_write: int = 0) -> Writer:
    """The writer of a call under this term (0: not a dispatcher's). Raises InvalidInput where a caller that
    is no dispatcher names a term: the highest one that was ever named shuts every other dispatcher out."""
    sender = caller()
    if (term or journal_write) and sender is not None and sender.kind is not CallerKind.DISPATCHER:
        raise InvalidInput(
            f"this connection is {sender}'s: only a dispatcher writes under a term", where="term"
        )
    return Writer(term, journal_write=journal_write)


class NodeChanges:
    """Raises InvalidInput for an invalid node, NotFound for an unknown name. `events` are the latest cordons
    and their ends, with who asked for them."""

    def __init__(self, ledger: Ledger, quarantine: Quarantine, *, unix_clock: Callable[[], float]) -> None:
        self._unix_clock = unix_clock
        self._ledger = ledger
        self._quarantine = quarantine
        self.events: deque[pb.NodeEvent] = deque(maxlen=_MOST_EVENTS)

    async def upsert(self, request: pb.UpsertNodesRequest) -> pb.UpsertNodesReply:
        """Add or replace these nodes. All are checked before any is written."""
        offered: dict[str, None] = {}
        names: set[str] = set()
        async for part in slices(request.nodes):
            check_nodes(part, names)
            offered |= dict.fromkeys(amount.resource for node in part for amount in node.allocatable)
        present = await self._ledger.schema()
        if len(offered.keys() | set(present)) > MAX_RESOURCES:
            raise InvalidInput(
                f"name more resources than the {MAX_RESOURCES:,} that a ledger has; it has {len(present):,}",
                where="nodes",
            )
        schema = await self._ledger.schema(list(offered))
        indexes = np.zeros(len(request.nodes), U32)
        overcommitted: list[str] = []
        shards = np.array([shard_of(node.name, self._ledger.shards) for node in request.nodes], np.int64)
        for shard in np.unique(shards).tolist():
            async for positions in slices(np.flatnonzero(shards == shard)):
                nodes = [request.nodes[position] for position in positions.tolist()]
                if undated := [node.name for node in nodes if has_undated_taints(node)]:
                    known = await self._ledger.nodes_named(shard, undated)
                    date_taints(nodes, known, now_ms=int(self._unix_clock() * 1000))
                changes = [node_change(node, schema) for node in nodes]
                upserted = await self._ledger.upsert_nodes(
                    shard, changes, writer=writer_of_term(request.term)
                )
                if upserted is not None:
                    indexes[positions] = upserted.indexes
                    overcommitted.extend(changes[position].name for position in upserted.overcommitted)
        return pb.UpsertNodesReply(indexes=indexes.tolist(), overcommitted=sorted(overcommitted))

    async def remove(self, request: pb.RemoveNodesRequest) -> pb.RemoveNodesReply:
        """Remove the nodes with their reservations."""
        by_shard: dict[int, list[str]] = {}
        for name in dict.fromkeys(request.names):
            by_shard.setdefault(shard_of(name, self._ledger.shards), []).append(name)
        reply = pb.RemoveNodesReply()
        for shard, names in by_shard.items():
            removed = await self._ledger.remove_nodes(shard, names, writer_of_term(request.term))
            reply.released_uids += removed.uids.tobytes()
            reply.not_found.extend(names[position] for position in removed.missing)
        return reply

    async def cordon(self, request: pb.CordonNodeRequest, *, by: str) -> pb.CordonNodeReply:
        """Cordon or uncordon a node. To uncordon also ends its quarantine. `by`: who asks, or from where."""
        shard = shard_of(request.name, self._ledger.shards)
        schema = await self._ledger.schema()
        for _ in range(_CORDON_ATTEMPTS):
            index, node = await self._find(request.name, shard)
            if not request.unschedulable:
                await self._quarantine.release(shard, index)
            was, changes = (
                node.SerializeToString(deterministic=True),
                node.unschedulable != request.unschedulable,
            )
            node.unschedulable = request.unschedulable
            change, writer = node_change(node, schema), writer_of_term(request.term)
            if await self._ledger.upsert_nodes(shard, [change], was, writer) is not None:
                if changes:
                    self._note(node.name, f"{'cordoned' if node.unschedulable else 'uncordoned'} {by}")
                return pb.CordonNodeReply(node=node)
        raise LedgerUnavailable(f"node {request.name} changes faster than it can be cordoned; try again")

    def _note(self, node: str, text: str) -> None:
        at_ms = round(self._unix_clock() * 1000)
        self.events.append(pb.NodeEvent(unix_ms=at_ms, node=node, text=text))

    async def _find(self, name: str, shard: int) -> tuple[int, common_pb2.NodeSpec]:
        found = await self._ledger.nodes_named(shard, [name])
        if name not in found:
            raise NotFound(f"there is no node {quoted(name)}", where="name")
        index, spec = found[name]
        return index, common_pb2.NodeSpec.FromString(spec)


async def list_nodes(ledger: Ledger, request: pb.ListNodesRequest) -> pb.ListNodesReply:
    """One page of the nodes with these names (none: all) that match the selector, by name. Nodes of one page
    and shard are as at one moment. Raises InvalidInput for a bad selector or token."""
    requirements = parse_label_selector(request.label_selector, where="label_selector")
    after = key_before(request.page_token)
    names = set(request.names)
    if not names:
        for shard in range(ledger.shards):
            names.update(await ledger.node_names(shard))
    left = sorted(name for name in names if after is None or name > after)
    schema = await ledger.schema()
    found: list[pb.NodeInfo] = []
    while left and (not request.limit or len(found) <= request.limit):
        # One more than the page has, for the token; more where the selector may pass over many.
        count = max(request.limit + 1 - len(found), _SLICE_ROWS) if request.limit else len(left)
        infos = [info async for info in _infos(ledger, schema, left[:count], requirements)]
        found += sorted(infos, key=_name)
        left = left[count:]
    page, token = first_page(found, request.limit, _name)
    return pb.ListNodesReply(nodes=page, next_page_token=token)


def _name(info: pb.NodeInfo) -> str:
    return info.spec.name


async def _infos(
    ledger: Ledger, schema: Sequence[str], names: Sequence[str], requirements: Sequence[Requirement]
) -> AsyncIterator[pb.NodeInfo]:
    """Those of these nodes that exist and match, shard by shard."""
    wanted = set(names)
    shards = [shard_of(name, ledger.shards) for name in names]
    for shard in sorted(set(shards)):
        here = [name for name, its_shard in zip(names, shards, strict=True) if its_shard == shard]
        snapshot = await ledger.snapshot_of(shard, here)
        requested = _by_index(snapshot.accounts)
        async for index, node in decoded(snapshot.specs):
            labels = {label.key: label.value for label in node.labels}
            # Between the look-up of a name and the read, its index may have become another node's.
            if node.name not in wanted or index not in requested:
                continue
            if all(requirement.matches(labels) for requirement in requirements):
                amounts, cards = requested[index]
                yield pb.NodeInfo(
                    index=index,
                    spec=node,
                    requested=[
                        common_pb2.Amount(resource=schema[i], amount=amount)
                        for i, amount in enumerate(amounts)
                        if amount
                    ],
                    cards_used_milli=cards,
                )


async def decoded(specs: Mapping[int, bytes]) -> AsyncIterator[tuple[int, common_pb2.NodeSpec]]:
    """Nodes by index. Others get their turn between slices of them."""
    async for part in slices(list(specs.items())):
        for index, spec in part:
            yield index, common_pb2.NodeSpec.FromString(spec)


async def wrong_labels(
    records: Mapping[bytes, bytes], specs: Mapping[int, common_pb2.NodeSpec]
) -> dict[bytes, bytes]:
    """Records of labels, by field, that are not what the specs of their nodes say; b"": it is missing."""
    of_no_node, wrong = dict(records), {}
    async for part in slices(list(specs.items())):
        for index, node in part:
            field = index.to_bytes(U32.itemsize, "little")
            record = of_no_node.pop(field, None)
            if not are_labels_of(record, node):
                wrong[field] = record or b""
    return wrong | of_no_node


async def slices(rows: SlicedT) -> AsyncIterator[SlicedT]:
    """Parts of a sequence, each of which takes some milliseconds; others get their turn in between."""
    for start in range(0, len(rows), _SLICE_ROWS):
        yield rows[start : start + _SLICE_ROWS]
        await asyncio.sleep(0)


def _by_index(rows: AccountRows) -> dict[int, tuple[list[int], list[int]]]:
    """By node: requested amounts, and thousandths in use of each card."""
    accounts = np.frombuffer(rows.records, account_dtype(rows.resources))
    cards = np.frombuffer(rows.cards, CARDS.base).reshape(-1, *CARDS.shape)
    used = {
        index: [milli & (CARD_CLOSED - 1) for milli in slots if milli != NO_CARD]
        for index, slots in zip(np.frombuffer(rows.card_indexes, U32).tolist(), cards.tolist(), strict=True)
    }
    return {
        index: (requested, used.get(index, []))
        for index, requested in zip(
            np.frombuffer(rows.indexes, U32).tolist(), accounts["amounts"][:, :, 1].tolist(), strict=True
        )
    }
