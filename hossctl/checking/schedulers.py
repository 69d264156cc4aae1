"""Checks a scheduler in any language as it runs: its command is started on a platform of its own, gets pods
through a relay, loses its connection once, and is stopped."""

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from hoss.client.dispatcher import submission
from hoss.errors import InvalidInput, counted
from hoss.model.node import NodeSpec, Taint
from hoss.model.pod import Workload
from hoss.v1 import workerlink_pb2 as pb
from hossctl import auditing
from hossctl.checking.protocol import ProtocolObserver
from hossctl.checking.relay import Relay
from hossctl.endpoints import Clients
from hossctl.load import report
from hossctl.load.generated import pod_template
from hossctl.load.nodes import GIB, register
from hossctl.local.platform import PlatformOptions
from hossctl.local.process import log_tail

NAME = "checked"
_POLL_SECONDS = 0.02
_CORE, _ZONE = 1000, ("example.com/zone", "a")
_NODES, _IN_ZONE, _CORDONED, _TAINTED = 12, range(4), 10, 11
# Of the user's shell: the platform of the check is another one, and speaks plain text.
_NOT_PASSED_ON = ("HOSS_TLS_DIR", "HOSS_TOKEN", "HOSS_TOKEN_FILE", "HOSS_CONTEXT")


@dataclass(frozen=True, slots=True)
class _Load:
    """Equal pods, and what may become of them."""

    name: str
    words: str
    pods: int
    cpu_milli: int = _CORE
    in_zone: bool = False
    fits: bool = True


_PLACED = (
    _Load("chosen", "pods that select nodes by a label", 8, in_zone=True),
    _Load("equal", "equal pods", 40),
    _Load("large", "a pod that fits on no node", 1, cpu_milli=1000 * _CORE, fits=False),
)
_AFTER_A_LOSS = _Load("again", "pods after the connection was lost", 12)


@dataclass(frozen=True, slots=True)
class SchedulerCheck:
    """What was found."""

    problems: list[str]
    warnings: list[str]
    bound: int
    output: str  # the last lines that the scheduler wrote


def check_scheduler(
    command: Sequence[str],
    *,
    timeout_seconds: float,
    start_seconds: float | None = None,
    redis_url: str = "",
) -> SchedulerCheck:
    """Run the command, with {name}, {dispatcher} and {resolver} filled in. `timeout_seconds`: how long it may
    take to answer for pods, from the first that it got, and to end, each. `start_seconds`: how long to
    register and to get pods; None: as long. Raises InvalidInput where it cannot be started, and HossError
    where the platform cannot."""
    if shutil.which(command[0]) is None:
        raise InvalidInput("is no program that can be run", where=command[0])
    options = PlatformOptions(workers=(), redis_url=redis_url, insecure=True)
    with report.platform(options) as starter, tempfile.TemporaryDirectory(prefix="hoss-check-") as directory:
        state = starter.state
        log = Path(directory) / "output"

        async def run(clients: Clients) -> SchedulerCheck:
            observer = ProtocolObserver(NAME)
            await register(clients.resolver, _nodes())
            numbers = {node.index: int(node.spec.name) for node in await clients.resolver.list_nodes()}
            async with (
                Relay(state.dispatcher, observer) as dispatcher,
                Relay(state.resolvers[0], observer) as resolver,
            ):
                values = {"name": NAME, "dispatcher": dispatcher.address, "resolver": resolver.address}
                with log.open("wb") as written:
                    process = _started(command, values, written, home=directory)
                try:
                    steps = _Steps(
                        clients,
                        observer,
                        dispatcher,
                        process,
                        numbers,
                        timeout_seconds,
                        timeout_seconds if start_seconds is None else start_seconds,
                    )
                    await steps.run()
                finally:
                    await asyncio.to_thread(_kill, process)
            output = log_tail(log) if log.stat().st_size else ""
            problems = [*observer.problems, *steps.problems]
            return SchedulerCheck(problems, steps.warnings, len(observer.nodes), output)

        return report.run_on(state, run)


