"""Label selectors in documents, as Kubernetes writes them."""

import re
from typing import Literal

from pydantic import Field, field_validator, model_validator

from dispatcher.core.policy import Selector
from hoss.config import Document, checked
from hoss.model.names import check_key, check_label_value
from hoss.model.selectors import Requirement

_INTEGER = re.compile(r"[+-]?\d+")

_VALUES_WANTED = {
    "In": "one value or more",
    "NotIn": "one value or more",
    "Exists": "no values",
    "DoesNotExist": "no values",
    "Gt": "one whole number",
    "Lt": "one whole number",
}


class Expression(Document):
    """One requirement on a label, as in Kubernetes' matchExpressions."""

    # The label's key.
    key: str

    # Gt and Lt compare whole numbers; a label that is absent satisfies NotIn and DoesNotExist alone.
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]

    # One or more for In and NotIn, one for Gt and Lt, none for the others.
    values: tuple[str, ...] = ()

    @field_validator("key")
    @classmethod
    def _valid_key(cls, key: str) -> str:
        return checked(check_key, key)

    @model_validator(mode="after")
    def _operator_fits_values(self) -> "Expression":
        wanted = _VALUES_WANTED[self.operator]
        if wanted == "no values":
            fits = not self.values
        elif wanted == "one whole number":
            fits = len(self.values) == 1 and _INTEGER.fullmatch(self.values[0]) is not None
        else:
            fits = bool(self.values)
        if not fits:
            raise ValueError(f"operator {self.operator} takes {wanted}, not {list(self.values)}")
        for value in self.values:
            checked(check_label_value, value.lstrip("+-") if wanted == "one whole number" else value)
        return self


class LabelSelector(Document):
    """Labels that must agree; an empty selector matches everything."""

    # Labels with exactly these values.
    matchLabels: dict[str, str] = Field(default_factory=dict)  # noqa: N815 - Kubernetes' spelling

    # Further requirements, all of which must hold.
    matchExpressions: tuple[Expression, ...] = ()  # noqa: N815

    @field_validator("matchLabels")
    @classmethod
    def _valid_labels(cls, labels: dict[str, str]) -> dict[str, str]:
        return {checked(check_key, k): checked(check_label_value, v) for k, v in labels.items()}

    def selector(self) -> Selector:
        """As the core has it; labels by their keys, then expressions in their order."""
        labels = (Requirement(key, "In", (value,)) for key, value in sorted(self.matchLabels.items()))
        expressions = (Requirement(e.key, e.operator, e.values) for e in self.matchExpressions)
        return Selector((*labels, *expressions))
