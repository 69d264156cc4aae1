"""The values that pass between the service, the ledger and the ledger's model."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hoss.model.conflicts import Criteria
from hoss.model.pod import Pairs
from hoss.wire.columns import Uids
from resolver.core.ports import Claim
from resolver.core.rules import Question, Rule

# A script that serves this many pods holds Redis for 3 to 5 ms; more is refused as invalid.
MAX_BATCH_PODS = 1000
MAX_BATCH_VICTIMS = 1000
MAX_CANDIDATES = 16


class Verdict(IntEnum):
    """Numbered as hoss.v1.Verdict."""

    COMMITTED = 1
    DUPLICATE = 2
    CONFLICT_RESOURCE = 3
    CONFLICT_PORT = 4
    CONFLICT_DEVICE = 5
    CONFLICT_TOPOLOGY = 6
    NODE_GONE = 7
    NODE_UNSCHEDULABLE = 8
    STALE_EPOCH = 9
    GANG_ABORTED = 10
    CONFLICT_VERSION = 11


PortHold = tuple[bytes, Claim]  # UID of the pod, and what it holds

# Evidence for one refused pod: `node` is its first candidate. CONFLICT_RESOURCE: resource (schema index), asked, free in schema
# units. CONFLICT_DEVICE: asked and free are numbers of cards. CONFLICT_PORT: asked is the taken port.
# CONFLICT_TOPOLOGY, CONFLICT_VERSION: asked is the seq of what the worker did not know. Otherwise zeros.
CONFLICT = np.dtype(
    [("position", "<u4"), ("node", "<u4"), ("resource", "<u4"), ("asked", "<i8"), ("free", "<i8")],
)


HOLDS_PORTS, TOLERATES_CORDON = 1, 2  # flags of a reservation


@dataclass(frozen=True, slots=True)
class Group:
    """All that rules of other pods can see of a pod. `definition` is its PodGroup message, `key` a digest of that, not 0."""

    key: int
    definition: bytes
    ports: tuple[Claim, ...] = ()  # that each of its pods takes on its node
    namespace: str = ""
    labels: Pairs = ()
    rules: tuple[Rule, ...] = ()  # that its pods bear
    tolerates_cordon: bool = False

    @property
    def flags(self) -> int:
        """Of its pods' reservations."""
        return HOLDS_PORTS * bool(self.ports) | TOLERATES_CORDON * self.tolerates_cordon


@dataclass(frozen=True, slots=True)
class Proposal:
    """n pods of one worker, all candidates on one shard. Amounts are in schema units, checked to be in range."""

    worker: str
    epoch: int
    snapshot_seq: int  # nodes born later are not known to the worker: their index meant another node, or none
    uids: Uids  # (n, 16)
    slots: NDArray[np.uint16]  # (n,): row of the arrays below
    nodes: NDArray[np.uint32]  # (n, c): the choice and its ranked alternates; NONE_U32 ends a row
    requests: NDArray[np.int64]  # (s, R)
    priorities: NDArray[np.int32]  # (s,)
    attempts: NDArray[np.uint16]  # (s,)
    devices: NDArray[np.uint16] | None = None  # (s, 2): count, milli; None: no slot wants cards
    unchecked: bool = False
    stands: bool = (
        False  # unchecked, because the pods are there already: a node that they overcommit has shrunk, so to speak
    )
    groups: tuple[Group | None, ...] = ()  # by slot; None: nobody's rules see it. Empty: so are all
    gang_minimum: int = 0  # fewer COMMITTED and DUPLICATE than this: nothing is reserved. No UID stands in a gang twice
    # By position: UIDs of the pods that go where that pod does not fit without. None twice; none in a gang.
    victims: Mapping[int, tuple[bytes, ...]] = field(default_factory=dict)
    victims_must_go: bool = (
        False  # they are in the way for more than their room: the pod does not count as fitting beside them
    )
    victims_assumed: bool = False  # they go only while nobody has confirmed them
    criteria: Criteria = Criteria.FIT
    displace_gap: int = 0  # by so much lower in priority are those whom it displaces; 0: nobody
    held: bool = (
        False  # part of what several shards decide: its lease is short, and nobody counts its pods, until `keep`
    )
    seen: tuple[int, ...] = ()  # by shard: the seq up to which the worker knows which pods are where; empty: as it is
    firsts: tuple[bool, ...] = ()  # by slot: placed as the first of its kind. Empty: none was
    places: NDArray[np.uint16] | None = None  # (n,): of parts, where each pod stands in the whole

    def seen_of(self, shards: int) -> tuple[int, ...]:
        """`seen`, for a worker that does not say: of a single shard it is the snapshot, of several nothing is known."""
        return self.seen or ((self.snapshot_seq,) if shards == 1 else (0,) * shards)

    def first(self, slot: int) -> bool:
        """Whether pods of the slot were placed as the first of their kind."""
        return bool(self.firsts) and self.firsts[slot]

    def __len__(self) -> int:
        return len(self.uids)

    def serving_order(self) -> NDArray[np.intp] | None:
        """Positions in the order the pods are served: higher priority first, else as they stand. None: as they stand."""
        if len(self.priorities) == 1 or (self.priorities == self.priorities[0]).all():
            return None
        return np.argsort(-self.priorities[self.slots].astype(np.int64), kind="stable")


