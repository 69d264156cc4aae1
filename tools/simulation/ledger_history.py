"""What happens to the ledger, read from Redis itself after each command and written into the history.

Nothing of the resolver's code is used: records are read by the format that docs/architecture.md gives."""

import re
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

from hoss.v1 import common_pb2
from hoss.wire.uids import UID_BYTES, uid_text
from hossctl.history.events import Event, History
from hossctl.history.recorder_ledger import node_fields
from tools.simulation.redis import Observation, SimulatedRedis

_BY = "ledger"
_SCHEMA = "{hoss}:schema"
_SHARD = re.compile(r"^\{hoss:(\d+)\}:")
_SPREAD_BYTES = 7  # at the end of accounts and reservations
_ACCOUNT_BYTES, _RESERVATION_BYTES = 24, 40  # before the amounts
_GONE, _UNSCHEDULABLE, _SHRUNK, _QUARANTINED = 1, 2, 4, 8
_CARDS = 16
_MOVE_TARGET, _TERMINATING = 4, 8  # flags of a reservation
_TOMBSTONES = ("recovering-", "restoring-")

Hash = dict[bytes, bytes]


class _Shard:
    """A shard as it was read last."""

    def __init__(self) -> None:
        self.epoch = ""
        self.seq = -1
        self.lost = False  # a fault took changes: what is there next is another history
        self.reservations: Hash = {}
        self.leases: set[bytes] = set()  # commits that wait for their confirmation
        self.prepared: set[bytes] = set()
        self.accounts: Hash = {}
        self.specs: Hash = {}
        self.names: dict[bytes, str] = {}
        self.workers: Hash = {}


