"""The values that pass between the service, the ledger and the ledger's model; and host ports in the ledger's
form.

A port *claim* is 12 bytes: `<u16 port, u8 protocol, u8 0>` and 8 bytes for the address. The address is zeros
for every address, else a digest of the text. As in kube-scheduler, addresses are compared as text, and `::`
is an address like any other."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hoss.model.conflicts import Criteria
from hoss.model.pod import HostPort
from hoss.model.resources import Pairs
from hoss.wire.columns import Uids
from resolver.core.commits import CommitFault, UnconfirmedCommits, commit_faults
from resolver.core.rules import PlacementRule, RuleQuery

CLAIM_BYTES = 12

_PROTOCOLS = ("TCP", "UDP", "SCTP")
_EVERY_ADDRESS = bytes(8)

Claim = bytes


def claim_of(port: HostPort) -> Claim:
    """The port as a claim. Raises ValueError for a protocol other than TCP, UDP and SCTP."""
    address = _EVERY_ADDRESS
    if port.host_ip not in ("", "0.0.0.0"):  # noqa: S104 - Kubernetes' word, nothing is bound here
        address = hashlib.blake2b(port.host_ip.encode(), digest_size=8).digest()
    return port.port.to_bytes(2, "little") + bytes((_PROTOCOLS.index(port.protocol), 0)) + address


def clash(one: Claim, other: Claim) -> bool:
    """Whether port and protocol are equal, and the addresses are equal or one of them is every address."""
    return one[:4] == other[:4] and (one[4:] == other[4:] or _EVERY_ADDRESS in (one[4:], other[4:]))


def port_number(claim: Claim) -> int:
    """The number of the port that is claimed."""
    return int.from_bytes(claim[:2], "little")


def port_text(claim: Claim) -> str:
    """Number and protocol, for messages."""
    return f"{port_number(claim)}/{_PROTOCOLS[claim[2]]}"


# One script call for this many pods takes Redis 3 to 5 ms. Larger batches are refused as invalid.
MAX_BATCH_PODS = 1000
MAX_BATCH_VICTIMS = 1000

# Names of workers whose epochs a ledger keeps. Deployments bring new names with every rollout.
MOST_WORKERS = 10_000


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
    OLD_COPY = 12  # not decided: the shard has seen a higher `Proposal.sending`


PortHold = tuple[bytes, Claim]  # UID of the pod, and its claim

# Evidence for one refused pod. `node` is its first candidate. CONFLICT_RESOURCE: resource (schema index),
# asked and free in schema units. CONFLICT_DEVICE: asked and free are numbers of cards. CONFLICT_PORT: asked
# is the taken port. CONFLICT_TOPOLOGY, CONFLICT_VERSION: asked is the seq of what the worker did not know.
# Everything else is zero.
CONFLICT = np.dtype(
    [("position", "<u4"), ("node", "<u4"), ("resource", "<u4"), ("asked", "<i8"), ("free", "<i8")]
)


HOLDS_PORTS, TOLERATES_CORDON, MOVE_TARGET, IS_TERMINATING, PRE_BINDS = (
    1,
    2,
    4,
    8,
    16,
)  # flags of a reservation


@dataclass(frozen=True, slots=True)
class Writer:
    """Who changes the ledger: a dispatcher under its term, a resolver for a worker under the worker's epoch.
    Without either, an operator, or the reaper. A term below the highest that has written to the shard is
    superseded, and an epoch that is not in force is fenced: such a change is not made."""

    term: int = 0  # 0: not a dispatcher
    worker: str = ""
    epoch: int | None = None  # None: not for a worker
    journal_write: int = (
        0  # of a dispatcher: the number of its last write to the journal in its term; 0: none
    )


class DispatcherMarks(NamedTuple):
    """How far the ledger knows dispatchers and their journal."""

    term: int = 0  # the highest that has written here
    journal: tuple[int, int] = (0, 0)  # the newest write to the journal: its term, and its number there

    def newest(self, other: "DispatcherMarks") -> "DispatcherMarks":
        """Of each mark the newer one."""
        return DispatcherMarks(max(self.term, other.term), max(self.journal, other.journal))


ANYBODY = Writer()


class ReservationState(IntEnum):
    """The state of a reservation: that of its commit, unless it is terminating. Numbered as in
    LookupReply.states."""

    NONE = 0
    PREPARED = 1  # not validated, told to nobody, with a short lease of its own; never confirmed
    ASSUMED = 2  # committed; ends with its lease unless it is confirmed
    CONFIRMED = 3  # stays until it is released
    TERMINATING = 4  # evicted, and on its node until it has ended; stays until it is released
    PRE_BINDING = 5  # assumed, while plugins of its worker prepare the pod: nobody else may confirm it


@dataclass(frozen=True, slots=True)
class Group:
    """Everything that the rules of other pods can look at in a pod. `definition` is its PodGroup message,
    `key` a digest of that message, never 0."""

    key: int
    definition: bytes
    ports: tuple[Claim, ...] = ()  # each of its pods takes them on its node
    namespace: str = ""
    labels: Pairs = ()
    rules: tuple[PlacementRule, ...] = ()  # that its pods bear
    tolerates_cordon: bool = False
    reserved_names: tuple[str, ...] = ()  # of what its pods take (RESERVED_NAMES)

    @property
    def flags(self) -> int:
        """Of the reservations of its pods."""
        return HOLDS_PORTS * bool(self.ports) | TOLERATES_CORDON * self.tolerates_cordon


@dataclass(frozen=True, slots=True)
class Proposal:
    """n pods of one worker with all candidates on one shard. Amounts are in schema units, and in range."""

    worker: str
    epoch: int
    snapshot_seq: int  # the worker does not know nodes born later: the index then meant another node, or none
    uids: Uids  # (n, 16)
    slots: NDArray[np.uint16]  # (n,): row of the arrays below
    nodes: NDArray[np.uint32]  # (n, c): the choice and its ranked alternates; NONE_U32 ends a row
    requests: NDArray[np.int64]  # (s, R)
    priorities: NDArray[np.int32]  # (s,)
    attempts: NDArray[np.uint16]  # (s,)
    devices: NDArray[np.uint16] | None = None  # (s, 2): count, milli; None: no slot wants cards
    unchecked: bool = False
    # Existing pods, so not validated: a node that they overcommit counts as shrunk.
    existing: bool = False
    groups: tuple[Group | None, ...] = ()  # by slot; None: no rule can look at the pods. Empty: None for all
    # With fewer COMMITTED and DUPLICATE pods than this, nothing is reserved. No UID is in a gang twice.
    gang_minimum: int = 0
    # By position: UIDs of the pods to evict if that pod does not fit otherwise. No UID is listed twice. Not
    # for gangs.
    victims: Mapping[int, tuple[bytes, ...]] = field(default_factory=dict)
    # Victims go even if the pod would fit beside them: they are in the way for more than their room.
    victims_must_go: bool = False
    victims_assumed: bool = False  # victims go only while they are unconfirmed
    # Victims are on their nodes until they are released: until then they hold what the pod does not take of
    # theirs.
    victims_terminate: bool = False
    criteria: Criteria = Criteria.FIT
    # The pods preempt unconfirmed reservations with a priority lower by this much; 0: none.
    displace_gap: int = 0
    # Part of a two-phase commit: the reservations have a short lease, and nobody counts them, until
    # `commit_prepared`.
    prepared: bool = False
    # By shard: the seq up to which the worker knows the placements there. Empty: see `seen_of`.
    seen: tuple[int, ...] = ()
    firsts: tuple[bool, ...] = ()  # by slot: placed as the first of its kind. Empty: none was
    places: NDArray[np.uint16] | None = None  # (n,): of parts, the position of each pod in the whole
    # How often the worker has sent anything again in this epoch. Each copy of a proposal has a higher number.
    sending: int = 0
    moves: bool = False  # its rows are the targets of moves (resolver/core/moves.py)
    # (n,): the commits that reserved what the pods hold on this shard. They get their candidate, confirmed,
    # and give that up, in one step (resolver/core/moves.py). No pod twice. None: the proposal moves nobody.
    source_seqs: NDArray[np.uint64] | None = None
    pre_binds: bool = False  # plugins of the worker prepare its pods before they are confirmed
    lease_ms: int = 0  # of its commit, once that is not prepared any more; 0: as usual
    # It has one pod, which may hold nothing on other shards. What it holds there is looked up while the pod
    # is prepared (resolver/api/two_phase.py).
    exclusive: bool = False

    def seen_of(self, shards: int) -> tuple[int, ...]:
        """`seen`. If empty: the snapshot on a single shard, and nothing on several shards."""
        return self.seen or ((self.snapshot_seq,) if shards == 1 else (0,) * shards)

    def first(self, slot: int) -> bool:
        """Whether pods of the slot were placed as the first of their kind."""
        return bool(self.firsts) and self.firsts[slot]

    def __len__(self) -> int:
        return len(self.uids)

    @property
    def writer(self) -> Writer:
        """The worker, as the one who changes the ledger."""
        return Writer(worker=self.worker, epoch=self.epoch)

    def serving_order(self) -> NDArray[np.intp] | None:
        """Positions in serving order: higher priority first, else in order. None: all in order."""
        if len(self.priorities) == 1 or (self.priorities == self.priorities[0]).all():
            return None
        return np.argsort(-self.priorities[self.slots].astype(np.int64), kind="stable")


@dataclass(frozen=True, slots=True)
class Leases:
    """How long reservations wait for their confirmation, in milliseconds by the ledger's clock."""

    commit_ms: int = 30_000
    prepare_ms: int = 5_000  # of a prepared commit, until the other shards have prepared theirs

    def of(self, *, prepared: bool, asked_ms: int = 0) -> int:
        """The lease of a prepared or an ordinary commit. `asked_ms`: of the latter; 0: as usual."""
        return min(self.prepare_ms, self.commit_ms) if prepared else asked_ms or self.commit_ms


