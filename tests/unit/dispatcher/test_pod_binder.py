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


class DescribedNodes(ClusterNodes):
    """The feed has described node 1 and no other."""

    def name(self, index: int) -> str:
        return "n1" if index == 1 else ""


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
