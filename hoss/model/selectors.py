"""Label and node selectors, after Kubernetes' labels and nodeaffinity packages."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

# Kubernetes' words for values that no selector compares with.
_NO_INTEGER = "for 'Gt', 'Lt' operators, the value must be an integer"
_LONGEST_LABEL_VALUE = 63
_TOO_LONG = f"must be no more than {_LONGEST_LABEL_VALUE} bytes"
_LABEL_VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")
_NO_LABEL_VALUE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must "
    "start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex "
    "used for "
    f"validation is '{_LABEL_VALUE.pattern}')"
)


@dataclass(frozen=True, slots=True)
class Requirement:
    """One condition on a label or field. Operators: In, NotIn, Exists, DoesNotExist, Gt, Lt."""

    key: str
    operator: str
    values: tuple[str, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """NotIn and DoesNotExist match where the key is missing; Gt and Lt only compare 64-bit integers."""
        present = self.key in labels
        match self.operator:
            case "In":
                return present and labels[self.key] in self.values
            case "NotIn":
                return not present or labels[self.key] not in self.values
            case "Exists":
                return present
            case "DoesNotExist":
                return not present
            case "Gt" | "Lt":
                return present and self._compares(labels[self.key])
        return False

    def __str__(self) -> str:
        """As kubectl writes it."""
        match self.operator:
            case "Exists":
                return self.key
            case "DoesNotExist":
                return f"!{self.key}"
            case "In" if len(self.values) == 1:
                return f"{self.key}={self.values[0]}"
            case "Gt" | "Lt":
                return f"{self.key}{'>' if self.operator == 'Gt' else '<'}{self.values[0]}"
        return f"{self.key} {self.operator.lower()} ({','.join(self.values)})"

    @property
    def usable(self) -> bool:
        """Whether anything can match: Gt and Lt compare with a whole number."""
        return self.operator not in ("Gt", "Lt") or (
            len(self.values) == 1 and _int64(self.values[0]) is not None
        )

    def problems(self) -> Iterator[str]:
        """Why kube-scheduler cannot read it, each with the place of the value (Kubernetes' NewRequirement).
        Values are sorted here, so of several the place may be another one."""
        for i, value in enumerate(self.values):
            place = f".values[{i}]"
            shown = '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
            if self.operator in ("Gt", "Lt") and _int64(value) is None:
                yield f"{place}: Invalid value: {shown}: {_NO_INTEGER}"
            wrong = [_TOO_LONG] if len(value.encode()) > _LONGEST_LABEL_VALUE else []
            wrong += [] if _LABEL_VALUE.fullmatch(value) else [_NO_LABEL_VALUE]
            if wrong:
                yield f"{place}[{self.key}]: Invalid value: {shown}: {'; '.join(wrong)}"

    def _compares(self, label: str) -> bool:
        have, limit = _int64(label), _int64(self.values[0]) if len(self.values) == 1 else None
        if have is None or limit is None:
            return False
        return have > limit if self.operator == "Gt" else have < limit


@dataclass(frozen=True, slots=True)
class LabelSelector:
    """ANDed requirements on a pod's or namespace's labels, sorted. Without requirements it matches
    everything.

    A missing selector, which in Kubernetes matches nothing, is None."""

    requirements: tuple[Requirement, ...] = ()

    @classmethod
    def of(cls, requirements: Iterable[Requirement]) -> "LabelSelector":
        """A selector of requirements in any order."""
        return cls(tuple(sorted(set(requirements), key=lambda r: (r.key, r.operator, r.values))))

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether the labels meet every requirement."""
        return all(r.matches(labels) for r in self.requirements)

    @property
    def everything(self) -> bool:
        """Whether it matches any labels."""
        return not self.requirements


@dataclass(frozen=True, slots=True)
class NodeSelectorTerm:
    """ANDed requirements on labels and on fields (metadata.name alone). An empty term matches nothing."""

    match_expressions: tuple[Requirement, ...] = ()
    match_fields: tuple[Requirement, ...] = ()

    def matches(self, labels: Mapping[str, str], name: str) -> bool:
        """Whether the node of these labels and this name meets every requirement."""
        if not self.match_expressions and not self.match_fields:
            return False
        fields = {"metadata.name": name}
        return all(r.matches(labels) for r in self.match_expressions) and all(
            r.matches(fields) for r in self.match_fields
        )

    @property
    def problems(self) -> tuple[str, ...]:
        """Why kube-scheduler cannot read the term, in its words. Empty: it can."""
        return tuple(
            f".matchExpressions[{i}]{problem}"
            for i, requirement in enumerate(self.match_expressions)
            for problem in requirement.problems()
        )


@dataclass(frozen=True, slots=True)
class NodeSelector:
    """ORed terms. Without terms it matches nothing."""

    terms: tuple[NodeSelectorTerm, ...]

    def matches(self, labels: Mapping[str, str], name: str) -> bool:
        """Whether the node of these labels and this name meets one term."""
        return any(term.matches(labels, name) for term in self.terms)


@dataclass(frozen=True, slots=True)
class PreferredTerm:
    """A term worth `weight` (1 to 100) to the nodes that match it."""

    weight: int
    term: NodeSelectorTerm


@dataclass(frozen=True, slots=True)
class NodeScope:
    """The nodes that a policy's rule gives its pods: those that meet all requirements. Where the scope is not
    `required`, the rule only prefers them."""

    rule: str
    requirements: tuple[Requirement, ...]
    required: bool = True

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether a node of these labels is in the scope."""
        return all(r.matches(labels) for r in self.requirements)

    def __str__(self) -> str:
        return ",".join(map(str, self.requirements))


_MOST_DIGITS = 1000


def _int64(text: str) -> int | None:
    # Go's strconv.ParseInt(text, 10, 64): an optional sign and digits, nothing else.
    digits = text[1:] if text[:1] in ("+", "-") else text
    # Longer than any label value; Python raises ValueError for thousands of digits.
    if not (digits.isascii() and digits.isdigit() and len(digits) <= _MOST_DIGITS):
        return None
    value = int(text)
    return value if -(2**63) <= value < 2**63 else None
