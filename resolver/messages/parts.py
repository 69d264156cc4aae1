"""A ledger in parts, for dump, restore and rebuild: converts between LedgerPart messages and
resolver.core."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hoss.errors import InvalidInput
from hoss.model.resources import MAX_AMOUNT, WHOLE_CARD_MILLI
from hoss.v1 import common_pb2
from hoss.v1 import resolver_pb2 as pb
from hoss.wire.columns import CARD_SLOTS, U8, U16, U32, U64, decode, decode_uids
from hoss.wire.uids import UID_BYTES, uid_text
from resolver.core.consistency.contents import ReservedPods
from resolver.core.values import Group, Reservations, ReservationState, ShardState, reservation_dtype
from resolver.messages.nodes import check_nodes
from resolver.messages.proposals import group_of

_ROWS = 2000  # per part


@dataclass(slots=True)
class LedgerContents:
    """A ledger read from parts: specs by node index, and its reservations."""

    specs: dict[int, common_pb2.NodeSpec] = field(default_factory=dict)
    kinds: list[pb.PodKind] = field(default_factory=list)
    columns: list[pb.PodColumns] = field(default_factory=list)

    def add(self, part: pb.LedgerPart) -> None:
        """Add the next part. Raises InvalidInput for what no ledger can contain."""
        check_nodes((entry.spec for entry in part.nodes), set())
        for entry in part.nodes:
            if entry.index in self.specs:
                raise InvalidInput("is given to two nodes", where=f"index {entry.index}")
            self.specs[entry.index] = entry.spec
        for kind in part.kinds:
            check_kind(kind)
        self.kinds += part.kinds
        if part.pods.uids:
            self.columns.append(part.pods)

    def resources(self) -> list[str]:
        """Names of all resources that nodes offer or pods request."""
        offered = [amount.resource for spec in self.specs.values() for amount in spec.allocatable]
        return list(dict.fromkeys([*offered, *(a.resource for kind in self.kinds for a in kind.requests)]))

    def groups(self) -> dict[int, Group]:
        """The groups of its kinds, by key."""
        found = [
            group_of(definition)
            for definition in dict.fromkeys(kind.group for kind in self.kinds if kind.group)
        ]
        return {group.key: group for group in found}

    def pods(self, schema: Sequence[str], *, standing: bool = False) -> ReservedPods:
        """All reservations, with amounts in schema order. Raises InvalidInput for an unknown kind, and for a
        repeated UID. `standing`: of a repeated UID the reservation that stands is left: a confirmed one
        before an assumed one, then that of the latest epoch. Shards that went back alone may each have
        one."""
        columns = [_read(column, self.kinds, schema) for column in self.columns] or [
            _read(pb.PodColumns(), [], schema)
        ]
        pods = ReservedPods(
            *(np.concatenate([getattr(c, name) for c in columns]) for name in ReservedPods.__slots__)
        )
        keys = np.ascontiguousarray(pods.uids).view(f"V{UID_BYTES}").ravel()
        _, first = np.unique(keys, return_index=True)
        if len(first) < len(keys):
            if standing:
                best_first = np.lexsort((-pods.records["epoch"].astype(np.int64), pods.assumed))
                _, best = np.unique(keys[best_first], return_index=True)
                return pods.of(np.sort(best_first[best]))
            twice = np.setdiff1d(np.arange(len(keys)), first)[0]
            raise InvalidInput("holds two reservations", where=f"pod {uid_text(pods.uids[twice].tobytes())}")
        return pods


def check_kind(kind: pb.PodKind) -> None:
    """Raises InvalidInput for what no pod can request."""
    for amount in kind.requests:
        if not 0 <= amount.amount <= MAX_AMOUNT:
            raise InvalidInput(f"{amount.amount} is not between 0 and 2^53", where=f"kinds {amount.resource}")
    if kind.cards > CARD_SLOTS or not bool(kind.cards) <= kind.card_milli <= WHOLE_CARD_MILLI:
        raise InvalidInput(
            f"{kind.cards} of {kind.card_milli} thousandths; a pod has up to 16 of 1 to 1000", where="kinds"
        )


def _read(columns: pb.PodColumns, kinds: Sequence[pb.PodKind], schema: Sequence[str]) -> ReservedPods:
    uids = decode_uids(columns.uids)
    rows = len(uids)
    numbers = decode(columns.kinds, U32, name="kinds", rows=rows)
    if rows and int(numbers.max()) >= len(kinds):
        raise InvalidInput(f"{int(numbers.max())} where {len(kinds)} have come", where="pods.kinds")
    records = np.zeros(rows, reservation_dtype(len(schema)))
    records["node"] = decode(columns.nodes, U32, name="nodes", rows=rows)
    records["card_mask"] = _column(columns.card_masks, U16, "card_masks", rows)
    records["attempt"] = _column(columns.attempts, U16, "attempts", rows)
    records["epoch"] = _column(columns.epochs, U64, "epochs", rows)
    place = {resource: at for at, resource in enumerate(schema)}
    requests = np.zeros((max(len(kinds), 1), len(schema)), np.int64)
    for number, kind in enumerate(kinds):
        for amount in kind.requests:
            requests[number, place[amount.resource]] = amount.amount
    records["requests"] = requests[numbers]
    records["priority"] = _of_kinds([kind.priority for kind in kinds], numbers, np.int32)
    records["card_milli"] = _of_kinds([kind.card_milli for kind in kinds], numbers, np.uint16)
    keys = [group_of(kind.group).key if kind.group else 0 for kind in kinds]
    records["group"] = _of_kinds(keys, numbers, np.uint64)
    counts = _of_kinds([kind.cards for kind in kinds], numbers, np.uint16)
    return ReservedPods(uids, records, counts, _column(columns.assumed, U8, "assumed", rows) != 0)


def _of_kinds(values: Sequence[int], numbers: NDArray[Any], dtype: Any) -> NDArray[Any]:
    column: NDArray[Any] = np.array(values or [0], dtype)[numbers]
    return column


def _column(data: bytes, dtype: np.dtype[Any], name: str, rows: int) -> NDArray[Any]:
    return decode(data, dtype, name=name, rows=rows) if data else np.zeros(rows, dtype)


class PartWriter:
    """Makes parts of shards. Kinds are numbered across all shards."""

    def __init__(self, schema: Sequence[str]) -> None:
        self._schema = schema
        self._kinds: dict[bytes, int] = {}

    def shard(self, state: ShardState) -> Iterator[pb.LedgerPart]:
        """A shard: its nodes, then its reservations. Left out are those that a part cannot mark: of pods that
        a worker still prepares, because no worker will say that they are ready, targets of moves, which would
        be reservations of pods that nobody has, and of preemptors whose victims terminate. The victims hold
        all that they held before."""
        specs = sorted(state.snapshot.specs.items())
        for start in range(0, len(specs), _ROWS):
            yield pb.LedgerPart(
                nodes=[
                    pb.NodeEntry(index=index, spec=common_pb2.NodeSpec.FromString(spec))
                    for index, spec in specs[start : start + _ROWS]
                ]
            )
        preemptors = {preemptor for preemptor, _ in state.shares.values()}
        left_out = np.array([uid.tobytes() in preemptors for uid in state.reservations.uids], np.bool_)
        left_out |= state.reservations.states == ReservationState.PRE_BINDING
        left_out |= state.reservations.targets
        held = state.reservations.of(~left_out)
        _give_back(held, state.shares)
        for start in range(0, len(held.uids), _ROWS):
            rows = slice(start, start + _ROWS)
            yield self._pods(held.uids[rows], held.records[rows], held.assumed[rows], state.groups)

    def _pods(
        self,
        uids: NDArray[np.uint8],
        records: NDArray[Any],
        assumed: NDArray[np.bool_],
        groups: dict[int, tuple[bytes, int]],
    ) -> pb.LedgerPart:
        part = pb.LedgerPart()
        numbers = [self._number(record, groups, part) for record in records]
        part.pods.CopyFrom(
            pb.PodColumns(
                uids=np.ascontiguousarray(uids).tobytes(),
                nodes=records["node"].astype(U32).tobytes(),
                kinds=np.array(numbers, U32).tobytes(),
                card_masks=records["card_mask"].astype(U16).tobytes(),
                assumed=assumed.astype(U8).tobytes(),
                attempts=records["attempt"].astype(U16).tobytes(),
                epochs=records["epoch"].astype(U64).tobytes(),
            )
        )
        return part

    def _number(self, record: Any, groups: dict[int, tuple[bytes, int]], part: pb.LedgerPart) -> int:
        """The number of the record's kind. A new kind is added to the part."""
        cards = int(record["card_mask"]).bit_count()
        shared = record[["card_milli", "priority", "group", "requests"]].tobytes() + bytes((cards,))
        if shared not in self._kinds:
            self._kinds[shared] = len(self._kinds)
            amounts = zip(self._schema, record["requests"].tolist(), strict=False)
            part.kinds.append(
                pb.PodKind(
                    requests=[
                        common_pb2.Amount(resource=name, amount=amount) for name, amount in amounts if amount
                    ],
                    priority=int(record["priority"]),
                    cards=cards,
                    card_milli=int(record["card_milli"]) if cards else 0,
                    group=groups.get(int(record["group"]), (b"", 0))[0],
                )
            )
        return self._kinds[shared]


def _give_back(held: Reservations, shares: Mapping[bytes, tuple[bytes, tuple[int, ...]]]) -> None:
    """Add to terminating pods what preemptors have taken of their amounts."""
    for row in np.flatnonzero(held.terminating).tolist() if shares else ():
        _, taken = shares.get(held.uids[row].tobytes(), (b"", ()))
        held.records["requests"][row, : len(taken)] += np.array(taken, np.int64)


def read_parts(parts: Iterable[pb.LedgerPart]) -> LedgerContents:
    contents = LedgerContents()
    for part in parts:
        contents.add(part)
    return contents
