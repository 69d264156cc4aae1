"""Preemption in a running worker: which pods may have to go is asked, for the cache knows groups and not pods.

Meanwhile the worker places on. What it chose it reckons with at once: the preemptor like any placement, its victims' room
as an assumption of negative amounts. The ledger then evicts all of a pod's victims or refuses the pod.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from hoss.model.fit import WHOLE_CARD_MILLI
from hoss.model.pod import PodSpec
from hoss.model.pod_groups import PodGroup, group_of
from hoss.model.resources import ResourceSchema
from hoss.wire.account import CARD_SLOTS
from hoss.wire.columns import Uids
from scheduler_worker.core.assumptions import Assumption
from scheduler_worker.core.cache import NodeInfoCache
from scheduler_worker.core.cards import CardMasks
from scheduler_worker.core.changes import NodeIndexes
from scheduler_worker.core.classes import compile_demand
from scheduler_worker.core.diagnosis import Diagnosis, resolvable
from scheduler_worker.core.guard import PluginFailed
from scheduler_worker.core.judge import Subject
from scheduler_worker.core.messages import PreemptionAnswer, PreemptionQuestion
from scheduler_worker.core.occupants import Occupants, Rows
from scheduler_worker.core.placement import Placed
from scheduler_worker.core.preemption import unhelpful
from scheduler_worker.core.preemption_search import PreemptionSearch
from scheduler_worker.core.profile import Profile
from scheduler_worker.core.proposal import Draft, Victims
from scheduler_worker.core.reliance import begins_a_kind
from scheduler_worker.core.work import Run

# kube-scheduler looks for so many candidates, or this share of the nodes if that is more.
_LEAST_NODES = 100
_SHARE_OF_NODES = 10  # percent

# Pods that look at other pods are tried node by node, at a millisecond each, and nothing else is placed meanwhile.
_NODES_ONE_BY_ONE = 50

# Placed by one answer; for the others it is asked again. Other work wants its turn.
_PODS_PER_ANSWER = 64
_VICTIMS_PER_ANSWER = 1000  # what one proposal may carry


_JUDGED_BY_LEDGER = "NodePorts"  # of the filters that look at other pods


@dataclass(slots=True, eq=False)
class Asked:
    """Pods that wait for an answer."""

    run: Run
    why_not: Diagnosis
    nodes: NodeIndexes  # not yet tried
    seqs: Mapping[int, int]  # where the view stood when they fitted nowhere: what came since may help them
    tried: int = 0
    reasons: Counter[str] = field(default_factory=Counter)  # why those tried do not help

    def diagnosis(self, present: int) -> Diagnosis:
        """The whole answer for pods for which nobody can go."""
        helpless = unhelpful(self.reasons, nodes=present, tried=self.tried)
        return Diagnosis(f"{self.why_not.text} preemption: {helpless}", self.why_not.refused_by)


@dataclass(slots=True)
class _Going:
    """A victim: proposed, or gone with this entry of a shard's feed, which the dispatcher may not have seen."""

    spec: PodSpec
    shard: int = 0
    seq: int = 0  # 0: the ledger has not said


