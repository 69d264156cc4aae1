"""The binding webhook of a resolver that runs outside of the cluster: its registration with the API server,
its certificate, and the rights of HOSS in that cluster.

The manifests come from deploy/. There the webhook is reached through a Service; here it is reached by a URL.
For the platform of `hoss up` the cluster gets one ValidatingWebhookConfiguration, which `hoss down` removes;
the certificate stays in files of this machine.

Comparisons and benchmarks run HOSS as a user of its own with the rights that deploy/ grants. The API server
does not check an administrator's requests against any rule, and that check is part of what a request
costs."""

import asyncio
import base64
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path

import yaml

from hoss.certificates import issue, new_authority
from hoss.errors import ConfigError, HossError
from hoss.kube.access import load_access
from hoss.kube.api import KubeApi, Object, Refused
from hoss.kube.paths import object_path, pod_path
from hossctl.cli import run_async

NAMESPACE = "hoss-system"
CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
NAME = "hoss-binding-guard"  # of the configuration in deploy/, and of its Secret
LOCAL_NAME = "hoss-binding-guard-local"  # may exist beside NAME
LOOPBACK = "127.0.0.1"

_DEPLOY = Path(__file__).parents[2] / "deploy" / "kustomize"
_WEBHOOK_MANIFEST = _DEPLOY / "components" / "guard" / "binding-guard.yaml"
_MEASURED_SECONDS = 10  # a benchmark measures long waits, too, where a cluster would go on without an answer
_RIGHTS_MANIFEST = _DEPLOY / "base" / "rbac.yaml"
_RIGHTS = ("ClusterRole", "Role", "ClusterRoleBinding", "RoleBinding")
_RESOLVER = "system:serviceaccount:hoss-system:hoss-resolver"

_PATH_FILE, _PATH_SECRET_BYTES = "path", 24  # see resolver/kubernetes/webhook/callers.py
_LIFETIME = timedelta(days=365)  # of a certificate; `hoss up` makes a new one each time
_APPLY = "application/apply-patch+yaml"
_NOT_FOUND = 404
_REMOVE_SECONDS = 5.0
_PROBE = "hoss-guard-probe"  # a pod and a node that do not exist
_CALLED_SECONDS = 120.0  # takes a second on an idle machine
_CALLED_POLL_SECONDS = 0.1

_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
_GRANTED_SECONDS = 60.0
_GRANTED_POLL_SECONDS = 0.05
# One right of each service account: when the API server knows it, it knows the others.
_SAMPLE_RIGHTS = (
    {"verb": "list", "resource": "pods"},
    {"verb": "create", "resource": "pods", "subresource": "binding"},
)
_WEBHOOKS = {"group": "admissionregistration.k8s.io", "resource": "validatingwebhookconfigurations"}
_SAMPLE_WEBHOOK_RIGHTS = (
    {"verb": "patch", "name": NAME, **_WEBHOOKS},
    {"verb": "update", "resource": "secrets", "name": NAME, "namespace": NAMESPACE},
)


def make_certificate(directory: Path) -> bytes:
    """Write tls.crt, tls.key and path for a webhook on loopback, and return the authority's certificate, PEM.
    The authority's key is not kept."""
    now = datetime.now(timezone.utc)
    authority = new_authority("hoss local binding guard", now=now, lifetime=_LIFETIME)
    serving = issue(authority, [LOOPBACK], now=now, lifetime=_LIFETIME)
    directory.mkdir(parents=True, exist_ok=True)
    path_secret = secrets.token_hex(_PATH_SECRET_BYTES).encode()
    for name, content in (
        ("tls.crt", serving.certificate),
        ("tls.key", serving.key),
        (_PATH_FILE, path_secret),
    ):
        path = directory / name
        path.unlink(missing_ok=True)
        path.touch(mode=0o600)
        path.write_bytes(content)
    return authority.certificate


def register(kubeconfig: Path, port: int, authority: bytes, directory: Path) -> None:
    """Register the webhook of a resolver on loopback as LOCAL_NAME, and return when the API server calls it.
    `directory`: of `make_certificate`.

    No user is exempt, unlike in the manifest: somebody who tries HOSS out may use the same user as the
    resolver. Raises HossError, with what to do."""

    async def act(api: KubeApi) -> None:
        url = f"{url_of(port)}/{(directory / _PATH_FILE).read_text('ascii')}"
        for document in webhook_objects(url, failure_policy="Ignore", authority=authority):
            if document["kind"] == "ValidatingWebhookConfiguration":
                document["metadata"]["name"] = LOCAL_NAME
                (hook,) = document["webhooks"]
                hook.pop("matchConditions", None)
                await apply(api, document)
        await wait_until_called(api)

    _with_api(kubeconfig, act)


def remove(kubeconfig: Path) -> None:
    """Undo `register`, whether or not it was done. Raises HossError where the API server does not answer."""

    async def act(api: KubeApi) -> None:
        reply = await api.ask(
            "DELETE", object_path(CONFIGURATIONS, LOCAL_NAME), patience_seconds=_REMOVE_SECONDS
        )
        if not reply.done and reply.status != _NOT_FOUND:
            raise Refused(reply, f"DELETE {LOCAL_NAME}")

    _with_api(kubeconfig, act)


def _with_api(kubeconfig: Path, act: Callable[[KubeApi], Awaitable[None]]) -> None:
    async def run() -> None:
        api = KubeApi(load_access(kubeconfig), user_agent="hoss")
        try:
            await act(api)
        finally:
            await api.close()

    run_async(run())