@dataclass(frozen=True, slots=True)
class Leases:
    """How long what was reserved waits for its confirmation, in milliseconds by the ledger's clock."""

    commit_ms: int = 30_000
    hold_ms: int = 5_000  # of a hold, for the other shards to follow

    def of(self, *, held: bool) -> int:
        """The lease of what is held, or committed."""
        return min(self.hold_ms, self.commit_ms) if held else self.commit_ms


@dataclass(frozen=True, slots=True)
class AccountRows:
    """Accounts of m nodes and cards of k of them, packed as hoss.v1.Accounts has them."""

    resources: int = 0
    indexes: bytes = b""  # u32, m
    records: bytes = b""  # account_dtype(resources), m
    card_indexes: bytes = b""  # u32, k
    cards: bytes = b""  # 16 u16, k


@dataclass(frozen=True, slots=True)
class Decision:
    """What became of a proposal, row by row in its own order."""

    seq: int  # of this commit; 0 if nothing was committed
    verdicts: NDArray[np.uint8]  # (n,)
    nodes: NDArray[np.uint32]  # (n,): where it is when COMMITTED or DUPLICATE, else the first candidate
    conflicts: NDArray[np.void]  # CONFLICT, one for each refused pod, by position
    duplicate_seqs: NDArray[np.uint64]  # one for each DUPLICATE, by position
    fresh: AccountRows  # nodes that refused, after this commit
    as_of: int = 0  # the shard's seq after this decision
    # By position, where several shards have to be asked before what is held may be kept; empty: it is decided.
    questions: "tuple[Question | None, ...]" = ()
    awaits: tuple[tuple[int, int], ...] = ()  # (shard, seq) besides `as_of` that refused pods have to wait for

    @classmethod
    def of_none(cls, verdicts: NDArray[np.uint8], proposal: Proposal) -> "Decision":
        """Nothing was committed, and no node asked."""
        none = np.empty(0, np.uint64)
        return cls(0, verdicts, proposal.nodes[:, 0], np.empty(0, CONFLICT), none, AccountRows())


def reservation_dtype(resources: int, *, spread_bytes: int = 0) -> np.dtype[Any]:
    """A reservation record; in Redis it has a spread at its end (see ledger/lua/prelude.lua)."""
    return np.dtype(
        [
            ("node", "<u4"),
            ("card_mask", "<u2"),  # bit i: holds (a share of) card i
            ("card_milli", "<u2"),  # thousandths held on each of them
            ("seq", "<u8"),
            ("epoch", "<u8"),
            ("priority", "<i4"),
            ("attempt", "<u2"),
            ("flags", "<u2"),  # HOLDS_PORTS, TOLERATES_CORDON
            ("group", "<u8"),  # key; 0: none
            ("requests", "<i8", (resources,)),
            ("spread", f"V{spread_bytes}"),
        ]
    )


@dataclass(frozen=True, slots=True)
class NodeChange:
    """A node to add or to change. `spec` is its NodeSpec message, `allocatable` in schema order."""

    name: str
    spec: bytes
    allocatable: tuple[int, ...]
    unschedulable: bool
    cards: int
    labels: Pairs = ()


class Upserted(NamedTuple):
    """`overcommitted`: positions of nodes that have less than what is requested on them."""

    seq: int
    indexes: NDArray[np.uint32]
    overcommitted: list[int]


class Removed(NamedTuple):
    """`missing`: positions of names that are not there. `uids`: pods whose reservations went with the nodes."""

    uids: Uids
    missing: list[int]


@dataclass(frozen=True, slots=True)
class GroupRun:
    """Pods of one group that were placed, or are gone."""

    definition: bytes
    nodes: bytes  # u32, one for each pod
    gone: bool = False


@dataclass(frozen=True, slots=True)
class Eviction:
    """Pods whose reservations on a node went in the moment in which another pod, `uid`, got its own there."""

    uid: bytes
    node: int
    victims: bytes  # 16 bytes each


@dataclass(frozen=True, slots=True)
class FeedEntry:
    """What one operation changed; applies to the state at `seq - 1`."""

    seq: int
    accounts: AccountRows
    specs: tuple[tuple[int, bytes], ...] = ()  # index and NodeSpec message, of nodes new or changed
    removed: tuple[int, ...] = ()
    released: int = 0
    runs: tuple[GroupRun, ...] = ()
    evictions: tuple[Eviction, ...] = ()
    hold: bool = False  # its pods are told of once they are kept
    ended: tuple[int, ...] = ()  # seqs of holds that are over: kept or withdrawn
    epoch: int = 0  # of the worker that placed pods on all these nodes; 0: something else happened to them


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A shard at one sequence number, without the nodes that are gone."""

    seq: int
    accounts: AccountRows
    specs: dict[int, bytes]
    runs: tuple[GroupRun, ...] = ()  # all pods of groups but held ones, where they were asked for
    holds: tuple[int, ...] = ()  # seqs of the holds under way


@dataclass(frozen=True, slots=True)
class Reservations:
    """Rows of n reservations."""

    uids: Uids
    records: NDArray[Any]  # reservation_dtype(resources)
    assumed: NDArray[np.bool_]  # still under lease
    resources: int


@dataclass(frozen=True, slots=True)
class ShardState:
    """A shard whole, at one moment: what an audit looks at. Accounts of gone nodes are included."""

    snapshot: Snapshot
    reservations: Reservations
    ports: dict[int, list[PortHold]]  # by node
    groups: dict[int, tuple[bytes, int]]  # by key: definition, number of pods
