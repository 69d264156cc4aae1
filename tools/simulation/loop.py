"""The event loop of a simulation, and the processes that run in it.

The clock is virtual: it moves when nothing is ready, to the next timer, and a little with every step. Which
of the ready steps runs next is drawn from the seed. asyncio promises an order only within one task, and that
order holds here as well.

What is scheduled belongs to the process in whose context that happened, and so do the tasks and timers that
it starts. A process can be killed and frozen at any step. A killed process does nothing any more, not even
clean up: as after `kill -9`."""

import asyncio
import gc
import heapq
import math
import random
import sys
import warnings
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from typing import Any, TypeVar

_CURRENT: "ContextVar[Process | None]" = ContextVar("process", default=None)

# What a step takes, in virtual seconds: so much that time always goes on, and measured times are not zero.
_STEP_SECONDS = 20e-6

# So many tasks of a process are kept before it is looked which of them have ended.
_LEAST_TASKS_TO_SWEEP = 64

ResultT = TypeVar("ResultT")


class Deadlock(Exception):  # noqa: N818 - the field's word
    """Nothing is ready, no timer runs, and the awaited result is not there."""


class OutOfSteps(Exception):  # noqa: N818 - a state, as StopIteration
    """The simulation took more steps than it may: something is busy for ever."""


@dataclass(eq=False)
class Process:
    """One simulated process. `steps`: how often it ran from one await to the next."""

    name: str
    alive: bool = True
    frozen: bool = False
    steps: int = 0
    # Called before each step with the number of the step, to kill or freeze at exactly that point.
    before_step: "Callable[[Process], None] | None" = None
    held: "list[_Step]" = field(default_factory=list)
    _tasks: "list[asyncio.Task[Any]]" = field(default_factory=list)  # in the order of their beginning
    _tasks_until_sweep: int = _LEAST_TASKS_TO_SWEEP

    def __post_init__(self) -> None:
        self.context = copy_context()
        self.context.run(_CURRENT.set, self)

    @property
    def tasks(self) -> "list[asyncio.Task[Any]]":
        """Those that have not ended."""
        return [task for task in self._tasks if not task.done()]

    def began(self, task: "asyncio.Task[Any]") -> None:
        """The process has a new task. Those that have ended are forgotten when there are many: a callback at
        the end of each would be a step of its own."""
        self._tasks.append(task)
        if len(self._tasks) > self._tasks_until_sweep:
            self._tasks = self.tasks
            self._tasks_until_sweep = max(2 * len(self._tasks), _LEAST_TASKS_TO_SWEEP)

    def drop_tasks(self) -> "list[asyncio.Task[Any]]":
        """The process has no tasks any more. Returns those that it had."""
        dropped, self._tasks = self.tasks, []
        return dropped


def current_process() -> "Process | None":
    """The process whose code is running; None outside of all."""
    return _CURRENT.get()


class _Step(asyncio.TimerHandle):
    """What the loop runs: asyncio's handle without what that keeps for debugging, which costs a simulation a
    twentieth of its time. `process`: in whose context it runs."""

    __slots__ = ("process",)

    def __init__(
        self, callback: Any, args: Any, loop: "SimulationLoop", context: Context | None, when: float = 0.0
    ) -> None:
        self._callback, self._args, self._loop, self._when = callback, args, loop, when
        self._context = copy_context() if context is None else context
        self._cancelled, self._source_traceback, self._repr = False, None, None
        self.process: Process | None = self._context.get(_CURRENT)

    def cancel(self) -> None:
        self._cancelled = True
        self._callback, self._args = None, ()


