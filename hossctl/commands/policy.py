"""policy get, policy set."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from hoss.errors import ConfigError
from hossctl.console import Document, Format, print_document, say, warn
from hossctl.endpoints import Endpoints, dispatcher_of
from hossctl.eventloop import run_async
from hossctl.options import Dispatcher, Output, only

app = typer.Typer()
group = typer.Typer(no_args_is_help=True, help="Show or replace the policy that routes pods to workers.")
app.add_typer(group, name="policy")


@group.command("get")
def get_policy(dispatcher: Dispatcher = "", output: Output = Format.YAML) -> None:
    """The SchedulingPolicy in force."""
    only(output, Format.TABLE, Format.JSON, Format.YAML)

    async def run() -> Document:
        async with dispatcher_of(Endpoints(dispatcher)) as client:
            policy = await client.get_policy()
        return {"version": policy.version, "yaml": policy.yaml}

    document = run_async(run())
    if output is Format.JSON:
        print_document(document, output)
    else:
        sys.stdout.write(document["yaml"].rstrip("\n") + "\n")


@group.command("set")
def set_policy(
    file: Annotated[Path, typer.Option("-f", "--file", help="A SchedulingPolicy document.")],
    dispatcher: Dispatcher = "",
    output: Output = Format.TABLE,
) -> None:
    """Check a policy and put it in force. A policy that is refused leaves the old one."""
    only(output, Format.TABLE, Format.JSON, Format.YAML)
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"cannot be read: {exc}", where=str(file)) from exc

    async def run() -> Document:
        async with dispatcher_of(Endpoints(dispatcher)) as client:
            reply = await client.set_policy(text)
        return {"version": reply.version, "warnings": list(reply.warnings)}

    document = run_async(run())
    if output.for_people:
        for text_ in document["warnings"]:
            warn(text_)
        say(f"policy version {document['version']} is in force")
    else:
        print_document(document, output)
