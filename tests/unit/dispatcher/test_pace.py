"""How long news of a cluster is collected before it is taken in."""

from dispatcher.core.pace import BURST_SECONDS, MOMENT_SECONDS, Pace


def test_a_pod_that_comes_alone_waits_a_moment_only():
    pace = Pace()
    pace.took(1)
    assert pace.seconds == MOMENT_SECONDS


def test_what_comes_in_a_burst_is_collected_for_longer_until_it_is_over():
    pace = Pace()
    pace.took(8)
    assert pace.seconds == BURST_SECONDS
    pace.took(80)  # as many a second as before
    assert pace.seconds == BURST_SECONDS
    pace.took(8)
    assert pace.seconds == MOMENT_SECONDS
