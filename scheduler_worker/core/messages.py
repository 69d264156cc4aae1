"""Values that enter and leave the core, as arrays and the model's types: the feed, proposals and verdicts,
and questions about preemption. Codes are numbered as in proto/hoss/v1."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hoss.model.cluster import DisruptionBudget
from hoss.model.conflicts import DEFAULT_CONFLICT_RULE, ConflictRule
from hoss.model.node import NodeSpec
from hoss.model.pod import PodGroup, PodSpec
from hoss.wire.columns import CARD_SLOTS, CARDS, NO_CARD, Uids, account_dtype
from scheduler_worker.core.nodes import NodeIndexes


class Outcome(IntEnum):
    """A pod's outcome, for the dispatcher (OutcomeCode)."""

    BOUND = 1
    UNSCHEDULABLE = 2
    CONFLICT = 3
    RETURNED = 4
    INVALID = 5
    FENCED = 6
    UNRESERVED = 7


class VerdictCode(IntEnum):
    """The ledger's decision on a placement. Codes that are not listed are plain refusals."""

    COMMITTED = 1
    DUPLICATE = 2
    CONFLICT_PORT = 4
    CONFLICT_TOPOLOGY = 6
    STALE_EPOCH = 9
    GANG_ABORTED = 10  # another pod of its gang was refused
    CONFLICT_VERSION = 11


@dataclass(frozen=True, slots=True)
class AccountBatch:
    """Accounts of m nodes and the cards of k of them, as hoss/wire/columns.py lays them out."""

    indexes: NDArray[np.uint32]  # (m,)
    records: NDArray[Any]  # (m,) of account_dtype(R)
    card_indexes: NDArray[np.uint32]  # (k,)
    cards: NDArray[np.uint16]  # (k, 16)

    @classmethod
    def empty(cls) -> "AccountBatch":
        """Nothing about no node."""
        none = np.empty(0, np.uint32)
        return cls(none, np.empty(0, account_dtype(0)), none, np.empty(0, CARDS))

    @classmethod
    def of_nodes(
        cls, indexes: Sequence[int], nodes: Sequence[NodeSpec], resources: Sequence[str], *, seq: int
    ) -> "AccountBatch":
        """Nodes with nothing reserved on them, as of `seq`. `resources`: all that they offer, in the order of
        the schema."""
        rows = {resource: row for row, resource in enumerate(resources)}
        records = np.zeros(len(nodes), account_dtype(len(rows)))
        records["seq"] = seq
        cards = np.full((len(nodes), CARD_SLOTS), NO_CARD, np.uint16)
        for i, node in enumerate(nodes):
            for resource, amount in node.allocatable:
                records["amounts"][i, rows[resource], 0] = amount
            cards[i, : node.cards] = 0
        at, carded = np.array(indexes, np.uint32), np.array([node.cards > 0 for node in nodes], np.bool_)
        return cls(at, records, at[carded], cards[carded])


@dataclass(frozen=True, slots=True)
class PodRun:
    """Pods of one group that were placed or removed: one on each of `nodes` (repetitions allowed)."""

    group: PodGroup
    nodes: NDArray[np.intp]
    gone: bool = False


@dataclass(frozen=True, slots=True)
class FeedUpdate:
    """One message of a shard's feed. A snapshot replaces everything known of the shard."""

    shard: int
    seq: int
    accounts: AccountBatch
    specs: tuple[tuple[int, NodeSpec | None], ...] = ()  # None: removed
    snapshot: bool = False
    shards: int = 0  # 0: as before
    schema: tuple[str, ...] = ()  # empty: as before
    pods: tuple[PodRun, ...] = ()
    # Seqs of holds that began, in a snapshot of all in progress. Later messages bring their pods.
    holds: tuple[int, ...] = ()
    ended_holds: tuple[int, ...] = ()
    worker_epoch: int = 0  # of the worker that placed pods on all nodes of `accounts`; 0: another change


@dataclass(frozen=True, slots=True)
class ProposalColumns:
    """n placements on one shard, c candidates each. What pods have in common is in s slots (see
    ProposalBatch)."""

    batch_id: int
    shard: int
    snapshot_seq: int
    uids: Uids  # (n, 16)
    slots: NDArray[np.uint16]  # (n,)
    candidates: NDArray[np.uint32]  # (n, c): the choice, then alternates, then NONE_U32
    requests: NDArray[np.int64]  # (s, R)
    priorities: NDArray[np.int32]  # (s,)
    attempts: NDArray[np.uint16]  # (s,)
    devices: NDArray[np.uint16] | None  # (s, 2): count and milli; None: no slot requests cards
    groups: tuple[PodGroup, ...]  # (s,)
    # (s,): of what each pod of a slot takes on its node; empty: no slot takes anything by a name.
    reserved_names: tuple[tuple[str, ...], ...] = ()
    victims: Mapping[int, tuple[bytes, ...]] = field(default_factory=dict)  # by position: UIDs
    victims_must_go: bool = False  # they are in the way for more than their room
    conflicts: ConflictRule = DEFAULT_CONFLICT_RULE
    gang_minimum: int = 0  # the ledger commits at least so many, parts included, or none
    # The other shards' proposals, of a gang or of pods that depend on each other
    parts: "tuple[ProposalColumns, ...]" = ()
    # By shard: the seq up to which the pod index is complete; empty: a single shard.
    seen: tuple[int, ...] = ()
    firsts: NDArray[np.bool_] | None = None  # (s,): placed as the first of its kind; None: none was
    places: NDArray[np.uint16] | None = None  # (n,): of parts, each pod's position in the whole


@dataclass(frozen=True, slots=True)
class Verdicts:
    """The ledger's answer to one ProposalColumns."""

    seq: int  # of the commit; 0 if nothing was committed
    verdicts: NDArray[np.uint8]  # (n,): Verdict
    nodes: NDArray[np.uint32]  # (n,): where COMMITTED or DUPLICATE
    duplicate_seqs: NDArray[np.uint64]  # one for each DUPLICATE: the commit that stands
    fresh: AccountBatch  # the refusing nodes' present accounts
    as_of: int = 0  # the shard's seq after the decision
    awaits: tuple[tuple[int, int], ...] = ()  # further (shard, seq) that the view must reach before a retry


@dataclass(frozen=True, slots=True, eq=False)
class PreemptionQuestion:
    """Which pods of lower priority are bound to these nodes? Up to `limit` nodes that have any."""

    id: int
    priority: int
    nodes: NDArray[np.uint32]
    limit: int
    uid: bytes  # of one of the pods that need room


@dataclass(frozen=True, slots=True, eq=False)
class PreemptionAnswer:
    """n bound pods on the first `nodes_seen` of the nodes asked about, as of `seen` in each shard's feed."""

    id: int
    nodes_seen: int
    uids: Uids  # (n, 16)
    nodes: NodeIndexes  # (n,)
    classes: NDArray[np.intp]  # (n,): position in `specs`
    since_ms: NDArray[np.int64]  # (n,)
    grace_ms: NDArray[np.uint32]  # (n,)
    specs: tuple[PodSpec, ...]
    budgets: tuple[DisruptionBudget, ...]
    seen: Mapping[int, int]
    held: str = ""  # why the pods preempt nobody yet; empty: they may
