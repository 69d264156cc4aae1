"""Questions that are asked in one turn of the event loop, asked of others as one."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

AskedT = TypeVar("AskedT")
AnswerT = TypeVar("AnswerT")


class Together(Generic[AskedT, AnswerT]):
    """`answer` gets the questions of a turn in the order they came, and gives as many answers; what it raises, all get."""

    def __init__(self, answer: Callable[[Sequence[AskedT]], Awaitable[Sequence[AnswerT]]]) -> None:
        self._answer = answer
        self._asked: list[tuple[AskedT, asyncio.Future[AnswerT]]] = []
        self._under_way: set[asyncio.Task[None]] = set()

    async def ask(self, question: AskedT) -> AnswerT:
        """The answer to one question."""
        loop = asyncio.get_running_loop()
        if not self._asked:
            loop.call_soon(self._go)
        future: asyncio.Future[AnswerT] = loop.create_future()
        self._asked.append((question, future))
        return await future

    def _go(self) -> None:
        asked, self._asked = self._asked, []
        task = asyncio.ensure_future(self._serve(asked))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def _serve(self, asked: "list[tuple[AskedT, asyncio.Future[AnswerT]]]") -> None:
        try:
            answers = await self._answer([question for question, _ in asked])
        except Exception as exc:  # noqa: BLE001 - handed to those who asked
            for _, future in asked:
                if not future.done():
                    future.set_exception(exc)
            return
        for (_, future), answer in zip(asked, answers, strict=True):
            if not future.done():  # who asked may have gone
                future.set_result(answer)
