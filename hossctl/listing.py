"""Fetches what `hoss get` and `hoss describe` show, kind by kind, as documents."""

from collections.abc import AsyncIterator
from operator import itemgetter

from hoss.client.dispatcher import DispatcherClient
from hoss.errors import NotFound, TransportError
from hoss.model.label_selector import parse_label_selector
from hoss.v1 import dispatcher_pb2 as pb
from hoss.wire.columns import NONE_U16, NONE_U32, U8, U16, U32, decode, decode_uids
from hossctl.cluster_objects import budget_document, object_document
from hossctl.console import Document, warn
from hossctl.endpoints import Endpoints, dispatcher_of, resolver_of
from hossctl.guessing import did_you_mean
from hossctl.kinds import ALL, OBJECT_KINDS, Kind, Query
from hossctl.objects import (
    job_document,
    node_document,
    phase_name,
    pod_document,
    tenant_document,
    worker_document,
)
from hossctl.reservations import pod_names, reservation_documents


async def fetch(endpoints: Endpoints, query: Query) -> list[Document]:
    """The documents. Raises NotFound for the first name that nothing has."""
    query.check()
    if query.kind is Kind.NODES:
        async with resolver_of(endpoints) as resolver:
            found = [node_document(node) for node in await resolver.list_nodes(query.names, query.selector)]
            return _by_name(found, query)
    if query.kind is Kind.RESERVATIONS:
        return _by_name(await _reservations(endpoints, query), query, key="uid")
    async with dispatcher_of(endpoints) as dispatcher:
        if query.kind is Kind.PODS:
            return await _pods(dispatcher, query)
        return _by_name(await _known_to(dispatcher, query), query)


async def _reservations(endpoints: Endpoints, query: Query) -> list[Document]:
    pods = None
    if query.pods or query.selector:
        async with dispatcher_of(endpoints) as dispatcher:
            try:
                pods = await pod_names(dispatcher, query.selector)
            except TransportError as exc:
                if query.selector:
                    raise
                warn(f"which pods they are is not known: {exc}")
    async with resolver_of(endpoints) as resolver:
        held = reservation_documents(resolver, query.wanted, pods, only_pods=bool(query.selector))
        return sorted([document async for document in held], key=itemgetter("node", "uid"))


async def _known_to(dispatcher: DispatcherClient, query: Query) -> list[Document]:
    if query.kind is Kind.WORKERS:
        wanted = parse_label_selector(query.selector, where="-l")
        workers = [worker_document(worker) for worker in await dispatcher.list_workers()]
        return [w for w in workers if all(condition.matches(w["labels"]) for condition in wanted)]
    if query.kind is Kind.TENANTS:
        return [tenant_document(tenant) for tenant in await dispatcher.list_tenants()]
    if query.kind is Kind.JOBS:
        return [job_document(job) for job in await dispatcher.list_jobs(query.namespace)]
    if query.kind is Kind.BUDGETS:
        return [budget_document(*told) for told in await dispatcher.list_budgets(query.namespace)]
    return list(map(object_document, await dispatcher.list_objects(OBJECT_KINDS[query.kind], query.namespace)))


async def _pods(dispatcher: DispatcherClient, query: Query) -> list[Document]:
    if query.names:
        return [pod_document(await dispatcher.get_pod(query.namespace, name)) for name in query.names]
    pods = dispatcher.list_pods(query.namespace, phases=query.phases, label_selector=query.selector)
    return [pod_document(pod) async for pod in pods]


def _by_name(documents: list[Document], query: Query, key: str = "name") -> list[Document]:
    if not query.names:
        return documents
    known = {document[key]: document for document in documents}
    missing = [name for name in query.names if name not in known]
    if missing:
        raise NotFound(
            f"is not there; `hoss get {query.kind.value}` lists those that are{did_you_mean(missing[0], list(known))}",
            where=f"{query.kind.singular} {missing[0]!r}",
        )
    return [known[name] for name in query.names]


async def follow_pods(endpoints: Endpoints, query: Query) -> AsyncIterator[Document]:
    """Present pods, then every change, as documents with phase, node and reason; ends with the stream."""
    query.check()
    async with dispatcher_of(endpoints) as dispatcher:
        revision = (await dispatcher.status()).revision
        shown: dict[bytes, Document] = {}
        async for pod in dispatcher.list_pods(query.namespace, phases=query.phases, label_selector=query.selector):
            if not query.names or pod.name in query.names:
                shown[pod.uid] = pod_document(pod)
                yield shown[pod.uid]
        node_names: dict[int, str] = {}
        async for batch in dispatcher.watch(revision):
            node_names.update((entry.index, entry.name) for entry in batch.node_names)
            for uid, change in _changes(batch, node_names):
                if uid not in shown:
                    document = await _wanted(dispatcher, uid, query)
                    if document is None:
                        continue
                    shown[uid] = document
                shown[uid] = {**shown[uid], **change}
                yield shown[uid]


async def _wanted(dispatcher: DispatcherClient, uid: bytes, query: Query) -> Document | None:
    try:
        pod = await dispatcher.get_pod(uid=uid)
    except NotFound:
        return None  # deleted and forgotten before we asked
    in_place = query.namespace in (ALL, pod.namespace) and (not query.names or pod.name in query.names)
    if not in_place or query.selector or (query.phases and pod.phase not in query.phases):
        return None  # a selector is the server's to judge: such a watch shows changes of the pods it began with
    return pod_document(pod)


def _changes(batch: pb.WatchBatch, node_names: dict[int, str]) -> list[tuple[bytes, Document]]:
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
