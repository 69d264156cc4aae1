"""How a policy tells tenants apart, and what weight it gives them."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Sharing:
    """How pods fall to tenants: by namespace, or, where `label` names one, by that label's value; "" for pods without it."""

    label: str = ""
    weights: Mapping[str, float] = field(default_factory=dict)
    default_weight: float = 1.0

    def weight(self, tenant: str) -> float:
        """A tenant of weight 3 may hold three times as much as one of weight 1. Always positive."""
        return self.weights.get(tenant, self.default_weight)


DEFAULT_SHARING = Sharing()
