"""The ledger's half of the recorder: the node feed, change by change, and lists of all reservations.

The feed has the accounts of every change and not its pods. A list of the reservations is exact as of the
positions of those shards whose feed did not move while it was taken, and whose last change is the same in
both; of the others the history says so."""

from collections.abc import Callable
from typing import Any

from hoss.client.feed import Subscription
from hoss.client.resolver import ResolverClient
from hoss.v1 import common_pb2
from hoss.v1 import resolver_pb2 as pb
from hoss.wire.columns import (
    CARD_SLOTS,
    FLAG_GONE,
    FLAG_QUARANTINED,
    FLAG_SHRUNK,
    I64,
    U8,
    U16,
    U32,
    U64,
    account_dtype,
    decode,
    decode_uids,
)
from hoss.wire.uids import uid_text
from hossctl.history.events import Event, History

_LEDGER = "ledger"


class LedgerRecorder:
    """Writes what the ledger tells. `moved` is called at every change."""

    def __init__(self, client: ResolverClient, history: History, moved: Callable[[], None]) -> None:
        self._client = client
        self._history = history
        self._moved = moved
        self._subscription = Subscription(client, "history", self._apply)
        self._schema: list[str] = []
        self._specs: dict[int, common_pb2.NodeSpec] = {}
        self._quarantined: set[int] = set()
        self._seqs: dict[int, int] = {}  # by shard
        self._nonces: dict[int, str] = {}  # of these changes
        self._holds: dict[int, set[int]] = {}  # by shard: prepared commits
        self._epochs: dict[int, str] = {}

    async def catch_up(self) -> None:
        """Write the changes up to this moment. Waits for as long as no resolver answers."""
        await self._subscription.catch_up()

    async def list_reservations(self, *, final: bool = False) -> Event:
        """The fields of an event with all reservations."""
        await self.catch_up()
        before = dict(self._seqs)
        elsewhere: set[int] = set()  # shards whose list is from another history than the feed
        rows: dict[str, Event] = {}
        schema: list[str] = []
        async for chunk in self._client.reservations(details=True):
            schema = list(chunk.schema) or schema
            known = before.get(chunk.shard), self._nonces.get(chunk.shard)
            if chunk.nonce and (chunk.seq, chunk.nonce) != known:
                elsewhere.add(chunk.shard)
            for entry in chunk.workers:
                self.note_epoch(entry.worker, entry.epoch)
            # A pod may come twice in the list of one shard while others are reserved.
            rows.update((f"{row['uid']} {row['shard']}", row) for row in self._rows(chunk, schema))
        await self.catch_up()
        still = {shard: seq for shard, seq in before.items() if self._seqs.get(shard) == seq}
        exact = {str(shard): seq for shard, seq in still.items() if shard not in elsewhere}
        return {"rows": list(rows.values()), "seqs": exact, **({"final": True} if final else {})}

    def note_epoch(self, worker: str, epoch: int) -> None:
        """Write whose epoch it is, once. When it was granted cannot be seen from outside."""
        if epoch and self._epochs.get(epoch) != worker:
            self._epochs[epoch] = worker
            self._history.append("granted", by=_LEDGER, worker=worker, epoch=epoch, exact=False)

    def name_of(self, index: int) -> str:
        """A node's name, by its index."""
        spec = self._specs.get(index)
        return spec.name if spec else f"node {index}"

    def _rows(self, chunk: pb.ReservationChunk, schema: list[str]) -> list[Event]:
        uids = decode_uids(chunk.uids)
        count = len(uids)
        columns = zip(
            decode(chunk.nodes, U32, name="nodes", rows=count).tolist(),
            decode(chunk.seqs, U64, name="seqs", rows=count).tolist(),
            decode(chunk.epochs, U64, name="epochs", rows=count).tolist(),
            decode(chunk.assumed, U8, name="assumed", rows=count).tolist(),
            decode(chunk.card_masks, U16, name="card_masks", rows=count).tolist(),
            decode(chunk.card_millis, U16, name="card_millis", rows=count).tolist(),
            decode(chunk.requests, I64, name="requests").reshape(count, -1).tolist(),
            (decode(chunk.states, U8, name="states", rows=count) == pb.RESERVATION_TERMINATING).tolist(),
            strict=True,
        )
        holds = self._holds.get(chunk.shard, set())
        found = []
        for uid, (node, seq, epoch, assumed, mask, milli, requests, leaves) in zip(
            uids, columns, strict=True
        ):
            state = "prepared" if seq in holds else "assumed" if assumed else "confirmed"
            state = "terminating" if leaves else state
            row: dict[str, Any] = {
                "uid": uid_text(uid.tobytes()),
                "node": self.name_of(node),
                "shard": chunk.shard,
                "seq": seq,
                "epoch": epoch,
                "state": state,
                "requests": _amounts(schema, requests),
            }
            if mask:
                row["cards"] = {str(card): milli for card in range(CARD_SLOTS) if mask >> card & 1}
            found.append(row)
        return found

    # -- the feed

    def _apply(self, message: pb.FeedMessage) -> None:
        self._moved()
        self._schema = list(message.schema) or self._schema
        shard = message.shard
        place = {"shard": shard, "seq": message.seq, "previous": message.previous_seq}
        change: dict[str, Any] = dict(place)
        if message.snapshot:
            change |= {"snapshot": True, "ledger": message.ledger_epoch}
            self._begin_anew(message)
        self._holds.setdefault(shard, set()).update(message.holds)
        self._holds[shard].difference_update(message.ended_holds)
        for entry in message.nodes:
            if not entry.removed:
                self._specs[entry.index] = entry.spec
        rows, changed = self._accounts(message.accounts)
        if rows:
            change["accounts"] = rows
        if message.worker_epoch:
            change["epoch"] = message.worker_epoch
        self._seqs[shard], self._nonces[shard] = message.seq, message.nonce
        self._history.append("ledger", by=_LEDGER, **change)
        # After the accounts, which bring what is allocatable with them: a snapshot begins with its own line.
        described = {entry.index for entry in message.nodes if not entry.removed}
        for entry in message.nodes:
            if entry.removed and (spec := self._specs.pop(entry.index, None)) is not None:
                self._history.append("node-removed", by=_LEDGER, name=spec.name, **place)
        for index in sorted(described | changed):
            closed = index in self._quarantined
            self._history.append("node", by=_LEDGER, **node_fields(self._specs[index], closed), **place)

    def _begin_anew(self, snapshot: pb.FeedMessage) -> None:
        """What was known of the shard may have changed unseen."""
        shard = snapshot.shard
        if shard in self._seqs:
            text = f"shard {shard} went on with a snapshot: changes before it are not in the history"
            self._history.append("gap", by=_LEDGER, of="feed", text=text)
        self._holds[shard] = set()
        for index in [i for i in self._specs if i % snapshot.shards == shard]:
            del self._specs[index]
            self._quarantined.discard(index)

    def _accounts(self, accounts: pb.Accounts) -> tuple[list[Event], set[int]]:
        """The accounts as rows, and the nodes whose quarantine has begun or ended."""
        indexes = decode(accounts.indexes, U32, name="indexes").tolist()
        dtype = account_dtype(accounts.resources)
        records = decode(accounts.records, dtype, name="records", rows=len(indexes))
        rows, changed = [], set()
        for index, record in zip(indexes, records, strict=True):
            flags = int(record["flags"])
            if flags & FLAG_GONE or index not in self._specs:
                continue
            if bool(flags & FLAG_QUARANTINED) != (index in self._quarantined):
                self._quarantined ^= {index}
                changed.add(index)
            row = {
                "node": self.name_of(index),
                "requested": _amounts(self._schema, record["amounts"][:, 1].tolist()),
                "allocatable": _amounts(self._schema, record["amounts"][:, 0].tolist()),
            }
            rows.append({**row, "excused": True} if flags & FLAG_SHRUNK else row)
        return rows, changed


def node_fields(spec: common_pb2.NodeSpec, closed: bool) -> Event:
    """A node as an event has it."""
    return {
        "name": spec.name,
        "allocatable": {each.resource: each.amount for each in spec.allocatable},
        "cards": spec.cards,
        "labels": {label.key: label.value for label in spec.labels},
        "taints": [{"key": t.key, "value": t.value, "effect": t.effect} for t in spec.taints],
        "closed": closed or spec.unschedulable,
    }


def _amounts(schema: list[str], values: list[int]) -> dict[str, int]:
    return {name: value for name, value in zip(schema, values, strict=False) if value}
