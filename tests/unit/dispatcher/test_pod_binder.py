"""Kubernetes mode: which pods the binder asks resolvers to bind, and how often."""

import asyncio
import socket
from types import SimpleNamespace

import numpy as np
import pytest
import structlog
from waiting import until

from dispatcher.core import messages as m
from dispatcher.core.pods.table import Phase
from dispatcher.kubernetes.binder import PodBinder
from dispatcher.ledger.nodes import ClusterNodes
from dispatcher.ports import PodLocations
from dispatcher.runtime import Runtime
from hoss.client.resolver import ResolverClient
from hoss.kube.api import BINDING_REQUEST_SECONDS
from hoss.model.cluster import StorageUpdate
from hoss.model.devices import ClaimUse, PodClaims
from hoss.model.pod import PodSpec
from hoss.model.volumes import ClaimMount, PersistentVolumeClaim, PodVolumes
from hoss.v1 import resolver_pb2 as pb
from hoss.wire.columns import NONE_U32


class ValidLease:
    """A leadership that lasts."""

    term, address = 1, "here"

    def lease_valid(self) -> bool:
        return True

    def uncertainty(self) -> str:
        return ""

    def require_valid_lease(self) -> None:
        return None


@pytest.fixture
def nobody_listens():
    """An address that refuses every connection."""
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{reserved.getsockname()[1]}"


class DevicesPending:
    """A resolver that finds a pod's devices not ready for two calls, and then binds the pod."""

    text = "waiting for binding conditions for device on node n1"

    def __init__(self):
        self.calls = 0

    async def bind(self, message):
        self.calls += 1
        result, text = (pb.BIND_WAITS, self.text) if self.calls <= 2 else (pb.BIND_DONE, "")
        pods = len(message.pods)
        return pb.BindReply(results=bytes([result] * pods), texts=[text] * pods)


class DescribedNodes(ClusterNodes):
    """The feed has described node 1 and no other."""

    def name(self, index: int) -> str:
        return "n1" if index == 1 else ""


def binder_of(runtime, resolver, *, node_deleted=lambda _name: False, **told):
    """A binder whose lease lasts, on a cluster in which nothing is evicted. `told`: what it calls."""
    callbacks = {
        name: lambda _rows, _texts: None for name in ("on_bound", "on_volumes_refused", "on_devices_pending")
    }
    return PodBinder(
        runtime,
        resolver,
        DescribedNodes(),
        ValidLease(),
        evictions_read=lambda _shard: 0,
        node_deleted=node_deleted,
        volume_timeout_seconds=600.0,
        **(callbacks | told),
    )


async def test_a_pod_whose_devices_are_not_ready_is_told_of_once_and_asked_for_until_it_is_bound(
    bench, monkeypatch
):
    monkeypatch.setattr("dispatcher.kubernetes.binder._VOLUME_SECONDS", 0.0)
    bench.join("w1")
    rows = bench.pods("p")
    bench.pump()
    bench.answer("w1", m.OutcomeCode.BOUND, node=1)
    pods, told, bound = bench.machine.registry.pods, [], []
    resolver = DevicesPending()
    binder = binder_of(
        Runtime(bench.machine, None, None),
        resolver,
        on_bound=lambda rows, names: bound.extend(zip(rows.tolist(), names, strict=True)),
        on_devices_pending=lambda rows, texts: told.extend(zip(rows.tolist(), texts, strict=True)),
    )
    binder.add(rows, pods.uid[rows])
    running = asyncio.ensure_future(binder.run())
    await until(lambda: bound, lambda: f"the pod to be bound; there were {resolver.calls} calls")
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert told == [(int(rows[0]), resolver.text)]
    assert bound == [(int(rows[0]), "n1")]
    assert resolver.calls == 3


