"""Devices, with workers that decide at the same moment and hear of each other late, in any order: on one
shard, and on several, where nobody sees the pods of all shards."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from property.builders_race import Race, assert_the_second_loses_to_the_first
from property.profiles import examples
from property.test_rules_under_concurrency import (
    announced,
    assert_everyone_counts_what_the_ledger_holds,
    moves,
    play,
    pod,
    racks,
    several,
)

from hoss.model.devices import (
    ClaimRequest,
    ClaimUse,
    CounterSet,
    Device,
    DeviceCapacity,
    DeviceClass,
    ExactRequest,
    NodeReach,
    PodClaims,
    ResourceClaim,
    ResourceSlice,
)
from hoss.model.quantity import parse_quantity
from hoss.wire.convert_rules import group_defined
from scheduler_worker.core.messages import Outcome

NODES = 4
GPU = DeviceClass("gpu", selectors=('device.driver == "gpu.example.com"',))
LOCAL = tuple((f"n{i}", NodeReach(node_name=f"n{i}")) for i in range(NODES))
EVERYWHERE = (("net", NodeReach(all_nodes=True)),)


def slices(pools, *devices, counters=()):
    """A pool of these devices for each of the pools."""
    return [
        ResourceSlice(name, "gpu.example.com", name, 1, 1, reach, devices, counters) for name, reach in pools
    ]


def claim(name, *, count=1, capacity=()):
    exactly = ExactRequest("r", "gpu", count=count, capacity=capacity)
    return ResourceClaim("default", name, (ClaimRequest("r", (exactly,)),))


def claiming(*claims):
    return pod(claims=PodClaims("p", "u", tuple(map(ClaimUse, claims))))


def race_for(objects, shards, *, announces=False):
    race = Race(2, racks(NODES), tries=20, shards=shards, announces=announces)
    for worker in race.workers:
        worker.scheduler.set_devices([GPU, *objects], now=0.0)
    return race


def given_out(race):
    """How many pods hold each device, by the groups of the ledger's pods."""
    held = Counter()
    for definition, _ in race.placed():
        for one in group_defined(definition).held_claims:
            held.update(result.id.device for result in one.allocation.results)
    return held


@examples(40)
@given(moves, several, announced, st.integers(1, 2))
def test_two_workers_never_give_one_device_to_two_claims(history, shards, announces, count):
    claims = [f"c{i}" for i in range(6)]
    devices = [Device(f"gpu-{i}") for i in range(4)]
    objects = [*slices(EVERYWHERE, *devices), *(claim(name, count=count) for name in claims)]
    race = race_for(objects, shards, announces=announces)
    for number, name in enumerate(claims):
        race.submit(race.workers[number % 2], claiming(name), 1)
    play(race, history)
    assert given_out(race) == {device.name: 1 for device in devices}
    assert_everyone_counts_what_the_ledger_holds(race)


@examples(40)
@given(moves, several)
def test_devices_of_nodes_are_given_to_pods_of_these_nodes_alone(history, shards):
    claims = [f"c{i}" for i in range(NODES + 2)]
    objects = [*slices(LOCAL, Device("gpu")), *map(claim, claims)]
    race = race_for(objects, shards)
    for number, name in enumerate(claims):
        race.submit(race.workers[number % 2], claiming(name), 1)
    play(race, history)
    where = Counter()
    for definition, node in race.placed():
        [held] = group_defined(definition).held_claims
        [result] = held.allocation.results
        where[result.id.pool, f"n{node}"] += 1
    assert where == {(f"n{node}", f"n{node}"): 1 for node in range(NODES)}


@examples(40)
@given(moves, several)
def test_two_workers_never_overdraw_the_counters_that_devices_share(history, shards):
    claims = [f"c{i}" for i in range(4)]
    slots = (CounterSet("card", (("slots", parse_quantity("2")),)),)
    one = (CounterSet("card", (("slots", parse_quantity("1")),)),)
    counters = ResourceSlice("counters", "gpu.example.com", "net", 1, 2, None, (), slots)
    [offered] = slices(EVERYWHERE, *(Device(f"part-{i}", consumes=one) for i in range(4)))
    offered = ResourceSlice("parts", *offered_fields(offered, count=2))
    race = race_for([counters, offered, *map(claim, claims)], shards)
    for number, name in enumerate(claims):
        race.submit(race.workers[number % 2], claiming(name), 1)
    play(race, history)
    assert sum(given_out(race).values()) == 2
    assert_everyone_counts_what_the_ledger_holds(race)


def offered_fields(offered, *, count):
    """The fields after its name of a slice of a pool with so many slices."""
    return offered.driver, offered.pool, offered.generation, count, offered.reach, offered.devices


@examples(40)
@given(moves, several)
def test_two_workers_never_share_out_more_of_a_device_than_it_has(history, shards):
    claims = [f"c{i}" for i in range(5)]
    amount = (("memory", parse_quantity("20Gi")),)
    whole = Device("gpu", capacity=(("memory", DeviceCapacity(parse_quantity("40Gi"))),), shareable=True)
    objects = [*slices(EVERYWHERE, whole), *(claim(name, capacity=amount) for name in claims)]
    race = race_for(objects, shards)
    for number, name in enumerate(claims):
        race.submit(race.workers[number % 2], claiming(name), 1)
    play(race, history)
    assert given_out(race) == {"gpu": 2}
    assert_everyone_counts_what_the_ledger_holds(race)


@examples(40)
@given(moves, several)
def test_pods_that_share_a_claim_have_the_same_device_whichever_worker_places_them(history, shards):
    race = race_for([*slices(LOCAL, Device("gpu")), claim("shared")], shards)
    for worker in race.workers:
        race.submit(worker, claiming("shared"), 2)
    play(race, history)
    held = {group_defined(definition).held_claims for definition, _ in race.placed()}
    assert len(race.placed()) == 4
    assert len(held) == 1
    assert len({node for _, node in race.placed()}) == 1


@pytest.mark.parametrize("shards", [1, 2])
def test_the_loser_of_a_race_for_the_last_device_is_refused_at_once(shards):
    race = race_for([*slices(EVERYWHERE, Device("gpu")), claim("a"), claim("b")], shards, announces=True)
    first, second = race.workers
    race.submit(first, claiming("a"), 1)
    race.submit(second, claiming("b"), 1)
    assert_the_second_loses_to_the_first(race)


def test_a_device_is_free_again_when_the_pod_that_holds_it_has_ended():
    race = race_for([*slices(EVERYWHERE, Device("gpu")), claim("a"), claim("b")], 1)
    first, second = race.workers
    race.submit(first, claiming("a"), 1)
    race.finish()
    [uid] = race.reservations()
    race.submit(second, claiming("b"), 1)
    race.finish()
    assert second.outcomes == [Outcome.UNSCHEDULABLE]
    race.end(uid)
    race.finish()
    race.submit(second, claiming("b"), 1)
    race.finish()
    assert second.outcomes == [Outcome.UNSCHEDULABLE, Outcome.BOUND]
