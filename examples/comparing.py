"""A way to coordinate workers and a load of your own, for `hoss bench compare`."""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

from hoss.model.pod import Workload
from hossctl.compare.loads import GeneratedLoad
from hossctl.compare.modes import CoordinationMode
from hossctl.load.generated import pod_template

GIB = 2**30


class PulledViews(CoordinationMode):
    """As multi-hoss, but workers read the state of all nodes every 200 ms instead of following each change,
    as the schedulers of the Omega paper do: decisions are staler, and more of them are refused."""

    def worker_flags(self, worker: int, workers: int, directory: Path) -> Sequence[str]:
        """Flags of a worker; `python -m scheduler_worker --help` lists them."""
        return ("--sync", "pull", "--pull-interval-ms", "200")


class NightlyBatch(GeneratedLoad):
    """A few large reports, and many small jobs that follow each of them."""

    def jobs(self, chance: random.Random) -> Iterator[Workload]:
        """Jobs without an end; the comparison takes as many as fill its nodes."""
        small = pod_template({"cpu": 250, "memory": GIB}, owner="Job")
        number = 0
        while True:
            large = pod_template({"cpu": chance.choice((4000, 8000)), "memory": 16 * GIB}, owner="Job")
            yield Workload(f"report-{number}", large, 2)
            yield Workload(f"export-{number}", small, chance.randint(10, 60))
            number += 1
