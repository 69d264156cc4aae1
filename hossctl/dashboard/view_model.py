"""The dashboard's view model: it follows the platform over its public API, and answers what pages ask.

The platform is sampled once a second, whether anybody looks or not. Nodes and the reasons of waiting pods are
read only for viewers, because they cost the platform more."""

import asyncio
import importlib
import random
from collections.abc import Callable, Sequence
from typing import Any

from hoss.client.dispatcher import DispatcherClient
from hoss.client.feed import Subscription
from hoss.client.resolver import ResolverClient
from hoss.errors import HossError, NotFound, quoted
from hoss.tasks import end_tasks
from hoss.telemetry import logger
from hoss.v1 import dispatcher_pb2 as pb
from hossctl.console import Document
from hossctl.dashboard.broadcaster import Broadcaster, Unavailable
from hossctl.dashboard.fragmentation import MOST_POOLS, FragmentationHistory
from hossctl.dashboard.history import DashboardHistory
from hossctl.dashboard.lists import (
    Filters,
    list_jobs,
    list_nodes,
    list_pods,
    list_tenants,
    show_job,
    show_worker,
)
from hossctl.dashboard.nodes import NodeTable
from hossctl.dashboard.pods import find_pods
from hossctl.dashboard.snapshot import DashboardSnapshot, Point, Sample, SnapshotTaker
from hossctl.endpoints import Clients

SAMPLE_SECONDS = 1.0
PATIENCE_SECONDS = 1.5  # for the dispatcher; then viewers are told that it takes long
NODES_PATIENCE_SECONDS = 3.0  # for the node feed; then a snapshot has outdated nodes, and says so
_RETRY_SECONDS = 0.5

SHOWN_MS = 300_000  # of the curves, in every first message
MOST_TIMELINE_BARS = 4000  # of a reply
_MOST_TIMELINE_SECONDS = 3600.0

