"""Known examples are the same for the same code, whatever else is imported."""

import importlib
import os
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.skipif(os.environ.get("HOSS_TESTS") == "soak", reason="a soak is to try new examples")
def test_an_import_changes_no_example_of_a_property_test(tmp_path, monkeypatch):
    def examples():
        tried = []

        @given(st.lists(st.integers()))
        def property_of(numbers):
            tried.append(numbers)

        property_of()
        return tried

    before = examples()
    module = tmp_path / "full_of_numbers.py"
    module.write_text(f"NUMBERS = {[*range(1000, 1500)]}\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module(module.stem)
    assert examples() == before
    del sys.modules[module.stem]