@dataclass(frozen=True, slots=True)
class AccountRows:
    """Accounts of m nodes, and cards of k of them, packed as in hoss.v1.Accounts."""

    resources: int = 0
    indexes: bytes = b""  # u32, m
    records: bytes = b""  # account_dtype(resources), m
    card_indexes: bytes = b""  # u32, k
    cards: bytes = b""  # 16 u16, k


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision on a proposal, row by row in the proposal's order."""

    seq: int  # of this commit; 0 if nothing was committed
    verdicts: NDArray[np.uint8]  # (n,)
    nodes: NDArray[np.uint32]  # (n,): the node when COMMITTED or DUPLICATE, else the first candidate
    conflicts: NDArray[np.void]  # CONFLICT, one for each refused pod, by position
    duplicate_seqs: NDArray[np.uint64]  # one for each DUPLICATE, by position
    fresh: AccountRows  # nodes that refused pods, after this commit
    as_of: int = 0  # the shard's seq after this decision
    # By position, what shard 0 must validate of the prepared pods; empty: nothing.
    queries: "tuple[RuleQuery | None, ...]" = ()
    # Its pods may be merely prepared: they are to be committed or aborted, also where none has a query.
    prepared: bool = False
    awaits: tuple[tuple[int, int], ...] = ()  # (shard, seq), besides `as_of`, that refused pods must wait for

    @property
    def old_copy(self) -> bool:
        """Whether nothing was decided, because the worker has sent a later copy of something."""
        return Verdict.OLD_COPY in self.verdicts.tobytes()

    @classmethod
    def of_none(cls, verdicts: NDArray[np.uint8], proposal: Proposal) -> "Decision":
        """Nothing was committed, and no node was asked."""
        none = np.empty(0, np.uint64)
        return cls(0, verdicts, proposal.nodes[:, 0], np.empty(0, CONFLICT), none, AccountRows())


