"""Omega's experiment over many decision times. Its document is that of `hossctl.simulate.omega_document`."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing.connection import wait

from hossctl.simulate.ledger import Conflicts, Transactions
from hossctl.simulate.omega import simulate
from hossctl.simulate.omega_setting import Architecture, Cell, Result, Setting

T_JOBS = (0.001, 0.01, 0.1, 0.3, 1.0, 3.0, 5.0, 10.0, 20.0, 50.0, 100.0)
QUICK_T_JOBS = (0.01, 0.1, 1.0, 5.0, 10.0, 20.0, 100.0)
DAY_SECONDS = 86_400.0
QUICK_SECONDS = 3_600.0

# Architecture, conflicts, transactions. One scheduler alone meets no conflict, however it is looked for.
VARIANTS = (
    (Architecture.SINGLE_PATH, Conflicts.RESOURCE_FIT, Transactions.INCREMENTAL),
    (Architecture.MULTI_PATH, Conflicts.RESOURCE_FIT, Transactions.INCREMENTAL),
    *((Architecture.SHARED_STATE, conflicts, transactions) for conflicts in Conflicts for transactions in Transactions),
)


@dataclass(frozen=True, slots=True)
class Sweep:
    """All variants at each of these decision times of service jobs, seconds."""

    t_jobs: Sequence[float]
    horizon_seconds: float
    cell: Cell
    seed: int

    def settings(self) -> list[Setting]:
        """One for each run."""
        return [
            Setting(architecture, t_job, conflicts, transactions, self.horizon_seconds, self.cell, seed=self.seed)
            for architecture, conflicts, transactions in VARIANTS
            for t_job in self.t_jobs
        ]

    def expected_seconds(self, runs: int, clock: Callable[[], float]) -> float:
        """What so many of its runs are likely to take by this clock: from short runs of the kind that takes longest."""

        def taken(horizon_seconds: float) -> float:
            started = clock()
            simulate(Setting(*_LONGEST, horizon_seconds=horizon_seconds, cell=self.cell, seed=self.seed))
            return clock() - started

        beginning = taken(1.0)
        return (beginning + (taken(self.horizon_seconds / _SAMPLES) - beginning) * _SAMPLES) * runs


def play(settings: Sequence[Setting], jobs: int) -> Generator[Result, None, None]:
    """Run each, so many at a time, each of them in a process of its own; one at a time in this one. As they come to their end: what
    comes of a run does not depend on others. To be closed."""
    jobs = min(jobs, len(settings))
    if jobs <= 1:
        yield from map(simulate, settings)
        return
    # Spawned: this process has threads. None outlives it, or this generator.
    pool = ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), _end_with_parent)
    try:
        for run in as_completed([pool.submit(simulate, setting) for setting in settings]):
            yield run.result()
    except BaseException:
        for process in multiprocessing.active_children():
            process.kill()  # nobody waits for what it is at
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _end_with_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=lambda: (wait([parent.sentinel]), os._exit(1)), daemon=True).start()


_LONGEST = (Architecture.SHARED_STATE, 1.0, Conflicts.SEQUENCE_NUMBER, Transactions.ALL_OR_NOTHING)
_SAMPLES = 40  # so much shorter are the runs that tell how long the others will take
