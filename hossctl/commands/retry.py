"""retry."""

from typing import Annotated

import typer

from hoss.errors import InvalidInput, NotFound
from hossctl import completing
from hossctl.console import Document, Format, print_document, say
from hossctl.endpoints import Endpoints, dispatcher_of
from hossctl.eventloop import run_async
from hossctl.kinds import ALL, Kind, read_kind
from hossctl.options import AllNamespaces, Dispatcher, Namespace, Output, only

app = typer.Typer()


@app.command()
def retry(
    kind: Annotated[str, typer.Argument(metavar="[KIND]", help="pod or job.")] = "pod",
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", autocompletion=completing.names)] = None,
    *,
    failed: Annotated[bool, typer.Option("--failed", help="Every failed pod of the namespace.")] = False,
    namespace: Namespace = "default",
    all_namespaces: AllNamespaces = False,
    dispatcher: Dispatcher = "",
    output: Output = Format.TABLE,
) -> None:
    """Put pods that were given up back in the queue, their faults forgiven. `hoss get pods --failed` lists them."""
    only(output, Format.TABLE, Format.JSON, Format.YAML)
    jobs = read_kind(kind, Kind.PODS, Kind.JOBS) is Kind.JOBS
    chosen = names or []
    if bool(chosen) is failed:
        raise InvalidInput("give either names, as in `hoss retry pod NAME`, or --failed for all", where="NAME")
    if all_namespaces and not failed:
        raise InvalidInput("a name belongs to one namespace; give -n instead", where="-A")

    async def run() -> Document:
        async with dispatcher_of(Endpoints(dispatcher)) as client:
            reply = await client.retry(
                ALL if all_namespaces else namespace,
                pods=() if jobs else chosen,
                jobs=chosen if jobs else (),
                every=failed,
            )
        return {"retriedPods": reply.retried_pods, "notFound": list(reply.not_found)}

    result = run_async(run())
    if output.for_people:
        others = "" if result["retriedPods"] or result["notFound"] else "; none of them has failed"
        say(f"put {result['retriedPods']:,} failed pods back in the queue{others}")
    else:
        print_document(result, output)
    if result["notFound"]:
        what = "job" if jobs else "pod"
        missing = ", ".join(result["notFound"])
        raise NotFound(f"not there in namespace {namespace}; `hoss get {what}s -A` lists all", where=missing)
