"""SchedulingPolicy documents: YAML in, the core's frozen rules out."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator, model_validator

from dispatcher.core.policy import Algorithm, Balance, Fallback, Match, Policy, Rule, Selector
from dispatcher.tenants_document import TenantsDocument
from hoss.config import Document, load_document, parse_document
from hoss.errors import InvalidInput
from hoss.model.names import check_key, check_label_value
from hoss.model.pod import QosClass
from hoss.model.selectors import Requirement

KIND = "SchedulingPolicy"

DEFAULT_YAML = """\
apiVersion: hoss.dev/v1alpha1
kind: SchedulingPolicy
rules:
  - name: default
    balance: {algorithm: LeastOutstanding}
    fallback: Wait
"""

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

    key: str
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]
    values: tuple[str, ...] = ()

    @field_validator("key")
    @classmethod
    def _valid_key(cls, key: str) -> str:
        return _checked(check_key, key)

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
        return self


class LabelSelector(Document):
    """Labels that must agree; an empty selector matches everything."""

    matchLabels: dict[str, str] = Field(default_factory=dict)  # noqa: N815 - Kubernetes' spelling
    matchExpressions: tuple[Expression, ...] = ()  # noqa: N815

    @field_validator("matchLabels")
    @classmethod
    def _valid_labels(cls, labels: dict[str, str]) -> dict[str, str]:
        return {_checked(check_key, k): _checked(check_label_value, v) for k, v in labels.items()}

    def selector(self) -> Selector:
        """As the core has it."""
        labels = (Requirement(key, "In", (value,)) for key, value in sorted(self.matchLabels.items()))
        expressions = (Requirement(e.key, e.operator, e.values) for e in self.matchExpressions)
        return Selector((*labels, *expressions))


class PriorityRange(Document):
    """Priorities from `min` to `max`, both included; either may be left out."""

    min: int | None = None
    max: int | None = None

    @model_validator(mode="after")
    def _not_empty(self) -> "PriorityRange":
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min {self.min} is above max {self.max}: no pod can match")
        return self


class MatchDocument(Document):
    """Which pods a rule is about: all that is given must agree; nothing given matches every pod."""

    labels: LabelSelector = LabelSelector()
    namespaces: tuple[str, ...] = ()
    priority: PriorityRange = PriorityRange()
    priorityClassNames: tuple[str, ...] = ()  # noqa: N815
    schedulerNames: tuple[str, ...] = ()  # noqa: N815
    qosClasses: tuple[QosClass, ...] = ()  # noqa: N815
    ownerKinds: tuple[Literal["Pod", "Job", "Deployment", "ReplicaSet", "StatefulSet"], ...] = ()  # noqa: N815
    resources: tuple[str, ...] = ()  # the pod asks for at least one of these

    def match(self) -> Match:
        """As the core has it."""
        return Match(
            labels=self.labels.selector(),
            namespaces=frozenset(self.namespaces),
            priority_min=self.priority.min,
            priority_max=self.priority.max,
            priority_class_names=frozenset(self.priorityClassNames),
            scheduler_names=frozenset(self.schedulerNames),
            qos_classes=frozenset(qos.value for qos in self.qosClasses),
            owner_kinds=frozenset(self.ownerKinds),
            resources=frozenset(self.resources),
        )


class BalanceDocument(Document):
    """How one of the workers that fit is chosen."""

    algorithm: Algorithm = Algorithm.LEAST_OUTSTANDING
    weightLabel: str = "weight"  # noqa: N815 - of WeightedRoundRobin: the worker label that holds its weight


class RuleDocument(Document):
    """Pods that match go to workers that are selected."""

    name: str = Field(min_length=1)
    match: MatchDocument = MatchDocument()
    workers: LabelSelector = LabelSelector()
    balance: BalanceDocument = BalanceDocument()
    fallback: Fallback = Fallback.WAIT


class PolicyDocument(Document):
    """Ordered rules: the first that matches a pod decides."""

    rules: tuple[RuleDocument, ...] = Field(min_length=1)
    tenants: TenantsDocument = TenantsDocument()

    @field_validator("rules")
    @classmethod
    def _names_differ(cls, rules: tuple[RuleDocument, ...]) -> tuple[RuleDocument, ...]:
        names = [rule.name for rule in rules]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"rule names must differ; given more than once: {', '.join(twice)}")
        return rules

    def policy(self) -> Policy:
        """As the core has it."""
        return Policy(
            tuple(
                Rule(
                    name=rule.name,
                    match=rule.match.match(),
                    workers=rule.workers.selector(),
                    balance=Balance(rule.balance.algorithm, rule.balance.weightLabel),
                    fallback=rule.fallback,
                )
                for rule in self.rules
            ),
            sharing=self.tenants.sharing(),
        )


def parse_policy(text: str, *, where: str = "policy") -> Policy:
    """Read a SchedulingPolicy. Raises ConfigError naming the field's path, the value, and what would be right."""
    return parse_document(text, KIND, PolicyDocument, where=where).policy()


def load_policy(path: Path) -> tuple[Policy, str]:
    """The policy in a file, and the file's text."""
    policy = load_document(path, KIND, PolicyDocument).policy()
    return policy, path.read_text(encoding="utf-8")


def warnings(policy: Policy) -> list[str]:
    """What is allowed and probably not meant: rules that no pod can reach, pods that no rule matches."""
    found = []
    for number, rule in enumerate(policy.rules):
        if rule.match == Match() and rule.fallback is not Fallback.NEXT_RULE:
            hidden = [later.name for later in policy.rules[number + 1 :]]
            if hidden:
                found.append(f"rule {rule.name} matches every pod, so these are never reached: {', '.join(hidden)}")
            return found
    found.append("no rule matches every pod: pods that match none wait until the policy changes")
    return found


def _checked(check: Callable[[object, str], str], value: str) -> str:
    """Run one of the model's checks where pydantic expects ValueError."""
    try:
        return check(value, "")
    except InvalidInput as exc:
        raise ValueError(exc.text) from exc
