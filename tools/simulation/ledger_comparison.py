"""The ledger's scripts compared with its model, while a platform runs and faults strike.

Every call of a script is made on the model too, as Redis has carried it out: with the same argument, the same
lease time, ids and nonces, in the same order, whatever becomes of the reply. The answers are compared with
each call, and the whole state of the shards with every few calls, after each loss, and at the end. What Redis
loses, the model loses: it starts again from an earlier state and repeats the calls up to there.

Invariant: a comparison reads and draws nothing, so a run is the same with it and without it."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import msgpack
import numpy as np
from redis.exceptions import NoScriptError

from hoss.wire.columns import U32
from hoss.wire.uids import UID_BYTES
from resolver.core.arbiter import Arbiter
from resolver.ledger import packing, stored
from resolver.ledger.reading import feed_entry
from resolver.ledger.scripts import names_by_digest
from tools.simulation import shard_as_stored as plain
from tools.simulation.model_calls import ModelShard, ScriptCall, make, numbers
from tools.simulation.redis import SimulatedRedis
from tools.simulation.redis_commands import Effect, as_bytes, name_of

_SHARD = re.compile(rb"^\{hoss:(\d+)\}:")
_FEED_WINDOW = 1000  # entries that Redis keeps at least
_TOLD = 4  # differences of one state
_STATE_EVERY = 5  # calls; then the whole state is compared, unless Redis has carried out more already
_DISK_FULL = "MISCONF "  # refused at its first write, so the script has changed nothing


class LedgerComparison:
    """Implements tools.simulation.redis.Shadow. `problems`: sentences, at most a few for each shard: what
    follows a difference says nothing more. `calls`: how many of each script were compared."""

    def __init__(self, redis: SimulatedRedis, shards: int) -> None:
        self.problems: list[str] = []
        self.calls: Counter[str] = Counter()
        self._redis = redis
        self._names = names_by_digest()
        self._shards = [ModelShard(Arbiter(number, shards)) for number in range(shards)]
        self._made: list[ScriptCall] = []
        # Of each shard: the position of the log of writes, and the shard there.
        self._bases = [[(0, deepcopy(shard))] for shard in self._shards]
        self._differ: set[int] = set()  # shards

    def carried_out(self, process: str, effect: Effect, now_us: int) -> None:
        """Make the call on the model, if it is one of a script of a shard."""
        command = effect.command
        if name_of(command) != "EVALSHA":
            return
        script = self._names.get(as_bytes(command[1]).decode(), "")
        keys, found = [as_bytes(word) for word in command[3 : 3 + int(command[2])]], None
        if script and keys:
            found = _SHARD.match(keys[0])
        if found is None or int(found[1]) in self._differ:
            return
        refused = str(effect.reply) if isinstance(effect.reply, Exception) else ""
        if isinstance(effect.reply, NoScriptError) or refused.startswith(_DISK_FULL):
            return
        arguments = command[3 + int(command[2]) :]
        call = ScriptCall(script, int(found[1]), keys, arguments, now_us // 1000, effect.position)
        self._made.append(call)
        self.calls[script] += 1
        expected = make(self._shards[call.shard], call)
        answer = refused or read_reply(call, effect.reply, len(self._shards))
        if answer != expected:
            self._tell(call.shard, f"{script} by {process} answers {answer}, the model {expected}")
        elif len(self._made) % _STATE_EVERY == 0 and effect.position == self._redis.position:
            self.compare_states(f"after {script} by {process}")

    def rolled_back(self, position: int, keys: Callable[[bytes], bool] | None) -> None:
        """The model goes back as Redis did."""
        for number, bases in enumerate(self._bases):
            if keys is not None and not keys(_key(number, "meta")):
                continue
            at, base = [known for known in bases if known[0] <= position][-1]
            shard = deepcopy(base)
            for call in self._made:
                if call.shard == number and at < call.position <= position:
                    make(shard, call)
            self._shards[number] = shard
        self._begin_again("after the rollback")

    def emptied(self) -> None:
        """The model loses everything."""
        shards = len(self._shards)
        self._shards = [ModelShard(Arbiter(number, shards)) for number in range(shards)]
        self._begin_again("after everything was lost")

    def _begin_again(self, when: str) -> None:
        for bases, shard in zip(self._bases, self._shards, strict=True):
            bases.append((self._redis.position, deepcopy(shard)))
        self.compare_states(when)

    def compare_states(self, when: str) -> None:
        """Compare every shard as it is now."""
        for number, shard in enumerate(self._shards):
            if number not in self._differ:
                found = list(self._differences(number, shard.arbiter))
                if found:
                    more = f", and {len(found) - _TOLD} more" if len(found) > _TOLD else ""
                    self._tell(number, f"{when} {'; '.join(found[:_TOLD])}{more}")

    def _tell(self, shard: int, text: str) -> None:
        self._differ.add(shard)
        step = sum(self.calls.values())
        self.problems.append(f"the scripts differ from the model: shard {shard}, call {step}: {text}")

    def _differences(self, number: int, arbiter: Arbiter) -> Sequence[str]:
        *hashes, meta, leases, nonces, entries = self._redis.read_all(
            *(("HGETALL", _key(number, key)) for key in plain.HASHES),
            ("HGETALL", _key(number, "meta")),
            ("ZRANGE", _key(number, "leases"), 0, -1, "WITHSCORES"),
            ("GETRANGE", _key(number, "nonces"), 0, -1),
            ("XRANGE", _key(number, "feed"), "-", "+"),
        )
        there: plain.State = {
            key: plain.read_hash(key, dict(fields)) for key, fields in zip(plain.HASHES, hashes, strict=True)
        }
        there["meta"] = plain.read_meta(dict(meta))
        there["leases"] = {int(seq): int(deadline_ms) for seq, deadline_ms in leases}
        there["nonces"] = plain.read_nonces(nonces)
        found = list(plain.differences(there, plain.of_model(arbiter)))
        return found + _feed_differences(entries, arbiter)


def _feed_differences(entries: Sequence[Any], arbiter: Arbiter) -> list[str]:
    there = {}
    for entry_id, fields in entries:
        seq = int(entry_id.split(b"-")[0])
        pairs = dict(zip(fields[::2], fields[1::2], strict=True))
        there[seq] = plain.entry_of_feed(feed_entry(seq, pairs))
    expected = {change.seq: plain.entry_of_model(change) for change in arbiter.feed}
    kept = sorted(expected)[-max(len(there), min(_FEED_WINDOW, len(expected))) :] if expected else []
    found = []
    for seq in sorted({*kept, *there}):
        one, other = there.get(seq), expected.get(seq)
        if one is not None and other is not None:
            cards = {node: used for node, used in other["cards"].items() if node in one["cards"]}
            other = {**other, "cards": cards}
        if one != other:
            found.append(f"feed {seq}: the scripts have {one}, the model {other}")
    return found


def _key(shard: int, name: str) -> bytes:
    return b"{hoss:%d}:%s" % (shard, name.encode())


def read_reply(call: ScriptCall, reply: Any, shards: int) -> Any:
    """A script's reply in the form in which the model answers."""
    reader = _REPLIES.get(call.script)
    if call.script in ("commit", "move"):
        return None if reply is None else _decision(reply, shards)
    return reply if reader is None or reply is None else reader(reply)


