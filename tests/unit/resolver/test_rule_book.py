"""Which rules concern a group: those that it bears, and those that select it. Only rules that may are looked
at."""

import random
import zlib
from dataclasses import dataclass
from itertools import pairwise

import pytest

from hoss.model.selectors import LabelSelector, Requirement
from resolver.core.rules import RESERVED_NAMES, PlacementConstraint, PlacementRule, RuleBook
from resolver.core.values import Group

KEYS, VALUES = ("app", "tier"), ("a", "b", "c")


def selector(rng):
    made = []
    for _ in range(rng.randrange(3)):
        operator = rng.choice(["In", "In", "NotIn", "Exists", "DoesNotExist"])
        values = tuple(sorted(rng.sample(VALUES, rng.randrange(1, 3)))) if operator.endswith("In") else ()
        made.append(Requirement(rng.choice(KEYS), operator, values))
    return LabelSelector(tuple(made))


def rule(rng):
    return PlacementRule(
        "rack",
        selector(rng),
        ("default",),
        anti_affinity=rng.random() < 0.5,
        every_namespace=rng.random() < 0.2,
    )


def group(rng, rules):
    labels = tuple((key, rng.choice(VALUES)) for key in KEYS if rng.random() < 0.7)
    names = ("volume",) if rng.random() < 0.3 else ()
    namespace, borne = rng.choice(["default", "other"]), tuple(rng.sample(rules, rng.randrange(3)))
    key = zlib.crc32(repr((labels, names, namespace, borne)).encode()) + 1
    return Group(key, b"", (), namespace, labels, borne, names)


def by_looking_at_all(book, of):
    found = []
    for key, known in sorted(book.rules.items()):
        bears, matches = known.rule in of.rules, known.rule.matches(of.namespace, of.labels)
        if known.rule == RESERVED_NAMES:
            found += [PlacementConstraint(key, known, True, True, name=name) for name in of.reserved_names]
        elif bears or matches:
            found.append(PlacementConstraint(key, known, bears, matches))
    return tuple(found)


@pytest.mark.parametrize("seed", range(20))
def test_rules_that_come_and_go_concern_those_that_they_select_and_those_that_bear_them(seed):
    rng = random.Random(seed)
    rules = list({rule(rng) for _ in range(12)})
    pool = [*rules, RESERVED_NAMES]
    groups = [group(rng, rules) for _ in range(20)]
    book = RuleBook()
    for seq in range(1, 8):
        book.register({one.key: one for one in rng.sample(pool, 4)}, seq)
        book.forget([one.key for one in rng.sample(pool, 2)], seq)
        for of in groups:
            assert book.constraints(of) == by_looking_at_all(book, of)


def test_nothing_is_kept_of_rules_that_are_forgotten():
    rng, book = random.Random(1), RuleBook()
    keys = {one.key: one for one in [*(rule(rng) for _ in range(20)), RESERVED_NAMES]}
    book.register(keys, 1)
    book.forget(keys, 2)
    assert book._by_label == {}


@dataclass(frozen=True)
class Counted(PlacementRule):
    """Says in `looked_at` whenever it is held against labels."""

    looked_at: list[str] = None

    def matches(self, namespace, labels):
        self.looked_at.append(namespace)
        return super().matches(namespace, labels)


def test_a_group_is_held_against_as_many_rules_whatever_others_there_are():
    looked = []
    for others in (1, 100):
        looked_at = []
        book = RuleBook()
        for number in range(others):
            select = LabelSelector((Requirement("app", "In", (f"app {number}",)),))
            book.register({number: Counted("rack", select, ("default",), looked_at=looked_at)}, 1)
        assert len(book.constraints(Group(1, b"", (), "default", (("app", "app 0"),)))) == 1
        looked.append(len(looked_at))
    assert all(one == other for one, other in pairwise(looked))
