"""What crosses the core's border, as arrays and the model's values: the feed on its way in, proposals on their way out, and what is
asked about pods that could go for others."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hoss.model.cluster import DisruptionBudget
from hoss.model.conflicts import DEFAULT_CONFLICT_RULE, ConflictRule
from hoss.model.node import NodeSpec
from hoss.model.pod import PodSpec
from hoss.model.pod_groups import PodGroup
from hoss.wire.account import CARDS, account_dtype
from hoss.wire.columns import Uids
from scheduler_worker.core.changes import NodeIndexes


@dataclass(frozen=True, slots=True)
class AccountBatch:
    """Accounts of m nodes and the cards of k of them, as hoss/wire/account.py lays them out."""

    indexes: NDArray[np.uint32]  # (m,)
    records: NDArray[Any]  # (m,) of account_dtype(R)
    card_indexes: NDArray[np.uint32]  # (k,)
    cards: NDArray[np.uint16]  # (k, 16)

    @classmethod
    def empty(cls) -> "AccountBatch":
        """Nothing about no node."""
        none = np.empty(0, np.uint32)
        return cls(none, np.empty(0, account_dtype(0)), none, np.empty(0, CARDS))


@dataclass(frozen=True, slots=True)
class PodRun:
    """Pods of one group that were placed, or are gone: one on each of `nodes` (repetitions allowed)."""

    group: PodGroup
    nodes: NDArray[np.intp]
    gone: bool = False


@dataclass(frozen=True, slots=True)
class FeedUpdate:
    """One message of a shard's feed. A snapshot replaces all that was known of the shard."""

    shard: int
    seq: int
    accounts: AccountBatch
    specs: tuple[tuple[int, NodeSpec | None], ...] = ()  # None: removed
    snapshot: bool = False
    shards: int = 0  # 0: as before
    schema: tuple[str, ...] = ()  # empty: as before
    pods: tuple[PodRun, ...] = ()
    holds: tuple[int, ...] = ()  # seqs of holds that began (in a snapshot: all under way): `pods` tells of theirs later
    ended_holds: tuple[int, ...] = ()
    worker_epoch: int = (
        0  # of the worker that placed pods on all nodes of `accounts`; 0: something else happened to them
    )


@dataclass(frozen=True, slots=True)
class ProposalColumns:
    """n placements on one shard, c candidates each; what pods have in common stands in s slots (see ProposalBatch)."""

    batch_id: int
    shard: int
    snapshot_seq: int
    uids: Uids  # (n, 16)
    slots: NDArray[np.uint16]  # (n,)
    candidates: NDArray[np.uint32]  # (n, c): the choice, then alternates, then NONE_U32
    requests: NDArray[np.int64]  # (s, R)
    priorities: NDArray[np.int32]  # (s,)
    attempts: NDArray[np.uint16]  # (s,)
    devices: NDArray[np.uint16] | None  # (s, 2): count and milli; None: no slot wants cards
    groups: tuple[PodGroup, ...]  # (s,)
    victims: Mapping[int, tuple[bytes, ...]] = field(
        default_factory=dict
    )  # by position: UIDs of the pods that go for it
    victims_must_go: bool = False  # they are in the way for more than their room
    conflicts: ConflictRule = DEFAULT_CONFLICT_RULE
    gang_minimum: int = 0  # with the parts a gang: so many are committed at least, or none
    parts: "tuple[ProposalColumns, ...]" = ()  # of a gang on several shards, or of pods that count on each other: the others
    seen: tuple[
        int, ...
    ] = ()  # by shard: the seq up to which the cache knows which pods are where; empty: a single shard
    firsts: NDArray[np.bool_] | None = None  # (s,): placed as the first of its kind; None: none was
    places: NDArray[np.uint16] | None = None  # (n,): of parts, where each pod stands in the whole


@dataclass(frozen=True, slots=True)
class Verdicts:
    """The ledger's answer to one ProposalColumns."""

    seq: int  # of the commit; 0 if nothing was committed
    verdicts: NDArray[np.uint8]  # (n,): Verdict
    nodes: NDArray[np.uint32]  # (n,): where COMMITTED or DUPLICATE
    duplicate_seqs: NDArray[np.uint64]  # one for each DUPLICATE: the commit that stands
    fresh: AccountBatch  # the refusing nodes as of now
    as_of: int = 0  # the shard's seq after the decision
    awaits: tuple[
        tuple[int, int], ...
    ] = ()  # (shard, seq) besides: what the cache must know for refusals to make sense


@dataclass(frozen=True, slots=True, eq=False)
class PreemptionQuestion:
    """Which pods of less than this priority are bound to these nodes, up to `limit` nodes that have any."""

    id: int
    priority: int
    nodes: NDArray[np.uint32]
    limit: int


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