NO_DISPATCHER = "No dispatcher answers; one takes over, or starts again"
# Which of these it is cannot be known yet. The page says since when, by what it shows.
SLOW_DISPATCHER = "The dispatcher does not answer: it is busy, or gone, or another takes over"


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
        self._history = DashboardHistory()
        self._fragmentation = FragmentationHistory(self._measure, clock=clock, unix_clock=unix_clock)
        self._snapshots = SnapshotTaker()
        self._term = 0
        self._policy_version: int | None = None
        self._waits_for = ""  # why the last sample failed; empty: it did not
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
            await self._fragmentation.close()

    async def of_tenant(self, shown: DashboardSnapshot, tenant: str) -> DashboardSnapshot:
        """What a viewer who is limited to a tenant sees of a snapshot."""
        return shown.of_tenant(await self._dispatcher.of_tenant(tenant).pod_summary())

    async def pods(self, text: str, tenant: str = "") -> dict[str, Any]:
        """See find_pods. `tenant`: whose pods alone; "": of all."""
        return await find_pods(self._dispatcher.of_tenant(tenant), text)

    async def node(self, name: str) -> dict[str, Any]:
        """One node. Raises NotFound."""
        await self._read_nodes()
        node = self._nodes.node(name)
        if node is None:
            raise NotFound(f"there is no node {quoted(name)}")
        return node

    async def list_page(self, kind: str, filters: Filters, tenant: str) -> dict[str, Any]:
        """A page of a list. Raises InvalidInput, NotFound and TransportError."""
        client = self._dispatcher.of_tenant(tenant)
        if kind == "jobs":
            return await list_jobs(client, filters)
        if kind == "pods":
            return await list_pods(client, filters)
        if kind == "tenants":
            return await list_tenants(client)
        await self._read_nodes()
        return list_nodes(self._nodes, filters)

    async def job(self, namespace: str, name: str, tenant: str) -> dict[str, Any]:
        """One job. Raises NotFound."""
        return await show_job(self._dispatcher.of_tenant(tenant), namespace, name)

    async def worker(self, name: str) -> dict[str, Any]:
        """One worker, with an hour of its curve. Raises NotFound."""
        return {**await show_worker(self._dispatcher, name), "points": self._history.worker(name)}

    def history(self) -> dict[str, Any]:
        """The curves of an hour."""
        return {"points": [tuple(point) for point in self._history.points()]}

    def events(self) -> dict[str, Any]:
        """What happened within an hour, the latest first."""
        return {"events": list(reversed(self._history.events))}

    def policies(self) -> dict[str, Any]:
        """The policies that were in force since this dashboard began, the present one first."""
        return {"policies": list(reversed(self._history.policies))}

    def timeline(self, seconds: float, worker: str) -> dict[str, Any]:
        """When workers had which batches, within the last seconds. `worker`: its batches alone; "": all."""
        now_ms = int(self._unix_clock() * 1000)
        # Also what is no number is none of these.
        span = seconds if 1.0 <= seconds <= _MOST_TIMELINE_SECONDS else _MOST_TIMELINE_SECONDS
        since = now_ms - int(span * 1000)
        rows = self._history.timeline.since(since, MOST_TIMELINE_BARS, (worker,) if worker else ())
        return {"now": now_ms, "since": since, **rows}

    async def fragmentation(self, label: str, pool: str, resource: str) -> dict[str, Any]:
        """Which of the free room pods can use, by pools of nodes with equal values of a label. Raises
        InvalidInput."""
        return await self._fragmentation.page(label, pool, resource)

    async def set_worker_state(self, name: str, state: str) -> dict[str, Any]:
        """As `hoss cordon`, `uncordon` and `drain worker`. Raises NotFound, InvalidInput, LedgerUnavailable
        and TransportError."""
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
                broadcaster.show(Unavailable(SLOW_DISPATCHER))
            sample, summary = await asking
        except HossError as exc:
            broadcaster.show(Unavailable(f"{NO_DISPATCHER} ({exc})"))
            if str(exc) != self._waits_for:  # asked again each second: a reason is logged once
                logger().warning("dashboard_waits", error=str(exc))
                self._waits_for = str(exc)
            await asyncio.sleep(_RETRY_SECONDS)
            return
        finally:
            await end_tasks((asking,))
        self._waits_for = ""
        self._history.add(sample)
        self._fragmentation.keep_up()
        if summary is None:
            if isinstance(broadcaster.latest, Unavailable):
                broadcaster.show(None)  # the next viewer is not told of what is over
        else:
            problem = await self._read_nodes()
            cells = self._nodes.cells()
            broadcaster.show(
                self._snapshots.take(sample, summary, cells, self._shown_points(sample), problem=problem)
            )

    async def _ask(self, *, with_pods: bool) -> tuple[Sample, pb.PodSummary | None]:
        status = await self._dispatcher.status()
        now, at_ms = self._clock(), int(self._unix_clock() * 1000)
        workers = await self._dispatcher.list_workers()
        conflicts = await self._dispatcher.conflicts()
        await self._read_history(status)
        summary = await self._dispatcher.pod_summary() if with_pods else None
        return Sample(now, at_ms, status, workers, conflicts), summary

    async def _read_history(self, status: pb.DispatcherStatus) -> None:
        """What is kept of each moment, whether anybody looks or not."""
        if status.term != self._term:  # another dispatcher, with a timeline of its own
            self._term, self._history.timeline.last = status.term, 0
            self._policy_version = None
        self._history.timeline.add(await self._dispatcher.work_timeline(self._history.timeline.last))
        if status.policy.version != self._policy_version:
            self._history.note_policy(await self._dispatcher.get_policy())
            self._policy_version = status.policy.version

    async def _measure(self, labels: Sequence[str]) -> dict[str, Document]:
        # For the first viewer of that page: the worker's core is large. In a thread, so that nobody waits.
        await asyncio.to_thread(importlib.import_module, "hossctl.rebalance.room")
        from hossctl.explain.offline import preset  # noqa: PLC0415
        from hossctl.rebalance.gathering import gather  # noqa: PLC0415
        from hossctl.rebalance.room import fragmentation_document  # noqa: PLC0415
        from scheduler_worker.core.plugins.profiles import DEFAULT_PROFILE  # noqa: PLC0415

        gathered = await gather(Clients(self._dispatcher, self._resolver))
        profile = preset(DEFAULT_PROFILE)
        return {
            label: await asyncio.to_thread(
                fragmentation_document, gathered, profile, label, most_pools=MOST_POOLS
            )
            for label in labels
        }

    def _shown_points(self, sample: Sample) -> list[Point]:
        return self._history.points(sample.at_ms - SHOWN_MS)

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
