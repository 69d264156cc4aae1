"""Volumes, with workers that decide at the same moment and hear of each other late, in any order: on one
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

from hoss.model.volumes import (
    READ_WRITE_ONCE_POD,
    ClaimMount,
    CsiNode,
    CsiVolume,
    InlineDisk,
    PersistentVolume,
    PersistentVolumeClaim,
    PodVolumes,
    StorageClass,
)
from hoss.v1 import resolver_pb2
from scheduler_worker.core.messages import Outcome

NODES = 4


def storage(*claims, limit, modes=()):
    """Claims bound to volumes of their own, of a driver that attaches `limit` volumes to each node."""
    found = [CsiNode(f"n{i}", (("disk", limit),)) for i in range(NODES)]
    for name in claims:
        found.append(
            PersistentVolumeClaim(
                "default", name, access_modes=modes, volume_name=f"pv-{name}", bind_completed=True
            )
        )
        found.append(PersistentVolume(f"pv-{name}", csi=CsiVolume("disk", name)))
    return found


def race_for(objects, shards, *, announces=False):
    race = Race(2, racks(NODES), tries=20, shards=shards, announces=announces)
    for worker in race.workers:
        worker.scheduler.cache.storage.replace(objects)
    return race


def mounting(*claims):
    return pod(volumes=PodVolumes(tuple(map(ClaimMount, claims))))


def nodes_of(race):
    return Counter(node for _, node in race.placed())


@examples(60)
@given(moves, several, announced, st.integers(1, 2))
def test_two_workers_never_give_the_last_attachment_of_a_node_to_two_pods(history, shards, announces, limit):
    claims = [f"c{i}" for i in range(6 * limit)]
    race = race_for(storage(*claims, limit=limit), shards, announces=announces)
    for number, claim in enumerate(claims):
        race.submit(race.workers[number % 2], mounting(claim), 1)
    play(race, history)
    assert nodes_of(race) == dict.fromkeys(range(NODES), limit)
    assert_everyone_counts_what_the_ledger_holds(race)


@examples(60)
@given(moves, several, announced)
def test_two_workers_never_give_a_claim_for_one_pod_to_two_pods(history, shards, announces):
    objects = storage("mine", limit=9, modes=(READ_WRITE_ONCE_POD,))
    race = race_for(objects, shards, announces=announces)
    for worker in race.workers:
        race.submit(worker, mounting("mine"), 2)
    play(race, history)
    assert len(race.placed()) == 1
    answers = sorted(race.workers[0].outcomes + race.workers[1].outcomes)
    assert answers == [Outcome.BOUND] + [Outcome.UNSCHEDULABLE] * 3
    assert_everyone_counts_what_the_ledger_holds(race)


@examples(40)
@given(moves, several)
def test_two_workers_never_mount_one_disk_twice_on_a_node(history, shards):
    race = race_for([], shards)
    writing = pod(volumes=PodVolumes(disks=(InlineDisk("iscsi", ("iqn",)),)))
    for worker in race.workers:
        race.submit(worker, writing, 3)
    play(race, history)
    assert nodes_of(race) == dict.fromkeys(range(NODES), 1)
    assert_everyone_counts_what_the_ledger_holds(race)


@examples(60)
@given(moves, several, announced, st.integers(1, 4))
def test_two_workers_never_give_one_volume_to_two_claims(history, shards, announces, volumes):
    claims = [f"c{i}" for i in range(2 * volumes)]
    objects = [StorageClass("slow", "kubernetes.io/no-provisioner", waits_for_consumer=True)]
    objects += [PersistentVolumeClaim("default", name, f"uid-{name}", "slow") for name in claims]
    objects += [PersistentVolume(f"pv{i}", storage_class="slow", phase="Available") for i in range(volumes)]
    race = race_for(objects, shards, announces=announces)
    for number, claim in enumerate(claims):
        race.submit(race.workers[number % 2], mounting(claim), 1)
    play(race, history)
    assert len(race.placed()) == volumes
    for worker in race.workers:  # everybody knows which claims got them, by the feed alone
        taken = [volume.claim.name for volume in worker.scheduler.cache.storage.volumes.values()]
        assert len(set(taken)) == volumes
    assert_everyone_counts_what_the_ledger_holds(race)


@examples(40)
@given(moves, several, announced)
def test_two_workers_never_provision_one_claim_on_two_nodes(history, shards, announces):
    objects = [StorageClass("fast", "disks", waits_for_consumer=True)]
    objects += [PersistentVolumeClaim("default", "shared", "uid", "fast")]
    race = race_for(objects, shards, announces=announces)
    for worker in race.workers:
        race.submit(worker, mounting("shared"), 2)
    play(race, history)
    assert len(nodes_of(race)) == 1
    [node] = nodes_of(race)
    for worker in race.workers:
        cache = worker.scheduler.cache
        assert cache.storage.claims["default", "shared"].selected_node == cache.catalogue.name(node)


@pytest.mark.parametrize("shards", [1, 2])
def test_the_loser_of_a_race_for_a_claim_is_refused_at_once_and_says_why_when_it_has_heard(shards):
    race = race_for(storage("mine", limit=9, modes=(READ_WRITE_ONCE_POD,)), shards, announces=True)
    first, second = race.workers
    for worker in (first, second):
        race.submit(worker, mounting("mine"), 1)
    assert_the_second_loses_to_the_first(race)


def test_a_pod_without_volumes_takes_no_names_and_shares_its_slot():
    race = race_for(storage("a", limit=9), 1)
    [worker, _] = race.workers
    race.submit(worker, pod(labels=(("app", "web"),)), 5)
    race.place(worker)
    [batch] = worker.sent
    assert len(batch.groups) == 1
    assert not resolver_pb2.PodGroup.FromString(batch.groups[0]).reserved_names
