"""The dashboard's view model for one term: snapshots, pod histories, nodes, and actions on workers and
nodes."""

import asyncio
import random
from itertools import islice
from typing import Any

from dispatcher.api.queries import Queries
from dispatcher.api.service import set_worker_state
from dispatcher.api.tenancy import TenantView
from dispatcher.core.pods.table import Phase
from dispatcher.dashboard.broadcaster import Broadcaster
from dispatcher.dashboard.nodes import NodeTable
from dispatcher.dashboard.snapshot import DashboardSnapshot, SnapshotTaker
from dispatcher.leader.leadership import Leadership
from dispatcher.ledger.nodes import ClusterNodes
from dispatcher.runtime import Runtime
from hoss.client.feed import Subscription
from hoss.client.resolver import ResolverClient
from hoss.errors import InvalidInput, NotFound, quoted
from hoss.tasks import end_tasks
from hoss.telemetry import logger
from hoss.v1 import dispatcher_pb2 as pb

SNAPSHOT_SECONDS = 1.0
PATIENCE_SECONDS = 3.0  # for the node feed; then a snapshot has outdated nodes, and says so

MOST_SUGGESTIONS = 8
_MOST_JOBS_SEARCHED = 20_000

_DONE, _NOW, _AHEAD, _FAILED = "done", "now", "ahead", "failed"
_PLACES = {pb.SCHEDULING: 2, pb.BOUND: 3}  # the step of a phase; other phases wait in the queue, 1


class PodHistories:
    """Finds pods by name, with the way of each from its submission to its node. Reads only."""

    def __init__(self, runtime: Runtime, queries: Queries) -> None:
        self._machine = runtime.machine
        self._queries = queries

    def find(self, text: str, tenant: str = "") -> dict[str, Any]:
        """`text` is a pod's name, or `namespace/name`. The pods of that name; without any, names with that
        prefix. `tenant`: whose alone; "": of all."""
        namespace, _, name = text.strip().rpartition("/")
        view = TenantView(self._machine, tenant)
        rows = [
            row
            for row in (self._row(space, name) for space in self._namespaces(namespace))
            if row is not None and view.has_row(row)
        ]
        suggestions = [] if rows else self._suggestions(namespace, name, view)
        return {
            "stories": [self._history(row) for row in rows[:MOST_SUGGESTIONS]],
            "suggestions": suggestions,
        }

    def _namespaces(self, namespace: str) -> list[str]:
        return [namespace] if namespace else sorted(self._machine.objects.namespaces)

    def _row(self, namespace: str, name: str) -> int | None:
        row = self._machine.registry.directory.row_of_name(namespace, name)
        return row if row is not None and self._machine.registry.pods.phase[row] != Phase.ABSENT else None

    def _suggestions(self, namespace: str, prefix: str, view: TenantView) -> list[str]:
        jobs = (
            job
            for job in islice(self._machine.registry.directory.jobs(), _MOST_JOBS_SEARCHED)
            if job.submission.durable
            and namespace in {"", job.namespace}
            and job.name.startswith(prefix)
            and view.has_job(job)
        )
        return [f"{job.namespace}/{job.pod_name(job.first)}" for job in islice(jobs, MOST_SUGGESTIONS)]

    def _history(self, row: int) -> dict[str, Any]:
        pod = self._queries.pod(row, detail=True)
        return {
            "namespace": pod.namespace,
            "name": pod.name,
            "phase": pb.PodPhase.Name(pod.phase).capitalize(),
            "since": pod.phase_since_unix_ms,
            "reason": pod.reason,
            "attempts": pod.attempts,
            "steps": _steps(pod, self._queries.queue_position(row)),
            "faults": [{"at": f.at_unix_ms, "text": f"{f.worker}: {f.text}"} for f in pod.faults],
        }


