"""The dispatcher's own state machine on virtual time: its queues, policy, balance, attempts and backoff.

All that simulations know of `dispatcher.core` is here. Journal and ledger answer at once; workers are whoever takes the
work batches that the methods return, and hears what else they are told.
"""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dispatcher.core import messages as m
from dispatcher.core.costs import CostReport
from dispatcher.core.dispatch import DEFAULT_BATCH_RULES, BatchRules
from dispatcher.core.machine import Machine, Settings
from dispatcher.core.membership import Vitals
from dispatcher.core.podsets import NewGang, NewJob, NewTemplate, Order
from dispatcher.core.policy import Policy
from dispatcher.core.templates import Kind
from hoss.errors import InvariantViolation
from hoss.model.pod import PodSpec, QosClass
from hoss.wire.columns import NONE_U32, UID_PREFIX_BYTES, Uids

TICK_SECONDS = 1.0
_LOGGED_PODS = 10_000  # nobody watches

Told = m.SendRecall | m.SendPreference


class Worker(NamedTuple):
    """A worker as it registers: `window` pods at once."""

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
    job: bytes  # as `submit` named it


class Dispatching:
    """One dispatcher with its workers, all there from the start."""

    def __init__(
        self,
        specs: Mapping[str, PodSpec],
        workers: Sequence[Worker],
        policy: Policy,
        *,
        seed: int,
        batches: BatchRules = DEFAULT_BATCH_RULES,
        told: Callable[[Told], None] = lambda _: None,
    ) -> None:
        """`specs`: the classes of pods there will be, by name. `told` hears of whatever workers are told besides work."""
        self._templates = {name: _template(name, spec) for name, spec in specs.items()}
        settings = Settings(batches, worker_timeout_seconds=float("inf"), event_log_pods=_LOGGED_PODS)
        self.machine = Machine(settings, policy, lambda name: specs[name.decode()], random.Random(seed))
        self._jobs = 0
        self._told = told
        for link, worker in enumerate(workers):
            self._take([m.Registered(link, worker.name, worker.labels, incarnation=1, window=worker.window)], 0.0)
            self._take([m.EpochGranted(link, link + 1), m.Heard(link, Vitals(ready=True))], 0.0)

    def submit(
        self, name: str, replicas: int, now: float, *, minimum: int | None = None
    ) -> tuple[bytes, list[m.SendWork]]:
        """Pods of a class. With a minimum they are a gang and travel together until so many are bound. Returns what their parts
        name the job, and what leaves for workers."""
        gangs = () if minimum is None else (NewGang("default", f"job-{self._jobs + 1}", minimum),)
        sets, sent = self._submit(name, [replicas], now, gangs)
        return sets[0], sent

    def submit_jobs(self, name: str, replicas: Sequence[int], now: float) -> list[m.SendWork]:
        """Jobs of a class that come in one message."""
        return self._submit(name, replicas, now, ())[1]

    def _submit(
        self, name: str, replicas: Sequence[int], now: float, gangs: tuple[NewGang, ...]
    ) -> tuple[list[bytes], list[m.SendWork]]:
        first = self._jobs + 1
        self._jobs += len(replicas)
        gang = 0 if gangs else None
        jobs = tuple(NewJob(f"job-{number}", 0, count, gang) for number, count in enumerate(replicas, start=first))
        order = Order(str(first), (self._templates[name],), jobs, None, gangs)
        submission = self.machine.registry.accept(order, self.machine.unix_ms(now))
        return [pod_set.uid_prefix for pod_set in submission.sets], self._take([m.Admitted(submission)], now)

    def answer(self, part: Part, code: m.OutcomeCode, at: NDArray[np.bool_], now: float) -> list[m.SendWork]:
        """The worker's answer for those pods of a part that `at`, (pods,), says. Which node they are on is the ledger's affair."""
        return self.answer_columns(part.worker, part.batch, part.positions[at], np.uint8(code), now)

    def answer_columns(
        self, worker: int, batch: int, positions: NDArray[np.uint32], codes: NDArray[np.uint8] | np.uint8, now: float
    ) -> list[m.SendWork]:
        """The same for rows of a batch, each with a code of its own, or all with one."""
        if not len(positions):
            return []
        all_codes = np.broadcast_to(codes, len(positions)).astype(np.uint8)
        nodes = np.where(all_codes == m.OutcomeCode.BOUND, 0, NONE_U32).astype(np.uint32)
        return self._take([m.OutcomesArrived(worker, batch, positions, all_codes, nodes, None, (), {})], now)

    def heard(self, worker: int, vitals: Vitals, costs: CostReport, now: float) -> list[m.SendWork]:
        """A heartbeat."""
        return self._take([m.Heard(worker, vitals, costs)], now)

    def end(self, uids: Uids, now: float) -> list[m.SendWork]:
        """These pods are done and gave back what they held."""
        return self._take([m.Deleted(self.machine.registry.directory.rows_of_uids(uids))], now)

    def tick(self, now: float) -> list[m.SendWork]:
        """Time went by: to be called every TICK_SECONDS."""
        return self._take([m.Tick()], now)

    @property
    def wake_at(self) -> float | None:
        """When to `pump` for a batch that waits for more pods; None: there is none."""
        return self.machine.dispatch.wake_at

    def pump(self, now: float) -> list[m.SendWork]:
        """Send what may be sent."""
        return self._sorted_out(self.machine.pump(now), now)

    def _take(self, events: Iterable[m.Event], now: float) -> list[m.SendWork]:
        sent: list[m.SendWork] = []
        for event in events:
            sent += self._sorted_out(self.machine.handle(event, now), now)
        return sent

    def _sorted_out(self, instructions: Iterable[m.Instruction], now: float) -> list[m.SendWork]:
        """The work among the instructions; what asks the ledger is answered here."""
        sent: list[m.SendWork] = []
        for instruction in instructions:
            match instruction:
                case m.SendWork():
                    sent.append(instruction)
                case m.Release():
                    sent += self._take([m.Released(instruction.rows)], now)
                case m.SendRecall() | m.SendPreference():
                    self._told(instruction)
                case m.Warn():
                    raise InvariantViolation(f"{instruction.event}: {instruction.fields}")
                case _:  # epochs, leases, the journal: nothing a simulation models
                    pass
        return sent


def parts_of(work: m.SendWork) -> list[Part]:
    """A batch, job by job, in the order in which their first pods stand in it."""
    prefixes = np.ascontiguousarray(work.uids[:, :UID_PREFIX_BYTES]).view(f"V{UID_PREFIX_BYTES}").ravel()
    positions = np.arange(len(prefixes), dtype=np.uint32)
    if work.gang_minimum:
        return [Part(work.link, work.batch, positions, work.uids, bytes(prefixes[0]))]
    of_job: dict[bytes, list[int]] = {}
    for position, prefix in enumerate(prefixes.tolist()):
        of_job.setdefault(prefix, []).append(position)
    return [Part(work.link, work.batch, positions[rows], work.uids[rows], job) for job, rows in of_job.items()]


def _template(name: str, spec: PodSpec) -> NewTemplate:
    return NewTemplate(name.encode(), Kind("default", "", "", QosClass.BURSTABLE, "Job"), spec.priority)
