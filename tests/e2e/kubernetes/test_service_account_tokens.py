"""Tokens of ServiceAccounts at the doors of services that ask a real API server whose they are, with the
rights that deploy/ gives them."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from e2e.attacks import METHODS, ConfiguredCluster
from e2e.kubernetes import renderers
from e2e.kubernetes.api import Api
from e2e.kubernetes.guarded import apply, kubeconfig_of
from oidc_issuer import tampered
from waiting import until

from hoss.security.identity import CallerKind, Identity, Role
from hossctl.local.control_plane import ControlPlane

pytestmark = pytest.mark.skipif(bool(renderers.missing()), reason=renderers.missing())

RULES = [
    {"users": ["system:serviceaccount:*:robot"], "role": "submit", "tenant": "*"},
    {"groups": ["system:serviceaccounts:operators"], "role": "operate"},
]
CACHE_SECONDS = 1
RIGHTS = ("Namespace", "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
REVIEW = ("ClusterRole", "hoss-token-review")


@pytest.fixture
def account(api: Api) -> Callable[..., str]:
    """Makes a ServiceAccount, and a token of it."""

    def make(namespace: str, name: str, *, audience: str = "hoss", pod: Any = None) -> str:
        api.request("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})  # may be there
        accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts"
        api.request("POST", accounts, {"metadata": {"name": name}})
        spec: dict[str, Any] = {"audiences": [audience] if audience else []}
        if pod is not None:
            metadata = pod["metadata"]
            spec["boundObjectRef"] = {
                "apiVersion": "v1",
                "kind": "Pod",
                "name": metadata["name"],
                "uid": metadata["uid"],
            }
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        token: str = api("POST", f"{accounts}/{name}/token", request)["status"]["token"]
        return token

    return make


@pytest.fixture
def doors(tmp_path: Path, control_plane: ControlPlane, api: Api) -> Iterator[ConfiguredCluster]:
    """The services of the overlay `service-accounts`, each as its service account."""
    for (kind, _), document in renderers.objects_of(renderers.kustomized("service-accounts")).items():
        if kind in RIGHTS:
            apply(api, document)
    kubeconfigs = {name: tmp_path / f"{name}.kubeconfig" for name in ("dispatcher", "resolver")}
    for name, path in kubeconfigs.items():
        path.write_text(kubeconfig_of(api, control_plane, f"hoss-{name}"))
    authentication = {"service_accounts": {"cache_seconds": CACHE_SECONDS}, "rules": RULES}
    made = ConfiguredCluster(tmp_path, authentication, kubeconfigs=kubeconfigs)
    yield made
    made.stop()


async def test_a_service_account_may_do_what_its_rule_says_and_each_refusal_says_why(
    doors: ConfiguredCluster, api: Api, account: Callable[..., str]
) -> None:
    operator = account("operators", "ops")
    robot = account("blue", "robot")
    name = "system:serviceaccount:operators:ops"
    await doors.check_rights(operator, Identity(CallerKind.CLIENT, name, Role.OPERATE))
    tenant = Identity(CallerKind.CLIENT, "system:serviceaccount:blue:robot", Role.SUBMIT, "blue")
    await doors.check_rights(robot, tenant)

    nobody = account("blue", "other")
    codes = await doors.codes(nobody)
    assert set(codes.values()) == {grpc.StatusCode.PERMISSION_DENIED}
    assert len(codes) == len(METHODS)
    changed = tampered(robot, sub="system:serviceaccount:operators:ops")
    assert set((await doors.codes(changed)).values()) == {grpc.StatusCode.UNAUTHENTICATED}

    elsewhere, default = account("blue", "robot", audience="elsewhere"), account("blue", "robot", audience="")
    told = {
        nobody: "system:serviceaccount:blue:other is known and has no role here",
        changed: "the API server does not know it",
        elsewhere: "for another audience; get one for 'hoss'",
        default: "for another audience; get one for 'hoss'",  # for the API server itself
        tampered(robot, exp=int(time.time()) - 1): "has expired",
        tampered(robot, exp=None): "has no expiry",
    }
    for token, sentence in told.items():
        assert sentence in await doors.said(token)
    assert await doors.said(robot) == ""
    await doors.check_secret([robot, operator, *told])


async def test_a_token_ends_with_the_pod_that_it_was_made_for(
    doors: ConfiguredCluster, api: Api, account: Callable[..., str]
) -> None:
    account("default", "robot")
    pod = api.create_pod("client", serviceAccountName="robot", terminationGracePeriodSeconds=0)
    token = account("default", "robot", pod=pod)
    assert await doors.said(token) == ""
    api("DELETE", "/api/v1/namespaces/default/pods/client?gracePeriodSeconds=0")

    async def ended() -> bool:
        return "pod or ServiceAccount is gone" in await doors.said(token)

    await until(ended, "the token is asked about again")


async def test_without_the_right_to_ask_a_service_says_that_it_lacks_it(
    doors: ConfiguredCluster, api: Api, account: Callable[..., str]
) -> None:
    token = account("blue", "robot")
    assert await doors.said(token) == ""
    api("DELETE", f"/apis/rbac.authorization.k8s.io/v1/clusterroles/{REVIEW[1]}")

    async def lacking() -> bool:
        return "lacks the right to create tokenreviews" in await doors.said(token)

    await until(lacking, "the right is gone")
