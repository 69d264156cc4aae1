"""A ranking that is repaired where nodes changed equals one that is made anew, whatever changed them.

A node that refused a class and only took pods is not looked at again, so each way in which a node may admit
pods once more has to be told."""

import numpy as np
import pytest

from hoss.model.conflicts import Overlap, Preference
from hoss.model.pod import DeviceRequest, group_of
from hoss.wire.columns import FLAG_UNSCHEDULABLE
from scheduler_worker.core.cache.assumptions import Assumption
from scheduler_worker.core.cache.node_info import NodeInfoCache
from scheduler_worker.core.classes import DemandTable
from scheduler_worker.core.framework.static_fit import StaticFits
from scheduler_worker.core.placement.ranking import Ranking
from scheduler_worker.core.placement.ties import TieOrder
from scheduler_worker.core.plugins import REGISTRY
from scheduler_worker.core.plugins.profiles import PRESETS

NODES, CARDS, CPU, PODS = 12, 2, 4000, 8
PREFERENCES = (Preference(), Preference(Overlap.SOFT_PARTITION, 0, 2))


@pytest.fixture
def ledger(make_ledger):
    return make_ledger(NODES, cards=CARDS, allocatable={"cpu": CPU, "memory": 2**33, "pods": PODS})


class World:
    """A ledger, and a worker's cache that follows it."""

    def __init__(self, ledger, chance):
        self.ledger, self.chance = ledger, chance
        self.cache = NodeInfoCache()
        self.cache.apply_feed(ledger.snapshot())
        self.assumptions = []

    def place(self, demand, spec):
        """A pod of the worker's own, on a node that admits it."""
        left = self.cache.accounts.allocatable - self.cache.requested
        fits = np.flatnonzero((left[:, :NODES] >= demand.request[:, None]).all(axis=0))
        if not len(fits):
            return
        nodes = self.chance.choice(fits, 1)
        masks = self.cache.assume(nodes, demand, group_of(spec))
        assumption = Assumption(
            nodes,
            np.zeros(1, np.intp),
            demand.request[None, :],
            masks,
            np.array([spec.devices.milli], np.uint16),
            expires_at=1e9,
            groups=(group_of(spec),),
        )
        self.cache.track(assumption)
        self.assumptions.append(assumption)

    def refuse(self):
        """The ledger refuses one of the worker's own pods."""
        if self.assumptions:
            assumption = self.assumptions.pop(int(self.chance.integers(len(self.assumptions))))
            self.cache.forget(assumption, np.arange(1))

    def others(self, sign):
        """Pods of others come, or go."""
        amounts = sign * np.array([(700, 0, 0, 1, 0, 0), (0, 0, 0, 3, 0, 0)][int(self.chance.integers(2))])
        after = {
            node: self.ledger.requested[node] + amounts for node in self.chance.choice(NODES, 3).tolist()
        }
        nodes = [node for node, used in after.items() if (used >= 0).all() and used[0] <= CPU]
        for node in nodes if self.chance.integers(2) else ():
            card = self.ledger.cards[node][:CARDS]
            card[int(self.chance.integers(CARDS))] = self.chance.choice((0, 600, 1000))
        self.cache.apply_feed(self.ledger.reserve(nodes, [amounts] * len(nodes)))

    def cordon(self):
        """A node is cordoned, or open again; or it grows or shrinks."""
        node = int(self.chance.integers(NODES))
        self.ledger.seq += 1
        self.ledger.changed_at[node] = self.ledger.seq
        if self.chance.integers(2):
            self.ledger.flags[node] ^= FLAG_UNSCHEDULABLE
        else:
            self.ledger.allocatable[node]["cpu"] = int(self.chance.integers(CPU // 2, 2 * CPU))
        self.cache.apply_feed(self.ledger.delta([node]))


@pytest.mark.parametrize("preference", PREFERENCES, ids=["alone", "share"])
@pytest.mark.parametrize("preset", ["spread", "best-fit", "fgd"])
@pytest.mark.parametrize("seed", range(4))
def test_a_repaired_ranking_equals_a_new_one(ledger, make_pod, preset, preference, seed):
    chance = np.random.default_rng(seed)
    world, profile = World(ledger, chance), PRESETS[preset].profile(REGISTRY)
    cache, ties = world.cache, TieOrder(np.random.default_rng(1))
    ties.set_preference(preference)
    statics, table = (
        StaticFits(profile, cache),
        DemandTable(cache.schema, cache.catalogue.images, cache.pod_index),
    )
    specs = [make_pod(cpu=300 * n, devices=DeviceRequest(1, 170 * n)) for n in range(1, 6)]
    demands = [table.compile(spec).demand for spec in specs]

    def ranking_of(demand):
        return Ranking(demand, statics.of(demand), profile, cache, ties)

    kept, refused_once_and_no_more = [ranking_of(demand) for demand in demands], 0
    refused = [np.zeros(NODES, np.bool_) for _ in specs]
    for step in range(400):
        number = int(chance.integers(len(specs)))
        match int(chance.integers(8)):
            case 0 | 1 | 2:
                world.place(demands[number], specs[number])
            case 3:
                world.refuse()
            case 4:
                world.others(1)
            case 5:
                world.others(-1)
            case 6:
                world.cordon()
            case _:
                for observer in profile.observers:
                    observer.observe(demands[number], 1 + step)
        number = int(chance.integers(len(specs)))
        ranking, new = kept[number], ranking_of(demands[number])
        new.refresh()
        share = ranking.refresh_share() if step % 3 else None
        if share is None:
            ranking.refresh()
            share = np.arange(NODES)
        assert ranking.keys[share].tolist() == new.keys[share].tolist(), step
        refused_once_and_no_more += int((refused[number] & (new.keys >= 0)).sum())
        refused[number] = new.keys < 0
    assert refused_once_and_no_more
