"""`hoss get --watch`: what there is, then every change.

Pods are followed by the dispatcher's stream of changes. Other kinds have no stream: they are listed once a
second, and what differs from the last list is printed."""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable

from hoss.client.dispatcher import DispatcherClient
from hoss.errors import LedgerUnavailable, NotFound, Overloaded, TransportError
from hoss.v1 import dispatcher_pb2 as pb
from hoss.wire.columns import NONE_U16, NONE_U32, U8, U16, U32, decode, decode_uids
from hossctl.console import Document, Format, print_document, warn
from hossctl.endpoints import Endpoints, dispatcher_of
from hossctl.jsonpath import Template
from hossctl.kinds import ALL, Kind, Query
from hossctl.views.documents.conflicts import fetch_conflicts
from hossctl.views.documents.objects import phase_name, pod_document
from hossctl.views.listing import fetch
from hossctl.views.showing import columns_of, print_listed

_INTERVAL_SECONDS = 1.0
_GROWING = ("AGE", "SINCE", "SEEN")  # columns that change with time alone


async def watch(endpoints: Endpoints, query: Query, output: Format, template: Template | None) -> None:
    """Print what there is, then every change, until cancelled."""
    first, headings = True, True
    async for documents in _documents(endpoints, query, output):
        if output in (Format.JSON, Format.YAML):
            for document in documents:
                print_document(document, output, template)
        elif documents or first:
            print_listed(documents, query, output, headings=headings)
        first, headings = False, headings and not documents
        sys.stdout.flush()


async def _documents(endpoints: Endpoints, query: Query, output: Format) -> AsyncIterator[list[Document]]:
    """What there is, then what changed. For tables, an object has changed when a cell has."""
    if query.kind is Kind.PODS:
        async for document in follow_pods(endpoints, query):
            yield [document]
        return

    def identity(document: Document) -> str:
        if query.kind is Kind.CONFLICTS:
            return f"of {document['loser']} with {document['winner'] or 'nobody'}, {document['reason']}"
        name = document["uid"] if query.kind is Kind.RESERVATIONS else document["name"]
        return f"{document['namespace']}/{name}" if "namespace" in document else str(name)

    def shown(document: Document) -> object:
        return tuple(
            str(column.cell(document))
            for column in columns_of(query)
            if column.heading not in _GROWING and (output is not Format.TABLE or not column.wide)
        )

    async def listed() -> list[Document]:
        if query.kind is Kind.CONFLICTS:
            pairs: list[Document] = (await fetch_conflicts(endpoints))["pairs"]
            return pairs
        return await fetch(endpoints, query)

    async for documents in changes(listed, identity, shown, name=query.kind.singular):
        yield documents


async def follow_pods(endpoints: Endpoints, query: Query) -> AsyncIterator[Document]:
    """Present pods, then every change of phase, node or reason, as documents. Ends with the stream."""
    query.check()
    async with dispatcher_of(endpoints) as dispatcher:
        revision = (await dispatcher.status()).revision
        shown: dict[bytes, Document] = {}
        async for pod in dispatcher.list_pods(
            query.namespace, phases=query.phases, label_selector=query.selector, unplaceable=True
        ):
            if not query.names or pod.name in query.names:
                shown[pod.uid] = pod_document(pod)
                yield shown[pod.uid]
        node_names: dict[int, str] = {}
        async for batch in dispatcher.watch(revision):
            node_names.update((entry.index, entry.name) for entry in batch.node_names)
            for uid, change in _changes_of(batch, node_names):
                if uid not in shown:
                    document = await _matching(dispatcher, uid, query)
                    if document is None:
                        continue
                    shown[uid] = document
                shown[uid] = {**shown[uid], **change}
                yield shown[uid]


async def _matching(dispatcher: DispatcherClient, uid: bytes, query: Query) -> Document | None:
    try:
        pod = await dispatcher.get_pod(uid=uid)
    except NotFound:
        return None  # deleted meanwhile
    in_place = query.namespace in (ALL, pod.namespace) and (not query.names or pod.name in query.names)
    # Only the dispatcher evaluates selectors, so a watch with a selector shows the pods it began with.
    if not in_place or query.selector or (query.phases and pod.phase not in query.phases):
        return None
    return pod_document(pod)


def _changes_of(batch: pb.WatchBatch, node_names: dict[int, str]) -> list[tuple[bytes, Document]]:
    uids = decode_uids(batch.uids)
    phases = decode(batch.phases, U8, name="phases", rows=len(uids)).tolist()
    nodes = decode(batch.nodes, U32, name="nodes", rows=len(uids)).tolist()
    reasons = decode(batch.reasons, U16, name="reasons").tolist() if batch.reasons else [NONE_U16] * len(uids)
    return [
        (
            uid.tobytes(),
            {
                "phase": phase_name(phase),
                "node": "" if node == NONE_U32 else node_names.get(node, str(node)),
                "reason": "" if reason == NONE_U16 else batch.reason_texts[reason],
            },
        )
        for uid, phase, node, reason in zip(uids, phases, nodes, reasons, strict=True)
    ]


async def changes(
    listed: Callable[[], Awaitable[list[Document]]],
    identity: Callable[[Document], Hashable],
    shown: Callable[[Document], object],
    *,
    name: str,
    interval_seconds: float = _INTERVAL_SECONDS,
) -> AsyncIterator[list[Document]]:
    """All documents, then those whose `shown` value differs from the list before; never ends.

    A document that is gone is reported on stderr. So is, once, that the service does not answer, as during a
    dispatcher's fail-over; only an error of the first list is raised."""
    last: dict[Hashable, object] = {}
    found = await listed()
    while True:
        present = {identity(document): (shown(document), document) for document in found}
        changed = [document for key, (text, document) in present.items() if last.get(key) != text]
        for key in last.keys() - present.keys():
            warn(f"{name} {key} is gone")
        last = {key: text for key, (text, _) in present.items()}
        yield changed
        warned = False
        while True:
            await asyncio.sleep(interval_seconds)
            try:
                found = await listed()
                break
            except (LedgerUnavailable, Overloaded, TransportError) as exc:
                if not warned:
                    warn(f"{exc}; the watch goes on when that is over")
                warned = True
