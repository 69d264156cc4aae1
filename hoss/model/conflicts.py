"""Settings for conflicts between workers: what a conflict is, and how node preferences overlap."""

from dataclasses import dataclass
from enum import Enum, IntEnum


class Criteria(IntEnum):
    """What is a conflict although the pod fits. The numbers are those of hoss.v1.Criteria."""

    FIT = 0  # nothing
    VERSION = 1  # any change of the node by others since the worker's snapshot
    STRICT = 2  # any change of the node's spec: labels, taints, cordon, allocatable


@dataclass(frozen=True, slots=True)
class ConflictRule:
    """How the ledger decides conflicts of the pods of one policy rule."""

    criteria: Criteria = Criteria.FIT
    # Pods of a class that are proposed together are reserved together, or none of them.
    all_or_nothing: bool = False
    # A pod preempts unconfirmed reservations whose priority is lower by at least this. 0: it never does.
    displace_gap: int = 0


DEFAULT_CONFLICT_RULE = ConflictRule()


class Overlap(str, Enum):
    """SHARED: all workers order equally good nodes alike. SHUFFLED: each worker has its own order.
    SOFT_PARTITION: each prefers the nodes of its own share unless others are clearly better."""

    SHARED = "shared"
    SHUFFLED = "shuffled"
    SOFT_PARTITION = "soft-partition"


@dataclass(frozen=True, slots=True)
class Preference:
    """One worker's setting. In a SOFT_PARTITION the worker has share `number` (from 0) of `shares`."""

    overlap: Overlap = Overlap.SHUFFLED
    number: int = 0
    shares: int = 1


DEFAULT_PREFERENCE = Preference()
