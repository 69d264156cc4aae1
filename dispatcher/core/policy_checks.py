"""What is allowed in a policy and probably not meant, in sentences: of the document alone, and of the cluster as it is."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from dispatcher.core.policy import Fallback, Match, Policy, Rule, Selector
from hoss.model.selectors import Requirement

# Every cluster has these.
BUILT_IN_PRIORITY_CLASSES = frozenset({"system-cluster-critical", "system-node-critical"})

_INSTEAD = {
    Fallback.WAIT: "its pods wait for one",
    Fallback.NEXT_RULE: "its pods go by the rules after it",
    Fallback.ANY_WORKER: "any worker gets its pods",
}

Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a policy is held against."""

    workers: Sequence[Labels] = ()  # that are registered
    nodes: Sequence[Labels] = ()
    resources: frozenset[str] = frozenset()  # that pods can ask some node for
    priority_classes: frozenset[str] = frozenset()  # that some pod has
    waiting: Mapping[str, int] = field(default_factory=dict)  # pods, by the rule that has no worker for them


def doubts(policy: Policy) -> list[str]:
    """What the document alone shows. Unreachable is judged rule against rule: one that several others cover only together
    is not found."""
    return [*chain.from_iterable(_doubts_of(policy, n) for n in range(len(policy.rules))), *_doubts_of_all(policy)]


def mismatches(policy: Policy, around: Surroundings) -> list[str]:
    """Where the policy and the cluster do not fit, as long as it lasts."""
    return list(chain.from_iterable(_mismatches_of(rule, around) for rule in policy.rules))


def covers(wider: Match, narrower: Match) -> bool:
    """Whether every pod that `narrower` matches is matched by `wider`. False where that cannot be told."""
    lists = (
        (wider.namespaces, narrower.namespaces),
        (wider.priority_class_names, narrower.priority_class_names),
        (wider.scheduler_names, narrower.scheduler_names),
        (wider.qos_classes, narrower.qos_classes),
        (wider.owner_kinds, narrower.owner_kinds),
        (wider.resources, narrower.resources),
    )
    low, high = wider.priority_min, wider.priority_max
    return (
        all(not wide or (bool(narrow) and wide >= narrow) for wide, narrow in lists)
        and (low is None or (narrower.priority_min is not None and narrower.priority_min >= low))
        and (high is None or (narrower.priority_max is not None and narrower.priority_max <= high))
        and all(_follows(requirement, narrower.labels) for requirement in wider.labels.requirements)
    )


def _doubts_of(policy: Policy, number: int) -> Iterator[str]:
    rule = policy.rules[number]
    deciding = (r for r in policy.rules[:number] if r.fallback is not Fallback.NEXT_RULE)
    hiding = next((earlier for earlier in deciding if covers(earlier.match, rule.match)), None)
    if hiding is not None:
        every = "every pod" if hiding.match == Match() else "every pod that it matches"
        yield f"rule {rule.name} is never reached: rule {hiding.name} before it matches {every}"
    for key in sorted({requirement.key for requirement in rule.match.labels.requirements}):
        if _contradictory([r for r in rule.match.labels.requirements if r.key == key]):
            yield f"rule {rule.name} matches no pod: no value of label {key} meets {rule.match.labels}"


def _doubts_of_all(policy: Policy) -> Iterator[str]:
    last = policy.rules[-1]
    if last.fallback is Fallback.NEXT_RULE:
        yield f"rule {last.name} is the last one, so its fallback NextRule is as good as Wait"
    if all(rule.match != Match() for rule in policy.rules):
        yield "no rule matches every pod: pods that match none wait until the policy changes"


def _mismatches_of(rule: Rule, around: Surroundings) -> Iterator[str]:
    if not any(rule.workers.matches(labels) for labels in around.workers):
        waiting = around.waiting.get(rule.name, 0)
        now = f" ({waiting:,} wait now)" if waiting else ""
        yield f"rule {rule.name}: no registered worker matches {rule.workers}; {_INSTEAD[rule.fallback]}{now}"
    if rule.nodes is not None and not any(rule.nodes.matches(labels) for labels in around.nodes):
        then = "its pods stay unschedulable" if rule.nodes.required else "it prefers none"
        yield f"rule {rule.name}: no node matches {rule.nodes}; {then}"
    for resource in sorted(rule.match.resources - around.resources):
        yield f"rule {rule.name}: no node offers the resource {resource}"
    for name in sorted(rule.match.priority_class_names - around.priority_classes - BUILT_IN_PRIORITY_CLASSES):
        yield f"rule {rule.name}: no pod here has the priority class {name}"


def _follows(wanted: Requirement, given: Selector) -> bool:
    """Whether labels that meet `given` meet `wanted`."""
    return any(_implies(requirement, wanted) for requirement in given.requirements if requirement.key == wanted.key)


def _implies(given: Requirement, wanted: Requirement) -> bool:
    match given.operator:
        case "In":
            return all(wanted.matches({given.key: value}) for value in given.values)
        case "DoesNotExist":
            return wanted.matches({})
        case "Gt" | "Lt" if wanted.operator == given.operator:
            have, want = int(given.values[0]), int(wanted.values[0])
            return have >= want if given.operator == "Gt" else have <= want
        case "NotIn" if wanted.operator == "NotIn":
            return set(wanted.values) <= set(given.values)
    return wanted.operator == "Exists" and given.operator in ("Exists", "Gt", "Lt")


def _contradictory(requirements: Sequence[Requirement]) -> bool:
    """Whether no label meets these requirements on one key. Told where one of them leaves few values to try."""
    key = requirements[0].key
    for requirement in requirements:
        if requirement.operator == "In":
            return not any(all(r.matches({key: value}) for r in requirements) for value in requirement.values)
        if requirement.operator == "DoesNotExist":
            return not all(r.matches({}) for r in requirements)
    return False
