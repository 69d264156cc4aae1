import numpy as np
import pytest

from hoss.errors import ColumnError
from hoss.wire import columns, uids


def test_a_decoded_column_is_a_read_only_view():
    column = columns.decode(columns.encode([1, 2, 3], columns.U32), columns.U32, name="nodes")
    assert column.tolist() == [1, 2, 3]
    with pytest.raises(ValueError, match="read-only"):
        column[0] = 7


@pytest.mark.parametrize(
    ("data", "rows", "problem"),
    [
        (b"12345", None, "nodes: 5 bytes are not a multiple of 4"),
        (b"12345678", 3, "nodes: 2 rows where 3 are expected"),
    ],
)
def test_a_column_of_the_wrong_length_is_refused_by_name(data, rows, problem):
    with pytest.raises(ColumnError, match=problem):
        columns.decode(data, columns.U32, name="nodes", rows=rows)


@pytest.mark.parametrize(("data", "rows"), [(b"x" * 17, None), (b"x" * 32, 1)])
def test_uids_of_the_wrong_length_are_refused(data, rows):
    with pytest.raises(ColumnError):
        columns.decode_uids(data, rows=rows)


def test_numbered_uids_are_the_prefix_and_the_ordinal_big_endian():
    uids = columns.numbered_uids(b"abcdefghijkl", 255, 2)
    assert uids.shape == (2, 16)
    assert uids.tobytes() == b"abcdefghijkl\x00\x00\x00\xffabcdefghijkl\x00\x00\x01\x00"
    assert np.array_equal(columns.decode_uids(uids.tobytes(), rows=2), uids)


def test_a_uid_is_spelled_as_kubernetes_spells_it():
    text = "0b5c9f6e-8f1d-4a57-9d6f-2f1e6c1d7a01"
    assert uids.uid_text(uids.uid_from_text(text)) == text
    for wrong in ("u1", "", text[:-1], text.replace("a", "g")):
        with pytest.raises(ColumnError, match="is no UID"):
            uids.uid_from_text(wrong)
