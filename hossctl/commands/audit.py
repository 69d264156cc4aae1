"""audit: the invariants, on a live system."""

from typing import Annotated

import typer

from hossctl.console import Format, print_document, print_summary
from hossctl.endpoints import Endpoints, clients_of
from hossctl.eventloop import run_async
from hossctl.options import Dispatcher, Output, Resolver, only

app = typer.Typer()


@app.command()
def audit(
    wait: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="How long to wait for a moving platform to settle.")
    ] = 10.0,
    repair: Annotated[
        bool,
        typer.Option(
            "--repair", help="First make accounts, cards, ports and group counts what the reservations add up to."
        ),
    ] = False,
    dispatcher: Dispatcher = "",
    resolver: Resolver = "",
    output: Output = Format.TABLE,
) -> None:
    """Check the invariants. Exit 0: all held; 1: one is broken, with the evidence; 2: it could not be checked in time."""
    from hossctl import auditing
    from hossctl.report import audit_json, audit_lines

    only(output, Format.TABLE, Format.JSON, Format.YAML)

    async def run() -> "auditing.AuditResult":
        async with clients_of(Endpoints(dispatcher, resolver)) as clients:
            mended = await clients.resolver.repair() if repair else None
            result = await auditing.audit(clients.dispatcher, clients.resolver, wait_seconds=wait)
        if mended is not None:
            result.mended, result.unmended = list(mended.changes), list(mended.remaining)
        return result

    result = run_async(run())
    if output.for_people:
        print_summary("audit", audit_lines(result))
    else:
        print_document(audit_json(result), output)
    if result.exit_code:
        raise typer.Exit(result.exit_code)
