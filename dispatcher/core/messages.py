"""All messages between the dispatcher's state machine and its environment, as immutable values.

Events go in: from clients, workers, the ledger, operators and the clock. Instructions come out. Row arrays
identify pods by row; their UIDs are added where the other side needs them."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dispatcher.core.changes import ANYTHING, Changes, ViewPosition
from dispatcher.core.pods.sets import GangRule, NewTemplate, Submission
from dispatcher.core.pods.table import Rows
from dispatcher.core.workers.membership import WorkerState
from dispatcher.core.workers.reports import ConflictReport, CostReport, Heartbeat
from hoss.model.cluster import ClusterObject, NamespaceSnapshot, ObjectKey, StorageUpdate
from hoss.model.conflicts import DEFAULT_CONFLICT_RULE, ConflictRule, Overlap, Preference
from hoss.model.node import Taint
from hoss.model.selectors import NodeScope
from hoss.wire.columns import Uids

Commits = Mapping[int, NDArray[np.uint64]]  # shard -> sequence numbers of commits


class Event:
    """What `Machine.handle` accepts."""

    __slots__ = ()


class KnownNode(NamedTuple):
    """The part of a node that decides whether bound pods may stay on it."""

    name: str
    labels: Mapping[str, str]
    no_execute: tuple[tuple[Taint, int], ...] = ()  # taints, and since when (Unix ms; 0: unknown)


class OutcomeCode(IntEnum):
    """A worker's answer for one pod; the numbers are hoss.v1.OutcomeCode's."""

    BOUND = 1
    UNSCHEDULABLE = 2
    CONFLICT = 3
    RETURNED = 4
    INVALID = 5
    FENCED = 6
    UNRESERVED = 7


@dataclass(frozen=True, slots=True)
class Admitted(Event):
    """The journal has this submission: its pods exist from now on, or the next `most` of them."""

    submission: Submission
    most: int | None = None


@dataclass(frozen=True, slots=True)
class Deleted(Event):
    """The journal has the deletion of these pods."""

    rows: Rows


@dataclass(frozen=True, slots=True, eq=False)
class GatesRemoved(Event):
    """The journal has the removal of these scheduling gates from these pods."""

    rows: Rows
    gates: frozenset[str]


@dataclass(frozen=True, slots=True, eq=False)
class GangRulesChanged(Event):
    """What the PodGroups say now that pods name, by the keys of their gangs."""

    rules: Mapping[str, GangRule]


@dataclass(frozen=True, slots=True, eq=False)
class Retried(Event):
    """The journal has it that these FAILED pods are tried again and their faults are forgiven."""

    rows: Rows


@dataclass(frozen=True, slots=True)
class ObjectsApplied(Event):
    """The journal has these cluster objects."""

    objects: tuple[ClusterObject, ...]


@dataclass(frozen=True, slots=True)
class ObjectsRemoved(Event):
    """The journal has the removal of these cluster objects."""

    keys: tuple[ObjectKey, ...]


@dataclass(frozen=True, slots=True)
class StorageChanged(Event):
    """The API server's storage objects changed."""

    update: StorageUpdate


@dataclass(frozen=True, slots=True)
class Registered(Event):
    """A worker registers on a new link."""

    link: int
    name: str
    labels: Mapping[str, str]
    incarnation: int
    window: int
    profile: str = ""  # how it chooses nodes, for people
    bind_seconds: Mapping[str, float] = field(default_factory=dict)  # see Worker
    packs: bool = False  # see Worker


@dataclass(frozen=True, slots=True)
class EpochGranted(Event):
    """The ledger's answer to GrantEpoch."""

    link: int
    epoch: int


@dataclass(frozen=True, slots=True)
class HeartbeatReceived(Event):
    """A heartbeat."""

    link: int
    heartbeat: Heartbeat
    costs: CostReport | None = None  # measured since the last heartbeat
    refusals: ConflictReport | None = None  # since the last heartbeat


