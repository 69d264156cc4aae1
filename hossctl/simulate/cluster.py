"""A load placed by a whole platform on virtual time: one dispatcher, many workers, resolvers, the ledger's shards.

Queues, batches and balance are the dispatcher's own core; caches, rankings, assumptions and retries the workers' own; what fits
is `hoss.model.fit`. What is assumed is how long each service takes for a pod, how many cores there are, and how long a
message is under way.
"""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from dispatcher.core.costs import CostReport
from dispatcher.core.membership import Vitals
from dispatcher.core.messages import OutcomeCode, SendWork
from dispatcher.core.policy import Policy
from dispatcher.runtime import TICK_SECONDS
from hoss.model.pod import PodSpec
from hossctl.bench.in_process import empty_pool
from hossctl.choices import Mix
from hossctl.load import JOBS_PER_MESSAGE, MIB, PODS_PER_JOB, bench_nodes
from hossctl.simulate.dispatching import Dispatching, Told, Worker
from hossctl.simulate.ledger import ColumnLedger, NodeIndexes
from hossctl.simulate.placing import Answers, Entry, Judgement, Placing, Proposed, entry_of, judged
from hossctl.simulate.processes import Cores, Process
from hossctl.simulate.timeline import Happening, Timeline
from scheduler_worker.decision import DECIDES_AT_ONCE, Decision

WINDOW = 2000  # pods that a worker takes at once, as a real one does
HEARTBEAT_SECONDS = 0.5
PATIENCE_SECONDS = 10.0  # without a pod bound: then the rest fits nowhere
_CLASS = "uniform"


@dataclass(frozen=True, slots=True)
class ServiceTimes:
    """Microseconds of CPU for each pod, and seconds that a message is under way in the mean. The defaults are those of docs/benchmarks.md for
    uniform pods and two workers."""

    client: float = 1.5  # sending pods and reading what became of them
    dispatcher: float = 1.3
    worker: float = 2.5  # for a pod that it places
    feed: float = 0.3  # for a pod, its own or another's, that the feed tells a worker of
    resolver: float = 0.9  # for a pod that it decides
    follower: float = 0.1  # for a pod in the feed and a worker that follows it there
    ledger: float = 3.0
    hop_seconds: float = 0.0002


@dataclass(frozen=True, slots=True)
class Load:
    """Pods, all alike, and how they come. The default is that of `hoss bench throughput --mix uniform`."""

    cpu_milli: int = 250
    memory_bytes: int = 512 * MIB
    job_pods: tuple[int, int] = (PODS_PER_JOB, PODS_PER_JOB)  # the fewest and the most of a job
    jobs_per_message: int = JOBS_PER_MESSAGE


