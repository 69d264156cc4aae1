"""A load placed by a whole platform on virtual time: one dispatcher, many workers, resolvers, the ledger's
shards.

Queues, batches and balance are the dispatcher's own core. Caches, rankings, assumptions and retries are the
workers' own core. What fits is decided by `hoss.model.resources`. Assumed are the CPU time of each service
for a pod, the number of cores, and the time that a message takes.

The document (camel case, seconds unless named otherwise):

    nodes, pods, workers, resolvers, shards, cores, seed    cores 0: each process has its own
    serviceMicros            assumed CPU microseconds per pod: client, dispatcher, worker, feed, resolver,
                             follower, ledger (see hossctl.simulate.measured.ServiceTimes)
    hopSeconds               time that a message takes
    seconds                  virtual, until the last pod was reported bound
    bound, podsPerSecond
    ledgerRatio              podsPerSecond by the rate of the ledger alone
    proposed, conflicts, conflictShare
    overcommittedNodes       0 unless something is wrong
    busyness                 share of the time, by process
    busiest                  the process with the highest busyness
    measured                 of the benchmark that the times are from, else null: podsPerSecond, ledgerRatio,
                             conflictShare, and sameSize: whether nodes, pods and workers are the same here
"""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial

import numpy as np

from dispatcher.core.messages import OutcomeCode, SendWork
from dispatcher.core.policy.rules import Policy
from dispatcher.core.workers.reports import CostReport, Heartbeat
from dispatcher.runtime import TICK_SECONDS
from hoss.model.pod import PodSpec
from hossctl.bench.gpu import empty_pool
from hossctl.choices import Mix
from hossctl.console import Document
from hossctl.figures import camel, median
from hossctl.load.generated import JOBS_PER_MESSAGE, MIB, PODS_PER_JOB, bench_nodes
from hossctl.simulate.dispatching import Dispatching, SimulatedWorker, ToWorker
from hossctl.simulate.measured import Measured, ServiceTimes
from hossctl.simulate.placing import (
    Answers,
    Entry,
    Proposed,
    SimulatedPlacing,
    SimulatedVerdict,
    decide,
    feed_entry,
    ledger_of,
)
from hossctl.simulate.timeline import Cores, Event, Process, Timeline
from resolver.core.account_columns import NodeIndexes
from scheduler_worker.experiments import DECIDES_AT_ONCE, WorkerExperiment

WINDOW = 2000  # pods of a worker at once, as in a real worker
HEARTBEAT_SECONDS = 0.5
PATIENCE_SECONDS = 10.0  # so long without a binding, the rest fits nowhere
_CLASS = "uniform"


@dataclass(frozen=True, slots=True)
class SimulatedLoad:
    """Equal pods, and how they arrive. The default is that of `hoss bench throughput --mix uniform`."""

    cpu_milli: int = 250
    memory_bytes: int = 512 * MIB
    job_pods: tuple[int, int] = (PODS_PER_JOB, PODS_PER_JOB)  # the fewest and the most of a job
    jobs_per_message: int = JOBS_PER_MESSAGE


@dataclass(frozen=True, slots=True)
class SimulationSetting:
    """One run. `cores` are shared by all processes; 0: each process has its own. Decision cost is waited for
    without CPU time, as in the real worker."""

    nodes: int
    pods: int
    workers: int
    resolvers: int = 1
    shards: int = 1  # of the ledger, each a Redis of its own
    cores: int = 0
    times: ServiceTimes = field(default_factory=ServiceTimes)
    seed: int = 1
    load: SimulatedLoad = SimulatedLoad()
    decision: WorkerExperiment = DECIDES_AT_ONCE


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """What became of the pods of a simulated platform."""

    setting: SimulationSetting
    seconds: float  # virtual, until the last pod was reported bound
    bound: int
    proposed: int  # pods, counting each time
    conflicts: int  # of those
    overcommitted: int  # nodes
    busyness: dict[str, float]  # by process, share of the time

    @property
    def pods_per_second(self) -> float:
        """Per virtual second."""
        return self.bound / self.seconds if self.seconds else 0.0

    @property
    def ledger_ratio(self) -> float:
        """The rate by that of the ledger alone with the same service times."""
        return self.pods_per_second * self.setting.times.ledger / 1e6 / self.setting.shards

    @property
    def conflict_share(self) -> float:
        return self.conflicts / self.proposed if self.proposed else 0.0


