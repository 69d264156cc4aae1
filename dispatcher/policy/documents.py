"""SchedulingPolicy documents: YAML in, the core's frozen rules out.

Selectors are written as in Kubernetes. The comments of fields are part of docs/reference/configuration.md.
"""

import re
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, field_validator, model_validator

from dispatcher.core.policy.rules import (
    Algorithm,
    Balance,
    ClassFacts,
    Fallback,
    Match,
    Policy,
    Rule,
    Selector,
    Sharing,
)
from hoss.config import Document, checked, parse_document
from hoss.manifests.fields import check_key, check_label_value, check_name
from hoss.model.conflicts import ConflictRule, Criteria
from hoss.model.pod import QosClass
from hoss.model.resources import DEVICE_SHARE_RESOURCE, WHOLE_CARD_MILLI
from hoss.model.selectors import NodeScope, Requirement
from hoss.v1 import common_pb2

_INTEGER = re.compile(r"[+-]?\d+")

_VALUES_OF_OPERATOR = {
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

    # Gt and Lt compare whole numbers. A label that is absent satisfies only NotIn and DoesNotExist.
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]

    # One or more for In and NotIn, one for Gt and Lt, none for the others.
    values: tuple[str, ...] = ()

    @field_validator("key")
    @classmethod
    def _valid_key(cls, key: str) -> str:
        return checked(check_key, key)

    @model_validator(mode="after")
    def _operator_fits_values(self) -> "Expression":
        values = _VALUES_OF_OPERATOR[self.operator]
        if values == "no values":
            fits = not self.values
        elif values == "one whole number":
            fits = len(self.values) == 1 and _INTEGER.fullmatch(self.values[0]) is not None
        else:
            fits = bool(self.values)
        if not fits:
            raise ValueError(f"operator {self.operator} takes {values}, not {list(self.values)}")
        for value in self.values:
            checked(check_label_value, value.lstrip("+-") if values == "one whole number" else value)
        return self


class LabelSelectorDocument(Document):
    """Requirements on labels. An empty selector matches everything."""

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


class PriorityRange(Document):
    """Priorities from `min` to `max`, both included; either may be left out."""

    # The lowest priority; no limit if left out.
    min: int | None = None

    # The highest priority; no limit if left out.
    max: int | None = None

    @model_validator(mode="after")
    def _not_empty(self) -> "PriorityRange":
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min {self.min} is above max {self.max}: no pod can match")
        return self


OwnerKind = Literal["Pod", "Job", "Deployment", "ReplicaSet", "StatefulSet"]


class MatchDocument(Document):
    """Which pods a rule matches: all given conditions must hold. Without conditions it matches every pod."""

    # The pod's labels.
    labels: LabelSelectorDocument = LabelSelectorDocument()

    # The pod is in one of these.
    namespaces: tuple[str, ...] = ()

    # The pod's priority.
    priority: PriorityRange = PriorityRange()

    # The pod's spec.priorityClassName is one of these.
    priorityClassNames: tuple[str, ...] = ()  # noqa: N815

    # The pod's spec.schedulerName is one of these.
    schedulerNames: tuple[str, ...] = ()  # noqa: N815

    # The pod's quality of service is one of these, computed as the kubelet does.
    qosClasses: tuple[QosClass, ...] = ()  # noqa: N815

    # The kind of the pod's owner is one of these. Pod: it has no owner.
    ownerKinds: tuple[OwnerKind, ...] = ()  # noqa: N815

    # The pod asks for at least one of these.
    resources: tuple[str, ...] = ()

    def match(self) -> Match:
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


_PARAMETERS = {
    "weightLabel": Algorithm.WEIGHTED_ROUND_ROBIN,
    "bound": Algorithm.CONSISTENT_HASH,
    "choices": Algorithm.POWER_OF_TWO_CHOICES,
}


class BalanceDocument(Document):
    """How one of the selected workers is chosen."""

    # LeastOutstanding: the one with the least estimated work in hand. PowerOfTwoChoices: the better of a few
    # drawn. WeightedRoundRobin: in turn, by weight. ConsistentHash: a class always to the same one, while
    # that is not overloaded. Random: any.
    algorithm: Algorithm = Algorithm.LEAST_OUTSTANDING

    # Of WeightedRoundRobin: the worker label that holds its weight; workers without it weigh 1.
    weightLabel: str = "weight"  # noqa: N815

    # Of ConsistentHash: how many times its share a worker may have before its classes go to the next one.
    bound: float = Field(default=1.25, ge=1, le=100, allow_inf_nan=False)

    # Of PowerOfTwoChoices: how many workers are drawn, of which the least loaded is taken.
    choices: int = Field(default=2, ge=2, le=8)

    @field_validator("weightLabel")
    @classmethod
    def _valid_key(cls, key: str) -> str:
        return checked(check_key, key)

    @model_validator(mode="after")
    def _parameters_fit(self) -> "BalanceDocument":
        for name in sorted(self.model_fields_set & _PARAMETERS.keys()):
            if _PARAMETERS[name] is not self.algorithm:
                raise ValueError(
                    f"{name} is a parameter of {_PARAMETERS[name].value}, not of {self.algorithm.value}"
                )
        return self

    def balance(self) -> Balance:
        return Balance(self.algorithm, self.weightLabel, self.bound, self.choices)


class NodesDocument(LabelSelectorDocument):
    """The nodes for a rule's pods: only these (Hard), or these first (Soft)."""

    # Hard: on these nodes and no others. Soft: on these first.
    partition: Literal["Hard", "Soft"] = "Hard"

    @model_validator(mode="after")
    def _selects(self) -> "NodesDocument":
        if not self.matchLabels and not self.matchExpressions:
            raise ValueError("selects every node; give matchLabels or matchExpressions, or leave nodes out")
        return self

    def scope(self, rule: str) -> NodeScope:
        """As the core has it, for the rule of that name."""
        return NodeScope(rule, self.selector().requirements, required=self.partition == "Hard")


