"""Every pod list of the openb trace that lies beside the repository is read whole and begins to be played;
likewise a small one of this repository, with all of its columns and with the five of the lists without
times."""

import csv

import numpy as np
import pytest
from machine import OPENB, TESTS, no_openb

from hoss.sim import Cluster
from hossctl.choices import TraceFormat
from hossctl.traces.reading import Source, read

LISTS = sorted(OPENB.glob("openb_pod_list_*.csv"))
SMALL = (TESTS / "traces" / "nodes.csv", TESTS / "traces" / "pods.csv")
PLAYED = 300


def play(nodes, recording):
    """The result for the first nodes with cards and without, and the list's first pods."""
    cluster = Cluster(nodes, workers=2, profile="fgd", decision_seconds=0.01)
    pods = recording.pods[:PLAYED]
    numbers = cluster.play(type(recording)(tuple(nodes), pods))
    assert len(numbers) == len(pods)
    return cluster.run()


def every(count, of):
    """`count` of them, evenly."""
    return [of[int(row)] for row in np.linspace(0, len(of) - 1, count)]


@pytest.mark.skipif(bool(no_openb()), reason=no_openb())
@pytest.mark.parametrize("path", LISTS, ids=[path.stem for path in LISTS])
def test_a_list_of_the_trace_is_read_whole_and_played(path):
    with path.open(newline="") as file:
        rows = sum(1 for _ in csv.reader(file)) - 1
    recording = read(Source(TraceFormat.OPENB, str(OPENB / "openb_node_list_all_node.csv"), path))
    assert len(recording.pods) == rows > PLAYED
    result = play(every(40, recording.nodes), recording)
    assert result.overcommitted == 0
    assert result.bound + result.waiting == PLAYED
    assert result.bound > 0


@pytest.mark.parametrize("columns", [11, 5])
def test_a_small_list_is_played_with_all_columns_and_without_times(tmp_path, columns):
    nodes, pods = SMALL
    path = tmp_path / "pods.csv"
    lines = list(csv.reader(pods.read_text().splitlines()))
    path.write_text("".join(",".join(line[:columns]) + "\n" for line in lines))
    recording = read(Source(TraceFormat.OPENB, str(nodes), path))
    assert len(recording.pods) == len(lines) - 1
    result = play(every(20, recording.nodes), recording)
    assert (result.overcommitted, result.bound + result.waiting) == (0, PLAYED)
    left = np.count_nonzero(~np.isnan(result.bound_at) & (result.nodes < 0))
    assert bool(result.submitted_at.any()) == bool(left) == (columns == 11)
