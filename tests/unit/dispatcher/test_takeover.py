"""Kubernetes mode: what a dispatcher that takes over tells the ledger about pods that are on nodes."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from waiting import until

from dispatcher.config import ClusterSection
from dispatcher.core import messages as m
from dispatcher.core.machine import Machine, Settings
from dispatcher.core.policy.rules import Policy
from dispatcher.journal.memory import MemoryJournal
from dispatcher.kubernetes.cluster_mirror import ClusterMirror
from dispatcher.kubernetes.existing_pods import WRITER
from dispatcher.kubernetes.informers import Informers
from dispatcher.ledger.contents import digest_of_kind
from dispatcher.ledger.nodes import ClusterNodes
from dispatcher.ports import Knowledge, LedgerMarks, ReservationColumns
from dispatcher.recovery import recover
from dispatcher.runtime import Runtime
from hoss.kube.reflector import KindAvailability, ObjectSeen
from hoss.manifests.node import read_node
from hoss.model.node import NodeSpec
from hoss.model.pod import PodGroup, PodSpec
from hoss.v1 import common_pb2
from hoss.v1 import resolver_pb2 as pb
from hoss.wire.columns import decode_uids
from hoss.wire.convert import node_to_proto, pod_spec_from_proto
from hoss.wire.convert_rules import definition_of
from hoss.wire.uids import uid_from_text

APP = (("app", "web"),)


def decode(spec: bytes) -> PodSpec:
    return pod_spec_from_proto(common_pb2.PodSpec.FromString(spec))


def pod(number: int, scheduler: str = "other") -> ObjectSeen:
    """A pod of 1 cpu and 1 GiB on the node n1."""
    container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}
    spec = {"schedulerName": scheduler, "containers": [container], "nodeName": "n1"}
    metadata = {
        "uid": f"00000000-0000-0000-0000-{number:012d}",
        "namespace": "default",
        "name": f"p{number}",
        "labels": dict(APP),
    }
    return ObjectSeen({"metadata": metadata, "spec": spec, "status": {"phase": "Running"}})


def node(name: str) -> ObjectSeen:
    """A node of 64 cpu."""
    metadata = {"name": name, "labels": {"zone": "a", "kind": "b"}}
    status = {"allocatable": {"cpu": "64", "pods": "110"}, "images": [{"names": ["i"], "sizeBytes": 7}]}
    taint = {"key": "k", "effect": "NoSchedule", "timeAdded": "2026-11-24T12:00:00Z"}
    return ObjectSeen({"metadata": metadata, "spec": {"taints": [taint]}, "status": status})


def in_ledger(name: str) -> pb.NodeInfo:
    """The node as the ledger has it. Its taint was dated by a resolver."""
    spec = node_to_proto(read_node(node(name).object))
    spec.taints[0].time_added_unix_ms = 1
    return pb.NodeInfo(index=int(name[1]) - 1, spec=spec)


def held(*, cpu: int = 1000, labels: Any = APP, cards: int = 0) -> int:
    """The digest of such a reservation."""
    group = PodGroup(namespace="default", labels=labels)
    kind = pb.PodKind(cards=cards, card_milli=1000 if cards else 0, group=definition_of(group))
    kind.requests.extend(
        [
            common_pb2.Amount(resource=name, amount=a)
            for name, a in (("cpu", cpu), ("memory", 2**30), ("pods", 1))
        ]
    )
    return digest_of_kind(kind)


class Ledger:
    """Has the reservations that it is given, on shard 0 and 1."""

    def __init__(self) -> None:
        self.granted: list[str] = []
        self.rows: list[tuple[Any, ...]] = []
        self.listed_after: list[str] = []
        self.nodes = [in_ledger("n1"), in_ledger("n2")]

    def has(
        self,
        number: int,
        digest: int,
        *,
        node: int = 0,
        assumed: bool = False,
        terminating: bool = False,
    ) -> None:
        self.rows.append((number, node, assumed, terminating, digest))

    async def grant_epoch(self, worker: str) -> int:
        self.granted.append(worker)
        return len(self.granted)

    async def dispatcher_marks(self) -> LedgerMarks:
        return LedgerMarks(0, (0, 0))

    async def confirm(self, _commits: m.Commits) -> int:
        return 1

    def known(self) -> Knowledge:
        return Knowledge("", {})

    async def release(self, *_of: Any) -> None:
        """Nobody looks."""

    async def reservations(self, *, digests: bool) -> AsyncIterator[ReservationColumns]:
        assert digests
        self.listed_after = [*self.granted]
        for number, node, assumed, terminating, digest in self.rows:
            uid = decode_uids(uid_from_text(f"00000000-0000-0000-0000-{number:012d}"))
            one = np.ones(1, np.uint64)
            flags = [np.array([flag]) for flag in (assumed, terminating, False)]
            nodes = np.array([node], np.uint32)
            yield ReservationColumns(
                uid, nodes, nodes % 2, one, flags[0], one, flags[1], flags[2], np.array([digest], np.uint64)
            )


@pytest.fixture
async def takeover():
    """A term that has not begun. `begin` returns the names of the pods of which the ledger is told."""
    ledger = Ledger()
    runtime = Runtime(Machine(Settings(), Policy(), decode, random.Random(1)), ledger, MemoryJournal())
    told, written, nodes = [], [], ClusterNodes()

    async def reserve(instruction: m.Reserve) -> None:
        registry = runtime.machine.registry
        told.extend(registry.set_of(row).pod_name(row) for row in instruction.rows.tolist())

    async def list_nodes() -> list[pb.NodeInfo]:
        return ledger.nodes

    async def upsert_nodes(specs: Sequence[NodeSpec], _epoch: str) -> pb.UpsertNodesReply:
        written.extend(spec.name for spec in specs)
        return pb.UpsertNodesReply(indexes=[int(spec.name[1]) - 1 for spec in specs])

    runtime.set_executor(m.Reserve, reserve)
    runtime.set_executor(m.Release, reserve)
    informers = Informers(None, ClusterSection(), max_pod_terms=100, clock=runtime.now, rng=random.Random(2))
    mirror = ClusterMirror(
        runtime,
        None,
        SimpleNamespace(list_nodes=list_nodes, upsert_nodes=upsert_nodes),
        informers,
        ClusterSection(),
        term=2,
        nodes=nodes,
    )
    for reflector in informers.reflectors:
        reflector.availability = KindAvailability.NOT_SERVED
        reflector.complete.set()
    informers._on_nodes([node("n1"), node("n2")])

    async def begin(*pods: ObjectSeen, known: bool = True) -> list[str]:
        informers._on_pods(list(pods))
        if known:
            informers.known.set()
        await recover(runtime, mirror, term=2)
        await until(lambda: not runtime._jobs)
        return sorted(told)

    yield SimpleNamespace(begin=begin, ledger=ledger, written=written, nodes=nodes, known=informers.known)
    await runtime.end()


async def test_the_ledger_is_told_of_the_pods_alone_whose_reservations_are_not_right(takeover):
    ledger = takeover.ledger
    ledger.has(1, held())
    ledger.has(2, held(cpu=2000))  # resized while nobody looked
    ledger.has(3, held(labels=(("app", "db"),)))
    ledger.has(4, held(cards=1))
    ledger.has(5, held(), node=2)
    assert await takeover.begin(*map(pod, range(1, 7))) == ["p2", "p3", "p4", "p5", "p6"]


async def test_a_reservation_that_is_not_settled_is_told_of_whatever_it_holds(takeover):
    ledger = takeover.ledger
    ledger.has(1, held(), assumed=True)
    ledger.has(2, held(), terminating=True)
    ledger.has(3, held(), node=1)
    ledger.has(3, held())
    ledger.has(4, 0)  # by a resolver that does not say what it holds
    ledger.has(5, held())
    assert await takeover.begin(*map(pod, range(1, 6))) == ["p1", "p2", "p3", "p4"]


async def test_whoever_told_the_ledger_of_pods_in_an_earlier_term_is_fenced_before_reservations_are_listed(
    takeover,
):
    """What it asked for late would otherwise be a reservation of a pod that is gone."""
    await takeover.begin()
    assert WRITER in takeover.ledger.listed_after


async def test_nodes_that_are_in_the_ledger_as_they_are_are_not_written_again(takeover):
    takeover.ledger.nodes[1].spec.unschedulable = True
    await takeover.begin()
    assert takeover.written == ["n2"]


async def test_a_ledger_that_is_lost_before_the_feed_has_shown_its_nodes_is_rebuilt_with_all_of_them(
    takeover,
):
    takeover.ledger.nodes[1].spec.unschedulable = True
    await takeover.begin()
    found = {spec.name: spec.unschedulable for _, spec in takeover.nodes.to_rebuild()}
    assert found == {"n1": False, "n2": False}
    shown = [pb.NodeEntry(index=0, spec=takeover.ledger.nodes[0].spec)]
    takeover.nodes.read(pb.FeedMessage(shards=2, shard=0, snapshot=True, nodes=shown))
    assert [index for index, _ in takeover.nodes.to_rebuild()] == [0, 1]
    takeover.nodes.read(pb.FeedMessage(shards=2, shard=1, snapshot=True))
    takeover.nodes.removed(["n2"])
    assert [index for index, _ in takeover.nodes.to_rebuild()] == [0]


async def test_the_ledger_lists_its_reservations_while_the_api_server_says_which_pods_there_are(takeover):
    beginning = asyncio.ensure_future(takeover.begin(known=False))
    await until(lambda: takeover.ledger.listed_after)
    assert not beginning.done()
    takeover.known.set()
    await beginning
