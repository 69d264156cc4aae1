"""A load as arrivals and departures on given nodes: what the harness plays, whoever made it."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from hoss.client.dispatcher import submission
from hoss.model.node import NodeSpec
from hoss.model.pod import Workload
from hoss.v1 import dispatcher_pb2 as pb
from hossctl.runner import pods_of
from hossctl.traces.recording import TracePod


@dataclass(frozen=True, slots=True)
class Arrival:
    """One message, sent `at_seconds` after the load begins. Its pods are deleted `life_seconds` after the last of them was bound;
    None: they stay. Namespace "default"."""

    message: pb.SubmitRequest
    at_seconds: float = 0.0
    life_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Trace:
    """Arrivals in the order of their times."""

    nodes: tuple[NodeSpec, ...]
    arrivals: tuple[Arrival, ...]

    @property
    def pods(self) -> int:
        """How many arrive in all."""
        return pods_of([arrival.message for arrival in self.arrivals])

    @property
    def seconds(self) -> float:
        """From the first arrival to the last, and to the end of every life if its pods are bound at once."""
        return max((arrival.at_seconds + (arrival.life_seconds or 0.0) for arrival in self.arrivals), default=0.0)


def arriving(
    workloads: Iterable[Workload], at_seconds: float = 0.0, life_seconds: float | None = None
) -> list[Arrival]:
    """Workloads that come together, as few messages."""
    return [Arrival(message, at_seconds, life_seconds) for message in submission(workloads)]


def replayed(nodes: Sequence[NodeSpec], pods: Sequence[TracePod], speedup: float) -> Trace:
    """A recorded trace with its time `speedup` times as fast, or (0) all at once and for good."""
    if not speedup:
        return Trace(tuple(nodes), tuple(arriving(pod.workload for pod in pods)))
    begin = min((pod.creation_seconds for pod in pods), default=0.0)

    def times(pod: TracePod) -> tuple[float, float]:
        gone = pod.deletion_seconds
        return pod.creation_seconds, math.inf if gone is None else max(0.0, gone - pod.creation_seconds)

    arrivals: list[Arrival] = []
    for (created, life), alike in groupby(sorted(pods, key=times), key=times):
        workloads = [pod.workload for pod in alike]
        arrivals += arriving(workloads, (created - begin) / speedup, life / speedup if life < math.inf else None)
    return Trace(tuple(nodes), tuple(arrivals))
