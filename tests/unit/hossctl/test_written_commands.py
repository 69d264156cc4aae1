"""No document tells anybody to run what does not exist: arguments are read by the real parser, targets and
files are looked for."""

import re
from pathlib import Path

import pytest
from written_commands import ROOT, Command, commands_of, documents, parse, parse_go, parse_python, simple

# Of files that other programs are given: those that the repository has.
_OURS = re.compile(r"^(deploy|examples|docs|tests)/")
_FILE_FLAGS = {"-f", "-k", "--values", "--file"}
_IN_THE_TREE = re.compile(
    r"^(dispatcher|docs|hoss|hossctl|proto|resolver|scheduler_worker|tests|tools)/[\w/.-]+$"
)
_ALL = [command for path in documents() for command in commands_of(path)]


def test_there_are_commands_in_the_documents_that_show_some() -> None:
    assert {
        "README.md",
        "docs/quickstart.md",
        "docs/operations.md",
        "docs/operations/policy.md",
        "docs/kubernetes.md",
    } <= {c.document for c in _ALL}
    assert len(_ALL) > 100


@pytest.mark.parametrize("command", _ALL, ids=str)
def test_a_written_command_exists_with_these_arguments(command: Command) -> None:
    if re.search(r"\$\(", command.text):  # runs in tests/e2e/test_docs.py, as the shell reads it
        command = Command(command.document, command.line, re.sub(r"\$\(.*?\)$", "", command.text))
    for program, *arguments in simple(command.text):
        if program == "hoss":
            parse(arguments)
        elif program == "python":
            parse_python(arguments)
        elif program == "examples/go/bin/emptiestfirst":
            parse_go(arguments)
        elif program == "make":
            makefile = (ROOT / "Makefile").read_text()
            targets = re.findall(r"^([a-z0-9-]+):", makefile, flags=re.MULTILINE)
            variables = {argument.partition("=")[0] for argument in arguments if "=" in argument}
            assert {argument for argument in arguments if "=" not in argument} <= set(targets)
            assert all(f"$({name})" in makefile or f"$(or $({name})" in makefile for name in variables)
        else:
            named = [
                word
                for flag, word in zip(["", *arguments], arguments, strict=False)
                if flag in _FILE_FLAGS and _OURS.match(word)
            ]
            assert not [word for word in named if not (ROOT / word).exists()], (
                f"{command}: these are not there"
            )


def test_what_is_wrong_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("written_commands.ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text(
        "```sh\nhoss get pods --nope\nhoss gte pods\n```\n\n    hoss status; hoss audit  # all of it\n\n    "
        "not a command\n"
    )
    wrong = list(commands_of(page))
    assert [c.text for c in wrong] == ["hoss get pods --nope", "hoss gte pods", "hoss status; hoss audit"]
    for command in wrong[:2]:
        with pytest.raises(Exception, match=r"[Nn]o such"):
            parse(simple(command.text)[0][1:])
    page.write_text("    python -m tools.bench nope\n    python -m tools.bunch\n")
    for command in commands_of(page):
        with pytest.raises(Exception, match=r"[Nn]o such"):
            parse_python(simple(command.text)[0][1:])
    page.write_text("```sh\nfrobnicate\n```\n")
    with pytest.raises(AssertionError, match="no command that tests know"):
        list(commands_of(page))


def test_no_document_points_at_what_is_not_there() -> None:
    for path in {*documents(), *(ROOT / "docs" / "adr").glob("*.md"), ROOT / "CHANGELOG.md"}:
        text = re.sub(r"```.*?```", "", path.read_text("utf-8"), flags=re.DOTALL)
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            if re.match(r"https?:|#", target):
                continue
            name, _, anchor = target.partition("#")
            there = path.parent / name
            assert there.exists(), f"{path.name}: {target} is not there"
            if anchor and there.suffix == ".md":
                assert anchor in _anchors(there), f"{path.name}: {target} has no such heading"


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "docs/architecture.md"])
def test_the_files_and_folders_that_a_newcomer_is_sent_to_are_there(name: str) -> None:
    spans = re.findall(r"`([^`\s]+)`", (ROOT / name).read_text("utf-8"))
    named = {span for span in spans if _IN_THE_TREE.match(span) and "*" not in span and "NAME" not in span}
    assert named
    assert not [path for path in sorted(named) if not (ROOT / path).exists()]


def _anchors(page: Path) -> set[str]:
    """Of its headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text("utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
