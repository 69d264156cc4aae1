"""Service processes on virtual time: each does one thing after the other, on cores that they share."""

import heapq
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from itertools import count

from hossctl.simulate.timeline import Happening, Timeline

# How long a process keeps a core that others want, as by Linux' scheduler on few cores.
SLICE_SECONDS = 0.003


class Cores:
    """So many processes run at a time. Time is shared, not turns: who had the least of it comes next and goes on until its slice is over or
    it has nothing to do. By turns, whoever does many small things would be the last to be done, and work would pile up there and
    not at the one that is short of time."""

    def __init__(self, timeline: Timeline, number: int) -> None:
        self._timeline = timeline
        self._number = number
        self._running: list[Process] = []
        self._waiting: list[tuple[float, int, Process]] = []  # a heap
        self._serial = count()
        self._least = 0.0  # time that any of those that run had had

    def want(self, process: "Process") -> None:
        """The process has something to do and is not running."""
        self._least = max(self._least, min((running.had for running in self._running), default=0.0))
        process.had = max(process.had, self._least)  # time that it slept through is no claim
        heapq.heappush(self._waiting, (process.had, next(self._serial), process))
        self._start()

    def _start(self) -> None:
        while self._waiting and len(self._running) < self._number:
            _, _, process = heapq.heappop(self._waiting)
            self._running.append(process)
            self._run(process, 0.0)

    def _run(self, process: "Process", ran: float) -> None:
        seconds, then = process.begin()
        self._timeline.after(seconds, partial(self._finish, process, then, ran + seconds))

    def _finish(self, process: "Process", then: Happening, ran: float) -> None:
        then()
        if process.has_more and (ran < SLICE_SECONDS or not self._waiting):
            self._run(process, ran)
            return
        self._running.remove(process)
        process.leave()
        self._start()


@dataclass(slots=True, eq=False)
class Process:
    """One process. What it is asked to do takes its time, and then something happens."""

    name: str
    cores: Cores
    busy_seconds: float = 0.0
    had: float = 0.0  # time on cores, for whose turn is next
    _tasks: deque[tuple[float, Happening]] = field(default_factory=deque)
    _running: bool = False

    @property
    def has_more(self) -> bool:
        """Whether it was asked for anything that it has not begun with."""
        return bool(self._tasks)

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
        self.had += seconds
        return seconds, then

    def leave(self) -> None:
        """It has no core any more; what is left waits for one again."""
        self._running = self.has_more
        if self._running:
            self.cores.want(self)
