"""Service processes on virtual time: each does one thing after the other, on cores that they share."""

from collections import deque
from dataclasses import dataclass, field
from functools import partial

from hossctl.simulate.timeline import Happening, Timeline


class Cores:
    """So many processes run at a time; who waits longest comes next."""

    def __init__(self, timeline: Timeline, count: int) -> None:
        self._timeline = timeline
        self._free = count
        self._waiting: deque[Process] = deque()

    def want(self, process: "Process") -> None:
        """The process has something to do and is not running."""
        self._waiting.append(process)
        self._start()

    def _start(self) -> None:
        while self._free and self._waiting:
            self._free -= 1
            process = self._waiting.popleft()
            seconds, then = process.begin()
            self._timeline.after(seconds, partial(self._finish, process, then))

    def _finish(self, process: "Process", then: Happening) -> None:
        self._free += 1
        process.finished()
        then()
        self._start()


@dataclass(slots=True, eq=False)
class Process:
    """One process. What it is asked to do takes its time, and then something happens."""

    name: str
    cores: Cores
    busy_seconds: float = 0.0
    _tasks: deque[tuple[float, Happening]] = field(default_factory=deque)
    _running: bool = False

    def do(self, seconds: float, then: Happening) -> None:
        """After all it was asked to do before."""
        self._tasks.append((seconds, then))
        if not self._running:
            self._running = True
            self.cores.want(self)

    def begin(self) -> tuple[float, Happening]:
        """Its next task; it has one."""
        seconds, then = self._tasks.popleft()
        self.busy_seconds += seconds
        return seconds, then

    def finished(self) -> None:
        """The task is over; what is left waits for a core again."""
        self._running = bool(self._tasks)
        if self._running:
            self.cores.want(self)
