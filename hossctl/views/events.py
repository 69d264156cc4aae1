"""What `hoss events` prints: what happened to pods, jobs, workers and nodes, in the order of time.

The dispatcher keeps the transitions of pods, jobs and workers. Each resolver keeps the cordons that it was
asked for and its quarantine of nodes, so all of them are asked. How long, docs/operations/observe.md says. Of
a job's pods it is one event for each kind of transition."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from hoss.client.dispatcher import DispatcherClient
from hoss.errors import LedgerUnavailable, Overloaded, TransportError
from hoss.rpc import each_server
from hoss.v1.resolver_pb2 import NodeEvent
from hossctl.console import Column, Document, warn
from hossctl.endpoints import Endpoints, dispatcher_of, resolver_of
from hossctl.kinds import Kind, Query
from hossctl.views.describing import describe
from hossctl.views.documents.objects import (
    job_document,
    job_transition_document,
    worker_document,
    worker_transition_document,
)
from hossctl.views.history import Line, job_lines, pod_lines, worker_lines

INTERVAL_SECONDS = 1.0
_STATUS_SECONDS = 2.0  # for each resolver: the others' events wait for it
_MOST_PODS = 200  # pods of no job whose events are listed; each is a request

EVENT_COLUMNS = (
    Column("TIME", lambda event: _time(event["atUnixMs"])),
    Column("OBJECT", lambda event: event["object"]),
    Column("EVENT", lambda event: event["text"]),
)


def _time(unix_ms: int) -> str:
    return f"{datetime.fromtimestamp(unix_ms / 1000).astimezone():%Y-%m-%d %H:%M:%S}"


@dataclass(slots=True)
class _NodeEvents:
    """What each resolver said last, by address, and which do not answer now; and which resolvers each address
    that was given named last. One look has one of its own; a watch has one for all of its looks, until it
    ends."""

    servers: dict[str, list[str]] = field(default_factory=dict)
    known: dict[str, Sequence[NodeEvent]] = field(default_factory=dict)
    silent: set[str] = field(default_factory=set)


async def fetch_events(
    endpoints: Endpoints, namespace: str, one: Query | None, nodes: _NodeEvents | None = None
) -> list[Document]:
    """Events of one object, or of all workers and nodes and of the pods and jobs of a namespace ("": of every
    one), oldest first. Raises NotFound where the object is not there. A resolver that does not answer is
    warned about, and its events are those that `nodes` has of an earlier look."""
    nodes = nodes or _NodeEvents()
    if one is None:
        found = [event async for event in _all(endpoints, namespace, nodes)]
    elif one.kind is Kind.NODES:
        await describe(endpoints, one)
        found = [
            event for event in await _of_nodes(endpoints, nodes) if event["object"] == f"node/{one.names[0]}"
        ]
    else:
        document = await describe(endpoints, one)
        found = _events(_name(one.kind, document), _lines(one.kind, document))
    # One resolver may have several addresses behind a name, and tells its events at each.
    once = {_key(event): event for event in found}
    return sorted(once.values(), key=lambda event: event["atUnixMs"])


async def follow_events(
    endpoints: Endpoints, namespace: str, one: Query | None, *, interval_seconds: float = INTERVAL_SECONDS
) -> AsyncIterator[list[Document]]:
    """The events that there are, then new ones, until cancelled. An event of a job's pods comes again when it
    has happened to more of them. That a service does not answer is said once, and raised at the start
    only."""
    seen: set[tuple[str, int, str]] = set()
    nodes = _NodeEvents()
    found = await fetch_events(endpoints, namespace, one, nodes)
    while True:
        yield [event for event in found if _key(event) not in seen]
        seen = set(map(_key, found))  # what the services have forgotten is not remembered here either
        warned = False
        while True:
            await asyncio.sleep(interval_seconds)
            try:
                found = await fetch_events(endpoints, namespace, one, nodes)
                break
            except (LedgerUnavailable, Overloaded, TransportError) as exc:
                if not warned:
                    warn(f"{exc}; the watch goes on when that is over")
                warned = True


async def _all(endpoints: Endpoints, namespace: str, nodes: _NodeEvents) -> AsyncIterator[Document]:
    async with dispatcher_of(endpoints) as dispatcher:
        for info in await dispatcher.list_workers(steps=True):
            worker = worker_document(info) | {"steps": list(map(worker_transition_document, info.steps))}
            for event in _events(_name(Kind.WORKERS, worker), _lines(Kind.WORKERS, worker)):
                yield event
        for job_info in await dispatcher.list_jobs(namespace, steps=True):
            job = job_document(job_info) | {
                "steps": list(map(job_transition_document, job_info.steps)),
                "stepsSinceUnixMs": job_info.steps_since_unix_ms,
                "waiting": [],
            }
            for event in _events(_name(Kind.JOBS, job), _lines(Kind.JOBS, job)):
                yield event
        single = await _single_pods(dispatcher, namespace)
    for place, name in single[-_MOST_PODS:]:
        pod = await describe(endpoints, Query(Kind.PODS, (name,), place))
        for event in _events(_name(Kind.PODS, pod), _lines(Kind.PODS, pod)):
            yield event
    if len(single) > _MOST_PODS:
        warn(
            f"events of {len(single) - _MOST_PODS:,} older pods are left out; `hoss events pod/NAME` has them"
        )
    for event in await _of_nodes(endpoints, nodes):
        yield event


async def _single_pods(dispatcher: DispatcherClient, namespace: str) -> list[tuple[str, str]]:
    """Namespace and name of the pods of no job, the latest submission last."""
    pods = [
        (pod.submitted_unix_ms, pod.namespace, pod.name)
        async for pod in dispatcher.list_pods(namespace)
        if not pod.job
    ]
    return [(place, name) for _, place, name in sorted(pods)]


async def _of_nodes(endpoints: Endpoints, nodes: _NodeEvents) -> list[Document]:
    given = endpoints.resolver_addresses()
    await asyncio.gather(*(_look_up(address, nodes) for address in given))
    addresses = list(dict.fromkeys(server for address in given for server in nodes.servers[address]))
    nodes.known = {address: events for address, events in nodes.known.items() if address in addresses}
    nodes.silent.intersection_update(addresses)
    await asyncio.gather(*(_ask_resolver(endpoints, address, nodes) for address in addresses))
    return [
        _event(event.unix_ms, f"node/{event.node}", event.text)
        for address in addresses
        for event in nodes.known.get(address, ())
    ]


async def _look_up(address: str, nodes: _NodeEvents) -> None:
    """Look up which resolvers the address names. A name that is not known now names those of the last look.
    At the first look the client says that it is unknown."""
    try:
        nodes.servers[address] = await asyncio.to_thread(each_server, address)
    except TransportError:
        nodes.servers.setdefault(address, [address])


async def _ask_resolver(endpoints: Endpoints, address: str, nodes: _NodeEvents) -> None:
    try:
        async with resolver_of(replace(endpoints, resolver=address)) as resolver:
            nodes.known[address] = (await resolver.status(_STATUS_SECONDS)).events
        nodes.silent.discard(address)
    except (TransportError, LedgerUnavailable) as exc:
        if address not in nodes.silent:
            warn(f"the events of nodes that the resolver at {address} knows are left out: {exc}")
        nodes.silent.add(address)


def _lines(kind: Kind, document: Document) -> Sequence[Line]:
    """The history of an object; what holds now is no event."""
    if kind is Kind.WORKERS:
        return worker_lines(document)
    return job_lines(document, 0) if kind is Kind.JOBS else pod_lines(document, 0)


def _name(kind: Kind, document: Document) -> str:
    """As in `pod/shop/web-0`; the namespace default is left out."""
    place = document.get("namespace", "default")
    return "/".join((kind.singular, *(() if place == "default" else (place,)), document["name"]))


def _events(name: str, lines: Iterable[Line]) -> list[Document]:
    return [_event(line.at_ms, name, line.text) for line in lines if line.at_ms is not None]


def _key(event: Document) -> tuple[str, int, str]:
    return event["object"], event["atUnixMs"], event["text"]


def _event(at_ms: int, name: str, text: str) -> Document:
    return {"kind": "Event", "atUnixMs": at_ms, "object": name, "text": text}
