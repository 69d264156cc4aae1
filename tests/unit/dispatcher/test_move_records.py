"""The journal's records of a run of moves, also those that earlier releases wrote."""

import msgpack
import pytest

from dispatcher.core.moves import BegunRun, RunProgress
from dispatcher.journal.records import compress, pack_progress, pack_run, unpack_progress, unpack_run
from hoss.errors import InvalidInput

MOVES = ((b"u" * 16, "default/a", "n0", "n1"), (b"v" * 16, "default/b", "n0", "n2"))
RUN = BegunRun(MOVES, (7, 2**60), 3, 2.5, "spread", "c", undo=True)
PROGRESS = RunProgress("Paused", "paused by hand", False, "MR", {1: "no room"})


def written(*fields):
    return compress(msgpack.packb(fields))


def test_a_run_comes_back_as_it_was_written():
    assert unpack_run(pack_run(RUN)) == RUN
    assert unpack_progress(2, pack_progress(PROGRESS)) == PROGRESS


def test_a_run_of_six_fields_is_no_undo():
    """Releases before the field `undo` wrote six."""
    assert unpack_run(written(MOVES, (7,), 3, 2.5, "spread", "c")) == BegunRun(
        MOVES, (7,), 3, 2.5, "spread", "c"
    )


def test_progress_of_five_fields_has_no_evictions():
    """Releases before moves in Kubernetes mode wrote five."""
    assert unpack_progress(2, written("Paused", "paused by hand", False, "MR", {1: "no room"})) == PROGRESS


@pytest.mark.parametrize(
    "fields",
    [
        (MOVES, (7,), 3, 2.5, "spread"),
        (MOVES, (7,), 3, 2.5, "spread", "c", True, 1),
        (MOVES, (7,), 3, 2.5, "spread", "c", 1),
        (MOVES, (7,), 3, 0.0, "spread", "c"),
        (((b"u" * 16, "default/a", "n0"),), (7,), 3, 2.5, "spread", "c"),
        (((b"u" * 15, "default/a", "n0", "n1"),), (7,), 3, 2.5, "spread", "c"),
    ],
)
def test_a_run_that_no_release_wrote_is_refused(fields):
    with pytest.raises((ValueError, TypeError, InvalidInput)):
        unpack_run(written(*fields))
