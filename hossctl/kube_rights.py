"""The rights that deploy/ gives HOSS, for a HOSS that runs outside of the cluster as a user of its own.

A comparison with another scheduler needs them: an administrator's requests pass without a look at any rule, which is a part of what a
request costs the API server.
"""

import asyncio
import time
from pathlib import Path

import yaml

from hoss.errors import HossError
from hoss.kube.api import KubeApi, Refused
from hossctl.kube_guard import NAMESPACE, apply, manifest_at

_MANIFEST = Path(__file__).parents[1] / "deploy" / "kustomize" / "base" / "rbac.yaml"
_RIGHTS = ("ClusterRole", "Role", "ClusterRoleBinding", "RoleBinding")
_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
# One of each account's.
_TELLING = (
    {"verb": "list", "resource": "pods"},
    {"verb": "create", "resource": "pods", "subresource": "binding"},
)
_GRANTED_SECONDS = 60.0
_LOOK_SECONDS = 0.05


async def grant(api: KubeApi, user: str) -> None:
    """Let `user` do what all of HOSS's service accounts may do together, and return once the API server knows. Raises ConfigError where
    there is no manifest, HossError where it does not learn of it; Refused, TransportError."""
    await api.ask("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})  # it may be there
    subjects = [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}]
    for document in yaml.safe_load_all(manifest_at(_MANIFEST)):
        if document["kind"] in _RIGHTS:
            await apply(api, document | ({"subjects": subjects} if "subjects" in document else {}))
    deadline = time.monotonic() + _GRANTED_SECONDS
    for action in _TELLING:
        while not await _may(api, user, action):
            if time.monotonic() > deadline:
                raise HossError(f"the API server does not know what {user} may do after {_GRANTED_SECONDS:g} s")
            await asyncio.sleep(_LOOK_SECONDS)


async def _may(api: KubeApi, user: str, action: dict[str, str]) -> bool:
    reply = await api.ask("POST", _REVIEWS, {"spec": {"user": user, "resourceAttributes": action}})
    if not reply.done:
        raise Refused(reply, f"POST {_REVIEWS}")
    return bool(reply.json()["status"]["allowed"])
