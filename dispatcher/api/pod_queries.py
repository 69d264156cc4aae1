"""Answers to clients' queries about pods and their history, read from the machine's columns. Changes
nothing."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from dispatcher.api.tenancy import TenantView
from dispatcher.core.kubernetes.pod_objects import SeenPod
from dispatcher.core.pods.sets import PodSet
from dispatcher.core.pods.table import Phase, Rows
from dispatcher.core.pods.templates import TemplateKind, TemplateTable
from dispatcher.core.queue.tenants import Holding
from dispatcher.core.workers.membership import Worker
from dispatcher.ledger.moving import Mover
from dispatcher.ledger.nodes import ClusterNodes
from dispatcher.runtime import Runtime
from hoss.manifests.fields import parse_label_selector
from hoss.model.quantity import whole_number
from hoss.model.selectors import Requirement
from hoss.model.slices import Steps
from hoss.v1 import dispatcher_pb2 as pb
from hoss.wire.columns import NONE_U16, NONE_U32
from hoss.wire.convert import template_to_proto
from hoss.wire.pages import not_from_a_reply

DEFAULT_PAGE_PODS = 500
MAX_PAGE_PODS = 10_000

# What entries of lists take, by estimate.
_POD_MICROS = 15.0
_TEMPLATE_MICROS = 70.0
LOOK_MICROS = 0.02  # at a row, whether it matches
SLICE_ROWS = 100_000

# A page that begins behind the rows: with the first unplaceable pod behind this UID.
_BEHIND_ROWS = "u"

_QUEUES = {Phase.QUEUED: "active", Phase.BACKOFF: "backoff", Phase.UNSCHEDULABLE: "unschedulable"}


def page_start(token: str) -> int:
    """Where a page of a list in order of rows or numbers begins; "" is the first one. Raises InvalidInput."""
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
        counted = self._history.transition_counts(job.index, job.submission.first_transition)
        for (phase, event), count in counted.items():
            info.steps.add(
                phase=pb.PodPhase.Name(phase),
                event=event,
                pods=count.pods,
                first_unix_ms=count.first_ms,
                last_unix_ms=count.last_ms,
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


class UnplaceablePods:
    """Kubernetes mode: waiting pods of ours that HOSS cannot place, by UID (`PodMirror.unplaceable`). They
    have no row, so they are answered from here, and only to callers that see every tenant's pods."""

    def __init__(self, pods: Mapping[bytes, SeenPod]) -> None:
        self._pods = pods

    def find(self, request: pb.GetPodRequest) -> pb.PodInfo | None:
        """The pod that the request names, by UID or by name."""
        if request.uid:
            pod = self._pods.get(request.uid)
        else:
            name = request.namespace, request.name
            pod = next((pod for pod in self._pods.values() if (pod.namespace, pod.name) == name), None)
        return None if pod is None else _unplaceable_info(pod)

    def matching(self, request: pb.ListPodsRequest, after: bytes) -> list[SeenPod]:
        """Those behind this UID that match a request, in order of UIDs. Raises InvalidInput."""
        if request.job or request.node or (request.phases and pb.UNSCHEDULABLE not in request.phases):
            return []
        selector = parse_label_selector(request.label_selector, where="label_selector")
        return [
            pod
            for uid, pod in sorted(self._pods.items())
            if uid > after
            and request.namespace in ("", pod.namespace)
            and request.name in ("", pod.name)
            and all(requirement.matches(dict(pod.template.spec.labels)) for requirement in selector)
        ]


def _unplaceable_info(pod: SeenPod, *, detail: bool = False) -> pb.PodInfo:
    info = pb.PodInfo(
        uid=pod.uid, namespace=pod.namespace, name=pod.name, phase=pb.UNSCHEDULABLE, reason=pod.problem
    )
    if detail:
        info.template.CopyFrom(template_to_proto(pod.template))
    return info


def _unplaceable_after(token: str) -> bytes | None:
    """The UID behind which a page of unplaceable pods begins; None: it begins with a row. Raises
    InvalidInput."""
    if not token.startswith(_BEHIND_ROWS):
        return None
    try:
        return bytes.fromhex(token[len(_BEHIND_ROWS) :])
    except ValueError:
        raise not_from_a_reply(token) from None


class PodQueries:
    """One method per query; each builds a reply."""

    def __init__(
        self,
        runtime: Runtime,
        nodes: ClusterNodes,
        mover: Mover,
        unplaceable: UnplaceablePods | None = None,
    ) -> None:
        self._unplaceable = unplaceable or UnplaceablePods({})
        self._runtime = runtime
        self._mover = mover
        self._machine = runtime.machine
        self._registry = runtime.machine.registry
        self._nodes = nodes
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
        """One page, by row, of the pods in a view; then those without a row, by UID. Deleted pods are listed
        only if the request names their phase. Raises InvalidInput."""
        limit = min(request.limit or DEFAULT_PAGE_PODS, MAX_PAGE_PODS)
        rows = np.empty(0, np.uint32)
        after = _unplaceable_after(request.page_token)
        for part in self._matching(request, page_start(request.page_token)) if after is None else ():
            rows = np.concatenate([rows, part if view is None else view.of_rows(part)])
            if len(rows) > limit:
                break
            yield SLICE_ROWS * LOOK_MICROS
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
        sees_all = view is None or not view.tenant
        if request.unplaceable and sees_all and not reply.next_page_token:
            others = self._unplaceable.matching(request, after or b"")
            room = limit - len(reply.pods)
            for pod in others[:room]:
                reply.pods.append(_unplaceable_info(pod, detail=request.templates))
                yield _POD_MICROS
            if len(others) > room:
                last = others[room - 1].uid if room else after or b""
                reply.next_page_token = _BEHIND_ROWS + last.hex()
        return reply

    def matching(self, request: pb.ListPodsRequest) -> Steps[Rows]:
        """The rows that match a request. Raises InvalidInput."""
        parts = [np.empty(0, np.uint32)]
        for part in self._matching(request):
            parts.append(part)
            yield SLICE_ROWS * LOOK_MICROS
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
        for start in range(first, pods.size, SLICE_ROWS):
            part = slice(start, min(start + SLICE_ROWS, pods.size))
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

    def _reason(self, row: int, phase: Phase, problem: str) -> str:
        if phase is Phase.QUEUED and problem:
            return problem
        return self._registry.reasons.texts[int(self._registry.pods.reason[row])]
