"""audit, ledger dump, ledger restore, ledger bootstrap: the ledger checked, as a file, and after a loss."""

import json
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hoss.errors import InvalidInput, reading, writing
from hossctl.cli import run_async
from hossctl.console import Format, announced, print_document, print_summary, say, warn
from hossctl.endpoints import Endpoints, ask_resolver, clients_of
from hossctl.options import Dispatcher, Output, Resolver

if TYPE_CHECKING:
    from hoss.client.resolver import ResolverClient
    from hoss.v1 import resolver_pb2 as pb
    from hossctl.auditing import AuditResult


app = typer.Typer()
group = typer.Typer(
    no_args_is_help=True, help="Dump the ledger, restore it, or continue with what is left of it."
)
app.add_typer(group, name="ledger")

_File = Annotated[Path, typer.Argument(metavar="FILE", help="JSON lines; - for standard output or input.")]
_STANDARD = Path("-")


@app.command()
def audit(
    wait: Annotated[
        float,
        typer.Option(min=0, metavar="SECONDS", help="How long to wait for a moving platform to settle."),
    ] = 10.0,
    repair: Annotated[
        bool,
        typer.Option(
            "--repair",
            help="First recompute accounts, cards, ports and group counts from the reservations.",
        ),
    ] = False,
    dispatcher: Dispatcher = "",
    resolver: Resolver = "",
    output: Output = Format.TABLE,
) -> None:
    """Check the invariants. Exit 0: all held; 1: one is broken, with the evidence; 2: it could not be checked
    in time."""
    from hossctl import auditing
    from hossctl.load.report import audit_json, audit_lines

    async def run() -> "AuditResult":
        async with clients_of(Endpoints(dispatcher, resolver)) as clients:
            repaired = await clients.resolver.repair() if repair else None
            result = await auditing.audit(clients.dispatcher, clients.resolver, wait_seconds=wait)
        if repaired is not None:
            result.repaired, result.unrepaired = list(repaired.changes), list(repaired.remaining)
        return result

    with announced("auditing"):
        result = run_async(run())
    if output.for_people:
        print_summary("", audit_lines(result))
    else:
        print_document(audit_json(result), output)
    if result.exit_code:
        raise typer.Exit(result.exit_code)


@group.command()
def dump(file: _File, resolver: Resolver = "") -> None:
    """Write nodes and reservations to a file, each shard as it is at one moment."""
    from hossctl.ledger_file import lines_of

    async def write(client: "ResolverClient") -> int:
        written = 0
        with writing(str(file)):
            opened = nullcontext(sys.stdout) if file == _STANDARD else file.open("w", encoding="utf-8")
        with opened as target:
            async for line in lines_of(client.dump()):
                target.write(json.dumps(line, separators=(",", ":")) + "\n")
                written += 1
        return written

    with announced("dumping the ledger"):
        written = ask_resolver(Endpoints(resolver=resolver), write)
    if file != _STANDARD:
        say(f"{written:,} lines are in {file}")


@group.command()
def restore(
    file: _File,
    *,
    force: Annotated[bool, typer.Option("--force", help="Replace the content of the ledger.")] = False,
    resolver: Resolver = "",
) -> None:
    """Restore the ledger from a dump: all of it, or nothing is changed."""
    from hoss.v1 import resolver_pb2 as pb
    from hossctl.ledger_file import parts_of

    async def rebuild(client: "ResolverClient") -> pb.RebuildReply:
        epoch = (await client.status()).ledger_epoch  # the same one: the dispatcher must not rebuild it
        head = pb.LedgerHead(ledger_epoch=epoch, replaces="*", operator=True, only_empty=not force)
        try:
            with (
                reading(str(file)),
                sys.stdin if file == _STANDARD else file.open(encoding="utf-8") as source,
            ):
                parts = list(parts_of(source, head, where=str(file)))
        except UnicodeDecodeError as exc:
            raise InvalidInput(
                f"is no dump: {exc.object[exc.start]:#04x} is no UTF-8", where=str(file)
            ) from exc
        return await client.rebuild(parts)

    with announced("restoring the ledger"):
        reply = ask_resolver(Endpoints(resolver=resolver), rebuild)
    _report(reply)


@group.command()
def bootstrap(resolver: Resolver = "") -> None:
    """Continue with what Redis has kept of a lost ledger, where no dispatcher can rebuild it."""
    from hoss.v1 import resolver_pb2 as pb

    async def rebuild(client: "ResolverClient") -> pb.RebuildReply:
        if (await client.status()).serving:
            raise InvalidInput("the ledger is whole; there is nothing to do", where="ledger")
        head = pb.LedgerHead(replaces="*", as_kept=True, operator=True)
        return await client.rebuild([pb.LedgerPart(head=head)])

    _report(ask_resolver(Endpoints(resolver=resolver), rebuild))


def _report(reply: "pb.RebuildReply") -> None:
    counts = f"{reply.nodes:,} nodes and {reply.reservations:,} reservations"
    say(f"the ledger has {counts} (epoch {reply.ledger_epoch})")
    if reply.unplaced_uids:
        warn(
            f"{len(reply.unplaced_uids) // 16:,} pods were left out: their node is not there, or their cards "
            "do not fit on it"
        )
    for name in reply.overcommitted:
        warn(f"node {name} offers less than what is requested on it; it keeps that and gets nothing more")