@dataclass(frozen=True, slots=True)
class Leaving(Event):
    """A worker is about to stop."""

    link: int
    reason: str = ""  # empty: it was told to


@dataclass(frozen=True, slots=True)
class LinkClosed(Event):
    """A worker's stream ended."""

    link: int


@dataclass(frozen=True, slots=True, eq=False)
class OutcomesArrived(Event):
    """Outcomes of n pods of a batch. `positions` u32, `codes` u8, `nodes` u32, `reasons` u16 or None, each
    (n,)."""

    link: int
    batch: int
    positions: NDArray[np.uint32]
    codes: NDArray[np.uint8]
    nodes: NDArray[np.uint32]
    reasons: NDArray[np.uint16] | None
    texts: tuple[str, ...]
    commits: Commits
    refused_by: tuple[frozenset[str], ...] = ()  # plugins for each text, or empty
    failed: tuple[bool, ...] = ()  # whether plugins failed, for each text, or empty
    view: ViewPosition = field(default_factory=dict)  # of the worker's view when pods were unschedulable
    leaving_ms: NDArray[np.uint32] | None = None  # (n,): how long victims of a bound pod may still run
    deciding_seconds: float = 0.0  # of the bound pods, see hoss.v1.Outcomes; 0.0: not reported
    committing_seconds: float = 0.0
    refused: NDArray[np.uint32] | None = None  # positions the ledger refused, once per refusal


@dataclass(frozen=True, slots=True, eq=False)
class Fenced(Event):
    """The ledger's answer to Fence: `nodes` u32, one for each pod of the Fence, NONE_U32 without a
    reservation, and the `commits` that hold the reservations."""

    worker: str
    nodes: NDArray[np.uint32]
    commits: Commits


@dataclass(frozen=True, slots=True, eq=False)
class Verified(Event):
    """The ledger's answer to Verify: the nodes of these pods, NONE_U32 for none, and which of them it has as
    evicted and still on their nodes (None: none of them). `seqs`: of their reservations, each on the shard of
    its node (None: of none that was made after a removal of its node). The UIDs detect rows that were
    reused."""

    rows: Rows
    uids: Uids
    nodes: NDArray[np.uint32]
    terminating: NDArray[np.bool_] | None = None
    seqs: NDArray[np.uint64] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Moved(Event):
    """The ledger has moved these pods, or found them, to these nodes. The UIDs detect rows that were
    reused."""

    rows: Rows
    uids: Uids
    nodes: NDArray[np.uint32]


@dataclass(frozen=True, slots=True, eq=False)
class Released(Event):
    """The reservations of these pods are gone."""

    rows: Rows
    unreserved: bool = False  # see Release


@dataclass(frozen=True, slots=True, eq=False)
class Confirmed(Event):
    """The reservations of these pods are confirmed: they last until they are released. The UIDs detect rows
    that were reused."""

    rows: Rows
    uids: Uids


@dataclass(frozen=True, slots=True, eq=False)
class Assigned(Event):
    """Kubernetes mode: the API server has these pods on these nodes, whoever bound them."""

    rows: Rows
    nodes: NDArray[np.uint32]  # (n,)


@dataclass(frozen=True, slots=True, eq=False)
class Inherited(Event):
    """Kubernetes mode: these new pods, which are not admitted yet, have got the places that moves of other
    pods had reserved on these nodes. The reservations are confirmed."""

    rows: Rows
    nodes: NDArray[np.uint32]  # (n,)


@dataclass(frozen=True, slots=True, eq=False)
class PodsChanged(Event):
    """Kubernetes mode: these pods have another template (resized in place, tolerations added) or other
    labels. Changed gates are GatesRemoved events."""

    pods: tuple[tuple[int, NewTemplate], ...]  # by row


@dataclass(frozen=True, slots=True, eq=False)
class BindingRefused(Event):
    """Kubernetes mode: these reserved pods were not bound. The API server refused, or (`attempted` False) no
    request was sent, because the pod or its node has changed since the placement."""

    rows: Rows
    reasons: tuple[str, ...]  # (n,)
    attempted: bool = True


