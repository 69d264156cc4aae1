"""An algorithm in a thread, so that streams and heartbeats go on while it computes.

Nothing can end a thread. An algorithm that does not answer in its time ends the worker: it gives back its
pods first, so none of them counts as lost with a worker."""

import asyncio
import contextlib
import threading
from collections.abc import Callable

from hoss.errors import HossError
from hoss.model.placing import NodeSnapshot, PlacementAlgorithm, PlacementBatch
from scheduler_worker.core.placement.algorithms import PlacementAnswer, answer_of

LIMIT_SECONDS = 10.0  # a worker whose algorithm takes longer ends


class AlgorithmStuck(HossError):  # noqa: N818 - named for what happened, as in hoss.errors
    """The algorithm did not answer in its time."""


class CalledInThread:
    """See AlgorithmCalls. Only within an event loop. `connect` must be called before `ask`."""

    def __init__(
        self,
        name: str,
        algorithm: PlacementAlgorithm,
        *,
        clock: Callable[[], float],
        limit_seconds: float = LIMIT_SECONDS,
    ) -> None:
        self.name = name
        self._algorithm = algorithm
        self._clock = clock
        self._limit = limit_seconds
        self._question = 0  # the number of the latest one
        self._computing: dict[int, tuple[float, int]] = {}  # question -> when it was asked, its pods
        self._answer: PlacementAnswer | None = None
        self._answered: Callable[[float], None]

    def connect(self, answered: Callable[[float], None]) -> None:
        """`answered` is called with the seconds that an answer took, once it can be taken."""
        self._answered = answered

    def ask(self, batch: PlacementBatch, snapshot: NodeSnapshot) -> None:
        """See AlgorithmCalls."""
        self._question += 1
        question, loop = self._question, asyncio.get_running_loop()
        self._computing[question] = (self._clock(), batch.pods)

        def compute() -> None:
            answer = answer_of(self.name, self._algorithm, batch, snapshot, self._clock)
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(self._receive, question, answer)

        # Not a thread of asyncio's: the process would wait for it when it ends.
        threading.Thread(target=compute, name=f"algorithm {self.name}", daemon=True).start()

    def take(self) -> PlacementAnswer | None:
        """See AlgorithmCalls."""
        answer, self._answer = self._answer, None
        return answer

    def abandon(self) -> None:
        """See AlgorithmCalls. The thread computes on."""
        self._question += 1
        self._answer = None

    def check(self) -> None:
        """Raise AlgorithmStuck if a question, also an abandoned one, is without an answer for too long."""
        for asked_at, pods in self._computing.values():
            if self._clock() - asked_at > self._limit:
                raise AlgorithmStuck(
                    f"algorithm {self.name} did not place {pods} pods in {self._limit:g} s: let place() "
                    "end within its budget"
                )

    def _receive(self, question: int, answer: PlacementAnswer) -> None:
        del self._computing[question]
        if question == self._question:
            self._answer = answer
            self._answered(answer.seconds)
