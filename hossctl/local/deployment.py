"""The credentials of a deployment in containers: certificates of every service, and accounts of its Redis.

A directory has one folder for each container that needs some of it, so that each gets its own alone:

    authority/     hoss.security.authority, and the passwords of the Redis accounts
    dispatcher/    ca.crt, tls.crt, tls.key, tokens.pem, revoked; redis.password
    resolver/      likewise
    worker/        likewise, without a password
    operator/      likewise: a client with the role admin, for `hoss` commands
    dashboard/     likewise: a client with the role operate, for `hoss dashboard`
    prometheus/    likewise: a client with the role metrics
    redis/         users.acl

In a cluster each folder is a Secret, and the directory lasts only as long as the command. Both ways the
command may run again at any time: it makes what is missing, renews certificates when a third of their time is
left, and leaves everything else as it is."""

import base64
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from hoss.errors import HossError
from hoss.kube.api import KubeApi, Refused
from hoss.kube.paths import object_path
from hoss.redis.accounts import DISPATCHER, RESOLVER, USERS_FILE, RedisAccount, written_accounts
from hoss.security.authority import Authority
from hoss.security.identity import CallerKind, Identity, Role
from hoss.security.transport import server_name

AUTHORITY, REDIS, OPERATOR, PROMETHEUS = "authority", "redis", "operator", "prometheus"
DASHBOARD = "dashboard"
# Of certificates that serve others than HOSS's own clients.
_HOSTS: Mapping[str, tuple[str, ...]] = {DASHBOARD: (server_name(DASHBOARD),)}
PASSWORD_FILE = "redis.password"  # noqa: S105 - its name

# Secrets beside those of services, which are called hoss-SERVICE-tls.
AUTHORITY_SECRET, ACCOUNTS_SECRET = "hoss-authority", "hoss-redis-accounts"

_ATTEMPTS = 5
_PATIENCE_SECONDS = 30.0

Files = dict[str, bytes]  # by name


@dataclass(frozen=True, slots=True)
class Deployment:
    """What is asked for. `workers`: the name that all workers' certificate has; `*` at its end stands for
    any. `certificates`: False where somebody else issues them, as cert-manager does."""

    workers: str = "*"
    certificates: bool = True

    def identities(self) -> Mapping[str, Identity]:
        """Who has a certificate, by folder."""
        if not self.certificates:
            return {}
        return {
            "dispatcher": Identity(CallerKind.DISPATCHER),
            "resolver": Identity(CallerKind.RESOLVER),
            "worker": Identity(CallerKind.WORKER, self.workers),
            OPERATOR: Identity(CallerKind.CLIENT, OPERATOR, Role.ADMIN),
            DASHBOARD: Identity(CallerKind.CLIENT, DASHBOARD, Role.OPERATE),
            PROMETHEUS: Identity(CallerKind.CLIENT, PROMETHEUS, Role.METRICS),
        }


_ACCOUNTS: Mapping[str, RedisAccount] = {"dispatcher": DISPATCHER, "resolver": RESOLVER}


def fill(directory: Path, deployment: Deployment, *, now: datetime) -> None:
    """Make and renew what is due in the directory. Raises HossError for an authority that is damaged."""
    kept = directory / AUTHORITY
    users = written_accounts(kept)
    _replace(directory / REDIS / USERS_FILE, users.read_bytes(), mode=0o644)
    if deployment.certificates:
        authority = Authority.found_or_created(kept, now=now)
        for folder, identity in deployment.identities().items():
            authority.current(identity, now=now, hosts=_HOSTS.get(folder, ()), into=directory / folder)
    for folder, account in _ACCOUNTS.items():
        _replace(directory / folder / PASSWORD_FILE, (kept / account.password_file).read_bytes(), mode=0o600)


