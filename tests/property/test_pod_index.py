"""Tallies that are kept up to date say what counting all pods anew would say."""

import gc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from property.builders_pods import (
    HOSTNAME,
    NAMESPACES,
    RACK,
    ZONE,
    affinities,
    host_ports,
    namespaces,
    nodes,
    pod_labels,
    selectors,
    several,
    terms,
)
from property.profiles import examples

from hoss.model.cluster import Cluster
from hoss.model.node import NodeSpec
from hoss.model.pod import PodAffinityTerm, PodGroup
from scheduler_worker.core.offline.cluster_snapshot import ClusterSnapshot
from scheduler_worker.core.pod_index.selector_query import (
    CarriedTerm,
    Matching,
    Peers,
    PortHolders,
    carried_terms,
)

groups = st.builds(PodGroup, namespaces, pod_labels, st.booleans(), affinities, several(host_ports, 1))
queries = (
    st.builds(Matching, st.lists(terms, min_size=1, max_size=2).map(tuple))
    | st.builds(Peers, namespaces, selectors)
    | st.builds(PortHolders, st.lists(host_ports, min_size=1, max_size=2).map(tuple))
    | affinities.flatmap(
        lambda a: st.sampled_from(carried_terms(a) or (CarriedTerm(PodAffinityTerm(ZONE, None), None),))
    )
)


@pytest.fixture(autouse=True, scope="module")
def collections_look_at_this_module_alone():
    """What earlier tests have left makes a collection take a second, and here are thousands."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@examples(150)
@given(nodes(), st.data())
def test_a_tally_is_what_a_recount_gives_whatever_comes_and_goes(found, data):
    ground = ClusterSnapshot(Cluster(nodes=found, namespaces=NAMESPACES))
    pod_index, catalogue, size = ground.cache.pod_index, ground.cache.catalogue, len(found)
    known = data.draw(st.lists(groups, min_size=1, max_size=5))
    pods, held = [], []
    for _ in range(data.draw(st.integers(1, 25))):
        step = data.draw(st.sampled_from(["add", "add", "remove", "ask", "drop", "relabel"]))
        if step == "add":
            group = data.draw(st.sampled_from(known))
            at = data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=4))
            pod_index.add(group, np.array(at))
            pods += [(group, node) for node in at]
        elif step == "remove" and pods:
            group, node = pods.pop(data.draw(st.integers(0, len(pods) - 1)))
            pod_index.remove(group, np.array((node,)))
        elif step == "ask":
            held.append(
                pod_index.counter(data.draw(queries)).by_domain(
                    data.draw(st.sampled_from([HOSTNAME, ZONE, RACK]))
                )
            )
        elif step == "drop" and held:
            held.pop()
            gc.collect()
        elif step == "relabel":
            node = data.draw(st.integers(0, size - 1))
            catalogue.put(node, data.draw(nodes(most=1))[0])
        for sums in held:
            sums.refresh()
            counter = sums._counter
            counted = [pod for pod in pods if counter.query.includes(pod[0], pod_index.namespaces)]
            assert counter.counts[:size].tolist() == [sum(at == i for _, at in counted) for i in range(size)]
            codes = sums.column.codes
            for code in range(-1, len(sums.column.numbers)):
                expected = sum(codes[at] == code for _, at in counted) if code >= 0 else 0
                assert sums.sums[code] == expected
    for group in known:
        about = pod_index.terms_about(group.namespace, group.labels)
        borne = {carried for other, _ in pods for carried in carried_terms(other.affinity)}
        assert sorted(map(repr, about)) == sorted(
            repr(b) for b in borne if falls_under(group, b, pod_index.namespaces)
        )


labels_of_namespaces = st.dictionaries(namespaces, st.sampled_from([*NAMESPACES.values(), {"team": "c"}]))


@examples(150)
@given(
    st.lists(groups, min_size=1, max_size=8),
    st.lists(queries, min_size=1, max_size=6),
    labels_of_namespaces,
)
def test_tallies_follow_the_labels_of_namespaces(known, asked, labels):
    pod_index = ClusterSnapshot(Cluster(nodes=[NodeSpec("n")], namespaces=NAMESPACES)).cache.pod_index
    here = np.zeros(1, np.intp)
    for group in known:
        pod_index.add(group, here)
    counters = [pod_index.counter(query) for query in asked]
    pod_index.set_namespaces(labels)
    for group in known[::2]:
        pod_index.add(group, here)
    pods = [*known, *known[::2]]
    assert [counter.counts[0] for counter in counters] == [
        sum(counter.query.includes(group, labels) for group in pods) for counter in counters
    ]
    for group in pods:
        pod_index.remove(group, here)
    assert not any(counter.counts[0] for counter in counters)


def falls_under(group, carried, labels_of):
    selector = carried.term.selector
    if selector is None or not selector.matches(dict(group.labels)):
        return False
    return carried.term.sees(group.namespace, labels_of.get(group.namespace, {}))
