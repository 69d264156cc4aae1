"""A ledger as a file: JSON lines, one object a line, its `kind` first. Described in docs/operations.md, "Dump and restore".

Written and read as a stream. Version 1; a reader refuses any other.
"""

import json
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any

from google.protobuf import json_format
from google.protobuf.message import Message

from hoss.errors import HossError, InvalidInput
from hoss.v1 import common_pb2
from hoss.v1 import resolver_pb2 as pb
from hoss.wire.account import CARD_SLOTS
from hoss.wire.columns import U8, U16, U32, U64, UID_BYTES, decode, encode, uid_from_text, uid_text

VERSION = 1
_ROWS = 2000  # of one part

Line = dict[str, Any]


async def lines_of(parts: AsyncIterator[pb.LedgerPart]) -> AsyncIterator[Line]:
    """The lines of a dump."""
    names: dict[int, str] = {}
    kinds = 0
    async for part in parts:
        if part.HasField("head"):
            head = part.head
            yield {
                "kind": "Ledger",
                "version": VERSION,
                "epoch": head.ledger_epoch,
                "shards": head.shards,
                "schema": list(head.schema),
            }
        for entry in part.nodes:
            names[entry.index] = entry.spec.name
            yield {"kind": "Node", "index": entry.index, "spec": _as_json(entry.spec)}
        for kind in part.kinds:
            yield {"kind": "PodKind", "number": kinds, **_kind_fields(kind)}
            kinds += 1
        for line in _reservations(part.pods, names):
            yield line


def _kind_fields(kind: pb.PodKind) -> Line:
    group = _as_json(pb.PodGroup.FromString(kind.group)) if kind.group else None
    return {
        "requests": {amount.resource: amount.amount for amount in kind.requests},
        "priority": kind.priority,
        "cards": kind.cards,
        "cardMilli": kind.card_milli,
        "group": group,
    }


def _reservations(pods: pb.PodColumns, names: dict[int, str]) -> Iterator[Line]:
    rows = len(pods.uids) // UID_BYTES
    columns = zip(
        decode(pods.nodes, U32, name="nodes", rows=rows).tolist(),
        decode(pods.kinds, U32, name="kinds", rows=rows).tolist(),
        decode(pods.card_masks, U16, name="card_masks", rows=rows).tolist(),
        decode(pods.assumed, U8, name="assumed", rows=rows).tolist(),
        decode(pods.attempts, U16, name="attempts", rows=rows).tolist(),
        decode(pods.epochs, U64, name="epochs", rows=rows).tolist(),
        strict=True,
    )
    for row, (node, kind, mask, assumed, attempt, epoch) in enumerate(columns):
        yield {
            "kind": "Reservation",
            "uid": uid_text(pods.uids[row * UID_BYTES : (row + 1) * UID_BYTES]),
            "node": names.get(node, ""),
            "podKind": kind,
            "cards": [card for card in range(CARD_SLOTS) if mask >> card & 1],
            "assumed": bool(assumed),
            "attempt": attempt,
            "workerEpoch": epoch,
        }


def parts_of(lines: Iterable[str], head: pb.LedgerHead, *, where: str) -> Iterator[pb.LedgerPart]:
    """The parts of a dump, behind `head`, which is given the dump's shards and schema. Raises InvalidInput with the line."""
    reader = _Reader()
    for number, text in enumerate(lines, 1):
        if not text.strip():
            continue
        try:
            line = json.loads(text)
            if number == 1:
                yield pb.LedgerPart(head=_head(line, head))
                continue
            reader.take(line)
        except (HossError, ValueError, KeyError, TypeError, json_format.ParseError) as exc:
            what = f"has no {exc}" if isinstance(exc, KeyError) else str(exc)
            raise InvalidInput(what, where=f"{where} line {number}") from exc
        if reader.full:
            yield reader.part()
    yield reader.part()


def _head(line: Line, head: pb.LedgerHead) -> pb.LedgerHead:
    if line.get("kind") != "Ledger" or line.get("version") != VERSION:
        raise InvalidInput(
            f'does not begin with {{"kind": "Ledger", "version": {VERSION}, ...}}: no dump, or of another HOSS'
        )
    head.shards = line["shards"]
    head.schema[:] = line["schema"]
    return head


class _Reader:
    """Collects lines to parts."""

    def __init__(self) -> None:
        self._indexes: dict[str, int] = {}
        self._begin()

    def _begin(self) -> None:
        self._part = pb.LedgerPart()
        self._rows: list[tuple[bytes, int, int, int, int, int, int]] = []

    @property
    def full(self) -> bool:
        return max(len(self._rows), len(self._part.nodes), len(self._part.kinds)) >= _ROWS

    def take(self, line: Line) -> None:
        """The next line."""
        kind = line["kind"]
        if kind == "Node":
            spec = json_format.ParseDict(line["spec"], common_pb2.NodeSpec())
            self._indexes[spec.name] = line["index"]
            self._part.nodes.add(index=line["index"], spec=spec)
        elif kind == "PodKind":
            self._part.kinds.append(_kind(line))
        elif kind == "Reservation":
            self._rows.append(self._row(line))
        else:
            raise InvalidInput(f"{kind!r} is none of Node, PodKind and Reservation", where="kind")

    def _row(self, line: Line) -> tuple[bytes, int, int, int, int, int, int]:
        if line["node"] not in self._indexes:
            raise InvalidInput(f"there is no node {line['node']!r} above", where="node")
        return (
            uid_from_text(line["uid"]),
            self._indexes[line["node"]],
            line["podKind"],
            sum(1 << card for card in line["cards"]),
            int(line["assumed"]),
            line["attempt"],
            line["workerEpoch"],
        )

    def part(self) -> pb.LedgerPart:
        """What was collected since the last."""
        part, rows = self._part, self._rows
        if rows:
            uids, nodes, kinds, masks, assumed, attempts, epochs = zip(*rows, strict=True)
            part.pods.CopyFrom(
                pb.PodColumns(
                    uids=b"".join(uids),
                    nodes=encode(nodes, U32),
                    kinds=encode(kinds, U32),
                    card_masks=encode(masks, U16),
                    assumed=encode(assumed, U8),
                    attempts=encode(attempts, U16),
                    epochs=encode(epochs, U64),
                )
            )
        self._begin()
        return part


def _kind(line: Line) -> pb.PodKind:
    group = b""
    if line["group"] is not None:
        group = json_format.ParseDict(line["group"], pb.PodGroup()).SerializeToString(deterministic=True)
    kind = pb.PodKind(priority=line["priority"], cards=line["cards"], card_milli=line["cardMilli"], group=group)
    for resource, amount in line["requests"].items():
        kind.requests.add(resource=resource, amount=amount)
    return kind


def _as_json(message: Message) -> Line:
    document: Line = json_format.MessageToDict(message)
    return document