@dataclass(slots=True)
class _Steps:
    """One check. What is wrong with the messages is in the observer; `problems` has what did not happen."""

    clients: Clients
    observer: ProtocolObserver
    relay: Relay
    process: "subprocess.Popen[bytes]"
    numbers: Mapping[int, int]  # of _nodes(), by the index in the ledger
    timeout_seconds: float
    start_seconds: float
    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    async def run(self) -> None:
        """Go through all steps; a step without which the next ones say nothing is the last."""
        if not await self._registered(1, "did not register: it has to call {dispatcher}, as {name}"):
            return
        for load in _PLACED:
            if not await self._place(load):
                return
        self.relay.cut_links()
        if await self._registered(2, "did not register again after its connection was lost"):
            await self._place(_AFTER_A_LOSS)
        await self._audit()
        if _exit_code(self.process) is None:
            self.process.terminate()
            if not await self._until(lambda: _exit_code(self.process) is not None, self.timeout_seconds):
                within = f"within {self.timeout_seconds:g} s of SIGTERM"
                self.warnings.append(f"did not end {within}: its pods wait until it is lost")

    async def _registered(self, times: int, otherwise: str) -> bool:
        if await self._until(lambda: self.observer.registrations >= times, self.start_seconds):
            return True
        self._failed(otherwise, self.start_seconds)
        return False

    async def _place(self, load: _Load) -> bool:
        """Submit the load, and wait until it is decided; whether all of it was answered somehow."""
        template = pod_template(
            {"cpu": load.cpu_milli, "memory": GIB // 4},
            selector=(_ZONE,) if load.in_zone else (),
            owner="Job",
        )
        observer = self.observer
        known = set(observer.attempts)
        for request in submission([Workload(load.name, template, replicas=load.pods)]):
            await self.clients.dispatcher.submit(request)
        wanted = pb.OUTCOME_BOUND if load.fits else pb.OUTCOME_UNSCHEDULABLE

        def answers() -> dict[bytes, int | None]:
            return {uid: observer.codes.get(uid) for uid in observer.attempts.keys() - known}

        got = await self._until(lambda: bool(answers()), self.start_seconds)
        seconds = self.timeout_seconds if got else 0
        if await self._until(lambda: list(answers().values()).count(wanted) >= load.pods, seconds):
            self._check_decisions(load, answers().keys())
            return True
        codes = list(answers().values())
        wrong = sorted({_code_name(code) for code in codes if code not in (None, wanted)})
        if not codes:
            self._failed(
                f"got no work to place {load.words}: a heartbeat has to say ready, and Register a window",
                self.start_seconds,
            )
        elif wrong:
            text = f"answered {', '.join(wrong)} for {load.words}, and {_code_name(wanted)} is right"
            self._failed(text, self.timeout_seconds)
        else:
            text = f"did not answer for {counted(codes.count(None), 'pod')}: {load.words}"
            self._failed(text, self.timeout_seconds)
        return bool(wrong) and None not in codes

    def _check_decisions(self, load: _Load, uids: Collection[bytes]) -> None:
        """The ledger takes care of room. Which nodes let a pod in is the scheduler's to know."""
        observer = self.observer
        if not load.fits and not observer.explained.issuperset(uids):
            self.warnings.append(f"gave no reason for {load.words}: people see it with the pod")
        on = {self.numbers.get(observer.nodes[uid]) for uid in uids if uid in observer.nodes}
        if load.in_zone and not on.issubset(_IN_ZONE):
            self.problems.append("placed pods that select nodes by a label on nodes without it")
        if _CORDONED in on:
            self.problems.append(f"placed {load.words} on a cordoned node")
        if _TAINTED in on:
            self.problems.append(f"placed {load.words} on a node with a taint that they do not tolerate")

    async def _audit(self) -> None:
        result = await auditing.audit(self.clients.dispatcher, self.clients.resolver)
        self.problems += [f"left this for the audit: {finding.text}" for finding in result.findings]

    async def _until(self, done: Callable[[], bool], seconds: float) -> bool:
        """Whether it became so in time, while the process lived."""
        deadline = time.monotonic() + seconds
        while not done():
            if _exit_code(self.process) is not None or time.monotonic() > deadline:
                return done()
            await asyncio.sleep(_POLL_SECONDS)
        return True

    def _failed(self, text: str, seconds: float) -> None:
        code = _exit_code(self.process)
        why = f"within {seconds:g} s" if code is None else f"and ended with code {code}"
        self.problems.append(f"{text} ({why})")


def _nodes() -> list[NodeSpec]:
    """Named by their numbers."""
    amounts = (("cpu", 8 * _CORE), ("memory", 32 * GIB), ("pods", 110))
    return [
        NodeSpec(
            str(number),
            labels=(_ZONE,) if number in _IN_ZONE else (),
            taints=(Taint("example.com/reserved"),) if number == _TAINTED else (),
            unschedulable=number == _CORDONED,
            allocatable=amounts,
        )
        for number in range(_NODES)
    ]


def _started(
    command: Sequence[str], values: Mapping[str, str], output: IO[bytes], *, home: str
) -> "subprocess.Popen[bytes]":
    arguments = [_filled(word, values) for word in command]
    environment = {name: value for name, value in os.environ.items() if name not in _NOT_PASSED_ON}
    environment |= {f"HOSS_{name.upper()}": value for name, value in values.items()} | {"HOSS_HOME": home}
    try:
        return subprocess.Popen(  # noqa: S603 - the user's own command
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
            start_new_session=True,
        )
    except OSError as exc:
        raise InvalidInput(f"cannot be started: {exc.strerror}", where=arguments[0]) from exc


def _filled(word: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        word = word.replace(f"{{{name}}}", value)
    return word


def _exit_code(process: "subprocess.Popen[bytes]") -> int | None:
    """None while it runs. Where the system can, it is not reaped: nobody else gets the id of its group."""
    if process.returncode is not None or not hasattr(os, "waitid"):  # macOS before Python 3.13
        return process.poll()
    found = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if found is None:
        return None
    return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status


def _kill(process: "subprocess.Popen[bytes]") -> None:
    """Kill it, if it runs, and what it has started. Only once: afterwards its id may be another's."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # the latter: macOS, where all are zombies
        os.killpg(process.pid, signal.SIGKILL)  # it leads a session of its own
    process.wait()


def _code_name(code: int) -> str:
    return pb.OutcomeCode.Name(code) if code in pb.OutcomeCode.values() else str(code)
