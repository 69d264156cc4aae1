"""How `hoss get` and `hoss describe` print what was fetched, and in which order."""

import time
from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from typing import Any

from hoss.errors import InvalidInput, counted
from hoss.model.resources import written_amount
from hossctl.console import Column, Document, Format, print_lines, print_rows, print_summary, say
from hossctl.figures import written_since
from hossctl.jsonpath import read_path
from hossctl.kinds import ALL, NAMESPACED, Kind, Query
from hossctl.views import history
from hossctl.views.documents.conflicts import PAIR_COLUMNS
from hossctl.views.documents.objects import COLUMNS, written_labels
from hossctl.views.node import print_node

_NAMESPACE_COLUMN = Column("NAMESPACE", lambda document: document["namespace"])
_AMOUNTS = ("requests", "limits")  # by resource, in schema units
_TIME_SUFFIX = "UnixMs"
_NOTHING = " "  # a value that shows as empty, where "" shows as <none>
# By kind: the fields that its history contains, and the lines of the history at a moment.
_HISTORIES: dict[Kind, tuple[Collection[str], Callable[[Document, int], list[history.Line]]]] = {
    Kind.PODS: (history.POD_FIELDS, history.pod_lines),
    Kind.JOBS: (history.JOB_FIELDS, history.job_lines),
    Kind.WORKERS: (history.WORKER_FIELDS, lambda worker, _now_ms: history.worker_lines(worker)),
}


def print_listed(documents: list[Document], query: Query, output: Format, *, headings: bool = True) -> None:
    """A list as a table or as names; a sentence where it is empty."""
    if output is Format.NAME:
        key = "uid" if query.kind is Kind.RESERVATIONS else "name"
        print_lines(f"{query.kind.singular}/{document[key]}" for document in documents)
    elif documents:
        print_rows(documents, columns_of(query), wide=output is Format.WIDE, headings=headings)
    else:
        in_one = query.kind in NAMESPACED and query.namespace != ALL
        say(f"no {query.kind.value} found{f' in namespace {query.namespace}' if in_one else ''}")


def print_described(document: Document, query: Query) -> None:
    """One object for people: its fields, and its history."""
    if query.kind is Kind.NODES:
        print_node(document)
        return
    fields, lines = _HISTORIES[query.kind]
    now_ms = int(time.time() * 1000)
    told = _worker_lines(document) if query.kind is Kind.WORKERS else _lines(document, without=fields)
    print_summary(f"{document['kind']} {query.names[0]}", told)
    print_lines(["", *history.written(lines(document, now_ms), now_ms)])


def columns_of(query: Query) -> list[Column]:
    """The columns of a list; the namespace first where several can be in it."""
    if query.kind is Kind.CONFLICTS:
        return list(PAIR_COLUMNS)
    named = [_NAMESPACE_COLUMN] if query.namespace == ALL and query.kind in NAMESPACED else []
    return [*named, *COLUMNS[query.kind.value]]


def _lines(
    document: Document, indent: str = "", *, without: Collection[str] = ()
) -> list[tuple[str, object]]:
    """The fields that have a value, nested ones indented; not those of `without`."""
    lines: list[tuple[str, object]] = []
    for key, value in document.items():
        if key in without or (key in ("kind", "name") and not indent) or value in ("", [], {}):
            continue
        if key in _AMOUNTS and isinstance(value, dict):
            amounts = ", ".join(f"{name} {written_amount(name, amount)}" for name, amount in value.items())
            lines.append((f"{indent}{key}", amounts))
        elif key.endswith(_TIME_SUFFIX) and isinstance(value, int):
            lines.append((f"{indent}{key.removesuffix(_TIME_SUFFIX)}", _written_time(value)))
        elif isinstance(value, dict) and value:
            lines += [(f"{indent}{key}", _NOTHING), *_lines(value, indent + "  ")]
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            lines += [
                (f"{indent}{key}", ", ".join(f"{k}={v}" for k, v in item.items() if v != ""))
                for item in value
            ]
        elif isinstance(value, (dict, list)):
            lines.append((f"{indent}{key}", ", ".join(map(str, value))))
        else:
            lines.append((f"{indent}{key}", value))
    return lines


def _worker_lines(worker: Document) -> list[tuple[str, object]]:
    """A worker as people read it; its state and what it has in hand are told at the end of its history."""
    cost = f"{worker['microsPerPod']:,.0f} us for a pod, {worker['busySeconds']:,.1f} s in all"
    behind = sum(lag["seqs"] for lag in worker["behind"])
    lines: list[tuple[str, object]] = [
        ("state", worker["state"]),
        ("failing", worker["failing"]),
        ("distrusted until", _written_time(worker["distrustedUntilUnixMs"] or 0)),
        ("labels", written_labels(worker["labels"])),
        ("profile", worker["profile"]),
        ("rate", f"{counted(worker['podsPerSecond'], 'pod')} a second, busy {worker['busyShare']:.0%}"),
        ("CPU", cost),
        ("work in hand", f"{worker['estimatedWorkMs']:,.0f} ms, {worker['waitingWorkMs']:,.0f} ms not begun"),
        ("bound", f"{counted(worker['bound'], 'pod')} of {worker['proposed']:,} proposed"),
        ("refused", f"{worker['conflicts']:,}, {worker['conflictShare']:.1%} of proposed"),
        ("fit on no node", counted(worker["unschedulable"], "pod")),
        ("given back", counted(worker["returned"], "pod")),
        (
            "view",
            (
                f"{worker['synchronisation']}, {counted(behind, 'change')} behind, filled in"
                f" {worker['fillMs']:,.0f} ms"
            ),
        ),
        ("registration", f"epoch {worker['epoch']}, incarnation {worker['incarnation']}"),
    ]
    for title, key in (("refused for", "refusedFor"), ("others refused for it", "othersRefusedForIt")):
        lines += [
            (title, f"{pair['worker']}: {counted(pair['pods'], 'pod')}, {pair['reason']}")
            for pair in worker[key]
        ]
    return [(name, value) for name, value in lines if value not in (None, "")]


def _written_time(unix_ms: int) -> str:
    """A moment in local time, and how long ago it was."""
    if not unix_ms:
        return ""
    when = datetime.fromtimestamp(unix_ms / 1000).astimezone()
    return f"{when:%Y-%m-%d %H:%M:%S} ({written_since(unix_ms)} ago)"


def sorted_by(documents: Sequence[Document], path: str) -> list[Document]:
    """In ascending order of the value at a path such as `.attempts` or `{.requested.cpu}`: missing values,
    then numbers, then texts. The order is stable.

    Raises InvalidInput for a malformed path, and for one that no document has."""
    read = read_path(path.strip().removeprefix("{").removesuffix("}"), where="--sort-by")
    found = [read.values(document) for document in documents]
    if documents and not any(found):
        fields = ", ".join(f".{name}" for name in documents[0] if name != "kind")
        raise InvalidInput(f"{path!r} is in none of them; there are {fields}", where="--sort-by")
    keyed = sorted(zip(map(_key, found), range(len(documents)), strict=True))
    return [documents[position] for _, position in keyed]


def _key(values: list[Any]) -> tuple[int, float, str]:
    if not values or values[0] is None:
        return (0, 0.0, "")
    value = values[0]
    return (1, float(value), "") if isinstance(value, (bool, int, float)) else (2, 0.0, str(value))
