"""Answers to clients' queries about jobs, workers, tenants and the whole, read from the machine's columns.
Changes nothing. dispatcher.api.pod_queries has those about pods."""

import numpy as np

from dispatcher.api.pod_queries import LOOK_MICROS, SLICE_ROWS, HistoryQueries, page_start
from dispatcher.api.tenancy import TenantView
from dispatcher.core.pods.sets import PodSet
from dispatcher.core.pods.table import Phase
from dispatcher.core.workers.membership import Worker
from dispatcher.core.workers.work_timeline import ROW
from dispatcher.leader.leadership import Leadership
from dispatcher.ledger.nodes import ClusterNodes
from dispatcher.runtime import Runtime
from hoss.model.quantity import whole_number
from hoss.model.slices import Steps, finished
from hoss.statistics import BOUNDS_SECONDS
from hoss.v1 import common_pb2
from hoss.v1 import dispatcher_pb2 as pb
from hoss.wire.columns import U32, encode
from hoss.wire.convert_selectors import labels_to_proto
from hoss.wire.pages import first_page, key_before

# What entries of lists take, by estimate.
_JOB_MICROS = 10.0
_WORKER_MICROS = 40.0
_TENANT_MICROS = 20.0
_GANG_MICROS = 10.0
_ROW_MICROS = 0.001
_HISTORY_MICROS = 2000.0

# Pages of an audit that begin with a gang.
_GANGS = "gangs/"


