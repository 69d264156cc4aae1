"""Which workers may have which pods.

A policy is an ordered list of rules. The first rule that matches a pod's template decides, unless no worker fits its
selector and its fallback says to go on. Matching is done once per template; what it yields is a *chain* of rules, and
templates with the same chain share a lane of the queue.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from dispatcher.core.sharing import DEFAULT_SHARING, Sharing
from hoss.model.conflicts import DEFAULT_CONFLICT_RULE, ConflictRule
from hoss.model.fit import WHOLE_CARD_MILLI
from hoss.model.pod import PodSpec, PodTemplate
from hoss.model.resources import DEVICE_SHARE_RESOURCE
from hoss.model.selectors import NodeScope, Requirement


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
    """`weight_label` names the worker label that holds its weight, for WeightedRoundRobin."""

    algorithm: Algorithm = Algorithm.LEAST_OUTSTANDING
    weight_label: str = "weight"
    bound: float = 1.25  # of ConsistentHash: how many times its share a worker may have before others get its classes
    choices: int = 2  # of PowerOfTwoChoices: how many workers are drawn


@dataclass(frozen=True, slots=True)
class Selector:
    """ANDed requirements on labels; none match everything."""

    requirements: tuple[Requirement, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether something with these labels is selected."""
        return all(requirement.matches(labels) for requirement in self.requirements)

    def __str__(self) -> str:
        return ",".join(map(str, self.requirements)) or "any"


ClassFacts = tuple[str, Mapping[str, str], int, tuple[str, ...]]  # the first four of Facts


class Facts(NamedTuple):
    """What rules match on: all of it lies in a template, and the first four in its class."""

    namespace: str
    labels: Mapping[str, str]
    priority: int
    resources: tuple[str, ...]  # that the pod asks for
    priority_class_name: str = ""
    scheduler_name: str = ""
    qos_class: str = ""
    owner_kind: str = ""  # empty: a bare pod


def facts_of(template: PodTemplate) -> Facts:
    """The facts of a template."""
    return Facts(
        *facts_of_spec(template.spec),
        template.priority_class_name,
        template.scheduler_name,
        template.qos_class.value,
        template.owner_kind,
    )


def facts_of_spec(spec: PodSpec) -> ClassFacts:
    """Those facts that are the class's own."""
    resources = [name for name, amount in spec.requests if amount > 0]
    # A share of a card is no amount of the node and stands in no list of requests; policies still name it.
    if spec.devices is not None and spec.devices.milli < WHOLE_CARD_MILLI:
        resources.append(DEVICE_SHARE_RESOURCE)
    return spec.namespace, dict(spec.labels), spec.priority, tuple(resources)


@dataclass(frozen=True, slots=True)
class Match:
    """Which templates a rule is about. Every field given must agree; an empty one always does."""

    labels: Selector = Selector()
    namespaces: frozenset[str] = frozenset()
    priority_min: int | None = None
    priority_max: int | None = None
    priority_class_names: frozenset[str] = frozenset()
    scheduler_names: frozenset[str] = frozenset()
    qos_classes: frozenset[str] = frozenset()
    owner_kinds: frozenset[str] = frozenset()  # "" or "Pod": bare pods
    resources: frozenset[str] = frozenset()  # the pod asks for one of these

    def matches(self, facts: Facts) -> bool:
        """Whether the rule is about pods of which these facts hold. `RuleIndex` says the same for all rules at once."""
        return not self.mismatch(facts)

    def mismatch(self, facts: Facts) -> str:
        """The first field that disagrees and how, for people; empty if all agree."""
        return next(self._mismatches(facts), "")

    def _mismatches(self, facts: Facts) -> Iterator[str]:
        for field, value, allowed in (
            ("namespaces", facts.namespace, self.namespaces),
            ("schedulerNames", facts.scheduler_name, self.scheduler_names),
            ("priorityClassNames", facts.priority_class_name, self.priority_class_names),
            ("qosClasses", facts.qos_class, self.qos_classes),
            ("ownerKinds", facts.owner_kind or "Pod", self.owner_kinds),
        ):
            if allowed and value not in allowed:
                yield f"{field}: {value or 'none given'} is not {_one_of(allowed)}"
        if self.priority_min is not None and facts.priority < self.priority_min:
            yield f"priority: {facts.priority} is below {self.priority_min}"
        if self.priority_max is not None and facts.priority > self.priority_max:
            yield f"priority: {facts.priority} is above {self.priority_max}"
        if self.resources and self.resources.isdisjoint(facts.resources):
            yield f"resources: it asks for {', '.join(facts.resources) or 'none'}, not for {_one_of(self.resources)}"
        yield from (f"labels: not {r}" for r in self.labels.requirements if not r.matches(facts.labels))


@dataclass(frozen=True, slots=True)
class Rule:
    """Pods that match go to workers that the selector matches, one of them chosen by the balance."""

    name: str
    match: Match = Match()
    workers: Selector = Selector()
    balance: Balance = Balance()
    fallback: Fallback = Fallback.WAIT
    nodes: NodeScope | None = None  # None: all of them
    conflicts: ConflictRule = DEFAULT_CONFLICT_RULE


DEFAULT_RULE = Rule("default")


@dataclass(frozen=True, slots=True)
class Lane:
    """Templates that go the same way: the rules that apply to them in order, and a bucket where one of these hashes."""

    chain: tuple[int, ...]
    bucket: int = 0


@dataclass(frozen=True, slots=True)
class Policy:
    """Ordered rules. `version` grows with every replacement, over restarts too."""

    rules: tuple[Rule, ...] = (DEFAULT_RULE,)
    version: int = 1
    sharing: Sharing = DEFAULT_SHARING
    name: str = "default"

    @property
    def sees_templates(self) -> bool:
        """Whether templates differ to it at all; if not, no template need be decoded."""
        return self.rules[:1] == () or self.rules[0].match != Match() or self.rules[0].fallback is Fallback.NEXT_RULE


@dataclass(frozen=True, slots=True)
class Target:
    """Where a lane's pods may go now: positions in the worker list given, by which rule, or why nowhere."""

    rule: int | None
    workers: tuple[int, ...]
    problem: str = ""


def target(policy: Policy, lane: Lane, workers: Sequence[Mapping[str, str]]) -> Target:
    """Resolve a lane over the living workers' labels: selectors first; load comes later."""
    if not lane.chain:
        return Target(None, (), "no rule of the policy matches")
    for number in lane.chain:
        rule = policy.rules[number]
        chosen = tuple(i for i, labels in enumerate(workers) if rule.workers.matches(labels))
        if chosen:
            return Target(number, chosen)
        if rule.fallback is Fallback.ANY_WORKER and workers:
            return Target(number, tuple(range(len(workers))))
    rule = policy.rules[lane.chain[-1]]
    if not workers:
        return Target(lane.chain[-1], (), "no worker is registered")
    return Target(lane.chain[-1], (), f"no registered worker matches rule {rule.name}: {rule.workers}")


def _one_of(allowed: frozenset[str]) -> str:
    return " or ".join(sorted(allowed))
