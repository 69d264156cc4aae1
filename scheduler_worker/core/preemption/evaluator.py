"""Preemption in a running worker: asks the dispatcher for pods that may be evicted, and chooses victims among
them.

The cache knows groups of pods and not single pods, so the dispatcher names them. Meanwhile the worker places
other pods. It counts its choice at once: the preemptor like any placement, the victims' room as an assumption
of negative amounts. The ledger then evicts all victims of a pod or refuses the pod."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hoss.model.pod import PodGroup, PodSpec, group_of
from hoss.model.resources import WHOLE_CARD_MILLI, ResourceSchema
from hoss.wire.columns import CARD_SLOTS, Uids
from scheduler_worker.core.cache.assumptions import Assumption, CardMasks
from scheduler_worker.core.cache.node_info import NodeInfoCache
from scheduler_worker.core.classes import compile_demand
from scheduler_worker.core.framework.extension_points import Diagnosis
from scheduler_worker.core.framework.profile import Profile
from scheduler_worker.core.framework.sandbox import PluginFailed
from scheduler_worker.core.messages import PreemptionAnswer, PreemptionQuestion
from scheduler_worker.core.nodes import NodeIndexes
from scheduler_worker.core.placement.diagnosis import ExaminedPod, resolvable
from scheduler_worker.core.preemption.search import PreemptionSearch, Rows, VictimCandidates, unhelpful
from scheduler_worker.core.work import Run

# kube-scheduler looks for so many candidates, or this share of the nodes if that is more.
_LEAST_NODES = 100
_SHARE_OF_NODES = 10  # percent

# Pods whose filters look at other pods are tried node by node, at a millisecond each, and nothing else is
# placed meanwhile.
_NODES_ONE_BY_ONE = 50

# One answer places no more than this; for further pods the worker asks again. Other work needs its turn.
_PODS_PER_ANSWER = 64
_VICTIMS_PER_ANSWER = 1000  # what one proposal may carry

_JUDGED_BY_LEDGER = "NodePorts"  # of the filters that look at other pods


class Victims(NamedTuple):
    """Pods that are evicted for one pod."""

    uids: tuple[bytes, ...]
    vacated: Assumption  # what their node gets back
    leaving_ms: int  # for how long the last of them may still be there
    must_go: bool  # in the way by rules that the ledger does not check, and not only for their room


class Preemptor(NamedTuple):
    """A pod that is placed where others are to be evicted."""

    node: int
    card_masks: CardMasks  # (1,)
    victims: Victims


@dataclass(slots=True, eq=False)
class PendingPreemption:
    """Pods that wait for the dispatcher's answer."""

    run: Run
    why_not: Diagnosis
    nodes: NodeIndexes  # not yet tried
    seqs: Mapping[int, int]  # of the view in which they fitted nowhere: later changes may help them
    tried: int = 0
    reasons: Counter[str] = field(default_factory=Counter)  # why those tried do not help

    def diagnosis(self, present: int) -> Diagnosis:
        """The whole answer for pods for which no eviction helps."""
        helpless = unhelpful(self.reasons, nodes=present, tried=self.tried)
        return self.why_not._replace(text=f"{self.why_not.text} preemption: {helpless}")


@dataclass(slots=True)
class _LeavingPod:
    """A victim, proposed or evicted. The dispatcher may not have seen its eviction."""

    spec: PodSpec
    shard: int = 0
    seq: int = 0  # of its eviction in the shard's feed; 0: the ledger has not decided


