"""Kubernetes mode: which pods are known after catching up, whatever else waits for the ledger meanwhile."""

import asyncio
import random
from types import SimpleNamespace

import numpy as np
import pytest
from waiting import until

from dispatcher.api.intake import read_template
from dispatcher.config import ClusterSection
from dispatcher.core import messages as m
from dispatcher.core.machine import Machine, Settings
from dispatcher.core.pods.table import Phase
from dispatcher.core.policy.rules import Policy
from dispatcher.journal.memory import MemoryJournal
from dispatcher.kubernetes.cluster_mirror import ClusterMirror
from dispatcher.kubernetes.informers import Informers
from dispatcher.ledger.nodes import ClusterNodes
from dispatcher.runtime import Runtime
from hoss.kube.reflector import KindAvailability, ObjectGone, ObjectSeen
from hoss.tasks import background
from hoss.v1 import common_pb2
from hoss.v1 import resolver_pb2 as pb
from hoss.wire.columns import NONE_U32, decode_uids
from hoss.wire.uids import uid_from_text


def uid_of(number):
    return f"00000000-0000-0000-0000-{number:012d}"


def pod(number, node="", scheduler="hoss", name=""):
    container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}}
    spec = {"schedulerName": scheduler, "containers": [container], **({"nodeName": node} if node else {})}
    metadata = {"uid": uid_of(number), "namespace": "default", "name": name or f"p{number}"}
    return ObjectSeen({"metadata": metadata, "spec": spec, "status": {"phase": "Pending"}})


def node(name):
    status = {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "110"}}
    return ObjectSeen({"metadata": {"name": name}, "spec": {}, "status": status})


class LostLedger:
    """Places of successors are asked for, and nobody answers until the ledger is back."""

    def __init__(self):
        self.asked, self.back = asyncio.Event(), asyncio.Event()

    async def place(self, _pods):
        self.asked.set()
        await self.back.wait()
        return {}


@pytest.fixture
async def mirror():
    runtime = Runtime(Machine(Settings(), Policy(), None, random.Random(1)), None, MemoryJournal())
    reserved = []

    async def reserve(instruction):
        reserved.extend(instruction.rows.tolist())

    runtime.set_executor(m.Reserve, reserve)
    followed = Informers(None, ClusterSection(), max_pod_terms=100, clock=runtime.now, rng=random.Random(2))
    made = ClusterMirror(runtime, None, None, followed, ClusterSection(), term=1, nodes=ClusterNodes())
    made.informers = followed
    made.pods.nodes = {"n1": 0, "n2": 1}
    made.reserved = reserved
    for reflector in followed.reflectors:  # the watches have shown all that there is
        reflector.availability = KindAvailability.NOT_SERVED
        reflector.complete.set()
    followed.known.set()
    yield made
    await runtime.end()


def nodes_of(mirror, *numbers):
    """The node of each pod; None: it has no row, or is on no node."""
    registry = mirror._registry
    uids = b"".join(uid_from_text(uid_of(number)) for number in numbers)
    rows = registry.directory.rows_of_uids(decode_uids(uids)).tolist()
    return [
        int(registry.pods.node[row]) if row != NONE_U32 and registry.pods.phase[row] == Phase.BOUND else None
        for row in rows
    ]


async def test_after_catching_up_every_pod_on_a_node_is_known_also_while_others_wait_for_the_ledger(
    mirror,
):
    ledger = LostLedger()
    mirror.place_successors = ledger.place
    async with background(mirror.run()):
        mirror.informers._on_pods([pod(1), pod(2, "n1", "other")])
        await ledger.asked.wait()
        assert nodes_of(mirror, 1, 2) == [None, None]
        mirror.informers._on_pods(
            [pod(1, "n2"), pod(3, "n1", "other"), pod(4, "n1", "other"), pod(5, "nowhere")]
        )
        mirror.informers._on_pods([ObjectGone(uid_of(4), "default", "p4")])
        await mirror.catch_up()
        assert nodes_of(mirror, 1, 2, 3, 4, 5) == [1, 0, 0, None, None]
        ledger.back.set()
        await until(lambda: not mirror.informers.pods and not mirror._under_way)
        await until(lambda: len(mirror.reserved) == 3)
    assert nodes_of(mirror, 1, 2, 3, 4, 5) == [1, 0, 0, None, None]
    pods = mirror._registry.pods
    assert int((pods.phase[: pods.size] == Phase.BOUND).sum()) == 3  # nobody has two rows


async def test_pods_of_a_full_cluster_are_accepted_a_few_at_a_time_and_equal_ones_are_read_once(
    mirror, monkeypatch
):
    """A step of the event loop is short whatever is listed."""
    read, size_in_turns = [], []
    pods = mirror._registry.pods

    def reading(template):
        read.append(template)
        return read_template(template)

    async def no_nodes():
        return []

    async def count():
        while True:
            size_in_turns.append(pods.size)
            await asyncio.sleep(0)

    monkeypatch.setattr("dispatcher.kubernetes.cluster_mirror.read_template", reading)
    mirror._runtime.ledger = SimpleNamespace(known=lambda: SimpleNamespace(ledger_epoch="e"))
    mirror._resolver = SimpleNamespace(list_nodes=no_nodes)
    mirror.informers._on_pods([pod(number) for number in range(1000)])
    async with background(count()):
        accepted = await mirror.begin()
    assert sum(part.submission.live for part in accepted) == 1000
    assert max(np.diff([*size_in_turns, pods.size])) <= 250
    assert len(read) == 1


