"""Kubernetes mode: which pods the binder asks resolvers to bind, and how often."""

import asyncio
import socket

import pytest
import structlog
from waiting import until

from dispatcher.core import messages as m
from dispatcher.core.pods.table import Phase
from dispatcher.kubernetes.binder import PodBinder
from dispatcher.ledger.nodes import ClusterNodes
from dispatcher.runtime import Runtime
from hoss.client.resolver import ResolverClient
from hoss.v1 import resolver_pb2 as pb


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
    binder = PodBinder(
        Runtime(bench.machine, None, None),
        resolver,
        DescribedNodes(),
        ValidLease(),
        evictions_read=lambda _shard: 0,
        node_deleted=lambda _name: False,
        on_bound=lambda rows, names: bound.extend(zip(rows.tolist(), names, strict=True)),
        on_volumes_refused=lambda _rows, _reasons: None,
        on_devices_pending=lambda rows, texts: told.extend(zip(rows.tolist(), texts, strict=True)),
        volume_timeout_seconds=600.0,
    )
    binder.add(rows, pods.uid[rows])
    running = asyncio.ensure_future(binder.run())
    await until(lambda: bound, lambda: f"the pod to be bound; there were {resolver.calls} calls")
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert told == [(int(rows[0]), resolver.text)]
    assert bound == [(int(rows[0]), "n1")]
    assert resolver.calls == 3


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
    binder = PodBinder(
        Runtime(bench.machine, None, None),
        client,
        DescribedNodes(),
        ValidLease(),
        evictions_read=lambda _shard: 0,
        node_deleted=lambda _name: False,
        on_bound=lambda _rows, _names: None,
        on_volumes_refused=lambda _rows, _reasons: None,
        on_devices_pending=lambda _rows, _texts: None,
        volume_timeout_seconds=600.0,
    )

    binder.add(rows, pods.uid[rows])
    with structlog.testing.capture_logs() as lines:
        running = asyncio.ensure_future(binder.run())
        await until(lambda: len(lines) >= 20, lambda: f"20 calls to fail; there were {lines}")
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    await client.close()
    assert len(binder) <= len(rows)
