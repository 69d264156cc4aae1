"""The dispatcher's machine on a clock of the test's own, with workers and a ledger that do what the test
says."""

import random
from collections.abc import Iterator, Mapping, Sequence
from itertools import count

import numpy as np
import pytest

from dispatcher.core import messages as m
from dispatcher.core.machine import Machine, Settings
from dispatcher.core.pods.sets import NewJob, NewPods, NewTemplate, Order, Submission
from dispatcher.core.pods.table import Phase
from dispatcher.core.pods.templates import TemplateKind
from dispatcher.core.policy.rules import Policy, Rule
from dispatcher.core.workers.reports import Heartbeat
from hoss.model.pod import PodSpec, QosClass

NONE = 0xFFFFFFFF
FOREVER_SECONDS = 1e9


class Bench:
    """One machine under test. `sent` holds the outstanding work batches by worker name; `emitted` all other
    instructions."""

    def __init__(self, policy: Policy | None = None, settings: Settings | None = None) -> None:
        self._specs: dict[bytes, PodSpec] = {}
        self.machine = Machine(
            settings or Settings(worker_timeout_seconds=FOREVER_SECONDS),
            policy or Policy(),
            self._specs.__getitem__,
            random.Random(7),
        )
        self.now = 1000.0
        self.sent: dict[str, list[m.SendWork]] = {}
        self.emitted: list[m.Instruction] = []
        self._links = count(1)
        self._orders = count(1)

    # --- what happens ---

    def handle(self, event: m.Event) -> None:
        self._take(self.machine.handle(event, self.now))

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.handle(m.Tick())

    def pump(self) -> None:
        self._take(self.machine.pump(self.now))

    def join(
        self,
        name: str,
        *,
        window: int = 2000,
        ready: bool = True,
        bind_seconds: Mapping[str, float] | None = None,
        packs: bool = False,
        **labels: str,
    ) -> int:
        """A worker registers, gets its epoch and says that its cache is filled; returns its link."""
        link = self.register(name, window=window, bind_seconds=bind_seconds, packs=packs, **labels)
        self.handle(m.EpochGranted(link, epoch=link))
        self.handle(m.HeartbeatReceived(link, Heartbeat(ready=ready)))
        return link

    def register(
        self,
        name: str,
        *,
        window: int = 2000,
        bind_seconds: Mapping[str, float] | None = None,
        packs: bool = False,
        **labels: str,
    ) -> int:
        link = next(self._links)
        self.handle(
            m.Registered(
                link,
                name,
                labels,
                incarnation=link,
                window=window,
                bind_seconds=bind_seconds or {},
                packs=packs,
            )
        )
        return link

    def job(self, name: str, replicas: int, *, spec: PodSpec | None = None, **kind: str) -> np.ndarray:
        """A job is admitted; returns its rows."""
        template = self._template(spec or PodSpec(), **kind)
        return self.admit((template,), (NewJob(name, 0, replicas),), None)

    def pods(self, *names: str, spec: PodSpec | None = None) -> np.ndarray:
        """Bare pods are admitted; returns their rows."""
        template = self._template(spec or PodSpec())
        return self.admit((template,), (), NewPods(names, np.zeros(len(names), np.uint32), None))

    def admit(self, templates, jobs, pods) -> np.ndarray:
        return self.admit_order(Order(f"request-{next(self._orders)}", templates, jobs, pods))

    def admit_order(self, order: Order) -> np.ndarray:
        submission = self.accept(order)
        self.handle(m.Admitted(submission))
        return np.concatenate(
            [np.arange(s.first, s.first + s.count, dtype=np.uint32) for s in submission.sets]
        )

    def accept(self, order: Order) -> Submission:
        return self.machine.registry.accept(order, 0)

    def answer(
        self, worker: str, code: m.OutcomeCode, *, node: int = 0, reason: str = "", **known
    ) -> m.SendWork:
        """A worker answers its oldest batch, every pod alike."""
        work = self.sent[worker].pop(0)
        self.outcomes(work, range(len(work.uids)), code, node=node, reason=reason, **known)
        return work

    def outcomes(
        self,
        work: m.SendWork,
        positions,
        code: int | Sequence[int],
        *,
        node: int = 0,
        reason: str = "",
        link: int | None = None,
        refused_by: tuple[str, ...] = (),
        failed: bool = False,
        seen: int | None = None,
    ) -> None:
        n = len(positions)
        codes = np.full(n, code, np.uint8)
        reserved = np.isin(codes, (m.OutcomeCode.BOUND, m.OutcomeCode.UNRESERVED))
        self.handle(
            m.OutcomesArrived(
                link=work.link if link is None else link,
                batch=work.batch,
                positions=np.array(positions, np.uint32),
                codes=codes,
                nodes=np.where(reserved, node, NONE).astype(np.uint32),
                reasons=np.zeros(n, np.uint16) if reason else None,
                texts=(reason,) if reason else (),
                commits={0: np.array([work.batch], np.uint64)} if reserved.any() else {},
                refused_by=(frozenset(refused_by),) if reason else (),
                failed=(failed,) if reason else (),
                view={} if seen is None else {0: seen},
            )
        )

    def set_policy(self, *rules: Rule) -> None:
        self._take(self.machine.set_policy(Policy(rules), self.now))

    # --- what is seen ---

    def phases(self, rows) -> list[Phase]:
        return [Phase(p) for p in self.machine.registry.pods.phase[rows].tolist()]

    def all_are(self, rows, phase: Phase) -> bool:
        return set(self.phases(rows)) == {phase}

    def in_hand(self, worker: str) -> int:
        return sum(len(work.uids) for work in self.sent.get(worker, []))

    def instructions(self, kind):
        return [instruction for instruction in self.emitted if isinstance(instruction, kind)]

    def _template(self, spec: PodSpec, **kind: str) -> NewTemplate:
        data = repr(spec).encode()
        self._specs[data] = spec
        fields = {"scheduler_name": "hoss", "priority_class_name": "", "owner_kind": "Job", **kind}
        return NewTemplate(
            data, TemplateKind(spec.namespace, qos_class=QosClass.BURSTABLE, **fields), spec.priority
        )

    def _take(self, instructions: list[m.Instruction]) -> None:
        for instruction in instructions:
            if isinstance(instruction, m.SendWork):
                worker = self.machine.members.on_link(instruction.link)
                self.sent.setdefault(worker.name, []).append(instruction)
            else:
                self.emitted.append(instruction)


@pytest.fixture
def new_bench() -> Iterator[type[Bench]]:
    """Makes benches; each machine's promises are checked when the test is over."""
    made: list[Bench] = []

    class CheckedBench(Bench):
        def __init__(self, *args, **kwargs) -> None:
            super().__init__(*args, **kwargs)
            made.append(self)

    yield CheckedBench
    for bench in made:
        bench.machine.check()


@pytest.fixture
def bench(new_bench: type[Bench]) -> Bench:
    return new_bench()
