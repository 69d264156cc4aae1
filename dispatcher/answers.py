"""What clients ask about pods, jobs and workers, answered from the columns. Reads only."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from dispatcher.candidate import Term
from dispatcher.core.membership import Worker
from dispatcher.core.podsets import PodSet
from dispatcher.core.podtable import NO_REASON, Phase, Rows
from dispatcher.nodes import NodeNames
from dispatcher.runtime import Runtime
from dispatcher.stories import Stories
from dispatcher.tenant_answers import behind
from hoss.errors import InvalidInput
from hoss.model.histograms import BOUNDS_SECONDS
from hoss.model.label_selector import parse_label_selector
from hoss.v1 import common_pb2
from hoss.v1 import dispatcher_pb2 as pb
from hoss.wire.columns import NONE_U16, NONE_U32
from hoss.wire.convert import labels_to_proto, template_to_proto

DEFAULT_PAGE_PODS = 500
MAX_PAGE_PODS = 10_000

_QUEUES = {Phase.QUEUED: "active", Phase.BACKOFF: "backoff", Phase.UNSCHEDULABLE: "unschedulable"}


class Answers:
    """Builds replies."""

    def __init__(self, runtime: Runtime, names: NodeNames, term: Term) -> None:
        self._runtime = runtime
        self._machine = runtime.machine
        self._registry = runtime.machine.registry
        self._names = names
        self._term = term
        self._stories = Stories(runtime, names)

    def pod(self, row: int, *, detail: bool = False, steps: bool = False) -> pb.PodInfo:
        """The pod in a row; with `detail` its template and faults too, with `steps` how it came where it is."""
        pods, pod_set = self._registry.pods, self._registry.set_of(row)
        template_id = int(pods.template[row])
        phase = Phase(int(pods.phase[row]))
        worker = int(pods.worker[row])
        destination = self._machine.routing.destination(int(self._registry.templates.lane[template_id]))
        nominated = self._machine.settlement.nominations.waits(row)
        if nominated:
            phase = Phase.SCHEDULING
        info = pb.PodInfo(
            uid=pods.uid[row].tobytes(),
            namespace=self._registry.namespace_of(row),
            name=pod_set.pod_name(row),
            job=pod_set.name,
            phase=pb.PodPhase.Name(phase),
            node=self._names.get(int(pods.node[row])) if phase is Phase.BOUND else "",
            worker="" if worker == NONE_U16 else self._machine.members.numbered(worker).name,
            attempts=int(pods.attempts[row]),
            reason=self._reason(row, phase, destination.problem),
            submitted_unix_ms=pod_set.submission.submitted_ms,
            phase_since_unix_ms=int(pods.since_ms[row]),
            rule=destination.rule.name if destination.rule else "",
            eviction=self._registry.reasons.texts[int(pods.eviction[row])],
            nominated_node=self._names.get(int(pods.node[row])) if nominated else "",
        )
        if detail:
            info.faults.extend(
                pb.Fault(at_unix_ms=f.at_ms, worker=f.worker, text=f.text, final=f.final)
                for f in self._registry.faults.of(row)
            )
            info.template.CopyFrom(template_to_proto(self._registry.templates.template(template_id)))
        if steps:
            self._stories.tell_pod(row, info)
        return info

    def queue_standing(self, row: int) -> pb.QueueStanding | None:
        """Where the pod in a row waits; None if it does not."""
        pods, reasons = self._registry.pods, self._registry.reasons
        queue = _QUEUES.get(Phase(int(pods.phase[row])))
        if queue is None:
            return None
        gated = bool(self._registry.templates.gated[pods.template[row]])
        times = self._machine.queues.times(row)
        not_before, at_latest = (0, 0) if times is None else map(self._machine.unix_ms, times)
        return pb.QueueStanding(
            behind=behind(self._runtime, row) if queue == "active" else "",
            name="gated" if gated else queue,
            since_unix_ms=int(pods.since_ms[row]),
            not_before_unix_ms=not_before,
            at_latest_unix_ms=at_latest,
            refused_by=sorted(reasons.refused_by[int(pods.reason[row])]),
        )

    def list_pods(self, request: pb.ListPodsRequest) -> pb.ListPodsReply:
        """One page, by row. Deleted pods are listed only when their phase is asked for. Raises InvalidInput."""
        rows = self.matching(request)
        if request.page_token:
            if not request.page_token.isdecimal():
                raise InvalidInput(f"{request.page_token!r} is not from an earlier reply", where="page_token")
            rows = rows[np.searchsorted(rows, int(request.page_token)) :]
        limit = min(request.limit or DEFAULT_PAGE_PODS, MAX_PAGE_PODS)
        return pb.ListPodsReply(
            pods=[self.pod(row, detail=request.templates) for row in rows[:limit].tolist()],
            next_page_token=str(rows[limit]) if len(rows) > limit else "",
        )

    def jobs(self, request: pb.ListJobsRequest) -> pb.ListJobsReply:
        """Jobs with their pods counted by phase."""
        reply = pb.ListJobsReply()
        for job in self._registry.directory.jobs():
            wanted = request.namespace in {"", job.namespace} and request.name in {"", job.name}
            if wanted and job.submission.durable:
                reply.jobs.append(self._job(job))
                if request.steps:
                    self._stories.tell_job(job, reply.jobs[-1])
        return reply

    def worker(self, worker: Worker) -> pb.WorkerInfo:
        """One worker."""
        now = self._runtime.now()
        return pb.WorkerInfo(
            name=worker.name,
            labels=labels_to_proto(sorted(worker.labels.items())),
            state=worker.state.value,
            epoch=worker.epoch,
            outstanding=worker.outstanding,
            window=worker.window,
            bound=worker.bound,
            conflicts=worker.vitals.conflicts,
            unschedulable=worker.unschedulable,
            busy_seconds=worker.vitals.busy_seconds,
            last_seen_ms_ago=int((now - worker.last_seen) * 1000),
            micros_per_pod=worker.vitals.micros_per_pod,
            estimated_micros=int(worker.work_micros),
            waiting_micros=int(worker.waiting_micros),
            proposed=worker.vitals.proposed,
            pods_per_second=worker.throughput.per_second(now),
            busy_share=worker.busy_share,
            incarnation=worker.incarnation,
            state_since_unix_ms=self._machine.unix_ms(worker.since),
            returned=worker.returned,
            synchronisation=worker.vitals.synchronisation,
            lags=[
                common_pb2.ShardLag(shard=shard, seqs=seqs, seconds=seconds)
                for shard, seqs, seconds in worker.vitals.lags
            ],
            fill_seconds=worker.vitals.fill_seconds,
        )

    def workers(self, request: pb.ListWorkersRequest) -> pb.ListWorkersReply:
        """All of them, by name."""
        reply = pb.ListWorkersReply()
        for worker in sorted(self._machine.members, key=lambda worker: worker.name):
            reply.workers.append(self.worker(worker))
            if request.steps:
                self._stories.tell_worker(worker, reply.workers[-1])
        return reply

    def status(self, version: str) -> pb.DispatcherStatus:
        """Counts, and what is wrong."""
        counts = self._registry.pods.count_by_phase()
        return pb.DispatcherStatus(
            version=version,
            pods_by_phase={phase.name: int(counts[phase]) for phase in Phase if phase is not Phase.ABSENT},
            jobs=sum(1 for job in self._registry.directory.jobs() if job.submission.durable),
            revision=self._machine.log.revision,
            uptime_ms=int((self._runtime.now() - self._runtime.started_at) * 1000),
            problems=self._problems(),
            term=self._term.number,
            address=self._term.address,
            counters={name: int(value) for name, value in self._machine.counters.items()},
            phases=[
                pb.PhaseTimes(phase=name, bounds_seconds=BOUNDS_SECONDS.tolist(), counts=histogram.counts.tolist())
                for name, histogram in self._machine.settlement.times.by_phase()
            ],
        )

    def bound(self) -> tuple[bytes, bytes]:
        """UIDs and node indexes of all bound pods, as columns; without those whose room is another's already."""
        pods = self._registry.pods
        leaving = pods.assigned[: pods.size] & (pods.eviction[: pods.size] != NO_REASON)
        rows = np.flatnonzero((pods.phase[: pods.size] == Phase.BOUND) & ~leaving)
        return pods.uid[rows].tobytes(), pods.node[rows].astype("<u4").tobytes()

    def _reason(self, row: int, phase: Phase, problem: str) -> str:
        if phase is Phase.QUEUED and problem:
            return problem
        return self._registry.reasons.texts[int(self._registry.pods.reason[row])]

    def matching(self, request: pb.ListPodsRequest) -> Rows:
        """The rows a request asks for. Raises InvalidInput."""
        pods, size = self._registry.pods, self._registry.pods.size
        unasked = {Phase.ABSENT, Phase.DELETED}
        phases = [int(phase) for phase in request.phases] or [int(p) for p in Phase if p not in unasked]
        wanted: NDArray[np.bool_] = np.isin(pods.phase[:size], phases) & (pods.phase[:size] != Phase.ABSENT)
        if request.node:
            index = self._names.index_of(request.node)
            wanted &= pods.node[:size] == (NONE_U32 if index is None else index)
            wanted &= pods.phase[:size] == Phase.BOUND
        if request.job:
            of_job = np.zeros(size, np.bool_)
            for job in self._jobs_named(request.namespace, request.job):
                of_job[job.rows] = True
            wanted &= of_job
        selector = parse_label_selector(request.label_selector, where="label_selector")
        if request.namespace or selector:
            templates = np.unique(pods.template[:size][wanted]).tolist()
            chosen = [i for i in templates if request.namespace in {"", self._registry.templates.kind(i).namespace}]
            if selector:
                labels = {i: dict(self._registry.templates.template(i).spec.labels) for i in chosen}
                chosen = [i for i in chosen if all(requirement.matches(labels[i]) for requirement in selector)]
            wanted &= np.isin(pods.template[:size], chosen)
        return np.flatnonzero(wanted).astype(np.uint32)

    def _jobs_named(self, namespace: str, name: str) -> Iterable[PodSet]:
        return (j for j in self._registry.directory.jobs() if j.name == name and namespace in {"", j.namespace})

    def misplaced(self) -> list[str]:
        """Bound pods that should not be where they are, by reason."""
        found = self._machine.residence.misplaced()
        return [f"{pods} bound pods: {reason}" for reason, pods in sorted(found.items())]

    def broken_gangs(self) -> list[pb.BrokenGang]:
        """Gangs of which some pods are bound, and too few."""
        gangs = self._registry.gangs
        broken = []
        for gang in gangs:
            bound, needed = gangs.bound(gang), gangs.needed(gang)
            if 0 < bound < needed:
                broken.append(
                    pb.BrokenGang(
                        namespace=gang.namespace,
                        name=gang.name,
                        bound=bound,
                        needed=needed,
                        complete_before=gang.complete,
                    )
                )
        return broken

    def _job(self, job: PodSet) -> pb.JobInfo:
        gang = self._registry.gangs.numbered(int(self._registry.pods.gang[job.first]))
        counts = np.bincount(self._registry.pods.phase[job.rows], minlength=len(Phase)).tolist()
        return pb.JobInfo(
            namespace=job.namespace,
            name=job.name,
            kind=job.kind,
            replicas=job.count,
            bound=counts[Phase.BOUND],
            queued=counts[Phase.QUEUED] + counts[Phase.BACKOFF] + counts[Phase.SCHEDULING],
            unschedulable=counts[Phase.UNSCHEDULABLE],
            failed=counts[Phase.FAILED],
            deleted=counts[Phase.DELETED],
            submitted_unix_ms=job.submission.submitted_ms,
            min_available=0 if gang is None else gang.minimum,
            gang="" if gang is None else gang.name,
        )

    def _problems(self) -> list[str]:
        problems = list(self._runtime.problems.values())
        if not self._term.certain():
            problems.append(f"{self._term.doubt()}; nothing is accepted until it can be")
        waiting: dict[str, int] = {}
        for lane in self._machine.queues.active.lanes():
            problem = self._machine.routing.destination(lane).problem
            if problem:
                waiting[problem] = waiting.get(problem, 0) + self._machine.queues.active.count(lane)
        problems += [f"{problem}; {pods} pods wait" for problem, pods in sorted(waiting.items())]
        fencing = [worker.name for worker in self._machine.members if worker.unfenced is not None]
        problems += self.misplaced()
        problems += [f"worker {name} is lost and not fenced yet; its pods wait for that" for name in sorted(fencing)]
        return problems
