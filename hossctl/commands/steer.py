"""steer: what is done about conflicts, by hand."""

from typing import Annotated

import typer

from hoss.errors import InvalidInput
from hossctl.console import Format, print_document, say
from hossctl.endpoints import Endpoints, dispatcher_of
from hossctl.eventloop import run_async
from hossctl.options import Dispatcher, Output, only

app = typer.Typer()


@app.command()
def steer(
    *,
    overlap: Annotated[
        str, typer.Option(metavar="auto|shared|shuffled|soft-partition", help="How workers order equally good nodes.")
    ] = "",
    workers: Annotated[str, typer.Option(metavar="auto|N", help="How many of a rule's workers get work at once.")] = "",
    dispatcher: Dispatcher = "",
    output: Output = Format.TABLE,
) -> None:
    """Fix how much workers' node preferences overlap and how many get work at once; auto: by what conflicts cost.

    It stands until it is changed or the dispatcher ends; `steering` in its configuration is for good.
    """
    from hoss.v1 import dispatcher_pb2 as pb
    from hossctl.conflicts import steering_document, written_steering

    only(output, Format.TABLE, Format.JSON, Format.YAML)
    if not overlap and not workers:
        raise InvalidInput(
            "give one of them or both; `hoss get conflicts` shows what is in force", where="--overlap, --workers"
        )

    async def run() -> pb.Steering:
        async with dispatcher_of(Endpoints(dispatcher)) as client:
            return await client.steer(overlap, workers)

    document = steering_document(run_async(run()))
    if output.for_people:
        say(written_steering(document))
    else:
        print_document(document, output)
