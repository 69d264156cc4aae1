"""A policy: which workers may have which pods, and how pods are shared between tenants.

A policy is an ordered list of rules. The first rule that matches a pod's template decides, unless no worker
fits its selector and its fallback says to go on. Matching is done once per template and yields a *chain* of
rules. Templates with the same chain share a sub-queue."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from hoss.model.conflicts import DEFAULT_CONFLICT_RULE, ConflictRule
from hoss.model.pod import PodSpec, PodTemplate
from hoss.model.resources import DEVICE_SHARE_RESOURCE, WHOLE_CARD_MILLI
from hoss.model.selectors import NodeScope, Requirement


@dataclass(frozen=True, slots=True)
class Sharing:
    """How pods are assigned to tenants: by namespace, or by the value of the label `label`, "" for pods
    without it."""

    label: str = ""
    weights: Mapping[str, float] = field(default_factory=dict)
    default_weight: float = 1.0
    max_priorities: Mapping[str, int] = field(default_factory=dict)
    default_max_priority: int = 0

    def weight(self, tenant: str) -> float:
        """A tenant of weight 3 may hold three times as much as one of weight 1. Always positive."""
        return self.weights.get(tenant, self.default_weight)

    def max_priority(self, tenant: str) -> int:
        """The highest priority that a client limited to this tenant may give its pods. Priority comes before
        fairness, and preempts, so a tenant without a limit could take everybody's place."""
        return self.max_priorities.get(tenant, self.default_max_priority)


DEFAULT_SHARING = Sharing()


class Fallback(str, Enum):
    """What happens to a rule's pods while no worker matches its selector."""

    WAIT = "Wait"
    NEXT_RULE = "NextRule"
    ANY_WORKER = "AnyWorker"


class Algorithm(str, Enum):
    """How one of several fitting workers is chosen."""

    LEAST_OUTSTANDING = "LeastOutstanding"
    POWER_OF_TWO_CHOICES = "PowerOfTwoChoices"
    WEIGHTED_ROUND_ROBIN = "WeightedRoundRobin"
    CONSISTENT_HASH = "ConsistentHash"
    RANDOM = "Random"


@dataclass(frozen=True, slots=True)
class Balance:
    """`weight_label` names the worker label with its weight, for WeightedRoundRobin."""

    algorithm: Algorithm = Algorithm.LEAST_OUTSTANDING
    weight_label: str = "weight"
    bound: float = 1.25  # ConsistentHash: a worker with more than this times its share is passed over
    choices: int = 2  # PowerOfTwoChoices: how many workers are drawn


