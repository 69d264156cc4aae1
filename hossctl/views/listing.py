"""Fetches the objects that `hoss get` and `hoss describe` print, kind by kind, as documents."""

from operator import itemgetter

from hoss.client.dispatcher import DispatcherClient
from hoss.errors import NotFound, TransportError, did_you_mean
from hossctl.console import Document, warn
from hossctl.endpoints import Endpoints, dispatcher_of, resolver_of
from hossctl.kinds import OBJECT_KINDS, Kind, Query, not_there
from hossctl.views.documents.objects import (
    job_document,
    node_document,
    pod_document,
    tenant_document,
    worker_document,
)


async def fetch(endpoints: Endpoints, query: Query) -> list[Document]:
    """The documents that the query selects. Raises NotFound for the first name that does not exist."""
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
        return _by_name(await _other(dispatcher, query), query)


async def _reservations(endpoints: Endpoints, query: Query) -> list[Document]:
    # What decodes their columns takes longer to import than all that other kinds need.
    from hossctl.views.documents.reservations import pod_names, reservation_documents  # noqa: PLC0415

    pods = None
    if query.with_pods or query.selector:
        async with dispatcher_of(endpoints) as dispatcher:
            try:
                pods = await pod_names(dispatcher, query.selector)
            except TransportError as exc:
                if query.selector:
                    raise
                warn(f"the names of the pods are not known: {exc}")
    async with resolver_of(endpoints) as resolver:
        held = reservation_documents(resolver, query.reservations, pods, only_pods=bool(query.selector))
        return sorted([document async for document in held], key=itemgetter("node", "uid"))


async def _other(dispatcher: DispatcherClient, query: Query) -> list[Document]:
    if query.kind is Kind.WORKERS:
        from hoss.manifests.fields import parse_label_selector  # noqa: PLC0415 - workers only

        conditions = parse_label_selector(query.selector, where="-l")
        workers = [worker_document(worker) for worker in await dispatcher.list_workers()]
        return [w for w in workers if all(condition.matches(w["labels"]) for condition in conditions)]
    if query.kind is Kind.TENANTS:
        return [tenant_document(tenant) for tenant in await dispatcher.list_tenants()]
    if query.kind is Kind.JOBS:
        return [job_document(job) for job in await dispatcher.list_jobs(query.namespace)]
    # What reads them imports the whole model, which takes as long as everything else.
    from hossctl.views.documents.cluster_objects import budget_document, object_document  # noqa: PLC0415

    if query.kind is Kind.BUDGETS:
        return [budget_document(*budget) for budget in await dispatcher.list_budgets(query.namespace)]
    objects = await dispatcher.list_objects(OBJECT_KINDS[query.kind], query.namespace)
    return list(map(object_document, objects))


async def _pods(dispatcher: DispatcherClient, query: Query) -> list[Document]:
    if query.names:
        return [pod_document(await dispatcher.get_pod(query.namespace, name)) for name in query.names]
    pods = dispatcher.list_pods(
        query.namespace, phases=query.phases, label_selector=query.selector, unplaceable=True
    )
    return [pod_document(pod) async for pod in pods]


def _by_name(documents: list[Document], query: Query, key: str = "name") -> list[Document]:
    if not query.names:
        return documents
    known = {document[key]: document for document in documents}
    missing = next((name for name in query.names if name not in known), None)
    if missing is not None:
        meant = did_you_mean(missing, list(known))
        raise NotFound(
            f"is {not_there(query.kind, query.namespace)}{meant}",
            where=f"{query.kind.singular} {missing!r}",
        )
    return [known[name] for name in query.names]
