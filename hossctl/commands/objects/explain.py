"""explain, trace: where a pod would be placed and why, and how it was scheduled."""

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hoss import contexts
from hoss.errors import InvalidInput, NotFound, TransportError, reading
from hossctl.choices import PROFILES
from hossctl.cli import EXIT_BAD_INPUT, run_async
from hossctl.console import Document, Format, complain, print_document, print_lines, say
from hossctl.endpoints import Endpoints, dispatcher_of
from hossctl.kinds import Kind
from hossctl.options import (
    Dispatcher,
    Namespace,
    Output,
    Resolver,
    complete_kinds,
    complete_names,
    complete_names_of,
    complete_words,
    read_manifest_bytes,
)

if TYPE_CHECKING:
    from hoss.manifests.fields import Object
    from hossctl.explain.offline import NamedProfile


app = typer.Typer()


@app.command()
def explain(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="[KIND]",
            help="pod: ask the platform about one it has.",
            autocompletion=complete_kinds(Kind.PODS),
        ),
    ] = "",
    name: Annotated[
        str, typer.Argument(metavar="[NAME]", help="Its name.", autocompletion=complete_names)
    ] = "",
    *,
    file: Annotated[
        str,
        typer.Option("-f", "--file", metavar="FILE", help="Pods, or objects that create pods; - is stdin."),
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
        str,
        typer.Option(
            metavar="FILE", help="JSON lines of conformance cases, answered one by one; - is stdin."
        ),
    ] = "",
    profile: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Score as a worker of this profile: spread, binpack, ...",
            autocompletion=complete_words(*PROFILES),
        ),
    ] = "",
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="As a worker of this WorkerConfig document, with its plugins from outside."
        ),
    ] = None,
    all_nodes: Annotated[bool, typer.Option("--all-nodes", help="Every node in a row of its own.")] = False,
    namespace: Namespace = "default",
    dispatcher: Dispatcher = "",
    resolver: Resolver = "",
    output: Output = Format.TABLE,
) -> None:
    """Say of every node whether it would take a pod, why not, and with which scores.

    With --nodes by files alone; with -f alone of the platform as it is now. With a pod's name of one that the
    platform has: also which queue it waits in, since when, and what would have it tried again."""
    from hossctl.explain.live import print_live
    from hossctl.explain.offline import profile_of

    if cases and (profile or config):
        raise InvalidInput(
            "answers with kube-scheduler's own profile; leave --profile and --config out", where="--cases"
        )
    chosen = profile_of(profile, config)
    if kind:
        if file or nodes or pods or cases:
            raise InvalidInput(
                "does not go with a pod of the platform; files are for other pods", where="-f, --nodes"
            )
        endpoints = Endpoints(dispatcher, resolver)
        print_live(kind, name, namespace, endpoints, output, profile=chosen, all_nodes=all_nodes)
        return
    if cases and (file or nodes or pods):
        raise InvalidInput(
            "does not go with -f, --nodes or --pods; cases bring their own cluster", where="--cases"
        )
    if cases:
        _answer(cases)
        return
    if not file:
        raise InvalidInput(
            "is missing; give -f POD, with --nodes FILE or of the platform; or --cases FILE", where="-f"
        )
    if pods and not nodes:
        raise InvalidInput("is missing; --pods needs the nodes that the pods are on", where="--nodes")
    for document in _explained(file, nodes, pods, Endpoints(dispatcher, resolver), chosen):
        if output.for_people:
            _print(document, all_nodes=all_nodes)
        else:
            print_document(document, output)


def _answer(name: str) -> None:
    """Write one line for each case; for one that cannot be read, the error. Then the exit code is 2."""
    from hossctl.explain.offline import answer_case

    failed = False
    for number, line in enumerate(_lines(name), start=1):
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
        # Values of quantities exceed 64 bits, which orjson does not write.
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
    file: str, nodes: list[Path], pods: list[Path], endpoints: Endpoints, profile: "NamedProfile | None"
) -> Iterator[Document]:
    from hossctl.explain.live import explain_manifest
    from hossctl.explain.offline import NamedProfile, cluster_of, explain_offline, pending_pods, preset
    from scheduler_worker.core.plugins.profiles import DEFAULT_PROFILE

    objects = list(_objects(file))
    if nodes:
        cluster = cluster_of(item for path in (*nodes, *pods) for _, item in _objects(str(path)))
        if not cluster.nodes:
            raise InvalidInput("holds no Node", where=", ".join(map(str, nodes)))
        chosen = profile or NamedProfile(DEFAULT_PROFILE, preset(DEFAULT_PROFILE))
        found = [explain_offline(pod, cluster, chosen) for pod in pending_pods(objects, cluster)]
    else:
        found = run_async(explain_manifest(endpoints, objects, profile))
    if not found:
        raise InvalidInput(
            "holds no Pod and nothing that makes pods, such as a Job or a Deployment", where=file
        )
    yield from found


