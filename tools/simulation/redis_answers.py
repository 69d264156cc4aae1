"""What the simulation's Redis has answered: a memory for questions that are asked again and again.

Services that have nothing to do ask for the same each time, and a round trip to the server costs more than
all else in such a step. Invariant: an answer is remembered only if it depends on the keys of one slot alone,
and only until something is written there."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from tools.simulation.redis_commands import ANYWHERE, Command, PreparedCommand, slots_of

# What a script did, as the prelude reports it (tools/simulation/redis_backend.py).
NOTHING, WROTE = 0, 1


class Question(NamedTuple):
    """Commands that read the keys of one slot, or of none (b"")."""

    slot: bytes
    words: tuple[Command, ...]  # without the time


class AnswerMemory:
    """Replies of the server, by slot and question. A write to a slot ends those of the slot."""

    def __init__(self) -> None:
        self._answers: dict[bytes, dict[tuple[Command, ...], list[Any]]] = {}

    def answer(self, question: Question) -> list[Any] | None:
        """What the server replied to the same; None: it may reply otherwise now."""
        known = self._answers.get(question.slot, {}).get(question.words)
        return None if known is None else _copied(known)

    def remember(self, question: Question, prepared: Sequence[PreparedCommand], replies: list[Any]) -> None:
        """Keep the server's replies, if they depend on keys alone."""
        certain = all(
            not one.is_script or (isinstance(reply, list) and reply[0] == NOTHING)
            for one, reply in zip(prepared, replies, strict=True)
        )
        if certain and not _has_errors(replies):
            self._answers.setdefault(question.slot, {})[question.words] = _copied(replies)

    def forget(self, written: PreparedCommand | None = None) -> None:
        """After this command has written. Without one: any key was written."""
        slots = {ANYWHERE} if written is None else slots_of(written)
        if ANYWHERE in slots:
            self._answers.clear()
        for slot in slots:
            self._answers.pop(slot, None)


def question_of(prepared: Sequence[PreparedCommand]) -> Question | None:
    """None: what is replied may depend on more than the keys of one slot, the commands write, or they have
    words that cannot be compared."""
    slots: set[bytes] = set()
    for one in prepared:
        if one.logged and not (one.is_script and len(prepared) == 1):
            return None
        slots |= slots_of(one)
    if len(slots) > 1 or ANYWHERE in slots:
        return None
    words = tuple(one.words[:-1] if one.is_script else one.words for one in prepared)
    # To Python 1.0 is the same word as 1, and the server gets other bytes.
    if any(isinstance(word, float) for command in words for word in command):
        return None
    return Question(next(iter(slots), b""), words)


def _copied(reply: Any) -> Any:
    """A copy whose lists and dicts the caller may change."""
    if isinstance(reply, list):
        return [_copied(value) if isinstance(value, (list, dict, set)) else value for value in reply]
    if isinstance(reply, dict):
        return {field: _copied(value) for field, value in reply.items()}
    return set(reply) if isinstance(reply, set) else reply


def _has_errors(reply: Any) -> bool:
    if isinstance(reply, dict):
        return any(map(_has_errors, reply.values()))
    return any(map(_has_errors, reply)) if isinstance(reply, list) else isinstance(reply, Exception)
