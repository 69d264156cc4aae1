"""ungate."""

from typing import Annotated

import typer

from hossctl import completing
from hossctl.console import Document, Format, print_document, say
from hossctl.endpoints import Endpoints, dispatcher_of
from hossctl.eventloop import run_async
from hossctl.kinds import Kind, check_found, read_kind
from hossctl.options import Dispatcher, Namespace, Output, only

app = typer.Typer()


@app.command()
def ungate(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="pod or job.")],
    names: Annotated[list[str], typer.Argument(metavar="NAME...", autocompletion=completing.names)],
    *,
    gate: Annotated[
        list[str], typer.Option("--gate", metavar="GATE", help="Only this one; may be given several times.")
    ] = [],  # noqa: B006 - typer's way to say none
    namespace: Namespace = "default",
    dispatcher: Dispatcher = "",
    output: Output = Format.TABLE,
) -> None:
    """Take scheduling gates off pods or whole jobs, all of them or those named. Pods without any left are scheduled."""
    only(output, Format.TABLE, Format.JSON, Format.YAML)
    jobs = read_kind(kind, Kind.PODS, Kind.JOBS) is Kind.JOBS

    async def run() -> Document:
        async with dispatcher_of(Endpoints(dispatcher)) as client:
            reply = await client.remove_gates(
                namespace, pods=() if jobs else names, jobs=names if jobs else (), gates=gate
            )
        return {"changedPods": reply.changed_pods, "queuedPods": reply.queued_pods, "notFound": list(reply.not_found)}

    result = run_async(run())
    if output.for_people:
        say(f"took gates off {result['changedPods']:,} pods, of which {result['queuedPods']:,} have none left")
    else:
        print_document(result, output)
    check_found(result["notFound"], namespace, Kind.JOBS if jobs else Kind.PODS)
