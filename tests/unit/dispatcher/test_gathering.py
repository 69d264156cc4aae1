"""How long news of a cluster is gathered."""

from dispatcher.core.gathering import BURST_SECONDS, MOMENT_SECONDS, Gathering


def test_a_pod_that_comes_alone_waits_a_moment_only():
    gathering = Gathering()
    gathering.took(1)
    assert gathering.seconds == MOMENT_SECONDS


def test_what_comes_in_a_burst_is_gathered_for_longer_until_it_is_over():
    gathering = Gathering()
    gathering.took(8)
    assert gathering.seconds == BURST_SECONDS
    gathering.took(80)  # as many a second as before
    assert gathering.seconds == BURST_SECONDS
    gathering.took(8)
    assert gathering.seconds == MOMENT_SECONDS
