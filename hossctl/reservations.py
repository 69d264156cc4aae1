"""Reservations of the ledger as documents: whose they are, where, on whose proposal, and since when they wait to be confirmed."""

import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hoss.client.dispatcher import DispatcherClient
from hoss.client.resolver import ResolverClient
from hoss.model.resources import written_amount
from hoss.v1 import resolver_pb2 as pb
from hoss.wire.columns import I32, I64, U8, U16, U32, U64, decode, decode_uids, uid_text
from hossctl.console import Column, Document
from hossctl.figures import written_duration
from hossctl.kinds import State, Wanted

_PODS_A_PAGE = 10_000


async def pod_names(dispatcher: DispatcherClient, label_selector: str = "") -> dict[bytes, str]:
    """Names ("namespace/name") of the pods that match, by UID."""
    pods = dispatcher.list_pods(label_selector=label_selector, page_pods=_PODS_A_PAGE)
    return {pod.uid: f"{pod.namespace}/{pod.name}" async for pod in pods}


async def reservation_documents(
    resolver: ResolverClient, wanted: Wanted, pods: Mapping[bytes, str] | None = None, *, only_pods: bool = False
) -> AsyncIterator[Document]:
    """Those that are wanted, each once. `pods`: names by UID, for documents to have them; `only_pods`: of these pods alone."""
    # Of several parts: each names what no earlier one did.
    nodes: dict[int, str] = {}
    schema: list[str] = []
    told: set[bytes] = set()
    async for chunk in resolver.reservations(details=True):
        nodes.update((entry.index, entry.name) for entry in chunk.node_names)
        schema = list(chunk.schema) or schema
        for uid, document in _documents(chunk, wanted, nodes, schema):
            if uid in told or (only_pods and uid not in (pods or ())):
                continue
            told.add(uid)
            yield document if pods is None else {**document, "pod": pods.get(uid, "")}


def _documents(
    chunk: pb.ReservationChunk, wanted: Wanted, nodes: Mapping[int, str], schema: Sequence[str]
) -> Iterator[tuple[bytes, Document]]:
    uids = decode_uids(chunk.uids)
    rows = len(uids)

    def column(name: str, dtype: Any) -> NDArray[Any]:
        values: NDArray[Any] = decode(getattr(chunk, name), dtype, name=name, rows=rows)
        return values

    workers = {entry.epoch: entry.worker for entry in chunk.workers}
    at, epochs, assumed = column("nodes", U32), column("epochs", U64), column("assumed", U8) != 0
    chosen = _named(at, wanted.node, lambda index: nodes.get(index, str(index)))
    chosen &= _named(epochs, wanted.worker, lambda epoch: workers.get(epoch, f"epoch {epoch}"))
    if wanted.state is not None:
        chosen &= assumed == (wanted.state is State.ASSUMED)
    requests = decode(chunk.requests, I64, name="requests").reshape(rows, -1)
    seqs, priorities, attempts = column("seqs", U64), column("priorities", I32), column("attempts", U16)
    masks, millis = column("card_masks", U16), column("card_millis", U16)
    since, ends = column("assumed_since_ms", I64), column("lease_ends_ms", I64)
    for i in np.flatnonzero(chosen).tolist():
        uid, mask, epoch = uids[i].tobytes(), int(masks[i]), int(epochs[i])
        document = {
            "kind": "Reservation",
            "uid": uid_text(uid),
            "node": nodes.get(int(at[i]), str(at[i])),
            "state": "Assumed" if assumed[i] else "Confirmed",
            "requests": {name: amount for name, amount in zip(schema, requests[i].tolist(), strict=False) if amount},
            "cards": [card for card in range(16) if mask >> card & 1],
            "cardMilli": int(millis[i]),
            "priority": int(priorities[i]),
            "attempt": int(attempts[i]),
            "shard": chunk.shard,
            "seq": int(seqs[i]),
            "worker": workers.get(epoch, f"epoch {epoch}"),
            "workerEpoch": epoch,
        }
        if since[i]:
            document |= {"assumedSinceUnixMs": int(since[i]), "leaseEndsUnixMs": int(ends[i])}
        yield uid, document


def _named(column: NDArray[Any], name: str, name_of: Callable[[int], str]) -> NDArray[np.bool_]:
    """Which rows of a column of numbers have this name; all, where none is asked for."""
    if not name:
        return np.ones(len(column), np.bool_)
    return np.isin(column, [number for number in np.unique(column).tolist() if name_of(number) == name])


def _state(held: Document) -> str:
    if "assumedSinceUnixMs" not in held:
        return str(held["state"])
    return f"Assumed for {written_duration(max(0.0, time.time() - held['assumedSinceUnixMs'] / 1000))}"


def _lease(held: Document) -> str:
    left = held.get("leaseEndsUnixMs", 0) / 1000 - time.time()
    return f"ends in {written_duration(left)}" if left > 0 else "over" if "leaseEndsUnixMs" in held else "-"


RESERVATION_COLUMNS: Sequence[Column] = (
    Column("UID", lambda held: held["uid"]),
    Column("NODE", lambda held: held["node"]),
    Column("STATE", _state),
    Column("REQUESTS", lambda held: written_requests(held["requests"])),
    Column("CARDS", lambda held: ",".join(map(str, held["cards"])) or "-"),
    Column("WORKER", lambda held: held["worker"]),
    Column("POD", lambda held: held.get("pod") or "-", wide=True),
    Column("LEASE", _lease, wide=True),
    Column("PRIORITY", lambda held: held["priority"], wide=True),
    Column("ATTEMPT", lambda held: held["attempt"], wide=True),
    Column("SHARD", lambda held: held["shard"], wide=True),
    Column("SEQ", lambda held: held["seq"], wide=True),
    Column("EPOCH", lambda held: held["workerEpoch"], wide=True),
)


def written_requests(requests: Mapping[str, int]) -> str:
    """cpu=500m,memory=1Gi."""
    return ",".join(f"{name}={written_amount(name, amount)}" for name, amount in requests.items() if name != "pods")