async def fill_secrets(api: KubeApi, namespace: str, deployment: Deployment, *, now: datetime) -> list[str]:
    """Make and renew what is due in the Secrets of a namespace; their names, of those that changed.

    The Secret of the authority is written first, and the write fails where another run was quicker: then
    everything is read anew. So two runs at once leave one authority. Raises HossError where it changes faster
    than that, Refused and TransportError where the API server does not do it."""
    for _ in range(_ATTEMPTS):
        with tempfile.TemporaryDirectory(prefix="hoss-credentials-") as temporary:
            try:
                return await _fill_once(api, namespace, deployment, Path(temporary), now)
            except Refused as refused:
                if refused.reply.status != 409:
                    raise
    raise HossError(f"the Secrets of {namespace} change faster than they can be written; try again")


async def _fill_once(
    api: KubeApi, namespace: str, deployment: Deployment, directory: Path, now: datetime
) -> list[str]:
    path = object_path("/api/v1/namespaces", namespace, "secrets")
    secrets = {AUTHORITY: AUTHORITY_SECRET, **{name: secret_of(name) for name in deployment.identities()}}
    found = {folder: await _find(api, object_path(path, name)) for folder, name in secrets.items()}
    for folder, secret in found.items():
        for name, content in _content(secret).items():
            _replace(directory / folder / name, content, mode=0o600)
    fill(directory, deployment, now=now)
    changed = []
    for folder, name in secrets.items():
        files = _files(directory / folder)
        files.pop(PASSWORD_FILE, None)  # in a Secret of its own, because cert-manager may make the others
        if folder == AUTHORITY:
            files.pop(USERS_FILE)
        if await _put(api, path, name, found[folder], files):
            changed.append(name)
    accounts = _files(directory / REDIS) | {
        account.password_file: (directory / AUTHORITY / account.password_file).read_bytes()
        for account in _ACCOUNTS.values()
    }
    if await _put(api, path, ACCOUNTS_SECRET, await _find(api, object_path(path, ACCOUNTS_SECRET)), accounts):
        changed.append(ACCOUNTS_SECRET)
    return changed


def secret_of(folder: str) -> str:
    """The Secret with the files of a service, or of the operator."""
    return f"hoss-{folder}-tls"


def _files(folder: Path) -> Files:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


def _content(secret: Mapping[str, Any] | None) -> Files:
    data = (secret or {}).get("data") or {}
    return {name: base64.b64decode(text) for name, text in data.items()}


async def _find(api: KubeApi, path: str) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = await api.get(path, patience_seconds=_PATIENCE_SECONDS)
    except Refused as refused:
        if refused.reply.status == 404:
            return None
        raise
    return found


async def _put(api: KubeApi, path: str, name: str, found: dict[str, Any] | None, files: Files) -> bool:
    """Whether the Secret had to be written. Raises Refused, with status 409 where it changed meanwhile."""
    if found is not None and _content(found) == files:
        return False
    metadata = {"name": name}
    if found is not None:
        metadata["resourceVersion"] = found["metadata"]["resourceVersion"]
    body = {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "Opaque" if found is None else found.get("type", "Opaque"),
        "metadata": metadata,
        "data": {file: base64.b64encode(content).decode() for file, content in files.items()},
    }
    method, at = ("POST", path) if found is None else ("PUT", object_path(path, name))
    reply = await api.ask(method, at, body, patience_seconds=_PATIENCE_SECONDS)
    if not reply.done:
        raise Refused(reply, f"{method} {at}")
    return True


def _replace(path: Path, content: bytes, *, mode: int) -> None:
    """Write a file as a whole, unless it has this content already."""
    if path.exists() and path.read_bytes() == content:
        return
    # Redis reads its folder as another user, and all others are read by their user alone.
    path.parent.mkdir(mode=0o700 if mode == 0o600 else 0o755, parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.new")
    fresh.unlink(missing_ok=True)
    fresh.touch(mode=mode)
    fresh.write_bytes(content)
    fresh.replace(path)