class Answers:
    """A resolver that gives one answer after the other, the last one for ever. `then`: what happens in the
    call of number `at`."""

    def __init__(self, *results, at, then):
        self.results, self.at, self.then = list(results), at, then
        self.asked = []  # the step for the volumes and the names of the claims, by call

    async def bind(self, message):
        self.ready_seconds = [claims.ready_seconds for claims in message.resource_claims]
        names = [name for claims in message.resource_claims for name in claims.names]
        self.asked.append((pb.VolumeStep.Name(max(message.volumes, default=0)), names))
        self.versions = [dict(of_pod.versions) for of_pod in message.claim_versions]
        if len(self.asked) == self.at:
            self.then()
        result = self.results.pop(0) if len(self.results) > 1 else self.results[0]
        return pb.BindReply(results=bytes([result]))


class WaitingForDevices:
    """A pod with a claim, reserved on node n1, while a binder asks a resolver to bind it."""

    def __init__(
        self, bench, monkeypatch, *results, change="", at=1, claims=("gpu",), mounts=(), bind_seconds=None
    ):
        monkeypatch.setattr("dispatcher.kubernetes.binder._VOLUME_SECONDS", 0.0)
        monkeypatch.setattr("dispatcher.kubernetes.binder._RETRY_SECONDS", 0.0)
        self.bench, self.change = bench, change
        self.deleted, self.released, self.bound, self.told = set(), [], [], []
        self.pods = bench.machine.registry.pods
        bench.join("w1", bind_seconds=bind_seconds)
        spec = PodSpec(
            claims=PodClaims("p", "u", tuple(map(ClaimUse, claims))) if claims else None,
            volumes=PodVolumes(tuple(map(ClaimMount, mounts))) if mounts else None,
        )
        self.rows = bench.pods("p", spec=spec)
        bench.pump()
        bench.answer("w1", m.OutcomeCode.BOUND, node=1)
        self.resolver = Answers(*results, at=at, then=self.make_outdated)

    def make_outdated(self):
        if self.change == "the node is deleted":
            self.deleted.add("n1")
        elif self.change:
            self.pods.outdated[self.rows] = True

    async def released_by(self, instruction):
        self.released += instruction.rows.tolist()

    async def run(self, *, given_up="", ledger=None):
        """Until the pod is bound, or its reservation released or lost. `given_up`: it is an earlier term's,
        and why it is not to be bound."""
        runtime = Runtime(self.bench.machine, ledger, None)
        runtime.set_executor(m.Release, self.released_by)
        binder = binder_of(
            runtime,
            self.resolver,
            node_deleted=self.deleted.__contains__,
            on_bound=lambda rows, _names: self.bound.extend(rows.tolist()),
            on_volumes_refused=lambda _rows, reasons: self.told.extend(reasons),
        )
        if given_up:
            binder.give_up(self.rows, self.pods.uid[self.rows], given_up)
        else:
            binder.add(self.rows, self.pods.uid[self.rows])
        running = asyncio.ensure_future(binder.run())
        counters = self.bench.machine.counters
        await until(
            lambda: self.bound or self.released or counters["reservations_lost"],
            lambda: f"an end of {self.resolver.asked}",
        )
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


CHANGES = pytest.mark.parametrize("change", ["the node is deleted", "the pod is changed"])
BIND, UNDO = ("VOLUMES_BOUND_ALREADY", ["gpu"]), ("VOLUMES_UNDO", ["gpu"])


@CHANGES
async def test_a_pod_that_is_withdrawn_while_its_devices_are_not_ready_gives_them_back_first(
    bench, monkeypatch, change
):
    """Nobody else would: a claim keeps a pod that exists."""
    pod = WaitingForDevices(
        bench, monkeypatch, pb.BIND_WAITS, pb.BIND_UNKNOWN, pb.BIND_REFUSED, change=change
    )
    await pod.run()
    assert pod.resolver.asked == [BIND, UNDO, UNDO]
    assert pod.released == pod.rows.tolist()
    assert bench.machine.counters["bindings_withdrawn"] == 1
    assert pod.told == []  # it was withdrawn and not refused
    assert pod.pods.attempts[pod.rows].tolist() == [0]
    reason = bench.machine.registry.reasons.texts[int(pod.pods.reason[pod.rows[0]])]
    assert ("n1" if pod.deleted else "changed") in reason


