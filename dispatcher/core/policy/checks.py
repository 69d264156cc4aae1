"""Warnings about a policy, in sentences: what is allowed but probably not intended, in the document alone and
in the present cluster."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from dispatcher.core.policy.rules import Fallback, Match, Policy, Rule, Selector
from hoss.model.selectors import Requirement

# Every cluster has these classes.
BUILT_IN_PRIORITY_CLASSES = frozenset({"system-cluster-critical", "system-node-critical"})

_INSTEAD = {
    Fallback.WAIT: "its pods wait for one",
    Fallback.NEXT_RULE: "its pods go by the rules after it",
    Fallback.ANY_WORKER: "any worker gets its pods",
}

Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class PolicyContext:
    """The cluster that a policy is compared with."""

    workers: Sequence[Labels] = ()  # registered
    nodes: Sequence[Labels] = ()
    resources: frozenset[str] = frozenset()  # that some node offers
    priority_classes: frozenset[str] = frozenset()  # of existing pods
    waiting: Mapping[str, int] = field(default_factory=dict)  # pods, by the rule without a worker for them


def document_warnings(policy: Policy) -> list[str]:
    """Warnings that follow from the document alone. A rule counts as unreachable only if one single rule
    covers it, not several together."""
    return [
        *chain.from_iterable(_rule_warnings(policy, n) for n in range(len(policy.rules))),
        *_policy_warnings(policy),
    ]


def cluster_warnings(policy: Policy, context: PolicyContext) -> list[str]:
    """Where the policy and the present cluster do not fit together."""
    return list(chain.from_iterable(_cluster_warnings(rule, context) for rule in policy.rules))


def covers(wider: Match, narrower: Match) -> bool:
    """Whether `wider` matches every pod that `narrower` matches. False where that is undecided."""
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


def _rule_warnings(policy: Policy, number: int) -> Iterator[str]:
    rule = policy.rules[number]
    deciding = (r for r in policy.rules[:number] if r.fallback is not Fallback.NEXT_RULE)
    shadowing = next((earlier for earlier in deciding if covers(earlier.match, rule.match)), None)
    if shadowing is not None:
        every = "every pod" if shadowing.match == Match() else "every pod that it matches"
        yield f"rule {rule.name} is never reached: rule {shadowing.name} before it matches {every}"
    for key in sorted({requirement.key for requirement in rule.match.labels.requirements}):
        if _contradictory([r for r in rule.match.labels.requirements if r.key == key]):
            yield f"rule {rule.name} matches no pod: no value of label {key} meets {rule.match.labels}"


def _policy_warnings(policy: Policy) -> Iterator[str]:
    last = policy.rules[-1]
    if last.fallback is Fallback.NEXT_RULE:
        yield f"rule {last.name} is the last one, so its fallback NextRule is as good as Wait"
    if all(rule.match != Match() for rule in policy.rules):
        yield "no rule matches every pod: pods that match none wait until the policy changes"


def _cluster_warnings(rule: Rule, context: PolicyContext) -> Iterator[str]:
    if not any(rule.workers.matches(labels) for labels in context.workers):
        waiting = context.waiting.get(rule.name, 0)
        now = f" ({waiting:,} wait now)" if waiting else ""
        yield f"rule {rule.name}: no registered worker matches {rule.workers}; {_INSTEAD[rule.fallback]}{now}"
    if rule.nodes is not None and not any(rule.nodes.matches(labels) for labels in context.nodes):
        then = "its pods stay unschedulable" if rule.nodes.required else "it prefers none"
        yield f"rule {rule.name}: no node matches {rule.nodes}; {then}"
    for resource in sorted(rule.match.resources - context.resources):
        yield f"rule {rule.name}: no node offers the resource {resource}"
    for name in sorted(
        rule.match.priority_class_names - context.priority_classes - BUILT_IN_PRIORITY_CLASSES
    ):
        yield f"rule {rule.name}: no pod here has the priority class {name}"


def _follows(required: Requirement, given: Selector) -> bool:
    """Whether labels that meet `given` always meet `required`."""
    return any(
        _implies(requirement, required)
        for requirement in given.requirements
        if requirement.key == required.key
    )


def _implies(given: Requirement, required: Requirement) -> bool:
    match given.operator:
        case "In":
            return all(required.matches({given.key: value}) for value in given.values)
        case "DoesNotExist":
            return required.matches({})
        case "Gt" | "Lt" if required.operator == given.operator:
            have, want = int(given.values[0]), int(required.values[0])
            return have >= want if given.operator == "Gt" else have <= want
        case "NotIn" if required.operator == "NotIn":
            return set(required.values) <= set(given.values)
    return required.operator == "Exists" and given.operator in ("Exists", "Gt", "Lt")


def _contradictory(requirements: Sequence[Requirement]) -> bool:
    """Whether no label value meets all these requirements on one key. Decided only where one of them leaves
    few values."""
    key = requirements[0].key
    for requirement in requirements:
        if requirement.operator == "In":
            return not any(all(r.matches({key: value}) for r in requirements) for value in requirement.values)
        if requirement.operator == "DoesNotExist":
            return not all(r.matches({}) for r in requirements)
    return False
