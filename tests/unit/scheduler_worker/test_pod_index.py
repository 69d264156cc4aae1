"""Large groups, and what happens to answers nobody holds."""

import gc

import numpy as np

from hoss.model.pod import PodGroup
from hoss.model.selectors import LabelSelector, Requirement
from scheduler_worker.core.nodes import NodeCatalogue
from scheduler_worker.core.pod_index.index import PodIndex
from scheduler_worker.core.pod_index.selector_query import Peers

WEB = PodGroup(labels=(("app", "web"),))
ASKED = Peers("default", LabelSelector((Requirement("app", "In", ("web",)),)))


def index_of(capacity):
    catalogue = NodeCatalogue()
    catalogue.grow(capacity)
    pod_index = PodIndex(catalogue)
    pod_index.grow(capacity)
    return pod_index


def test_a_group_on_very_many_nodes_counts_like_a_small_one():
    pod_index = index_of(1000)
    pod_index.add(WEB, np.arange(1000))
    pod_index.add(WEB, np.array((7, 7)))
    pod_index.remove(WEB, np.array((3,)))
    pod_index.grow(1200)
    counter = pod_index.counter(ASKED)
    assert counter.counts.sum() == 1001
    assert (counter.counts[3], counter.counts[7], counter.counts[1100]) == (0, 3, 0)


def test_a_group_is_forgotten_with_its_last_pod_and_known_again_with_the_next():
    pod_index = index_of(10)
    counter = pod_index.counter(ASKED)
    pod_index.add(WEB, np.array((1,)))
    pod_index.remove(WEB, np.array((1,)))
    assert not pod_index._rows
    pod_index.add(WEB, np.array((2,)))
    assert counter.counts.tolist() == [0, 0, 1, 0, 0, 0, 0, 0, 0, 0]


def test_an_answer_that_nobody_holds_leaves_nothing_behind():
    pod_index = index_of(10)
    pod_index.add(WEB, np.array((1,)))
    counter = pod_index.counter(ASKED)
    del counter
    gc.collect()
    pod_index.add(WEB, np.array((1,)))
    assert not pod_index._queries_by_token
    assert not pod_index._rows[WEB].counters