class Queries:
    """One method per query; each builds a reply."""

    def __init__(self, runtime: Runtime, nodes: ClusterNodes, leadership: Leadership) -> None:
        self._runtime = runtime
        self._machine = runtime.machine
        self._registry = runtime.machine.registry
        self._leadership = leadership
        self._history = HistoryQueries(runtime, nodes)

    def jobs(self, request: pb.ListJobsRequest, view: TenantView | None = None) -> Steps[pb.ListJobsReply]:
        """One page of the jobs in a view, in order of submission, with the number of their pods by phase; all
        of them without a limit. Raises InvalidInput."""
        directory, first = self._registry.directory, page_start(request.page_token)
        reply = pb.ListJobsReply()
        for job in list(directory.jobs()):
            matches = (
                request.namespace in {"", job.namespace}
                and request.name in {"", job.name}
                and job.name.startswith(request.name_prefix)
            )
            # Jobs may be forgotten between two slices.
            if job.index < first or not matches or directory.sets.get(job.index) is not job:
                continue
            if not job.submission.durable or (view is not None and not view.has_job(job)):
                continue
            if request.limit and len(reply.jobs) == request.limit:
                reply.next_page_token = str(job.index)
                break
            reply.jobs.append(self._job(job))
            if request.steps:
                self._history.add_to_job(job, reply.jobs[-1])
                yield _HISTORY_MICROS
            yield _JOB_MICROS + job.count * _ROW_MICROS
        return reply

    def worker(self, worker: Worker) -> pb.WorkerInfo:
        now = self._runtime.now()
        return pb.WorkerInfo(
            name=worker.name,
            labels=labels_to_proto(sorted(worker.labels.items())),
            state=worker.state.value,
            epoch=worker.epoch,
            outstanding=worker.outstanding,
            window=worker.window,
            bound=worker.bound,
            conflicts=worker.heartbeat.conflicts,
            unschedulable=worker.unschedulable,
            busy_seconds=worker.heartbeat.busy_seconds,
            last_seen_ms_ago=int((now - worker.last_seen) * 1000),
            micros_per_pod=worker.heartbeat.micros_per_pod,
            estimated_micros=int(worker.work_micros),
            waiting_micros=int(worker.waiting_micros),
            proposed=worker.heartbeat.proposed,
            pods_per_second=worker.throughput.per_second(now),
            busy_share=worker.busy_share,
            incarnation=worker.incarnation,
            state_since_unix_ms=self._machine.unix_ms(worker.since),
            returned=worker.returned,
            synchronisation=worker.heartbeat.synchronisation,
            lags=[
                common_pb2.ShardLag(shard=shard, seqs=seqs, seconds=seconds)
                for shard, seqs, seconds in worker.heartbeat.lags
            ],
            fill_seconds=worker.heartbeat.fill_seconds,
            failing=worker.heartbeat.failing,
            profile=worker.profile,
            distrusted_until_unix_ms=(
                self._machine.unix_ms(worker.trust.distrusted_until) if worker.trust.distrusted else 0
            ),
        )

    def workers(self, request: pb.ListWorkersRequest) -> Steps[pb.ListWorkersReply]:
        """One page of the workers, by name. Raises InvalidInput."""
        after = key_before(request.page_token)
        left = [worker for worker in self._machine.members if after is None or worker.name > after]
        left.sort(key=lambda worker: worker.name)
        page, token = first_page(left, request.limit, lambda worker: worker.name)
        reply = pb.ListWorkersReply(next_page_token=token)
        for worker in page:
            reply.workers.append(self.worker(worker))
            if request.steps:
                self._history.add_to_worker(worker, reply.workers[-1])
                yield _HISTORY_MICROS
            yield _WORKER_MICROS
        return reply

    def work_timeline(self, after: int) -> pb.WorkTimeline:
        """The rows after the one with this serial."""
        timeline = self._machine.work_timeline
        rows = timeline.after(after)
        numbers, index = np.unique(rows["worker"], return_inverse=True)
        columns = {
            name: np.ascontiguousarray(rows[name]).tobytes() for name in ROW.names or () if name != "worker"
        }
        return pb.WorkTimeline(
            last=timeline.last,
            workers=[self._machine.members.name_of(number) for number in numbers.tolist()],
            worker=encode(index, U32),
            **columns,
        )

    def tenants(
        self, request: pb.ListTenantsRequest, view: TenantView | None = None
    ) -> Steps[pb.ListTenantsReply]:
        """One page of the tenants in a view that have pods, by name. Raises InvalidInput."""
        after = key_before(request.page_token)
        holdings = yield from self._machine.tenants.counting(self._runtime.now())
        left = [
            held
            for held in holdings
            if (after is None or held.name > after) and (view is None or view.has_tenant(held.name))
        ]
        left.sort(key=lambda held: held.name)
        page, token = first_page(left, request.limit, lambda held: held.name)
        reply = pb.ListTenantsReply(next_page_token=token)
        for held in page:
            reply.tenants.add(
                name=held.name,
                weight=held.weight,
                share=held.share,
                resource=held.resource,
                queued=held.phases[Phase.QUEUED] + held.phases[Phase.BACKOFF],
                scheduling=held.phases[Phase.SCHEDULING],
                bound=held.phases[Phase.BOUND],
                unschedulable=held.phases[Phase.UNSCHEDULABLE],
            )
            yield _TENANT_MICROS
        return reply

    def status(self, version: str) -> pb.DispatcherStatus:
        """Counters and problems."""
        counts = self._registry.pods.count_by_phase()
        return pb.DispatcherStatus(
            version=version,
            pods_by_phase={phase.name: int(counts[phase]) for phase in Phase if phase is not Phase.ABSENT},
            jobs=sum(1 for job in self._registry.directory.jobs() if job.submission.durable),
            revision=self._machine.log.revision,
            uptime_ms=int((self._runtime.now() - self._runtime.started_at) * 1000),
            problems=self._problems(),
            term=self._leadership.term,
            address=self._leadership.address,
            counters={name: int(value) for name, value in self._machine.counters.items()},
            phases=[
                pb.PhaseTimes(
                    phase=name, bounds_seconds=BOUNDS_SECONDS.tolist(), counts=histogram.counts.tolist()
                )
                for name, histogram in self._machine.settlement.times.by_phase()
            ],
        )

    def tenant_status(self, version: str, view: TenantView) -> pb.DispatcherStatus:
        """What the status says of a tenant's own pods, and the revision that a watch begins at."""
        jobs = (job for job in self._registry.directory.jobs() if job.submission.durable)
        return pb.DispatcherStatus(
            version=version,
            pods_by_phase=view.count_by_phase(),
            jobs=sum(map(view.has_job, jobs)),
            revision=self._machine.log.revision,
            term=self._leadership.term,
        )

    def audit(self, request: pb.DispatcherAuditRequest) -> Steps[pb.DispatcherAuditReply]:
        """One page of the bound pods, by row, and then of the gangs with some bound pods, but fewer than they
        need. The last page has the numbers of bound pods that should not be on their nodes, by reason. Raises
        InvalidInput."""
        reply, token = pb.DispatcherAuditReply(), request.page_token
        first_gang = whole_number(token.removeprefix(_GANGS)) if token.startswith(_GANGS) else None
        if first_gang is None:
            yield from self._add_bound(reply, page_start(token), request.limit)
        if not reply.next_page_token:
            yield from self._add_broken_gangs(reply, first_gang or 0, request.limit)
        if not reply.next_page_token:
            reply.reports.extend((yield from self._misplaced()))
        return reply

    def _misplaced(self) -> Steps[list[str]]:
        """Numbers of bound pods that should not be on their nodes, by reason."""
        found = yield from self._machine.taint_eviction.misplaced()
        return [f"{pods} bound pods: {reason}" for reason, pods in sorted(found.items())]

    def _add_bound(self, reply: pb.DispatcherAuditReply, first: int, limit: int) -> Steps[None]:
        """Add the bound pods from row `first` on. A pod that is being evicted is left out: another pod has
        its room."""
        pods, count = self._registry.pods, 0
        uids: list[bytes] = []
        nodes: list[bytes] = []
        for start in range(first, pods.size, SLICE_ROWS):
            part = slice(start, min(start + SLICE_ROWS, pods.size))
            rows = start + np.flatnonzero((pods.phase[part] == Phase.BOUND) & ~pods.terminating[part])
            if limit and count + len(rows) > limit:
                reply.next_page_token = str(rows[limit - count])
                rows = rows[: limit - count]
            # Read at once: between slices rows may get other pods.
            uids.append(pods.uid[rows].tobytes())
            nodes.append(pods.node[rows].astype("<u4").tobytes())
            count += len(rows)
            yield SLICE_ROWS * LOOK_MICROS
            if reply.next_page_token:
                break
        reply.bound_uids, reply.bound_nodes = b"".join(uids), b"".join(nodes)

    def _add_broken_gangs(self, reply: pb.DispatcherAuditReply, first: int, limit: int) -> Steps[None]:
        gangs = self._registry.gangs
        for number in [gang.number for gang in gangs if gang.number >= first]:
            gang = gangs.numbered(number)
            if gang is None:
                continue  # forgotten since the slice before
            bound, needed = gangs.bound(gang), gangs.required(gang)
            if 0 < bound < needed:
                if limit and len(reply.broken_gangs) == limit:
                    reply.next_page_token = f"{_GANGS}{number}"
                    break
                reply.broken_gangs.add(
                    namespace=gang.namespace,
                    name=gang.name,
                    bound=bound,
                    needed=needed,
                    complete_before=gang.complete,
                )
            yield _GANG_MICROS + len(gang.rows) * _ROW_MICROS

    def _job(self, job: PodSet) -> pb.JobInfo:
        gang = self._registry.gangs.numbered(int(self._registry.pods.gang[self._registry.first_row(job)]))
        counts = self._registry.count_by_phase(job).tolist()
        return pb.JobInfo(
            namespace=job.namespace,
            name=job.name,
            kind=job.kind,
            replicas=job.count,
            bound=counts[Phase.BOUND],
            queued=counts[Phase.QUEUED] + counts[Phase.BACKOFF] + counts[Phase.SCHEDULING],
            unschedulable=counts[Phase.UNSCHEDULABLE],
            failed=counts[Phase.FAILED],
            deleted=job.count - job.live,
            submitted_unix_ms=job.submission.submitted_ms,
            min_available=0 if gang is None else gang.minimum,
            gang="" if gang is None else gang.name,
        )

    def _problems(self) -> list[str]:
        problems = list(self._runtime.problems.values())
        if not self._leadership.lease_valid():
            problems.append(f"{self._leadership.uncertainty()}; nothing is accepted until it can be")
        waiting: dict[str, int] = {}
        for sub_queue in self._machine.queues.active.sub_queues():
            problem = self._machine.routing.destination(sub_queue).problem
            if problem:
                waiting[problem] = waiting.get(problem, 0) + self._machine.queues.active.count(sub_queue)
        problems += [f"{problem}; {pods} pods wait" for problem, pods in sorted(waiting.items())]
        fencing = [worker.name for worker in self._machine.members if worker.unfenced is not None]
        problems += finished(self._misplaced())
        problems += [
            f"worker {name} is lost and not fenced yet; its pods wait for that" for name in sorted(fencing)
        ]
        return problems
