"""Who may call which method: one table. What is not in it, nobody may call.

A tenant's client may call what is marked so. The service then shows and changes only that tenant's pods
(dispatcher/api/service.py). Everything else is about the whole platform."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hoss.security.identity import CallerKind, Identity, Role
from hoss.v1 import dispatcher_pb2

_SERVICES = frozenset({CallerKind.DISPATCHER, CallerKind.RESOLVER, CallerKind.WORKER})


@dataclass(frozen=True, slots=True)
class Right:
    """Who may call a method: services of these kinds, and clients whose role includes `role`. `role` None: no
    client. `tenants`: also clients that are limited to a tenant."""

    role: Role | None = None
    services: frozenset[CallerKind] = frozenset()
    tenants: bool = False

    def refusal(self, identity: Identity) -> str:
        """Why this caller may not call it; "" if it may."""
        if identity.kind is not CallerKind.CLIENT:
            return "" if identity.kind in self.services else f"a {identity.kind.value} may not"
        if self.role is None:
            allowed = " and ".join(sorted(kind.value for kind in self.services))
            return f"only a {allowed} may, no client"
        if identity.role is Role.NONE and self.role is not Role.NONE:
            return (
                f"it takes the role {self.role.value}, and its certificate has none: show a token too "
                "(HOSS_TOKEN, `hoss login`), or have a certificate with a role"
            )
        if not identity.role.includes(self.role):
            return f"it takes the role {self.role.value}, and the caller has {identity.role.value}"
        if identity.tenant and not self.tenants:
            return f"it is about the whole platform, and the caller is limited to tenant {identity.tenant!r}"
        return ""


def _client(role: Role, *kinds: CallerKind, tenants: bool = False) -> Right:
    return Right(role, frozenset(kinds), tenants)


_ANYBODY = Right(Role.NONE, _SERVICES, tenants=True)
_DISPATCHER_ALONE = Right(None, frozenset({CallerKind.DISPATCHER}))
_WORKER_ALONE = Right(None, frozenset({CallerKind.WORKER}))

RIGHTS: Mapping[str, Right] = {
    # Pods and jobs. A tenant's client: its own.
    "/hoss.v1.Dispatcher/Submit": _client(Role.SUBMIT, tenants=True),
    "/hoss.v1.Dispatcher/SubmitStream": _client(Role.SUBMIT, tenants=True),
    "/hoss.v1.Dispatcher/GetPod": _client(Role.VIEW, tenants=True),
    "/hoss.v1.Dispatcher/ListPods": _client(Role.VIEW, tenants=True),
    "/hoss.v1.Dispatcher/ListJobs": _client(Role.VIEW, tenants=True),
    "/hoss.v1.Dispatcher/GetPodSummary": _client(Role.VIEW, tenants=True),
    "/hoss.v1.Dispatcher/Watch": _client(Role.VIEW, tenants=True),
    "/hoss.v1.Dispatcher/Delete": _client(Role.SUBMIT, tenants=True),
    "/hoss.v1.Dispatcher/RemoveGates": _client(Role.SUBMIT, tenants=True),
    "/hoss.v1.Dispatcher/Retry": _client(Role.SUBMIT, tenants=True),
    "/hoss.v1.Dispatcher/ListTenants": _client(Role.VIEW, tenants=True),
    # Of it a tenant's client gets the counts of its own pods, and the revision that a watch begins at.
    "/hoss.v1.Dispatcher/GetStatus": _client(Role.VIEW, tenants=True),
    # The platform: what is shown names pods of all tenants, or concerns all of them.
    "/hoss.v1.Dispatcher/ApplyObjects": _client(Role.OPERATE),
    "/hoss.v1.Dispatcher/DeleteObjects": _client(Role.OPERATE),
    "/hoss.v1.Dispatcher/ListObjects": _client(Role.VIEW),
    "/hoss.v1.Dispatcher/ListStorage": _client(Role.VIEW),
    "/hoss.v1.Dispatcher/ListWorkers": _client(Role.VIEW),
    "/hoss.v1.Dispatcher/GetWorkTimeline": _client(Role.VIEW),
    "/hoss.v1.Dispatcher/SetWorkerState": _client(Role.OPERATE),
    "/hoss.v1.Dispatcher/GetPolicy": _client(Role.VIEW),
    "/hoss.v1.Dispatcher/SetPolicy": _client(Role.OPERATE),
    "/hoss.v1.Dispatcher/TestPolicy": _client(Role.VIEW),
    "/hoss.v1.Dispatcher/GetConflicts": _client(Role.VIEW),
    "/hoss.v1.Dispatcher/Steer": _client(Role.OPERATE),
    "/hoss.v1.Dispatcher/Rebalance": _client(Role.OPERATE),
    "/hoss.v1.Dispatcher/ReportRebalancing": _client(Role.OPERATE),
    "/hoss.v1.Dispatcher/Audit": _client(Role.OPERATE),
    # The name that a worker registers with must be that of its certificate.
    "/hoss.v1.WorkerLink/Connect": _WORKER_ALONE,
    # The ledger. A proposal must be under the name of the worker's certificate.
    "/hoss.v1.Resolver/Propose": _WORKER_ALONE,
    "/hoss.v1.Resolver/Feed": _client(Role.OPERATE, CallerKind.DISPATCHER, CallerKind.WORKER),
    "/hoss.v1.Resolver/UpsertNodes": _client(Role.OPERATE, CallerKind.DISPATCHER),
    "/hoss.v1.Resolver/RemoveNodes": _client(Role.OPERATE, CallerKind.DISPATCHER),
    "/hoss.v1.Resolver/CordonNode": _client(Role.OPERATE, CallerKind.DISPATCHER),
    "/hoss.v1.Resolver/ListNodes": _client(Role.VIEW, CallerKind.DISPATCHER),
    "/hoss.v1.Resolver/GrantEpoch": _DISPATCHER_ALONE,
    "/hoss.v1.Resolver/Lookup": _client(Role.VIEW, CallerKind.DISPATCHER),
    "/hoss.v1.Resolver/UpsertPods": _client(Role.OPERATE, CallerKind.DISPATCHER),
    "/hoss.v1.Resolver/Bind": _DISPATCHER_ALONE,
    "/hoss.v1.Resolver/Confirm": _DISPATCHER_ALONE,
    "/hoss.v1.Resolver/Move": _DISPATCHER_ALONE,
    "/hoss.v1.Resolver/Release": _client(Role.OPERATE, CallerKind.DISPATCHER),
    "/hoss.v1.Resolver/ListReservations": _client(Role.VIEW, CallerKind.DISPATCHER),
    "/hoss.v1.Resolver/Audit": _client(Role.VIEW, CallerKind.DISPATCHER),
    "/hoss.v1.Resolver/Repair": _client(Role.OPERATE, CallerKind.DISPATCHER),
    "/hoss.v1.Resolver/DumpLedger": _client(Role.ADMIN, CallerKind.DISPATCHER),
    "/hoss.v1.Resolver/Rebuild": _client(Role.ADMIN, CallerKind.DISPATCHER),
    "/hoss.v1.Resolver/AnnounceRebuild": _DISPATCHER_ALONE,
    "/hoss.v1.Resolver/GetStatus": _client(Role.VIEW, CallerKind.DISPATCHER, CallerKind.WORKER),
    # Beside every service.
    "/grpc.health.v1.Health/Check": _ANYBODY,
    "/grpc.health.v1.Health/Watch": _ANYBODY,
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": _client(Role.OPERATE),
}

# The endpoint of metrics, which is no method. They tell of all tenants together, and name workers.
READ_METRICS = _client(Role.METRICS)

# They take the right to make changes, and make none.
_READING = frozenset(
    {
        "/hoss.v1.Dispatcher/Audit",
        "/hoss.v1.Resolver/Feed",
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
    }
)
_EVERY_SECOND = frozenset({"/hoss.v1.Dispatcher/ReportRebalancing"})
_REBALANCE, _STEER = "/hoss.v1.Dispatcher/Rebalance", "/hoss.v1.Dispatcher/Steer"
_AUDITED = (
    frozenset(
        method
        for method, right in RIGHTS.items()
        if right.role is not None and right.role.includes(Role.SUBMIT)
    )
    - _READING
    - _EVERY_SECOND
)


def is_audited(method: str, request: Any) -> bool:
    """Whether a call is recorded in the audit log, allowed or refused: one by which a client changes what the
    platform does or holds, or takes the whole ledger with it (DumpLedger). Calls of the services among
    themselves are not, nor reads, nor reports that come every second (ADR 119)."""
    if method == _REBALANCE and request.action == dispatcher_pb2.REBALANCE_STATUS:
        return False
    if method == _STEER and not (request.overlap or request.workers):
        return False  # it asks for the setting
    return method in _AUDITED


def refusal(method: str, identity: Identity) -> str:
    """Why this caller may not call a method; "" if it may."""
    right = RIGHTS.get(method)
    return "no right for this method is written down" if right is None else right.refusal(identity)
