"""Rules about other pods that a placement relies on, as far as the ledger has to know them.

A pod *bears* a rule when it is its own: required anti-affinity (keep apart), or a DoNotSchedule spread constraint. A pod
*matches* a rule when the rule's selector sees it. Two workers break a rule only by placing a bearer and a match in one
domain at the same moment; so the ledger notes, for each rule and domain, when the last of either came and from whom.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from hoss.model.pod import Pairs
from hoss.model.selectors import LabelSelector, Requirement

_MOST_GROUPS = 10_000  # remembered, with what the rules are to them


@dataclass(frozen=True, slots=True)
class Rule:
    """`keeps_apart`: anti-affinity, which the match has to mind too; else spreading, which its bearers alone have to."""

    topology_key: str
    selector: LabelSelector
    namespaces: tuple[str, ...]
    every_namespace: bool = False  # looks further by labels of namespaces, which the ledger does not know: at all, then
    keeps_apart: bool = True

    def matches(self, namespace: str, labels: Pairs) -> bool:
        """Whether it sees pods of that namespace with those labels."""
        return (self.every_namespace or namespace in self.namespaces) and self.selector.matches(dict(labels))


@dataclass(frozen=True, slots=True)
class Registered:
    """A rule the ledger knows. From `born` on every placement of a match is noted; before, none was."""

    rule: Rule
    born: int


class Borne(Protocol):
    """A group, as far as rules go."""

    @property
    def key(self) -> int: ...
    @property
    def namespace(self) -> str: ...
    @property
    def labels(self) -> Pairs: ...
    @property
    def rules(self) -> tuple[Rule, ...]: ...


class Guard(NamedTuple):
    """What one rule is to the pods of a group."""

    key: int
    registered: Registered
    bears: bool
    matches: bool

    @property
    def notes(self) -> str:
        """Under which roles a placement is noted: "b" as a bearer, "m" as a match."""
        return ("b" if self.bears and self.registered.rule.keeps_apart else "") + ("m" if self.matches else "")

    @property
    def relies_on(self) -> str:
        """Placements of others in which roles it must know of."""
        return ("m" if self.bears else "") + ("b" if self.matches and self.registered.rule.keeps_apart else "")


@dataclass(slots=True)
class RuleBook:
    """The rules of one shard. `version` is the seq at which the last one was registered; 0: none."""

    version: int = 0
    rules: dict[int, Registered] = field(default_factory=dict)
    _guards: dict[int, tuple[Guard, ...]] = field(default_factory=dict)  # by the group's key

    def missing(self, groups: Iterable[Borne | None]) -> dict[int, Rule]:
        """Rules these groups bear that are not registered, by key."""
        borne = {rule_key(rule): rule for group in groups if group is not None for rule in group.rules}
        return {key: rule for key, rule in borne.items() if key not in self.rules}

    def register(self, rules: dict[int, Rule], seq: int) -> None:
        """They are known from `seq` on."""
        self.version = max(self.version, seq)
        self.rules.update({key: Registered(rule, seq) for key, rule in rules.items()})
        self._guards.clear()

    def guards(self, group: Borne | None) -> tuple[Guard, ...]:
        """What the rules are to pods of the group; only those that are anything."""
        if group is None or not self.rules:
            return ()
        found = self._guards.get(group.key)
        if found is None:
            own = {rule_key(rule) for rule in group.rules}
            candidates = (
                Guard(key, known, key in own, known.rule.matches(group.namespace, group.labels))
                for key, known in sorted(self.rules.items())
            )
            found = tuple(guard for guard in candidates if guard.notes or guard.relies_on)
            if len(self._guards) >= _MOST_GROUPS:
                self._guards.clear()
            self._guards[group.key] = found
        return found


def rule_key(rule: Rule) -> int:
    """A digest of the rule."""
    return int.from_bytes(hashlib.blake2b(repr(packed(rule)).encode(), digest_size=8).digest(), "little")


def packed(rule: Rule) -> list[Any]:
    """The rule as plain lists, for keeping."""
    requirements = [[r.key, r.operator, list(r.values)] for r in rule.selector.requirements]
    return [rule.topology_key, requirements, list(rule.namespaces), rule.every_namespace, rule.keeps_apart]


def unpacked(values: list[Any]) -> Rule:
    """What `packed` made a list of."""
    topology_key, requirements, namespaces, every, apart = values
    selector = LabelSelector(tuple(Requirement(key, operator, tuple(listed)) for key, operator, listed in requirements))
    return Rule(topology_key, selector, tuple(namespaces), every, apart)