def webhook_objects(
    url: str,
    *,
    failure_policy: str,
    resolver: str = _RESOLVER,
    authority: bytes = b"",
    timeout_seconds: int = 1,
) -> Iterator[Object]:
    """The objects of the webhook's manifest. `resolver`: the user of resolvers, which gets their rights.
    `authority`: PEM, trusted by the API server from the start. `timeout_seconds`: how long the API server
    waits for an answer. Raises ConfigError where there is no manifest."""
    for document in _documents(_WEBHOOK_MANIFEST):
        if document["kind"] == "ValidatingWebhookConfiguration":
            (hook,) = document["webhooks"]
            bundle = {"caBundle": base64.b64encode(authority).decode()} if authority else {}
            for condition in hook["matchConditions"]:
                condition["expression"] = condition["expression"].replace(_RESOLVER, resolver)
            hook["failurePolicy"], hook["clientConfig"] = failure_policy, {"url": url, **bundle}
            hook["timeoutSeconds"] = timeout_seconds
        yield document if resolver == _RESOLVER else _bound_to(document, resolver)


def url_of(port: int) -> str:
    """The URL of the webhook of a resolver on loopback."""
    return f"https://{LOOPBACK}:{port}/bindings"


async def grant(api: KubeApi, user: str) -> None:
    """Give `user` the rights of all of HOSS's service accounts, and return when the API server knows them.
    Raises ConfigError where there is no manifest, HossError where the API server does not learn of them;
    Refused, TransportError."""
    await _create_namespace(api)
    for document in _documents(_RIGHTS_MANIFEST):
        if document["kind"] in _RIGHTS:
            await apply(api, _bound_to(document, user))
    await _wait_until_granted(api, user, _SAMPLE_RIGHTS)


async def grant_webhook(api: KubeApi, user: str, url: str, *, failure_policy: str) -> None:
    """Register the webhook at this URL with `user` as its resolver, which gets the rights for it. Raises as
    `grant` does."""
    await _create_namespace(api)
    for document in webhook_objects(
        url, failure_policy=failure_policy, resolver=user, timeout_seconds=_MEASURED_SECONDS
    ):
        await apply(api, document)
    await _wait_until_granted(api, user, _SAMPLE_WEBHOOK_RIGHTS)


async def published(api: KubeApi) -> tuple[bytes, str]:
    """The certificate, PEM, by which the API server trusts the webhook, and the URL that it asks. Raises
    Refused, TransportError."""
    (hook,) = (await api.get(object_path(CONFIGURATIONS, NAME)))["webhooks"]
    config = hook["clientConfig"]
    return base64.b64decode(config.get("caBundle", "")), config.get("url", "")


async def wait_until_called(api: KubeApi) -> None:
    """Return when the API server calls the webhook for bindings of this client; it learns of webhooks with a
    delay. Raises HossError, with the last answer of the API server, where that takes too long."""
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": _PROBE, "namespace": "default"},
        "target": {"kind": "Node", "name": _PROBE},
    }
    path = pod_path("default", _PROBE, "binding")
    deadline = time.monotonic() + _CALLED_SECONDS
    while True:
        reply = await api.send("POST", path, binding, params={"dryRun": "All"})
        if "not among the nodes" in reply.message:  # the webhook's own words about the node
            return
        if time.monotonic() > deadline:
            raise HossError(
                f"the API server does not ask the guard: {reply.status} {reply.message}; it has to reach the "
                "guard's URL, so for one on loopback it has to run on this machine, in no container"
            )
        await asyncio.sleep(_CALLED_POLL_SECONDS)


async def apply(api: KubeApi, document: Object) -> None:
    """Do what `kubectl apply --server-side` does. Raises Refused, TransportError."""
    reply = await api.ask(
        "PATCH",
        path_of(document),
        document,
        params={"fieldManager": "hoss", "force": "true"},
        content_type=_APPLY,
        patience_seconds=_CALLED_SECONDS,
    )
    if not reply.done:
        raise Refused(reply, f"{document['kind']} {document['metadata']['name']}")


def path_of(document: Object) -> str:
    """The path of a manifest's object at the API server."""
    version = document["apiVersion"]
    namespace = document["metadata"].get("namespace")
    within = ("namespaces", namespace) if namespace else ()
    kind = document["kind"].lower()
    plural = f"{kind[:-1]}ies" if kind.endswith("y") else f"{kind}es" if kind.endswith("s") else f"{kind}s"
    api = f"/{'apis' if '/' in version else 'api'}/{version}"
    return object_path(api, *within, plural, document["metadata"]["name"])


def _documents(manifest: Path) -> Iterator[Object]:
    if not manifest.is_file():
        raise ConfigError(
            "is not there: it comes with the source tree, not with an installed package", where=str(manifest)
        )
    yield from yaml.safe_load_all(manifest.read_text())


def _bound_to(document: Object, user: str) -> Object:
    """A binding of rights with this user as its subject; any other object unchanged."""
    subjects = [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}]
    return document | ({"subjects": subjects} if "subjects" in document else {})


async def _create_namespace(api: KubeApi) -> None:
    await api.ask("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})  # it may exist


async def _wait_until_granted(api: KubeApi, user: str, actions: Iterable[Mapping[str, str]]) -> None:
    deadline = time.monotonic() + _GRANTED_SECONDS
    for action in actions:
        while not await _allowed(api, user, action):
            if time.monotonic() > deadline:
                raise HossError(
                    f"the API server does not know what {user} may do after {_GRANTED_SECONDS:g} s"
                )
            await asyncio.sleep(_GRANTED_POLL_SECONDS)


async def _allowed(api: KubeApi, user: str, action: Mapping[str, str]) -> bool:
    reply = await api.ask("POST", _REVIEWS, {"spec": {"user": user, "resourceAttributes": dict(action)}})
    if not reply.done:
        raise Refused(reply, f"POST {_REVIEWS}")
    return bool(reply.json()["status"]["allowed"])
