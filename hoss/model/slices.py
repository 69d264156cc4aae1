"""Long work in slices: a generator that can be interrupted wherever it yields.

It yields the microseconds that its last part took, by estimate, and returns its result. Its author sees to it
that the state is consistent at each yield. A core may run it to the end (`finished`). Around the cores it is
run so that others get their turn (hoss.tasks.in_turns). It is a module of its own because all services share
it."""

from collections.abc import Generator
from typing import TypeVar

ResultT = TypeVar("ResultT")

Steps = Generator[float, None, ResultT]


def finished(steps: Steps[ResultT]) -> ResultT:
    """The result of work that is done at once."""
    while True:
        try:
            next(steps)
        except StopIteration as end:  # noqa: PERF203 - the loop is short
            result: ResultT = end.value
            return result
