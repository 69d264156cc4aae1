"""Virtual time: events in their order, and processes that take time on shared cores."""

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import count

Event = Callable[[], None]


class Timeline:
    """Events by time; events of one moment in the order of their planning. `now` is in seconds from 0."""

    def __init__(self) -> None:
        self.now = 0.0
        self._serial = 0
        self._planned: list[tuple[float, int, Event]] = []

    def after(self, seconds: float, event: Event) -> None:
        """Plan an event `seconds` from now, not negative."""
        self._serial += 1
        heapq.heappush(self._planned, (self.now + seconds, self._serial, event))

    def every(self, seconds: float, event: Event) -> None:
        """Plan an event every `seconds`."""

        def again() -> None:
            event()
            self.after(seconds, again)

        self.after(seconds, again)

    def run(self, until: float) -> None:
        """Advance to `until`; later events stay planned."""
        while self._planned and self._planned[0][0] <= until:
            self.now, _, event = heapq.heappop(self._planned)
            event()
        self.now = until

    def run_while(self, condition: Callable[[], bool]) -> None:
        """Advance while the condition holds and events are planned."""
        while self._planned and condition():
            self.now, _, event = heapq.heappop(self._planned)
            event()


# A process keeps a contended core for so long, as with Linux' scheduler on few cores.
SLICE_SECONDS = 0.003


class Cores:
    """`number` processes run at a time. Cores are shared by time, not by turns: the process with the least
    time runs next, until its slice is over or it has nothing to do. With turns, a process with many small
    tasks would be the last to finish, and work would queue there and not at the bottleneck."""

    def __init__(self, timeline: Timeline, number: int) -> None:
        self._timeline = timeline
        self._number = number
        self._running: list[Process] = []
        self._waiting: list[tuple[float, int, Process]] = []  # a heap
        self._serial = count()
        self._least = 0.0  # time of the running process that used the least

    def want(self, process: "Process") -> None:
        """The process has a task and is not running."""
        self._least = max(self._least, min((running.used for running in self._running), default=0.0))
        process.used = max(process.used, self._least)  # time without tasks earns no credit
        heapq.heappush(self._waiting, (process.used, next(self._serial), process))
        self._start()

    def _start(self) -> None:
        while self._waiting and len(self._running) < self._number:
            _, _, process = heapq.heappop(self._waiting)
            self._running.append(process)
            self._run(process, 0.0)

    def _run(self, process: "Process", ran: float) -> None:
        seconds, then = process.begin()
        self._timeline.after(seconds, partial(self._finish, process, then, ran + seconds))

    def _finish(self, process: "Process", then: Event, ran: float) -> None:
        then()
        if process.has_more and (ran < SLICE_SECONDS or not self._waiting):
            self._run(process, ran)
            return
        self._running.remove(process)
        process.leave()
        self._start()


@dataclass(slots=True, eq=False)
class Process:
    """A service process. A task takes time on a core, and then its callback runs."""

    name: str
    cores: Cores
    busy_seconds: float = 0.0
    used: float = 0.0  # time on cores; the process with the least runs next
    _tasks: deque[tuple[float, Event]] = field(default_factory=deque)
    _running: bool = False

    @property
    def has_more(self) -> bool:
        return bool(self._tasks)

    def do(self, seconds: float, then: Event) -> None:
        """Add a task behind all others."""
        self._tasks.append((seconds, then))
        if not self._running:
            self._running = True
            self.cores.want(self)

    def begin(self) -> tuple[float, Event]:
        """Take the next task; there must be one."""
        seconds, then = self._tasks.popleft()
        self.busy_seconds += seconds
        self.used += seconds
        return seconds, then

    def leave(self) -> None:
        """Give up the core; a process with more tasks waits for one again."""
        self._running = self.has_more
        if self._running:
            self.cores.want(self)
