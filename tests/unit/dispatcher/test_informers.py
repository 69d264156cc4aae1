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
from dispatcher.kubernetes.informers import Informers
from dispatcher.ledger.nodes import ClusterNodes
from dispatcher.runtime import Runtime
from hoss.kube.reflector import KindAvailability, ObjectGone, ObjectSeen
from hoss.tasks import background
from hoss.v1 import common_pb2 as pb
from hoss.wire.columns import NONE_U32, decode_uids
from hoss.wire.uids import uid_from_text


def uid_of(number):
    return f"00000000-0000-0000-0000-{number:012d}"


def pod(number, node="", scheduler="hoss", name=""):
    container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}}
    spec = {"schedulerName": scheduler, "containers": [container], **({"nodeName": node} if node else {})}
    metadata = {"uid": uid_of(number), "namespace": "default", "name": name or f"p{number}"}
    return ObjectSeen({"metadata": metadata, "spec": spec, "status": {"phase": "Pending"}})


class LostLedger:
    """Places of successors are asked for, and nobody answers until the ledger is back."""

    def __init__(self):
        self.asked, self.back = asyncio.Event(), asyncio.Event()

    async def place(self, _pods):
        self.asked.set()
        await self.back.wait()
        return {}


@pytest.fixture
async def informers():
    runtime = Runtime(Machine(Settings(), Policy(), None, random.Random(1)), None, MemoryJournal())
    reserved = []

    async def reserve(instruction):
        reserved.extend(instruction.rows.tolist())

    runtime.set_executor(m.Reserve, reserve)
    made = Informers(
        runtime,
        None,
        None,
        ClusterSection(),
        1,
        nodes=ClusterNodes(),
        max_pod_terms=100,
        rng=random.Random(2),
    )
    made.pods.nodes = {"n1": 0, "n2": 1}
    made.reserved = reserved
    for reflector in made.reflectors:  # the watches have shown all that there is
        reflector.availability = KindAvailability.NOT_SERVED
        reflector.complete.set()
    yield made
    await runtime.end()


def nodes_of(informers, *numbers):
    """The node of each pod; None: it has no row, or is on no node."""
    registry = informers._registry
    uids = b"".join(uid_from_text(uid_of(number)) for number in numbers)
    rows = registry.directory.rows_of_uids(decode_uids(uids)).tolist()
    return [
        int(registry.pods.node[row]) if row != NONE_U32 and registry.pods.phase[row] == Phase.BOUND else None
        for row in rows
    ]


async def test_after_catching_up_every_pod_on_a_node_is_known_also_while_others_wait_for_the_ledger(
    informers,
):
    ledger = LostLedger()
    informers.place_successors = ledger.place
    async with background(informers.run()):
        informers._on_pods([pod(1), pod(2, "n1", "other")])
        await ledger.asked.wait()
        assert nodes_of(informers, 1, 2) == [None, None]
        informers._on_pods([pod(1, "n2"), pod(3, "n1", "other"), pod(4, "n1", "other"), pod(5, "nowhere")])
        informers._on_pods([ObjectGone(uid_of(4), "default", "p4")])
        await informers.catch_up()
        assert nodes_of(informers, 1, 2, 3, 4, 5) == [1, 0, 0, None, None]
        ledger.back.set()
        await until(lambda: not informers._pod_changes and not informers._under_way)
        await until(lambda: len(informers.reserved) == 3)
    assert nodes_of(informers, 1, 2, 3, 4, 5) == [1, 0, 0, None, None]
    pods = informers._registry.pods
    assert int((pods.phase[: pods.size] == Phase.BOUND).sum()) == 3  # nobody has two rows


async def test_pods_of_a_full_cluster_are_accepted_a_few_at_a_time_and_equal_ones_are_read_once(
    informers, monkeypatch
):
    """A step of the event loop is short whatever is listed."""
    read, size_in_turns = [], []
    pods = informers._registry.pods

    def reading(template):
        read.append(template)
        return read_template(template)

    async def no_nodes():
        return []

    async def count():
        while True:
            size_in_turns.append(pods.size)
            await asyncio.sleep(0)

    monkeypatch.setattr("dispatcher.kubernetes.informers.read_template", reading)
    informers._resolver = SimpleNamespace(list_nodes=no_nodes)
    informers._on_pods([pod(number) for number in range(1000)])
    async with background(count()):
        accepted = await informers.begin()
    assert sum(part.submission.live for part in accepted) == 1000
    assert max(np.diff([*size_in_turns, pods.size])) <= 250
    assert len(read) == 1


