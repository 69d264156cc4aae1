"""The dashboard's view model: it follows the platform over its public API, and answers what pages ask.

The platform is sampled once a second, whether anybody looks or not. Nodes and the reasons of waiting pods are
read only for viewers, because they cost the platform more."""

import asyncio
import random
from collections.abc import Callable
from typing import Any

from hoss.client.dispatcher import DispatcherClient
from hoss.client.feed import Subscription
from hoss.client.resolver import ResolverClient
from hoss.errors import HossError, NotFound, quoted
from hoss.tasks import end_tasks
from hoss.telemetry import logger
from hoss.v1 import dispatcher_pb2 as pb
from hossctl.dashboard.broadcaster import Broadcaster, Unavailable
from hossctl.dashboard.nodes import NodeTable
from hossctl.dashboard.pods import find_pods
from hossctl.dashboard.snapshot import Curves, DashboardSnapshot, Sample, SnapshotTaker

SAMPLE_SECONDS = 1.0
PATIENCE_SECONDS = 1.5  # for the dispatcher; then viewers are told that it does not answer
NODES_PATIENCE_SECONDS = 3.0  # for the node feed; then a snapshot has outdated nodes, and says so
_RETRY_SECONDS = 0.5

NO_DISPATCHER = "no dispatcher answers; one takes over, or starts again"


class ViewModel:
    """`run` follows the platform; everything else answers one request."""

    def __init__(
        self,
        dispatcher: DispatcherClient,
        resolver: ResolverClient,
        *,
        clock: Callable[[], float],
        unix_clock: Callable[[], float],
        rng: random.Random,
    ) -> None:
        self._dispatcher = dispatcher
        self._resolver = resolver
        self._clock = clock
        self._unix_clock = unix_clock
        self._nodes = NodeTable()
        self._feed = Subscription(resolver, "dashboard", self._nodes.apply, clock=clock, rng=rng)
        self._curves = Curves()
        self._snapshots = SnapshotTaker()
        self._reading: asyncio.Task[None] | None = None  # of the node feed

    async def run(self, broadcaster: Broadcaster) -> None:
        """Sample the platform, and broadcast a snapshot of each sample to viewers, until cancelled."""
        try:
            while True:
                began = self._clock()
                await self._look(broadcaster)
                rest = SAMPLE_SECONDS - (self._clock() - began)
                if broadcaster.viewers:
                    await asyncio.sleep(rest)
                else:
                    await broadcaster.viewed(seconds=rest)
        finally:
            if self._reading is not None:
                await end_tasks((self._reading,))

    async def of_tenant(self, shown: DashboardSnapshot, tenant: str) -> DashboardSnapshot:
        """What a viewer who is limited to a tenant sees of a snapshot."""
        return shown.of_tenant(await self._dispatcher.of_tenant(tenant).pod_summary())

    async def pods(self, text: str, tenant: str = "") -> dict[str, Any]:
        """See find_pods. `tenant`: whose pods alone; "": of all."""
        return await find_pods(self._dispatcher.of_tenant(tenant), text)

    def node(self, name: str) -> dict[str, Any]:
        """One node. Raises NotFound."""
        node = self._nodes.node(name)
        if node is None:
            raise NotFound(f"there is no node {quoted(name)}")
        return node

    async def set_worker_state(self, name: str, state: str) -> dict[str, Any]:
        """As `hoss cordon`, `uncordon` and `drain worker`. Raises NotFound, InvalidInput, LedgerUnavailable and
        TransportError."""
        worker = await self._dispatcher.set_worker_state(name, state)
        logger().info("dashboard_action", worker=name, state=state)
        return {"name": name, "state": worker.state}

    async def cordon_node(self, name: str, unschedulable: bool) -> dict[str, Any]:
        """As `hoss cordon` and `uncordon node`. Raises NotFound, LedgerUnavailable and TransportError."""
        reply = await self._resolver.cordon_node(name, unschedulable)
        logger().info("dashboard_action", node=name, unschedulable=unschedulable)
        return {"name": name, "unschedulable": reply.node.unschedulable}

    async def _look(self, broadcaster: Broadcaster) -> None:
        """Sample once, however long that takes. Viewers are told while it takes long, and where it fails."""
        asking = asyncio.ensure_future(self._ask(with_pods=bool(broadcaster.viewers)))
        try:
            done, _ = await asyncio.wait((asking,), timeout=PATIENCE_SECONDS)
            if not done:
                broadcaster.show(Unavailable(NO_DISPATCHER))
            sample, summary = await asking
        except HossError as exc:
            broadcaster.show(Unavailable(f"{NO_DISPATCHER} ({exc})"))
            logger().info("dashboard_waits", error=str(exc))
            await asyncio.sleep(_RETRY_SECONDS)
            return
        finally:
            await end_tasks((asking,))
        self._curves.add(sample)
        if summary is not None:
            problem = await self._read_nodes()
            cells = self._nodes.cells()
            broadcaster.show(
                self._snapshots.take(sample, summary, cells, self._curves.points, problem=problem)
            )

    async def _ask(self, *, with_pods: bool) -> tuple[Sample, pb.PodSummary | None]:
        status = await self._dispatcher.status()
        now, at_ms = self._clock(), int(self._unix_clock() * 1000)
        workers = await self._dispatcher.list_workers()
        conflicts = await self._dispatcher.conflicts()
        summary = await self._dispatcher.pod_summary() if with_pods else None
        return Sample(now, at_ms, status, workers, conflicts), summary

    async def _read_nodes(self) -> str:
        """Bring the nodes up to date. Returns why they are not."""
        if self._reading is None or self._reading.done():
            self._reading = asyncio.ensure_future(self._feed.catch_up())
        await asyncio.wait((self._reading,), timeout=NODES_PATIENCE_SECONDS)
        if not self._reading.done():
            return "the resolver does not answer: nodes are shown as they were"
        try:
            self._reading.result()
        except HossError as exc:
            return f"nodes are shown as they were: {exc}"
        return ""
