import pytest

from hoss.model.node import FOR_EVER, NO_EXECUTE, Taint, Toleration, stay_seconds
from hoss.model.selectors import NodeSelector, NodeSelectorTerm, Requirement

LABELS = {"zone": "a", "cores": "64", "empty": ""}


@pytest.mark.parametrize(
    ("requirement", "matches"),
    [
        (Requirement("zone", "In", ("a", "b")), True),
        (Requirement("zone", "In", ("b",)), False),
        (Requirement("gone", "In", ("",)), False),
        (Requirement("empty", "In", ("",)), True),
        (Requirement("zone", "NotIn", ("a",)), False),
        (Requirement("gone", "NotIn", ("a",)), True),
        (Requirement("empty", "Exists"), True),
        (Requirement("gone", "DoesNotExist"), True),
        (Requirement("cores", "Gt", ("63",)), True),
        (Requirement("cores", "Gt", ("64",)), False),
        (Requirement("cores", "Lt", ("+65",)), True),
        (Requirement("cores", "Lt", ("6e3",)), False),
        (Requirement("cores", "Lt", (str(2**63),)), False),
        (Requirement("zone", "Gt", ("1",)), False),
    ],
)
def test_requirements_match_as_kubernetes_has_it(requirement, matches):
    assert requirement.matches(LABELS) is matches


def test_terms_are_ored_their_parts_anded_and_an_empty_one_matches_nothing():
    zone, name = Requirement("zone", "In", ("a",)), Requirement("metadata.name", "In", ("n1",))
    both = NodeSelectorTerm((zone,), (name,))
    assert both.matches(LABELS, "n1")
    assert not both.matches(LABELS, "n2")
    assert not NodeSelectorTerm().matches(LABELS, "n1")
    assert NodeSelector((NodeSelectorTerm(), both)).matches(LABELS, "n1")
    assert not NodeSelector(()).matches(LABELS, "n1")


@pytest.mark.parametrize(
    ("toleration", "tolerates"),
    [
        (Toleration("a", "Equal", "x", "NoSchedule"), True),
        (Toleration("a", "Equal", "x"), True),
        (Toleration("a", "Equal", "y"), False),
        (Toleration("a", "Exists", effect="NoExecute"), False),
        (Toleration("", "Exists"), True),
        (Toleration("b", "Exists"), False),
    ],
)
def test_a_toleration_covers_its_key_value_and_effect(toleration, tolerates):
    assert toleration.tolerates(Taint("a", "x", "NoSchedule")) is tolerates


@pytest.mark.parametrize(
    ("seconds", "stays"),
    [
        ((), None),
        ((None,), FOR_EVER),
        ((None, None), FOR_EVER),
        ((None, 60, 30), 30),
        ((0, 60), 0),
        ((-1,), 0),
    ],
)
def test_a_pod_stays_for_the_least_time_that_a_covering_toleration_names(seconds, stays):
    covering = [Toleration("a", "Exists", "", NO_EXECUTE, s) for s in seconds]
    others = [Toleration("b", "Exists", "", NO_EXECUTE, 1), Toleration("a", "Exists", "", "NoSchedule")]
    assert stay_seconds(Taint("a", "x", NO_EXECUTE), [*others, *covering]) == stays


def test_taints_are_equal_whenever_they_came():
    assert Taint("a", "x", NO_EXECUTE, 5) == Taint("a", "x", NO_EXECUTE)
    assert len({Taint("a", "x", NO_EXECUTE, 5), Taint("a", "x", NO_EXECUTE)}) == 1
