"""Which pods an audit finds too near to each other."""

import numpy as np

from hoss.model.selectors import LabelSelector, Requirement
from resolver.core.consistency.audit import too_near
from resolver.core.rules import PlacementRule
from resolver.core.values import Group

WEB = LabelSelector((Requirement("app", "In", ("web",)),))
LABELS = {0: {"rack": "r0"}, 1: {"rack": "r0"}, 2: {"rack": "r1"}, 3: {}}
APART = PlacementRule("rack", WEB, ("default",))


def found(pods, **groups):
    """Rows of the pods that are too near; a pod is a node and the name of its group."""
    keys = {name: key for key, name in enumerate(groups, start=1)}
    nodes = np.array([node for node, _ in pods], np.uint32)
    of = np.array([keys.get(name, 0) for _, name in pods], np.uint64)
    by_key = {keys[name]: group for name, group in groups.items()}
    steps = too_near(nodes, of, by_key, LABELS)
    return [(pair.bearer, pair.other, pair.domain) for pairs in steps for pair in pairs]


def group(app="web", *rules, namespace="default"):
    return Group(1, b"", (), namespace, (("app", app),), rules)


def test_a_pod_that_shuns_its_own_kind_is_found_with_another_of_it_in_its_domain():
    assert found([(0, "web"), (1, "web"), (2, "web")], web=group("web", APART)) == [(0, 1, "r0")]


def test_a_pod_is_no_company_for_itself():
    assert found([(0, "web"), (2, "web")], web=group("web", APART)) == []


def test_a_pod_that_shuns_others_is_found_with_one_of_them_and_with_nobody_else():
    groups = {"db": group("db", APART), "web": group("web"), "other": group("other")}
    assert found([(0, "db"), (1, "web"), (2, "web")], **groups) == [(0, 1, "r0")]
    assert found([(0, "db"), (1, "other"), (1, "db"), (1, "nobody")], **groups) == []


def test_nodes_without_the_topology_key_are_in_no_domain():
    assert found([(3, "web"), (3, "web")], web=group("web", APART)) == []


def test_pods_of_other_namespaces_are_nobodys_business_even_if_the_rule_may_look_further_by_labels():
    further = PlacementRule("rack", WEB, ("default",), every_namespace=True)
    groups = {"db": group("db", further), "web": group("web", namespace="other")}
    assert found([(0, "db"), (0, "web")], **groups) == []


def test_spreading_and_affinity_are_no_invariants():
    spread = PlacementRule("rack", WEB, ("default",), anti_affinity=False)
    near = PlacementRule("rack", WEB, ("default",), anti_affinity=False, self_affinity=True)
    assert found([(0, "web"), (1, "web"), (2, "web")], web=group("web", spread, near)) == []


def test_a_rule_that_names_no_label_is_held_against_everybody():
    everybody = PlacementRule("rack", LabelSelector((Requirement("app", "Exists"),)), ("default",))
    assert found([(0, "db"), (1, "web")], db=group("db", everybody), web=group("web")) == [(0, 1, "r0")]


def test_each_group_and_then_each_rule_is_a_step_with_the_findings_of_that_rule():
    nodes, keys = np.array([0, 1, 2], np.uint32), np.array([1, 2, 3], np.uint64)
    rules = [PlacementRule(key, WEB, ("default",)) for key in ("rack", "row")]
    groups = {1: group("web", *rules), 2: group("db"), 3: group("web", rules[0])}
    labels = {0: {"rack": "r0", "row": "a"}, 1: {"rack": "r0"}, 2: {"rack": "r1", "row": "a"}}
    steps = [[pair.rule for pair in pairs] for pairs in too_near(nodes, keys, groups, labels)]
    assert steps == [[], [], [], [], [rules[1]]]
