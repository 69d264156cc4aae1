"""docs/reference says what the code says, all of it, and its words are there to be read."""

import re
from pathlib import Path

import pytest

from dispatcher.config import DispatcherConfig
from dispatcher.policy.documents import PolicyDocument
from hossctl.command_table import COMMANDS, EXAMPLES
from hossctl.load.nodes import SimulatedNodes
from hossctl.local.pools import PlatformDocument
from resolver.config import ResolverConfig
from scheduler_worker.config import WorkerConfig
from tools.reference import __main__ as reference
from tools.reference import chart, cli, configuration, protocol
from tools.reference.names import ANNOTATIONS, VARIABLES

PACKAGES = ("hoss", "hossctl", "dispatcher", "scheduler_worker", "resolver")
# Names for the inside of a document or message: nobody sets them.
INTERNAL = {"hoss.dev/v1alpha1", "hoss.dev/bench-compare/v1"}


def test_the_pages_are_what_the_code_says() -> None:
    assert reference.stale() == [], "run `make docs` and commit what it makes"


def test_a_page_that_was_edited_or_is_missing_is_found(tmp_path: Path) -> None:
    for name, make in reference.PAGES.items():
        (tmp_path / name).write_text(make())
    assert reference.stale(tmp_path) == []
    (tmp_path / "cli.md").write_text(cli.page().replace("--nodes", "--node"))
    (tmp_path / "grpc.md").unlink()
    assert reference.stale(tmp_path) == ["cli.md", "grpc.md"]


def test_the_schema_of_the_charts_values_is_what_the_code_says() -> None:
    assert reference.SCHEMA.read_text() == chart.schema(reference.SCHEMA), "run `make docs`"


def test_a_changed_field_of_a_document_is_found_in_the_schema_of_the_charts_values(tmp_path: Path) -> None:
    edited = tmp_path / "values.schema.json"
    edited.write_text(reference.SCHEMA.read_text().replace('"lease_seconds"', '"lease_minutes"'))
    assert chart.schema(edited) == reference.SCHEMA.read_text()


def test_every_command_is_there_with_its_examples() -> None:
    found = dict(cli.commands())
    assert {path.split()[1] for path in found} == set(COMMANDS)
    assert {f"hoss {path}" for path in EXAMPLES} <= set(found)
    page = cli.page()
    for path, lines in EXAMPLES.items():
        section = page.split(f"\n## hoss {path}\n")[1].split("\n## ")[0]
        assert set(lines) <= set(section.splitlines())


@pytest.mark.parametrize(
    "model",
    [DispatcherConfig, WorkerConfig, ResolverConfig, PolicyDocument, SimulatedNodes, PlatformDocument],
)
def test_every_field_of_every_document_has_words(model) -> None:
    for path, section in configuration._models(model).items():
        silent = [name for name, meaning in configuration.meanings_of(section).items() if not meaning]
        assert not silent, f"{section.__name__} ({path}): write a comment above {', '.join(silent)}"


def test_every_service_and_method_of_the_protocol_has_words() -> None:
    files = protocol.descriptors(reference.ROOT / "proto")
    assert sum(len(file.service) for file in files) == 3
    assert protocol.undescribed(files) == []


def _sources() -> str:
    paths = (path for package in PACKAGES for path in sorted((reference.ROOT / package).rglob("*.py")))
    return "\n".join(
        path.read_text("utf-8") for path in paths if "reference" not in path.parts and "v1" not in path.parts
    )


def test_every_name_of_hoss_in_the_environment_or_in_metadata_is_listed() -> None:
    source = _sources()
    variables = set(re.findall(r"\"(HOSS_[A-Z_]+)\"", source))
    assert variables - {variable.name for variable in VARIABLES} == set()
    names = set(re.findall(r"\"(hoss\.dev/[a-z0-9./-]+)\"", source))
    assert names - INTERNAL - {annotation.name for annotation in ANNOTATIONS} == set()