class Simulation:
    """One run, advanced step by step. Equal settings give equal outcomes."""

    def __init__(self, setting: SimulationSetting) -> None:
        self.bound = 0
        self._setting = setting
        self._bound_at = 0.0
        self._time = Timeline()
        self._delays = np.random.default_rng([setting.seed, 1])
        self._last_arrivals: dict[Hashable, float] = {}  # by stream
        pool = empty_pool(bench_nodes(Mix.UNIFORM, setting.nodes, seed=setting.seed))
        self._ledger = ledger_of(pool)
        specs = {_CLASS: _spec_of(setting.load)}
        names = [f"worker-{number + 1}" for number in range(setting.workers)]
        workers = [SimulatedWorker(name, {}, WINDOW) for name in names]
        self._dispatching = Dispatching(
            specs, workers, Policy(), seed=setting.seed, to_worker=self._send_to_worker
        )
        self._placings = [
            SimulatedPlacing(pool, specs, shards=setting.shards, seed=setting.seed + number)
            for number in range(setting.workers)
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
            # Workers do not send heartbeats at the same moment.
            self._time.after(HEARTBEAT_SECONDS * number / setting.workers, begin)
        self._time.every(TICK_SECONDS, lambda: self._send(self._dispatching.tick(self._time.now)))

    def advance(self, pods: int) -> bool:
        """Run until so many more pods are bound; False when the run is over."""
        goal = min(self._setting.pods, self.bound + pods)
        self._time.run_while(lambda: self.bound < goal and not self._stalled)
        return self.bound < self._setting.pods and not self._stalled

    def outcome(self) -> SimulationResult:
        """The result so far."""
        over = (self._ledger.requested > self._ledger.allocatable).any(axis=0)
        processes = (self._client, self._dispatcher, *self._workers, *self._resolvers, *self._shards)
        seconds = self._bound_at
        return SimulationResult(
            self._setting,
            seconds,
            self.bound,
            sum(placing.proposed for placing in self._placings),
            sum(placing.conflicts for placing in self._placings),
            int(over.sum()),
            {
                process.name: min(1.0, process.busy_seconds / seconds) if seconds else 0.0
                for process in processes
            },
        )

    @property
    def _stalled(self) -> bool:
        return self._time.now >= self._bound_at + PATIENCE_SECONDS

    # --- the way of a pod; half of the client's and dispatcher's time is spent before placing, half after ---

    def _submit(self, jobs: Sequence[int]) -> None:
        def admit() -> None:
            self._send(self._dispatching.submit_jobs(_CLASS, jobs, self._time.now))

        arrived = partial(self._deliver, "submissions", admit)
        self._work(self._client, sum(jobs), self._setting.times.client / 2, arrived)

    def _send(self, sent: Iterable[SendWork]) -> None:
        for work in sent:
            arrived = partial(self._deliver, ("work", work.link), partial(self._accept, work))
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
        """Let a worker place its pods, unless it is placing."""
        placing, times = self._placings[worker], self._setting.times
        if self._placing_now[worker] or not placing.has_work:
            return
        learned = placing.apply_feed(self._ledger)
        pods, proposals = placing.place(self._time.now)
        if pods:
            self._placing_now[worker] = True
            seconds = (pods * times.worker + learned * times.feed) / 1e6
            thinking = self._setting.decision.seconds(pods)
            propose = partial(self._propose, worker, proposals)
            # Thinking uses no core.
            self._workers[worker].do(
                seconds, partial(self._time.after, thinking, propose) if thinking else propose
            )
            self._workers[worker].busy_seconds += thinking

    def _propose(self, worker: int, proposals: list[Proposed]) -> None:
        self._placing_now[worker] = False
        times, resolver = self._setting.times, self._resolvers[worker % len(self._resolvers)]
        for proposal in proposals:
            pods = len(proposal.uids)
            decide = partial(self._decide, worker, proposal)
            script = partial(self._work, self._shards[proposal.shard], pods, times.ledger, decide)
            self._deliver(("proposals", worker), partial(self._work, resolver, pods, times.resolver, script))
        self._report(worker)
        self._place(worker)

    def _decide(self, worker: int, proposal: Proposed) -> None:
        verdict = decide(self._ledger, proposal)
        self._deliver(("verdicts", worker), partial(self._settle, worker, proposal, verdict))
        if verdict.seq:
            self._publish(proposal.shard, verdict.nodes[verdict.committed])

    def _publish(self, shard: int, nodes: NodeIndexes) -> None:
        """Every resolver passes the commit on to the workers that follow it."""
        entry = feed_entry(self._ledger, shard, nodes)
        for number, resolver in enumerate(self._resolvers):
            followers = range(number, len(self._placings), len(self._resolvers))
            deliver = partial(self._deliver, ("feed", number), partial(self._follow, followers, entry))
            self._work(resolver, len(nodes) * len(followers), self._setting.times.follower, deliver)

    def _follow(self, workers: Iterable[int], entry: Entry) -> None:
        for worker in workers:
            self._placings[worker].follow(entry)
            self._place(worker)  # some may have waited for their view

    def _settle(self, worker: int, proposal: Proposed, verdict: SimulatedVerdict) -> None:
        self._placings[worker].settle(proposal, verdict, self._ledger)
        self._report(worker)
        self._place(worker)

    def _report(self, worker: int) -> None:
        micros = self._setting.times.dispatcher / 2
        for answers in self._placings[worker].outcomes():
            taken = partial(self._answer, worker, answers)
            self._deliver(
                ("outcomes", worker),
                partial(self._work, self._dispatcher, len(answers.positions), micros, taken),
            )

    def _answer(self, worker: int, answers: Answers) -> None:
        now = self._time.now
        self._send(
            self._dispatching.answer_columns(worker, answers.batch_id, answers.positions, answers.codes, now)
        )
        bound = int((answers.codes == OutcomeCode.BOUND).sum())
        if bound:
            read = partial(
                self._work, self._client, bound, self._setting.times.client / 2, partial(self._count, bound)
            )
            self._deliver("events", read)

    # --- besides the pods ---

    def _beat(self, worker: int) -> None:
        placing, busy = self._placings[worker], self._workers[worker].busy_seconds
        micros = busy / placing.proposed * 1e6 if placing.proposed else 0.0
        classes = placing.classes if micros else np.empty(0, np.uint32)
        costs = CostReport(classes, np.full(len(classes), micros))
        heartbeat = Heartbeat(
            busy, micros, placing.backlog, True, placing.conflicts, placing.proposed, seen_micros=micros
        )
        received = partial(self._dispatching.heartbeat, worker, heartbeat, costs)
        self._deliver(("outcomes", worker), lambda: self._send(received(self._time.now)))

    def _send_to_worker(self, message: ToWorker) -> None:
        def handle() -> None:
            self._placings[message.link].handle(message)
            self._report(message.link)
            self._beat(message.link)

        self._deliver(("work", message.link), handle)

    def _count(self, pods: int) -> None:
        self.bound += pods
        self._bound_at = self._time.now

    def _work(self, process: Process, pods: int, micros: float, then: Event) -> None:
        process.do(pods * micros / 1e6, then)

    def _deliver(self, stream: Hashable, arrived: Event) -> None:
        """Deliver a message after all earlier ones of its stream. The delay is random: with constant delays
        processes would synchronise, which real ones do not."""
        at = self._time.now + self._delays.exponential(self._setting.times.hop_seconds)
        at = self._last_arrivals[stream] = max(at, self._last_arrivals.get(stream, 0.0))
        self._time.after(at - self._time.now, arrived)


def _jobs_of(setting: SimulationSetting) -> Iterator[int]:
    """The number of pods of each job."""
    rng, left = np.random.default_rng(setting.seed), setting.pods
    fewest, most = setting.load.job_pods
    while left:
        job = min(left, int(rng.integers(fewest, most + 1)))
        yield job
        left -= job


def _spec_of(pod: SimulatedLoad) -> PodSpec:
    return PodSpec(
        labels=(("app", "load"),),
        requests=(("cpu", pod.cpu_milli), ("memory", pod.memory_bytes)),
        nonzero_cpu_milli=pod.cpu_milli,
        nonzero_memory_bytes=pod.memory_bytes,
    )


def as_json(outcome: SimulationResult, measured: Measured | None) -> Document:
    setting = outcome.setting
    micros = asdict(setting.times)
    hop_seconds = micros.pop("hop_seconds")
    return {
        **camel(setting, "nodes", "pods", "workers", "resolvers", "shards", "cores", "seed"),
        "serviceMicros": {name: round(value, 3) for name, value in micros.items()},
        "hopSeconds": hop_seconds,
        **camel(outcome, "seconds", digits=4),
        "bound": outcome.bound,
        **camel(outcome, "pods_per_second", digits=1),
        **camel(outcome, "ledger_ratio", digits=4),
        **camel(outcome, "proposed", "conflicts"),
        **camel(outcome, "conflict_share", digits=5),
        "overcommittedNodes": outcome.overcommitted,
        "busyness": {name: round(share, 4) for name, share in outcome.busyness.items()},
        "busiest": _busiest(outcome),
        "measured": None
        if measured is None
        else {
            **camel(measured, "pods_per_second", "ledger_ratio"),
            "conflictShare": round(measured.conflict_share, 5),
            "sameSize": _same_size(setting, measured),
        },
    }


def lines(outcome: SimulationResult, measured: Measured | None) -> list[tuple[str, object]]:
    same = measured is not None and _same_size(outcome.setting, measured)
    ratio = f"{outcome.ledger_ratio:.2f}"
    speed, conflicts = (
        f"{outcome.pods_per_second:,.0f}",
        f"{outcome.conflict_share:.2%} of {outcome.proposed:,} placements",
    )
    if measured is not None and same:
        speed += f"; measured {measured.pods_per_second:,.0f}"
        ratio += f"; measured {measured.ledger_ratio:.2f}"
        conflicts += f"; measured {measured.conflict_share:.2%}"
    left = outcome.setting.pods - outcome.bound
    workers = [share for name, share in outcome.busyness.items() if name.startswith("worker-")]
    shown: list[tuple[str, object]] = [
        ("pods/s", speed),
        ("of the ledger alone", ratio),
        ("bound", f"{outcome.bound:,} of {outcome.setting.pods:,} in {outcome.seconds:,.2f} s"),
        ("conflicts", conflicts),
        ("overcommitted nodes", outcome.overcommitted),
        ("busiest", f"{_busiest(outcome)}, {max(outcome.busyness.values()):.0%} of the time"),
    ]
    if left:
        shown.insert(3, ("not bound", f"{left:,}: no node has room for them"))
    others = [
        (f"busy {name}", f"{share:.0%}") for name, share in outcome.busyness.items() if "worker-" not in name
    ]
    return [*shown, *others, ("busy workers", f"{median(workers):.0%} (median), {max(workers):.0%} (most)")]


def _busiest(outcome: SimulationResult) -> str:
    return max(outcome.busyness, key=lambda name: outcome.busyness[name])


def _same_size(setting: SimulationSetting, measured: Measured) -> bool:
    return (setting.nodes, setting.pods, setting.workers) == (measured.nodes, measured.pods, measured.workers)