async def test_a_refusal_of_a_place_that_the_pod_has_left_meanwhile_does_not_take_its_new_one(
    bench, monkeypatch
):
    pod = WaitingForDevices(bench, monkeypatch, pb.BIND_REFUSED, pb.BIND_DONE, claims=())

    def place_again():
        uids, nodes = pod.pods.uid[pod.rows].copy(), pod.pods.node[pod.rows].copy()
        bench.handle(m.Evicted(uids, nodes, ("preempted by default/urgent on node n1",), (b"",)))
        bench.pump()
        bench.answer("w1", m.OutcomeCode.BOUND, node=1)

    pod.resolver.then = place_again
    await pod.run()
    assert (pod.bound, pod.released) == (pod.rows.tolist(), [])
    assert bench.machine.counters["bindings_refused"] == 0


@CHANGES
async def test_a_pod_keeps_its_devices_while_it_may_be_bound_already(bench, monkeypatch, change):
    pod = WaitingForDevices(
        bench, monkeypatch, pb.BIND_WAITS, pb.BIND_UNKNOWN, pb.BIND_DONE, change=change, at=2
    )
    await pod.run()
    assert pod.resolver.asked == [BIND, BIND, BIND]
    assert (pod.bound, pod.released) == (pod.rows.tolist(), [])


@pytest.mark.parametrize(("found", "asked"), [(NONE_U32, [BIND, BIND]), (1, [BIND, BIND, BIND])])
async def test_a_pod_without_its_reservation_is_looked_up_and_queued_or_asked_for_again(
    bench, monkeypatch, found, asked
):
    """Nothing is taken back for it: what was chosen for its devices was forgotten with the reservation."""

    async def lookup(_uids):
        none = np.zeros(1, np.bool_)
        return PodLocations(np.array([found], np.uint32), {}, none, none, np.zeros(1, np.uint64))

    pod = WaitingForDevices(bench, monkeypatch, pb.BIND_WAITS, pb.BIND_UNRESERVED, pb.BIND_DONE)
    await pod.run(ledger=SimpleNamespace(lookup=lookup))
    assert (pod.resolver.asked, pod.released) == (asked, [])
    assert pod.bound == (pod.rows.tolist() if found == 1 else [])
    assert bench.machine.counters["reservations_lost"] == (found != 1)


@pytest.mark.parametrize(("claims", "asked"), [(("gpu",), [UNDO]), ((), [])])
async def test_a_pod_of_an_earlier_term_that_is_given_up_gives_its_devices_back_first(
    bench, monkeypatch, claims, asked
):
    pod = WaitingForDevices(bench, monkeypatch, pb.BIND_REFUSED, claims=claims)
    monkeypatch.setattr("dispatcher.kubernetes.binder.BINDING_REQUEST_SECONDS", 0.0)
    await pod.run(given_up="no room")
    assert pod.resolver.asked == asked
    assert pod.released == pod.rows.tolist()


