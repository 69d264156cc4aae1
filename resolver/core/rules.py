"""Rules about other pods that a placement relies on, as far as the ledger needs to know them.

A pod *bears* a rule that comes from its own spec: required anti-affinity, or a DoNotSchedule spread
constraint. A pod *matches* a rule whose selector selects it. Two workers break a rule only by placing a
bearer and a match in one domain at the same time. So the ledger records, for each rule and domain, when the
last bearer and the last match came, and from which worker."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from hoss.model.resources import Pairs
from hoss.model.selectors import LabelSelector, Requirement

_MOST_GROUPS = 10_000  # whose constraints are cached


@dataclass(frozen=True, slots=True)
class PlacementRule:
    """`anti_affinity`: anti-affinity, which matching pods must respect as well. `self_affinity`: affinity of
    pods to their own kind, of which the first pod may go anywhere. Neither: topology spread. Only bearers
    respect the latter two. `key`: a digest of the rule, u64."""

    topology_key: str
    selector: LabelSelector
    namespaces: tuple[str, ...]
    every_namespace: bool = (
        False  # has a namespace selector; the ledger has no namespace labels, so it takes all
    )
    anti_affinity: bool = True
    self_affinity: bool = False
    key: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        digest = hashlib.blake2b(repr(packed(self)).encode(), digest_size=8).digest()
        object.__setattr__(self, "key", int.from_bytes(digest, "little"))

    def matches(self, namespace: str, labels: Pairs) -> bool:
        """Whether the rule's selector selects pods of that namespace with those labels."""
        return (self.every_namespace or namespace in self.namespaces) and self.selector.matches(dict(labels))


def packed(rule: PlacementRule) -> list[Any]:
    """The rule as plain lists, for storage."""
    requirements = [[r.key, r.operator, list(r.values)] for r in rule.selector.requirements]
    return [
        rule.topology_key,
        requirements,
        list(rule.namespaces),
        rule.every_namespace,
        rule.anti_affinity,
        rule.self_affinity,
    ]


def unpacked(values: list[Any]) -> PlacementRule:
    """The reverse of `packed`."""
    topology_key, requirements, namespaces, every, apart, self_affinity = values
    selector = LabelSelector(
        tuple(Requirement(key, operator, tuple(listed)) for key, operator, listed in requirements)
    )
    return PlacementRule(topology_key, selector, tuple(namespaces), every, apart, self_affinity)


_NAME = "="  # no label has this key; before a domain it says that the domain is a name

# The rule of all pods that take something by its name (docs/adr/0057-volumes.md). Its domains are names, and
# every pod brings its own. It selects nobody.
RESERVED_NAMES = PlacementRule(_NAME, LabelSelector((Requirement(_NAME, "Exists"),)), ())


@dataclass(frozen=True, slots=True)
class RegisteredRule:
    """A rule that the ledger knows. Placements of matching pods are recorded from `born` on, not before."""

    rule: PlacementRule
    born: int


class Borne(Protocol):
    """The fields of a group that rules need."""

    @property
    def key(self) -> int: ...
    @property
    def namespace(self) -> str: ...
    @property
    def labels(self) -> Pairs: ...
    @property
    def rules(self) -> tuple[PlacementRule, ...]: ...
    @property
    def reserved_names(self) -> tuple[str, ...]: ...


class PlacementConstraint(NamedTuple):
    """What one rule means for the pods of a slot."""

    key: int
    registered: RegisteredRule
    bears: bool
    matches: bool
    first: bool = False  # it bears a `self_affinity` rule, and was placed as the first of its kind
    name: str = ""  # of RESERVED_NAMES: what the pods take, which is their domain on every node

    @property
    def recorded_roles(self) -> str:
        """The roles in which a placement is recorded: "b" as a bearer, "m" as a match, "u" as a use of the
        rule (for all domains)."""
        kept_away_from = self.bears and self.registered.rule.anti_affinity and not self.name
        return ("b" if kept_away_from else "") + ("m" if self.matches else "") + ("u" if self.bears else "")

    @property
    def relies_on(self) -> str:
        """The roles of other pods' placements that the worker must have seen."""
        misses_matches = self.first if self.registered.rule.self_affinity else self.bears
        return ("m" if misses_matches else "") + (
            "b" if self.matches and self.registered.rule.anti_affinity and not self.name else ""
        )

    @property
    def counts_on_matches(self) -> bool:
        """Whether the pod's placement depends on matches that were placed before it."""
        return self.bears and not self.registered.rule.anti_affinity

    @property
    def topology_key(self) -> str:
        """The label that makes domains. Empty: the whole cluster is one domain, because the first pod of a
        kind must know of every other. After "=": the domain itself."""
        if self.name:
            return _NAME + self.name
        return "" if self.registered.rule.self_affinity else self.registered.rule.topology_key

    def domain_among(self, labels: Mapping[str, str]) -> str | None:
        """The domain of a node with these labels; None: the node is in no domain."""
        if self.name:
            return self.name
        return labels.get(self.topology_key) if self.topology_key else ""


