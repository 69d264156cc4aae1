"""The dispatcher's own state machine on virtual time: its queues, policy, balance, attempts and backoff.
Everything that simulations know of `dispatcher.core` is here. Journal and ledger answer at once. The caller
plays the workers: methods return the work batches for them."""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dispatcher.core import messages as m
from dispatcher.core.dispatch.batches import DEFAULT_BATCH_RULES, BatchRules
from dispatcher.core.machine import Machine, Settings
from dispatcher.core.pods.sets import NewGang, NewJob, NewTemplate, Order
from dispatcher.core.pods.templates import TemplateKind
from dispatcher.core.policy.rules import Policy
from dispatcher.core.workers.reports import CostReport, Heartbeat
from hoss.errors import InvariantViolation
from hoss.model.pod import PodSpec, QosClass
from hoss.wire.columns import NONE_U32, Uids
from hoss.wire.uids import UID_PREFIX_BYTES

TICK_SECONDS = 1.0
_LOGGED_PODS = 10_000  # there are no watchers

ToWorker = m.SendRecall | m.SendPreference


class SimulatedWorker(NamedTuple):
    """A worker as it registers. `window`: pods at once."""

    name: str
    labels: Mapping[str, str]
    window: int


@dataclass(frozen=True, slots=True)
class Part:
    """Pods of one job in one work batch."""

    worker: int  # position among the workers
    batch: int
    positions: NDArray[np.uint32]
    uids: Uids
    job: bytes  # the name that `submit` returned


