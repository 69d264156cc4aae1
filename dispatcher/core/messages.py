"""What the dispatcher's state machine is told (events) and what it wants done (instructions). All are values.

Row arrays in instructions name pods by their row; UIDs stand beside them where the other end needs them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dispatcher.core.changes import ANYTHING, Changes, Seen
from dispatcher.core.cluster_objects import Surroundings
from dispatcher.core.conflicts import Refusals
from dispatcher.core.costs import CostReport
from dispatcher.core.membership import Vitals, WorkerState
from dispatcher.core.podsets import NewTemplate, Submission
from dispatcher.core.podtable import Rows
from hoss.model.cluster_objects import ClusterObject, ObjectKey
from hoss.model.conflicts import DEFAULT_CONFLICT_RULE, ConflictRule
from hoss.model.overlap import Overlap, Preference
from hoss.model.selectors import NodeScope
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


# --- events ---


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

# --- instructions ---


@dataclass(frozen=True, slots=True)
class GrantEpoch:
    """Get a new epoch for a worker and answer EpochGranted, however often it must be tried while the link lives."""

    worker: str
    link: int


@dataclass(frozen=True, slots=True)
class Welcome:
    """Tell a worker that it is in."""

    link: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Refuse:
    """End a link: a living worker has its name."""

    link: int
    text: str


@dataclass(frozen=True, slots=True)
class CloseLink:
    """End a link whose worker was declared lost."""

    link: int
    text: str


@dataclass(frozen=True, slots=True, eq=False)
class SendWork:
    """One work batch: runs of equal class and attempts, in the order of `uids`; `classes` are those the worker does not know,
    with their bytes."""

    link: int
    batch: int
    classes: tuple[tuple[int, bytes], ...]
    forgotten: tuple[int, ...]
    run_classes: NDArray[np.uint32]
    run_counts: NDArray[np.uint32]
    run_attempts: NDArray[np.uint16]
    uids: Uids
    lowest_priority: int  # that any pod has
    gang: str = ""
    gang_minimum: int = 0  # of a gang: so many of its pods are to be bound at least, or none
    scope: NodeScope | None = None  # the nodes that the policy gives these pods; None: all
    conflicts: ConflictRule = DEFAULT_CONFLICT_RULE


@dataclass(frozen=True, slots=True)
class SendSurroundings:
    """Tell a worker by which namespaces and services it is to place from now on."""

    link: int
    surroundings: Surroundings


@dataclass(frozen=True, slots=True)
class SendDrain:
    """Ask a worker for what it has not started."""

    link: int


@dataclass(frozen=True, slots=True)
class SendRecall:
    """Ask a worker to give back up to so many pods of these batches, of those it has not started."""

    link: int
    batches: tuple[int, ...]
    pods: int


@dataclass(frozen=True, slots=True)
class SendPreference:
    """Tell a worker how to order nodes that are about equally good from now on."""

    link: int
    preference: Preference


@dataclass(frozen=True, slots=True, eq=False)
class Fence:
    """Fence a lost worker on every shard, then look its pods up, and answer Fenced, however often it must be tried."""

    worker: str
    uids: Uids


@dataclass(frozen=True, slots=True, eq=False)
class Confirm:
    """End the lease of commits. Where some of them were not there any more, verify the rows."""

    commits: Commits
    rows: Rows
    uids: Uids
    batch: int = 0  # in which they were answered for; 0: none that is known


@dataclass(frozen=True, slots=True, eq=False)
class Verify:
    """Look pods up and answer Verified."""

    rows: Rows
    uids: Uids


@dataclass(frozen=True, slots=True, eq=False)
class Release:
    """Give back reservations of deleted pods and answer Released."""

    rows: Rows
    uids: Uids
    nodes: NDArray[np.uint32]


@dataclass(frozen=True, slots=True, eq=False)
class Reserve:
    """Kubernetes mode: these pods, which are on their nodes already, are to be reserved there, whatever there is room for."""

    rows: Rows
    uids: Uids


@dataclass(frozen=True, slots=True, eq=False)
class Remove:
    """Kubernetes mode: these pods have lost their reservations to others and are to be deleted at the API server."""

    rows: Rows
    uids: Uids
    preemptors: tuple[bytes, ...]  # (n,)


@dataclass(frozen=True, slots=True, eq=False)
class Evict:
    """Give back reservations of bound pods and answer Evicted with the same."""

    uids: Uids
    nodes: NDArray[np.uint32]
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Forget:
    """Every pod of this submission is deleted and gone from the ledger: drop it from the journal."""

    submission: Submission


@dataclass(frozen=True, slots=True)
class Warn:
    """Log something that should not happen, with fields."""

    event: str
    fields: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Note:
    """Log a decision, with fields."""

    event: str
    fields: Mapping[str, object]


ToWorker = SendWork | Welcome | SendSurroundings | SendDrain | SendRecall | SendPreference

Instruction = (
    GrantEpoch
    | Welcome
    | Refuse
    | CloseLink
    | SendWork
    | SendSurroundings
    | SendDrain
    | SendRecall
    | SendPreference
    | Fence
    | Confirm
    | Verify
    | Release
    | Reserve
    | Remove
    | Evict
    | Forget
    | Note
    | Warn
)

# By the type of event; takes the event and the monotonic time.
Handlers = dict[type, Callable[..., list[Instruction]]]