@dataclass(frozen=True, slots=True)
class Setting:
    """One run. `cores` for all processes together; 0: each has its own. What deciding takes besides CPU time is waited for, as in the
    real worker."""

    nodes: int
    pods: int
    workers: int
    resolvers: int = 1
    shards: int = 1  # of the ledger, each a Redis of its own
    cores: int = 0
    times: ServiceTimes = ServiceTimes()
    seed: int = 1
    load: Load = Load()
    decision: Decision = DECIDES_AT_ONCE


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of it."""

    setting: Setting
    seconds: float  # virtual, until the last pod was reported bound
    bound: int
    proposed: int  # pods, each as often as it was
    conflicts: int  # of those
    overcommitted: int  # nodes
    busyness: dict[str, float]  # by process, share of the time

    @property
    def pods_per_second(self) -> float:
        """Pods bound per virtual second."""
        return self.bound / self.seconds if self.seconds else 0.0

    @property
    def ledger_ratio(self) -> float:
        """Of what the ledger alone would do with the same service times."""
        return self.pods_per_second * self.setting.times.ledger / 1e6 / self.setting.shards

    @property
    def conflict_share(self) -> float:
        """Refused placements, of all proposed."""
        return self.conflicts / self.proposed if self.proposed else 0.0


class Simulation:
    """One run; `advance` goes on a little. The same setting, the same outcome."""

    def __init__(self, setting: Setting) -> None:
        self.bound = 0
        self._setting = setting
        self._bound_at = 0.0
        self._time = Timeline()
        self._delays = np.random.default_rng([setting.seed, 1])
        self._last_arrivals: dict[Hashable, float] = {}  # by stream
        pool = empty_pool(bench_nodes(Mix.UNIFORM, setting.nodes, seed=setting.seed))
        self._ledger = ColumnLedger(np.ascontiguousarray(pool.accounts.records["amounts"][:, :, 0].T))
        specs = {_CLASS: _spec_of(setting.load)}
        names = [f"worker-{number + 1}" for number in range(setting.workers)]
        workers = [Worker(name, {}, WINDOW) for name in names]
        self._dispatching = Dispatching(specs, workers, Policy(), seed=setting.seed, told=self._tell_worker)
        self._placings = [
            Placing(pool, specs, shards=setting.shards, seed=setting.seed + number) for number in range(setting.workers)
        ]
        self._placing_now = [False] * setting.workers
        cores = Cores(self._time, setting.cores or 2 + setting.workers + setting.resolvers + setting.shards)
        self._client, self._dispatcher = Process("client", cores), Process("dispatcher", cores)
        self._workers = [Process(name, cores) for name in names]
        self._resolvers = [Process(f"resolver-{number + 1}", cores) for number in range(setting.resolvers)]
        self._shards = [Process(f"ledger-{number + 1}", cores) for number in range(setting.shards)]
        jobs, together = list(_jobs_of(setting)), setting.load.jobs_per_message
        for first in range(0, len(jobs), together):
            self._submit(jobs[first : first + together])
        for number in range(setting.workers):
            begin = partial(self._time.every, HEARTBEAT_SECONDS, partial(self._beat, number))
            self._time.after(HEARTBEAT_SECONDS * number / setting.workers, begin)  # nobody's beats at the same moment
        self._time.every(TICK_SECONDS, lambda: self._send(self._dispatching.tick(self._time.now)))

    def advance(self, pods: int) -> bool:
        """Go on until so many more are bound; False when it is over."""
        goal = min(self._setting.pods, self.bound + pods)
        self._time.run_while(lambda: self.bound < goal and not self._stalled)
        return self.bound < self._setting.pods and not self._stalled

    def outcome(self) -> Outcome:
        """As of now."""
        over = (self._ledger.requested > self._ledger.allocatable).any(axis=0)
        processes = (self._client, self._dispatcher, *self._workers, *self._resolvers, *self._shards)
        seconds = self._bound_at
        return Outcome(
            self._setting,
            seconds,
            self.bound,
            sum(placing.proposed for placing in self._placings),
            sum(placing.conflicts for placing in self._placings),
            int(over.sum()),
            {process.name: min(1.0, process.busy_seconds / seconds) if seconds else 0.0 for process in processes},
        )

    @property
    def _stalled(self) -> bool:
        return self._time.now >= self._bound_at + PATIENCE_SECONDS

    # --- one pod's journey. Half of the client's and the dispatcher's time goes into the way there, half into the way back. ---

    def _submit(self, jobs: Sequence[int]) -> None:
        def admit() -> None:
            self._send(self._dispatching.submit_jobs(_CLASS, jobs, self._time.now))

        arrived = partial(self._on_the_way, "submissions", admit)
        self._work(self._client, sum(jobs), self._setting.times.client / 2, arrived)

    def _send(self, sent: Iterable[SendWork]) -> None:
        for work in sent:
            arrived = partial(self._on_the_way, ("work", work.link), partial(self._accept, work))
            self._work(self._dispatcher, len(work.uids), self._setting.times.dispatcher / 2, arrived)
        due = self._dispatching.wake_at
        if due is not None:
            self._time.after(max(0.0, due - self._time.now), self._pump)

    def _pump(self) -> None:
        self._send(self._dispatching.pump(self._time.now))

    def _accept(self, work: SendWork) -> None:
        self._placings[work.link].accept(work)
        self._place(work.link)

    def _place(self, worker: int) -> None:
        """Let a worker place what it has, unless it is at it."""
        placing, times = self._placings[worker], self._setting.times
        if self._placing_now[worker] or not placing.has_work:
            return
        heard = placing.learn(self._ledger)
        pods, proposals = placing.place(self._time.now)
        if pods:
            self._placing_now[worker] = True
            seconds = (pods * times.worker + heard * times.feed) / 1e6
            thinking = self._setting.decision.seconds(pods)
            propose = partial(self._propose, worker, proposals)
            # Thinking uses no core.
            self._workers[worker].do(seconds, partial(self._time.after, thinking, propose) if thinking else propose)
            self._workers[worker].busy_seconds += thinking

    def _propose(self, worker: int, proposals: list[Proposed]) -> None:
        self._placing_now[worker] = False
        times, resolver = self._setting.times, self._resolvers[worker % len(self._resolvers)]
        for proposal in proposals:
            pods = len(proposal.uids)
            decide = partial(self._decide, worker, proposal)
            script = partial(self._work, self._shards[proposal.shard], pods, times.ledger, decide)
            self._on_the_way(("proposals", worker), partial(self._work, resolver, pods, times.resolver, script))
        self._report(worker)
        self._place(worker)

    def _decide(self, worker: int, proposal: Proposed) -> None:
        judgement = judged(self._ledger, proposal)
        self._on_the_way(("verdicts", worker), partial(self._settle, worker, proposal, judgement))
        if judgement.seq:
            self._tell(proposal.shard, judgement.nodes[judgement.committed])

    def _tell(self, shard: int, nodes: NodeIndexes) -> None:
        """Every resolver passes the commit on to the workers that follow it."""
        entry = entry_of(self._ledger, shard, nodes)
        for number, resolver in enumerate(self._resolvers):
            followers = self._placings[number :: len(self._resolvers)]
            told = partial(self._on_the_way, ("feed", number), partial(_hear, followers, entry))
            self._work(resolver, len(nodes) * len(followers), self._setting.times.follower, told)

    def _settle(self, worker: int, proposal: Proposed, judgement: Judgement) -> None:
        self._placings[worker].settle(proposal, judgement, self._ledger)
        self._report(worker)
        self._place(worker)

    def _report(self, worker: int) -> None:
        micros = self._setting.times.dispatcher / 2
        for answers in self._placings[worker].outcomes():
            taken = partial(self._answer, worker, answers)
            self._on_the_way(
                ("outcomes", worker), partial(self._work, self._dispatcher, len(answers.positions), micros, taken)
            )

    def _answer(self, worker: int, answers: Answers) -> None:
        now = self._time.now
        self._send(self._dispatching.answer_columns(worker, answers.batch_id, answers.positions, answers.codes, now))
        bound = int((answers.codes == OutcomeCode.BOUND).sum())
        if bound:
            read = partial(self._work, self._client, bound, self._setting.times.client / 2, partial(self._count, bound))
            self._on_the_way("events", read)

    # --- besides the pods ---

    def _beat(self, worker: int) -> None:
        placing, busy = self._placings[worker], self._workers[worker].busy_seconds
        micros = busy / placing.proposed * 1e6 if placing.proposed else 0.0
        classes = placing.classes if micros else np.empty(0, np.uint32)
        costs = CostReport(classes, np.full(len(classes), micros))
        vitals = Vitals(busy, micros, placing.backlog, True, placing.conflicts, placing.proposed, seen_micros=micros)
        heard = partial(self._dispatching.heard, worker, vitals, costs)
        self._on_the_way(("outcomes", worker), lambda: self._send(heard(self._time.now)))

    def _tell_worker(self, told: Told) -> None:
        def take() -> None:
            self._placings[told.link].take(told)
            self._report(told.link)
            self._beat(told.link)

        self._on_the_way(("work", told.link), take)

    def _count(self, pods: int) -> None:
        self.bound += pods
        self._bound_at = self._time.now

    def _work(self, process: Process, pods: int, micros: float, then: Happening) -> None:
        process.do(pods * micros / 1e6, then)

    def _on_the_way(self, stream: Hashable, arrived: Happening) -> None:
        """A message of a stream, which overtakes none before it. How long it takes is drawn: processes that always take the same
        time would fall into step, and no real ones do."""
        at = self._time.now + self._delays.exponential(self._setting.times.hop_seconds)
        at = self._last_arrivals[stream] = max(at, self._last_arrivals.get(stream, 0.0))
        self._time.after(at - self._time.now, arrived)


def _jobs_of(setting: Setting) -> Iterator[int]:
    """How many pods each job has."""
    rng, left = np.random.default_rng(setting.seed), setting.pods
    fewest, most = setting.load.job_pods
    while left:
        job = min(left, int(rng.integers(fewest, most + 1)))
        yield job
        left -= job


def _hear(followers: Iterable[Placing], entry: Entry) -> None:
    for placing in followers:
        placing.hear(entry)


def _spec_of(pod: Load) -> PodSpec:
    return PodSpec(
        labels=(("app", "load"),),
        requests=(("cpu", pod.cpu_milli), ("memory", pod.memory_bytes)),
        nonzero_cpu_milli=pod.cpu_milli,
        nonzero_memory_bytes=pod.memory_bytes,
    )
