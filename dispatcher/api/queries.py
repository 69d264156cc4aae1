"""Answers to clients' queries about pods, jobs, workers and tenants, read from the machine's columns. Changes
nothing."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from dispatcher.api.tenancy import TenantView
from dispatcher.core.pods.sets import PodSet
from dispatcher.core.pods.table import Phase, Rows
from dispatcher.core.pods.templates import TemplateKind, TemplateTable
from dispatcher.core.queue.tenants import Holding
from dispatcher.core.slices import Steps, finished
from dispatcher.core.workers.membership import Worker
from dispatcher.core.workers.work_timeline import ROW
from dispatcher.leader.leadership import Leadership
from dispatcher.ledger.moving import Mover
from dispatcher.ledger.nodes import ClusterNodes
from dispatcher.runtime import Runtime
from hoss.manifests.selectors import parse_label_selector
from hoss.model.quantity import whole_number
from hoss.model.selectors import Requirement
from hoss.model.statistics import BOUNDS_SECONDS
from hoss.v1 import common_pb2
from hoss.v1 import dispatcher_pb2 as pb
from hoss.wire.columns import NONE_U16, NONE_U32, U32, encode
from hoss.wire.convert import template_to_proto
from hoss.wire.convert_selectors import labels_to_proto
from hoss.wire.pages import first_page, key_before, not_from_a_reply

DEFAULT_PAGE_PODS = 500
MAX_PAGE_PODS = 10_000

# What entries of lists take, by estimate.
_POD_MICROS = 15.0
_TEMPLATE_MICROS = 70.0
_JOB_MICROS = 10.0
_WORKER_MICROS = 40.0
_TENANT_MICROS = 20.0
_GANG_MICROS = 10.0
_ROW_MICROS = 0.001
_LOOK_MICROS = 0.02  # at a row, whether it matches
_SLICE_ROWS = 100_000
_HISTORY_MICROS = 2000.0

# Pages of an audit that begin with a gang.
_GANGS = "gangs/"

_QUEUES = {Phase.QUEUED: "active", Phase.BACKOFF: "backoff", Phase.UNSCHEDULABLE: "unschedulable"}


def _page_start(token: str) -> int:
    """Where a page begins; "" is the first one. Raises InvalidInput."""
    start = whole_number(token or "0")
    if start is None:
        raise not_from_a_reply(token)
    return start


def _behind(runtime: Runtime, row: int) -> str:
    """Whose pods are dispatched before the active pod in a row, and why; "" if only the order of arrival
    decides."""
    machine = runtime.machine
    template_id = machine.registry.pods.template[row : row + 1]
    ((_, priority, tenant),) = machine.registry.templates.places(template_id).T.tolist()
    higher, rivals = machine.queues.active.rivals(priority, tenant)
    if higher:
        return f"pods of a higher priority than its {priority}"
    if not rivals:
        return ""
    holdings = {held.name: held for held in machine.tenants.holdings(runtime.now())}
    mine = holdings[machine.tenants.name(tenant)]
    others = [holdings[name] for name in map(machine.tenants.name, rivals) if name in holdings]
    first = min(others, key=_weighted_share, default=mine)
    if _weighted_share(first) >= _weighted_share(mine):
        return ""
    return (
        f"tenant {first.name or '(none)'}, which {_share_text(first)}; "
        f"tenant {mine.name or '(none)'} {_share_text(mine)}"
    )


def _weighted_share(held: Holding) -> float:
    return held.share / held.weight


def _share_text(held: Holding) -> str:
    return f"holds {held.share:.1%} of the cluster's {held.resource} (weight {held.weight:g})"


class _TemplateMessages:
    """The templates of a list, each written once: that takes several times as long as all the rest of a
    pod."""

    def __init__(self, templates: TemplateTable) -> None:
        self._templates = templates
        self._written: dict[int, tuple[bytes, TemplateKind, pb.PodTemplate]] = {}

    def __len__(self) -> int:
        return len(self._written)

    def of(self, template_id: int) -> pb.PodTemplate:
        """The template with this id."""
        spec, kind = self._templates.spec(template_id), self._templates.kind(template_id)
        known = self._written.get(template_id)
        # Between slices of a list, the id may have been given to another template.
        if known is None or known[0] is not spec or known[1] is not kind:
            known = spec, kind, template_to_proto(self._templates.template(template_id))
            self._written[template_id] = known
        return known[2]


class HistoryQueries:
    """Adds the transitions of pods, jobs and workers to replies."""

    def __init__(self, runtime: Runtime, nodes: ClusterNodes) -> None:
        self._runtime = runtime
        self._machine = runtime.machine
        self._history = runtime.machine.registry.history
        self._nodes = nodes

    def add_to_pod(self, row: int, info: pb.PodInfo) -> None:
        """All known transitions of the pod in a row."""
        after = self._machine.registry.set_of(row).submission.first_transition
        for step in self._history.of_pod(row, after):
            info.steps.add(
                at_unix_ms=step.at_ms,
                phase=pb.PodPhase.Name(step.phase),
                event=step.event,
                worker=step.worker,
                node="" if step.node == NONE_U32 else self._nodes.name(step.node),
                reason=step.reason,
            )
        info.steps_since_unix_ms = self._since_unix_ms

    def add_to_job(self, job: PodSet, info: pb.JobInfo) -> None:
        """The known transitions of the job's pods, counted; without pods that are forgotten."""
        passages = self._history.transition_counts(job.index, job.submission.first_transition)
        for (phase, event), passage in passages.items():
            info.steps.add(
                phase=pb.PodPhase.Name(phase),
                event=event,
                pods=passage.pods,
                first_unix_ms=passage.first_ms,
                last_unix_ms=passage.last_ms,
            )
        info.steps_since_unix_ms = self._since_unix_ms

    def add_to_worker(self, worker: Worker, info: pb.WorkerInfo) -> None:
        """The worker's latest transitions."""
        for step in worker.transitions:
            info.steps.add(
                at_unix_ms=self._machine.unix_ms(step.at),
                state=step.state.value,
                epoch=step.epoch,
                text=step.text,
            )

    @property
    def _since_unix_ms(self) -> int:
        """All transitions since then are known. A new leader does not get those of earlier terms."""
        return max(self._machine.unix_ms(self._runtime.started_at), self._history.dropped_until_ms)


