"""completion: the script a shell needs to complete hoss commands."""

import sys
from enum import Enum
from typing import Annotated

import typer
from typer.completion import get_completion_script  # type: ignore[attr-defined]  # documented, not exported

from hossctl.console import Document, Format, print_document
from hossctl.options import Output

app = typer.Typer()


class Shell(str, Enum):
    """Shells that are known."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


@app.command()
def completion(
    shell: Annotated[Shell, typer.Argument(help="The shell that reads it.")], output: Output = Format.TABLE
) -> None:
    """Print a completion script: `source <(hoss completion bash)`, or `hoss completion fish >
    ~/.config/fish/completions/hoss.fish`."""
    script = get_completion_script(prog_name="hoss", complete_var="_HOSS_COMPLETE", shell=shell.value)
    document: Document = {"shell": shell.value, "script": script}
    if output.for_people:
        sys.stdout.write(script + "\n")
    else:
        print_document(document, output)
