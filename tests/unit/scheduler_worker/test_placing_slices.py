"""How many pods a proposal has: as many as fit some CPU time, and a longest time by the clock."""

import asyncio
from itertools import count

import numpy as np
import pytest
from waiting import until

from hoss.client.proposal_stream import ProposalStream
from hoss.client.worker_link import DispatcherLink
from hoss.model.pod import DeviceRequest
from hoss.v1 import objects_pb2, workerlink_pb2
from hoss.wire.uids import UID_BYTES
from scheduler_worker.core.cache.node_info import NodeInfoCache
from scheduler_worker.core.cycle.scheduler import Scheduler
from scheduler_worker.core.plugins import REGISTRY
from scheduler_worker.core.plugins.profiles import PRESETS
from scheduler_worker.service import WorkerService
from scheduler_worker.synchronisation import Push


class SentProposals(ProposalStream):
    """Keeps how many pods each proposal has."""

    def __init__(self, on_verdict):
        super().__init__(None, on_verdict)
        self.pods = []

    def send(self, proposal):
        self.pods.append(len(proposal.uids) // UID_BYTES)
        super().send(proposal)


def clock(seconds_a_look):
    """A clock that goes on with each look at it."""
    looks = count()
    return lambda: next(looks) * seconds_a_look


@pytest.fixture
def packing(harness_of, make_ledger):
    """A scheduler that places each pod in a step of its own."""
    ledger = make_ledger(20, cards=4)
    harness = harness_of(ledger)
    profile = PRESETS["best-fit"].profile(REGISTRY)
    harness.scheduler = Scheduler(NodeInfoCache(), profile, np.random.default_rng(1))
    harness.scheduler.cache.apply_feed(ledger.snapshot())
    return harness


@pytest.mark.parametrize(
    ("seconds", "cpu_seconds", "pods"),
    [
        pytest.param(0.001, 0.001, [10], id="quick pods go together"),
        pytest.param(0.009, 0.001, [10], id="and do so where others use the cores"),
        pytest.param(0.03, 0.03, [2, 2, 2, 2, 2], id="costly pods go two by two"),
        pytest.param(0.08, 0.0, [3, 3, 3, 1], id="a plugin that waits keeps nobody waiting for long"),
        pytest.param(0.0002, 0.0002, [200, 10], id="many pods do not wait until costly ones would go"),
    ],
)
async def test_a_proposal_has_the_pods_of_a_slice(packing, make_pod, seconds, cpu_seconds, pods):
    service = WorkerService(
        "w",
        packing.scheduler,
        clock=clock(seconds),
        unix_clock=lambda: 0.0,
        thread_clock=clock(cpu_seconds),
    )
    proposals = SentProposals(service.take_verdict)
    service.connect(DispatcherLink([], workerlink_pb2.Register(), service), proposals, Push(None))
    packing.submit((make_pod(devices=DeviceRequest(1, 100)), sum(pods)))
    placing = asyncio.ensure_future(service.schedule())
    service.received(workerlink_pb2.DispatcherMessage(storage=objects_pb2.StorageChanges()))  # wakes it
    await until(lambda: not packing.scheduler.backlog, "all pods to be placed")
    placing.cancel()
    assert proposals.pods == pods
