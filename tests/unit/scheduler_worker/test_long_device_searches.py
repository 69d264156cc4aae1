"""Claims that take long to judge: a worker looks for their devices in parts, and every node has its turn."""

import numpy as np
from conformance.live_path import live_worker

from hoss.model.cluster import Cluster
from hoss.model.devices import (
    ClaimConstraint,
    ClaimRequest,
    ClaimUse,
    Device,
    DeviceClass,
    ExactRequest,
    NodeReach,
    PodClaims,
    ResourceClaim,
    ResourceSlice,
)
from hoss.model.node import NodeSpec
from hoss.model.pod import PodSpec
from hoss.wire.columns import numbered_uids
from scheduler_worker.core.devices.allocator import TIMED_OUT
from scheduler_worker.core.messages import Outcome

NODES = 8
PODS_ROOM = (("cpu", 4000), ("memory", 2**33), ("pods", 110))
GPU = DeviceClass("gpu")


def claim(name, devices):
    """For so many devices, no two with one value."""
    requests = tuple(ClaimRequest(f"r{i}", (ExactRequest(f"r{i}", "gpu"),)) for i in range(devices))
    return ResourceClaim("default", name, requests, (ClaimConstraint("d/id", distinct=True),))


def offer(node, devices, values):
    """A node's devices, which have so many different values."""
    offered = tuple(Device(f"gpu-{i:02}", attributes=(("d/id", i % values),)) for i in range(devices))
    return ResourceSlice(node, "d", node, 1, 1, NodeReach(node_name=node), offered)


def worker(*slices, tries, together):
    nodes = [NodeSpec(f"n{i}", allocatable=PODS_ROOM) for i in range(NODES)]
    scheduler, _ = live_worker(Cluster(nodes=nodes))
    scheduler.cache.devices.most_tries, scheduler.cache.devices.most_tries_together = tries, together
    scheduler.set_devices((GPU, claim("hard", 6), *slices), 0.0)
    return scheduler


def submit(scheduler, *claims, batch=1):
    """A pod for each of these claims."""
    for number, name in enumerate(claims, 1):
        pod = PodClaims(f"pod-{name}", f"uid-{name}", (ClaimUse(name),))
        spec = PodSpec(requests=(("cpu", 100),), nonzero_cpu_milli=100, claims=pod)
        scheduler.define_class(number, spec)
    classes = np.arange(1, len(claims) + 1, dtype=np.uint32)
    ones = np.ones(len(claims), np.uint32)
    uids = numbered_uids(b"pending pod ", 100 * batch, len(claims))
    scheduler.accept(batch, uids, classes, ones, np.zeros(len(claims), np.uint16))


HOPELESS = [offer(f"n{i}", 16, 5) for i in range(NODES)]


def test_a_step_looks_at_a_bounded_number_of_devices():
    scheduler = worker(*HOPELESS, tries=3000, together=10**6)
    submit(scheduler, "hard")
    steps = 0
    while not (outcomes := scheduler.take_outcomes()):
        assert scheduler.step() == 1
        steps += 1
    assert steps == NODES, "a step judges one such node, and the last one answers the pod too"
    assert outcomes[0].codes.tolist() == [Outcome.UNSCHEDULABLE]
    [reason] = outcomes[0].reason_texts
    assert reason == f"0/{NODES} nodes are available: {NODES} {TIMED_OUT}."
    assert scheduler.step() == 0


def test_a_node_has_its_turn_however_long_the_nodes_before_it_took():
    scheduler = worker(*HOPELESS[:-1], offer("n7", 6, 6), tries=3000, together=3000)
    submit(scheduler, "hard")
    while scheduler.step():
        pass
    [columns] = scheduler.take_proposals(now=0.0)
    assert scheduler.cache.catalogue.name(int(columns.candidates[0, 0])) == "n7"


def test_what_changes_between_two_parts_is_judged_as_it_is_then():
    scheduler = worker(*HOPELESS, tries=3000, together=10**6)
    submit(scheduler, "hard")
    for _ in range(3):
        assert scheduler.step() == 1
    scheduler.set_devices((GPU, claim("hard", 6), *HOPELESS[1:], offer("n0", 6, 6)), 1.0)
    while scheduler.step():
        pass
    [columns] = scheduler.take_proposals(now=0.0)
    assert scheduler.cache.catalogue.name(int(columns.candidates[0, 0])) == "n0"