def _steps(pod: pb.PodInfo, position: pb.QueueStanding | None) -> list[dict[str, Any]]:
    """The steps Submitted, Queue, Worker and Node; `at` in Unix milliseconds, 0 if unknown."""
    place = _PLACES.get(pod.phase, 1)
    states = [_DONE] * place + [_DONE if pod.phase == pb.BOUND else _NOW] + [_AHEAD] * (3 - place)
    if pod.phase in (pb.FAILED, pb.DELETED):
        states = [_DONE, _DONE, _FAILED, _AHEAD]
    tried = f"tried {pod.attempts} times" if pod.attempts > 1 else "tried once" if pod.attempts else ""
    job = f"{pod.template.owner_kind or 'job'} {pod.job}" if pod.job else "a pod of its own"
    queue = " ".join(filter(None, [position.name, position.behind])) if position else ""
    texts = [
        job,
        queue or (f"rule {pod.rule}" if pod.rule else "any worker may have it"),
        ", ".join(filter(None, [pod.worker, tried])) or "none yet",
        pod.node
        or (f"{pod.nominated_node}, once its victims have left" if pod.nominated_node else "none yet"),
    ]
    times = [pod.submitted_unix_ms, 0, 0, 0]
    if pod.phase in (pb.FAILED, pb.DELETED):
        times[2] = pod.phase_since_unix_ms
    elif place:
        times[place] = pod.phase_since_unix_ms
    names = ("Submitted", "Queue", "Worker", "Node")
    return [
        {"name": name, "state": state, "text": text, "at": at}
        for name, state, text, at in zip(names, states, texts, times, strict=True)
    ]


class ViewModel:
    """`run` takes snapshots while there are viewers; everything else answers one request."""

    def __init__(
        self,
        runtime: Runtime,
        nodes: ClusterNodes,
        leadership: Leadership,
        resolver: ResolverClient,
        *,
        rng: random.Random,
    ) -> None:
        self._runtime = runtime
        self._leadership = leadership
        self._resolver = resolver
        queries = Queries(runtime, nodes, leadership)
        self._nodes = NodeTable()
        self._feed = Subscription(resolver, "dashboard", self._nodes.apply, clock=runtime.now, rng=rng)
        self._snapshots = SnapshotTaker(runtime, queries, self._nodes)
        self._histories = PodHistories(runtime, queries)

    async def run(self, broadcaster: Broadcaster) -> None:
        """Broadcast a snapshot a second while there are viewers, until cancelled."""
        reading: asyncio.Task[None] | None = None
        try:
            while True:
                await broadcaster.viewed()
                if reading is None or reading.done():
                    reading = asyncio.ensure_future(self._feed.catch_up())
                # So the first snapshot usually has nodes.
                await asyncio.wait((reading,), timeout=PATIENCE_SECONDS)
                late = not reading.done()
                if not late:
                    reading.result()
                problem = "the resolver does not answer: nodes are shown as they were" if late else ""
                broadcaster.show(self._snapshots.take(nodes_problem=problem))
                await asyncio.sleep(SNAPSHOT_SECONDS)
        finally:
            if reading is not None:
                await end_tasks((reading,))

    def of_tenant(self, shown: DashboardSnapshot, tenant: str) -> DashboardSnapshot:
        """What a viewer who is limited to a tenant sees of a snapshot."""
        return self._snapshots.of_tenant(shown, tenant)

    def pods(self, text: str, tenant: str = "") -> dict[str, Any]:
        """See PodHistories.find. Raises InvalidInput for an empty name."""
        if not text.strip():
            raise InvalidInput("is empty; give a pod's name, or namespace/name", where="name")
        return self._histories.find(text, tenant)

    def node(self, name: str) -> dict[str, Any]:
        """One node. Raises NotFound."""
        node = self._nodes.node(name)
        if node is None:
            raise NotFound(f"there is no node {quoted(name)}")
        return node

    def set_worker_state(self, name: str, state: str) -> dict[str, Any]:
        """As `hoss cordon`, `uncordon` and `drain worker`. Raises NotFound, InvalidInput and
        LedgerUnavailable."""
        self._leadership.require_valid_lease()
        worker = set_worker_state(self._runtime, name, state)
        logger().info("dashboard_action", worker=name, state=state)
        return {"name": name, "state": worker.state.value}

    async def cordon_node(self, name: str, unschedulable: bool) -> dict[str, Any]:
        """As `hoss cordon` and `uncordon node`. Raises NotFound, LedgerUnavailable and TransportError."""
        self._leadership.require_valid_lease()
        reply = await self._resolver.cordon_node(name, unschedulable)
        logger().info("dashboard_action", node=name, unschedulable=unschedulable)
        return {"name": name, "unschedulable": reply.node.unschedulable}
