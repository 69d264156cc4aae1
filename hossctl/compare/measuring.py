"""Measures a comparison: every cell once, then every cell again, so that changes of the machine's load meet
all cells alike. Ctrl-C and SIGTERM end it early, and the runs measured so far are kept."""

import os
import platform
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from hoss.errors import HossError
from hossctl.choices import Load
from hossctl.compare import running
from hossctl.compare.cells import Plan, has_cost, title
from hossctl.compare.document import Cell, Comparison, ComparisonRun, MachineInfo
from hossctl.compare.running import Stop, stoppable, utc_now
from hossctl.local.redis_server import find_redis_server

_PACKAGES = ("hoss", "grpcio", "numpy", "protobuf", "redis", "uvloop")
_MIB = 2**20


@dataclass(slots=True)
class Measuring:
    """A comparison while it is measured. After Ctrl-C or SIGTERM `interrupted` is true: the current run is
    kept and marked, and the document has no end time. `one_run` measures one repetition of a cell."""

    plan: Plan
    machine: MachineInfo
    command: str
    started: str = field(default_factory=utc_now)
    runs: list[ComparisonRun] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    interrupted: bool = False
    left_out: int = 0  # runs that failed
    one_run: Callable[[Cell, int, Plan, Stop], ComparisonRun] = running.measure
    _finished: str = ""

    @property
    def comparison(self) -> Comparison:
        """The document of what is measured so far."""
        return Comparison(
            machine=self.machine,
            command=self.command,
            started=self.started,
            finished=self._finished,
            notes=[*notes_on(self.plan, self.machine), *self.notes],
            runs=self.runs,
        )

    def run(self, progress: Callable[[int, str], None] = lambda _done, _remark: None) -> None:
        """Measure everything. A run that fails is left out with a note. If the very first run fails, its
        error is raised, because the others would fail alike. `progress` gets the number of runs done and the
        next title."""
        with stoppable() as stop:
            for repetition in range(self.plan.repeat):
                for number, cell in enumerate(self.plan.cells):
                    progress(repetition * len(self.plan.cells) + number, title(cell))
                    self._add(cell, repetition, stop)
                    if stop.requested:
                        self.interrupted = True
                        self.notes.append(f"interrupted: {len(self.runs)} of {self.plan.runs} runs")
                        return
        progress(self.plan.runs, "done")
        self._finished = utc_now()

    def _add(self, cell: Cell, repetition: int, stop: Stop) -> None:
        try:
            run = self.one_run(cell, repetition, self.plan, stop)
        except HossError as exc:
            if not self.runs:
                raise
            self.left_out += 1
            self.notes.append(f"{title(cell)}, repetition {repetition + 1}, was left out: {exc}")
            return
        if run.complete or run.bound:
            self.runs.append(run)


def notes_on(plan: Plan, machine: MachineInfo) -> list[str]:
    """Remarks that a reader needs before comparing figures."""
    notes = []
    most = max(cell.workers for cell in plan.cells)
    if most > machine.cores:
        notes.append(
            f"up to {most} workers on {machine.cores} cores, which Redis, resolver and dispatcher use "
            "too: more "
            "workers take turns on the cores, so their number shows what coordination costs, not how it "
            "scales"
        )
    if any(has_cost(cell.decision) for cell in plan.cells):
        notes.append(
            "added decision cost is waited for and uses no core: runs with it show how schedulers scale "
            "that think"
        )
    if plan.redis_url:
        notes.append("Redis was one that runs elsewhere: its CPU time and memory are not counted")
    paced = ["churn"] if any(cell.load == Load.CHURN for cell in plan.cells) else []
    paced += [name for name, trace in plan.traces.items() if trace.seconds]
    return notes + [
        f"{load} comes at a rate of its own: its pods/s say whether a mode keeps up, not how fast it could be"
        for load in paced
    ]


def this_machine(redis_url: str = "") -> MachineInfo:
    """This machine and the versions that run on it. The version of a Redis at `redis_url` is not known."""
    versions = {name: found for name in _PACKAGES if (found := _package_version(name))}
    if not redis_url:
        # "Redis server v=7.0.15 ..." or "Valkey server v=9.1.2 ...".
        name, *words = version_line(find_redis_server()).split()
        numbers = (word[2:] for word in words if word.startswith("v="))
        versions[f"{name.lower()}-server"] = next(numbers, " ".join(words))
    return MachineInfo(
        cpu=_cpu(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory_mib=psutil.virtual_memory().total // _MIB,
        system=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        versions=versions,
    )


def version_line(program: str | Path) -> str:
    """The first line that `program --version` prints, such as "Kubernetes v1.36.3"."""
    done = subprocess.run(  # noqa: S603 - a program that is about to be started
        [program, "--version"], capture_output=True, text=True, check=True
    )
    return done.stdout.strip().partition("\n")[0]


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _package_version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
