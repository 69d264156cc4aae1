"""`hoss top`: what the workers do and what waits, as of one moment."""

from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from hossctl.console import Column, Document
from hossctl.figures import written_duration
from hossctl.objects import worker_document
from hossctl.status import Status

# Phases of pods that somebody waits for, as their queues are called.
_QUEUES = {
    "QUEUED": "active",
    "BACKOFF": "backoff",
    "UNSCHEDULABLE": "unschedulable",
    "SCHEDULING": "with workers",
    "FAILED": "failed",
}

COLUMNS = (
    Column("WORKER", lambda worker: worker["name"]),
    Column("STATE", lambda worker: worker["state"]),
    Column("PODS/S", lambda worker: f"{worker['podsPerSecond']:,.0f}"),
    Column("OUTSTANDING", lambda worker: f"{worker['outstanding']}/{worker['window']}"),
    Column("WORK", lambda worker: written_duration(worker["estimatedWorkMs"] / 1000)),
    Column("BUSY", lambda worker: f"{worker['busyShare']:.0%}"),
    Column("CONFLICTS", lambda worker: f"{worker['conflictShare']:.1%}"),
    Column("BOUND", lambda worker: f"{worker['bound']:,}"),
)


@dataclass(frozen=True, slots=True)
class Frame:
    """One look at the platform."""

    workers: list[Document]
    queues: dict[str, int]  # pods by queue
    pods_per_second: float
    problems: list[str]

    @property
    def headline(self) -> str:
        """Queues and throughput in a line."""
        waiting = ", ".join(f"{pods:,} {queue}" for queue, pods in self.queues.items() if pods)
        return f"{self.pods_per_second:,.0f} pods/s bound; pods: {waiting or 'none waits'}"

    def as_json(self) -> Document:
        """For programs."""
        return {
            "podsPerSecond": self.pods_per_second,
            "queues": self.queues,
            "workers": self.workers,
            "problems": self.problems,
        }

    def drawn(self) -> RenderableType:
        """For a terminal."""
        table = Table(box=None, pad_edge=False, header_style="bold")
        for column in COLUMNS:
            table.add_column(column.heading, justify="left" if column.heading in ("WORKER", "STATE") else "right")
        for worker in self.workers:
            table.add_row(*(str(column.cell(worker)) for column in COLUMNS))
        return Group(
            Text(self.headline), Text(), table, *(Text(f"PROBLEM {text}", style="red") for text in self.problems)
        )


def frame(status: Status) -> Frame:
    """The frame that a status makes."""
    phases = status.dispatcher.pods_by_phase
    workers = [worker_document(worker) for worker in status.workers]
    return Frame(
        workers=workers,
        queues={queue: phases.get(phase, 0) for phase, queue in _QUEUES.items()},
        pods_per_second=round(sum(worker["podsPerSecond"] for worker in workers), 1),
        problems=status.problems,
    )
