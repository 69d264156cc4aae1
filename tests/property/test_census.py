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
from hoss.model.pod_groups import PodGroup
from hoss.model.pod_rules import PodAffinityTerm
from scheduler_worker.core.ground import Ground
from scheduler_worker.core.questions import Bearing, Matching, Peers, PortHolders, bearings_of

groups = st.builds(PodGroup, namespaces, pod_labels, st.booleans(), affinities, several(host_ports, 1))
questions = (
    st.builds(Matching, st.lists(terms, min_size=1, max_size=2).map(tuple))
    | st.builds(Peers, namespaces, selectors)
    | st.builds(PortHolders, st.lists(host_ports, min_size=1, max_size=2).map(tuple))
    | affinities.flatmap(lambda a: st.sampled_from(bearings_of(a) or (Bearing(PodAffinityTerm(ZONE, None), None),)))
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
    ground = Ground(Cluster(nodes=found, namespaces=NAMESPACES))
    census, catalogue, size = ground.cache.census, ground.cache.catalogue, len(found)
    known = data.draw(st.lists(groups, min_size=1, max_size=5))
    pods, held = [], []
    for _ in range(data.draw(st.integers(1, 25))):
        step = data.draw(st.sampled_from(["add", "add", "remove", "ask", "drop", "relabel"]))
        if step == "add":
            group = data.draw(st.sampled_from(known))
            at = data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=4))
            census.add(group, np.array(at))
            pods += [(group, node) for node in at]
        elif step == "remove" and pods:
            group, node = pods.pop(data.draw(st.integers(0, len(pods) - 1)))
            census.remove(group, np.array((node,)))
        elif step == "ask":
            held.append(
                census.tally(data.draw(questions)).by_domain(data.draw(st.sampled_from([HOSTNAME, ZONE, RACK])))
            )
        elif step == "drop" and held:
            held.pop()
            gc.collect()
        elif step == "relabel":
            node = data.draw(st.integers(0, size - 1))
            catalogue.put(node, data.draw(nodes(most=1))[0])
        for sums in held:
            sums.refresh()
            tally = sums._tally
            counted = [pod for pod in pods if tally.question.includes(pod[0], census.namespaces)]
            assert tally.counts[:size].tolist() == [sum(at == i for _, at in counted) for i in range(size)]
            codes = sums.column.codes
            for code in range(-1, len(sums.column.numbers)):
                expected = sum(codes[at] == code for _, at in counted) if code >= 0 else 0
                assert sums.sums[code] == expected
    for group in known:
        about = census.bearings_about(group.namespace, group.labels)
        borne = {bearing for other, _ in pods for bearing in bearings_of(other.affinity)}
        assert sorted(map(repr, about)) == sorted(repr(b) for b in borne if falls_under(group, b, census.namespaces))


labels_of_namespaces = st.dictionaries(namespaces, st.sampled_from([*NAMESPACES.values(), {"team": "c"}]))


@examples(150)
@given(st.lists(groups, min_size=1, max_size=8), st.lists(questions, min_size=1, max_size=6), labels_of_namespaces)
def test_tallies_follow_the_labels_of_namespaces(known, asked, labels):
    census = Ground(Cluster(nodes=[NodeSpec("n")], namespaces=NAMESPACES)).cache.census
    here = np.zeros(1, np.intp)
    for group in known:
        census.add(group, here)
    tallies = [census.tally(question) for question in asked]
    census.set_namespaces(labels)
    for group in known[::2]:
        census.add(group, here)
    pods = [*known, *known[::2]]
    assert [tally.counts[0] for tally in tallies] == [
        sum(tally.question.includes(group, labels) for group in pods) for tally in tallies
    ]
    for group in pods:
        census.remove(group, here)
    assert not any(tally.counts[0] for tally in tallies)


def falls_under(group, bearing, labels_of):
    selector = bearing.term.selector
    if selector is None or not selector.matches(dict(group.labels)):
        return False
    return bearing.term.sees(group.namespace, labels_of.get(group.namespace, {}))