class SimulationLoop(asyncio.AbstractEventLoop):
    """An asyncio event loop for one seed. Close it at the end: what killed processes left is freed then."""

    def __init__(self, rng: random.Random, *, most_steps: int = 2_000_000) -> None:
        self._rng = rng
        self._now = 0.0
        self._ready: list[_Step] = []
        self._timers: list[tuple[float, int, _Step]] = []
        self._numbers = 0
        self._running = False
        self._stopping = False
        self._closed = False
        self._steps_left = most_steps
        self._nobody = Process("")  # has the tasks of no process
        self._processes = [self._nobody]
        self._dead_tasks: list[asyncio.Task[Any]] = []
        # Of killed processes. One may be about to look at the error of a task that has just ended: nobody is
        # to say that nobody did.
        self._dropped: list[_Step] = []
        self.errors: list[dict[str, Any]] = []  # contexts of exceptions that nobody handled
        self.steps = 0

    # -- processes

    def process(self, name: str) -> Process:
        """A new process."""
        process = Process(name)
        self._processes.append(process)
        return process

    def spawn(
        self, process: Process, coroutine: Coroutine[Any, Any, ResultT], *, name: str | None = None
    ) -> "asyncio.Task[ResultT]":
        """Run a coroutine in a process."""
        return process.context.copy().run(self.create_task, coroutine, name=name)

    def kill(self, process: Process) -> None:
        """From now on the process does nothing. Its tasks are kept until the loop is closed: collected
        earlier, they would still clean up."""
        process.alive = False
        self._dropped.extend(process.held)
        process.held.clear()
        self._dead_tasks.extend(process.drop_tasks())

    def freeze(self, process: Process) -> None:
        """As SIGSTOP: what becomes ready waits."""
        process.frozen = True

    def thaw(self, process: Process) -> None:
        """As SIGCONT: what waited is ready."""
        process.frozen = False
        self._ready.extend(process.held)
        process.held.clear()

    # -- time and callbacks

    def time(self) -> float:
        return self._now

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> asyncio.Handle:
        step = _Step(callback, args, self, context)
        if not self._closed:
            self._ready.append(step)
        return step

    def call_soon_threadsafe(
        self, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self, delay: float, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        step = _Step(callback, args, self, context, when)
        self._numbers += 1
        if not self._closed:
            heapq.heappush(self._timers, (when, self._numbers, step))
        return step

    # -- running

    def run_until_complete(self, future: Any) -> Any:
        """Run until the future is done. Raises Deadlock and OutOfSteps."""
        task = asyncio.ensure_future(future, loop=self)
        with self._as_running():
            while not task.done():
                self._step()
        return task.result()

    def run_for(self, seconds: float) -> None:
        """Run until so much virtual time is over."""
        until = self._now + seconds
        with self._as_running():
            while self._ready or self._next_timer_at() <= until:
                self._step()
        self._now = max(self._now, until)

    @contextmanager
    def _as_running(self) -> Generator[None, None, None]:
        if self._closed:
            raise RuntimeError("the loop is closed")
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(firstiter=None, finalizer=self._close_generator)
        asyncio.events._set_running_loop(self)
        self._running = True
        try:
            yield
        finally:
            self._running = False
            asyncio.events._set_running_loop(None)
            sys.set_asyncgen_hooks(*hooks)

    def _close_generator(self, generator: Any) -> None:
        if not self._closed:
            self.call_soon(self.create_task, generator.aclose())

    def _step(self) -> None:
        if not self._ready:
            self._advance()
        ready = self._ready
        at = self._drawn_below(len(ready)) if len(ready) > 1 else 0
        step = ready[at]
        ready[at] = ready[-1]
        ready.pop()
        if step._cancelled:
            return
        if step.process is not None and not self._may_run(step.process, step):
            return
        self.steps += 1
        self._steps_left -= 1
        if self._steps_left < 0:
            raise OutOfSteps(f"the steps are used up at {self._now:.3f} s")
        self._now += _STEP_SECONDS * self._rng.random()
        step._run()

    def _drawn_below(self, bound: int) -> int:
        """As randrange, in half of the time."""
        bits = bound.bit_length()
        while (drawn := self._rng.getrandbits(bits)) >= bound:
            pass
        return drawn

    def _may_run(self, process: Process, step: _Step) -> bool:
        if process.alive and not process.frozen and process.before_step is not None:
            process.before_step(process)
        if not process.alive:
            self._dropped.append(step)
            return False
        if process.frozen:
            process.held.append(step)
            return False
        process.steps += 1
        return True

    def _advance(self) -> None:
        """Move the clock to the next timer, and make ready what is due."""
        due_at = self._next_timer_at()
        if due_at == math.inf:
            raise Deadlock(f"nothing is left to do at {self._now:.3f} s")
        self._now = max(self._now, due_at)
        while self._timers and self._timers[0][0] <= self._now:
            self._ready.append(heapq.heappop(self._timers)[2])

    def _next_timer_at(self) -> float:
        """When the next timer is due that was not cancelled; never without one."""
        while self._timers and self._timers[0][2]._cancelled:
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else math.inf

    # -- what asyncio asks of a loop

    def create_future(self) -> "asyncio.Future[Any]":
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: str | None = None, context: Any = None) -> "asyncio.Task[Any]":
        if context is not None:
            return context.run(self.create_task, coro, name=name)  # type: ignore[no-any-return]
        task = asyncio.Task(coro, loop=self, name=name)
        if self._closed:  # asked by something that is being freed
            _discard(task)
            return task
        (_CURRENT.get() or self._nobody).began(task)
        return task

    def run_in_executor(self, _executor: Any, func: Callable[..., Any], *args: Any) -> "asyncio.Future[Any]":
        """There are no threads: the function runs at once."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as exc:  # noqa: BLE001 - as an executor hands it over
            future.set_exception(exc)
        return future

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self._closed:
            self.errors.append(context)

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.call_exception_handler(context)

    def get_exception_handler(self) -> None:
        return None

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return self._closed

    def get_debug(self) -> bool:
        return False

    def close(self) -> None:
        """Free everything that is left. What cleans up then gets no further than to its next await."""
        if self._closed:
            return
        self._closed = True
        asyncio.events._set_running_loop(self)  # for what cleans up by tasks: they come here, and end at once
        try:
            with _silent():
                self._free()
        finally:
            asyncio.events._set_running_loop(None)

    def _free(self) -> None:
        for process in self._processes:
            self._dead_tasks.extend(process.drop_tasks())
            process.held.clear()
        self._ready.clear()
        self._timers.clear()
        for task in self._dead_tasks:
            _discard(task)
        self._dead_tasks.clear()
        self._dropped.clear()

    async def shutdown_asyncgens(self) -> None:
        """Nothing to do: generators of killed processes must not run."""

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """There is none."""


def _discard(task: "asyncio.Task[Any]") -> None:
    """End a task's coroutine. Left to the garbage collector, one that never began would complain that nobody
    awaited it, and one in the middle would clean up in the middle of somebody else's work."""
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    for _ in range(_MOST_AWAITS_OF_CLEANING_UP):
        try:
            task.get_coro().close()
        except RuntimeError:  # it awaits something to clean up, and will not get it
            continue
        except Exception:  # noqa: BLE001, S110 - whatever cannot clean up without the loop
            pass
        return