# How the reason of an eviction names the pod that took the place.
PREEMPTED_BY = re.compile(r"preempted by (?:pod (?P<uid>\S+)|(?P<namespace>[^/\s]+)/(?P<name>\S+)) on node ")


def preempted_by(pod: str, node: str) -> str:
    """The reason of an eviction. `pod`: namespace/name, or "pod UID" of one that nobody knows any more."""
    return f"preempted by {pod} on node {node}"


@dataclass(frozen=True, slots=True, eq=False)
class Evicted(Event):
    """The ledger removed the reservations of n pods, each on its node, for the reason given. Unknown pods,
    and pods that are no longer bound there, are skipped."""

    uids: Uids  # (n, 16)
    nodes: NDArray[np.uint32]  # (n,)
    reasons: tuple[str, ...]  # (n,), such as "preempted by default/web-0 on node n1"
    # (n,), UIDs of the preempting pods; empty: no preemption
    preemptors: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class HistoryMissed(Event):
    """Some entries of a shard's feed up to `seq` were missed, so bound pods of that shard may have lost their
    reservations."""

    shard: int
    shards: int
    seq: int


@dataclass(frozen=True, slots=True)
class LedgerLost(Event):
    """The ledger lost its data. What workers have outstanding was decided on the old ledger and no longer
    counts."""


@dataclass(frozen=True, slots=True)
class LedgerProbed(Event):
    """Whether the ledger has answered the ProbeLedger on account of the worker with this link."""

    link: int
    answered: bool


@dataclass(frozen=True, slots=True)
class ClusterChanged(Event):
    """Resources were freed, or nodes were added or changed: waiting pods may fit now. `shard` and `seq` are
    the position of the change in the feed; shard -1: not from the feed."""

    changes: Changes = ANYTHING
    shard: int = -1
    seq: int = 0


@dataclass(frozen=True, slots=True)
class AllocatableChanged(Event):
    """The allocatable totals of all nodes together, by resource."""

    totals: Mapping[str, int]


@dataclass(frozen=True, slots=True, eq=False)
class NodesSeen(Event):
    """The feed reported these nodes, by index: new nodes, and nodes with other labels or taints."""

    nodes: Mapping[int, KnownNode]


@dataclass(frozen=True, slots=True, eq=False)
class NodesGone(Event):
    """These nodes were removed, with all reservations on them: at `seq` of their shard or before."""

    nodes: NDArray[np.uint32]
    seq: int


@dataclass(frozen=True, slots=True)
class WorkerStateRequested(Event):
    """An operator cordons, drains or uncordons an existing worker."""

    worker: str
    state: WorkerState


@dataclass(frozen=True, slots=True)
class OverlapRequested(Event):
    """An operator fixes how workers' node preferences overlap, and how many workers get work (0: all). None:
    the dispatcher chooses."""

    overlap: Overlap | None
    workers: int | None


@dataclass(frozen=True, slots=True)
class Tick(Event):
    """Time passed."""


# --- instructions ---


class Instruction:
    """What `Machine.handle` returns."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, eq=False)
class ToWorker(Instruction):
    """A message to the worker on this link."""

    link: int


@dataclass(frozen=True, slots=True)
class GrantEpoch(Instruction):
    """Get a new epoch for a worker and answer EpochGranted. Retry for as long as the link lives."""

    worker: str
    link: int


@dataclass(frozen=True, slots=True)
class Welcome(ToWorker):
    """Tell a worker that it is registered."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Refuse(Instruction):
    """End a link: its name belongs to a living worker."""

    link: int
    text: str


@dataclass(frozen=True, slots=True)
class CloseLink(Instruction):
    """End the link of a worker that is declared lost."""

    link: int
    text: str


