"""The table of rights: complete for every method that a service has, and no more than what each caller
needs."""

import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from hoss.errors import AccessDenied, InvalidInput
from hoss.security.identity import CallerKind, Identity, Role, metadata_of_tenant, tenant_of_metadata
from hoss.security.rights import RIGHTS, is_audited, refusal
from hoss.v1 import dispatcher_pb2, resolver_pb2, workerlink_pb2

DISPATCHER, RESOLVER = Identity(CallerKind.DISPATCHER), Identity(CallerKind.RESOLVER)
WORKER = Identity(CallerKind.WORKER, "w1")
METHODS = [
    f"/{service.full_name}/{method.name}"
    for module in (dispatcher_pb2, resolver_pb2, workerlink_pb2, health_pb2, reflection_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
]


def client(role: Role, tenant: str = "") -> Identity:
    return Identity(CallerKind.CLIENT, "somebody", role, tenant)


def test_every_method_of_every_service_has_a_row_and_every_row_a_method() -> None:
    assert len(METHODS) > 40
    assert set(METHODS) == set(RIGHTS)


def test_nobody_may_call_what_is_not_in_the_table() -> None:
    for identity in (DISPATCHER, RESOLVER, WORKER, client(Role.ADMIN)):
        assert refusal("/hoss.v1.Dispatcher/Invented", identity)


@pytest.mark.parametrize("method", METHODS)
def test_who_has_no_role_may_ask_for_health_alone(method: str) -> None:
    assert (refusal(method, client(Role.NONE)) == "") == method.startswith("/grpc.health.v1.")


@pytest.mark.parametrize("method", METHODS)
def test_each_role_may_do_what_the_ones_before_it_may(method: str) -> None:
    allowed = [refusal(method, client(role)) == "" for role in Role]
    assert allowed == sorted(allowed)


CHANGES_OF_PODS = {
    f"Dispatcher/{name}" for name in ("Submit", "SubmitStream", "Delete", "RemoveGates", "Retry")
}


def allowed(role: Role, tenant: str = "") -> set[str]:
    """The methods of HOSS that a client of this role may call, as Service/Method."""
    methods = (method for method in METHODS if not refusal(method, client(role, tenant)))
    return {method.removeprefix("/hoss.v1.") for method in methods if method.startswith("/hoss.v1.")}


def test_invariant_8_each_role_may_change_what_is_its_own_and_no_more() -> None:
    """Whoever widens a right says so here, too."""
    questions = ("Get", "List", "Watch", "Lookup", "Audit", "TestPolicy")
    assert [m for m in allowed(Role.VIEW) if not m.partition("/")[2].startswith(questions)] == []
    assert allowed(Role.SUBMIT) - allowed(Role.VIEW) == CHANGES_OF_PODS
    assert allowed(Role.ADMIN) - allowed(Role.OPERATE) == {"Resolver/DumpLedger", "Resolver/Rebuild"}


def test_invariant_8_a_tenants_client_may_ask_for_pods_and_change_them() -> None:
    names = ("GetPod", "ListPods", "ListJobs", "GetPodSummary", "Watch", "ListTenants", "GetStatus")
    questions = {f"Dispatcher/{name}" for name in names}
    assert allowed(Role.SUBMIT, "research") == CHANGES_OF_PODS | questions


@pytest.mark.parametrize("method", METHODS)
def test_a_tenants_client_may_do_nothing_that_a_client_of_its_role_may_not(method: str) -> None:
    for role in (Role.VIEW, Role.SUBMIT):
        assert refusal(method, client(role, "research")) or not refusal(method, client(role))


def test_a_worker_may_use_its_link_propose_and_read_the_feed_and_the_status_of_resolvers() -> None:
    assert {m for m in METHODS if not refusal(m, WORKER) and not m.startswith("/grpc.")} == {
        "/hoss.v1.WorkerLink/Connect",
        "/hoss.v1.Resolver/Propose",
        "/hoss.v1.Resolver/Feed",
        "/hoss.v1.Resolver/GetStatus",
    }


def test_no_client_acts_as_a_dispatcher_or_a_worker() -> None:
    for name in ("Resolver/GrantEpoch", "Resolver/Confirm", "Resolver/Propose", "WorkerLink/Connect"):
        assert "no client" in refusal(f"/hoss.v1.{name}", client(Role.ADMIN))


def test_a_dispatcher_and_a_resolver_call_no_dispatcher() -> None:
    calls = [m for m in METHODS if m.startswith(("/hoss.v1.Dispatcher/", "/hoss.v1.WorkerLink/"))]
    assert all(refusal(method, identity) for method in calls for identity in (DISPATCHER, RESOLVER))


def test_what_concerns_the_whole_platform_is_not_for_a_tenant() -> None:
    for name in ("GetConflicts", "ListWorkers", "GetPolicy", "ListObjects"):
        assert "'research'" in refusal(f"/hoss.v1.Dispatcher/{name}", client(Role.VIEW, "research"))


@pytest.mark.parametrize(
    ("call", "request_", "recorded"),
    [
        ("Dispatcher/Submit", dispatcher_pb2.SubmitRequest(), True),
        ("Dispatcher/SetPolicy", dispatcher_pb2.Policy(), True),
        ("Dispatcher/Rebalance", dispatcher_pb2.RebalanceRequest(action="REBALANCE_PAUSE"), True),
        ("Dispatcher/Rebalance", dispatcher_pb2.RebalanceRequest(action="REBALANCE_START"), True),
        ("Dispatcher/Rebalance", dispatcher_pb2.RebalanceRequest(action="REBALANCE_STATUS"), False),
        ("Dispatcher/Rebalance", dispatcher_pb2.RebalanceRequest(previous=True), False),
        ("Dispatcher/ReportRebalancing", dispatcher_pb2.RebalanceController(), False),
        ("Dispatcher/Steer", dispatcher_pb2.SteerRequest(overlap="auto"), True),
        ("Dispatcher/Steer", dispatcher_pb2.SteerRequest(workers="2"), True),
        ("Dispatcher/Steer", dispatcher_pb2.SteerRequest(), False),
        ("Dispatcher/Audit", dispatcher_pb2.DispatcherAuditRequest(), False),
        ("Dispatcher/ListPods", dispatcher_pb2.ListPodsRequest(), False),
        ("Resolver/Rebuild", iter(()), True),
        ("Resolver/DumpLedger", resolver_pb2.DumpLedgerRequest(), True),
        ("Resolver/Propose", iter(()), False),
        ("Resolver/Feed", resolver_pb2.FeedRequest(), False),
    ],
)
def test_changes_by_clients_and_dumps_are_audited_and_questions_are_not(
    call: str, request_: object, recorded: bool
) -> None:
    assert is_audited(f"/hoss.v1.{call}", request_) == recorded


@pytest.mark.parametrize(
    "identity",
    [
        DISPATCHER,
        RESOLVER,
        WORKER,
        client(Role.SUBMIT, "a/b?c=d&e"),
        Identity(CallerKind.CLIENT, "a b/ü", Role.ADMIN),
    ],
    ids=str,
)
def test_a_certificates_uri_gives_back_the_identity(identity: Identity) -> None:
    assert Identity.from_uri(identity.uri) == identity
    assert identity.uri.isascii()


@pytest.mark.parametrize(
    "uri",
    [
        "",
        "https:dispatcher",
        "hoss:",
        "hoss:king",
        "hoss:worker",
        "hoss:worker/",
        "hoss:dispatcher/d1",
        "hoss:client/c?role=root",
        "hoss:client/c?role=view&role=admin",
        "hoss:client/c?role=view&shoe=42",
        "hoss:client/c?role=admin&tenant=research",
        "hoss:worker/w1?role=admin",
        "hoss:worker/w1?tenant=research",
        "hoss:worker/w%0a1",
        f"hoss:worker/{'w' * 254}",
    ],
)
def test_another_uri_is_no_identity(uri: str) -> None:
    with pytest.raises(InvalidInput):
        Identity.from_uri(uri)


@pytest.mark.parametrize(
    ("certificate", "name", "may"),
    [
        ("w1", "w1", True),
        ("w1", "w10", False),
        ("w*", "w1", True),
        ("w*", "w", False),
        ("w*", "v1", False),
        ("*", "anything", True),
        ("a*b", "acb", False),
    ],
)
def test_a_worker_has_the_name_of_its_certificate_or_one_that_begins_so(certificate, name, may) -> None:
    assert Identity.from_uri(Identity(CallerKind.WORKER, certificate).uri).may_be(name) is may


_RANK = list(Role).index


@pytest.mark.parametrize("role", [Role.VIEW, Role.SUBMIT, Role.OPERATE, Role.ADMIN])
def test_who_is_limited_to_a_tenant_may_do_what_its_own_clients_may_and_never_more(role: Role) -> None:
    limited = Identity(CallerKind.CLIENT, "dashboard", role).limited_to("blue")
    assert limited == Identity(CallerKind.CLIENT, "dashboard", min(role, Role.SUBMIT, key=_RANK), "blue")
    assert limited.limited_to("blue") == limited
    with pytest.raises(AccessDenied, match="cannot call for tenant 'red'"):
        limited.limited_to("red")


def test_a_service_and_who_has_no_role_are_not_given_rights_by_a_tenant() -> None:
    nobody = Identity(CallerKind.CLIENT, "entry")
    assert nobody.limited_to("blue") == nobody
    with pytest.raises(AccessDenied):
        Identity(CallerKind.DISPATCHER).limited_to("blue")


@pytest.mark.parametrize("tenant", ["research", "forschung-ä", "研究", "a b", " a", "50%", "a%20b", "a/b"])
def test_a_tenant_of_any_name_is_in_metadata_what_a_call_can_send(tenant: str) -> None:
    ((_, value),) = metadata_of_tenant(tenant)
    assert value.isascii()
    assert " " not in value
    assert tenant_of_metadata(value) == tenant


def test_without_a_tenant_there_are_no_metadata() -> None:
    assert metadata_of_tenant("") == ()


@pytest.mark.parametrize("tenant", ["x\ny", "x\x00", "x" * 300])
def test_a_tenant_that_cannot_be_one_is_refused(tenant: str) -> None:
    with pytest.raises(InvalidInput, match="printable"):
        Identity(CallerKind.CLIENT, "ana", Role.VIEW, tenant)
    with pytest.raises(AccessDenied, match="printable"):
        Identity(CallerKind.CLIENT, "ana", Role.VIEW).limited_to(tenant)
