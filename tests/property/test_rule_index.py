"""The compiled rules say of every pod what each rule says by itself."""

from hypothesis import given
from hypothesis import strategies as st

from dispatcher.core.policy.checks import covers
from dispatcher.core.policy.index import RuleIndex
from dispatcher.core.policy.rules import (
    Algorithm,
    Balance,
    Facts,
    Fallback,
    Match,
    Policy,
    Rule,
    Selector,
    facts_of_spec,
)
from dispatcher.policy.documents import facts_from_bytes
from hoss.model.selectors import Requirement
from hoss.wire.convert import pod_spec_to_proto
from tests.property.builders_pods import pod_specs

WORDS = ("a", "b", "c", "1", "2", "3")
KEYS = ("app", "tier", "size")


def some(words=WORDS):
    return st.frozensets(st.sampled_from(words), max_size=2)


def requirements():
    key = st.sampled_from(KEYS)
    listed = st.tuples(
        key, st.sampled_from(["In", "NotIn"]), st.lists(st.sampled_from(WORDS), min_size=1, max_size=3)
    )
    there = st.tuples(key, st.sampled_from(["Exists", "DoesNotExist"]), st.just([]))
    compared = st.tuples(
        key, st.sampled_from(["Gt", "Lt"]), st.lists(st.sampled_from("123"), min_size=1, max_size=1)
    )
    return st.one_of(listed, there, compared).map(lambda r: Requirement(r[0], r[1], tuple(r[2])))


matches = st.builds(
    Match,
    labels=st.lists(requirements(), max_size=3).map(lambda found: Selector(tuple(found))),
    namespaces=some(),
    priority_min=st.none() | st.integers(-2, 2),
    priority_max=st.none() | st.integers(-2, 2),
    priority_class_names=some(),
    scheduler_names=some(),
    qos_classes=some(),
    owner_kinds=some(("Pod", "Job")),
    resources=some(),
)
facts = st.builds(
    Facts,
    namespace=st.sampled_from(WORDS),
    labels=st.dictionaries(st.sampled_from((*KEYS, "other")), st.sampled_from((*WORDS, "9", "unheard-of"))),
    priority=st.integers(-3, 3),
    resources=st.lists(st.sampled_from(WORDS), max_size=2).map(tuple),
    priority_class_name=st.sampled_from(WORDS),
    scheduler_name=st.sampled_from(WORDS),
    qos_class=st.sampled_from(WORDS),
    owner_kind=st.sampled_from(("", "Job")),
)
rules = st.lists(st.tuples(matches, st.sampled_from(Fallback)), min_size=1, max_size=8).map(
    lambda made: tuple(Rule(f"r{i}", match, fallback=fallback) for i, (match, fallback) in enumerate(made))
)


@given(rules, st.lists(facts, min_size=1, max_size=6))
def test_the_index_finds_the_rules_that_match_and_the_chain_to_the_first_that_decides(made, pods):
    index = RuleIndex(Policy(made))
    for pod in pods:
        matching = [n for n, rule in enumerate(made) if rule.match.matches(pod)]
        assert index.matching(pod) == sum(1 << n for n in matching)
        deciding = [n for n in matching if made[n].fallback is not Fallback.NEXT_RULE]
        assert index.sub_queue(pod, b"spec").chain == tuple(
            n for n in matching if not deciding or n <= deciding[0]
        )


@given(matches, matches, st.lists(facts, min_size=1, max_size=20))
def test_a_rule_that_is_said_to_cover_another_matches_all_that_the_other_does(wider, narrower, pods):
    if covers(wider, narrower):
        assert all(wider.matches(pod) for pod in pods if narrower.matches(pod))


@given(matches)
def test_every_rule_covers_itself_and_is_covered_by_one_that_asks_for_nothing(match):
    assert covers(Match(), match)
    assert covers(match, match)


@given(pod_specs())
def test_facts_read_from_bytes_are_those_of_the_decoded_class(spec):
    read = facts_from_bytes(pod_spec_to_proto(spec).SerializeToString(deterministic=True))
    assert read == facts_of_spec(spec)


def test_only_chains_that_hash_have_buckets():
    index = RuleIndex(Policy((Rule("a", balance=Balance(Algorithm.CONSISTENT_HASH)),)))
    assert index.sub_queue_of_all(b"x") == index.sub_queue(Facts("a", {}, 0, ()), b"x")
    assert len({index.sub_queue_of_all(bytes([i])).bucket for i in range(64)}) > 10
    assert RuleIndex(Policy()).sub_queue_of_all(b"x").bucket == 0