class Preempting:
    """Open questions, and victims on their way out."""

    def __init__(self, cache: NodeInfoCache, profile: Profile, rng: np.random.Generator) -> None:
        self._cache = cache
        self._profile = profile
        self._rng = rng
        self._asked: dict[int, Asked] = {}
        self._questions: list[PreemptionQuestion] = []
        self._next_id = 1
        self.attempts = 0  # pods for which it was asked who could go
        self._going: dict[bytes, _Going] = {}  # victims by UID

    def __bool__(self) -> bool:
        return bool(self._asked)

    def ask(self, run: Run, why_not: Diagnosis, subject: Subject) -> Diagnosis | None:
        """Ask who could go for these pods, which fit nowhere; or the reason why that is of no use."""
        self.attempts += len(run.rows)
        for asked in self._asked.values():
            if asked.run.work is run.work and asked.run.pod_class is run.pod_class and asked.run.tries == run.tries:
                asked.run = replace(run, rows=np.concatenate((asked.run.rows, run.rows)))
                return None
        nodes = resolvable(subject, self._profile, self._cache)
        in_turn = np.roll(nodes, int(self._rng.integers(len(nodes)))) if len(nodes) else nodes
        asked = Asked(run, why_not, in_turn, dict(self._cache.seqs))
        if not len(nodes):
            return asked.diagnosis(int(self._cache.present.sum()))
        self._send(asked, by_amounts=PreemptionSearch.sees_amounts_only(subject))
        return None

    def ask_again(self, asked: Asked, rows: NDArray[np.intp], subject: Subject) -> None:
        """The same for these rows, about nodes not tried yet."""
        asked.run = replace(asked.run, rows=rows)
        self._send(asked, by_amounts=PreemptionSearch.sees_amounts_only(subject))

    def take_questions(self) -> list[PreemptionQuestion]:
        """Questions since the last time."""
        questions, self._questions = self._questions, []
        return questions

    def take(self, answer: PreemptionAnswer) -> Asked | None:
        """Whom an answer is for; None if nobody waits for it any more."""
        for uid, going in list(self._going.items()):
            if going.seq and answer.seen.get(going.shard, 0) >= going.seq:
                del self._going[uid]
        return self._asked.pop(answer.id, None)

    def take_waiting(self) -> list[Run]:
        """Everything that waits for answers: it does not any more."""
        runs = [asked.run for asked in self._asked.values()]
        self._asked.clear()
        self._questions.clear()
        return runs

    def forget_victims(self) -> None:
        """Another epoch: nothing that was proposed counts."""
        self._going.clear()

    def decided(self, victims: Victims, *, shard: int, seq: int) -> None:
        """The ledger evicted them with this commit; 0: it did not."""
        for uid in victims.uids:
            going = self._going.get(uid) if seq else self._going.pop(uid, None)
            if going is not None:
                going.shard, going.seq = shard, seq

    def place(
        self, asked: Asked, subject: Subject, answer: PreemptionAnswer, group: PodGroup, expires_at: float
    ) -> tuple[Draft, int]:
        """Place pods of the run where others can go for them, and assume both. A draft of these, and how many they are."""
        # Where only amounts matter nobody asks the census.
        counted = not PreemptionSearch.sees_amounts_only(subject)
        occupants, uids, grace_ms, ground = self._occupants(answer, counted=counted)
        seen = asked.nodes[: answer.nodes_seen]
        search = PreemptionSearch(subject, self._profile, ground, occupants, seen)
        most = min(len(asked.run.rows), _PODS_PER_ANSWER if search.by_amounts else 1)
        found: list[tuple[int, CardMasks, Victims]] = []
        begins = begins_a_kind(asked.run.pod_class, self._cache)
        victims_in_all = 0
        must_go = any(plugin.name != _JUDGED_BY_LEDGER for plugin, _ in subject.standings.filters)
        while len(found) < most and (best := search.best()) is not None:
            victims_in_all += len(best.victims)
            if victims_in_all > _VICTIMS_PER_ANSWER:
                break
            vacated = _vacating(best.node, occupants.requests[best.victims], expires_at)
            self._cache.vacate(vacated)
            masks = self._cache.assume(np.array((best.node,)), subject.demand, group)
            of_pod = tuple(uids[row].tobytes() for row in best.victims.tolist())
            self._going.update((uids[row].tobytes(), _Going(ground.specs[row])) for row in best.victims.tolist())
            leaving_ms = int(grace_ms[best.victims].max(initial=0))
            found.append((best.node, masks, Victims(of_pod, vacated, leaving_ms, must_go)))
            if search.by_amounts:
                try:
                    search.taken(best)
                except PluginFailed:
                    break  # what is assumed is proposed; who asks for the others meets the failure again
        draft = Draft()
        if found:
            nodes, all_masks, victims = zip(*found, strict=True)
            none = np.empty((len(found), 0), np.intp)
            draft.add(asked.run, Placed(np.array(nodes), none, np.concatenate(all_masks)), victims, first=begins)
        if len(found) < most and search.best() is None:
            asked.reasons += search.why_not()
            asked.tried += len(seen)
            asked.nodes = asked.nodes[answer.nodes_seen :]
        return draft, len(found)

    def _send(self, asked: Asked, *, by_amounts: bool) -> None:
        share = max(_LEAST_NODES, len(asked.nodes) * _SHARE_OF_NODES // 100)
        limit = share if by_amounts else _NODES_ONE_BY_ONE
        self._asked[self._next_id] = asked
        priority = asked.run.pod_class.priority
        self._questions.append(PreemptionQuestion(self._next_id, priority, asked.nodes.astype(np.uint32), limit))
        self._next_id += 1

    def _occupants(
        self, answer: PreemptionAnswer, *, counted: bool
    ) -> tuple[Occupants, Uids, NDArray[np.uint32], "_LiveGround"]:
        """The pods of an answer that the cache still reckons with."""
        there = np.ones(len(answer.uids), np.bool_)
        if self._going:
            there = np.array([uid.tobytes() not in self._going for uid in answer.uids], np.bool_)
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
        drawn = [sum(budget.selects(going.spec) for going in self._going.values()) for budget in answer.budgets]
        occupants = Occupants(
            nodes=nodes,
            priorities=priorities[classes],
            started_at=answer.since_ms[rows] / 1000,
            requests=requests.reshape(len(answer.specs), len(schema))[classes],
            covered=covered.reshape(len(answer.specs), len(answer.budgets))[classes],
            allowed=np.array([budget.allowed for budget in answer.budgets], np.int64) - np.array(drawn, np.int64),
        )
        ground = _LiveGround(self._cache, occupants, [answer.specs[i] for i in classes.tolist()], counted=counted)
        return occupants, answer.uids[rows], answer.grace_ms[rows], ground

    def _known(self, answer: PreemptionAnswer) -> NDArray[np.bool_]:
        """Which of the pods the census knows: it may be a moment ahead of the answer, or behind it."""
        found = np.zeros(len(answer.nodes), np.bool_)
        groups = [group_of(spec) for spec in answer.specs]
        numbers = {group: number for number, group in enumerate(dict.fromkeys(groups))}
        of_pods = np.array([numbers[group] for group in groups], np.intp)[answer.classes]
        for group, number in numbers.items():
            mine = np.flatnonzero(of_pods == number)
            on, which, counts = np.unique(answer.nodes[mine], return_inverse=True, return_counts=True)
            found[mine] = (self._cache.census.counts(group, on) >= counts)[which]
        return found


class _LiveGround:
    """The worker's own cache. Between `evict` and `restore` nothing else may look at it.

    Which cards a pod holds only the ledger knows. Reckoned with are full cards for whole ones, and for a share the emptiest
    card that can hold it; the ledger refuses where that is wrong.
    """

    def __init__(self, cache: NodeInfoCache, occupants: Occupants, specs: Sequence[PodSpec], *, counted: bool) -> None:
        self.cache = cache
        self._occupants = occupants
        self.specs = specs
        self._counted = counted
        self._cards: dict[int, Rows] = {}  # slots that a pod taken away held

    def evict(self, row: int) -> None:
        node = self._occupants.nodes[row]
        self.cache.requested[:, node] -= self._occupants.requests[row]
        if self._counted:
            self.cache.census.remove(group_of(self.specs[row]), np.array((node,)))
        devices = self.specs[row].devices
        if devices is not None:
            used = self.cache.cards.used[node].astype(np.int64)
            held = np.flatnonzero((used >= devices.milli) & (used <= WHOLE_CARD_MILLI))
            slots = held[np.argsort(used[held], kind="stable")][: min(devices.count, CARD_SLOTS)]
            self.cache.cards.used[node, slots] -= devices.milli
            self._cards[row] = slots

    def restore(self, row: int) -> None:
        node = self._occupants.nodes[row]
        self.cache.requested[:, node] += self._occupants.requests[row]
        if self._counted:
            self.cache.census.add(group_of(self.specs[row]), np.array((node,)))
        devices = self.specs[row].devices
        if devices is not None:
            self.cache.cards.used[node, self._cards.pop(row)] += devices.milli


def _vacating(node: int, requests: NDArray[np.int64], expires_at: float) -> Assumption:
    """Victims of one pod, as what their node will have back. The census still counts them: nothing relies on their being gone
    before the feed has shown it."""
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
