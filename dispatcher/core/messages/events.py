"""What the dispatcher's state machine is told: by clients, workers, the ledger, operators and the clock."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dispatcher.core.changes import ANYTHING, Changes, Seen
from dispatcher.core.conflicts import Refusals
from dispatcher.core.costs import CostReport
from dispatcher.core.membership import Vitals, WorkerState
from dispatcher.core.podsets import NewTemplate, Submission
from dispatcher.core.podtable import Rows
from hoss.model.cluster_objects import ClusterObject, ObjectKey
from hoss.model.overlap import Overlap
from hoss.model.taints import Taint
from hoss.wire.columns import Uids


class KnownNode(NamedTuple):
    """What decides whether bound pods may stay on a node."""

    name: str
    labels: Mapping[str, str]
    expelling: tuple[tuple[Taint, int], ...] = ()  # its NoExecute taints, and since when (Unix ms; 0: not known)


Commits = Mapping[int, NDArray[np.uint64]]  # shard -> sequence numbers of commits


class OutcomeCode(IntEnum):
    """A worker's answer for one pod; the numbers are hoss.v1.OutcomeCode's."""

    BOUND = 1
    UNSCHEDULABLE = 2
    CONFLICT = 3
    RETURNED = 4
    INVALID = 5
    FENCED = 6


@dataclass(frozen=True, slots=True)
class Admitted:
    """A submission is in the journal: its pods exist from now on."""

    submission: Submission


@dataclass(frozen=True, slots=True)
class Deleted:
    """The journal has the deletion of these pods."""

    rows: Rows


@dataclass(frozen=True, slots=True, eq=False)
class GatesRemoved:
    """The journal has it that these pods lose these scheduling gates."""

    rows: Rows
    gates: frozenset[str]


@dataclass(frozen=True, slots=True, eq=False)
class Retried:
    """The journal has it that the faults of these pods, which were given up, are forgiven."""

    rows: Rows


@dataclass(frozen=True, slots=True)
class ObjectsApplied:
    """The journal has these cluster objects."""

    objects: tuple[ClusterObject, ...]


@dataclass(frozen=True, slots=True)
class ObjectsRemoved:
    """The journal has it that these cluster objects are gone."""

    keys: tuple[ObjectKey, ...]


@dataclass(frozen=True, slots=True)
class Registered:
    """A worker asks to join on a new link."""

    link: int
    name: str
    labels: Mapping[str, str]
    incarnation: int
    window: int


@dataclass(frozen=True, slots=True)
class EpochGranted:
    """The ledger's answer to GrantEpoch."""

    link: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Heard:
    """A heartbeat."""

    link: int
    vitals: Vitals
    costs: CostReport | None = None  # of classes that the worker has measured since
    refusals: Refusals | None = None  # by the ledger, since


@dataclass(frozen=True, slots=True)
class Leaving:
    """A worker is about to stop."""

    link: int


@dataclass(frozen=True, slots=True)
class LinkClosed:
    """A worker's stream ended."""

    link: int


@dataclass(frozen=True, slots=True, eq=False)
class OutcomesArrived:
    """Answers for n pods of a batch. `positions` u32, `codes` u8, `nodes` u32, `reasons` u16 or None, each (n,)."""

    link: int
    batch: int
    positions: NDArray[np.uint32]
    codes: NDArray[np.uint8]
    nodes: NDArray[np.uint32]
    reasons: NDArray[np.uint16] | None
    texts: tuple[str, ...]
    commits: Commits
    refused_by: tuple[frozenset[str], ...] = ()  # beside texts, or empty
    seen: Seen = field(default_factory=dict)  # where the view stood that had no node for the unschedulable ones
    leaving_ms: NDArray[np.uint32] | None = (
        None  # (n,): for how long those that went for a bound pod may still be there
    )
    deciding_seconds: float = 0.0  # of the bound ones, see hoss.v1.Outcomes; 0.0: not told
    committing_seconds: float = 0.0
    refused: NDArray[np.uint32] | None = None  # positions that the ledger refused meanwhile, each as often as it did


@dataclass(frozen=True, slots=True, eq=False)
class Fenced:
    """The ledger's answer to Fence: `nodes` u32 beside the pods asked for, NONE_U32 where nothing is reserved, and the
    `commits` that hold the reserved ones."""

    worker: str
    nodes: NDArray[np.uint32]
    commits: Commits