class LedgerHistory:
    """Call `look` after each command that Redis has carried out."""

    def __init__(
        self,
        redis: SimulatedRedis,
        history: History,
        shards: int,
        *,
        is_there: Callable[[str, str], bool],
    ) -> None:
        """`is_there`: whether the API server has, or had, a pod on a node, so that its reservation cannot be
        refused."""
        self._redis = redis
        self._is_there = is_there
        self._history = history
        self._shards = [_Shard() for _ in range(shards)]
        self.moved_at_once = 0  # moves in one step so far
        self._schema: list[str] = []

    def look(self, seen: Observation) -> None:
        """Write what the command has changed."""
        if not seen.wrote:
            return
        found = _SHARD.match(seen.key)
        if found:
            self._look_at(int(found[1]))

    def look_again(self) -> None:
        """After a fault that changed Redis itself: what is there now is a new beginning."""
        for number, shard in enumerate(self._shards):
            shard.lost = True
            self._look_at(number)

    def has_targets(self) -> bool:
        """Whether a move is under way."""
        return any(_is_target(record) for shard in self._shards for record in shard.reservations.values())

    def rows(self) -> list[Event]:
        """All reservations."""
        self._read_schema()
        return [
            {**self._row(shard, uid, record), "shard": number}
            for number, shard in enumerate(self._shards)
            for uid, record in shard.reservations.items()
        ]

    def seqs(self) -> dict[str, int]:
        return {str(number): shard.seq for number, shard in enumerate(self._shards)}

    def _look_at(self, number: int) -> None:
        shard, name = self._shards[number], f"{{hoss:{number}}}:"
        (epoch, seq), workers, leases = self._redis.read_all(
            ("HMGET", f"{name}meta", "epoch", "seq"),
            ("HGETALL", f"{name}workers"),
            ("HKEYS", f"{name}pending"),
        )
        epoch, seq = (epoch or b"").decode(), int(seq or 0)
        if not epoch or epoch.startswith(_TOMBSTONES):
            return
        self._granted(number, shard, dict(workers))
        again = epoch != shard.epoch or seq < shard.seq or shard.lost
        if again or seq != shard.seq:
            self._changed(number, shard, epoch, seq, set(leases), again=again)
        else:
            self._settle_leases(number, shard, set(leases))

    def _granted(self, number: int, shard: _Shard, workers: Hash) -> None:
        # After the epoch may be the number of the worker's last copies.
        workers = {worker: value.split()[0] for worker, value in workers.items()}
        for worker, granted in workers.items():
            if shard.workers.get(worker) != granted:
                epoch = int(granted)
                self._history.append("granted", by=_BY, worker=worker.decode(), epoch=epoch, shard=number)
        shard.workers = workers

    def _changed(
        self, number: int, shard: _Shard, epoch: str, seq: int, leases: set[bytes], *, again: bool
    ) -> None:
        before, name = shard.seq, f"{{hoss:{number}}}:"
        held, prepared, accounts, specs, names, schema = self._redis.read_all(
            *(("HGETALL", f"{name}reservations"), ("HKEYS", f"{name}holds"), ("HGETALL", f"{name}accounts")),
            *(("HGETALL", f"{name}specs"), ("HGETALL", f"{name}names"), ("LRANGE", _SCHEMA, 0, -1)),
        )
        held, prepared, accounts, specs = dict(held), set(prepared), dict(accounts), dict(specs)
        names = {index: text.decode() for text, index in dict(names).items()}
        self._schema = [text.decode() for text in schema]
        old, shard.reservations = shard.reservations, held
        shard.epoch, shard.seq = epoch, seq
        place: dict[str, Any] = {"shard": number, "seq": seq}
        if before >= 0 and not again:
            place["previous"] = before
        was_leased, was_prepared = shard.leases, shard.prepared
        shard.leases, shard.prepared = leases, prepared
        event: dict[str, Any] = {**place, "ledger": epoch}
        if again:
            shard.lost = False
            shard.names |= names
            event |= {"snapshot": True, "lost": True}
            event["reserved"] = [self._row(shard, uid, record) for uid, record in held.items()]
            self._history.append("ledger", by=_BY, **event)
            self._nodes(shard, accounts, specs, names, place)
            return
        change = _change(old, held, was_prepared)
        left = set(change.released)
        self.moved_at_once += sum(uid in left and old[uid][:4] != held[uid][:4] for uid in change.reserved)
        # By preemptor: the UIDs of the pods that terminate for it, one after the other.
        victims = dict(self._redis.read("HGETALL", f"{name}nominated")) if change.shared else {}
        *earlier, last = _by_commit(change, held, victims)
        for commit, part in earlier:
            place["seq"] = commit
            self._append(shard, part, old, {**place, "ledger": epoch})
            place["previous"] = commit
        place["seq"] = seq
        self._nodes(shard, accounts, specs, names, place)
        self._append(shard, last[1], old, {**place, "ledger": epoch})
        confirmed = [
            uid
            for uid, record in held.items()
            if _seq(record) not in leases
            and _pod_of(uid) not in change.moved
            and not _is_target(record)
            and not _is_terminating(record)
            and (uid not in old or _seq(old[uid]) in was_leased or old[uid] != record)
        ]
        self._confirmed(number, seq, confirmed)

    def _append(self, shard: _Shard, change: "_Change", old: Hash, event: dict[str, Any]) -> None:
        """Write one change, of which `event` says where it belongs."""
        held = shard.reservations
        event |= {
            name: [uid_text(uid) for uid in uids]
            for name, uids in (
                ("released", change.released),
                ("committed", change.committed),
                ("moved", change.moved),
                ("terminating", change.terminating),
            )
            if uids
        }
        if change.shared:
            rows = [self._row(shard, uid, held[uid]) for uid in change.shared]
            event["shared"] = [{"uid": row["uid"], "requests": row["requests"]} for row in rows]
        if change.reserved:
            rows = [self._row(shard, uid, held[uid]) for uid in change.reserved]
            event["reserved"] = [
                {**row, "state": "assumed"} if row["state"] == "confirmed" else row for row in rows
            ]
            if all(self._is_there(row["uid"], row["node"]) for row in rows):
                event["unchecked"] = True
            if not all(_is_inherited(held[uid], old, change.released) for uid in change.reserved):
                event["epoch"] = rows[0]["epoch"]
        if change.moved:
            if sources := self._sources(event["shard"], change.moved):
                event["sources"] = sources
            event["epoch"] = self._row(shard, change.moved[0], old[change.moved[0]])["epoch"]
        self._history.append("ledger", by=_BY, **event)

    def _sources(self, number: int, moved: list[bytes]) -> list[Event]:
        """What the pods of these targets leave on other shards."""
        noted = dict(self._redis.read("HGETALL", f"{{hoss:{number}}}:moved"))
        sources = []
        for pod in map(_pod_of, moved):
            if (source := noted.get(pod)) is not None:
                index, seq = struct.unpack("<IQ", source)
                name = self._shards[index % len(self._shards)].names.get(source[:4], source[:4].hex())
                sources.append({"uid": uid_text(pod), "node": name, "seq": seq})
        return sources

    def _settle_leases(self, number: int, shard: _Shard, leases: set[bytes]) -> None:
        ended = shard.leases - leases
        shard.leases = leases
        if ended:
            held = shard.reservations.items()
            uids = [
                uid
                for uid, record in held
                if _seq(record) in ended and not _is_target(record) and not _is_terminating(record)
            ]
            self._confirmed(number, shard.seq, uids)

    def _confirmed(self, number: int, seq: int, uids: list[bytes]) -> None:
        if uids:
            names = [uid_text(uid) for uid in uids]
            self._history.append("ledger", by=_BY, shard=number, seq=seq, confirmed=names)

    def _nodes(
        self, shard: _Shard, accounts: Hash, specs: Hash, names: dict[bytes, str], place: dict[str, Any]
    ) -> None:
        """Nodes that came, went or changed."""
        before, shard.accounts = shard.accounts, accounts
        flags_of = {index: _flags(account) for index, account in accounts.items()}
        if specs == shard.specs and flags_of == {index: _flags(account) for index, account in before.items()}:
            return
        for index in sorted(shard.specs.keys() - specs.keys()):
            self._history.append("node-removed", by=_BY, name=shard.names[index], **place)
        shard.names |= names
        for index, spec in specs.items():
            flags = flags_of[index]
            if spec != shard.specs.get(index) or index not in before or _flags(before[index]) != flags:
                node = common_pb2.NodeSpec.FromString(spec)
                closed = bool(flags & (_UNSCHEDULABLE | _QUARANTINED))
                self._history.append("node", by=_BY, **node_fields(node, closed), **place)
        shard.specs = specs

    def _read_schema(self) -> None:
        self._schema = [name.decode() for name in self._redis.read("LRANGE", _SCHEMA, 0, -1)]

    def _row(self, shard: _Shard, uid: bytes, record: bytes) -> Event:
        mask, milli = struct.unpack_from("<HH", record, 4)
        seq = _seq(record)
        state = "prepared" if seq in shard.prepared else "assumed" if seq in shard.leases else "confirmed"
        if _is_terminating(record):
            state = "terminating"
        amounts = struct.unpack(
            f"<{(len(record) - _RESERVATION_BYTES - _SPREAD_BYTES) // 8}q",
            record[_RESERVATION_BYTES:-_SPREAD_BYTES],
        )
        row: Event = {
            "uid": uid_text(uid),
            "node": shard.names.get(record[:4], record[:4].hex()),
            "seq": int(seq),
            "epoch": struct.unpack_from("<Q", record, 16)[0],
            "state": state,
            "requests": {name: amount for name, amount in zip(self._schema, amounts, strict=False) if amount},
        }
        if _is_target(record):
            row["target_of"] = uid_text(_pod_of(uid))
        if mask:
            row["cards"] = {str(card): milli for card in range(_CARDS) if mask >> card & 1}
        return row


