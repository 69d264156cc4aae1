"""The commands that the documents tell people to run, and how the real parsers read them."""

import importlib
import importlib.util
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typer.main import get_command

from hoss.sdk.running import _parser as sdk_parser
from hossctl.cli import app

ROOT = Path(__file__).parents[1]

# A line that begins with one of these is a command. In a block marked sh or console every line has to be.
PROGRAMS = {
    ".",
    "alias",
    "cd",
    "docker",
    "echo",
    "examples/go/bin/emptiestfirst",
    "helm",
    "hoss",
    "jq",
    "kill",
    "kind",
    "kubectl",
    "make",
    "minikube",
    "python",
    "source",
}

_FENCE = re.compile(r"^```(\w*)\s*$")
_SHELLS = {"sh", "bash", "console"}
_WORD = re.compile(r"^\$?\s*([A-Za-z_]+=\S+\s+)*(\S+)")
_ENDS = {"&&", "||", ";", "|", "&"}
_OUTPUT = {"<", ">", ">>", "<<"}


@dataclass(frozen=True)
class Command:
    """A line to be typed, its comment taken off, and where it stands."""

    document: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.document}:{self.line}: {self.text}"


def documents() -> list[Path]:
    """All that people read to use HOSS or to work on it. Decisions are history: what they show may have
    changed since."""
    found = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [path for path in found if "adr" not in path.relative_to(ROOT).parts]


def commands_of(path: Path) -> Iterator[Command]:
    """In order; from blocks marked sh, bash or console, and from indented ones that begin with a command."""
    name = str(path.relative_to(ROOT))
    for fence, block in _blocks(path.read_text("utf-8").splitlines()):
        if fence is None and not _is_command(block[0][1]):
            continue
        prompted = any(line.startswith("$ ") for _, line in block)
        for number, text in _joined([entry for entry in block if not prompted or entry[1].startswith("$ ")]):
            if not _is_command(text):
                raise AssertionError(f"{name}:{number}: {text!r} begins with no command that tests know")
            yield Command(name, number, _bare(text.removeprefix("$ ")))


def _blocks(lines: list[str]) -> Iterator[tuple[str | None, list[tuple[int, str]]]]:
    """Blocks of code: the fence's word, None for an indented one, and the numbered lines that are not
    empty."""
    fence: str | None = None
    block: list[tuple[int, str]] = []
    for number, line in enumerate([*lines, ""], 1):
        if marked := _FENCE.match(line):
            if fence is not None and fence in _SHELLS and block:
                yield fence, block
            fence, block = (marked[1] if fence is None else None), []
        elif fence is not None:
            block += [(number, line)] if line.strip() else []
        elif line.startswith("    "):
            block.append((number, line[4:]))
        elif block:
            yield None, block
            block = []


def _joined(block: list[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    waiting, begun = "", 0
    for number, line in block:
        waiting, begun = (f"{waiting} {line.strip()}", begun) if waiting else (line, number)
        if waiting.endswith("\\"):
            waiting = waiting[:-1].rstrip()
        elif not waiting.endswith("|"):
            yield begun, waiting
            waiting = ""
    if waiting:
        yield begun, waiting


def _is_command(line: str) -> bool:
    word = _WORD.match(line)
    return word is not None and word[2] in PROGRAMS


def _bare(line: str) -> str:
    """Without its comment, which begins with a # that two spaces, or the line's start, stand before."""
    return re.split(r"\s{2,}#|\s#\s", line, maxsplit=1)[0].rstrip()


def simple(text: str) -> list[list[str]]:
    """The simple commands of a line, as words, without what is read or written by < and >."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars="();<>|&")
    lexer.whitespace_split = True
    lexer.commenters = ""
    found: list[list[str]] = [[]]
    skipping = False
    for word in lexer:
        if word in _ENDS:
            found.append([])
        elif word in _OUTPUT:
            skipping = True
        elif skipping:
            skipping = False
        elif word not in ("(", ")", "<("):
            found[-1].append(word)
    return [words for words in (_without_assignments(words) for words in found) if words]


def _without_assignments(words: list[str]) -> list[str]:
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        words = words[1:]
    return words


def parse(arguments: list[str]) -> None:
    """Have the real parser read the arguments of `hoss`, and run nothing. Raises what it raises."""
    _parse(get_command(app), arguments)


def parse_python(arguments: list[str]) -> None:
    """Check `python -m MODULE ...`: the module exists, and an instrument's own parser reads its arguments. Of
    `python examples/FILE`, a scheduler of one's own: the file exists, and the SDK's parser reads the rest. Of
    `python tests/FILE FILE...`: what is in the tree is there."""
    option, module, *rest = arguments
    if option.startswith("tests/"):
        if missing := [a for a in arguments if a.startswith("tests/") and not (ROOT / a).exists()]:
            raise LookupError(f"No such file: {missing}")
        return
    if option.startswith("examples/"):
        if not (ROOT / option).exists():
            raise LookupError(f"No such example: {arguments}")
        sdk_parser().parse_args(arguments[1:])
        return
    if option != "-m" or importlib.util.find_spec(module) is None:
        raise LookupError(f"No such module: {arguments}")
    if module.startswith("tools."):
        _parse(get_command(importlib.import_module(f"{module}.__main__").app), rest)


def parse_go(arguments: list[str]) -> None:
    """Check the flags of a scheduler in Go: its package defines each."""
    source = (ROOT / "examples/go/scheduler/running.go").read_text()
    for flag in (word.removeprefix("-") for word in arguments if word.startswith("-")):
        if f'"{flag}"' not in source:
            raise LookupError(f"No such flag: -{flag}")


def _parse(command: Any, arguments: list[str]) -> None:
    context = command.make_context("hoss", [], resilient_parsing=True)
    words = [word for word in map(_meant, arguments) if word]
    while hasattr(command, "commands"):
        words = [word for word in words if word not in ("-q", "--quiet")]
        name, command, rest = command.resolve_command(context, words)
        if command is None:
            raise LookupError(f"No such command: {words}")
        words = rest
        context = (
            command.make_context(name, words, resilient_parsing=True)
            if hasattr(command, "commands")
            else context
        )
    command.make_context("hoss", words)


def _meant(word: str) -> str:
    """One of what a document offers: `a|b|c` is a choice, `[x]` may be left out, N is a number."""
    if "=" not in word and re.fullmatch(r"[\w.-]+(\|[\w.-]+)+", word):
        return word.split("|", maxsplit=1)[0]
    return {"N": "1"}.get(word, word.strip("[]") if re.fullmatch(r"\[.*|[^\[]*\]", word) else word)
