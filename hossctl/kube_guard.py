"""The guard's manifest for a resolver that runs outside of the cluster: found in deploy/, and told a URL instead of a Service."""

import asyncio
import base64
import time
from collections.abc import Iterator
from pathlib import Path

import yaml

from hoss.errors import ConfigError, HossError
from hoss.kube.api import KubeApi, Object, Refused

MANIFEST = Path(__file__).parents[1] / "deploy" / "kustomize" / "components" / "guard" / "binding-guard.yaml"
NAMESPACE = "hoss-system"

CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
LOCAL_NAME = "hoss-binding-guard-local"  # beside the one of resolvers in the cluster, should there be any

_APPLY = "application/apply-patch+yaml"
_PROBE = "hoss-guard-probe"
_ASKED_SECONDS = 120.0  # it takes a second; on a busy machine longer
_LOOK_SECONDS = 0.1
_NOT_FOUND = 404

_RESOLVER = "system:serviceaccount:hoss-system:hoss-resolver"


def guard_objects(
    url: str, *, failure_policy: str, resolver: str = _RESOLVER, authority: bytes = b""
) -> Iterator[Object]:
    """Of the manifest. `resolver`: as which user resolvers come to the API server; it gets their rights. `authority`: PEM, whom the API
    server is to trust from the start. Raises ConfigError where there is no manifest."""
    for document in yaml.safe_load_all(manifest_at(MANIFEST)):
        if document["kind"] == "ValidatingWebhookConfiguration":
            (hook,) = document["webhooks"]
            bundle = {"caBundle": base64.b64encode(authority).decode()} if authority else {}
            for condition in hook["matchConditions"]:
                condition["expression"] = condition["expression"].replace(_RESOLVER, resolver)
            hook["failurePolicy"], hook["clientConfig"] = failure_policy, {"url": url, **bundle}
        yield document if resolver == _RESOLVER else given_to(document, resolver)


def given_to(document: Object, user: str) -> Object:
    """A binding of rights as one to this user; any other object as it is."""
    subjects = [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}]
    return document | ({"subjects": subjects} if "subjects" in document else {})


def manifest_at(path: Path) -> str:
    """Its text. Raises ConfigError where it is not there."""
    if not path.is_file():
        raise ConfigError("is not there: it comes with the source tree, not with an installed package", where=str(path))
    return path.read_text()


def path_of(document: Object) -> str:
    """Where the API server has an object of a manifest."""
    version = document["apiVersion"]
    namespace = document["metadata"].get("namespace")
    within = f"namespaces/{namespace}/" if namespace else ""
    kind = document["kind"].lower()
    plural = f"{kind[:-1]}ies" if kind.endswith("y") else f"{kind}s"
    return f"/{'apis' if '/' in version else 'api'}/{version}/{within}{plural}/{document['metadata']['name']}"


async def install_guard(api: KubeApi, url: str, *, failure_policy: str, resolver: str) -> None:
    """Put the manifest into the cluster, as `guard_objects` makes it. Raises Refused, TransportError."""
    await api.ask("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})  # it may be there
    for document in guard_objects(url, failure_policy=failure_policy, resolver=resolver):
        await apply(api, document)


async def register_local(api: KubeApi, url: str, authority: bytes) -> None:
    """Have the API server ask a resolver of this machine, and return once it does. Nobody is left out as in the manifest: who tries things
    out may come as the same user as the resolver. Raises Refused, TransportError, HossError where it does not ask."""
    for document in guard_objects(url, failure_policy="Ignore", authority=authority):
        if document["kind"] == "ValidatingWebhookConfiguration":
            document["metadata"]["name"] = LOCAL_NAME
            (hook,) = document["webhooks"]
            hook.pop("matchConditions", None)
            await apply(api, document)
    await until_asked(api)


async def remove_local(api: KubeApi, *, patience_seconds: float) -> None:
    """Undo `register_local`, whether or not it was done. Raises Refused, TransportError."""
    reply = await api.ask("DELETE", f"{CONFIGURATIONS}/{LOCAL_NAME}", patience_seconds=patience_seconds)
    if not reply.done and reply.status != _NOT_FOUND:
        raise Refused(reply, f"DELETE {LOCAL_NAME}")


async def apply(api: KubeApi, document: Object) -> None:
    """As `kubectl apply --server-side`. Raises Refused, TransportError."""
    params = {"fieldManager": "hoss", "force": "true"}
    path = path_of(document)
    reply = await api.ask("PATCH", path, document, params=params, content_type=_APPLY, patience_seconds=_ASKED_SECONDS)
    if not reply.done:
        raise Refused(reply, f"{document['kind']} {document['metadata']['name']}")


def url_of(port: int) -> str:
    """Of the webhook of a resolver on loopback."""
    return f"https://127.0.0.1:{port}/bindings"


async def trusted_authority(api: KubeApi) -> bytes:
    """PEM: by what the API server knows the webhook. Raises Refused, TransportError."""
    (hook,) = (await api.get(f"{CONFIGURATIONS}/hoss-binding-guard"))["webhooks"]
    return base64.b64decode(hook["clientConfig"].get("caBundle", ""))


async def until_asked(api: KubeApi) -> None:
    """Return once the API server asks the guard about bindings of this client: it hears of webhooks with some delay. Raises
    HossError where that takes too long, with the API server's last word."""
    metadata = {"name": _PROBE, "namespace": "default"}
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": {"kind": "Node", "name": _PROBE}}
    deadline = time.monotonic() + _ASKED_SECONDS
    while True:
        reply = await api.send(
            "POST", f"/api/v1/namespaces/default/pods/{_PROBE}/binding", binding, params={"dryRun": "All"}
        )
        if "not among the nodes" in reply.message:
            return
        if time.monotonic() > deadline:
            raise HossError(
                f"the API server does not ask the guard: {reply.status} {reply.message}; it has to reach the guard's URL, so for one on "
                "loopback it has to run on this machine, in no container"
            )
        await asyncio.sleep(_LOOK_SECONDS)