@pytest.mark.parametrize("then", ["no binding came", "the binding came", "placed anew"])
async def test_a_pod_is_given_up_once_no_binding_can_come_that_an_earlier_term_asked_for(
    bench, monkeypatch, then
):
    """The API server may have the request, and writes it without asking again."""
    pod = WaitingForDevices(bench, monkeypatch, pb.BIND_DONE, claims=())
    runtime = Runtime(bench.machine, None, None)
    runtime.set_executor(m.Release, pod.released_by)
    now = [0.0]
    monkeypatch.setattr(runtime, "now", lambda: now[0])
    binder = binder_of(runtime, pod.resolver, on_bound=lambda rows, _names: pod.bound.extend(rows.tolist()))
    request = pod.rows, pod.pods.uid[pod.rows].copy()
    binder.give_up(*request, "no room")
    binder.add(*request)  # as when its confirmation is answered
    running = asyncio.ensure_future(binder.run())
    await until(lambda: not len(binder))
    assert (pod.released, pod.bound, pod.resolver.asked) == ([], [], [])
    if then == "the binding came":
        bench.handle(m.Assigned(pod.rows, np.array([1], np.uint32)))
    elif then == "placed anew":
        uids, nodes = pod.pods.uid[pod.rows].copy(), pod.pods.node[pod.rows].copy()
        bench.handle(m.Evicted(uids, nodes, ("preempted by default/urgent on node n1",), (b"",)))
        bench.pump()
        bench.answer("w1", m.OutcomeCode.BOUND, node=1)
    now[0] = BINDING_REQUEST_SECONDS
    binder.add(*request)
    if then == "the binding came":
        await until(lambda: not binder._given_up)
        assert (pod.released, pod.resolver.asked) == ([], [])
    else:
        await until(lambda: pod.released or pod.bound)
        assert pod.released == (pod.rows.tolist() if then == "no binding came" else [])
        assert not binder._given_up
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


@pytest.mark.parametrize(("of_profile", "told"), [(None, 0.0), ({"DynamicResources": 90.0}, 90.0)])
async def test_devices_get_the_time_that_the_profile_of_the_pods_worker_gives_them(
    bench, monkeypatch, of_profile, told
):
    pod = WaitingForDevices(bench, monkeypatch, pb.BIND_DONE, bind_seconds=of_profile)
    await pod.run()
    assert pod.resolver.ready_seconds == [told]


async def test_volumes_get_the_time_that_the_profile_of_the_pods_worker_gives_them(bench, monkeypatch):
    pod = WaitingForDevices(
        bench, monkeypatch, pb.BIND_REFUSED, claims=(), mounts=("data",), bind_seconds={"VolumeBinding": 0.0}
    )
    waits = PersistentVolumeClaim("default", "data", storage_class="fast")
    bench.machine.storage.apply(StorageUpdate((waits,)))
    bench.machine.nodes.update({1: m.KnownNode("n1", {})}, 0)
    await pod.run()
    assert pod.resolver.asked == [("VOLUMES_UNDO", [])]
    [why] = pod.told
    assert why.endswith("binding volumes: context deadline exceeded")


@pytest.mark.parametrize(("selected", "told"), [("", [{"data": "7"}]), ("n1", [])])
async def test_a_resolver_is_told_the_versions_of_claims_whose_volumes_are_to_be_provisioned(
    bench, monkeypatch, selected, told
):
    pod = WaitingForDevices(bench, monkeypatch, pb.BIND_DONE, claims=(), mounts=("data",))
    waits = PersistentVolumeClaim(
        "default", "data", storage_class="fast", selected_node=selected, version="7"
    )
    bench.machine.storage.apply(StorageUpdate((waits,)))
    bench.machine.nodes.update({1: m.KnownNode("n1", {})}, 0)
    await pod.run()
    assert pod.resolver.asked == [("VOLUMES_BIND", [])]
    assert pod.resolver.versions == told


async def test_in_an_outage_each_pod_waits_for_its_binding_once(bench, nobody_listens):
    """Half of the pods are on a node that the feed has not described yet: they wait for it, and with the
    others for the resolver."""
    bench.join("w1")
    rows = bench.job("j", 60)
    bench.pump()
    bench.answer("w1", m.OutcomeCode.BOUND, node=1)
    assert bench.all_are(rows, Phase.BOUND)
    pods = bench.machine.registry.pods
    pods.node[rows[::2]] = 2
    client = ResolverClient([nobody_listens])
    binder = binder_of(Runtime(bench.machine, None, None), client)

    binder.add(rows, pods.uid[rows])
    with structlog.testing.capture_logs() as lines:
        running = asyncio.ensure_future(binder.run())
        await until(lambda: len(lines) >= 20, lambda: f"20 calls to fail; there were {lines}")
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    await client.close()
    assert len(binder) <= len(rows)