class PreemptionEvaluator:
    """Owns the open questions to the dispatcher, and the victims whose eviction the dispatcher may not
    know."""

    def __init__(self, cache: NodeInfoCache, profile: Profile, rng: np.random.Generator) -> None:
        self.attempts = 0  # pods for which the dispatcher was asked for victims, ever
        self._cache = cache
        self._profile = profile
        self._rng = rng
        self._pending: dict[int, PendingPreemption] = {}
        self._questions: list[PreemptionQuestion] = []
        self._next_id = 1
        self._leaving: dict[bytes, _LeavingPod] = {}  # by UID

    def __bool__(self) -> bool:
        return bool(self._pending)

    def ask(self, run: Run, why_not: Diagnosis, pod: ExaminedPod) -> Diagnosis | None:
        """Ask for victims for these pods, which fit nowhere; or the reason why no eviction helps."""
        self.attempts += len(run.rows)
        for pending in self._pending.values():
            other = pending.run
            if other.work is run.work and other.pod_class is run.pod_class and other.tries == run.tries:
                pending.run = replace(run, rows=np.concatenate((other.rows, run.rows)))
                return None
        nodes = resolvable(pod, self._profile, self._cache)
        rotated = np.roll(nodes, int(self._rng.integers(len(nodes)))) if len(nodes) else nodes
        pending = PendingPreemption(run, why_not, rotated, dict(self._cache.seqs))
        if not len(nodes):
            return pending.diagnosis(int(self._cache.present.sum()))
        self._send(pending, by_amounts=PreemptionSearch.sees_amounts_only(pod))
        return None

    def ask_again(self, pending: PendingPreemption, rows: NDArray[np.intp], pod: ExaminedPod) -> None:
        """Ask for these rows, about nodes not tried yet."""
        pending.run = replace(pending.run, rows=rows)
        self._send(pending, by_amounts=PreemptionSearch.sees_amounts_only(pod))

    def take_questions(self) -> list[PreemptionQuestion]:
        """Questions since the last call."""
        questions, self._questions = self._questions, []
        return questions

    def take(self, answer: PreemptionAnswer) -> PendingPreemption | None:
        """The pods that an answer is for; None if they wait no more."""
        for uid, leaving in list(self._leaving.items()):
            if leaving.seq and answer.seen.get(leaving.shard, 0) >= leaving.seq:
                del self._leaving[uid]
        return self._pending.pop(answer.id, None)

    def take_waiting(self) -> list[Run]:
        """Take out everything that waits for answers."""
        runs = [pending.run for pending in self._pending.values()]
        self._pending.clear()
        self._questions.clear()
        return runs

    def restart(self) -> None:
        """Another epoch: no question is open, and nothing that was proposed counts."""
        self.take_waiting()
        self._leaving.clear()

    def settled(self, shard: int, victims: Sequence[tuple[Victims, int]]) -> None:
        """The ledger evicted these with commits of these seqs; 0: it did not."""
        for of_pod, seq in victims:
            for uid in of_pod.uids:
                leaving = self._leaving.get(uid) if seq else self._leaving.pop(uid, None)
                if leaving is not None:
                    leaving.shard, leaving.seq = shard, seq

    def place(
        self,
        pending: PendingPreemption,
        pod: ExaminedPod,
        answer: PreemptionAnswer,
        group: PodGroup,
        expires_at: float,
    ) -> list[Preemptor]:
        """Place the first pods of the run where others can be evicted for them, and assume both."""
        # Where only amounts matter nothing reads the pod index.
        counted = not PreemptionSearch.sees_amounts_only(pod)
        candidates, uids, grace_ms, cluster = self._candidates(answer, counted=counted)
        seen = pending.nodes[: answer.nodes_seen]
        search = PreemptionSearch(pod, self._profile, cluster, candidates, seen)
        most = min(len(pending.run.rows), _PODS_PER_ANSWER if search.by_amounts else 1)
        found: list[Preemptor] = []
        victims_in_all = 0
        must_go = any(plugin.name != _JUDGED_BY_LEDGER for plugin, _ in pod.plugin_state.filters)
        while len(found) < most and (best := search.best()) is not None:
            victims_in_all += len(best.victims)
            if victims_in_all > _VICTIMS_PER_ANSWER:
                break
            vacated = _vacating(best.node, candidates.requests[best.victims], expires_at)
            self._cache.vacate(vacated)
            masks = self._cache.assume(np.array((best.node,)), pod.demand, group)
            specs_by_uid = {uids[row].tobytes(): cluster.specs[row] for row in best.victims.tolist()}
            self._leaving.update((uid, _LeavingPod(spec)) for uid, spec in specs_by_uid.items())
            leaving_ms = int(grace_ms[best.victims].max(initial=0))
            victims = Victims(tuple(specs_by_uid), vacated, leaving_ms, must_go)
            found.append(Preemptor(best.node, masks, victims))
            if search.by_amounts:
                try:
                    search.taken(best)
                except PluginFailed:
                    break  # what is assumed is proposed; the plugin fails again for the others
        if len(found) < most and search.best() is None:
            pending.reasons += search.why_not()
            pending.tried += len(seen)
            pending.nodes = pending.nodes[answer.nodes_seen :]
        return found

    def _send(self, pending: PendingPreemption, *, by_amounts: bool) -> None:
        share = max(_LEAST_NODES, len(pending.nodes) * _SHARE_OF_NODES // 100)
        limit = share if by_amounts else _NODES_ONE_BY_ONE
        self._pending[self._next_id] = pending
        run = pending.run
        uid = run.work.uids[run.rows[0]].tobytes()
        self._questions.append(
            PreemptionQuestion(
                self._next_id, run.pod_class.priority, pending.nodes.astype(np.uint32), limit, uid
            )
        )
        self._next_id += 1

    def _candidates(
        self, answer: PreemptionAnswer, *, counted: bool
    ) -> tuple[VictimCandidates, Uids, NDArray[np.uint32], "_LiveCluster"]:
        """The pods of an answer that the cache still counts, their UIDs and grace periods."""
        there = np.ones(len(answer.uids), np.bool_)
        if self._leaving:
            there = np.array([uid.tobytes() not in self._leaving for uid in answer.uids], np.bool_)
        if counted:
            there &= self._known(answer)
        rows = np.flatnonzero(there)
        classes, nodes = answer.classes[rows], answer.nodes[rows]
        schema = self._cache.schema
        names = tuple(schema.names)
        requests = np.array([_request(spec, names) for spec in answer.specs], np.int64)
        covered = np.array([[b.selects(spec) for b in answer.budgets] for spec in answer.specs], np.bool_)
        priorities = np.array([spec.priority for spec in answer.specs], np.int64)
        # What the dispatcher had not seen when it counted: see docs/adr/0011-preemption.md.
        drawn = [
            sum(budget.selects(leaving.spec) for leaving in self._leaving.values())
            for budget in answer.budgets
        ]
        candidates = VictimCandidates(
            nodes=nodes,
            priorities=priorities[classes],
            started_at=answer.since_ms[rows] / 1000,
            requests=requests.reshape(len(answer.specs), len(schema))[classes],
            covered=covered.reshape(len(answer.specs), len(answer.budgets))[classes],
            allowed=np.array([budget.allowed for budget in answer.budgets], np.int64)
            - np.array(drawn, np.int64),
        )
        cluster = _LiveCluster(
            self._cache, candidates, [answer.specs[i] for i in classes.tolist()], counted=counted
        )
        return candidates, answer.uids[rows], answer.grace_ms[rows], cluster

    def _known(self, answer: PreemptionAnswer) -> NDArray[np.bool_]:
        """Which of the pods the pod index counts: it may be a moment ahead of the answer, or behind it."""
        found = np.zeros(len(answer.nodes), np.bool_)
        groups = [group_of(spec) for spec in answer.specs]
        numbers = {group: number for number, group in enumerate(dict.fromkeys(groups))}
        of_pods = np.array([numbers[group] for group in groups], np.intp)[answer.classes]
        for group, number in numbers.items():
            mine = np.flatnonzero(of_pods == number)
            on, which, counts = np.unique(answer.nodes[mine], return_inverse=True, return_counts=True)
            found[mine] = (self._cache.pod_index.counts(group, on) >= counts)[which]
        return found


class _LiveCluster:
    """The worker's own cache. Between `evict` and `restore` nothing else may read it.

    Only the ledger knows which cards a pod holds. This class supposes full cards for whole ones, and for a
    share the emptiest card that can hold it. The ledger refuses a pod where that is wrong."""

    def __init__(
        self, cache: NodeInfoCache, candidates: VictimCandidates, specs: Sequence[PodSpec], *, counted: bool
    ) -> None:
        self.cache = cache
        self._candidates = candidates
        self.specs = specs
        self._counted = counted
        self._cards: dict[int, Rows] = {}  # slots that a pod taken away held

    def evict(self, row: int) -> None:
        self._add(row, -1)
        devices = self.specs[row].devices
        if devices is not None:
            used = self.cache.cards.used[self._candidates.nodes[row]]
            held = np.flatnonzero((used >= devices.milli) & (used <= WHOLE_CARD_MILLI))
            slots = held[np.argsort(used[held], kind="stable")][: min(devices.count, CARD_SLOTS)]
            used[slots] -= devices.milli
            self._cards[row] = slots

    def restore(self, row: int) -> None:
        self._add(row, 1)
        devices = self.specs[row].devices
        if devices is not None:
            self.cache.cards.used[self._candidates.nodes[row], self._cards.pop(row)] += devices.milli

    def _add(self, row: int, pods: int) -> None:
        node = self._candidates.nodes[row]
        self.cache.requested[:, node] += pods * self._candidates.requests[row]
        if self._counted:
            index = self.cache.pod_index
            (index.add if pods > 0 else index.remove)(group_of(self.specs[row]), np.array((node,)))


def _vacating(node: int, requests: NDArray[np.int64], expires_at: float) -> Assumption:
    """Victims of one pod, as what their node gets back. The pod index still counts them: nothing relies on
    their eviction before the feed has shown it."""
    return Assumption(
        nodes=np.full(len(requests), node, np.intp),
        slots=np.arange(len(requests)),
        requests=-requests,
        card_masks=np.zeros(len(requests), np.uint16),
        card_millis=np.zeros(len(requests), np.uint16),
        expires_at=expires_at,
    )


@lru_cache(maxsize=8192)
def _request(spec: PodSpec, names: tuple[str, ...]) -> NDArray[np.int64]:
    return compile_demand(spec, ResourceSchema(list(names))).request