def _decision(reply: Any, shards: int) -> Any:
    decision = packing.read_decision(reply, None)
    entry = plain.accounts_of_rows(decision.fresh)
    flat = msgpack.unpackb(reply[11]) if reply[11] and shards > 1 else ()
    return {
        "seq": decision.seq,
        "verdicts": decision.verdicts.tolist(),
        "nodes": decision.nodes.tolist(),
        "conflicts": decision.conflicts.tolist(),
        "duplicates": decision.duplicate_seqs.tolist(),
        "fresh": entry["accounts"],
        "cards": entry["cards"],
        "as_of": decision.as_of,
        "queries": {
            position: (seq, tuple(None if domain is False else domain for domain in domains))
            for position, seq, domains in zip(*(iter(flat),) * 3, strict=True)
        },
    }


def _indexes(joined: bytes) -> list[int]:
    found: list[int] = np.frombuffer(joined, U32).tolist()
    return found


_REPLIES: dict[str, Callable[[Any], Any]] = {
    "validate": packing.read_validation,
    "release": lambda reply: [reply[at : at + UID_BYTES] for at in range(0, len(reply), UID_BYTES)],
    "commit_prepared": numbers,
    "renew": lambda reply: [bool(held) for held in reply],
    "confirm_moves": list,
    "lookup": lambda reply: packing.read_lookup(reply).tolist(),
    "check": lambda reply: [reply[0], reply[1].decode()],
    "forget_rules": numbers,
    "upsert_nodes": lambda reply: [reply[0], _indexes(reply[1]), reply[2]],
    "remove_nodes": lambda reply: [reply[0], _indexes(reply[1]), reply[2], _indexes(reply[3])],
    "quarantine": bytes.decode,
    "end_quarantine": lambda reply: sorted(map(stored.number, reply)),
    "republish": lambda reply: [reply[0], plain.read_account(reply[2])],
    "bootstrap": lambda reply: [reply[0].decode(), *map(int, reply[1:])],
    "set_tombstone": bytes.decode,
}