class DisplaceDocument(Document):
    """Unconfirmed reservations are preempted by a pod whose priority is higher by at least
    `minPriorityGap`."""

    # The smallest difference between the priorities.
    minPriorityGap: int = Field(ge=1, le=2**31 - 1)  # noqa: N815


class ConflictsDocument(Document):
    """How the ledger decides between workers that want the same room."""

    # What refuses a pod. Fit: it no longer fits. Version: also any change of the node by others since the
    # worker's view. Strict: also any change of the node's labels, taints, cordon or allocatable.
    criteria: Literal["Fit", "Version", "Strict"] = "Fit"

    # AllOrNothing: the pods of one class that a worker proposes together are reserved together, or none of
    # them is.
    commit: Literal["Incremental", "AllOrNothing"] = "Incremental"

    # Left out: no reservation is preempted.
    displace: DisplaceDocument | None = None

    @model_validator(mode="after")
    def _fits_together(self) -> "ConflictsDocument":
        if self.displace is not None and self.commit == "AllOrNothing":
            raise ValueError(
                "displace is for pods that are reserved one by one; leave it out, or commit: Incremental"
            )
        return self

    def rule(self) -> ConflictRule:
        return ConflictRule(
            Criteria[self.criteria.upper()],
            all_or_nothing=self.commit == "AllOrNothing",
            displace_gap=self.displace.minPriorityGap if self.displace is not None else 0,
        )


class RuleDocument(Document):
    """Pods that match go to workers that are selected, to be placed on nodes that are selected."""

    # Unique in the policy; reasons, `hoss policy test` and `hoss describe` name it.
    name: str = Field(min_length=1, max_length=253)

    # Which pods.
    match: MatchDocument = MatchDocument()

    # Which workers may have them, by the labels that workers register with.
    workers: LabelSelectorDocument = LabelSelectorDocument()

    # Which one of these gets a pod.
    balance: BalanceDocument = BalanceDocument()

    # While no such worker is registered, the pods wait, follow the next rule that matches, or go to any
    # worker.
    fallback: Fallback = Fallback.WAIT

    # Which nodes; left out: all.
    nodes: NodesDocument | None = None

    # How the ledger decides between workers that want the same room for them.
    conflicts: ConflictsDocument = ConflictsDocument()

    def rule(self) -> Rule:
        return Rule(
            name=self.name,
            match=self.match.match(),
            workers=self.workers.selector(),
            balance=self.balance.balance(),
            fallback=self.fallback,
            nodes=self.nodes.scope(self.name) if self.nodes is not None else None,
            conflicts=self.conflicts.rule(),
        )


# Beyond this, shares differ by more than an integer of pods can express in any cluster.
_MAX_WEIGHT = 1_000_000

Priority = Annotated[int, Field(ge=-(2**31), lt=2**31)]
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

    # The weight of all other tenants.
    defaultWeight: Weight = 1.0  # noqa: N815 - Kubernetes' spelling

    # By tenant: the highest priority that a client limited to it (view, submit with a tenant) may give its
    # pods. Other clients may give any. What a PriorityClass that is the globalDefault stands for may be given
    # always.
    maxPriority: dict[str, Priority] = Field(default_factory=dict)  # noqa: N815 - as above

    # That of all other tenants.
    defaultMaxPriority: Priority = 0  # noqa: N815 - as above

    def sharing(self) -> Sharing:
        label = self.by.label if isinstance(self.by, ByLabel) else ""
        return Sharing(
            label, dict(self.weights), self.defaultWeight, dict(self.maxPriority), self.defaultMaxPriority
        )


KIND = "SchedulingPolicy"

DEFAULT_YAML = """\
apiVersion: hoss.dev/v1alpha1
kind: SchedulingPolicy
metadata: {name: default}
rules:
  - name: default
    balance: {algorithm: LeastOutstanding}
    fallback: Wait
"""

# A document with more rules is a mistake.
MAX_RULES = 1000


class Metadata(Document):
    """Kubernetes' metadata, of which only the name is read."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    # What `hoss policy get` and `hoss status` call it.
    name: str = "default"

    @field_validator("name")
    @classmethod
    def _valid_name(cls, name: str) -> str:
        return checked(check_name, name)


class PolicyDocument(Document):
    """Ordered rules: the first that matches a pod decides."""

    # Kubernetes' metadata.
    metadata: Metadata = Metadata()

    # In order. Pods that none matches wait, with that as the reason.
    rules: tuple[RuleDocument, ...] = Field(min_length=1, max_length=MAX_RULES)

    # Who shares the queue with whom.
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
        return Policy(
            tuple(rule.rule() for rule in self.rules), name=self.metadata.name, sharing=self.tenants.sharing()
        )


def parse_policy(text: str, *, where: str = "policy") -> Policy:
    """Read a SchedulingPolicy. Raises ConfigError naming the field's path, the value, and what would be
    right."""
    return parse_document(text, KIND, PolicyDocument, where=where).policy()


_read = common_pb2.PodSpec.FromString


def facts_from_bytes(spec: bytes) -> ClassFacts:
    """What policies match on, same as `facts_of_spec` of the decoded class, in a third of the time."""
    message = _read(spec)
    resources = [amount.resource for amount in message.requests if amount.amount > 0]
    if message.HasField("devices") and message.devices.milli < WHOLE_CARD_MILLI:
        resources.append(DEVICE_SHARE_RESOURCE)
    labels = {label.key: label.value for label in message.labels}
    return message.namespace, labels, message.priority, tuple(resources)
