"""Resources and the schema that numbers them.

Amounts are integers in schema units: cpu in thousandths of a core, everything else in whole units.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

Pairs = tuple[tuple[str, str], ...]  # sorted by key
Amounts = tuple[tuple[str, int], ...]  # sorted by resource, schema units

CPU, MEMORY, EPHEMERAL_STORAGE, PODS, HUGEPAGES_2MI, HUGEPAGES_1GI = range(6)

BASE_RESOURCES = ("cpu", "memory", "ephemeral-storage", "pods", "hugepages-2Mi", "hugepages-1Gi")

# The ledger counts in Lua numbers, which are doubles: exact up to here.
MAX_AMOUNT = 2**53

# Whole accelerator cards, and thousandths of one card.
DEVICE_RESOURCE = "nvidia.com/gpu"
DEVICE_SHARE_RESOURCE = "hoss.dev/gpu-milli"
MAX_CARDS = 16  # of one node: the slots of its card record
WHOLE_CARD_MILLI = 1000


@dataclass(slots=True)
class ResourceSchema:
    """Append-only numbering of resources, from BASE_RESOURCES on. A name never changes its index."""

    names: list[str] = field(default_factory=lambda: list(BASE_RESOURCES))
    _index: dict[str, int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._index = {name: i for i, name in enumerate(self.names)}

    def __len__(self) -> int:
        return len(self.names)

    def get(self, name: str) -> int | None:
        """The resource's index, or None if no node ever offered it."""
        return self._index.get(name)

    def extend(self, names: Iterable[str]) -> bool:
        """Append the unknown names in the given order. True if there were any."""
        before = len(self.names)
        for name in names:
            if name not in self._index:
                self._index[name] = len(self.names)
                self.names.append(name)
        return len(self.names) > before


def written_amount(resource: str, amount: int) -> str:
    """An amount in schema units as text: cores for cpu, thousandths below one core, binary units for bytes,
    else the plain number."""
    if resource == "cpu":
        return f"{amount / 1000:g}" if amount == 0 or abs(amount) >= 1000 else f"{amount}m"
    if resource in ("memory", "ephemeral-storage") or resource.startswith("hugepages-"):
        return _binary(amount)
    return str(amount)


def _binary(amount: int) -> str:
    value = float(amount)
    for unit in ("", "Ki", "Mi", "Gi", "Ti"):
        if abs(value) < 1024:
            return f"{value:.4g}{unit}"
        value /= 1024
    return f"{value:.4g}Pi"


WHOLE_CARD_MILLI = 1000
