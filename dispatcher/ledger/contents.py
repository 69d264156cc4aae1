"""What reservations hold: of a pod as the dispatcher knows it, and of a reservation as the ledger has it.

A digest stands for all that the ledger compares when it is told of an existing pod
(resolver/ledger/lua/resizing.lua): amounts, cards, and the pod's group. So a dispatcher that has listed all
reservations knows which of them are right as they are."""

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from dispatcher.core.pods.registry import PodRegistry
from hoss.model.pod import group_of
from hoss.v1 import common_pb2
from hoss.v1 import resolver_pb2 as pb
from hoss.wire.columns import I64, U16, U64, decode
from hoss.wire.convert_rules import definition_of, group_key

_DIGEST_BYTES = 8
_OF_ROW = 3  # columns beside the amounts: cards, their thousandths, and the group


def kind_of(registry: PodRegistry, template: int) -> pb.PodKind:
    """The pods of a template, for the ledger."""
    spec = registry.templates.pod_spec(int(registry.templates.class_id[template]))
    kind = pb.PodKind(
        requests=[common_pb2.Amount(resource=name, amount=amount) for name, amount in spec.requests],
        priority=int(registry.templates.priority[template]),
        group=definition_of(group_of(spec)),
    )
    kind.requests.add(resource="pods", amount=1)
    if spec.devices is not None:
        kind.cards, kind.card_milli = spec.devices.count, spec.devices.milli
    return kind


def digest_of_kind(kind: pb.PodKind) -> int:
    """What a reservation of such a pod has to hold; never 0. Priorities are not compared."""
    amounts = {amount.resource: amount.amount for amount in kind.requests}
    group = group_key(kind.group) if kind.group else 0
    return _digest(amounts.items(), kind.cards, kind.card_milli, group)


def digests_of_chunk(
    chunk: pb.ReservationChunk, schema: Sequence[str], known: dict[bytes, int]
) -> NDArray[np.uint64]:
    """(n,), what each reservation of the chunk holds; zeros where the resolver does not say. `schema`: names
    of the amounts. `known`: digests by row, of earlier chunks with the same schema; new ones are added.
    Raises ColumnError."""
    rows = len(chunk.nodes) // np.dtype(np.uint32).itemsize
    if not chunk.groups or chunk.resources > len(schema):
        return np.zeros(rows, np.uint64)
    table = np.empty((rows, _OF_ROW + chunk.resources), I64)
    table[:, 0] = decode(chunk.card_masks, U16, name="card_masks", rows=rows)
    table[:, 1] = decode(chunk.card_millis, U16, name="card_millis", rows=rows)
    table[:, 2] = decode(chunk.groups, U64, name="groups", rows=rows).view(I64)
    amounts = decode(chunk.requests, I64, name="requests", rows=rows * chunk.resources)
    table[:, _OF_ROW:] = amounts.reshape(rows, chunk.resources)
    keys = table.view(f"V{table.strides[0]}").ravel().tolist()
    for key in set(keys) - known.keys():
        mask, milli, group, *amounts_of_row = np.frombuffer(key, I64).tolist()
        named = zip(schema, amounts_of_row, strict=False)
        known[key] = _digest(named, int(mask).bit_count(), milli, group % (1 << 64))
    return np.fromiter((known[key] for key in keys), np.uint64, rows)


def _digest(amounts: Iterable[tuple[str, int]], cards: int, milli: int, group: int) -> int:
    """Amounts of 0 do not count, and without cards no share of one."""
    held = sorted((name, amount) for name, amount in amounts if amount)
    content = repr((held, cards, milli if cards else 0, group)).encode()
    return int.from_bytes(hashlib.blake2b(content, digest_size=_DIGEST_BYTES).digest(), "little") or 1
