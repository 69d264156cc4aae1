"""Balancing: which of several eligible workers gets the next batch. Eligible workers have matching labels and
enough credit. A new algorithm is a class here and a line in BALANCERS."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from dispatcher.core.policy.rules import Algorithm, Balance


class WorkerLoad(NamedTuple):
    """A worker as balancing sees it."""

    name: str
    outstanding: int  # pods sent and not answered
    window: int  # pods it may have outstanding
    weight: float
    work_micros: float  # estimate for the outstanding pods


class Chance(Protocol):
    """The part of random.Random that balancing uses."""

    def randrange(self, stop: int, /) -> int:
        """An integer from 0 to stop - 1."""
        ...


class Balancer(Protocol):
    """The algorithm of one rule, with its state."""

    def choose(self, loads: Sequence[WorkerLoad], bucket: int, chance: Chance, /) -> int:
        """Position in `loads` (never empty) of the chosen worker. `bucket` is the sub-queue's, for
        hashing."""
        ...


class LeastOutstanding:
    """The worker with the least estimated work; among equals a random one."""

    def choose(self, loads: Sequence[WorkerLoad], _bucket: int, chance: Chance) -> int:
        least = min(load.work_micros for load in loads)
        equal = [i for i, load in enumerate(loads) if load.work_micros == least]
        return equal[chance.randrange(len(equal))]


class PowerOfTwoChoices:
    """The least loaded of `choices` random workers (Mitzenmacher 2001): nearly as even, without all batches
    going to the same worker when figures are outdated."""

    def __init__(self, choices: int) -> None:
        self._choices = choices

    def choose(self, loads: Sequence[WorkerLoad], _bucket: int, chance: Chance) -> int:
        left = list(range(len(loads)))
        drawn = [left.pop(chance.randrange(len(left))) for _ in range(min(self._choices, len(left)))]
        return min(drawn, key=lambda i: loads[i].work_micros)


class WeightedRoundRobin:
    """In turn, in proportion to weight, and smoothly: a weight of 2 among ones gives a-b-a-c, not a-a-b-c
    (nginx's smooth weighted round robin)."""

    MOST_NAMES = 1000  # remembered of workers that get no pods at the moment

    def __init__(self) -> None:
        self._credit: dict[str, float] = {}

    def choose(self, loads: Sequence[WorkerLoad], _bucket: int, _chance: Chance) -> int:
        total = sum(load.weight for load in loads)
        for load in loads:
            self._credit[load.name] = self._credit.get(load.name, 0.0) + load.weight
        best = max(range(len(loads)), key=lambda i: self._credit[loads[i].name])
        self._credit[loads[best].name] -= total
        if len(self._credit) > self.MOST_NAMES + len(loads):
            self._credit = {load.name: self._credit[load.name] for load in loads}
        return best


class ConsistentHash:
    """A bucket keeps its worker while the worker lives and is not overloaded (rendezvous hashing, bounded
    load), so a class goes to a worker that has it cached."""

    # Beyond `bound` times its share, a worker may have a quarter of its window before a bucket goes to its
    # next choice. That is about one batch: at small loads a single batch is already far more than a share.
    SLACK_OF_WINDOW = 0.25

    def __init__(self, bound: float) -> None:
        self._bound = bound

    def choose(self, loads: Sequence[WorkerLoad], bucket: int, _chance: Chance) -> int:
        order = sorted(range(len(loads)), key=lambda i: _rank(bucket, loads[i].name))
        work = sum(load.work_micros for load in loads)
        allowed = self._bound * work / len(loads)
        work_per_pod = work / max(1, sum(load.outstanding for load in loads))
        slack = self.SLACK_OF_WINDOW * work_per_pod  # per pod of a window
        for i in order:
            if loads[i].work_micros <= allowed + slack * loads[i].window:
                return i
        return order[0]


class Random:
    """A random worker, whatever its load."""

    def choose(self, loads: Sequence[WorkerLoad], _bucket: int, chance: Chance) -> int:
        return chance.randrange(len(loads))


BALANCERS: Mapping[Algorithm, Callable[[Balance], Balancer]] = {
    Algorithm.LEAST_OUTSTANDING: lambda _: LeastOutstanding(),
    Algorithm.POWER_OF_TWO_CHOICES: lambda balance: PowerOfTwoChoices(balance.choices),
    Algorithm.WEIGHTED_ROUND_ROBIN: lambda _: WeightedRoundRobin(),
    Algorithm.CONSISTENT_HASH: lambda balance: ConsistentHash(balance.bound),
    Algorithm.RANDOM: lambda _: Random(),
}


def make_balancer(balance: Balance) -> Balancer:
    """The algorithm of a rule, with no state yet."""
    return BALANCERS[balance.algorithm](balance)


def _rank(bucket: int, name: str) -> bytes:
    return hashlib.blake2b(f"{bucket}/{name}".encode(), digest_size=8).digest()
