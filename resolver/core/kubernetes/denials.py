"""Denials that were given a moment ago, so that a scheduler which asks ten times a second for a node that
stays full costs next to nothing, and one line of the log a minute.

A denial for want of room stands for `REPEATED_SECONDS`. Room that comes free is given that much later to
whoever asks so often; everybody else is judged anew. Invariant: an answer that allows is never repeated from
here.

The owner of an entry is this table: it goes after `LOGGED_SECONDS`, or when `MOST` newer ones have come."""

from collections import OrderedDict
from dataclasses import dataclass

from resolver.core.kubernetes.binding_review import Review, ReviewAnswer
from resolver.core.kubernetes.volumes_and_devices import DEVICE_CONFLICT, VOLUME_CONFLICT
from resolver.core.values import Verdict

REPEATED_SECONDS = 0.5
LOGGED_SECONDS = 60.0
MOST = 10_000

# What ends only when something else ends. The other verdicts are about the pod itself, and may change at
# once.
_LASTING = {
    Verdict.CONFLICT_RESOURCE.name.lower(),
    Verdict.CONFLICT_PORT.name.lower(),
    Verdict.CONFLICT_DEVICE.name.lower(),
    VOLUME_CONFLICT,
    DEVICE_CONFLICT,
}

_Question = tuple[str, str, bytes, str]  # namespace, pod, its UID, node


@dataclass(slots=True)
class _Denial:
    answer: ReviewAnswer
    judged_at: float
    logged_at: float
    unlogged: int = 0  # equal denials since


class RecentDenials:
    """By pod and node. Times are seconds of one monotonic clock."""

    def __init__(self) -> None:
        self._denials: OrderedDict[_Question, _Denial] = (
            OrderedDict()
        )  # the one that was logged last comes last

    def __len__(self) -> int:
        return len(self._denials)

    def repeated(self, review: Review, now: float) -> ReviewAnswer | None:
        """The answer that the same question got a moment ago; None: it has to be judged."""
        known = self._denials.get(_question(review))
        # Without a UID it may be another pod of the name.
        if known is None or not review.pod_uid or review.dry_run:
            return None
        if now - known.judged_at >= REPEATED_SECONDS:
            return None
        return known.answer if known.answer.verdict in _LASTING else None

    def judged(self, review: Review, answer: ReviewAnswer, now: float) -> None:
        """The question was judged, and this is its answer."""
        known = self._denials.get(_question(review))
        if known is not None and not answer.allowed:
            known.answer, known.judged_at = answer, now
        elif not answer.allowed and not review.dry_run:
            # To be logged: longer ago than any.
            self._denials[_question(review)] = _Denial(answer, now, logged_at=float("-inf"))
            self._forget(now)
        elif known is not None and not review.dry_run:
            del self._denials[_question(review)]

    def to_log(self, review: Review, now: float) -> int | None:
        """The question was denied. How many times that was so since it was last logged; None: it was logged a
        moment ago."""
        known = self._denials.get(_question(review))
        if known is None:
            return 0
        if now - known.logged_at < LOGGED_SECONDS:
            known.unlogged += 1
            return None
        unlogged, known.unlogged, known.logged_at = known.unlogged, 0, now
        self._denials.move_to_end(_question(review))
        return unlogged

    def _forget(self, now: float) -> None:
        while len(self._denials) > 1:
            question, oldest = next(iter(self._denials.items()))
            if len(self._denials) <= MOST and now - max(oldest.logged_at, oldest.judged_at) < LOGGED_SECONDS:
                return
            del self._denials[question]


def _question(review: Review) -> _Question:
    return review.namespace, review.pod, review.pod_uid, review.node