def _objects(name: str) -> "Iterator[tuple[str, Object]]":
    from hoss.manifests.documents import read_objects

    where, data = read_manifest_bytes(name)
    return read_objects(data, where=where)


def _lines(name: str) -> Iterator[bytes]:
    """Of a file, or of standard input for "-", as they come; none longer than a manifest may be."""
    from hoss.manifests.guarded import MAX_MANIFEST_BYTES

    with (
        reading(name),
        contextlib.nullcontext(sys.stdin.buffer) if name == "-" else Path(name).open("rb") as file,
    ):
        while line := file.readline(MAX_MANIFEST_BYTES + 1):
            if len(line) > MAX_MANIFEST_BYTES:
                raise InvalidInput(f"has more than {MAX_MANIFEST_BYTES:,} bytes in a line", where=name)
            yield line


def _print(document: Document, *, all_nodes: bool) -> None:
    from hossctl.explain.table import print_nodes, verdict

    pods = f" (the next of {document['pods']:,} pods)" if document["pods"] > 1 else ""
    say(f"{document['pod']}{pods}: {verdict(document)}")
    if "prefilter" in document or "error" in document:
        return
    print_nodes(document, all_nodes=all_nodes)
    preemption = document.get("preemption")
    if preemption and preemption["node"]:
        say(f"preemption would evict {', '.join(preemption['victims'])} from {preemption['node']}")
    elif preemption:
        say(preemption["message"])


@app.command("trace")
def show_trace(
    name: Annotated[
        str,
        typer.Argument(
            metavar="POD", help="A pod's name, or its UID.", autocompletion=complete_names_of(Kind.PODS)
        ),
    ],
    *,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file", help="As services write it with --trace-file; else that of `hoss up --trace`."
        ),
    ] = None,
    namespace: Namespace = "default",
    dispatcher: Dispatcher = "",
    output: Output = Format.TABLE,
) -> None:
    """Show the spans of one pod from Submit to its confirmed reservation: when each began, how long it took,
    and what was decided."""
    from hossctl.local import platform
    from hossctl.views import trace

    path = file or contexts.home() / platform.TRACE_FILE
    if file is None and not path.exists():
        raise InvalidInput(
            "is not there; start the platform with `hoss up --trace 1`, or name a file with --file",
            where=str(path),
        )
    spans = trace.read_spans(path)
    uid = (
        _uid(name)
        or trace.uid_of(spans, namespace, name)
        or run_async(_uid_from_dispatcher(Endpoints(dispatcher), namespace, name))
    )
    of_pod = trace.spans_of(spans, uid) if uid else []
    if not of_pod:
        raise NotFound(
            f"no trace of pod {name!r} in namespace {namespace!r}: traces are kept of the share of work "
            "batches that --trace-ratio says, and of those with conflicts",
            where=str(path),
        )
    found = trace.document(namespace, name, uid, of_pod)
    _print_trace(found) if output.for_people else print_document(found, output)


def _uid(text: str) -> str:
    """The hex digits of a UID; "" for any other text."""
    digits = text.replace("-", "")
    return digits if len(digits) == 32 and all(digit in "0123456789abcdef" for digit in digits) else ""


async def _uid_from_dispatcher(endpoints: Endpoints, namespace: str, name: str) -> str:
    """The UID by the dispatcher; "" where it does not answer or does not know the pod."""
    try:
        async with dispatcher_of(endpoints) as client:
            return (await client.get_pod(namespace, name)).uid.hex()
    except (TransportError, NotFound):
        return ""


def _print_trace(found: Document) -> None:
    say(f"pod {found['namespace']}/{found['name']}, UID {found['uid']}, trace {found['spans'][0]['traceId']}")
    depth: dict[str, int] = {}
    lines: list[str] = []
    for span in found["spans"]:
        level = depth[span["spanId"]] = depth.get(span["parent"], -1) + 1
        indent = "  " * level
        times = f"{span['afterMs']:>10.3f} ms  {span['tookMs']:>9.3f} ms"
        attributes = ", ".join(f"{key} {value}" for key, value in span["attributes"].items())
        lines.append(f"{times}  {indent + span['name']:<18} {span['service']:<10}  {attributes}")
        if span["error"]:
            lines.append(f"{'':>29}{indent}! {span['error']}")
        for event in span["events"]:
            attributes = ", ".join(f"{k} {v}" for k, v in event.items() if k not in ("name", "uid"))
            lines.append(f"{'':>29}{indent}* {event['name']}: {attributes}")
    print_lines(lines)
