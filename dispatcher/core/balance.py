"""Which of several fitting workers gets the next batch.

Every algorithm is asked with the loads of the workers that may have it and have credit for it; labels and credits were
looked at before.
"""

import hashlib
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from dispatcher.core.policy import Algorithm, Balance


class WorkerLoad(NamedTuple):
    """A worker as balancing sees it."""

    name: str
    outstanding: int  # pods sent and not answered
    window: int  # pods it takes at once
    weight: float
    micros_per_pod: float  # its own measure; 0 before the first

    @property
    def work_micros(self) -> float:
        """Estimated work in front of it."""
        return self.outstanding * max(self.micros_per_pod, 1.0)


class Chance(Protocol):
    """The part of random.Random that balancing uses."""

    def randrange(self, stop: int, /) -> int:
        """A whole number from 0 to stop - 1."""
        ...


class Balancer(Protocol):
    """One rule's algorithm with what it remembers."""

    def choose(self, loads: Sequence[WorkerLoad], bucket: int, chance: Chance) -> int:
        """Position in `loads` (never empty) of the worker to take. `bucket` is the lane's, for hashing."""
        ...


class LeastOutstanding:
    """The one with the least estimated work in front of it; of equals, any."""

    def choose(self, loads: Sequence[WorkerLoad], bucket: int, chance: Chance) -> int:  # noqa: ARG002 - the protocol's
        least = min(load.work_micros for load in loads)
        equal = [i for i, load in enumerate(loads) if load.work_micros == least]
        return equal[chance.randrange(len(equal))]


class PowerOfTwoChoices:
    """The least loaded of two or a few drawn at random (Mitzenmacher 2001): nearly as even, without everyone running to the
    same one when figures are old."""

    def __init__(self, choices: int) -> None:
        self._choices = choices

    def choose(self, loads: Sequence[WorkerLoad], bucket: int, chance: Chance) -> int:  # noqa: ARG002 - the protocol's
        left = list(range(len(loads)))
        drawn = [left.pop(chance.randrange(len(left))) for _ in range(min(self._choices, len(loads)))]
        return min(drawn, key=lambda i: loads[i].work_micros)


class Random:
    """Any of them, each as likely as the others."""

    def choose(self, loads: Sequence[WorkerLoad], bucket: int, chance: Chance) -> int:  # noqa: ARG002 - the protocol's
        return chance.randrange(len(loads))


class WeightedRoundRobin:
    """In turn, in proportion to weight, and smoothly: a weight of 2 among ones gives a-b-a-c, not a-a-b-c (nginx's rule)."""

    def __init__(self) -> None:
        self._credit: dict[str, float] = {}

    def choose(self, loads: Sequence[WorkerLoad], bucket: int, chance: Chance) -> int:  # noqa: ARG002 - the protocol's
        total = sum(load.weight for load in loads)
        for load in loads:
            self._credit[load.name] = self._credit.get(load.name, 0.0) + load.weight
        best = max(range(len(loads)), key=lambda i: self._credit[loads[i].name])
        self._credit[loads[best].name] -= total
        return best


class ConsistentHash:
    """A bucket's worker stays the same while it lives and is not overloaded (rendezvous hashing, bounded load): so a
    class meets the worker that has it cached."""

    # Beside `bound` times its share a worker may have a quarter of its window (about a batch: at small loads one batch is
    # already far more than a share), before a bucket goes to its next choice.
    SLACK_OF_WINDOW = 0.25

    def __init__(self, bound: float) -> None:
        self._bound = bound

    def choose(self, loads: Sequence[WorkerLoad], bucket: int, chance: Chance) -> int:  # noqa: ARG002 - the protocol's
        order = sorted(range(len(loads)), key=lambda i: _rank(bucket, loads[i].name))
        share = sum(load.outstanding for load in loads) / len(loads)
        for i in order:
            if loads[i].outstanding <= self._bound * share + self.SLACK_OF_WINDOW * loads[i].window:
                return i
        return order[0]


def make_balancer(balance: Balance) -> Balancer:
    """A fresh balancer for a rule."""
    match balance.algorithm:
        case Algorithm.LEAST_OUTSTANDING:
            return LeastOutstanding()
        case Algorithm.POWER_OF_TWO_CHOICES:
            return PowerOfTwoChoices(balance.choices)
        case Algorithm.WEIGHTED_ROUND_ROBIN:
            return WeightedRoundRobin()
        case Algorithm.CONSISTENT_HASH:
            return ConsistentHash(balance.bound)
        case Algorithm.RANDOM:
            return Random()


def _rank(bucket: int, name: str) -> bytes:
    return hashlib.blake2b(f"{bucket}/{name}".encode(), digest_size=8).digest()
