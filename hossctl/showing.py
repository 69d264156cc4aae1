"""How `hoss get` and `hoss describe` show what was fetched, and what changes of it."""

import sys
import time
from collections.abc import AsyncIterator, Callable, Collection

from hossctl import job_story, pod_story, worker_story
from hossctl.conflicts import PAIR_COLUMNS, fetch_conflicts
from hossctl.console import Column, Document, Format, print_document, print_lines, print_rows, print_summary, say
from hossctl.endpoints import Endpoints
from hossctl.jsonpath import Template
from hossctl.kinds import ALL, NAMESPACED, Kind, Query
from hossctl.listing import fetch, follow_pods
from hossctl.node_story import print_story
from hossctl.objects import COLUMNS
from hossctl.timeline import Line, written
from hossctl.watching import changes

_NAMESPACE_COLUMN = Column("NAMESPACE", lambda document: document["namespace"])
_GROWS = ("AGE", "SINCE", "SEEN")  # columns that change by themselves
# Fields that a kind's story tells, and how it is told at a moment.
_STORIES: dict[Kind, tuple[Collection[str], Callable[[Document, int], list[Line]]]] = {
    Kind.PODS: (pod_story.TOLD, pod_story.pod_lines),
    Kind.JOBS: (job_story.TOLD, job_story.job_lines),
    Kind.WORKERS: (worker_story.TOLD, lambda worker, _now_ms: worker_story.worker_lines(worker)),
}


async def watch(endpoints: Endpoints, query: Query, output: Format, template: Template | None) -> None:
    """What there is, then every change, until it is cancelled."""
    first, headings = True, True
    async for documents in _changes(endpoints, query, output):
        if output in (Format.JSON, Format.YAML):
            for document in documents:
                print_document(document, output, template)
        elif documents or first:
            print_listed(documents, query, output, headings=headings)
        first, headings = False, headings and not documents
        sys.stdout.flush()


async def _changes(endpoints: Endpoints, query: Query, output: Format) -> AsyncIterator[list[Document]]:
    """What there is, then what changed: of a table's objects where a cell did."""
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
        told = [c for c in _columns(query) if c.heading not in _GROWS and (output is not Format.TABLE or not c.wide)]
        return tuple(str(column.cell(document)) for column in told)

    async def look() -> list[Document]:
        if query.kind is Kind.CONFLICTS:
            pairs: list[Document] = (await fetch_conflicts(endpoints))["pairs"]
            return pairs
        return await fetch(endpoints, query)

    async for documents in changes(look, identity, shown, name=query.kind.singular):
        yield documents


def print_listed(documents: list[Document], query: Query, output: Format, *, headings: bool = True) -> None:
    """A list as a table or as names; a sentence where it is empty."""
    if output is Format.NAME:
        key = "uid" if query.kind is Kind.RESERVATIONS else "name"
        for document in documents:
            sys.stdout.write(f"{query.kind.singular}/{document[key]}\n")
        return
    if not documents:
        where = f" in namespace {query.namespace}" if query.kind in NAMESPACED and query.namespace != ALL else ""
        say(f"no {query.kind.value} found{where}")
        return
    print_rows(documents, _columns(query), wide=output is Format.WIDE, headings=headings)


def print_described(document: Document, query: Query) -> None:
    """One object for people: its fields, and its story in order of time."""
    if query.kind is Kind.NODES:
        print_story(document)
        return
    told, lines = _STORIES[query.kind]
    now_ms = int(time.time() * 1000)
    print_summary(f"{document['kind']} {query.names[0]}", _lines(document, without=told))
    print_lines(["", *written(lines(document, now_ms), now_ms)])


def _columns(query: Query) -> list[Column]:
    if query.kind is Kind.CONFLICTS:
        return list(PAIR_COLUMNS)
    named = [_NAMESPACE_COLUMN] if query.namespace == ALL and query.kind in NAMESPACED else []
    return [*named, *COLUMNS[query.kind.value]]


def _lines(document: Document, indent: str = "", *, without: Collection[str] = ()) -> list[tuple[str, object]]:
    """What there is; of `without` the story tells."""
    lines: list[tuple[str, object]] = []
    for key, value in document.items():
        if key in without or (key in ("kind", "name") and not indent) or value in ("", [], {}):
            continue
        if isinstance(value, dict) and value:
            lines += [(f"{indent}{key}", "\u200b"), *_lines(value, indent + "  ")]
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            lines += [(f"{indent}{key}", ", ".join(f"{k}={v}" for k, v in item.items() if v != "")) for item in value]
        elif isinstance(value, (dict, list)):
            lines.append((f"{indent}{key}", ", ".join(map(str, value))))
        else:
            lines.append((f"{indent}{key}", value))
    return lines
