"""A worker's cache and placer, without the rest of it, and random pools of nodes for it."""

import numpy as np
from hypothesis import strategies as st

from hoss.model.node import PREFER_NO_SCHEDULE, NodeSpec, Taint
from hoss.model.pod import group_of
from hossctl.bench.gpu import empty_pool
from scheduler_worker.core.cache.node_info import NodeInfoCache
from scheduler_worker.core.classes import DemandTable
from scheduler_worker.core.framework.static_fit import StaticFits
from scheduler_worker.core.placement.ranking import PodRanking
from scheduler_worker.core.placement.run_placer import RunPlacer
from scheduler_worker.core.placement.ties import TieOrder
from scheduler_worker.core.plugins import default_profile

GIB = 2**30


class Worker:
    """A cache, and a placer with an order of its own that is the same each time."""

    def __init__(self, nodes):
        self.cache = NodeInfoCache()
        self.cache.apply_feed(empty_pool(nodes))
        self.profile = default_profile()
        self.ties = TieOrder(np.random.default_rng(5))
        self.ties.cover(self.cache.size)
        self.statics = StaticFits(self.profile, self.cache)
        self.table = DemandTable(self.cache.schema, self.cache.catalogue.images, self.cache.pod_index)
        self.placer = RunPlacer(self.cache, self.ties)
        self.rankings = {}

    def put(self, spec, nodes):
        if len(nodes):
            self.cache.assume(np.array(nodes), self.table.compile(spec).demand, group_of(spec))

    def ranking(self, spec):
        demand = self.table.compile(spec).demand
        made = PodRanking(demand, self.statics.of(demand), self.profile, self.cache, self.ties)
        return self.rankings.setdefault(demand, made)

    def place(self, spec, count):
        return self.placer.place(self.ranking(spec), count, group_of(spec))


@st.composite
def pools(draw):
    kinds = draw(
        st.lists(
            st.tuples(
                st.sampled_from([1000, 4000, 16_000]),
                st.sampled_from([3, 8, 110]),
                st.sampled_from(["", "a", "b", "c"]),
                st.sampled_from([True, True, True, False]),
                st.sampled_from([(), (), (Taint("a", "", PREFER_NO_SCHEDULE),)]),
            ),
            min_size=1,
            max_size=5,
        )
    )
    return [
        NodeSpec(
            f"n{i}-{j}",
            labels=(
                *((("kubernetes.io/hostname", f"n{i}-{j}"),) if named else ()),
                *((("topology.kubernetes.io/zone", zone),) if zone else ()),
            ),
            taints=taints,
            allocatable=(("cpu", cpu), ("memory", 8 * GIB), ("pods", pods)),
        )
        for i, (cpu, pods, zone, named, taints) in enumerate(kinds)
        for j in range(draw(st.integers(1, 8)))
    ]