class Queries:
    """One method per query; each builds a reply."""

    def __init__(
        self,
        runtime: Runtime,
        nodes: ClusterNodes,
        leadership: Leadership,
        mover: Mover,
    ) -> None:
        self._runtime = runtime
        self._mover = mover
        self._machine = runtime.machine
        self._registry = runtime.machine.registry
        self._nodes = nodes
        self._leadership = leadership
        self._history = HistoryQueries(runtime, nodes)

    def pod(
        self,
        row: int,
        *,
        detail: bool = False,
        steps: bool = False,
        written: _TemplateMessages | None = None,
    ) -> pb.PodInfo:
        """The pod in a row; with `detail` also its template and faults, with `steps` also its transitions.
        `written`: the templates of the pods before it in a list."""
        pods, pod_set = self._registry.pods, self._registry.set_of(row)
        template_id = int(pods.template[row])
        phase = Phase(int(pods.phase[row]))
        worker = int(pods.worker[row])
        destination = self._machine.routing.destination(int(self._registry.templates.sub_queue[template_id]))
        nominated = self._machine.settlement.nominations.is_nominated(row)
        if nominated:
            phase = Phase.SCHEDULING
        info = pb.PodInfo(
            uid=pods.uid[row].tobytes(),
            namespace=self._registry.namespace_of(row),
            name=pod_set.pod_name(row),
            job=pod_set.name,
            phase=pb.PodPhase.Name(phase),
            node=self._nodes.name(int(pods.node[row])) if phase is Phase.BOUND else "",
            worker="" if worker == NONE_U16 else self._machine.members.name_of(worker),
            attempts=int(pods.attempts[row]),
            reason=self._reason(row, phase, destination.problem),
            submitted_unix_ms=pod_set.submission.submitted_ms,
            phase_since_unix_ms=int(pods.since_ms[row]),
            rule=destination.rule.name if destination.rule else "",
            eviction=self._registry.reasons.texts[int(pods.eviction[row])],
            nominated_node=self._nodes.name(int(pods.node[row])) if nominated else "",
        )
        if detail:
            info.faults.extend(
                pb.Fault(at_unix_ms=f.at_ms, worker=f.worker, text=f.text, final=f.final)
                for f in self._registry.faults.of(row)
            )
            info.unmovable = self._mover.unmovable(row)
            gang = self._registry.gangs.numbered(int(pods.gang[row]))
            if gang is not None:
                lacks = self._registry.gangs.required(gang) - self._registry.gangs.bound(gang)
                info.gang, info.gang_lacks = gang.name, 0 if gang.complete else max(0, lacks)
            written = _TemplateMessages(self._registry.templates) if written is None else written
            info.template.CopyFrom(written.of(template_id))
        if steps:
            self._history.add_to_pod(row, info)
        return info

    def queue_position(self, row: int) -> pb.QueueStanding | None:
        """Where the pod in a row waits; None if it does not wait."""
        pods, reasons = self._registry.pods, self._registry.reasons
        queue = _QUEUES.get(Phase(int(pods.phase[row])))
        if queue is None:
            return None
        gated = bool(self._registry.templates.gated[pods.template[row]])
        times = self._machine.queues.times(row)
        not_before, at_latest = (0, 0) if times is None else map(self._machine.unix_ms, times)
        return pb.QueueStanding(
            behind=_behind(self._runtime, row) if queue == "active" else "",
            name="gated" if gated else queue,
            since_unix_ms=int(pods.since_ms[row]),
            not_before_unix_ms=not_before,
            at_latest_unix_ms=at_latest,
            refused_by=sorted(reasons.refused_by[int(pods.reason[row])]),
        )

    def list_pods(
        self, request: pb.ListPodsRequest, view: TenantView | None = None
    ) -> Steps[pb.ListPodsReply]:
        """One page, by row, of the pods in a view. Deleted pods are listed only if the request names their
        phase. Raises InvalidInput."""
        limit = min(request.limit or DEFAULT_PAGE_PODS, MAX_PAGE_PODS)
        rows = np.empty(0, np.uint32)
        for part in self._matching(request, _page_start(request.page_token)):
            rows = np.concatenate([rows, part if view is None else view.of_rows(part)])
            if len(rows) > limit:
                break
            yield _SLICE_ROWS * _LOOK_MICROS
        reply = pb.ListPodsReply(next_page_token=str(rows[limit]) if len(rows) > limit else "")
        # Between slices a pod may go, or be in another phase than it was found in.
        uids = self._registry.pods.uid[rows[:limit]]
        written = _TemplateMessages(self._registry.templates)
        for row, uid in zip(rows[:limit].tolist(), uids, strict=True):
            known = len(written)
            if (self._registry.pods.uid[row] == uid).all():  # else the row was given to another pod meanwhile
                reply.pods.append(self.pod(row, detail=request.templates, written=written))
                if view is not None:
                    view.redact(reply.pods[-1])
            yield _POD_MICROS + (len(written) - known) * _TEMPLATE_MICROS
        return reply

    def jobs(self, request: pb.ListJobsRequest, view: TenantView | None = None) -> Steps[pb.ListJobsReply]:
        """One page of the jobs in a view, in order of submission, with the number of their pods by phase; all
        of them without a limit. Raises InvalidInput."""
        directory, first = self._registry.directory, _page_start(request.page_token)
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

    def _reason(self, row: int, phase: Phase, problem: str) -> str:
        if phase is Phase.QUEUED and problem:
            return problem
        return self._registry.reasons.texts[int(self._registry.pods.reason[row])]

    def matching(self, request: pb.ListPodsRequest) -> Steps[Rows]:
        """The rows that match a request. Raises InvalidInput."""
        parts = [np.empty(0, np.uint32)]
        for part in self._matching(request):
            parts.append(part)
            yield _SLICE_ROWS * _LOOK_MICROS
        return np.concatenate(parts)

    def _matching(self, request: pb.ListPodsRequest, first: int = 0) -> Iterator[Rows]:
        """The rows from `first` on that match a request, part by part. The pods of sets that came since the
        first part are not among them. Raises InvalidInput."""
        registry, pods = self._registry, self._registry.pods
        newest = registry.directory.newest
        shown = set(request.phases) or set(Phase) - {Phase.DELETED}
        phases = np.array([phase in shown and phase is not Phase.ABSENT for phase in Phase], np.bool_)
        index = self._nodes.index_of(request.node) if request.node else None
        jobs = [job.index for job in self._jobs_named(request.namespace, request.job)] if request.job else []
        named = self._rows_named(request) if request.name else None
        selector = parse_label_selector(request.label_selector, where="label_selector")
        wanted: dict[int, bool] = {}  # templates that were looked at
        for start in range(first, pods.size, _SLICE_ROWS):
            part = slice(start, min(start + _SLICE_ROWS, pods.size))
            matches: NDArray[np.bool_] = phases[pods.phase[part]] & (pods.pod_set[part] <= newest)
            if request.node:
                matches &= pods.node[part] == (NONE_U32 if index is None else index)
                matches &= pods.phase[part] == Phase.BOUND
            if request.job:
                matches &= np.isin(pods.pod_set[part], jobs)
            if named is not None:
                matches &= np.isin(np.arange(part.start, part.stop), named)
            if request.namespace or selector:
                used = np.flatnonzero(np.bincount(pods.template[part][matches])).tolist()
                for number in used:
                    if number not in wanted:
                        wanted[number] = self._template_matches(number, request.namespace, selector)
                matches &= np.isin(pods.template[part], [number for number in used if wanted[number]])
            yield (np.flatnonzero(matches) + start).astype(np.uint32)

    def _template_matches(self, number: int, namespace: str, selector: Sequence[Requirement]) -> bool:
        templates = self._registry.templates
        if namespace not in {"", templates.kind(number).namespace}:
            return False
        labels = dict(templates.template(number).spec.labels) if selector else {}
        return all(requirement.matches(labels) for requirement in selector)

    def _rows_named(self, request: pb.ListPodsRequest) -> list[int]:
        """The rows of pods by name, in one namespace or in each."""
        spaces = [request.namespace] if request.namespace else list(self._machine.objects.namespaces)
        rows = (self._registry.directory.row_of_name(space, request.name) for space in spaces)
        return [row for row in rows if row is not None]

    def _jobs_named(self, namespace: str, name: str) -> Iterable[PodSet]:
        return (
            j for j in self._registry.directory.jobs() if j.name == name and namespace in {"", j.namespace}
        )

    def audit(self, request: pb.DispatcherAuditRequest) -> Steps[pb.DispatcherAuditReply]:
        """One page of the bound pods, by row, and then of the gangs with some bound pods, but fewer than they
        need. The last page has the numbers of bound pods that should not be on their nodes, by reason. Raises
        InvalidInput."""
        reply, token = pb.DispatcherAuditReply(), request.page_token
        first_gang = whole_number(token.removeprefix(_GANGS)) if token.startswith(_GANGS) else None
        if first_gang is None:
            yield from self._add_bound(reply, _page_start(token), request.limit)
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
        for start in range(first, pods.size, _SLICE_ROWS):
            part = slice(start, min(start + _SLICE_ROWS, pods.size))
            rows = start + np.flatnonzero((pods.phase[part] == Phase.BOUND) & ~pods.terminating[part])
            if limit and count + len(rows) > limit:
                reply.next_page_token = str(rows[limit - count])
                rows = rows[: limit - count]
            # Read at once: between slices rows may get other pods.
            uids.append(pods.uid[rows].tobytes())
            nodes.append(pods.node[rows].astype("<u4").tobytes())
            count += len(rows)
            yield _SLICE_ROWS * _LOOK_MICROS
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
