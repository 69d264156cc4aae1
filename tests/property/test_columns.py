import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hoss.errors import ColumnError
from hoss.wire import columns, uids

WIDTHS = [columns.U8, columns.U16, columns.U32, columns.U64, columns.I32, columns.I64]


@given(st.sampled_from(WIDTHS), st.data())
def test_a_column_comes_back_as_it_went(dtype, data):
    bounds = np.iinfo(dtype)
    values = data.draw(st.lists(st.integers(int(bounds.min), int(bounds.max)), max_size=20))
    packed = columns.encode(np.array(values, dtype), dtype)
    assert columns.decode(packed, dtype, name="x", rows=len(values)).tolist() == values


@given(st.sampled_from(WIDTHS), st.binary(max_size=40))
def test_any_bytes_are_a_column_or_refused(dtype, data):
    if len(data) % dtype.itemsize:
        with pytest.raises(ColumnError):
            columns.decode(data, dtype, name="x")
    else:
        assert len(columns.decode(data, dtype, name="x")) == len(data) // dtype.itemsize


@given(st.binary(min_size=16, max_size=16))
def test_a_uid_comes_back_from_its_spelling(uid):
    assert uids.uid_from_text(uids.uid_text(uid)) == uid


@given(st.binary(min_size=12, max_size=12), st.integers(0, 2**32 - 30), st.integers(0, 20))
def test_numbered_uids_are_distinct_and_continue_each_other(prefix, first, count):
    whole = columns.numbered_uids(prefix, first, count + 5)
    assert np.array_equal(whole[count:], columns.numbered_uids(prefix, first + count, 5))
    assert len(np.unique(whole, axis=0)) == count + 5


@given(st.binary(max_size=80), st.integers(1, 3))
def test_uids_as_bytes_are_those_of_the_rows(data, every):
    found = columns.decode_uids(data[: len(data) // 16 * 16])[::every]
    assert columns.uid_list(found) == [row.tobytes() for row in found]
