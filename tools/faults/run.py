"""A run: a platform under load, one fault, a recorder, and what the checker and the audit say afterwards."""

import asyncio
import contextlib
import random
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hoss.errors import HossError
from hoss.model.node import NodeSpec
from hoss.v1 import dispatcher_pb2 as pb
from hossctl.auditing import audit, disagreements
from hossctl.endpoints import Clients, clients_of
from hossctl.history.checker import check
from hossctl.history.checker_judgement import Judgement, Promise
from hossctl.history.events import ACCOUNTS, CLIENTS, Event, History, written
from hossctl.history.recorder import BLIND, Recorder
from hossctl.load.nodes import register
from tools.faults.catalogue import DidNotHappen, Fault, Strike
from tools.faults.load import Load
from tools.faults.platform import SERVICES, WORKERS, Platform

_NODES, _CPU, _PODS = 16, 4000, 40
_SETTLE_SECONDS = 90.0
_SERVICE_SECONDS = 120.0
_CALM_SECONDS = 2.0
_WARM_SECONDS, _AFTER_SECONDS = (0.8, 3.0), 1.5


@dataclass
class Outcome:
    """What became of one run. `seconds`: from the fault until a pod that was submitted during it was bound;
    from its end where nobody can be served before that. `lasted`: seconds of the fault."""

    seed: int
    text: str  # whom the fault hit
    seconds: float
    pods: int
    judgement: Judgement
    lasted: float = 0.0
    complaints: list[str] = field(default_factory=list)
    history: list[Event] = field(default_factory=list)

    def broken(self, promise: Promise) -> int:
        """How often a promise was."""
        return sum(found.promise is promise for found in self.judgement.violations)

    @property
    def others(self) -> int:
        """Breaches of all other promises, and what else is wrong."""
        counted = (Promise.NOTHING_LOST, Promise.ONE_NODE, Promise.NO_OVERCOMMIT)
        return len(self.judgement.violations) - sum(map(self.broken, counted)) + len(self.complaints)

    def problems(self) -> list[str]:
        """A line for each."""
        found = [
            f"{v.promise.value} at {v.at:.3f} s, lines {v.lines}: {v.text}" for v in self.judgement.violations
        ]
        return [*found, *self.complaints]


_WhyNot = Callable[[], Awaitable[Sequence[str]]]


