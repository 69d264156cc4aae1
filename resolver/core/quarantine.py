"""Nodes that refuse what workers, who know them as they are, believe to fit.

A refusal for lack of room is a race lost, unless the node has not changed since the worker's snapshot: then worker and ledger
disagree about the same node. One disagreement says little; several lead to the node being told anew (*re-read*) and
compared with its reservations, and several after that to its quarantine.
"""

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from hoss.model.resources import written_amount
from hoss.wire.account import account_dtype
from hoss.wire.columns import U32
from resolver.core.values import Decision, Proposal, Verdict


@dataclass(frozen=True, slots=True)
class QuarantineRules:
    """When a node is looked at, and how long and how many are out."""

    refusals: int = 3  # of proposals, within the window
    window_seconds: float = 60.0
    seconds: float = 300.0  # out of scheduling
    most_share: float = 0.05  # of a shard's nodes out at once; one always may


@dataclass(frozen=True, slots=True)
class Taking:
    """How a node is to be taken out."""

    reason: str
    milliseconds: int
    most_per_mille: int
    unchanged_since: int = 0  # only if it last changed at this seq; 0: in any case


@dataclass(frozen=True, slots=True)
class Kept:
    """A node in quarantine; Unix milliseconds by the ledger's clock."""

    reason: str
    since_ms: int
    until_ms: int


class Step(Enum):
    """What is to be done about a node."""

    READ_AGAIN = 1
    QUARANTINE = 2


@dataclass(slots=True)
class _Record:
    refused_at: deque[float] = field(default_factory=deque)
    told_at_seq: int | None = None  # read again, and told to everyone by this entry of the feed


@dataclass(slots=True)
class Suspicions:
    """What this resolver has against nodes. Forgotten after a window without refusals."""

    rules: QuarantineRules
    _records: dict[int, _Record] = field(default_factory=lambda: defaultdict(_Record))

    def heard(self, proposal: Proposal, decision: Decision, now: float) -> list[tuple[int, Step]]:
        """Take in a decision. The nodes about which something is to be done now."""
        steps = []
        for node in disagreeing(proposal, decision).tolist():
            record = self._records[node]
            if record.told_at_seq is not None and proposal.snapshot_seq < record.told_at_seq:
                continue  # that worker has not heard of it yet
            record.refused_at.append(now)
            while record.refused_at[0] < now - self.rules.window_seconds:
                record.refused_at.popleft()
            if len(record.refused_at) >= self.rules.refusals:
                record.refused_at.clear()
                steps.append((node, Step.READ_AGAIN if record.told_at_seq is None else Step.QUARANTINE))
        return steps

    def told(self, node: int, seq: int) -> None:
        """The feed's entry `seq` tells of the node anew: refusals count again once workers have heard it."""
        self._records[node].told_at_seq = seq

    def clear(self, node: int) -> None:
        """Nothing is held against it any more."""
        self._records.pop(node, None)

    def forget(self, now: float) -> None:
        """Drop what is older than the window."""
        for node in list(self._quiet_since(now - self.rules.window_seconds)):
            del self._records[node]

    def _quiet_since(self, then: float) -> Iterator[int]:
        for node, record in self._records.items():
            if not record.refused_at or record.refused_at[-1] < then:
                yield node


def disagreeing(proposal: Proposal, decision: Decision) -> NDArray[np.uint32]:
    """Nodes that refused a pod for lack of room though they had not changed since the worker's snapshot.

    Pods with victims do not count: their room is not there yet, as their worker knows.
    """
    conflicts = decision.conflicts
    if not len(conflicts) or proposal.snapshot_seq > decision.as_of:  # nobody knows the future
        return np.empty(0, U32)
    conflicts = conflicts[decision.verdicts[conflicts["position"]] == Verdict.CONFLICT_RESOURCE]
    if proposal.victims:
        conflicts = conflicts[~np.isin(conflicts["position"], list(proposal.victims))]
    accounts = np.frombuffer(decision.fresh.records, account_dtype(decision.fresh.resources))
    unchanged = np.frombuffer(decision.fresh.indexes, U32)[accounts["seq"] <= proposal.snapshot_seq]
    nodes: NDArray[np.uint32] = np.intersect1d(conflicts["node"], unchanged)
    return nodes


def difference(requested: NDArray[np.int64], reserved: NDArray[np.int64], schema: Sequence[str]) -> str:
    """What a node's account says is requested, where its reservations ask for something else; empty where they agree.

    Amounts by position in `schema`; missing ones are 0.
    """
    amounts = np.zeros((2, max(len(requested), len(reserved))), np.int64)
    amounts[0, : len(requested)], amounts[1, : len(reserved)] = requested, reserved
    found = []
    for resource in np.flatnonzero(amounts[0] != amounts[1]).tolist():
        name, (account, pods) = schema[resource], amounts[:, resource].tolist()
        apart = written_amount(name, abs(account - pods))
        found.append(f"{name} {written_amount(name, account)}, {apart} {'more' if account > pods else 'less'}")
    return f"its account has, as requested, {'; '.join(found)} than its reservations ask for" if found else ""
