"""What a watch by looking tells: all at first, then what differs, whoever may be away for a while."""

import asyncio

import pytest

from hoss.errors import TransportError
from hossctl.views.watching import changes


class Looks:
    """Gives one answer after the other; errors are raised."""

    def __init__(self, *answers):
        self._answers = iter(answers)

    async def __call__(self):
        answer = next(self._answers)
        if isinstance(answer, Exception):
            raise answer
        return [{"name": name, "state": state, "busy": state} for name, state in answer.items()]


async def told(looks, count):
    """The names and states of the first so many yields."""
    following = changes(looks, lambda d: d["name"], lambda d: d["state"], name="worker", interval_seconds=0)
    found = [[(d["name"], d["state"]) for d in await anext_of(following)] for _ in range(count)]
    await following.aclose()
    return found


async def anext_of(following):
    return await asyncio.wait_for(following.__anext__(), 60)


async def test_all_is_told_first_and_then_only_what_shows_a_difference():
    looks = Looks({"a": 1, "b": 1}, {"a": 1, "b": 1}, {"a": 1, "b": 2, "c": 1})
    assert await told(looks, 3) == [[("a", 1), ("b", 1)], [], [("b", 2), ("c", 1)]]


async def test_what_is_gone_is_said_and_told_anew_when_it_comes_back(capsys):
    assert await told(Looks({"a": 1}, {}, {"a": 1}), 3) == [[("a", 1)], [], [("a", 1)]]
    assert capsys.readouterr().err.count("worker a is gone") == 1


async def test_nobody_answering_is_said_once_and_what_changed_meanwhile_is_told(capsys):
    away = TransportError("no dispatcher answers")
    assert await told(Looks({"a": 1, "b": 1}, away, away, {"a": 1, "b": 2}), 2) == [
        [("a", 1), ("b", 1)], [("b", 2)],
    ]  # fmt: skip
    assert capsys.readouterr().err.count("no dispatcher answers; the watch goes on when that is over") == 1


async def test_the_first_look_fails_as_any_command_does():
    with pytest.raises(TransportError, match="nobody"):
        await told(Looks(TransportError("nobody")), 1)
