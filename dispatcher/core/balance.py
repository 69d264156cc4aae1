"""Which of several fitting workers gets the next batch.

Every algorithm is asked with the loads of the workers that may have it and have room for it; labels and credits were
looked at before. A new one is a class here and a line in BALANCERS.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from dispatcher.core.policy import Algorithm, Balance


class WorkerLoad(NamedTuple):
    """A worker as balancing sees it."""

    name: str
    outstanding: int  # pods sent and not answered
    window: int  # pods it takes at once
    weight: float
    work_micros: float  # what the outstanding ones are estimated to take it


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
    """The least loaded of `choices` drawn at random (Mitzenmacher 2001): nearly as even, without everyone running to the same
    one when figures are old."""

    def __init__(self, choices: int) -> None:
        self._choices = choices

    def choose(self, loads: Sequence[WorkerLoad], bucket: int, chance: Chance) -> int:  # noqa: ARG002 - the protocol's
        left = list(range(len(loads)))
        drawn = [left.pop(chance.randrange(len(left))) for _ in range(min(self._choices, len(left)))]
        return min(drawn, key=lambda i: loads[i].work_micros)


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

    # Beyond `bound` times its share of the work, a worker may have a quarter of its window (about a batch: at small loads
    # one batch is already far more than a share) before a bucket goes to its next choice.
    SLACK_OF_WINDOW = 0.25

    def __init__(self, bound: float) -> None:
        self._bound = bound

    def choose(self, loads: Sequence[WorkerLoad], bucket: int, chance: Chance) -> int:  # noqa: ARG002 - the protocol's
        order = sorted(range(len(loads)), key=lambda i: _rank(bucket, loads[i].name))
        work = sum(load.work_micros for load in loads)
        allowed = self._bound * work / len(loads)
        slack = self.SLACK_OF_WINDOW * work / max(1, sum(load.outstanding for load in loads))  # per pod of a window
        for i in order:
            if loads[i].work_micros <= allowed + slack * loads[i].window:
                return i
        return order[0]


class Random:
    """Any of them, whatever they have in hand."""

    def choose(self, loads: Sequence[WorkerLoad], bucket: int, chance: Chance) -> int:  # noqa: ARG002 - the protocol's
        return chance.randrange(len(loads))


BALANCERS: Mapping[Algorithm, Callable[[Balance], Balancer]] = {
    Algorithm.LEAST_OUTSTANDING: lambda _: LeastOutstanding(),
    Algorithm.POWER_OF_TWO_CHOICES: lambda balance: PowerOfTwoChoices(balance.choices),
    Algorithm.WEIGHTED_ROUND_ROBIN: lambda _: WeightedRoundRobin(),
    Algorithm.CONSISTENT_HASH: lambda balance: ConsistentHash(balance.bound),
    Algorithm.RANDOM: lambda _: Random(),
}


def make_balancer(balance: Balance) -> Balancer:
    """A fresh balancer for a rule."""
    return BALANCERS[balance.algorithm](balance)


def _rank(bucket: int, name: str) -> bytes:
    return hashlib.blake2b(f"{bucket}/{name}".encode(), digest_size=8).digest()
