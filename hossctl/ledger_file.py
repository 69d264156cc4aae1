"""A ledger as a file of JSON lines, one object a line with its `kind` first, written and read as a stream.

docs/operations.md, "Dump and restore", describes the format. This is version 1; other versions are
refused."""

from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any

import numpy as np
from google.protobuf import json_format
from google.protobuf.message import Message

from hoss.errors import HossError, InvalidInput, quoted
from hoss.manifests.guarded import json_value
from hoss.v1 import common_pb2
from hoss.v1 import resolver_pb2 as pb
from hoss.wire.columns import CARD_SLOTS, U8, U16, U32, U64, decode, encode
from hoss.wire.uids import UID_BYTES, uid_from_text, uid_text

VERSION = 1
_ROWS = 2000  # reservations, nodes or kinds of a part

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
    """The parts of a dump. The first is `head`, which gets the dump's shards and schema. Raises InvalidInput
    with the line's number."""
    reader = _Reader()
    for number, text in enumerate(lines, 1):
        if not text.strip():
            continue
        try:
            line = json_value(text, "")
            if not isinstance(line, dict):
                raise InvalidInput("is no JSON object")
            if number == 1:
                yield pb.LedgerPart(head=_head(line, head))
                continue
            reader.take(line)
        except (HossError, ValueError, KeyError, TypeError, AttributeError, json_format.ParseError) as exc:
            problem = f"has no {exc}" if isinstance(exc, KeyError) else str(exc)
            raise InvalidInput(problem, where=f"{where} line {number}") from exc
        if reader.full:
            yield reader.part()
    yield reader.part()


def _head(line: Line, head: pb.LedgerHead) -> pb.LedgerHead:
    if line.get("kind") != "Ledger" or line.get("version") != VERSION:
        raise InvalidInput(
            f'does not begin with {{"kind": "Ledger", "version": {VERSION}, ...}}: no dump, or of another '
            "HOSS"
        )
    head.shards = line["shards"]
    head.schema[:] = line["schema"]
    return head


class _Reader:
    """Collects lines into parts."""

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
        """Add a line. Raises InvalidInput, KeyError, ValueError, TypeError, ParseError for a wrong one."""
        kind = line["kind"]
        if kind == "Node":
            spec, index = (
                json_format.ParseDict(line["spec"], common_pb2.NodeSpec()),
                _whole(line, "index", U32),
            )
            self._indexes[spec.name] = index
            self._part.nodes.add(index=index, spec=spec)
        elif kind == "PodKind":
            self._part.kinds.append(_kind(line))
        elif kind == "Reservation":
            self._rows.append(self._row(line))
        else:
            raise InvalidInput(f"{quoted(kind)} is none of Node, PodKind and Reservation", where="kind")

    def _row(self, line: Line) -> tuple[bytes, int, int, int, int, int, int]:
        if line["node"] not in self._indexes:
            raise InvalidInput(f"there is no node {quoted(line['node'])} above", where="node")
        return (
            uid_from_text(line["uid"]),
            self._indexes[line["node"]],
            _whole(line, "podKind", U32),
            sum({1 << range(CARD_SLOTS)[card] for card in line["cards"]}),
            int(bool(line["assumed"])),
            _whole(line, "attempt", U16),
            _whole(line, "workerEpoch", U64),
        )

    def part(self) -> pb.LedgerPart:
        """The part of the lines since the part before."""
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


def _whole(line: Line, field: str, of: np.dtype[Any]) -> int:
    value, most = line[field], int(np.iinfo(of).max)
    if type(value) is not int or not 0 <= value <= most:
        raise InvalidInput(f"is {quoted(value)}, which is no whole number from 0 to {most}", where=field)
    return value


def _kind(line: Line) -> pb.PodKind:
    group = b""
    if line["group"] is not None:
        group = json_format.ParseDict(line["group"], pb.PodGroup()).SerializeToString(deterministic=True)
    kind = pb.PodKind(
        priority=line["priority"], cards=line["cards"], card_milli=line["cardMilli"], group=group
    )
    for resource, amount in line["requests"].items():
        kind.requests.add(resource=resource, amount=amount)
    return kind


def _as_json(message: Message) -> Line:
    document: Line = json_format.MessageToDict(message)
    return document