@contextmanager
def discarding() -> Generator[None, None, None]:
    """Free what the body leaves when it ends, in silence: coroutines that are freed in the middle complain
    when they cannot clean up, and they are not meant to. Within the body nothing is collected: that would
    happen at another moment in each run, and change the order of events. Of blocks within a block only every
    _COLLECTED_EVERY-th collects: to look at everything that lives costs a sixth of a simulation."""
    if not gc.isenabled():
        yield
        if next(_INNER_BLOCKS) % _COLLECTED_EVERY == 0:
            _collect()
        return
    _keep_imports()
    gc.disable()
    try:
        yield
    finally:
        # What is freed in the middle makes garbage of its own, as coroutines that nobody awaits: it would be
        # freed, and complain, in the middle of somebody else's work.
        while _collect():
            pass
        gc.enable()


_COLLECTED_EVERY = 8
_MOST_AWAITS_OF_CLEANING_UP = 10
_INNER_BLOCKS = count(1)


def _collect() -> int:
    """How many objects were freed."""
    with _silent():
        return gc.collect()


@contextmanager
def _silent() -> Generator[None, None, None]:
    """Coroutines that are freed in the body complain to nobody: neither those that cannot clean up nor those
    that were never awaited."""
    hook, sys.unraisablehook = sys.unraisablehook, _ignore
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            yield
    finally:
        sys.unraisablehook = hook


@cache
def _keep_imports() -> None:
    """What is there before the first simulation is never garbage: to look at it costs more than a
    simulation."""
    gc.collect()
    gc.freeze()


def _ignore(_error: object) -> None:
    """See `discarding`."""
