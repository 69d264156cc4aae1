"""Detects nodes that workers and the ledger disagree about, and decides when to quarantine them.

A refusal for lack of room is normally a lost race. It is a disagreement if the node has not changed since the
worker's snapshot. One disagreement says little. After several, the node is published again in the feed and
compared with its reservations. After several more, the node is quarantined."""

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from hoss.model.resources import written_amount
from hoss.wire.columns import U32, account_dtype
from resolver.core.values import Decision, Proposal, Verdict


@dataclass(frozen=True, slots=True)
class QuarantineRules:
    """When to act on a node, for how long nodes are quarantined, and how many at once."""

    refusals: int = 3  # of proposals, within the window
    window_seconds: float = 60.0
    seconds: float = 300.0  # in quarantine
    most_share: float = 0.05  # of a shard's nodes in quarantine at once; one node is always allowed


@dataclass(frozen=True, slots=True)
class QuarantineRequest:
    """How to quarantine a node."""

    reason: str
    milliseconds: int
    most_per_mille: int
    unchanged_since: int = 0  # only if the node last changed at this seq; 0: in any case


@dataclass(frozen=True, slots=True)
class QuarantineRecord:
    """A node in quarantine. Times are Unix milliseconds by the ledger's clock."""

    reason: str
    since_ms: int
    until_ms: int


class QuarantineStep(Enum):
    """What follows from refusals by a node. It is published again first: views may be stale."""

    REPUBLISH = 1
    QUARANTINE = 2


@dataclass(slots=True)
class _Record:
    refused_at: deque[float] = field(default_factory=deque)
    republished_at: int | None = None  # seq of the feed entry that published the node again


@dataclass(slots=True)
class Suspicions:
    """The refusals that this resolver has counted, by node. A record expires after a window without
    refusals."""

    rules: QuarantineRules
    _records: dict[int, _Record] = field(default_factory=lambda: defaultdict(_Record))

    def observe(self, proposal: Proposal, decision: Decision, now: float) -> list[tuple[int, QuarantineStep]]:
        """Count the refusals of a decision. Returns the steps that are due now."""
        steps = []
        for node in disagreeing(proposal, decision).tolist():
            record = self._records[node]
            if record.republished_at is not None and proposal.snapshot_seq < record.republished_at:
                continue  # the worker has not seen the published entry yet
            record.refused_at.append(now)
            while record.refused_at[0] < now - self.rules.window_seconds:
                record.refused_at.popleft()
            if len(record.refused_at) >= self.rules.refusals:
                record.refused_at.clear()
                steps.append(
                    (
                        node,
                        QuarantineStep.REPUBLISH
                        if record.republished_at is None
                        else QuarantineStep.QUARANTINE,
                    )
                )
        return steps

    def republished(self, node: int, seq: int) -> None:
        """Feed entry `seq` published the node again: refusals count once workers have seen that entry."""
        self._records[node].republished_at = seq

    def clear(self, node: int) -> None:
        """Drop the node's record."""
        self._records.pop(node, None)

    def forget(self, now: float) -> None:
        """Drop expired records."""
        for node in list(self._quiet_since(now - self.rules.window_seconds)):
            del self._records[node]

    def _quiet_since(self, then: float) -> Iterator[int]:
        for node, record in self._records.items():
            if not record.refused_at or record.refused_at[-1] < then:
                yield node


def disagreeing(proposal: Proposal, decision: Decision) -> NDArray[np.uint32]:
    """Nodes that refused a pod for lack of room although they had not changed since the worker's snapshot.

    Pods with victims do not count: as their worker knows, their room is not there yet."""
    conflicts = decision.conflicts
    # The snapshot is of a state that the ledger has lost.
    if not len(conflicts) or proposal.snapshot_seq > decision.as_of:
        return np.empty(0, U32)
    conflicts = conflicts[decision.verdicts[conflicts["position"]] == Verdict.CONFLICT_RESOURCE]
    if proposal.victims:
        conflicts = conflicts[~np.isin(conflicts["position"], list(proposal.victims))]
    accounts = np.frombuffer(decision.fresh.records, account_dtype(decision.fresh.resources))
    unchanged = np.frombuffer(decision.fresh.indexes, U32)[accounts["seq"] <= proposal.snapshot_seq]
    nodes: NDArray[np.uint32] = np.intersect1d(conflicts["node"], unchanged)
    return nodes


def difference(requested: NDArray[np.int64], reserved: NDArray[np.int64], schema: Sequence[str]) -> str:
    """How a node's requested amounts differ from the sum of its reservations; empty if they agree.

    Amounts are in `schema` order; missing ones are 0."""
    amounts = np.zeros((2, max(len(requested), len(reserved))), np.int64)
    amounts[0, : len(requested)], amounts[1, : len(reserved)] = requested, reserved
    found = []
    for resource in np.flatnonzero(amounts[0] != amounts[1]).tolist():
        name, (account, pods) = schema[resource], amounts[:, resource].tolist()
        apart = written_amount(name, abs(account - pods))
        found.append(
            f"{name} {written_amount(name, account)}, {apart} {'more' if account > pods else 'less'}"
        )
    return f"its account has, as requested, {'; '.join(found)} than its reservations ask for" if found else ""
