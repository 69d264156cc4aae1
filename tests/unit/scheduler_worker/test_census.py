"""Large groups, and what happens to answers nobody holds."""

import gc

import numpy as np

from hoss.model.pod_groups import PodGroup
from hoss.model.selectors import LabelSelector, Requirement
from scheduler_worker.core.catalogue import NodeCatalogue
from scheduler_worker.core.census import PodCensus
from scheduler_worker.core.questions import Peers

WEB = PodGroup(labels=(("app", "web"),))
ASKED = Peers("default", LabelSelector((Requirement("app", "In", ("web",)),)))


def census_of(capacity):
    catalogue = NodeCatalogue()
    catalogue.grow(capacity)
    census = PodCensus(catalogue)
    census.grow(capacity)
    return census


def test_a_group_on_very_many_nodes_counts_like_a_small_one():
    census = census_of(1000)
    census.add(WEB, np.arange(1000))
    census.add(WEB, np.array((7, 7)))
    census.remove(WEB, np.array((3,)))
    census.grow(1200)
    tally = census.tally(ASKED)
    assert tally.counts.sum() == 1001
    assert (tally.counts[3], tally.counts[7], tally.counts[1100]) == (0, 3, 0)


def test_a_group_is_forgotten_with_its_last_pod_and_known_again_with_the_next():
    census = census_of(10)
    tally = census.tally(ASKED)
    census.add(WEB, np.array((1,)))
    census.remove(WEB, np.array((1,)))
    assert not census._rows
    census.add(WEB, np.array((2,)))
    assert tally.counts.tolist() == [0, 0, 1, 0, 0, 0, 0, 0, 0, 0]


def test_an_answer_that_nobody_holds_leaves_nothing_behind():
    census = census_of(10)
    census.add(WEB, np.array((1,)))
    tally = census.tally(ASKED)
    del tally
    gc.collect()
    census.add(WEB, np.array((1,)))
    assert not census._questions_by_token
    assert not census._rows[WEB].tallies