@dataclass(frozen=True, slots=True)
class Selector:
    """ANDed requirements on labels; without requirements it matches everything."""

    requirements: tuple[Requirement, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        return all(requirement.matches(labels) for requirement in self.requirements)

    def __str__(self) -> str:
        return ",".join(map(str, self.requirements)) or "any"


ClassFacts = tuple[str, Mapping[str, str], int, tuple[str, ...]]  # the first four fields of Facts


class Facts(NamedTuple):
    """What rules match on. All of it is in a template; the first four fields are in its class."""

    namespace: str
    labels: Mapping[str, str]
    priority: int
    resources: tuple[str, ...]  # requested by the pod
    priority_class_name: str = ""
    scheduler_name: str = ""
    qos_class: str = ""
    owner_kind: str = ""  # "": a bare pod


def facts_of(template: PodTemplate) -> Facts:
    return Facts(
        *facts_of_spec(template.spec),
        template.priority_class_name,
        template.scheduler_name,
        template.qos_class.value,
        template.owner_kind,
    )


def facts_of_spec(spec: PodSpec) -> ClassFacts:
    """The facts in a class."""
    resources = [name for name, amount in spec.requests if amount > 0]
    # A share of a card is not in the list of requests, but policies name it as a resource.
    if spec.devices is not None and spec.devices.milli < WHOLE_CARD_MILLI:
        resources.append(DEVICE_SHARE_RESOURCE)
    return spec.namespace, dict(spec.labels), spec.priority, tuple(resources)


@dataclass(frozen=True, slots=True)
class Match:
    """Which templates a rule is about. Every given field must match; an empty field always does."""

    labels: Selector = Selector()
    namespaces: frozenset[str] = frozenset()
    priority_min: int | None = None
    priority_max: int | None = None
    priority_class_names: frozenset[str] = frozenset()
    scheduler_names: frozenset[str] = frozenset()
    qos_classes: frozenset[str] = frozenset()
    owner_kinds: frozenset[str] = frozenset()  # "" or "Pod": bare pods
    resources: frozenset[str] = frozenset()  # the pod requests one of these

    def matches(self, facts: Facts) -> bool:
        """Whether these facts match. `RuleIndex` gives the same result for all rules at once."""
        return not self.mismatch(facts)

    def mismatch(self, facts: Facts) -> str:
        """The first field that does not match and why, for people; "" if all match."""
        return next(self._mismatches(facts), "")

    def _mismatches(self, facts: Facts) -> Iterator[str]:
        for name, value, allowed in (
            ("namespaces", facts.namespace, self.namespaces),
            ("schedulerNames", facts.scheduler_name, self.scheduler_names),
            ("priorityClassNames", facts.priority_class_name, self.priority_class_names),
            ("qosClasses", facts.qos_class, self.qos_classes),
            ("ownerKinds", facts.owner_kind or "Pod", self.owner_kinds),
        ):
            if allowed and value not in allowed:
                yield f"{name}: {value or 'none given'} is not {_one_of(allowed)}"
        if self.priority_min is not None and facts.priority < self.priority_min:
            yield f"priority: {facts.priority} is below {self.priority_min}"
        if self.priority_max is not None and facts.priority > self.priority_max:
            yield f"priority: {facts.priority} is above {self.priority_max}"
        if self.resources and self.resources.isdisjoint(facts.resources):
            requested = ", ".join(facts.resources) or "none"
            yield f"resources: it asks for {requested}, not for {_one_of(self.resources)}"
        yield from (f"labels: not {r}" for r in self.labels.requirements if not r.matches(facts.labels))


@dataclass(frozen=True, slots=True)
class Rule:
    """Matching pods go to workers that the selector matches; the balance chooses one of them."""

    name: str
    match: Match = Match()
    workers: Selector = Selector()
    balance: Balance = Balance()
    fallback: Fallback = Fallback.WAIT
    nodes: NodeScope | None = None  # None: all nodes
    conflicts: ConflictRule = DEFAULT_CONFLICT_RULE


DEFAULT_RULE = Rule("default")


@dataclass(frozen=True, slots=True)
class SubQueue:
    """Templates with the same route: the rules that apply to them in order, and a hash bucket where one of
    these rules hashes."""

    chain: tuple[int, ...]
    bucket: int = 0


@dataclass(frozen=True, slots=True)
class Policy:
    """Ordered rules. `version` grows with every replacement, also over restarts."""

    rules: tuple[Rule, ...] = (DEFAULT_RULE,)
    version: int = 1
    sharing: Sharing = DEFAULT_SHARING
    name: str = "default"

    @property
    def sees_templates(self) -> bool:
        """Whether the policy distinguishes templates at all. If not, no template is decoded."""
        return (
            self.rules[:1] == ()
            or self.rules[0].match != Match()
            or self.rules[0].fallback is Fallback.NEXT_RULE
        )


@dataclass(frozen=True, slots=True)
class Target:
    """Where a sub-queue's pods may go: positions in the given list of workers and the deciding rule, or why
    nowhere."""

    rule: int | None
    workers: tuple[int, ...]
    problem: str = ""


def target(policy: Policy, sub_queue: SubQueue, workers: Sequence[Mapping[str, str]]) -> Target:
    """Resolve a sub-queue over the labels of the living workers. Load is considered later."""
    if not sub_queue.chain:
        return Target(None, (), "no rule of the policy matches")
    for number in sub_queue.chain:
        rule = policy.rules[number]
        chosen = tuple(i for i, labels in enumerate(workers) if rule.workers.matches(labels))
        if chosen:
            return Target(number, chosen)
        if rule.fallback is Fallback.ANY_WORKER and workers:
            return Target(number, tuple(range(len(workers))))
    rule = policy.rules[sub_queue.chain[-1]]
    if not workers:
        return Target(sub_queue.chain[-1], (), "no worker is registered")
    return Target(sub_queue.chain[-1], (), f"no registered worker matches rule {rule.name}: {rule.workers}")


def _one_of(allowed: frozenset[str]) -> str:
    return " or ".join(sorted(allowed))
