"""A policy's rules, compiled, so that matching a class takes a few microseconds however many rules there are.

A set of rules is an integer with one bit per rule. For every condition there is a table from a pod's value to
the rules that accept it; the matching rules are the intersection. The result equals `Match.matches` of each
rule."""

import zlib
from bisect import bisect_left
from collections.abc import Callable, Iterable
from functools import partial

from dispatcher.core.policy.rules import Algorithm, Facts, Fallback, Policy, Rule, SubQueue

# Sub-queues of a consistently hashed chain: more spread classes finer over workers, fewer keep batches
# fuller.
HASH_BUCKETS = 64

# Cached results per set of labels. Pods of one cluster have few distinct sets of the labels that rules use.
_KEPT_KEY_SETS = 1024
_KEPT_VALUES = 1024

RuleSet = int  # bit i is rule i


class RuleIndex:
    """Finds the sub-queue of a template. Built once per policy."""

    def __init__(self, policy: Policy) -> None:
        rules = policy.rules
        self._all: RuleSet = (1 << len(rules)) - 1
        self._namespaces = _Accepting(rules, lambda rule: rule.match.namespaces)
        self._scheduler_names = _Accepting(rules, lambda rule: rule.match.scheduler_names)
        self._priority_classes = _Accepting(rules, lambda rule: rule.match.priority_class_names)
        self._qos_classes = _Accepting(rules, lambda rule: rule.match.qos_classes)
        self._owner_kinds = _Accepting(rules, lambda rule: rule.match.owner_kinds)
        self._resources = _Accepting(rules, lambda rule: rule.match.resources)
        self._priorities = _Priorities(rules)
        self._labels = _Labels(rules)
        self._deciding = _rules_where(rules, lambda rule: rule.fallback is not Fallback.NEXT_RULE)
        self._hashing = _rules_where(rules, lambda rule: rule.balance.algorithm is Algorithm.CONSISTENT_HASH)
        self._chains: dict[RuleSet, tuple[int, ...]] = {}

    def matching(self, facts: Facts) -> RuleSet:
        """The rules that match a pod with these facts."""
        found = (
            self._namespaces.of(facts.namespace)
            & self._scheduler_names.of(facts.scheduler_name)
            & self._priority_classes.of(facts.priority_class_name)
            & self._qos_classes.of(facts.qos_class)
            & self._owner_kinds.of(facts.owner_kind or "Pod")
            & self._priorities.of(facts.priority)
        )
        found &= self._resources.of_any(facts.resources)
        return found & self._labels.of(facts) if found else found

    def sub_queue(self, facts: Facts, spec: bytes) -> SubQueue:
        """The sub-queue of a template whose class has the bytes `spec`: the matching rules up to the first
        that decides."""
        found = self.matching(facts)
        deciding = found & self._deciding
        if deciding:
            first = deciding & -deciding
            found &= 2 * first - 1
        return self._sub_queue(found, spec)

    def sub_queue_of_all(self, spec: bytes) -> SubQueue:
        """The sub-queue of any template, for a policy whose `sees_templates` is false."""
        return self._sub_queue(1, spec)

    def _sub_queue(self, found: RuleSet, spec: bytes) -> SubQueue:
        chain = self._chains.get(found)
        if chain is None:
            chain = self._chains[found] = _numbers(found)
        # Hash the content, not the class id: a class keeps its worker over a restart.
        return SubQueue(chain, zlib.crc32(spec) % HASH_BUCKETS if found & self._hashing else 0)


class _Accepting:
    """Rules by the values that one of their conditions lists. A rule that lists none accepts every value."""

    def __init__(self, rules: tuple[Rule, ...], listed: Callable[[Rule], frozenset[str]]) -> None:
        self._indifferent = _rules_where(rules, lambda rule: not listed(rule))
        values = {value for rule in rules for value in listed(rule)}
        self._by_value = {
            value: self._indifferent | _rules_where(rules, partial(_lists, listed, value)) for value in values
        }

    def of(self, value: str) -> RuleSet:
        return self._by_value.get(value, self._indifferent)

    def of_any(self, values: Iterable[str]) -> RuleSet:
        found = self._indifferent
        for value in values:
            found |= self._by_value.get(value, 0)
        return found


