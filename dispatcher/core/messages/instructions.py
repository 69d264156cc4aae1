"""What the dispatcher's state machine wants done.

Row arrays name pods by their row; UIDs stand beside them where the other end needs them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dispatcher.core.cluster_objects import Surroundings
from dispatcher.core.messages.events import Commits
from dispatcher.core.podsets import Submission
from dispatcher.core.podtable import Rows
from hoss.model.conflicts import DEFAULT_CONFLICT_RULE, ConflictRule
from hoss.model.overlap import Preference
from hoss.model.selectors import NodeScope
from hoss.wire.columns import Uids


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
