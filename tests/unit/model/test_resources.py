"""Amounts for people."""

import pytest

from hoss.model.resources import written_amount


@pytest.mark.parametrize(
    ("resource", "amount", "text"),
    [
        ("cpu", 1500, "1.5"),
        ("cpu", 2000, "2"),
        ("memory", 1536 * 2**20, "1.5Gi"),
        ("pods", 7, "7"),
        ("memory", 0, "0"),
    ],
)
def test_amounts_are_written_as_people_write_them(resource, amount, text):
    assert written_amount(resource, amount) == text
