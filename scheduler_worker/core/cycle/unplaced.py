"""What becomes of pods that fit nowhere: they wait for room that this worker's own pods hold for the moment,
or the dispatcher is asked for victims, or they are answered."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from hoss.model.pod import PodSpec
from scheduler_worker.core.cache.assumptions import Assumption
from scheduler_worker.core.cache.node_info import NodeInfoCache
from scheduler_worker.core.cycle.backlog import Backlog
from scheduler_worker.core.cycle.draft import Draft, depends_on_pods, takes_by_name
from scheduler_worker.core.framework.extension_points import Diagnosis
from scheduler_worker.core.framework.sandbox import PluginFailed, PluginFailures
from scheduler_worker.core.placement.diagnosis import ExaminedPod, ports_in_flight, room_in_flight
from scheduler_worker.core.preemption.evaluator import PreemptionEvaluator
from scheduler_worker.core.preemption.search import NEVER
from scheduler_worker.core.work import OutcomeCollector, Run

# Filters that refuse for the moment while this worker's own pods are in flight.
_ABOUT_ROOM = frozenset({"NodeResourcesFit", "DeviceCards"})
_ABOUT_PORTS = "NodePorts"

# The ledger evicts nobody for them (docs/adr/0012-guards-across-shards.md): to ask would never end.
_ON_SEVERAL_SHARDS = (
    "not eligible: the pod has rules about other pods, volumes or devices, and the ledger has several shards."
)


class UnplacedPods:
    """Decides about runs that fit nowhere. `examine` returns a run's pods with plugin state that is up to
    date, or raises PluginFailed."""

    def __init__(
        self,
        cache: NodeInfoCache,
        *,
        backlog: Backlog,
        draft: Draft,
        preemption: PreemptionEvaluator,
        outcomes: OutcomeCollector,
        failures: PluginFailures,
        examine: Callable[[Run], ExaminedPod],
    ) -> None:
        self._cache = cache
        self._backlog = backlog
        self._draft = draft
        self._preemption = preemption
        self._outcomes = outcomes
        self._failures = failures
        self._examine = examine

    def settle(self, run: Run, why_not: Diagnosis) -> None:
        """Find out whether waiting or preemption can help these pods; else answer them."""
        if why_not.elsewhere or why_not.failed:
            self.refuse(run, why_not)
            return
        spec = run.pod_class.spec
        drafted = self._draft.assumed(len(self._cache.schema))
        _, in_the_way = self.room_in_flight(run, why_not, drafted)
        if drafted in in_the_way:
            self._backlog.await_draft(run)
        elif in_the_way:
            self._backlog.await_room(in_the_way, [run])
        elif spec.priority <= run.work.lowest_priority or run.work.gang is not None:
            self.refuse(run, why_not)
        elif not spec.may_preempt:
            self.refuse(run, why_not._replace(text=f"{why_not.text} preemption: {NEVER}"))
        elif self._cache.shards > 1 and _has_rules(spec):
            self.refuse(run, why_not._replace(text=f"{why_not.text} preemption: {_ON_SEVERAL_SHARDS}"))
        else:
            try:
                useless = self._preemption.ask(replace(run, evicting=why_not), why_not, self._examine(run))
            except PluginFailed as failure:
                useless = self._failures.note(failure)
            if useless is not None:
                self.refuse(run, useless)

    def room_in_flight(
        self, run: Run, why_not: Diagnosis, drafted: Assumption | None = None
    ) -> tuple[int, list[Assumption]]:
        """How many of these pods, which fit nowhere now, may fit once this worker's assumptions in the way
        have ended, and those assumptions, `drafted` perhaps among them.

        An answer that such pods are unschedulable would strand them: no later event would wake them."""
        if not why_not.refused_by & {*_ABOUT_ROOM, _ABOUT_PORTS}:
            return 0, []
        try:
            admitted = self._examine(run).static.mask
        except PluginFailed as failure:
            self._failures.note(failure)
            return 0, []
        room, in_the_way = room_in_flight(self._cache, run.pod_class.demand, admitted, drafted)
        if _ABOUT_PORTS in why_not.refused_by:
            nodes, holders = ports_in_flight(self._cache, run.pod_class.spec, admitted, drafted)
            room, in_the_way = room + nodes, [*in_the_way, *(a for a in holders if a not in in_the_way)]
        return min(room, len(run.rows)), in_the_way

    def refuse(self, run: Run, why_not: Diagnosis, seqs: Mapping[int, int] | None = None) -> None:
        """Answer these pods. `seqs`: of the view that the diagnosis is from; None: the present one."""
        self._outcomes.refuse(run.work, run.rows, why_not, self._cache.seqs if seqs is None else seqs)


def _has_rules(spec: PodSpec) -> bool:
    """Whether the ledger may validate rules of the pod itself. The names of volumes and devices are some."""
    apart = bool(spec.pod_affinity and spec.pod_affinity.anti_required)
    return depends_on_pods(spec) or apart or takes_by_name(spec)