def reservation_dtype(resources: int, *, spread_bytes: int = 0) -> np.dtype[Any]:
    """A reservation record. In Redis it ends with spread bytes (see ledger/lua/prelude.lua)."""
    return np.dtype(
        [
            ("node", "<u4"),
            ("card_mask", "<u2"),  # bit i: holds (a share of) card i
            ("card_milli", "<u2"),  # thousandths held on each of them
            ("seq", "<u8"),
            ("epoch", "<u8"),
            ("priority", "<i4"),
            ("attempt", "<u2"),
            ("flags", "<u2"),  # HOLDS_PORTS and those after it
            ("group", "<u8"),  # key; 0: none
            ("requests", "<i8", (resources,)),
            ("spread", f"V{spread_bytes}"),
        ]
    )


@dataclass(frozen=True, slots=True)
class LedgerNodeChange:
    """A node to add or to change. `spec` is its NodeSpec message, `allocatable` is in schema order."""

    name: str
    spec: bytes
    allocatable: tuple[int, ...]
    unschedulable: bool
    cards: int
    labels: Pairs = ()
    resource_version: int = 0  # of the node object; 0: not known


class Upserted(NamedTuple):
    """`overcommitted`: positions of nodes with more requested than allocatable."""

    seq: int
    indexes: NDArray[np.uint32]
    overcommitted: list[int]


class Removed(NamedTuple):
    """`missing`: positions of unknown names. `uids`: pods whose reservations were released with the nodes."""

    uids: Uids
    missing: list[int]


@dataclass(frozen=True, slots=True)
class GroupRun:
    """Pods of one group that were placed, or that left."""

    definition: bytes
    nodes: bytes  # u32, one for each pod
    gone: bool = False


@dataclass(frozen=True, slots=True)
class Eviction:
    """Pods whose reservations on a node were released in the same step that reserved the node for pod
    `uid`."""

    uid: bytes
    node: int
    victims: bytes  # 16 bytes each


class Position(NamedTuple):
    """A point in the history of a shard. The nonce marks the change that led there; "" and "-": unknown."""

    seq: int
    nonce: str = ""

    def differs(self, other: "Position") -> bool:
        """Whether this is the same point in another history."""
        unknown = ("", "-")
        both_known = self.nonce not in unknown and other.nonce not in unknown
        return self.seq == other.seq and both_known and self.nonce != other.nonce


