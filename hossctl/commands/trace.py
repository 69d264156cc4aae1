"""trace."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from hoss.errors import InvalidInput, NotFound, TransportError
from hossctl.console import Document, Format, print_document, say
from hossctl.endpoints import Endpoints, dispatcher_of
from hossctl.eventloop import run_async
from hossctl.options import Dispatcher, Namespace, Output, only

app = typer.Typer()


@app.command("trace")
def show(
    name: Annotated[str, typer.Argument(metavar="POD", help="A pod's name, or its UID.")],
    *,
    file: Annotated[
        Path | None,
        typer.Option("--file", help="As services write it with --trace-file; else that of `hoss up --trace`."),
    ] = None,
    namespace: Namespace = "default",
    dispatcher: Dispatcher = "",
    output: Output = Format.TABLE,
) -> None:
    """Show one pod's way from Submit to its confirmed place: each span with when it began, how long it took, and what was decided."""
    from hossctl import platform, span_file

    only(output, Format.TABLE, Format.JSON, Format.YAML)
    path = file or platform.home() / platform.TRACE_FILE
    if file is None and not path.exists():
        raise InvalidInput(
            "is not there; start the platform with `hoss up --trace 1`, or name a file with --file", where=str(path)
        )
    spans = span_file.read_spans(path)
    uid = (
        _uid(name)
        or span_file.uid_of(spans, namespace, name)
        or run_async(_asked(Endpoints(dispatcher), namespace, name))
    )
    way = span_file.way_of(spans, uid) if uid else []
    if not way:
        raise NotFound(
            f"no trace of pod {name!r} in namespace {namespace!r}: traces are kept of the share of work batches that --trace-ratio says, and "
            "of those with conflicts",
            where=str(path),
        )
    found = span_file.document(namespace, name, uid, way)
    _print(found) if output.for_people else print_document(found, output)


def _uid(text: str) -> str:
    digits = text.replace("-", "")
    return digits if len(digits) == 32 and all(digit in "0123456789abcdef" for digit in digits) else ""


async def _asked(endpoints: Endpoints, namespace: str, name: str) -> str:
    """The UID as the dispatcher knows it; "" where there is none to ask, or it does not know the pod."""
    try:
        async with dispatcher_of(endpoints) as client:
            return (await client.get_pod(namespace, name)).uid.hex()
    except (TransportError, NotFound):
        return ""


def _print(found: Document) -> None:
    say(f"pod {found['namespace']}/{found['name']}, UID {found['uid']}, trace {found['spans'][0]['traceId']}")
    depth: dict[str, int] = {}
    for span in found["spans"]:
        level = depth[span["spanId"]] = depth.get(span["parent"], -1) + 1
        told = ", ".join(f"{key} {value}" for key, value in span["attributes"].items())
        label = f"{'  ' * level}{span['name']}"
        sys.stdout.write(
            f"{span['afterMs']:>10.3f} ms  {span['tookMs']:>9.3f} ms  {label:<18} {span['service']:<10}  {told}\n"
        )
        if span["error"]:
            sys.stdout.write(f"{'':>29}{'  ' * level}! {span['error']}\n")
        for event in span["events"]:
            told = ", ".join(f"{key} {value}" for key, value in event.items() if key not in ("name", "uid"))
            sys.stdout.write(f"{'':>29}{'  ' * level}* {event['name']}: {told}\n")
