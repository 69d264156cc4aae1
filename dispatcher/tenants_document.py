"""The `tenants` section of a SchedulingPolicy document: who shares the cluster with whom, and with what weight."""

from typing import Annotated, Literal

from pydantic import Field, field_validator

from dispatcher.core.sharing import Sharing
from hoss.config import Document, checked
from hoss.model.names import check_key

# Beyond this, shares differ by more than an integer of pods can express in any cluster.
_MAX_WEIGHT = 1_000_000

Weight = Annotated[float, Field(gt=0, le=_MAX_WEIGHT)]


class ByLabel(Document):
    """A pod's tenant is its value of this label."""

    # The label's key.
    label: str

    @field_validator("label")
    @classmethod
    def _valid_key(cls, key: str) -> str:
        return checked(check_key, key)


class TenantsDocument(Document):
    """`by: Namespace` or `by: {label: KEY}`; a tenant not among `weights` has `defaultWeight`."""

    # What a pod's tenant is.
    by: Literal["Namespace"] | ByLabel = "Namespace"

    # By tenant: one of weight 3 may hold three times what one of weight 1 may.
    weights: dict[str, Weight] = Field(default_factory=dict)

    # Of tenants that are not among them.
    defaultWeight: Weight = 1.0  # noqa: N815 - Kubernetes' spelling

    def sharing(self) -> Sharing:
        """As the core has it."""
        label = self.by.label if isinstance(self.by, ByLabel) else ""
        return Sharing(label, dict(self.weights), self.defaultWeight)
