"""One rule of a SchedulingPolicy document: which pods, which workers, which nodes, and how conflicts are decided."""

from typing import Literal

from pydantic import Field, field_validator, model_validator

from dispatcher.core.policy import Algorithm, Balance, Fallback, Match, Rule
from dispatcher.selector_document import LabelSelector
from hoss.config import Document, checked
from hoss.model.conflicts import ConflictRule, Criteria
from hoss.model.names import check_key
from hoss.model.pod import QosClass
from hoss.model.selectors import NodeScope


class PriorityRange(Document):
    """Priorities from `min` to `max`, both included; either may be left out."""

    # The least; left out: no limit.
    min: int | None = None

    # The most; left out: no limit.
    max: int | None = None

    @model_validator(mode="after")
    def _not_empty(self) -> "PriorityRange":
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min {self.min} is above max {self.max}: no pod can match")
        return self


class MatchDocument(Document):
    """Which pods a rule is about: all that is given must agree; nothing given matches every pod."""

    # The pod's labels.
    labels: LabelSelector = LabelSelector()

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

    # What made the pod is one of these; Pod: nothing did.
    ownerKinds: tuple[Literal["Pod", "Job", "Deployment", "ReplicaSet", "StatefulSet"], ...] = ()  # noqa: N815

    # The pod asks for at least one of these.
    resources: tuple[str, ...] = ()

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


_PARAMETERS = {
    "weightLabel": Algorithm.WEIGHTED_ROUND_ROBIN,
    "bound": Algorithm.CONSISTENT_HASH,
    "choices": Algorithm.POWER_OF_TWO_CHOICES,
}


class BalanceDocument(Document):
    """How one of the workers that fit is chosen."""

    # LeastOutstanding: the one with the least estimated work in hand. PowerOfTwoChoices: the better of a few drawn. WeightedRoundRobin: in
    # turn, by weight. ConsistentHash: a class always to the same one, while that is not overloaded. Random: any.
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
                raise ValueError(f"{name} is a parameter of {_PARAMETERS[name].value}, not of {self.algorithm.value}")
        return self

    def balance(self) -> Balance:
        """As the core has it."""
        return Balance(self.algorithm, self.weightLabel, self.bound, self.choices)


class NodesDocument(LabelSelector):
    """The nodes that a rule's pods are placed on: on no others (Hard), or rather than on others (Soft)."""

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
    """Reservations that nobody has confirmed yet go for a pod whose priority is higher by `minPriorityGap` or more."""

    # By so much the priority has to be higher.
    minPriorityGap: int = Field(ge=1, le=2**31 - 1)  # noqa: N815


class ConflictsDocument(Document):
    """How the ledger decides between workers that want the same room."""

    # Fit: what no longer fits. Version: also any change of the node by others since the worker looked. Strict: also any change of what the
    # node is, labels, taints, cordon or allocatable.
    criteria: Literal["Fit", "Version", "Strict"] = "Fit"

    # AllOrNothing: the pods of one class that a worker proposes together are reserved together, or none of them is.
    commit: Literal["Incremental", "AllOrNothing"] = "Incremental"

    # Left out: no reservation goes for another pod.
    displace: DisplaceDocument | None = None

    @model_validator(mode="after")
    def _fits_together(self) -> "ConflictsDocument":
        if self.displace is not None and self.commit == "AllOrNothing":
            raise ValueError("displace is for pods that are reserved one by one; leave it out, or commit: Incremental")
        return self

    def rule(self) -> ConflictRule:
        """As the core has it."""
        return ConflictRule(
            Criteria[self.criteria.upper()],
            all_or_nothing=self.commit == "AllOrNothing",
            displace_gap=self.displace.minPriorityGap if self.displace is not None else 0,
        )


class RuleDocument(Document):
    """Pods that match go to workers that are selected, to be placed on nodes that are selected."""

    # Unique in the policy; reasons, `hoss policy test` and `hoss describe` name it.
    name: str = Field(min_length=1)

    # Which pods.
    match: MatchDocument = MatchDocument()

    # Which workers may have them, by the labels that workers register with.
    workers: LabelSelector = LabelSelector()

    # Which one of these gets a pod.
    balance: BalanceDocument = BalanceDocument()

    # While no such worker is registered the pods wait, go on to the next rule that matches them, or go to any worker.
    fallback: Fallback = Fallback.WAIT

    # Which nodes; left out: all.
    nodes: NodesDocument | None = None

    # How the ledger decides between workers that want the same room for them.
    conflicts: ConflictsDocument = ConflictsDocument()

    def rule(self) -> Rule:
        """As the core has it."""
        return Rule(
            name=self.name,
            match=self.match.match(),
            workers=self.workers.selector(),
            balance=self.balance.balance(),
            fallback=self.fallback,
            nodes=self.nodes.scope(self.name) if self.nodes is not None else None,
            conflicts=self.conflicts.rule(),
        )
