"""Tallies that are kept up to date say what counting all pods anew would say."""

import gc

import numpy as np
from hypothesis import given, settings
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

from hoss.model.cluster import Cluster
from hoss.model.pod_rules import PodAffinityTerm
from scheduler_worker.core.ground import Ground
from scheduler_worker.core.questions import Bearing, Matching, Peers, PodGroup, PortHolders, bearings_of

groups = st.builds(PodGroup, namespaces, pod_labels, st.booleans(), affinities, several(host_ports, 1))
questions = (
    st.builds(Matching, st.lists(terms, min_size=1, max_size=2).map(tuple))
    | st.builds(Peers, namespaces, selectors)
    | st.builds(PortHolders, st.lists(host_ports, min_size=1, max_size=2).map(tuple))
    | affinities.flatmap(lambda a: st.sampled_from(bearings_of(a) or (Bearing(PodAffinityTerm(ZONE, None), None),)))
)


@settings(max_examples=150, deadline=None)
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
        assert sorted(map(repr, about)) == sorted(repr(b) for b in borne if falls_under(group, b))


def falls_under(group, bearing):
    selector = bearing.term.selector
    if selector is None or not selector.matches(dict(group.labels)):
        return False
    return bearing.term.sees(group.namespace, NAMESPACES.get(group.namespace, {}))
