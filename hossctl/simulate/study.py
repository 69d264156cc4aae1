"""`from hoss.sim import Cluster`: the workers' own cores on virtual time in one process, for studies.

Pods arrive, are placed by real caches, rankings and profiles, are validated by the ledger's rule of what
fits, and leave. Nothing waits for a clock: a day of arrivals takes as long as its decisions cost.

Host ports and rules on other pods are the ledger's own; gangs are placed whole, as workers and the ledger do
it. Not simulated, and refused where a pod asks for it: volumes, devices by claims, gates. Queues are simpler
than the dispatcher's (hossctl.simulate.study_queue). `hossctl.simulate.cluster` has the whole dispatcher and
the costs of every service instead."""

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dispatcher.core.messages import SendWork
from dispatcher.core.pods.gangs import MAX_GANG_PODS, TOO_MANY_PODS
from hoss.errors import InvalidInput, InvariantViolation
from hoss.model.fit import fits, pods_on_cards
from hoss.model.node import NodeSpec
from hoss.model.placing import PlacementAlgorithm
from hoss.model.pod import GangSpec, PodGroup, PodSpec, PodTemplate, Workload, group_of
from hoss.model.resources import WHOLE_CARD_MILLI
from hoss.wire.columns import NO_CARD, numbered_uids
from hoss.wire.uids import UID_BYTES
from hossctl.bench.gpu import empty_pool
from hossctl.choices import Mix
from hossctl.load.generated import bench_nodes
from hossctl.simulate.placing import (
    Answers,
    Entry,
    PodRules,
    Proposed,
    SimulatedPlacing,
    decide,
    feed_entry,
    ledger_of,
)
from hossctl.simulate.study_queue import PodNumbers, PodsOfClass, StudyBatch, StudyGang, StudyQueue
from hossctl.simulate.timeline import Timeline
from hossctl.traces.recording import Recording
from scheduler_worker.config import chosen_algorithm
from scheduler_worker.core.messages import Outcome, PodRun
from scheduler_worker.core.placement.algorithms import RANKING
from scheduler_worker.core.plugins import REGISTRY
from scheduler_worker.core.plugins.profiles import DEFAULT_PROFILE, PRESETS, ProfileSpec

_PREFIX = b"in a study.."  # of UIDs: 12 bytes; the pod's number follows
_MOST_FOLLOWED = 256  # entries that a worker without work collects before it applies them
_FIRST_ROWS = 1024
_CARDS = "cards"

# What a study refuses, by the field of a pod's spec.
_NOT_SIMULATED = {
    "volumes, which a study does not simulate: compare on a platform instead (`hoss up`)": "volumes",
    "devices by claims, which a study does not simulate: give nodes `cards` and pods `devices`": "claims",
    "scheduling gates, which nobody would lift: submit it `at` the time they are gone": "scheduling_gates",
}
_NOBODY: PodNumbers = np.empty(0, np.intp)


@dataclass(frozen=True, slots=True)
class StudyResult:
    """What became of the pods so far. Columns are in the order of submission; seconds are virtual."""

    now: float
    submitted_at: NDArray[np.float64]  # (pods,)
    bound_at: NDArray[np.float64]  # (pods,): of the latest binding; NaN: never bound
    nodes: NDArray[np.int32]  # (pods,): position of the node; -1: not bound, or left again
    proposed: int  # placements, counting each try
    conflicts: int  # of those, refused by the ledger
    # Share of all nodes' allocatable by resource, now; "cards": of their thousandths.
    used: Mapping[str, float]
    overcommitted: int  # nodes; 0 unless something is wrong

    @property
    def bound(self) -> int:
        """Pods that were bound, also those that have left."""
        return int(np.count_nonzero(~np.isnan(self.bound_at)))

    @property
    def waiting(self) -> int:
        """Pods that have come by now and were never bound."""
        return int(np.count_nonzero(np.isnan(self.bound_at) & (self.submitted_at <= self.now)))

    @property
    def waits(self) -> NDArray[np.float64]:
        """Seconds from submission to binding of the pods that were bound."""
        found = self.bound_at - self.submitted_at
        return found[~np.isnan(found)]

    @property
    def conflict_share(self) -> float:
        """Conflicts by placements proposed."""
        return self.conflicts / self.proposed if self.proposed else 0.0