class _Priorities:
    """Rules by ranges of priority; within a range the same rules match."""

    def __init__(self, rules: tuple[Rule, ...]) -> None:
        below = {rule.match.priority_min - 1 for rule in rules if rule.match.priority_min is not None}
        self._last = sorted(below | {r.match.priority_max for r in rules if r.match.priority_max is not None})
        # One sample per range: its last value; the open range at the end gets a value above all others.
        samples = [*self._last, self._last[-1] + 1 if self._last else 0]
        self._accepting = [_rules_accepting(priority, rules) for priority in samples]

    def of(self, priority: int) -> RuleSet:
        return self._accepting[bisect_left(self._last, priority)]


class _Labels:
    """Rules by the labels that they require."""

    def __init__(self, rules: tuple[Rule, ...]) -> None:
        self._all: RuleSet = (1 << len(rules)) - 1
        keys = {requirement.key for rule in rules for requirement in rule.match.labels.requirements}
        self._keys = {key: _Key(rules, key) for key in keys}
        self._names = frozenset(keys)
        # By the keys that a pod has: the rules that accept the absence of the others.
        self._without_others: dict[frozenset[str], RuleSet] = {}

    def of(self, facts: Facts) -> RuleSet:
        if not self._keys:
            return self._all
        present = self._names.intersection(facts.labels)
        found = self._without_others.get(present)
        if found is None:
            found = self._absent(present)
        for key in present:
            found &= self._keys[key].of(facts.labels[key])
        return found

    def _absent(self, present: frozenset[str]) -> RuleSet:
        found = self._all
        for key in self._names - present:
            found &= self._keys[key].absent
        if len(self._without_others) >= _KEPT_KEY_SETS:
            self._without_others.clear()
        self._without_others[present] = found
        return found


class _Key:
    """Rules by the value of one label. Values that no requirement names are equivalent, except for Gt and
    Lt."""

    def __init__(self, rules: tuple[Rule, ...], key: str) -> None:
        every = ((i, r) for i, rule in enumerate(rules) for r in rule.match.labels.requirements)
        self._requirements = [(i, requirement) for i, requirement in every if requirement.key == key]
        self._key = key
        self._all: RuleSet = (1 << len(rules)) - 1
        self.absent = self._accepting({})
        named = {value for _, requirement in self._requirements for value in requirement.values}
        self._compares = any(requirement.operator in ("Gt", "Lt") for _, requirement in self._requirements)
        self._by_value = {value: self._accepting({key: value}) for value in named}
        self._compared: dict[str, RuleSet] = {}  # of values that no requirement names, for Gt and Lt
        # A label value never contains a blank, so this is none of the named values.
        self._other = self._accepting({key: " "})

    def of(self, value: str) -> RuleSet:
        found = self._by_value.get(value)
        if found is not None:
            return found
        if not self._compares:
            return self._other
        if len(self._compared) >= _KEPT_VALUES:
            self._compared.clear()
        if value not in self._compared:
            self._compared[value] = self._accepting({self._key: value})
        return self._compared[value]

    def _accepting(self, labels: dict[str, str]) -> RuleSet:
        refusing: RuleSet = 0
        for number, requirement in self._requirements:
            if not requirement.matches(labels):
                refusing |= 1 << number
        return self._all & ~refusing


def _lists(listed: Callable[[Rule], frozenset[str]], value: str, rule: Rule) -> bool:
    return value in listed(rule)


def _rules_where(rules: tuple[Rule, ...], holds: Callable[[Rule], bool]) -> RuleSet:
    return sum(1 << number for number, rule in enumerate(rules) if holds(rule))


def _rules_accepting(priority: int, rules: tuple[Rule, ...]) -> RuleSet:
    def accepts(rule: Rule) -> bool:
        lowest, highest = rule.match.priority_min, rule.match.priority_max
        return (lowest is None or priority >= lowest) and (highest is None or priority <= highest)

    return _rules_where(rules, accepts)


def _numbers(rules: RuleSet) -> tuple[int, ...]:
    return tuple(number for number in range(rules.bit_length()) if rules >> number & 1)
