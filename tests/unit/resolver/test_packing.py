"""The arrays of a script's argument, by an independent reader of MessagePack."""

import msgpack
import numpy as np
import pytest

from resolver.ledger.packing import string_array, uint16_array

ROWS = np.arange(48, dtype=np.uint8).reshape(3, 16)


@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_strings_are_those_of_the_rows_whatever_their_number(count: int) -> None:
    found = msgpack.unpackb(string_array(ROWS[:count]), raw=True)
    assert found == [row.tobytes() for row in ROWS[:count]]


@pytest.mark.parametrize("count", [1, 2])
def test_strings_of_columns_that_are_not_contiguous(count: int) -> None:
    nodes = np.array([[7, 8], [9, 10]], np.uint32)[:count, 0]
    assert msgpack.unpackb(string_array(nodes), raw=True) == [node.tobytes() for node in nodes]


@pytest.mark.parametrize("values", [[], [0], [65_535], [1, 2, 300]])
def test_small_integers_are_read_as_they_were(values: list[int]) -> None:
    assert msgpack.unpackb(uint16_array(np.array(values, np.uint16))) == values
