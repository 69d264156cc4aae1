"""The rights that objects of deploy/ grant, one by one: which of them service accounts used, and what becomes
of a request without the right to it."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import orjson
import urllib3
from e2e.kubernetes.api import Api
from e2e.kubernetes.guarded import apply
from e2e.kubernetes.renderers import Objects
from waiting import wait_until

from hossctl.local.control_plane import ControlPlane

_ROLES, _BINDINGS = ("ClusterRole", "Role"), ("ClusterRoleBinding", "RoleBinding")
EVERY = "*"

_METHODS = {"create": "POST", "update": "PUT", "patch": "PATCH", "delete": "DELETE"}  # of other verbs GET


class Use(NamedTuple):
    """What an account does with a kind of objects, whatever their names and namespaces."""

    account: str
    verb: str
    group: str
    resource: str

    def __str__(self) -> str:
        return f"{self.account} {self.verb} {'.'.join(filter(None, (self.resource, self.group)))}"


class Right(NamedTuple):
    """One verb on one resource, for one service account."""

    account: str
    verb: str
    group: str
    resource: str
    name: str  # of the object; EVERY: of any
    namespace: str  # EVERY: in any

    @property
    def use(self) -> Use:
        return Use(*self[:4])


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


class Requests(NamedTuple):
    """A path that was asked for, by what it was asked for."""

    allowed: dict[Use, str]
    refused: dict[Use, str]  # by the rights of the account
    failed: dict[Use, str]  # allowed by these, and refused for another right that the object takes


class AuditLog:
    """What service accounts have asked of an API server since this was made."""

    def __init__(self, plane: ControlPlane) -> None:
        self._path = plane.audit_log
        self._begin = self._path.stat().st_size if self._path.exists() else 0

    def read(self) -> Requests:
        """Until now."""
        found = Requests({}, {}, {})
        with self._path.open("rb") as file:
            file.seek(self._begin)
            whole_lines = file.read().rpartition(b"\n")[0]  # the last one may be half written
        for event in map(orjson.loads, whole_lines.splitlines()):
            about = event["objectRef"]
            resource = "/".join(filter(None, (about["resource"], about.get("subresource"))))
            account = event["user"]["username"].rpartition(":")[2]
            use = Use(account, event["verb"], about.get("apiGroup", ""), resource)
            by_rights = event.get("annotations", {}).get("authorization.k8s.io/decision") == "allow"
            (found.allowed if by_rights else found.refused).setdefault(use, event["requestURI"])
            if "permission: " in event.get("responseStatus", {}).get("message", ""):
                found.failed.setdefault(use, event["requestURI"])
        return found


class Roles:
    """The roles of `objects` on an API server. A right can be missing for a while."""

    def __init__(self, plane: ControlPlane, api: Api, objects: Objects) -> None:
        self._api = api
        self._url = plane.url
        self._pool = urllib3.PoolManager(ca_certs=str(plane.certificate_authority), retries=False)
        self._roles = [found for (kind, _), found in objects.items() if kind in _ROLES]
        self._holders: dict[tuple[str, str], set[str]] = {}  # accounts by role
        for (kind, _), found in objects.items():
            if kind in _BINDINGS:
                role = found["roleRef"]["kind"], found["roleRef"]["name"]
                self._holders.setdefault(role, set()).update(s["name"] for s in found["subjects"])

    @contextmanager
    def without(self, use: Use) -> Iterator[None]:
        """No role of the account gives it this right, within the block."""
        roles = [role for role in self._roles if self._gives(role, use)]
        assert roles, f"no role has the right: {use}"
        for role in roles:
            apply(self._api, {**role, "rules": list(_rules_without(role["rules"], use))})
        try:
            yield
        finally:
            for role in roles:
                apply(self._api, role)

    def refuses(self, token: str, use: Use, path: str) -> bool:
        """Whether the request, made again and without effect, is refused for want of this right."""
        method = _METHODS.get(use.verb, "GET")
        if method != "GET":
            path += f"{'&' if '?' in path else '?'}dryRun=All"
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        headers = {"Authorization": f"Bearer {token}", "Content-Type": kind}
        # A watch would go on: the status is all there is to read.
        reply = self._pool.request(
            method, self._url + path, body=None if method == "GET" else b"{}", headers=headers,
            preload_content=False,
        )  # fmt: skip
        try:
            if reply.status != 403:
                return False
            message = orjson.loads(reply.read())["message"]
            return f'cannot {use.verb} resource "{use.resource}"' in message
        finally:
            reply.close()

    def await_refusal(self, token: str, use: Use, path: str) -> None:
        """The API server's own view of roles follows in some milliseconds."""
        wait_until(lambda: self.refuses(token, use, path), lambda: f"{use} to be refused at {path}")

    def await_right(self, token: str, use: Use, path: str) -> None:
        """Likewise."""
        wait_until(lambda: not self.refuses(token, use, path), lambda: f"{use} to be allowed at {path}")

    def _gives(self, role: Any, use: Use) -> bool:
        holders = self._holders.get((role["kind"], role["metadata"]["name"]), ())
        return use.account in holders and any(_has(rule, use) for rule in role["rules"])


def _has(rule: Any, use: Use) -> bool:
    wanted = (use.verb, "verbs"), (use.group, "apiGroups"), (use.resource, "resources")
    return all(value in rule[field] for value, field in wanted)


def _rules_without(rules: Any, use: Use) -> Iterator[Any]:
    for rule in rules:
        if not _has(rule, use):
            yield rule
            continue
        for verb, group, resource in itertools.product(rule["verbs"], rule["apiGroups"], rule["resources"]):
            if (verb, group, resource) != use[1:]:
                yield {**rule, "verbs": [verb], "apiGroups": [group], "resources": [resource]}
