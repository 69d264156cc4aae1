"""The rights that deploy/ gives HOSS, for a HOSS that runs outside of the cluster as a user of its own.

A comparison with another scheduler needs them: an administrator's requests pass without a look at any rule, which is a part of what a
request costs the API server.
"""

import asyncio
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

import yaml

from hoss.errors import HossError
from hoss.kube.api import KubeApi, Refused
from hossctl.kube_guard import NAMESPACE, apply, given_to, install_guard, manifest_at

_MANIFEST = Path(__file__).parents[1] / "deploy" / "kustomize" / "base" / "rbac.yaml"
_RIGHTS = ("ClusterRole", "Role", "ClusterRoleBinding", "RoleBinding")
_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
# One of each account's.
_TELLING = (
    {"verb": "list", "resource": "pods"},
    {"verb": "create", "resource": "pods", "subresource": "binding"},
)
_GUARD = "hoss-binding-guard"
_WEBHOOKS = {"group": "admissionregistration.k8s.io", "resource": "validatingwebhookconfigurations"}
_TELLING_OF_GUARD = (
    {"verb": "patch", "name": _GUARD, **_WEBHOOKS},
    {"verb": "update", "resource": "secrets", "name": _GUARD, "namespace": NAMESPACE},
)
_GRANTED_SECONDS = 60.0
_LOOK_SECONDS = 0.05


async def grant(api: KubeApi, user: str) -> None:
    """Let `user` do what all of HOSS's service accounts may do together, and return once the API server knows. Raises ConfigError where
    there is no manifest, HossError where it does not learn of it; Refused, TransportError."""
    await api.ask("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})  # it may be there
    for document in yaml.safe_load_all(manifest_at(_MANIFEST)):
        if document["kind"] in _RIGHTS:
            await apply(api, given_to(document, user))
    await _until_known(api, user, _TELLING)


async def grant_guard(api: KubeApi, user: str, url: str, *, failure_policy: str) -> None:
    """Install the guard at this URL, with `user` as its resolver, and let that user do what one with a guard may do beside `grant`. Raises
    as `grant`."""
    await install_guard(api, url, failure_policy=failure_policy, resolver=user)
    await _until_known(api, user, _TELLING_OF_GUARD)


async def _until_known(api: KubeApi, user: str, actions: Iterable[Mapping[str, str]]) -> None:
    deadline = time.monotonic() + _GRANTED_SECONDS
    for action in actions:
        while not await _may(api, user, action):
            if time.monotonic() > deadline:
                raise HossError(f"the API server does not know what {user} may do after {_GRANTED_SECONDS:g} s")
            await asyncio.sleep(_LOOK_SECONDS)


async def _may(api: KubeApi, user: str, action: Mapping[str, str]) -> bool:
    reply = await api.ask("POST", _REVIEWS, {"spec": {"user": user, "resourceAttributes": dict(action)}})
    if not reply.done:
        raise Refused(reply, f"POST {_REVIEWS}")
    return bool(reply.json()["status"]["allowed"])
