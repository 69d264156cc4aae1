"""Which workers may have which pods.

A policy is an ordered list of rules. The first rule that matches a pod's template decides, unless no worker fits its
selector and its fallback says to go on. Matching is done once per template; what it yields is a *chain* of rules, and
templates with the same chain share a lane of the queue.
"""

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from dispatcher.core.tenants import DEFAULT_SHARING, Sharing
from hoss.model.fit import WHOLE_CARD_MILLI
from hoss.model.pod import PodSpec, PodTemplate
from hoss.model.resources import DEVICE_SHARE_RESOURCE
from hoss.model.selectors import Requirement

# Lanes of a consistently hashed chain: more spreads classes finer over workers, fewer keeps batches fuller.
HASH_BUCKETS = 64


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


@dataclass(frozen=True, slots=True)
class Balance:
    """`weight_label` names the worker label that holds its weight, for WeightedRoundRobin."""

    algorithm: Algorithm = Algorithm.LEAST_OUTSTANDING
    weight_label: str = "weight"


@dataclass(frozen=True, slots=True)
class Selector:
    """ANDed requirements on labels; none match everything."""

    requirements: tuple[Requirement, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether something with these labels is selected."""
        return all(requirement.matches(labels) for requirement in self.requirements)

    def __str__(self) -> str:
        return ",".join(_requirement_text(r) for r in self.requirements) or "any"


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

    def matches(self, template: PodTemplate) -> bool:
        """Whether the rule is about pods of this template."""
        spec = template.spec
        return (
            _among(spec.namespace, self.namespaces)
            and (self.priority_min is None or spec.priority >= self.priority_min)
            and (self.priority_max is None or spec.priority <= self.priority_max)
            and _among(template.priority_class_name, self.priority_class_names)
            and _among(template.scheduler_name, self.scheduler_names)
            and _among(template.qos_class.value, self.qos_classes)
            and _among(template.owner_kind or "Pod", self.owner_kinds)
            and (not self.resources or not self.resources.isdisjoint(_asked_resources(spec)))
            and self.labels.matches(dict(spec.labels))
        )


@dataclass(frozen=True, slots=True)
class Rule:
    """Pods that match go to workers that the selector matches, one of them chosen by the balance."""

    name: str
    match: Match = Match()
    workers: Selector = Selector()
    balance: Balance = Balance()
    fallback: Fallback = Fallback.WAIT


DEFAULT_RULE = Rule("default")


@dataclass(frozen=True, slots=True)
class Lane:
    """Templates that go the same way: the rules that apply to them in order, and a bucket where one of these hashes."""

    chain: tuple[int, ...]
    bucket: int = 0


@dataclass(frozen=True, slots=True)
class Policy:
    """Ordered rules. `version` grows with every replacement."""

    rules: tuple[Rule, ...] = (DEFAULT_RULE,)
    version: int = 1
    sharing: Sharing = DEFAULT_SHARING

    @property
    def sees_templates(self) -> bool:
        """Whether templates differ to it at all; if not, no template need be decoded."""
        return self.rules[:1] == () or self.rules[0].match != Match() or self.rules[0].fallback is Fallback.NEXT_RULE

    def lane(self, template: PodTemplate, spec: bytes) -> Lane:
        """The lane of a template whose class has the bytes `spec`."""
        chain = []
        for number, rule in enumerate(self.rules):
            if rule.match.matches(template):
                chain.append(number)
                if rule.fallback is not Fallback.NEXT_RULE:
                    break
        return self._lane(tuple(chain), spec)

    def lane_of_all(self, spec: bytes) -> Lane:
        """The lane of any template, where `sees_templates` is false."""
        return self._lane((0,), spec)

    def _lane(self, chain: tuple[int, ...], spec: bytes) -> Lane:
        hashes = any(self.rules[i].balance.algorithm is Algorithm.CONSISTENT_HASH for i in chain)
        # By content, not by class id: a class keeps its worker over a restart.
        return Lane(chain, zlib.crc32(spec) % HASH_BUCKETS if hashes else 0)


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


def _asked_resources(spec: PodSpec) -> Iterator[str]:
    yield from (name for name, amount in spec.requests if amount > 0)
    # A share of a card is no amount of the node and stands in no list of requests; policies still name it.
    if spec.devices is not None and spec.devices.milli < WHOLE_CARD_MILLI:
        yield DEVICE_SHARE_RESOURCE


def _among(value: str, allowed: frozenset[str]) -> bool:
    return not allowed or value in allowed


def _requirement_text(requirement: Requirement) -> str:
    """As kubectl writes it."""
    key, values = requirement.key, requirement.values
    match requirement.operator:
        case "Exists":
            return key
        case "DoesNotExist":
            return f"!{key}"
        case "In" if len(values) == 1:
            return f"{key}={values[0]}"
        case "Gt" | "Lt":
            return f"{key}{'>' if requirement.operator == 'Gt' else '<'}{values[0]}"
    return f"{key} {requirement.operator.lower()} ({','.join(values)})"