class SimulatedCluster:
    """Nodes, workers and a ledger on virtual time. Equal arguments and submissions give equal results."""

    def __init__(
        self,
        nodes: int | Sequence[NodeSpec] = 1000,
        *,
        workers: int = 1,
        profile: str | ProfileSpec = DEFAULT_PROFILE,
        plugins: Mapping[str, Callable[..., Any]] | None = None,
        algorithm: str | Callable[[], PlacementAlgorithm] = RANKING,
        decision_seconds: float = 0.0,
        decision_seconds_per_pod: float = 0.0,
        batch: int = 1000,
        seed: int = 1,
    ) -> None:
        """`nodes`: how many of 32 CPUs and 128 GiB, or their specs. `profile`: a preset's name, or the
        plugins of a profile; `plugins` are classes of one's own by the names that a profile uses.
        `algorithm`: a class of one's own, of which each worker makes one, or a name as in WorkerConfig. A
        decision on n pods, at most `batch`, takes `decision_seconds` + n * `decision_seconds_per_pod`;
        meanwhile other workers place, so several workers can conflict only if decisions take time. Raises
        InvalidInput and, for a profile or an algorithm, ConfigError; `run` raises PluginFailed for what these
        do wrong."""
        specs = bench_nodes(Mix.UNIFORM, nodes, seed=seed) if isinstance(nodes, int) else list(nodes)
        for name, value in (("nodes", len(specs)), ("workers", workers), ("batch", batch)):
            if value < 1:
                raise InvalidInput(f"is {value}; it is 1 or more", where=name)
        if isinstance(profile, str) and profile not in PRESETS:
            raise InvalidInput(f"{profile!r} is none of {', '.join(PRESETS)}", where="profile")
        for name, seconds in (
            ("decision_seconds", decision_seconds),
            ("decision_seconds_per_pod", decision_seconds_per_pod),
        ):
            if not 0 <= seconds < math.inf:
                raise InvalidInput(f"is {seconds}; it is a time, 0 or more", where=name)
        self.nodes: Sequence[NodeSpec] = specs
        pool = empty_pool(specs)
        self._schema = pool.schema
        self._ledger = ledger_of(pool)
        self._rules = PodRules(pool)
        self._specs: dict[int, PodSpec] = {}  # by class
        self._named: dict[str, PodSpec] = {}  # the same by the names of classes
        chosen = PRESETS[profile] if isinstance(profile, str) else profile
        registry = REGISTRY.extended(dict(plugins or {}))
        self._placings = [
            SimulatedPlacing(
                pool,
                self._named,
                shards=1,
                seed=seed + number,
                profile=chosen.profile(registry),
                algorithm=chosen_algorithm(algorithm) if isinstance(algorithm, str) else algorithm(),
            )
            for number in range(workers)
        ]
        self._time = Timeline()
        self._decision = (decision_seconds, decision_seconds_per_pod)
        self._batch = batch
        self._idle = deque(range(workers))
        self._queue = StudyQueue(self._specs)
        self._in_hand: dict[int, _InHand] = {}  # by batch
        self._batches = 0
        self._gangs = 0
        self._classes: dict[PodSpec, int] = {}
        self._groups: list[PodGroup] = []  # by class
        self._with_rules = False  # whether any class has host ports or rules on other pods
        self._known: list[set[int]] = [set() for _ in range(workers)]  # classes by worker
        self._requests: dict[int, NDArray[np.int64]] = {}  # by class, once it was proposed
        self._pods = 0
        # By pod; longer than there are pods, because they grow by doubling.
        self._class_of = np.empty(_FIRST_ROWS, np.int32)
        self._lasts = np.empty(_FIRST_ROWS)
        self._submitted_at = np.empty(_FIRST_ROWS)
        self._bound_at = np.full(_FIRST_ROWS, math.nan)
        self._nodes = np.full(_FIRST_ROWS, -1, np.int32)
        self._card_masks = np.zeros(_FIRST_ROWS, np.uint16)  # bits of the cards that a bound pod has

    @property
    def now(self) -> float:
        """Virtual seconds since the beginning."""
        return self._time.now

    def submit(
        self,
        pod: PodSpec | PodTemplate,
        count: int = 1,
        *,
        at: float | None = None,
        lasts: float | None = None,
        minimum: int | None = None,
    ) -> range:
        """`count` equal pods that come at a moment (None: now) and leave so many seconds after they were
        bound (None: never). With a `minimum` they are a gang: at least so many are bound at once, or none;
        the others are bound if they fit. Returns their numbers. Raises InvalidInput."""
        if count < 1:
            raise InvalidInput(f"is {count}; it is 1 or more", where="count")
        spec = pod.spec if isinstance(pod, PodTemplate) else pod
        _check(spec)
        return self._submit([(spec, count)], *self._times(at, lasts), _gang_minimum(minimum, count))

    def submit_workloads(
        self, workloads: Iterable[Workload], *, at: float | None = None, lasts: float | None = None
    ) -> range:
        """The pods of workloads, such as those of a manifest; workloads of one gang are one here, too. `at`
        and `lasts` as in `submit`. Returns their numbers. Raises InvalidInput."""
        first, times = self._pods, self._times(at, lasts)
        together: dict[GangSpec | int, list[Workload]] = {}  # a workload without a gang by its position
        for position, workload in enumerate(workloads):
            _check(workload.template.spec)
            together.setdefault(workload.gang or position, []).append(workload)
        for gang, members in together.items():
            parts = [(workload.template.spec, workload.replicas) for workload in members]
            minimum = None if isinstance(gang, int) else gang.minimum
            self._submit(parts, *times, _gang_minimum(minimum, sum(count for _, count in parts)))
        return range(first, self._pods)

    def play(self, recording: Recording) -> range:
        """The pods of a recorded trace, from now on: each comes at its time, and stays as long as it did
        there. Returns their numbers."""
        first, start = self._pods, self.now
        for pod in recording.pods:
            _check(pod.workload.template.spec)
        for pod in recording.pods:
            gone = math.inf if pod.deletion_seconds is None else pod.deletion_seconds
            lasts = max(gone - pod.creation_seconds, 1e-3)
            at = start + max(0.0, pod.creation_seconds)
            self._submit([(pod.workload.template.spec, pod.workload.replicas)], at, lasts)
        return range(first, self._pods)

    def run(self, until: float = math.inf) -> StudyResult:
        """Advance to a moment, or until nothing is left to happen. Pods that fit nowhere stay waiting. Raises
        InvalidInput for a moment that is over."""
        if not until >= self.now:
            raise InvalidInput(f"is {until}; it is {self.now} now", where="until")
        if until == math.inf:
            self._time.run_while(lambda: True)
        else:
            self._time.run(until)
        return self.result()

    def result(self) -> StudyResult:
        """What became of the pods so far."""
        held, room = self._ledger.requested.sum(axis=1), self._ledger.allocatable.sum(axis=1)
        over = (self._ledger.requested > self._ledger.allocatable).any(axis=0)
        used = {name: float(held[i] / room[i]) for i, name in enumerate(self._schema) if room[i]}
        if self._ledger.cards is not None:
            cards = self._ledger.cards
            over |= ((cards > WHOLE_CARD_MILLI) & (cards != NO_CARD)).any(axis=1)
            used[_CARDS] = float(cards[cards != NO_CARD].mean()) / WHOLE_CARD_MILLI
        return StudyResult(
            self.now,
            self._submitted_at[: self._pods].copy(),
            self._bound_at[: self._pods].copy(),
            self._nodes[: self._pods].copy(),
            sum(placing.proposed for placing in self._placings),
            sum(placing.conflicts for placing in self._placings),
            used,
            int(over.sum()),
        )

    # --- the way of a pod ---

    def _times(self, at: float | None, lasts: float | None) -> tuple[float, float]:
        """When pods come, and how long they stay."""
        begin = self.now if at is None else at
        if not self.now <= begin < math.inf:
            raise InvalidInput(f"is {begin}; it is {self.now} now", where="at")
        if lasts is not None and not lasts > 0:
            raise InvalidInput(f"is {lasts}; a pod lasts more than 0 seconds", where="lasts")
        return begin, math.inf if lasts is None else lasts

    def _submit(
        self, parts: Sequence[tuple[PodSpec, int]], at: float, lasts: float, minimum: int = 0
    ) -> range:
        """Pods of some specs; with a minimum they are a gang."""
        first = self._pods
        added = tuple(self._add(spec, count, at, lasts) for spec, count in parts)
        gang = None
        if minimum:
            self._gangs += 1
            gang = StudyGang(f"gang-{self._gangs}", minimum, added)
        self._time.after(at - self.now, partial(self._arrive, added, gang))
        return range(first, self._pods)

    def _add(self, spec: PodSpec, count: int, at: float, lasts: float) -> PodsOfClass:
        number = self._classes.setdefault(spec, len(self._classes))
        if number == len(self._groups):
            self._specs[number] = self._named[str(number)] = spec
            self._groups.append(group_of(spec))
            self._with_rules |= bool(spec.host_ports or spec.pod_terms)
        pods = np.arange(self._pods, self._pods + count, dtype=np.intp)
        self._pods += count
        while len(self._nodes) < self._pods:
            self._class_of, self._lasts = _doubled(self._class_of, 0), _doubled(self._lasts, 0)
            self._submitted_at = _doubled(self._submitted_at, 0)
            self._bound_at, self._nodes = _doubled(self._bound_at, math.nan), _doubled(self._nodes, -1)
            self._card_masks = _doubled(self._card_masks, 0)
        rows = slice(self._pods - count, self._pods)
        self._class_of[rows], self._lasts[rows], self._submitted_at[rows] = number, lasts, at
        return PodsOfClass(number, pods)

    def _arrive(self, parts: Sequence[PodsOfClass], gang: StudyGang | None) -> None:
        for pods in parts:
            self._rules.register(self._groups[pods.number], self._ledger)
            if gang is None:
                self._queue.add(pods)
        if gang is not None:
            self._queue.add_gang(gang)
        self._give()

    def _give(self) -> None:
        """Give idle workers a batch each, as long as there are pods."""
        while self._queue and self._idle:
            worker = self._idle.popleft()
            self._placings[worker].accept(self._work(worker, self._queue.take(self._batch)))
            self._place(worker)

    def _work(self, worker: int, batch: StudyBatch) -> SendWork:
        pods = np.concatenate([part.pods for part in batch.parts])
        classes = [part.number for part in batch.parts]
        new = sorted(set(classes) - self._known[worker])
        self._known[worker].update(new)
        self._batches += 1
        self._in_hand[self._batches] = _InHand(pods, len(pods), batch.gang)
        uids = numbered_uids(_PREFIX, 0, len(pods))
        uids[:, len(_PREFIX) :] = pods.astype(">u4").view(np.uint8).reshape(-1, UID_BYTES - len(_PREFIX))
        return SendWork(
            worker,
            self._batches,
            tuple((number, str(number).encode()) for number in new),
            (),
            np.array(classes, np.uint32),
            np.array([len(part.pods) for part in batch.parts], np.uint32),
            np.zeros(len(classes), np.uint16),
            uids,
            lowest_priority=2**31 - 1,  # nobody is evicted
            gang="" if batch.gang is None else batch.gang.name,
            gang_minimum=0 if batch.gang is None else batch.gang.minimum,
        )

    def _place(self, worker: int) -> None:
        """Let a worker decide on its pods; with none left it is idle."""
        placing = self._placings[worker]
        placing.apply_feed(self._ledger)
        pods, proposals = placing.place(self.now)
        self._answer(worker)
        if not proposals and not placing.has_work:
            self._idle.append(worker)
            return
        if not proposals and not pods:  # else it would try again for ever at the same moment
            raise InvariantViolation(
                f"worker {worker} has pods in hand, knows all of the ledger, and places none"
            )
        job, each = self._decision
        self._time.after(job + each * pods, partial(self._propose, worker, proposals))

    def _propose(self, worker: int, proposals: Sequence[Proposed]) -> None:
        placing = self._placings[worker]
        for proposal in proposals:
            numbers = proposal.uids[:, len(_PREFIX) :].copy().view(">u4").ravel()
            for slot in np.unique(proposal.slots).tolist():
                pod = numbers[int(np.argmax(proposal.slots == slot))]
                self._requests[int(self._class_of[pod])] = proposal.requests[slot]
            verdict = decide(self._ledger, proposal, self._rules, worker)
            if proposal.devices is not None:
                self._card_masks[numbers[verdict.committed]] = verdict.card_masks[verdict.committed]
            if verdict.seq:
                entry = feed_entry(self._ledger, 0, verdict.nodes[verdict.committed], verdict.runs)
                self._publish(entry)
            placing.settle(proposal, verdict, self._ledger)
            # A refused pod was in the way of others as long as its worker assumed it.
            self._wake_by_rules(left=numbers[~verdict.committed].astype(np.intp))
        self._place(worker)
        self._give()

    def _publish(self, entry: Entry) -> None:
        for placing in self._placings:
            placing.follow(entry)
            if placing.followed >= _MOST_FOLLOWED:
                placing.apply_feed(self._ledger)

    def _answer(self, worker: int) -> None:
        """Take a worker's outcomes."""
        for answers in self._placings[worker].outcomes():
            hand = self._in_hand[answers.batch_id]
            hand.unanswered -= len(answers.positions)
            if not hand.unanswered:
                del self._in_hand[answers.batch_id]
            answered = hand.pods[answers.positions]
            bound, stuck = answers.codes == Outcome.BOUND, _stuck(answers)
            self._bind(answered[bound], answers.nodes[bound])
            if hand.gang is not None and not hand.gang.complete:
                self._answer_gang(hand.gang, bound=bool(bound.any()), stuck=bool(stuck.any()))
                if not hand.gang.complete:
                    continue
            for pods in self._by_class(answered[stuck]):
                self._queue.wait(pods)
            for pods in self._by_class(answered[~(bound | stuck)]):
                self._queue.add(pods)

    def _answer_gang(self, gang: StudyGang, *, bound: bool, stuck: bool) -> None:
        """A worker has answered a gang: its minimum is bound, or no pod of it, which is one answer then."""
        if bound:
            gang.complete = True
            for pods in gang.further_parts:
                self._queue.add(pods)
        elif stuck:
            self._queue.wait_as_gang(gang)
        else:
            self._queue.add_gang(gang)

    def _bind(self, pods: PodNumbers, nodes: NDArray[np.uint32]) -> None:
        if not len(pods):
            return
        self._bound_at[pods], self._nodes[pods] = self.now, nodes
        self._wake_by_rules(bound=pods)
        lasts = self._lasts[pods]
        for seconds in np.unique(lasts[lasts < math.inf]).tolist():
            self._time.after(seconds, partial(self._depart, pods[lasts == seconds]))

    def _depart(self, pods: PodNumbers) -> None:
        for number, numbers in self._by_class(pods):
            nodes = self._nodes[numbers].astype(np.intp)
            devices = self._specs[number].devices
            masks, milli = (None, 0) if devices is None else (self._card_masks[numbers], devices.milli)
            self._ledger.release(nodes, self._requests[number], masks, milli)
            self._rules.release(self._groups[number], nodes)
            gone = PodRun(self._groups[number], nodes, gone=True)
            self._publish(feed_entry(self._ledger, 0, nodes, (gone,)))
        self._wake_by_rules(left=pods)
        self._queue.wake_by_room(partial(self._room, np.unique(self._nodes[pods])))
        self._nodes[pods] = -1
        self._give()

    def _wake_by_rules(self, *, bound: PodNumbers = _NOBODY, left: PodNumbers = _NOBODY) -> None:
        """Queue the waiting pods that may fit because of pods that were bound or have left."""
        if self._with_rules and (len(bound) or len(left)):
            self._queue.wake_by_rules(*(np.unique(self._class_of[pods]).tolist() for pods in (bound, left)))

    def _room(self, nodes: NDArray[np.int32], number: int) -> int:
        """How many pods of a class have room on these nodes; more than that if they want shares of several
        cards, or if none was ever proposed."""
        request, devices = self._requests.get(number), self._specs[number].devices
        if request is None:
            return len(nodes)
        allocatable, requested = self._ledger.allocatable[:, nodes], self._ledger.requested[:, nodes]
        asked = request > 0
        free = np.maximum(allocatable[asked] - requested[asked], 0) // request[asked, None]
        places = free.min(axis=0)
        if devices is not None and self._ledger.cards is not None:
            places = np.minimum(
                places, pods_on_cards(self._ledger.cards[nodes], devices.count, devices.milli)
            )
        return int(places[fits(allocatable, requested, request)].sum())

    def _by_class(self, pods: PodNumbers) -> list[PodsOfClass]:
        classes = self._class_of[pods]
        return [PodsOfClass(number, pods[classes == number]) for number in np.unique(classes).tolist()]