class Trial:
    """A platform that one kind of fault strikes again and again. Each run begins and ends without pods."""

    def __init__(self, platform: Platform, fault: Fault, clients: Clients) -> None:
        self._platform = platform
        self._fault = fault
        self._clients = clients

    @classmethod
    @contextlib.asynccontextmanager
    async def opened(cls, directory: Path, fault: Fault) -> "AsyncIterator[Trial]":
        """A trial with a platform of its own."""
        with contextlib.ExitStack() as stack:
            opened = Platform.running(directory, fault.needs)
            platform = await asyncio.to_thread(stack.enter_context, opened)
            async with clients_of(platform.endpoints) as clients:
                amounts = (("cpu", _CPU), ("memory", 2**34), ("pods", _PODS))
                nodes = [NodeSpec(f"node-{number:02d}", allocatable=amounts) for number in range(_NODES)]
                await register(clients.resolver, nodes)
                trial = cls(platform, fault, clients)
                await trial._until(trial._whole, "the platform to be whole")
                yield trial

    async def run(self, seed: int) -> Outcome:
        """One run. Raises DidNotHappen where the fault had no effect."""
        rng = random.Random(f"{self._fault.name}/{seed}")
        blind = {what: why for what, why in BLIND.items() if what != "clients"}
        began = time.monotonic()
        history = History(
            lambda: time.monotonic() - began, source="faults", sees=[ACCOUNTS, CLIENTS], blind=blind
        )
        async with clients_of(self._platform.endpoints) as observers:
            recorder = Recorder(
                observers, history, every_seconds=0.5, still_seconds=_CALM_SECONDS, settle_seconds=20.0
            )
            stop = asyncio.Event()
            recording = asyncio.ensure_future(recorder.record(stop))
            try:
                outcome = await self._under_load(seed, rng, history)
                stop.set()
                if not await recording:
                    outcome.complaints.append("something changed to the last")
            finally:
                recording.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await recording
        outcome.history = history.events
        outcome.judgement = check(history.events)
        outcome.pods = outcome.judgement.judged[Promise.NOTHING_LOST]
        try:
            result = await audit(self._clients.dispatcher, self._clients.resolver)
            outcome.complaints += [f"audit: {finding.text}" for finding in result.findings]
            await self._clear()
        except HossError as exc:
            outcome.complaints.append(str(exc))
        return outcome

    async def _under_load(self, seed: int, rng: random.Random, history: History) -> Outcome:
        load = Load(self._clients, history, rng, name=f"r{seed}", cpu=_NODES * _CPU)
        running = asyncio.ensure_future(load.run())
        probes: list[asyncio.Task[float]] = []
        strike = Strike(self._platform, self._clients, rng)
        outcome = Outcome(seed, "", 0.0, 0, Judgement())
        try:
            await asyncio.sleep(rng.uniform(*_WARM_SECONDS))
            history.append("fault", by="faults", kind=self._fault.name)
            async with self._fault.happen(strike):
                struck = time.monotonic()
                if not self._fault.stops_service:
                    probes.append(asyncio.ensure_future(load.first_bound(struck)))
                await asyncio.sleep(rng.uniform(*self._fault.seconds))
                healing = time.monotonic()
                outcome.lasted = healing - struck
            history.append("fault", by="faults", kind="healed", target=strike.text)
            if not probes:
                probes.append(asyncio.ensure_future(load.first_bound(healing)))
            (outcome.seconds,) = await asyncio.wait_for(asyncio.gather(*probes), _SERVICE_SECONDS)
            await asyncio.sleep(_AFTER_SECONDS)
            load.stop()
            await asyncio.wait_for(running, _SERVICE_SECONDS)
            ended = [name for name in SERVICES if not self._platform.runs(name)]
            outcome.complaints += [f"{name} has ended by itself" for name in ended]
            outcome.complaints += await self._settled()
        except asyncio.TimeoutError:
            outcome.complaints.append(f"not served for {_SERVICE_SECONDS:g} s")
        finally:
            for task in (running, *probes):
                task.cancel()
            await asyncio.gather(running, *probes, return_exceptions=True)
        outcome.text = strike.text
        return outcome

    async def _settled(self) -> list[str]:
        """Wait until nothing is out of order. Why it still is, after so long."""
        try:
            await self._until(self._in_order, "rest")
        except HossError as exc:
            return [f"not settled: {exc}"]
        return []

    async def _until(self, why_not: _WhyNot, what: str, seconds: float = _SETTLE_SECONDS) -> None:
        """Until there has been no reason against it for a moment."""
        deadline, calm_since = time.monotonic() + seconds, 0.0
        while True:
            try:
                reasons = await why_not()
            except HossError as exc:
                reasons = [str(exc)]
            now = time.monotonic()
            calm_since = 0.0 if reasons else calm_since or now
            if calm_since and now - calm_since >= _CALM_SECONDS:
                return
            if now > deadline:
                raise HossError(f"waited {seconds:g} s for {what}: {'; '.join(reasons[:3])}")
            await asyncio.sleep(0.2)

    async def _whole(self) -> Sequence[str]:
        """Why not everybody serves and agrees with the ledger."""
        problems = (await self._clients.dispatcher.status()).problems
        return [
            *problems,
            *await disagreements(self._clients.dispatcher, self._clients.resolver, len(WORKERS)),
        ]

    async def _in_order(self) -> Sequence[str]:
        """Why pods, reservations and caches are not yet what they have to become."""
        phases = [pod.phase async for pod in self._clients.dispatcher.list_pods()]
        busy = sum(phase in (pb.QUEUED, pb.SCHEDULING, pb.BACKOFF) for phase in phases)
        if busy:
            return [f"{busy} pods are queued, with workers or in backoff"]
        result = await audit(self._clients.dispatcher, self._clients.resolver, wait_seconds=0.0)
        found = [finding.text for finding in result.findings]
        if not found and result.reservations != result.bound:
            found = [f"{result.reservations} reservations and {result.bound} bound pods"]
        return [*found, *await self._whole()]

    async def _clear(self) -> None:
        """No pods, and no reservations."""

        async def gone() -> Sequence[str]:
            jobs = await self._clients.dispatcher.list_jobs()
            for job in jobs:
                await self._clients.dispatcher.delete(job.namespace, jobs=[job.name])
            status = await self._clients.resolver.status()
            return (
                [f"{len(jobs)} jobs, {status.reservations} reservations"]
                if jobs or status.reservations
                else []
            )

        await self._until(gone, "an empty platform")
        await self._until(self._whole, "the platform to be whole")


async def runs_of(fault: Fault, seeds: Sequence[int], directory: Path) -> "AsyncIterator[Outcome]":
    """The outcomes one by one. Of broken ones the history is in the directory. After a broken run a new
    platform is started."""
    left = list(seeds)
    while left:
        async with Trial.opened(directory / f"{fault.name}-{left[0]}", fault) as trial:
            while left:
                seed = left.pop(0)
                outcome = await trial.run(seed)
                yield outcome
                if outcome.problems():
                    file = directory / f"{fault.name}-{seed}.jsonl"
                    file.write_text("".join(map(written, outcome.history)), encoding="utf-8")
                    break


def row(fault: Fault, outcomes: Sequence[Outcome]) -> str:
    """A row of the table in docs/reliability.md."""
    kept = [outcome.broken for outcome in outcomes]
    counts = [
        sum(broken(promise) for broken in kept)
        for promise in (Promise.NOTHING_LOST, Promise.ONE_NODE, Promise.NO_OVERCOMMIT)
    ]
    counts.append(sum(outcome.others for outcome in outcomes))
    seconds = [outcome.seconds for outcome in outcomes] or [0.0]
    served = f"{statistics.median(seconds):.1f}, {max(seconds):.1f}"
    pods = sum(outcome.pods for outcome in outcomes)
    cells = [f"`{fault.name}`", len(outcomes), f"{pods:,}", *counts, served]
    return f"| {' | '.join(map(str, cells))} |"


HEADER = (
    "| fault | runs | pods | lost | doubled | overcommitted | other breaches | seconds until service: "
    "median, longest |\n| --- | --- | --- | --- | --- | --- | --- | --- |"
)

__all__ = ["HEADER", "DidNotHappen", "Outcome", "Trial", "row", "runs_of"]