async def test_a_new_leader_keeps_the_nodes_without_an_object_whose_pods_it_does_not_know_yet(mirror):
    """What pods hold there may be on its way to the API server."""
    written = []

    async def list_nodes():
        specs = [common_pb2.NodeSpec(name=name, labels=[{"key": "z", "value": "a"}]) for name in ("n1", "n2")]
        return [pb.NodeInfo(index=index, spec=spec) for index, spec in enumerate(specs)]

    async def upsert_nodes(nodes, _epoch):
        written.extend(nodes)
        return pb.UpsertNodesReply(indexes=[int(node.name[1]) - 1 for node in nodes])

    async def remove_nodes(names, _epoch):
        written.append(names)

    mirror._runtime.ledger = SimpleNamespace(known=lambda: SimpleNamespace(ledger_epoch="e"))
    mirror._resolver = SimpleNamespace(
        list_nodes=list_nodes, upsert_nodes=upsert_nodes, remove_nodes=remove_nodes
    )
    mirror.informers._on_nodes([ObjectGone("", "", "n2")])
    mirror.informers._on_pods([pod(1, "n1")])
    accepted = await mirror.begin()
    found = [(node.name, node.unschedulable, dict(node.labels)) for node in written]
    assert sorted(found) == [
        ("n1", True, {"z": "a"}),
        ("n2", True, {"z": "a"}),
    ]
    assert [mirror.node_deleted(name) for name in ("n1", "n2")] == [True, True]
    await mirror.settle(accepted, np.empty(0, np.uint32))
    async with background(mirror.run()):
        await until(lambda: len(written) == 3)
    assert written[2:] == [("n2",)]  # a pod is on n1


async def test_a_node_on_which_pods_are_seen_already_opens_when_the_ledger_has_counted_them(mirror):
    """Workers and the webhook would give away room that is taken."""
    done = []

    async def upsert_nodes(nodes, _epoch):
        done.extend("closed" if node.unschedulable and not node.allocatable else "open" for node in nodes)
        return pb.UpsertNodesReply(indexes=[2] * len(nodes))

    async def counted():
        await until(lambda: mirror.reserved)
        done.append("counted")

    mirror._runtime.ledger = SimpleNamespace(known=lambda: SimpleNamespace(ledger_epoch="e"))
    mirror._resolver = SimpleNamespace(upsert_nodes=upsert_nodes)
    mirror.counted = counted
    async with background(mirror.run()):
        mirror.informers._on_pods([pod(1, "late", "other")])
        await until(lambda: mirror.pods.on_unknown_nodes == {"late": 1})
        mirror.informers._on_nodes([node("late")])
        await until(lambda: "open" in done)
    assert done == ["closed", "counted", "open"]
    assert nodes_of(mirror, 1) == [2]


async def test_after_catching_up_pods_are_known_that_came_before_their_node_was(mirror):
    async with background(mirror.run()):
        mirror.informers._on_pods(
            [pod(1, "late", "other"), pod(2, "late", "other"), pod(3, "later", "other")]
        )
        await until(lambda: mirror.pods.on_unknown_nodes == {"late": 2, "later": 1})
    mirror.pods.nodes |= {"late": 2}  # and `run` waits for the ledger
    mirror.informers._on_pods([ObjectGone(uid_of(2), "default", "p2")])
    await mirror.catch_up()
    assert nodes_of(mirror, 1, 2, 3) == [2, None, None]
    async with background(mirror.run()):
        await until(lambda: mirror.pods.on_unknown_nodes == {"later": 1} and not mirror.informers.pods)
        await until(lambda: len(mirror.reserved) == 1)
    assert nodes_of(mirror, 1, 2, 3) == [2, None, None]


async def test_after_catching_up_a_pod_is_known_that_has_the_name_of_one_whose_end_waits_for_the_ledger(
    mirror,
):
    released = []

    async def release(instruction):
        released.extend(instruction.rows.tolist())

    mirror._runtime.set_executor(m.Release, release)
    async with background(mirror.run()):
        mirror.informers._on_pods([pod(1, "n1"), pod(2, "n1")])
        await until(lambda: nodes_of(mirror, 1, 2) == [0, 0])
    mirror.informers._on_pods([ObjectGone(uid_of(1), "default", "p1"), pod(3, "n2", "other", name="p1")])
    await mirror.catch_up()
    assert nodes_of(mirror, 1, 2, 3) == [None, 0, 1]
    async with background(mirror.run()):
        await until(lambda: not mirror.informers.pods and released)
    assert nodes_of(mirror, 1, 2, 3) == [None, 0, 1]
    assert len(released) == 1


async def test_catching_up_lists_the_backlog_once_and_accepts_no_pod_that_is_deleted_meanwhile(
    mirror, monkeypatch
):
    listed, accepted, resolved, begun = [], [], mirror.pods.resolved, asyncio.Event()
    accept = mirror._accept

    def accepting(pods):
        begun.set()
        return accept(pods)

    def counted():
        listed.append(None)
        return resolved()

    async def delete_the_last():
        await begun.wait()
        accepted.append(mirror._registry.pods.size)
        mirror.informers._on_pods([ObjectGone(uid_of(999), "default", "p999")])
        await mirror._take(mirror.pods.plan(mirror.informers.pods.take().values()))  # as `run` does

    monkeypatch.setattr(mirror, "_accept", accepting)
    monkeypatch.setattr(mirror.pods, "resolved", counted)
    mirror.informers._on_pods([pod(number, "n1", "other") for number in range(1000)])
    async with background(delete_the_last()):
        await mirror.catch_up()
    assert accepted == [250]
    assert len(listed) == 2  # and once more to find that nothing is left
    pods = mirror._registry.pods
    assert int((pods.phase[: pods.size] == Phase.BOUND).sum()) == 999
    assert nodes_of(mirror, 0, 998, 999) == [0, 0, None]
    assert not mirror.informers.pods_noted
