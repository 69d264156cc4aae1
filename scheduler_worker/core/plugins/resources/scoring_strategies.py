"""Scoring strategies of NodeResourcesFit, with the arguments and rules of kube-scheduler 1.36
(NodeResourcesFitArgs.scoringStrategy; plugins/noderesources). All arithmetic is on integers, quotients are
truncated."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hoss.errors import ConfigError
from hoss.model.resources import BASE_RESOURCES, CPU, EPHEMERAL_STORAGE, MEMORY, PODS
from scheduler_worker.core.classes import Demand

LEAST_ALLOCATED = "LeastAllocated"
MOST_ALLOCATED = "MostAllocated"
REQUESTED_TO_CAPACITY_RATIO = "RequestedToCapacityRatio"
STRATEGIES = (LEAST_ALLOCATED, MOST_ALLOCATED, REQUESTED_TO_CAPACITY_RATIO)

DEFAULT_RESOURCES = (("cpu", 1), ("memory", 1))

_ROW_OF_ALL = {"cpu": CPU, "memory": MEMORY, "ephemeral-storage": EPHEMERAL_STORAGE}
_MAX_WEIGHT = 100
_MAX_SHAPE_SCORE = 10  # a shape's scores go from 0 to 10 and count tenfold
_FULL = 100


def read_resources(given: Sequence[Mapping[str, Any]] | None) -> tuple[tuple[str, int], ...]:
    """`[{name: cpu, weight: 1}, ...]` as pairs. ConfigError for a weight outside 1 to 100 or a name given
    twice."""
    if given is None:
        return DEFAULT_RESOURCES
    entries = _entries(given, "resources", {"name", "weight"})
    pairs: list[tuple[str, int]] = []
    for i, entry in enumerate(entries):
        name = entry.get("name")
        if not isinstance(name, str) or not name:
            raise ConfigError(f"is {name!r}; it names a resource, such as cpu", where=f"resources[{i}].name")
        weight = _whole(entry.get("weight", 1), 1, _MAX_WEIGHT, f"resources[{i}].weight")
        if name in (known for known, _ in pairs):
            raise ConfigError(f"{name!r} is given twice", where=f"resources[{i}].name")
        pairs.append((name, weight))
    return tuple(pairs)


def read_shape(given: Sequence[Mapping[str, Any]] | None) -> NDArray[np.int64]:
    """`[{utilization: 0, score: 0}, {utilization: 100, score: 10}]` as the score of each whole percentage:
    (101,).

    The score is linear between two points, and constant before the first and after the last. ConfigError
    unless utilizations grow from point to point within 0 to 100 and scores are from 0 to 10."""
    entries = _entries(given or (), "shape", {"utilization", "score"})
    points: list[tuple[int, int]] = []
    for i, entry in enumerate(entries):
        utilization = _whole(entry.get("utilization"), 0, _FULL, f"shape[{i}].utilization")
        score = _whole(entry.get("score"), 0, _MAX_SHAPE_SCORE, f"shape[{i}].score")
        if points and utilization <= points[-1][0]:
            problem = f"is {utilization}; it must be above the one before, {points[-1][0]}"
            raise ConfigError(problem, where=f"shape[{i}].utilization")
        points.append((utilization, score * _FULL // _MAX_SHAPE_SCORE))
    return np.array([_broken_line(points, percentage) for percentage in range(_FULL + 1)], np.int64)


def scored_row(resource: str, demand: Demand) -> int | None:
    """The row of a resource in the columns of nodes; None for one that the pod does not request, unless every
    node has it. As in kube-scheduler the number of pods is not scored: no container requests it."""
    if resource in _ROW_OF_ALL:
        return _ROW_OF_ALL[resource]
    if resource == BASE_RESOURCES[PODS]:
        return None
    return int(demand.rows[demand.names.index(resource)]) if resource in demand.names else None


@dataclass(frozen=True, slots=True)
class Amounts:
    """One resource of n nodes; `used` includes the pod to be placed."""

    used: NDArray[np.int64]  # (n,)
    allocatable: NDArray[np.int64]  # (n,)
    weight: int


def weighted_score(
    strategy: str, resources: Sequence[Amounts], nodes: int, shape: NDArray[np.int64] | None
) -> NDArray[np.float64]:
    """The score of `nodes` nodes by any strategy; `shape` belongs to RequestedToCapacityRatio. See
    ScorePlugin.

    A resource that a node does not offer is left out for it. With a shape, resources with score 0 are left
    out as well, and the mean is rounded; otherwise it is truncated."""
    total, weights = np.zeros(nodes, np.int64), np.zeros(nodes, np.int64)
    for amounts in resources:
        offered = amounts.allocatable > 0
        capacity = np.where(offered, amounts.allocatable, 1)
        used = np.clip(amounts.used, 0, capacity)
        if shape is not None:
            score = shape[used * _FULL // capacity]
            offered = offered & (score > 0)
        else:
            score = (used if strategy == MOST_ALLOCATED else capacity - used) * _FULL // capacity
        total += np.where(offered, score * amounts.weight, 0)
        weights += np.where(offered, amounts.weight, 0)
    weights[weights == 0] = 1
    if shape is None:
        return (total // weights).astype(np.float64)
    return np.floor(total / weights + 0.5)  # rounds halves away from zero, as Go does; np.round would not


def _broken_line(points: Sequence[tuple[int, int]], percentage: int) -> int:
    for i, (end, score) in enumerate(points):
        if percentage <= end:
            if i == 0:
                return score
            start, before = points[i - 1]
            rise = (score - before) * (percentage - start)
            return before + (abs(rise) // (end - start)) * (1 if rise >= 0 else -1)  # truncated towards zero
    return points[-1][1]


def _entries(given: Any, where: str, fields: set[str]) -> Sequence[Mapping[str, Any]]:
    if not isinstance(given, Sequence) or isinstance(given, str) or not given:
        raise ConfigError(f"is {given!r}; it is a list of {{{', '.join(sorted(fields))}}}", where=where)
    for i, entry in enumerate(given):
        if not isinstance(entry, Mapping):
            raise ConfigError(f"is {entry!r}; it has {' and '.join(sorted(fields))}", where=f"{where}[{i}]")
        if unknown := sorted(set(entry) - fields):
            raise ConfigError(f"is none of {', '.join(sorted(fields))}", where=f"{where}[{i}].{unknown[0]}")
    return given


def _whole(value: Any, least: int, most: int, where: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ConfigError(f"is {value!r}; it must be a whole number from {least} to {most}", where=where)
    return value
