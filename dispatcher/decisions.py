"""How a pod was decided, asked of the worker that had it last."""

import asyncio
from itertools import count

from dispatcher.audit import Asked
from hoss.v1 import common_pb2, workerlink_pb2

TIMEOUT_SECONDS = 1.0


class Decisions:
    """Questions under way. A worker that does not answer in time remembers nothing."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._open: dict[int, asyncio.Future[list[common_pb2.Decision]]] = {}

    async def ask(
        self, worker: Asked, uid: bytes, timeout_seconds: float = TIMEOUT_SECONDS
    ) -> list[common_pb2.Decision]:
        """What the worker remembers of the pod, oldest first."""
        number = next(self._numbers)
        answer = self._open[number] = asyncio.get_running_loop().create_future()
        try:
            question = workerlink_pb2.DecisionQuestion(id=number, uid=uid)
            worker.put(workerlink_pb2.DispatcherMessage(decisions=question))
            return await asyncio.wait_for(answer, timeout_seconds)
        except asyncio.TimeoutError:
            return []
        finally:
            del self._open[number]

    def arrived(self, message: workerlink_pb2.DecisionAnswer) -> None:
        """A worker's answer; one to a question long over is dropped."""
        answer = self._open.get(message.id)
        if answer is not None and not answer.done():
            answer.set_result(list(message.decisions))
