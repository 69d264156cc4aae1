"""How much the node preferences of several workers overlap."""

from dataclasses import dataclass
from enum import Enum


class Overlap(str, Enum):
    """SHARED: all workers order equally good nodes alike. SHUFFLED: each in an order of its own. SOFT_PARTITION: each takes
    nodes of its own share first where others are hardly better."""

    SHARED = "shared"
    SHUFFLED = "shuffled"
    SOFT_PARTITION = "soft-partition"


@dataclass(frozen=True, slots=True)
class Preference:
    """What one worker is to go by; in a SOFT_PARTITION it has share `number`, from 0 on, of `shares`."""

    overlap: Overlap = Overlap.SHUFFLED
    number: int = 0
    shares: int = 1


DEFAULT_PREFERENCE = Preference()
