"""Rules about other pods that a placement relies on, as far as the ledger has to know them.

A pod *bears* a rule when it is its own: required anti-affinity (keep apart), or a DoNotSchedule spread constraint. A pod
*matches* a rule when the rule's selector sees it. Two workers break a rule only by placing a bearer and a match in one
domain at the same moment; so the ledger notes, for each rule and domain, when the last of either came and from whom.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from hoss.model.pod import Pairs
from hoss.model.selectors import LabelSelector, Requirement

_MOST_GROUPS = 10_000  # remembered, with what the rules are to them


@dataclass(frozen=True, slots=True)
class Rule:
    """`keeps_apart`: anti-affinity, which the match has to mind too; `gathers`: affinity of pods to their own kind, of
    which the first may go anywhere; else spreading. The bearers alone have to mind the latter two."""

    topology_key: str
    selector: LabelSelector
    namespaces: tuple[str, ...]
    every_namespace: bool = False  # looks further by labels of namespaces, which the ledger does not know: at all, then
    keeps_apart: bool = True
    gathers: bool = False

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
    """What one rule is to the pods of a slot."""

    key: int
    registered: Registered
    bears: bool
    matches: bool
    first: bool = False  # it bears one that gathers, and was placed as the first of its kind

    @property
    def notes(self) -> str:
        """Under which roles a placement is noted: "b" as a bearer, "m" as a match, "u", for all domains, as a use of the rule."""
        kept_away_from = self.bears and self.registered.rule.keeps_apart
        return ("b" if kept_away_from else "") + ("m" if self.matches else "") + ("u" if self.bears else "")

    @property
    def relies_on(self) -> str:
        """Placements of others in which roles it must know of."""
        misses_matches = self.first if self.registered.rule.gathers else self.bears
        return ("m" if misses_matches else "") + ("b" if self.matches and self.registered.rule.keeps_apart else "")

    @property
    def counts_on_matches(self) -> bool:
        """Whether it was placed as it was because of matches that were placed before."""
        return self.bears and not self.registered.rule.keeps_apart

    @property
    def topology_key(self) -> str:
        """What makes its domains; empty: the whole cluster is one, for the first of a kind must know of any other."""
        return "" if self.registered.rule.gathers else self.registered.rule.topology_key

    def domain_among(self, labels: Mapping[str, str]) -> str | None:
        """The domain of a node with these labels, None where it is in none."""
        return labels.get(self.topology_key) if self.topology_key else ""


@dataclass(frozen=True, slots=True)
class Question:
    """One pod that rules look at, as it is judged: whether its worker knew what it had to know."""

    guards: tuple[Guard, ...]
    domains: tuple[str | None, ...] = ()  # one for each guard; empty: the pod has no place
    shard: int = 0  # where it has one, and the commit that reserved it
    seq: int = 0

    @property
    def placed(self) -> bool:
        """Whether there is anything to be judged. What has no place may be what others counted on."""
        return bool(self.domains)


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

    def newest(self, groups: Iterable[Borne | None]) -> int:
        """The seq of the last registration of a rule that these groups bear; 0: they bear none that is registered."""
        keys = {rule_key(rule) for group in groups if group is not None for rule in group.rules}
        return max((self.rules[key].born for key in keys if key in self.rules), default=0)

    def register(self, rules: dict[int, Rule], seq: int) -> None:
        """They are known from `seq` on."""
        self.version = max(self.version, seq)
        self.rules.update({key: Registered(rule, seq) for key, rule in rules.items()})
        self._guards.clear()

    def forget(self, keys: Iterable[int], seq: int) -> None:
        """They are known no more from `seq` on."""
        self.version = max(self.version, seq)
        for key in keys:
            self.rules.pop(key, None)
        self._guards.clear()

    def guards(self, group: Borne | None, *, first: bool = False) -> tuple[Guard, ...]:
        """What the rules are to pods of the group; only those that are anything. `first`: placed as the first of a kind."""
        if group is None or not self.rules:
            return ()
        found = self._guards_of(group)
        return tuple(guard._replace(first=guard.bears) for guard in found) if first else found

    def _guards_of(self, group: Borne) -> tuple[Guard, ...]:
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


def unborn(question: Question, books: Sequence[RuleBook], seen: Sequence[int]) -> tuple[int, int] | None:
    """(shard, seq) of the registration of a rule that the pod relies on and its worker had not seen; None: there is none.

    Before a rule was registered on a shard, no placement there was noted. `books` and `seen`, the seq up to which the worker
    knew each, are by shard; a rule that a book lacks is registered in the future.
    """
    placed = zip(question.guards, question.domains, strict=True) if question.placed else ()
    for guard, domain in placed:
        if domain is not None and "m" in guard.relies_on:
            for shard, book in enumerate(books):
                known = book.rules.get(guard.key)
                if known is None or known.born > seen[shard]:
                    return shard, known.born if known else book.version + 1
    return None


def rule_key(rule: Rule) -> int:
    """A digest of the rule."""
    return int.from_bytes(hashlib.blake2b(repr(packed(rule)).encode(), digest_size=8).digest(), "little")


def packed(rule: Rule) -> list[Any]:
    """The rule as plain lists, for keeping."""
    requirements = [[r.key, r.operator, list(r.values)] for r in rule.selector.requirements]
    return [
        rule.topology_key,
        requirements,
        list(rule.namespaces),
        rule.every_namespace,
        rule.keeps_apart,
        rule.gathers,
    ]


def unpacked(values: list[Any]) -> Rule:
    """What `packed` made a list of."""
    topology_key, requirements, namespaces, every, apart, gathers = values
    selector = LabelSelector(tuple(Requirement(key, operator, tuple(listed)) for key, operator, listed in requirements))
    return Rule(topology_key, selector, tuple(namespaces), every, apart, gathers)
