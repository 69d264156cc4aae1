"""explain: why, where, with which scores; and of a pod that waits, for what."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from hoss.errors import InvalidInput
from hoss.model.fields import Object
from hoss.wire.manifests import read_objects
from hossctl.cli import EXIT_BAD_INPUT
from hossctl.console import Column, Document, Format, print_document, print_rows, say
from hossctl.endpoints import Endpoints
from hossctl.explain import answer_case, cluster_of, explain_pod, explain_rows
from hossctl.explain_live import print_live
from hossctl.options import Dispatcher, Namespace, Output, Resolver, only

app = typer.Typer()

_COLUMNS = (
    Column("NODE", lambda row: row["node"]),
    Column("TOTAL", lambda row: row["total"]),
    Column("SCORES OR REASONS", lambda row: row["says"]),
)


@app.command()
def explain(
    kind: Annotated[str, typer.Argument(metavar="[KIND]", help="pod: ask the platform about one it has.")] = "",
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="Its name.")] = "",
    *,
    file: Annotated[str, typer.Option("-f", "--file", metavar="FILE", help="The pod's manifest; - is stdin.")] = "",
    nodes: Annotated[
        list[Path], typer.Option(metavar="FILE", help="Nodes, as `kubectl get nodes -o yaml` prints them.")
    ] = [],  # noqa: B006 - typer's way to say none
    pods: Annotated[
        list[Path],
        typer.Option(
            metavar="FILE",
            help="Bound pods; also services, controllers, namespaces and disruption budgets that matter.",
        ),
    ] = [],  # noqa: B006
    cases: Annotated[
        str, typer.Option(metavar="FILE", help="JSON lines of conformance cases, answered one by one; - is stdin.")
    ] = "",
    namespace: Namespace = "default",
    dispatcher: Dispatcher = "",
    resolver: Resolver = "",
    output: Output = Format.TABLE,
) -> None:
    """Say of every node whether it would take a pod, why not, and with which scores; offline, by files alone.

    Or, of a pod that the platform has: which queue it waits in, since when, and what would have it tried again.
    """
    only(output, Format.TABLE, Format.JSON, Format.YAML)
    if kind:
        if file or nodes or pods or cases:
            raise InvalidInput("stands beside a pod of the platform's; files are for other pods", where="-f, --nodes")
        print_live(kind, name, namespace, Endpoints(dispatcher, resolver), output)
        return
    if cases and (file or nodes or pods):
        raise InvalidInput("stands beside -f, --nodes or --pods; cases bring their own cluster", where="--cases")
    if cases:
        _answer(cases)
        return
    if not file or not nodes:
        missing = "-f" if not file else "--nodes"
        raise InvalidInput("is missing; give -f POD and --nodes FILE, or --cases FILE", where=missing)
    cluster = cluster_of(item for path in (*nodes, *pods) for item in _objects(str(path)))
    if not cluster.nodes:
        raise InvalidInput("holds no Node", where=", ".join(map(str, nodes)))
    for document in [explain_pod(pod, cluster) for pod in _pods(file)]:
        if output.for_people:
            _print(document)
        else:
            print_document(document, output)


def _answer(name: str) -> None:
    """One line a case. Those that cannot be read are answered with the error, and the exit code tells."""
    failed = False
    for number, line in enumerate(_read(name).splitlines(), start=1):
        if not line.strip():
            continue
        place = f"{'stdin' if name == '-' else name} line {number}"
        try:
            case = json.loads(line)
        except ValueError as exc:
            raise InvalidInput(f"is no JSON: {exc}", where=place) from exc
        if not isinstance(case, dict):
            raise InvalidInput("is no case; a case is a JSON object", where=place)
        try:
            answer = answer_case(case)
        except InvalidInput as exc:
            answer = {"id": case.get("id"), "error": str(exc)}
            say(f"error: {place}: {exc}")
            failed = True
        # Quantities have values beyond the 64 bits of quicker writers.
        sys.stdout.write(json.dumps(answer, separators=(",", ":"), ensure_ascii=False) + "\n")
    if failed:
        raise typer.Exit(EXIT_BAD_INPUT)


def _pods(name: str) -> list[Object]:
    pods = [item for item in _objects(name) if item.get("kind") == "Pod"]
    if not pods:
        raise InvalidInput("holds no Pod; explain is about one pod, so give its own manifest", where=name)
    return pods


def _objects(name: str) -> Iterator[Object]:
    return (item for _, item in read_objects(_read(name), where="stdin" if name == "-" else name))


def _read(name: str) -> bytes:
    try:
        return sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    except OSError as exc:
        raise InvalidInput(f"cannot be read: {exc.strerror}", where=name) from exc


def _print(document: Document) -> None:
    pod = document["pod"]
    if "prefilter" in document:
        say(f"{pod}: {document['message']}")
        return
    takers, nodes = len(document["feasible"]), len(document["feasible"]) + len(document["reasons"])
    say(f"{pod}: {takers} of {nodes} nodes can take it" if takers else f"{pod}: {document['message']}")
    print_rows(explain_rows(document), _COLUMNS, wide=False)
    preemption = document.get("preemption")
    if preemption and preemption["node"]:
        say(f"preemption would evict {', '.join(preemption['victims'])} from {preemption['node']}")
    elif preemption:
        say(preemption["message"])