@dataclass(slots=True)
class _InHand:
    """A worker's batch."""

    pods: PodNumbers
    unanswered: int
    gang: StudyGang | None


def _stuck(answers: Answers) -> NDArray[np.bool_]:
    """Pods that wait for a departure: they fit nowhere, or an algorithm named no node for them, so that the
    ledger refused nothing."""
    stuck: NDArray[np.bool_] = answers.codes == Outcome.UNSCHEDULABLE
    conflicts = answers.codes == Outcome.CONFLICT
    if conflicts.any():
        refused = np.zeros(0, np.uint32) if answers.refused is None else answers.refused
        stuck |= conflicts & ~np.isin(answers.positions, refused)
    return stuck


def _check(spec: PodSpec) -> None:
    """Raise InvalidInput for a pod that asks for what is not simulated."""
    for what, asked in _NOT_SIMULATED.items():
        if getattr(spec, asked):
            raise InvalidInput(f"asks for {what}", where="pod")


def _gang_minimum(minimum: int | None, pods: int) -> int:
    """The minimum of a gang of so many pods, 0 for pods that are none. Raises InvalidInput."""
    if minimum is None:
        return 0
    if not 1 <= minimum <= pods:
        raise InvalidInput(f"is {minimum}; it is 1 or more, and there are {pods} pods", where="minimum")
    if minimum > MAX_GANG_PODS:
        raise InvalidInput(f"is {minimum}; {TOO_MANY_PODS}", where="minimum")
    return minimum


def _doubled(column: NDArray[Any], value: float) -> NDArray[Any]:
    return np.concatenate([column, np.full(len(column), value, column.dtype)])
