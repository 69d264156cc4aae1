"""How conflicts between workers are decided: what a policy says of it."""

from dataclasses import dataclass
from enum import IntEnum


class Criteria(IntEnum):
    """What counts as a conflict, beside what does not fit. Numbered as hoss.v1.Criteria."""

    FIT = 0  # nothing
    VERSION = 1  # any change of the node since the worker's snapshot that the worker did not make itself
    STRICT = 2  # any change of what the node is: labels, taints, cordon, allocatable


@dataclass(frozen=True, slots=True)
class ConflictRule:
    """What a policy's rule says of its pods."""

    criteria: Criteria = Criteria.FIT
    all_or_nothing: bool = False  # pods of a class that are proposed together are reserved together, or none of them
    displace_gap: int = 0  # unconfirmed reservations go for a pod whose priority is so much higher; 0: none does


DEFAULT_CONFLICT_RULE = ConflictRule()
