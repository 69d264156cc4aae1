"""Placing runs gives what placing pod by pod gives, by the rules of kube-scheduler written down naively."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from property.profiles import examples

from hoss.model.fit import pick_cards
from hoss.model.node import PREFER_NO_SCHEDULE, NodeSpec, Taint
from hoss.model.pod import DeviceRequest, PodSpec
from hoss.model.resources import CPU, MEMORY, PODS
from hoss.model.selectors import NodeSelectorTerm, PreferredTerm, Requirement
from hoss.wire.columns import CARD_SLOTS, NO_CARD, account_dtype
from scheduler_worker.core.cache.node_info import NodeInfoCache
from scheduler_worker.core.classes import DemandTable
from scheduler_worker.core.framework.static_fit import StaticFits
from scheduler_worker.core.messages import AccountBatch, FeedUpdate
from scheduler_worker.core.placement.ranking import Ranking
from scheduler_worker.core.placement.run_placer import RunPlacer
from scheduler_worker.core.placement.ties import SLACK_BITS, TieOrder
from scheduler_worker.core.plugins import default_profile

ROWS = 6


class NaiveNode:
    """One node, in plain Python."""

    def __init__(self, kind):
        cpu, memory, pods, labels, taints, cards = kind
        self.allocatable = {CPU: cpu, MEMORY: memory, PODS: pods}
        self.used = dict.fromkeys(self.allocatable, 0)
        self.weight = dict.fromkeys((CPU, MEMORY), 0)  # of its pods, in scores
        self.labels, self.taints = labels, taints
        self.cards = [0] * cards

    def has_room(self, request, devices):
        if any(0 < asked > self.allocatable[r] - self.used[r] for r, asked in request.items()):
            return False
        return devices is None or pick_cards(self.cards, devices.count, devices.milli) is not None

    def take(self, request, nonzero, devices):
        for r, amount in nonzero.items():
            self.weight[r] += amount
        for r, asked in request.items():
            self.used[r] += asked
        if devices is not None:
            for card in pick_cards(self.cards, devices.count, devices.milli):
                self.cards[card] += devices.milli

    def fit_score(self, nonzero, strategy):
        parts = []
        for r in (CPU, MEMORY):
            total, used = self.allocatable[r], self.weight[r] + nonzero[r]
            if total == 0:
                continue
            part = min(used, total) if strategy == "MostAllocated" else max(total - used, 0)
            parts.append(100 * part // total)
        return sum(parts) // len(parts) if parts else 0

    def balance(self, extra):
        fractions = [
            min(1.0, (self.used[r] + extra[r]) / self.allocatable[r])
            for r in (CPU, MEMORY)
            if self.allocatable[r]
        ]
        spread = abs(fractions[0] - fractions[1]) / 2 if len(fractions) == 2 else 0.0
        return int((1 - spread) * 100)


def one_by_one(nodes, spec, count, tie_of, strategy):
    """Place `count` pods, scoring every node anew for each."""
    request = {CPU: 0, MEMORY: 0, PODS: 1}
    for name, amount in spec.requests:
        request[{"cpu": CPU, "memory": MEMORY}[name]] = amount
    nonzero = {CPU: spec.nonzero_cpu_milli, MEMORY: spec.nonzero_memory_bytes}
    chosen = []
    for _ in range(count):
        feasible = [i for i, node in enumerate(nodes) if node.has_room(request, spec.devices)]
        if not feasible:
            break
        soft = {i: sum(t.effect == PREFER_NO_SCHEDULE for t in nodes[i].taints) for i in feasible}
        liked = {
            i: sum(p.weight for p in spec.preferred_node_affinity if p.term.matches(nodes[i].labels, ""))
            for i in feasible
        }
        most_soft, most_liked = max(soft.values()), max(liked.values())

        def total(i, soft=soft, liked=liked, most_soft=most_soft, most_liked=most_liked):
            score = 3 * (100 - 100 * soft[i] // most_soft if most_soft else 100)
            if spec.preferred_node_affinity:
                score += 2 * (100 * liked[i] // most_liked if most_liked else 0)
            score += nodes[i].fit_score(nonzero, strategy)
            if request[CPU] or request[MEMORY]:
                gained = nodes[i].balance(request) - nodes[i].balance({CPU: 0, MEMORY: 0})
                score += 50 + (50 + gained) // 2
            return score, tie_of[i]

        best = max(feasible, key=total)
        nodes[best].take(request, nonzero, spec.devices)
        chosen.append(best)
    return chosen


def cache_of(nodes):
    cache = NodeInfoCache()
    records = np.zeros(len(nodes), account_dtype(ROWS))
    records["seq"] = records["born"] = 1
    cards = np.full((len(nodes), CARD_SLOTS), NO_CARD, np.uint16)
    specs = []
    for i, node in enumerate(nodes):
        for r, amount in node.allocatable.items():
            records["amounts"][i, r, 0] = amount
        cards[i, : len(node.cards)] = 0
        specs.append((i, NodeSpec(f"n{i}", tuple(node.labels.items()), node.taints)))
    indexes = np.arange(len(nodes), dtype=np.uint32)
    cache.apply_feed(
        FeedUpdate(
            0, 1, AccountBatch(indexes, records, indexes, cards), tuple(specs), snapshot=True, shards=1
        )
    )
    return cache


def _table(cache):
    return DemandTable(cache.schema, cache.catalogue.images, cache.pod_index)


@st.composite
def naive_nodes(draw):
    kinds = draw(
        st.lists(
            st.tuples(
                st.sampled_from([0, 1000, 4000, 7000]),
                st.sampled_from([0, 3 << 20, 2**33, 2**47]),
                st.sampled_from([1, 3, 8, 110]),
                st.sampled_from([{}, {"disk": "ssd"}, {"disk": "hdd"}]),
                st.sampled_from(
                    [
                        (),
                        (Taint("a", "", PREFER_NO_SCHEDULE),),
                        tuple(Taint(k, "", PREFER_NO_SCHEDULE) for k in "ab"),
                    ]
                ),
                st.integers(0, 4),
            ),
            min_size=1,
            max_size=4,
        )
    )
    return [kind for kind in kinds for _ in range(draw(st.integers(1, 12)))]


PREFERENCES = (
    PreferredTerm(5, NodeSelectorTerm((Requirement("disk", "In", ("ssd",)),))),
    PreferredTerm(3, NodeSelectorTerm((Requirement("disk", "Exists"),))),
)


@st.composite
def specs(draw):
    cpu, memory = draw(st.sampled_from([0, 100, 700, 1500])), draw(st.sampled_from([0, 1 << 20, 900 << 20]))
    amounts = tuple((name, amount) for name, amount in (("cpu", cpu), ("memory", memory)) if amount)
    devices = draw(
        st.sampled_from(
            [
                None,
                None,
                DeviceRequest(1, 1000),
                DeviceRequest(2, 1000),
                DeviceRequest(1, 300),
                DeviceRequest(2, 400),
            ]
        )
    )
    return PodSpec(
        requests=amounts,
        nonzero_cpu_milli=cpu or draw(st.sampled_from([0, 100])),
        nonzero_memory_bytes=memory or draw(st.sampled_from([0, 200 << 20])),
        preferred_node_affinity=draw(st.sampled_from([(), PREFERENCES])),
        devices=devices,
    )


@pytest.mark.parametrize("strategy", ["LeastAllocated", "MostAllocated"])
@examples(120)
@given(kinds=naive_nodes(), runs=st.lists(st.tuples(specs(), st.integers(1, 40)), min_size=1, max_size=4))
def test_a_run_goes_where_its_pods_would_go_one_by_one(strategy, kinds, runs):
    naive = [NaiveNode(kind) for kind in kinds]
    cache = cache_of(naive)
    profile = default_profile(strategy)
    ties = TieOrder(np.random.default_rng(7))
    ties.cover(cache.size)
    statics, table, placer = StaticFits(profile, cache), _table(cache), RunPlacer(cache, ties)
    rankings = {}
    for spec, count in runs:
        pod_class = table.compile(spec)
        demand = pod_class.demand
        ranking = rankings.setdefault(demand, Ranking(demand, statics.of(demand), profile, cache, ties))
        placed = placer.place(ranking, count, pod_class.group)
        expected = one_by_one(naive, spec, count, ties.bits >> SLACK_BITS, strategy)
        assert placed.nodes.tolist() == expected
        for node, alternates in zip(placed.nodes.tolist(), placed.alternates.tolist(), strict=True):
            assert node not in alternates