def _seq(record: bytes) -> bytes:
    """The commit of a reservation, as the field of the hashes of commits."""
    return b"%d" % struct.unpack_from("<Q", record, 8)[0]


def _is_target(record: bytes) -> bool:
    return bool(struct.unpack_from("<H", record, 30)[0] & _MOVE_TARGET)


def _is_terminating(record: bytes) -> bool:
    return bool(struct.unpack_from("<H", record, 30)[0] & _TERMINATING)


def _pod_of(target: bytes) -> bytes:
    """The UID of the pod of a target, or of the target of a pod: every bit turned over."""
    return bytes(byte ^ 0xFF for byte in target)


class _Change(NamedTuple):
    """UIDs. What is released goes before what is reserved and moved; `moved` are those of targets. `shared`:
    those terminating pods of whose room a preemptor took something, or gave it back."""

    released: list[bytes]
    committed: list[bytes]
    reserved: list[bytes]
    moved: list[bytes]
    terminating: list[bytes]
    shared: list[bytes]


def _by_commit(change: _Change, held: Hash, victims: Hash) -> list[tuple[int, _Change]]:
    """The change commit by commit, each with its seq: proposals that came together are decided together, and
    are looked at together. Pods that terminate belong to the commit of their preemptor. What else has become
    of reservations belongs to the first."""
    commits: dict[int, list[bytes]] = {}
    for uid in change.reserved:
        commits.setdefault(int(_seq(held[uid])), []).append(uid)
    if len(commits) < 2:
        return [(0, change)]
    first, parts = min(commits), []
    elsewhere = {uid for seq, uids in commits.items() if seq != first for uid in uids}
    of_victims = {
        uid: seq
        for seq, uids in commits.items()
        for preemptor in uids
        for uid in _uids(victims.get(preemptor, b""))
    }
    for seq, reserved in sorted(commits.items()):
        terminating, shared = (
            [uid for uid in uids if of_victims.get(uid, first) == seq]
            for uids in (change.terminating, change.shared)
        )
        part = _Change([], [], reserved, [], terminating, shared)
        if seq == first:
            released = [uid for uid in change.released if uid not in elsewhere]
            part = part._replace(released=released, committed=change.committed, moved=change.moved)
        else:
            part = part._replace(released=[uid for uid in reserved if uid in set(change.released)])
        parts.append((seq, part))
    return parts


