"""explain: why, where, with which scores; and of a pod that waits, for what."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hoss.errors import InvalidInput
from hossctl.cli import EXIT_BAD_INPUT
from hossctl.console import Document, Format, complain, print_document, say
from hossctl.endpoints import Endpoints
from hossctl.eventloop import run_async
from hossctl.options import Dispatcher, Namespace, Output, Resolver, only

if TYPE_CHECKING:
    from hoss.model.fields import Object


app = typer.Typer()


@app.command()
def explain(
    kind: Annotated[str, typer.Argument(metavar="[KIND]", help="pod: ask the platform about one it has.")] = "",
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="Its name.")] = "",
    *,
    file: Annotated[
        str, typer.Option("-f", "--file", metavar="FILE", help="Pods, or what makes them; - is stdin.")
    ] = "",
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
    profile: Annotated[
        str, typer.Option(metavar="NAME", help="Score as a worker of this profile: spread, binpack, ...")
    ] = "",
    all_nodes: Annotated[bool, typer.Option("--all-nodes", help="Every node in a row of its own.")] = False,
    namespace: Namespace = "default",
    dispatcher: Dispatcher = "",
    resolver: Resolver = "",
    output: Output = Format.TABLE,
) -> None:
    """Say of every node whether it would take a pod, why not, and with which scores.

    With --nodes by files alone; with -f alone of the platform as it is now. With a pod's name of one that the platform has:
    also which queue it waits in, since when, and what would have it tried again.
    """
    from hossctl.explain import preset
    from hossctl.explain_live import print_live

    only(output, Format.TABLE, Format.JSON, Format.YAML)
    if profile:
        preset(profile)
    if kind:
        if file or nodes or pods or cases:
            raise InvalidInput("stands beside a pod of the platform's; files are for other pods", where="-f, --nodes")
        endpoints = Endpoints(dispatcher, resolver)
        print_live(kind, name, namespace, endpoints, output, profile=profile, all_nodes=all_nodes)
        return
    if cases and (file or nodes or pods):
        raise InvalidInput("stands beside -f, --nodes or --pods; cases bring their own cluster", where="--cases")
    if cases:
        _answer(cases)
        return
    if not file:
        raise InvalidInput("is missing; give -f POD, with --nodes FILE or of the platform; or --cases FILE", where="-f")
    if pods and not nodes:
        raise InvalidInput("is missing; --pods stand on nodes of a file", where="--nodes")
    for document in _explained(file, nodes, pods, Endpoints(dispatcher, resolver), profile):
        if output.for_people:
            _print(document, all_nodes=all_nodes)
        else:
            print_document(document, output)


def _answer(name: str) -> None:
    """One line a case. Those that cannot be read are answered with the error, and the exit code tells."""
    from hossctl.explain import answer_case

    failed = False
    for number, line in enumerate(_read(name).splitlines(), start=1):
        if not line.strip():
            continue
        case: Object = {}
        try:
            case = _case(line)
            answer = answer_case(case)
        except InvalidInput as exc:
            answer = {"id": case.get("id"), "line": number, "error": str(exc)}
            complain(f"{'stdin' if name == '-' else name} line {number}: {exc}")
            failed = True
        # Quantities have values beyond the 64 bits of quicker writers.
        sys.stdout.write(json.dumps(answer, separators=(",", ":"), ensure_ascii=False) + "\n")
    if failed:
        raise typer.Exit(EXIT_BAD_INPUT)


def _case(line: bytes) -> "Object":
    try:
        case = json.loads(line)
    except (ValueError, RecursionError) as exc:
        raise InvalidInput(f"is no JSON: {exc}") from exc
    if not isinstance(case, dict):
        raise InvalidInput("is no case; a case is a JSON object")
    return case


def _explained(
    file: str, nodes: list[Path], pods: list[Path], endpoints: Endpoints, profile: str
) -> Iterator[Document]:
    from hossctl.explain import cluster_of, explain_offline, pending_pods
    from hossctl.explain_live import explain_manifest
    from scheduler_worker.core.profiles import DEFAULT_PROFILE

    objects = list(_objects(file))
    if nodes:
        cluster = cluster_of(item for path in (*nodes, *pods) for _, item in _objects(str(path)))
        if not cluster.nodes:
            raise InvalidInput("holds no Node", where=", ".join(map(str, nodes)))
        found = [explain_offline(pod, cluster, profile or DEFAULT_PROFILE) for pod in pending_pods(objects, cluster)]
    else:
        found = run_async(explain_manifest(endpoints, objects, profile))
    if not found:
        raise InvalidInput("holds no Pod and nothing that makes pods, such as a Job or a Deployment", where=file)
    yield from found


def _objects(name: str) -> "Iterator[tuple[str, Object]]":
    from hoss.wire.manifests import read_objects

    return read_objects(_read(name), where="stdin" if name == "-" else name)


def _read(name: str) -> bytes:
    try:
        return sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    except OSError as exc:
        raise InvalidInput(f"cannot be read: {exc.strerror}", where=name) from exc


def _print(document: Document, *, all_nodes: bool) -> None:
    from hossctl.explain_table import print_nodes, verdict

    pods = f" (the next of {document['pods']:,} pods)" if document["pods"] > 1 else ""
    say(f"{document['pod']}{pods}: {verdict(document)}")
    if "prefilter" in document:
        return
    print_nodes(document, all_nodes=all_nodes)
    preemption = document.get("preemption")
    if preemption and preemption["node"]:
        say(f"preemption would evict {', '.join(preemption['victims'])} from {preemption['node']}")
    elif preemption:
        say(preemption["message"])