@dataclass(frozen=True, slots=True, eq=False)
class SendWork(ToWorker):
    """One work batch: runs of equal class and attempts, in the order of `uids`. `classes` are those new to
    the worker, with their bytes."""

    batch: int
    classes: tuple[tuple[int, bytes], ...]
    forgotten: tuple[int, ...]
    run_classes: NDArray[np.uint32]
    run_counts: NDArray[np.uint32]
    run_attempts: NDArray[np.uint16]
    uids: Uids
    lowest_priority: int  # of all pods
    gang: str = ""
    gang_minimum: int = 0  # of a gang: bind at least so many of its pods, or none
    scope: NodeScope | None = None  # the nodes that the policy gives these pods; None: all
    conflicts: ConflictRule = DEFAULT_CONFLICT_RULE


@dataclass(frozen=True, slots=True)
class SendNamespaces(ToWorker):
    """Send a worker the namespaces and services that its placements depend on (`set_namespaces`)."""

    snapshot: NamespaceSnapshot


@dataclass(frozen=True, slots=True)
class SendStorage(ToWorker):
    """Send a worker changes of the cluster's storage objects (`storage_changes_to_proto`)."""

    update: StorageUpdate


@dataclass(frozen=True, slots=True)
class SendDrain(ToWorker):
    """Tell a worker to return all pods that it has not started."""


@dataclass(frozen=True, slots=True)
class SendRecall(ToWorker):
    """Tell a worker to return up to `pods` pods of these batches that it has not started."""

    batches: tuple[int, ...]
    pods: int


@dataclass(frozen=True, slots=True)
class SendPreference(ToWorker):
    """Tell a worker how to order nodes of about equal score from now on."""

    preference: Preference


@dataclass(frozen=True, slots=True, eq=False)
class Fence(Instruction):
    """Fence a lost worker on every shard, then look its pods up and answer Fenced. Retry until it
    succeeds."""

    worker: str
    uids: Uids


@dataclass(frozen=True, slots=True, eq=False)
class Confirm(Instruction):
    """End the lease of commits. Verify the rows if some commits no longer exist."""

    commits: Commits
    rows: Rows
    uids: Uids
    batch: int = 0  # of the outcomes; 0: unknown


@dataclass(frozen=True, slots=True, eq=False)
class ProbeLedger(Instruction):
    """Ask the ledger once for these pods, and answer LedgerProbed: whether it answers at all."""

    link: int  # of the worker on whose account it is asked
    uids: Uids


@dataclass(frozen=True, slots=True, eq=False)
class Verify(Instruction):
    """Look pods up and answer Verified."""

    rows: Rows
    uids: Uids


@dataclass(frozen=True, slots=True, eq=False)
class Release(Instruction):
    """Release reservations and answer Released."""

    rows: Rows
    uids: Uids
    nodes: NDArray[np.uint32]
    unreserved: bool = False  # their worker could not prepare them
    # The rest of their commits, once these are released: who finds a confirmed reservation takes its pod for
    # bound.
    confirm: Confirm | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Reserve(Instruction):
    """Kubernetes mode: reserve these pods on the nodes they already run on, even where they do not fit."""

    rows: Rows
    uids: Uids


@dataclass(frozen=True, slots=True, eq=False)
class Remove(Instruction):
    """Kubernetes mode: delete these pods, which lost their reservations to others, at the API server."""

    rows: Rows
    uids: Uids
    preemptors: tuple[bytes, ...]  # (n,)


@dataclass(frozen=True, slots=True, eq=False)
class Evict(Instruction):
    """Release reservations of bound pods and answer Evicted with the same fields."""

    uids: Uids
    nodes: NDArray[np.uint32]
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Forget(Instruction):
    """Delete a submission from the journal: all its pods are deleted and hold nothing in the ledger."""

    submission: Submission


@dataclass(frozen=True, slots=True)
class Warn(Instruction):
    """Log an unexpected event, with fields."""

    event: str
    fields: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Note(Instruction):
    """Log a decision, with fields."""

    event: str
    fields: Mapping[str, object]


# By the type of event; takes the event and the monotonic time.
Handlers = dict[type, Callable[..., list[Instruction]]]