def _uids(joined: bytes) -> list[bytes]:
    return [joined[start : start + UID_BYTES] for start in range(0, len(joined), UID_BYTES)]


def _change(old: Hash, held: Hash, was_prepared: set[bytes]) -> _Change:
    """What has become of the reservations of a shard in one step."""
    gone = [uid for uid in old if uid not in held]
    moved = [uid for uid in gone if _is_moved(uid, old, held)]
    change = _Change([uid for uid in gone if uid not in moved], [], [], moved, [], [])
    arrived = {_pod_of(uid) for uid in moved}
    for uid, record in held.items():
        was = old.get(uid)
        if was == record:
            continue
        if was is not None and uid not in arrived and _seq(was) in was_prepared and was[:8] == record[:8]:
            change.committed.append(uid)
            continue
        if was is not None and _is_terminating(record) and was[:16] == record[:16]:
            if not _is_terminating(was):
                change.terminating.append(uid)
            change.shared.append(uid)
            continue
        if was is not None:
            change.released.append(uid)
        if uid not in arrived:
            change.reserved.append(uid)
    return change


def _is_moved(uid: bytes, old: Hash, held: Hash) -> bool:
    """Whether a reservation that is gone was a target, and is its pod's reservation now."""
    pod = _pod_of(uid)
    own = held.get(pod)
    return _is_target(old[uid]) and own is not None and own != old.get(pod) and own[:8] == old[uid][:8]


def _is_inherited(record: bytes, old: Hash, released: list[bytes]) -> bool:
    """Whether a new reservation was a target that another pod had. It keeps the epoch under which that was
    reserved, which may be an earlier term's."""
    return any(
        _is_target(was) and (was[:8], was[16:30], was[32:]) == (record[:8], record[16:30], record[32:])
        for was in (old[uid] for uid in released if uid in old)
    )


def _flags(account: bytes) -> int:
    return int(struct.unpack_from("<I", account, 16)[0])
