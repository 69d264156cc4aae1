"""The rights that objects of deploy/ grant, one by one."""

import itertools
from typing import NamedTuple

from e2e.kubernetes.renderers import Objects

_ROLES, _BINDINGS = ("ClusterRole", "Role"), ("ClusterRoleBinding", "RoleBinding")
EVERY = "*"


class Right(NamedTuple):
    """One verb on one resource, for one service account."""

    account: str
    verb: str
    group: str
    resource: str
    name: str  # of the object; EVERY: of any
    namespace: str  # EVERY: in any

    def __str__(self) -> str:
        return f"{self.account} {self.verb} {self.resource}"


def rights_of(objects: Objects) -> set[Right]:
    """What all accounts may do together, however it is divided into roles and rules."""
    rules = {key: found["rules"] for key, found in objects.items() if key[0] in _ROLES}
    bindings = [found for (kind, _), found in objects.items() if kind in _BINDINGS]
    return {
        Right(subject["name"], *right, found["metadata"].get("namespace", EVERY))
        for found in bindings
        for rule in rules[found["roleRef"]["kind"], found["roleRef"]["name"]]
        for subject in found["subjects"]
        for right in itertools.product(
            rule["verbs"], rule["apiGroups"], rule["resources"], rule.get("resourceNames", [EVERY])
        )
    }
