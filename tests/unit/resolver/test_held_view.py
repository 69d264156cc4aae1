"""The webhook's view of what pods in the ledger hold, entry by entry."""

import numpy as np

from hoss.model.devices import Allocation, DeviceId, DeviceResult, HeldClaim
from hoss.model.pod import PodGroup
from hoss.model.volumes import ClaimMount, PodVolumes
from hoss.wire.convert_rules import definition_of
from resolver.core.kubernetes.held_view import HeldView
from resolver.core.values import AccountRows, FeedEntry, GroupRun, Snapshot

DATA = ("default", "data")
GPU = DeviceId("d", "n1", "gpu-0")
MOUNTING = PodGroup(volumes=PodVolumes((ClaimMount("data"),)))
HOLDING = PodGroup(held_claims=(HeldClaim("default", "gpus", Allocation((DeviceResult("one", GPU),))),))


def run(group: PodGroup, *nodes: int, gone: bool = False) -> GroupRun:
    return GroupRun(definition_of(group), np.array(nodes, "<u4").tobytes(), gone)


def entry(seq: int, *runs: GroupRun, prepared: bool = False, ended: tuple[int, ...] = ()) -> FeedEntry:
    return FeedEntry(seq, AccountRows(), runs=runs, prepared=prepared, ended=ended)


def snapshot(seq: int, *runs: GroupRun, prepared: tuple[int, ...] = ()) -> Snapshot:
    return Snapshot(seq, AccountRows(), {}, runs, prepared)


def test_what_pods_hold_ends_with_the_last_of_them_and_leaves_nothing() -> None:
    view = HeldView(1)
    view.replace(0, snapshot(3, run(MOUNTING, 0, 1), run(PodGroup(), 2)))
    view.apply(0, [entry(4, run(HOLDING, 1, 1))])
    assert view.users(DATA) == 2
    assert [use.claim for use in view.uses(GPU)] == [("default", "gpus")]
    assert [group.volumes for group in view.groups_on(0)] == [MOUNTING.volumes]
    view.apply(0, [entry(5, run(MOUNTING, 0, gone=True), run(HOLDING, 1, gone=True))])
    assert view.users(DATA) == 1
    assert list(view.uses(GPU))
    view.apply(0, [entry(6, run(MOUNTING, 1, gone=True), run(HOLDING, 1, gone=True))])
    assert (view.users(DATA), list(view.uses(GPU)), len(view)) == (0, [], 0)


def test_pods_of_a_prepared_commit_are_unknown_until_the_feed_shows_them() -> None:
    view = HeldView(2)
    view.replace(0, snapshot(7, prepared=(5,)))
    view.replace(1, snapshot(2))
    assert view.seen == (4, 2)
    view.apply(1, [entry(3, prepared=True), entry(4)])
    assert view.seen == (4, 2)
    view.apply(0, [entry(8, ended=(5,))])
    view.apply(1, [entry(5, run(MOUNTING, 1), ended=(3,))])
    assert view.seen == (8, 5)


def test_a_snapshot_replaces_the_pods_of_its_shard_alone() -> None:
    view = HeldView(2)
    view.replace(0, snapshot(1, run(MOUNTING, 0, 2)))
    view.replace(1, snapshot(1, run(MOUNTING, 1)))
    view.replace(0, snapshot(9, run(MOUNTING, 4)))
    assert view.users(DATA) == 2
    assert [list(view.groups_on(node)) != [] for node in range(5)] == [False, True, False, False, True]
    assert view.seen == (9, 1)


def test_choices_are_those_of_pods_that_brought_the_claim_its_volume() -> None:
    chosen = PodGroup(volumes=PodVolumes((ClaimMount("data", volume="pv"),)))
    provisioned = PodGroup(volumes=PodVolumes((ClaimMount("new", provisioned=True),)))
    view = HeldView(1)
    view.replace(0, snapshot(1, run(chosen, 3), run(provisioned, 4), run(MOUNTING, 5)))
    assert list(view.choices(DATA)) == [("pv", -1)]
    assert list(view.choices(("default", "new"))) == [("", 4)]
    assert view.users(DATA) == 2


def test_what_is_assumed_counts_until_it_is_forgotten_and_leaves_nothing() -> None:
    view = HeldView(1)
    view.replace(0, snapshot(1, run(MOUNTING, 0)))
    view.assume(definition_of(MOUNTING), 0)
    view.assume(definition_of(HOLDING), 1)
    assert (view.users(DATA), len(list(view.uses(GPU))), view.has_assumed) == (2, 1, True)
    view.forget_assumed()
    assert (view.users(DATA), list(view.uses(GPU)), view.has_assumed, len(view)) == (1, [], False, 1)


def test_labels_that_were_noted_are_forgotten_when_their_node_changes() -> None:
    view = HeldView(2)
    for shard in (0, 1):
        view.replace(shard, snapshot(1))
    view.labels.update({node: {"a": str(node)} for node in range(6)})
    view.apply(0, [FeedEntry(2, AccountRows(), specs=((2, b""),), removed=(4,))])
    assert sorted(view.labels) == [0, 1, 3, 5]
    view.replace(1, snapshot(9))
    assert sorted(view.labels) == [0]
