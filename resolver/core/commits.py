"""Commits that are not confirmed, as a shard stores them, and what can be wrong with that. And which of a
pod's reservations stands, if it has several.

Invariant: a commit that is prepared or assumed has a list of its pods and a lease, and ends by itself. A
commit without either is confirmed. What is stored otherwise never ends, or ends what nobody has made."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hoss.wire.columns import NONE_U32

_LAST_SEQ = 2**53  # numbers in Lua are exact up to there
_OVERDUE_MS = 10_000  # leases are ended within seconds

# By ReservationState (resolver/core/values.py): none, prepared, assumed, confirmed, terminating, pre-binding.
_FIRMNESS = np.array([0, 1, 3, 4, 4, 2])


@dataclass(frozen=True, slots=True)
class UnconfirmedCommits:
    """By seq of a commit. Times are lease time (lua/leases.lua), in milliseconds."""

    listed: frozenset[int] = frozenset()  # that have a list of their pods
    deadlines: Mapping[int, int] = field(default_factory=dict)  # of the leases
    prepared: Mapping[int, int] = field(default_factory=dict)  # the number of pods
    unlisted: frozenset[int] = frozenset()  # whose list was damaged
    uncounted: frozenset[int] = frozenset()  # prepared ones, whose number of pods was damaged
    now_ms: int = field(default=0, compare=False, repr=False)
    unreaped_ms: int = field(
        default=0, compare=False, repr=False
    )  # since leases were last ended, by the ledger's clock


def commit_seqs(fields: Iterable[bytes]) -> list[int]:
    """The commits that these fields of a shard's records name; without what names none."""
    return [
        int(field)
        for field in fields
        if field.isdigit() and int(field) <= _LAST_SEQ and b"%d" % int(field) == field
    ]


class LeaseRule(Enum):
    """What a repair does with a lease."""

    BEGIN = "begin"  # a new one: the commit may still be confirmed
    END = "end"  # the commit ends with the next reaping
    FORGET = "forget"


@dataclass(frozen=True, slots=True)
class CommitFault:
    """What is wrong with a commit, in words, and the rule by which it is repaired. `pods`: of a prepared
    commit, the number that it really has; None: as it is stored."""

    seq: int
    text: str
    rule: LeaseRule | None = None  # None: reaping repairs it
    pods: int | None = None


def commit_faults(
    commits: UnconfirmedCommits,
    seqs: NDArray[np.uint64],
    *,
    at: int,
    targets: NDArray[np.bool_] | None = None,
) -> Iterator[CommitFault]:
    """`seqs`: the commit of each reservation; `at`: the seq of the shard; `targets`: which are the targets of
    moves, which nobody confirms as they are."""
    numbers, counts = np.unique(seqs, return_counts=True)
    held = dict(zip(numbers.tolist(), counts.tolist(), strict=True))
    known = commits.listed | commits.deadlines.keys() | commits.prepared.keys()
    known |= commits.unlisted | commits.uncounted
    for seq in sorted(known):
        fault = _fault(commits, seq, held.get(seq, 0), at)
        if fault is not None:
            yield fault
    of_targets = np.unique(seqs[targets]).tolist() if targets is not None else []
    for seq in set(of_targets) - known:
        text = f"commit {seq} reserved the targets of moves and has no lease: it would never end"
        yield CommitFault(seq, text, LeaseRule.BEGIN)
    if commits.deadlines and commits.unreaped_ms > _OVERDUE_MS:
        yield CommitFault(
            0, f"leases were last ended {commits.unreaped_ms // 1000} s ago: no resolver is running"
        )


def _fault(commits: UnconfirmedCommits, seq: int, held: int, at: int) -> CommitFault | None:
    prepared = seq in commits.prepared or seq in commits.uncounted
    if seq > at:
        text = f"commit {seq} has a lease, and the shard is at {at}: it never made that commit"
        return CommitFault(seq, text, LeaseRule.FORGET, 0 if prepared else None)
    fault = _of_prepared(commits, seq, held) if prepared else _of_assumed(commits, seq, held)
    late_ms = commits.now_ms - commits.deadlines.get(seq, commits.now_ms)
    if fault is None and late_ms > _OVERDUE_MS:
        return CommitFault(seq, f"commit {seq} should have ended {late_ms // 1000} s ago")
    return fault


def _of_prepared(commits: UnconfirmedCommits, seq: int, held: int) -> CommitFault | None:
    counted = commits.prepared.get(seq)
    if not held:
        return CommitFault(seq, f"commit {seq} is prepared and has no pods", LeaseRule.FORGET, 0)
    if seq not in commits.listed or seq not in commits.deadlines:
        lacking = "a damaged list of them" if seq in commits.unlisted else "no lease"
        text = f"commit {seq} is prepared, with {held} pods, and has {lacking}: it would never end"
        return CommitFault(seq, text, LeaseRule.END, held)
    if counted is None:
        return CommitFault(
            seq, f"commit {seq} is prepared with a damaged number of pods and has {held}", None, held
        )
    if counted != held:
        return CommitFault(seq, f"commit {seq} is prepared with {counted} pods and has {held}", None, held)
    return None


def _of_assumed(commits: UnconfirmedCommits, seq: int, held: int) -> CommitFault | None:
    if seq in commits.unlisted:
        text = f"commit {seq} has {held} pods and a damaged list of them: it would never end"
        return CommitFault(seq, text, LeaseRule.BEGIN if held else LeaseRule.FORGET)
    if seq not in commits.deadlines:
        text = f"commit {seq} is not confirmed and has no lease: it would never end"
        return CommitFault(seq, text, LeaseRule.BEGIN)
    if seq not in commits.listed:
        return CommitFault(seq, f"a lease of commit {seq}, which has no list of its pods", LeaseRule.FORGET)
    return None


def standing(
    of_shards: Sequence[NDArray[Any]],
) -> tuple[NDArray[Any], NDArray[np.intp], NDArray[np.uint32]]:
    """What pods have on all shards, from what each shard has (fields node, epoch, state; a row for each pod).
    If a pod has several reservations, one stands: that with the firmest state, then of the latest epoch, then
    on the lowest shard. Returns these, and positions and nodes of the others."""
    best, pods, nodes = of_shards[0].copy(), [], []
    for found in of_shards[1:]:
        held, both = found["node"] != NONE_U32, (found["node"] != NONE_U32) & (best["node"] != NONE_U32)
        firmness, before = _FIRMNESS[found["state"]], _FIRMNESS[best["state"]]
        later = (firmness == before) & (found["epoch"] > best["epoch"])
        better = held & (~both | (firmness > before) | later)
        pods.append(np.flatnonzero(both))
        nodes.append(np.where(better, best["node"], found["node"])[both])
        best[better] = found[better]
    none = np.empty(0, np.intp)
    return best, np.concatenate([none, *pods]), np.concatenate([none, *nodes]).astype(np.uint32)