class Dispatching:
    """One dispatcher with its workers, which are connected from the start."""

    def __init__(
        self,
        specs: Mapping[str, PodSpec],
        workers: Sequence[SimulatedWorker],
        policy: Policy,
        *,
        seed: int,
        batches: BatchRules = DEFAULT_BATCH_RULES,
        to_worker: Callable[[ToWorker], None] = lambda _: None,
    ) -> None:
        """`specs`: all classes of pods, by name. `to_worker` gets the messages to workers other than work."""
        self._templates = {name: _template(name, spec) for name, spec in specs.items()}
        settings = Settings(batches, worker_timeout_seconds=float("inf"), event_log_pods=_LOGGED_PODS)
        self.machine = Machine(settings, policy, lambda name: specs[name.decode()], random.Random(seed))
        self._jobs = 0
        self._to_worker = to_worker
        for link, worker in enumerate(workers):
            self._take(
                [m.Registered(link, worker.name, worker.labels, incarnation=1, window=worker.window)], 0.0
            )
            self._take(
                [m.EpochGranted(link, link + 1), m.HeartbeatReceived(link, Heartbeat(ready=True))], 0.0
            )

    def submit(
        self, name: str, replicas: int, now: float, *, minimum: int | None = None
    ) -> tuple[bytes, list[m.SendWork]]:
        """Submit pods of a class. With a minimum they are a gang. Returns the job's name in `Part`, and the
        work that leaves for workers."""
        gangs = () if minimum is None else (NewGang("default", f"job-{self._jobs + 1}", minimum),)
        sets, sent = self._submit(name, [replicas], now, gangs)
        return sets[0], sent

    def submit_jobs(self, name: str, replicas: Sequence[int], now: float) -> list[m.SendWork]:
        """Submit jobs of a class in one message."""
        return self._submit(name, replicas, now, ())[1]

    def _submit(
        self, name: str, replicas: Sequence[int], now: float, gangs: tuple[NewGang, ...]
    ) -> tuple[list[bytes], list[m.SendWork]]:
        first = self._jobs + 1
        self._jobs += len(replicas)
        gang = 0 if gangs else None
        jobs = tuple(
            NewJob(f"job-{number}", 0, count, gang) for number, count in enumerate(replicas, start=first)
        )
        order = Order(str(first), (self._templates[name],), jobs, None, gangs)
        submission = self.machine.registry.accept(order, self.machine.unix_ms(now))
        return [pod_set.uid_prefix for pod_set in submission.sets], self._take([m.Admitted(submission)], now)

    def answer(self, part: Part, code: m.OutcomeCode, at: NDArray[np.bool_], now: float) -> list[m.SendWork]:
        """The worker's answer for the pods of a part that `at`, (pods,), selects. Their nodes are kept in the
        ledger."""
        return self.answer_columns(part.worker, part.batch, part.positions[at], np.uint8(code), now)

    def answer_columns(
        self,
        worker: int,
        batch: int,
        positions: NDArray[np.uint32],
        codes: NDArray[np.uint8] | np.uint8,
        now: float,
    ) -> list[m.SendWork]:
        """The same for rows of a batch, with a code for each row or one for all."""
        if not len(positions):
            return []
        all_codes = np.broadcast_to(codes, len(positions)).astype(np.uint8)
        nodes = np.where(all_codes == m.OutcomeCode.BOUND, 0, NONE_U32).astype(np.uint32)
        return self._take([m.OutcomesArrived(worker, batch, positions, all_codes, nodes, None, (), {})], now)

    def heartbeat(self, worker: int, heartbeat: Heartbeat, costs: CostReport, now: float) -> list[m.SendWork]:
        return self._take([m.HeartbeatReceived(worker, heartbeat, costs)], now)

    def end(self, uids: Uids, now: float) -> list[m.SendWork]:
        """These pods have ended and released their resources."""
        return self._take([m.Deleted(self.machine.registry.directory.rows_of_uids(uids))], now)

    def tick(self, now: float) -> list[m.SendWork]:
        """To be called every TICK_SECONDS."""
        return self._take([m.Tick()], now)

    @property
    def wake_at(self) -> float | None:
        """When to `pump` for a batch that waits for more pods; None: no batch waits."""
        return self.machine.dispatch.wake_at

    def pump(self, now: float) -> list[m.SendWork]:
        """Send the work that may be sent."""
        return self._work_among(self.machine.pump(now), now)

    def _take(self, events: Iterable[m.Event], now: float) -> list[m.SendWork]:
        sent: list[m.SendWork] = []
        for event in events:
            sent += self._work_among(self.machine.handle(event, now), now)
        return sent

    def _work_among(self, instructions: Iterable[m.Instruction], now: float) -> list[m.SendWork]:
        """The work among the instructions. Requests to the ledger are answered here."""
        sent: list[m.SendWork] = []
        for instruction in instructions:
            match instruction:
                case m.SendWork():
                    sent.append(instruction)
                case m.Release():
                    sent += self._take([m.Released(instruction.rows, unreserved=instruction.unreserved)], now)
                case m.SendRecall() | m.SendPreference():
                    self._to_worker(instruction)
                case m.Warn():
                    raise InvariantViolation(f"{instruction.event}: {instruction.fields}")
                case _:  # epochs, leases, the journal: nothing a simulation models
                    pass
        return sent


def parts_of(work: m.SendWork) -> list[Part]:
    """The parts of a batch, one for each job, in the order of their first pods."""
    prefixes = np.ascontiguousarray(work.uids[:, :UID_PREFIX_BYTES]).view(f"V{UID_PREFIX_BYTES}").ravel()
    positions = np.arange(len(prefixes), dtype=np.uint32)
    if work.gang_minimum:
        return [Part(work.link, work.batch, positions, work.uids, bytes(prefixes[0]))]
    of_job: dict[bytes, list[int]] = {}
    for position, prefix in enumerate(prefixes.tolist()):
        of_job.setdefault(prefix, []).append(position)
    return [
        Part(work.link, work.batch, positions[rows], work.uids[rows], job) for job, rows in of_job.items()
    ]


def _template(name: str, spec: PodSpec) -> NewTemplate:
    return NewTemplate(
        name.encode(), TemplateKind("default", "", "", QosClass.BURSTABLE, "Job"), spec.priority
    )