async def test_after_catching_up_a_pod_is_known_that_has_the_name_of_one_that_was_deleted_meanwhile(
    informers,
):
    """`run` waits for the ledger, which is rebuilt after the catching up: nobody else deletes the first."""
    informers._on_pods([pod(1, "n1", "other")])
    await informers.catch_up()
    informers._on_pods([ObjectGone(uid_of(1), "default", "p1"), pod(2, "n2", "other", name="p1")])
    await informers.catch_up()
    assert nodes_of(informers, 1, 2) == [None, 1]
    await informers._take(informers.pods.plan(informers._take_pod_changes()))  # as `run` does later
    assert nodes_of(informers, 1, 2) == [None, 1]


class NodesOfAnEarlierTerm:
    """A ledger with these nodes. Notes what is written."""

    def __init__(self, *names):
        self.nodes = [SimpleNamespace(spec=pb.NodeSpec(name=n), index=i) for i, n in enumerate(names)]
        self.written, self.removed = [], []

    async def list_nodes(self):
        return self.nodes

    async def upsert_nodes(self, nodes, _epoch):
        self.written += nodes
        return SimpleNamespace(indexes=[0] * len(nodes), overcommitted=[])

    async def remove_nodes(self, names, _epoch):
        self.removed += names


async def test_a_node_that_went_between_two_terms_stays_closed_in_the_ledger_while_pods_are_on_it(
    informers, monkeypatch
):
    """If it comes back, its pods are counted: nobody sells their room meanwhile."""
    informers._resolver = ledger = NodesOfAnEarlierTerm("gone", "empty")
    monkeypatch.setattr(informers, "_ledger_epoch", str)
    informers._on_pods([pod(1, "gone", "other")])
    [accepted] = await informers.begin()
    assert accepted.nodes.tolist() == [0]
    assert ledger.removed == ["empty"]
    assert [(node.name, node.unschedulable, node.allocatable) for node in ledger.written] == [
        ("gone", True, ())
    ]
    assert informers.pods.on_unknown_nodes == {}


async def test_after_catching_up_pods_are_known_that_came_before_their_node_was(informers):
    async with background(informers.run()):
        informers._on_pods([pod(1, "late", "other"), pod(2, "late", "other"), pod(3, "later", "other")])
        await until(lambda: informers.pods.on_unknown_nodes == {"late": 2, "later": 1})
    informers.pods.nodes |= {"late": 2}  # and `run` waits for the ledger
    informers._on_pods([ObjectGone(uid_of(2), "default", "p2")])
    await informers.catch_up()
    assert nodes_of(informers, 1, 2, 3) == [2, None, None]
    async with background(informers.run()):
        await until(lambda: informers.pods.on_unknown_nodes == {"later": 1} and not informers._pod_changes)
        await until(lambda: len(informers.reserved) == 1)
    assert nodes_of(informers, 1, 2, 3) == [2, None, None]


async def test_catching_up_lists_the_backlog_once_and_accepts_no_pod_that_is_deleted_meanwhile(
    informers, monkeypatch
):
    listed, accepted, resolved, begun = [], [], informers.pods.resolved, asyncio.Event()
    accept = informers._accept

    def accepting(pods):
        begun.set()
        return accept(pods)

    def counted():
        listed.append(None)
        return resolved()

    async def delete_the_last():
        await begun.wait()
        accepted.append(informers._registry.pods.size)
        informers._on_pods([ObjectGone(uid_of(999), "default", "p999")])
        await informers._take(informers.pods.plan(informers._take_pod_changes()))  # as `run` does

    monkeypatch.setattr(informers, "_accept", accepting)
    monkeypatch.setattr(informers.pods, "resolved", counted)
    informers._on_pods([pod(number, "n1", "other") for number in range(1000)])
    async with background(delete_the_last()):
        await informers.catch_up()
    assert accepted == [250]
    assert len(listed) == 2  # and once more to find that nothing is left
    pods = informers._registry.pods
    assert int((pods.phase[: pods.size] == Phase.BOUND).sum()) == 999
    assert nodes_of(informers, 0, 998, 999) == [0, 0, None]
    assert not informers._changed_meanwhile