@dataclass(frozen=True, slots=True)
class FeedEntry:
    """The changes of one operation. They apply to the state at `seq - 1`."""

    seq: int
    accounts: AccountRows
    specs: tuple[tuple[int, bytes], ...] = ()  # index and NodeSpec message, of nodes new or changed
    removed: tuple[int, ...] = ()
    released: int = 0
    runs: tuple[GroupRun, ...] = ()
    evictions: tuple[Eviction, ...] = ()
    prepared: bool = False  # a prepared commit: the feed lists its pods once it is committed
    ended: tuple[int, ...] = ()  # seqs of prepared commits that were committed or aborted
    epoch: int = 0  # of the worker that placed pods on all these nodes; 0: the change is something else
    nonce: str = ""  # marks this change: another history has another one at this seq


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A shard at one sequence number, without removed nodes."""

    seq: int
    accounts: AccountRows
    specs: dict[int, bytes]
    runs: tuple[GroupRun, ...] = ()  # if requested: the pods of all groups, without prepared ones
    prepared: tuple[int, ...] = ()  # seqs of the prepared commits
    nonce: str = ""  # of the change that led here


@dataclass(frozen=True, slots=True)
class Reservations:
    """n reservations."""

    uids: Uids
    records: NDArray[Any]  # reservation_dtype(resources)
    assumed: NDArray[np.bool_]  # not confirmed yet
    resources: int
    prepared: NDArray[np.bool_] | None = None  # of those, what is only prepared; None: nothing

    def of(self, rows: NDArray[Any]) -> "Reservations":
        """A subset: a mask or row numbers."""
        prepared = None if self.prepared is None else self.prepared[rows]
        return Reservations(self.uids[rows], self.records[rows], self.assumed[rows], self.resources, prepared)

    @property
    def targets(self) -> NDArray[np.bool_]:
        """(n,): which are the targets of moves."""
        targets: NDArray[np.bool_] = self.records["flags"] & MOVE_TARGET > 0
        return targets

    @property
    def terminating(self) -> NDArray[np.bool_]:
        """(n,): which were evicted, and are on their nodes until they have ended."""
        terminating: NDArray[np.bool_] = self.records["flags"] & IS_TERMINATING > 0
        return terminating

    @property
    def states(self) -> NDArray[np.uint8]:
        """(n,): ReservationState."""
        assumed = np.where(
            self.records["flags"] & PRE_BINDS, ReservationState.PRE_BINDING, ReservationState.ASSUMED
        )
        states = np.where(self.assumed, assumed, ReservationState.CONFIRMED)
        if self.prepared is not None:
            states[self.prepared] = ReservationState.PREPARED
        states[self.terminating] = ReservationState.TERMINATING
        return states.astype(np.uint8)


UNCOUNTED = -1  # a group's number of pods that was damaged


@dataclass(frozen=True, slots=True)
class ShardState:
    """A whole shard at one moment, as an audit needs it. Accounts of removed nodes are included."""

    snapshot: Snapshot
    reservations: Reservations
    ports: dict[int, list[PortHold]]  # by node
    groups: dict[int, tuple[bytes, int]]  # by key: definition, number of pods or UNCOUNTED
    commits: UnconfirmedCommits = field(default_factory=UnconfirmedCommits)
    # Of pods that were moved to this shard: node and commit of a source that is still to be released.
    moved: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    # Of terminating pods: their preemptor, and what that took of their amounts, in schema order.
    shares: dict[bytes, tuple[bytes, tuple[int, ...]]] = field(default_factory=dict)
    damaged: dict[bytes, bytes] = field(default_factory=dict)  # reservations that cannot be read, as stored
    # By field, as stored, what cannot be read of nodes; b"": it is missing. The snapshot has a blank account
    # in the place of a damaged one, which offers nothing, and no cards in the place of damaged ones.
    damaged_accounts: dict[bytes, bytes] = field(default_factory=dict)
    damaged_cards: dict[bytes, bytes] = field(default_factory=dict)
    labels: dict[bytes, bytes] = field(default_factory=dict)  # by node, as stored; what is damaged, too
    # Records of rules, of groups' numbers of pods and of commits that cannot be read, as stored: by key of
    # the shard and field.
    damaged_records: dict[str, dict[bytes, bytes]] = field(default_factory=dict)

    @property
    def commit_faults(self) -> list[CommitFault]:
        """What is wrong with commits that are not confirmed."""
        seqs = self.reservations.records["seq"]
        targets = self.reservations.targets
        return list(commit_faults(self.commits, seqs, at=self.snapshot.seq, targets=targets))