@dataclass(frozen=True, slots=True, eq=False)
class Verified:
    """The ledger's answer to Verify: where these pods are, NONE_U32 for nowhere. The UIDs tell rows that others have by now."""

    rows: Rows
    uids: Uids
    nodes: NDArray[np.uint32]


@dataclass(frozen=True, slots=True, eq=False)
class Released:
    """The reservations of these pods are gone."""

    rows: Rows


@dataclass(frozen=True, slots=True, eq=False)
class Confirmed:
    """The reservations of these pods stand until they are released. The UIDs tell rows that others have by now."""

    rows: Rows
    uids: Uids


@dataclass(frozen=True, slots=True, eq=False)
class Assigned:
    """Kubernetes mode: the API server has these pods on these nodes, whoever put them there."""

    rows: Rows
    nodes: NDArray[np.uint32]  # (n,)


@dataclass(frozen=True, slots=True, eq=False)
class Respecified:
    """Kubernetes mode: these pods ask for something else than they did (resized in place, tolerations added), or have other labels.
    Their gates are not meant."""

    pods: tuple[tuple[int, NewTemplate], ...]  # by row


@dataclass(frozen=True, slots=True, eq=False)
class BindingRefused:
    """Kubernetes mode: these pods, which hold reservations, are not bound: the API server refused, or (`attempted` False) was not
    asked, because the pod or its node is not what it was when it was placed."""

    rows: Rows
    reasons: tuple[str, ...]  # (n,)
    attempted: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class Evicted:
    """The ledger has taken the reservations of n pods away, each on its node, for the reason beside it. Pods that nobody here
    knows, and those that are not bound there any more, are passed over."""

    uids: Uids  # (n, 16)
    nodes: NDArray[np.uint32]  # (n,)
    reasons: tuple[str, ...]  # (n,), such as "preempted by default/web-0 on node n1"
    preemptors: tuple[bytes, ...] = ()  # (n,), UIDs of the pods for which they went; empty: they went for nobody


@dataclass(frozen=True, slots=True)
class HistoryMissed:
    """What happened on a shard for a while, to bound pods too, is not known."""

    shard: int
    shards: int


@dataclass(frozen=True, slots=True)
class LedgerLost:
    """What the ledger had is gone, and what workers have in hand was for that one: none of it counts any more."""


@dataclass(frozen=True, slots=True)
class ClusterChanged:
    """Room was given back, or nodes were added or changed: something may fit now. `shard` and `seq` are the place in the
    feed that told of it."""

    changes: Changes = ANYTHING
    shard: int = -1
    seq: int = 0


@dataclass(frozen=True, slots=True)
class AllocatableChanged:
    """What all nodes have together, by resource."""

    totals: Mapping[str, int]


@dataclass(frozen=True, slots=True, eq=False)
class NodesSeen:
    """The feed told of these nodes, by index: new ones, and such as have other labels or taints now."""

    nodes: Mapping[int, KnownNode]


@dataclass(frozen=True, slots=True, eq=False)
class NodesGone:
    """These nodes were removed, and with them what was reserved on them."""

    nodes: NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class StateWanted:
    """An operator cordons, drains or reopens a worker that exists."""

    worker: str
    state: WorkerState


@dataclass(frozen=True, slots=True)
class SteeringWanted:
    """An operator fixes how workers' preferences overlap and how many get work at once (0: all); None: chosen by itself."""

    overlap: Overlap | None
    workers: int | None


@dataclass(frozen=True, slots=True)
class Tick:
    """Time went by."""


Event = (
    Admitted
    | Deleted
    | GatesRemoved
    | Retried
    | ObjectsApplied
    | ObjectsRemoved
    | Registered
    | EpochGranted
    | Heard
    | Leaving
    | LinkClosed
    | OutcomesArrived
    | Fenced
    | Verified
    | Released
    | Confirmed
    | Assigned
    | Respecified
    | BindingRefused
    | Evicted
    | HistoryMissed
    | LedgerLost
    | ClusterChanged
    | AllocatableChanged
    | NodesSeen
    | NodesGone
    | StateWanted
    | SteeringWanted
    | Tick
)
