"""What an audit finds of pods that keep apart: required anti-affinity, from where pods of which groups are.

Like the ledger it does not know labels of namespaces: a rule that looks further by those is audited in the namespaces it
names. Spreading is no invariant: deletions may leave pods more unevenly spread than any placement would have. Nor is
required affinity: those a pod is near to may leave.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from resolver.core.rules import Rule
from resolver.core.values import Group

Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class TooNear:
    """Two pods, as rows of what was audited, and the rule of the first that keeps the second out of their domain."""

    bearer: int
    other: int
    rule: Rule
    domain: str


def too_near(
    nodes: NDArray[np.uint32], group_keys: NDArray[np.uint64], groups: Mapping[int, Group], labels: Mapping[int, Labels]
) -> Iterator[TooNear]:
    """One finding for each rule and domain where it is broken. `nodes`, `group_keys`: where each pod is and of which group, 0:
    none; `labels`: of each node."""
    order = np.argsort(group_keys, kind="stable")
    keys, starts = np.unique(group_keys[order], return_index=True)
    rows_of = dict(zip(keys.tolist(), np.split(order, starts[1:]), strict=False))
    bearers: dict[Rule, list[int]] = {}
    for key in rows_of:
        for rule in groups[key].rules if key in groups else ():
            if rule.keeps_apart:
                bearers.setdefault(rule, []).append(key)
    for rule, keys_of_bearers in bearers.items():
        named = replace(rule, every_namespace=False)
        seen = [key for key in rows_of if key in groups and named.matches(groups[key].namespace, groups[key].labels)]
        bearing = _by_domain(rule, [row for key in keys_of_bearers for row in rows_of[key].tolist()], nodes, labels)
        matching = _by_domain(rule, [row for key in seen for row in rows_of[key].tolist()], nodes, labels)
        for domain, here in bearing.items():
            others = matching.get(domain, [])
            # A pod is no company for itself.
            pair = next(((b, o) for b in here[:2] for o in others[:2] if b != o), None)
            if pair:
                yield TooNear(*pair, rule, domain)


def _by_domain(
    rule: Rule, rows: list[int], nodes: NDArray[np.uint32], labels: Mapping[int, Labels]
) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for row in rows:
        domain = labels.get(int(nodes[row]), {}).get(rule.topology_key)
        if domain is not None:
            found.setdefault(domain, []).append(row)
    return found