@dataclass(frozen=True, slots=True)
class RuleQuery:
    """One pod that rules concern: did its worker know the placements that it relies on?"""

    constraints: tuple[PlacementConstraint, ...]
    domains: tuple[str | None, ...] = ()  # one for each constraint; empty: the pod was not placed
    shard: int = 0  # if placed: where, and the commit that reserved it
    seq: int = 0

    @property
    def placed(self) -> bool:
        """Whether the pod was placed. Others may have counted on a pod that was not."""
        return bool(self.domains)


@dataclass(slots=True)
class RuleBook:
    """The rules of one shard. `version` is the seq of the last registration; 0: none."""

    version: int = 0
    rules: dict[int, RegisteredRule] = field(default_factory=dict)
    # By the group's key.
    _constraints: dict[int, tuple[PlacementConstraint, ...]] = field(default_factory=dict)
    # Keys of rules by the labels of which a pod must have one to match; None: pods without such a label may.
    _by_label: dict[tuple[str, str] | None, set[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for key, known in self.rules.items():
            self._index(key, known.rule)

    def missing(self, groups: Iterable[Borne | None]) -> dict[int, PlacementRule]:
        """Rules that these groups bear and that are not registered, by key."""
        borne = {rule.key: rule for group in groups if group is not None for rule in group.rules}
        return {key: rule for key, rule in borne.items() if key not in self.rules}

    def newest(self, groups: Iterable[Borne | None]) -> int:
        """The seq of the latest registration among the rules that these groups bear; 0: none is
        registered."""
        keys = {rule.key for group in groups if group is not None for rule in group.rules}
        return max((self.rules[key].born for key in keys if key in self.rules), default=0)

    @property
    def cached(self) -> int:
        """Groups whose constraints are cached."""
        return len(self._constraints)

    def register(self, rules: dict[int, PlacementRule], seq: int) -> None:
        """Add rules that were registered by the change with this seq."""
        self.version = max(self.version, seq)
        for key, rule in rules.items():
            self.add(key, RegisteredRule(rule, seq))
        self._constraints.clear()

    def add(self, key: int, known: RegisteredRule) -> None:
        """Add a rule to a book that nobody has asked for constraints yet."""
        self.rules[key] = known
        self._index(key, known.rule)

    def _index(self, key: int, rule: PlacementRule) -> None:
        for label in labels_asked(rule):
            self._by_label.setdefault(label, set()).add(key)

    def forget(self, keys: Iterable[int], seq: int) -> None:
        """Remove rules that were forgotten by the change with this seq."""
        self.version = max(self.version, seq)
        for key in keys:
            known = self.rules.pop(key, None)
            for label in labels_asked(known.rule) if known else ():
                self._by_label[label].discard(key)
                if not self._by_label[label]:
                    del self._by_label[label]
        self._constraints.clear()

    def constraints(self, group: Borne | None, *, first: bool = False) -> tuple[PlacementConstraint, ...]:
        """What the rules mean for pods of the group, without rules that do not concern it. `first`: placed as
        the first of its kind."""
        if group is None or not self.rules:
            return ()
        found = self._constraints_of(group)
        return tuple(constraint._replace(first=constraint.bears) for constraint in found) if first else found

    def _constraints_of(self, group: Borne) -> tuple[PlacementConstraint, ...]:
        found = self._constraints.get(group.key)
        if found is None:
            own = {rule.key for rule in group.rules}
            asked = [
                own,
                self._by_label.get(None, ()),
                *(self._by_label.get(label, ()) for label in group.labels),
            ]
            candidates = (
                PlacementConstraint(key, known, key in own, known.rule.matches(group.namespace, group.labels))
                for key in sorted(set().union(*asked) & self.rules.keys())
                for known in (self.rules[key],)
            )
            found = tuple(
                constraint
                for candidate in candidates
                for constraint in _by_name(candidate, group.reserved_names)
                if constraint.recorded_roles or constraint.relies_on
            )
            if len(self._constraints) >= _MOST_GROUPS:
                self._constraints.clear()
            self._constraints[group.key] = found
        return found


def labels_asked(rule: PlacementRule) -> Iterable[tuple[str, str] | None]:
    """Labels of which every pod has one that the rule's selector selects. (None,): no such labels are
    known."""
    for requirement in rule.selector.requirements:
        if requirement.operator == "In":
            return [(requirement.key, value) for value in requirement.values]
    return (None,)


def _by_name(constraint: PlacementConstraint, names: Iterable[str]) -> Iterable[PlacementConstraint]:
    """RESERVED_NAMES is a constraint for each name, and other rules are one as they are."""
    if constraint.registered.rule != RESERVED_NAMES:
        return (constraint,)
    return [constraint._replace(bears=True, matches=True, name=name) for name in names]


def registered_later(
    query: RuleQuery, books: Sequence[RuleBook], seen: Sequence[int]
) -> tuple[int, int] | None:
    """(shard, seq) of the registration of a rule that the pod relies on and its worker had not seen. None:
    there is none.

    Placements on a shard were not recorded before the rule was registered there. `books` and `seen`, the seq
    up to which the worker knew the shard, are by shard. A rule that a book lacks counts as registered in the
    future."""
    placed = zip(query.constraints, query.domains, strict=True) if query.placed else ()
    for constraint, domain in placed:
        if domain is not None and "m" in constraint.relies_on:
            for shard, book in enumerate(books):
                known = book.rules.get(constraint.key)
                if known is None or known.born > seen[shard]:
                    return shard, known.born if known else book.version + 1
    return None
