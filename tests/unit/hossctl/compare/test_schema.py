"""The published JSON schema is that of the model."""

import json
from pathlib import Path

import pytest
from unit.hossctl.compare.made_up import comparison

from hoss.errors import InvalidInput
from hossctl.compare.document import SCHEMA, json_schema, read

PUBLISHED = Path(__file__).parents[4] / "docs" / "benchmarks" / "compare.schema.json"


def test_the_published_schema_is_current():
    hint = "write it anew: python -m hossctl.compare.document > docs/benchmarks/compare.schema.json"
    assert PUBLISHED.read_text(encoding="utf-8") == json_schema(), hint


def test_the_schema_names_its_version_and_every_field_as_written():
    schema = json.loads(json_schema())
    assert schema["properties"]["schema"]["const"] == SCHEMA
    written = json.loads(comparison(repetitions=1).as_json())
    assert set(written) == set(schema["properties"])
    assert set(written["runs"][0]) == set(schema["$defs"]["ComparisonRun"]["properties"])


def test_a_document_is_read_as_it_was_written(tmp_path):
    path = tmp_path / "o.json"
    made = comparison(repetitions=1)
    path.write_text(made.as_json())
    assert read(path) == made


def test_a_document_from_before_the_modes_on_kubernetes_is_read_as_ever():
    assert read(PUBLISHED.parent / "full.json").runs


def test_a_wrong_field_is_named_with_its_path(tmp_path):
    path = tmp_path / "o.json"
    document = json.loads(comparison(repetitions=1).as_json())
    document["runs"][2]["cell"]["workers"] = 0
    path.write_text(json.dumps(document))
    with pytest.raises(InvalidInput, match=r"o\.json: runs\[2\]\.cell\.workers: "):
        read(path)
