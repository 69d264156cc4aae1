"""Algorithms and pre-bind plugins in threads, so that streams and heartbeats go on while they compute or
wait.

Nothing can end a thread. Code that does not answer in its time ends the worker: it gives back its pods first,
so none of them counts as lost with a worker."""

import asyncio
import contextlib
import itertools
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Generic, TypeVar

import numpy as np

from hoss.errors import HossError
from hoss.model.placing import NodeSnapshot, PlacementAlgorithm, PlacementBatch, places_cards
from scheduler_worker.core.cycle.pre_binding import PreBindAnswer, PreBindQuestion, prepare, undo
from scheduler_worker.core.framework.extension_points import PreBindPlugin, ReservedBatch
from scheduler_worker.core.placement.algorithms import PlacementAnswer, answer_of

LIMIT_SECONDS = 10.0  # a worker whose algorithm or plugin takes longer ends

AnswerT = TypeVar("AnswerT")


class AlgorithmStuck(HossError):  # noqa: N818 - named for what happened, as in hoss.errors
    """The algorithm did not answer in its time."""


class PreBindStuck(HossError):  # noqa: N818 - as above
    """A pre-bind plugin did not answer in its time."""


class _CallsInThreads(Generic[AnswerT]):
    """One question at a time, each in a thread. Only within an event loop. `connect` must be called before a
    question is asked."""

    def __init__(self, name: str, *, clock: Callable[[], float], limit_seconds: float) -> None:
        self.name = name
        self._clock = clock
        self._limit = limit_seconds
        self._calls = itertools.count(1)
        self._question = 0  # the call whose answer is wanted
        self._computing: dict[int, tuple[float, int]] = {}  # call -> since when it computes, its pods
        self._answer: AnswerT | None = None
        self._answered: Callable[[float], None]
        self._turn: AbstractContextManager[object] = contextlib.nullcontext()

    def connect(self, answered: Callable[[float], None]) -> None:
        """`answered` is called with the seconds that an answer took, once it can be taken."""
        self._answered = answered

    def take(self) -> AnswerT | None:
        """See AlgorithmCalls."""
        answer, self._answer = self._answer, None
        return answer

    def abandon(self) -> None:
        """See AlgorithmCalls. The thread computes on."""
        self._question = 0
        self._answer = None

    def _begin(self, pods: int, compute: Callable[[], AnswerT]) -> int:
        """Compute in a thread; the number of the call."""
        call, loop = next(self._calls), asyncio.get_running_loop()

        def run() -> None:
            with self._turn:
                started = self._clock()
                self._computing[call] = (started, pods)
                answer = compute()
                seconds = self._clock() - started
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(self._receive, call, answer, seconds)

        # Not a thread of asyncio's: the process would wait for it when it ends.
        threading.Thread(target=run, name=self.name, daemon=True).start()
        return call

    def _overdue_pods(self) -> int | None:
        """The pods of a question, also an abandoned one, that is without an answer for too long."""
        for since, pods in list(self._computing.values()):
            if self._clock() - since > self._limit:
                return pods
        return None

    def _receive(self, call: int, answer: AnswerT, seconds: float) -> None:
        del self._computing[call]
        if call == self._question:
            self._answer = answer
            self._answered(seconds)


class CalledInThread(_CallsInThreads[PlacementAnswer]):
    """An algorithm; see AlgorithmCalls."""

    def __init__(
        self,
        name: str,
        algorithm: PlacementAlgorithm,
        *,
        clock: Callable[[], float],
        limit_seconds: float = LIMIT_SECONDS,
    ) -> None:
        super().__init__(name, clock=clock, limit_seconds=limit_seconds)
        self.places_cards = places_cards(algorithm)
        self._algorithm = algorithm

    def ask(self, batch: PlacementBatch, snapshot: NodeSnapshot) -> None:
        """See AlgorithmCalls."""
        self._question = self._begin(
            batch.pods, lambda: answer_of(self.name, self._algorithm, batch, snapshot, self._clock)
        )

    def check(self) -> None:
        """Raise AlgorithmStuck if it does not answer."""
        if (pods := self._overdue_pods()) is not None:
            raise AlgorithmStuck(
                f"algorithm {self.name} did not place {pods} pods in {self._limit:g} s: let place() "
                "end within its budget"
            )


class PreparedInThread(_CallsInThreads[PreBindAnswer]):
    """Pre-bind plugins; see PreBindCalls."""

    def __init__(
        self,
        plugins: Sequence[PreBindPlugin],
        *,
        clock: Callable[[], float],
        limit_seconds: float = LIMIT_SECONDS,
    ) -> None:
        super().__init__("pre-bind", clock=clock, limit_seconds=limit_seconds)
        self._plugins = tuple(plugins)
        self._asking = ""  # the plugin that computes
        self._turn = threading.Lock()  # plugins are called by one thread at a time
        self._asked: dict[int, ReservedBatch] = {}  # by call

    def ask(self, question: PreBindQuestion) -> None:
        """See PreBindCalls."""
        pods = question.pods
        self._question = self._begin(len(pods.classes), lambda: prepare(question, self._plugins, self._note))
        self._asked[self._question] = pods

    def check(self) -> None:
        """Raise PreBindStuck if a plugin does not answer."""
        if (pods := self._overdue_pods()) is not None:
            raise PreBindStuck(
                f"plugin {self._asking} did not prepare {pods} pods in {self._limit:g} s: let pre_bind() and "
                "unreserve() wait for nothing longer than that"
            )

    def _receive(self, call: int, answer: PreBindAnswer, seconds: float) -> None:
        wanted = call == self._question
        super()._receive(call, answer, seconds)
        pods = self._asked.pop(call, None)
        if pods is None or wanted:
            return
        # Another epoch began: the dispatcher has given back all pods, also those that are ready.
        ready = np.ones(len(pods.classes), np.bool_)
        for mask, _ in answer.unready:
            ready &= ~mask
        left = pods.of(np.flatnonzero(ready))
        self._begin(
            len(left.classes), lambda: PreBindAnswer((), tuple(undo(left, self._plugins, self._note)))
        )

    def _note(self, plugin: str) -> None:
        self._asking = plugin
