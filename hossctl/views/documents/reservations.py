"""Reservations of the ledger as documents: pod, node, the worker that proposed it, and the lease
of one that is not confirmed yet."""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hoss.client.dispatcher import DispatcherClient
from hoss.client.resolver import ResolverClient
from hoss.v1 import resolver_pb2 as pb
from hoss.wire.columns import I32, I64, U8, U16, U32, U64, decode, decode_uids
from hoss.wire.uids import uid_text
from hossctl.console import Document
from hossctl.kinds import ListOptions, State

_PODS_A_PAGE = 10_000
_NUMBERS = {
    State.PREPARED: pb.RESERVATION_PREPARED,
    State.PRE_BINDING: pb.RESERVATION_PRE_BINDING,
    State.ASSUMED: pb.RESERVATION_ASSUMED,
    State.CONFIRMED: pb.RESERVATION_CONFIRMED,
    State.TERMINATING: pb.RESERVATION_TERMINATING,
}
_STATES = {int(number): state.value.capitalize() for state, number in _NUMBERS.items()}


async def pod_names(dispatcher: DispatcherClient, label_selector: str = "") -> dict[bytes, str]:
    """Names ("namespace/name") of the pods that the selector matches, by UID."""
    pods = dispatcher.list_pods(label_selector=label_selector, page_pods=_PODS_A_PAGE)
    return {pod.uid: f"{pod.namespace}/{pod.name}" async for pod in pods}


async def reservation_documents(
    resolver: ResolverClient,
    options: ListOptions,
    pods: Mapping[bytes, str] | None = None,
    *,
    only_pods: bool = False,
) -> AsyncIterator[Document]:
    """The reservations that the options select, each once. `pods`: names by UID, which the documents then
    contain. `only_pods`: only reservations of these pods."""
    # A chunk names only the nodes that no earlier chunk has named.
    nodes: dict[int, str] = {}
    schema: list[str] = []
    seen: set[bytes] = set()
    async for chunk in resolver.reservations(details=True):
        nodes.update((entry.index, entry.name) for entry in chunk.node_names)
        schema = list(chunk.schema) or schema
        for uid, document in _documents(chunk, options, nodes, schema):
            if uid in seen or (only_pods and uid not in (pods or ())):
                continue
            seen.add(uid)
            yield document if pods is None else {**document, "pod": pods.get(uid, "")}


def _documents(
    chunk: pb.ReservationChunk, options: ListOptions, nodes: Mapping[int, str], schema: Sequence[str]
) -> Iterator[tuple[bytes, Document]]:
    uids = decode_uids(chunk.uids)
    rows = len(uids)

    def column(name: str, dtype: Any) -> NDArray[Any]:
        values: NDArray[Any] = decode(getattr(chunk, name), dtype, name=name, rows=rows)
        return values

    workers = {entry.epoch: entry.worker for entry in chunk.workers}
    at, epochs = column("nodes", U32), column("epochs", U64)
    selected = _named(at, options.node, lambda index: nodes.get(index, str(index)))
    selected &= _named(epochs, options.worker, lambda epoch: workers.get(epoch, f"epoch {epoch}"))
    states = np.where(column("assumed", U8) != 0, pb.RESERVATION_ASSUMED, pb.RESERVATION_CONFIRMED)
    if chunk.states:  # resolvers of 0.2 do not send them
        states = column("states", U8)
    if options.state is not None:
        selected &= states == _NUMBERS[options.state]
    requests = decode(chunk.requests, I64, name="requests").reshape(rows, -1)
    seqs, priorities, attempts = column("seqs", U64), column("priorities", I32), column("attempts", U16)
    masks, millis = column("card_masks", U16), column("card_millis", U16)
    since, ends = column("assumed_since_ms", I64), column("lease_ends_ms", I64)
    for i in np.flatnonzero(selected).tolist():
        uid, mask, epoch = uids[i].tobytes(), int(masks[i]), int(epochs[i])
        document = {
            "kind": "Reservation",
            "uid": uid_text(uid),
            "node": nodes.get(int(at[i]), str(at[i])),
            "state": _STATES[int(states[i])],
            "requests": {
                name: amount for name, amount in zip(schema, requests[i].tolist(), strict=False) if amount
            },
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
    """Which rows of a column of numbers stand for this name; all where the name is empty."""
    if not name:
        return np.ones(len(column), np.bool_)
    return np.isin(column, [number for number in np.unique(column).tolist() if name_of(number) == name])
