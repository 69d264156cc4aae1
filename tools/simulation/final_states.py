"""What is there when a platform has come to rest: written into the history where the checker compares it, and
complaints about what nobody would ever forget.

The journal and the ledger's keys are read from Redis itself, by the formats in docs/architecture.md and in
dispatcher/journal; caches are read through the workers."""

import struct
import zlib
from collections.abc import Iterator

import numpy as np

from dispatcher.core.pods.sets import uid_prefix
from hoss.v1 import dispatcher_pb2 as pb
from hoss.wire.uids import uid_text
from hossctl.history.events import History
from tools.simulation.clients import SimulatedClients
from tools.simulation.redis import SimulatedRedis
from tools.simulation.world import World

_JOURNAL = "{hoss}:journal:"
_RECORD_HEADER = struct.Struct("<Qq")
_BITMAP_HEADER = struct.Struct("<I")
_PACKED = b"\1"
_VIEW_TIMEOUT_MS = 2000

# Hashes of a shard whose fields are nodes' indexes.
_OF_NODES = ("cards", "specs", "versions", "ports", "labels", "quarantine")
# Keys of a shard that hold nothing when nothing is prepared, no node is being removed, and no pod moved.
_OF_WHAT_IS_UNDER_WAY = ("holds", "removed", "moved")

# Of one process, with all its streams, readers and timers; what grows with load or faults passes it at once.
MOST_TASKS = 100
TASKS_OF_INFORMERS = 40  # of a dispatcher in Kubernetes mode: two for each kind of object that it watches


async def write_final_states(history: History, clients: SimulatedClients, world: World) -> None:
    """Append the journal's pods, the ledger's digests and the workers' caches."""
    if world.cluster is None:  # else the API server is the journal of pods
        history.append("journal", by="dispatcher", uids=list(journalled(world.redis)), final=True)
    for digest in (await clients.resolver.audit()).digests:
        fields = {"shard": digest.shard, "seq": digest.seq, "digest": f"{digest.digest:016x}"}
        history.append("digest", by="ledger", **fields, final=True)
    for view in await clients.dispatcher.worker_views(_VIEW_TIMEOUT_MS):
        fields = {"shard": view.shard, "seq": view.seq, "digest": f"{view.digest:016x}"}
        history.append("cache", by=view.worker, **fields, idle=view.idle, follows=True, final=True)


def journalled(redis: SimulatedRedis) -> Iterator[str]:
    """The UIDs of the pods that a dispatcher would find."""
    deletions = dict(redis.read("HGETALL", f"{_JOURNAL}deletions"))
    for record in dict(redis.read("HGETALL", f"{_JOURNAL}submissions")).values():
        request = pb.SubmitRequest.FromString(_unpacked(record[_RECORD_HEADER.size :]))
        for number, job in enumerate(request.jobs):
            prefix = uid_prefix(request.request_id, number)
            deleted = _bitmap(deletions.get(prefix), job.replicas)
            for pod in np.flatnonzero(~deleted).tolist():
                yield uid_text(prefix + pod.to_bytes(4, "big"))


def left_over(world: World) -> list[str]:
    """A sentence for everything that is there and that nobody will ever forget."""
    found = [text for shard in range(world.shards) for text in _left_in_shard(world.redis, shard)]
    found += _left_in_journal(world.redis)
    most_tasks = MOST_TASKS + (TASKS_OF_INFORMERS if world.api is not None else 0)
    for service in world.services.values():
        if service.process is not None and len(service.process.tasks) > most_tasks:
            found.append(f"{service.name} has {len(service.process.tasks)} tasks at rest")
    return found


def _left_in_shard(redis: SimulatedRedis, shard: int) -> Iterator[str]:
    name = f"{{hoss:{shard}}}:"
    for key in _OF_WHAT_IS_UNDER_WAY:
        if number := redis.read("HLEN", name + key):
            yield f"{name}{key} has {number} entries at rest"
    # A commit whose pods were all released keeps its lease until that ends. Without a lease it would stay.
    pending, leases = redis.read("HLEN", f"{name}pending"), redis.read("ZCARD", f"{name}leases")
    if pending != leases:
        yield f"{name}pending has {pending} commits, and {leases} have leases"
    indexes = set(redis.read("HKEYS", f"{name}accounts"))
    if len(indexes) != (named := redis.read("HLEN", f"{name}names")):
        yield f"{name}accounts has {len(indexes)} nodes, and {named} have names"
    for key in _OF_NODES:
        if strays := set(redis.read("HKEYS", name + key)) - indexes:
            yield f"{name}{key} has {len(strays)} entries of nodes that are gone"
    if loaded := [key for key in redis.read("KEYS", f"{name}*") if key.endswith(b":loaded")]:
        yield f"{len(loaded)} keys of a rebuild are left, {loaded[0].decode()} among them"


def _left_in_journal(redis: SimulatedRedis) -> Iterator[str]:
    prefixes = set()
    for record in dict(redis.read("HGETALL", f"{_JOURNAL}submissions")).values():
        request = pb.SubmitRequest.FromString(_unpacked(record[_RECORD_HEADER.size :]))
        prefixes |= {uid_prefix(request.request_id, number) for number in range(len(request.jobs))}
    for key in ("deletions", "gates", "attempts"):
        if strays := set(redis.read("HKEYS", _JOURNAL + key)) - prefixes:
            yield f"{_JOURNAL}{key} has {len(strays)} entries of submissions that are gone"


def _bitmap(value: bytes | None, pods: int) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
    if value is None:
        return np.zeros(pods, np.bool_)
    bits = np.frombuffer(_unpacked(value[_BITMAP_HEADER.size :]), np.uint8)
    return np.unpackbits(bits, count=pods).astype(np.bool_)


def _unpacked(value: bytes) -> bytes:
    return zlib.decompress(value[1:]) if value[:1] == _PACKED else value[1:]
