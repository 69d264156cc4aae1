"""ledger dump, restore, bootstrap: the ledger as a file, and what to do when it is lost and nobody rebuilds it."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hoss.errors import InvalidInput
from hossctl.console import say, warn
from hossctl.endpoints import Endpoints, resolver_of
from hossctl.eventloop import run_async
from hossctl.options import Resolver

if TYPE_CHECKING:
    from hoss.v1 import resolver_pb2 as pb


app = typer.Typer()
group = typer.Typer(no_args_is_help=True, help="Dump the ledger, restore it, or go on with what is left of it.")
app.add_typer(group, name="ledger")

_File = Annotated[Path, typer.Argument(metavar="FILE", help="JSON lines; - for standard output or input.")]
_STANDARD = Path("-")


@group.command()
def dump(file: _File, resolver: Resolver = "") -> None:
    """Write nodes and reservations to a file, each shard as it is at one moment."""
    from hossctl.ledger_file import lines_of

    async def run() -> int:
        written = 0
        async with resolver_of(Endpoints(resolver=resolver)) as client:
            target = sys.stdout if file == _STANDARD else file.open("w", encoding="utf-8")
            try:
                async for line in lines_of(client.dump()):
                    target.write(json.dumps(line, separators=(",", ":")) + "\n")
                    written += 1
            finally:
                if target is not sys.stdout:
                    target.close()
        return written

    written = run_async(run())
    if file != _STANDARD:
        say(f"{written:,} lines are in {file}")


@group.command()
def restore(
    file: _File,
    *,
    force: Annotated[bool, typer.Option("--force", help="Replace what the ledger has.")] = False,
    resolver: Resolver = "",
) -> None:
    """Make the ledger what a dump says: all of it, or nothing is changed."""
    from hoss.v1 import resolver_pb2 as pb
    from hossctl.ledger_file import parts_of

    async def run() -> pb.RebuildReply:
        async with resolver_of(Endpoints(resolver=resolver)) as client:
            epoch = (await client.status()).ledger_epoch  # kept: it is no other ledger to the dispatcher
            head = pb.LedgerHead(ledger_epoch=epoch, replaces="*", operator=True, only_empty=not force)
            try:
                source = sys.stdin if file == _STANDARD else file.open(encoding="utf-8")
            except OSError as exc:
                raise InvalidInput(f"cannot be read: {exc.strerror}", where=str(file)) from exc
            with source:
                return await client.rebuild(list(parts_of(source, head, where=str(file))))

    _tell(run_async(run()))


@group.command()
def bootstrap(resolver: Resolver = "") -> None:
    """Go on with what Redis has kept of a lost ledger, where no dispatcher comes that knows more."""
    from hoss.v1 import resolver_pb2 as pb

    async def run() -> pb.RebuildReply:
        async with resolver_of(Endpoints(resolver=resolver)) as client:
            status = await client.status()
            if status.serving:
                raise InvalidInput("the ledger is whole; there is nothing to do", where="ledger")
            return await client.rebuild([pb.LedgerPart(head=pb.LedgerHead(replaces="*", as_kept=True, operator=True))])

    _tell(run_async(run()))


def _tell(reply: "pb.RebuildReply") -> None:
    say(f"the ledger has {reply.nodes:,} nodes and {reply.reservations:,} reservations (epoch {reply.ledger_epoch})")
    if reply.unplaced_uids:
        warn(
            f"{len(reply.unplaced_uids) // 16:,} pods were left out: their node is not there, or their cards do not fit on it"
        )
    for name in reply.overcommitted:
        warn(f"node {name} offers less than what is requested on it; it keeps that and gets nothing more")
