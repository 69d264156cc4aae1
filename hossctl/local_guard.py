"""The guard of a platform on this machine: its certificate, and its registration with the cluster of a kubeconfig.

All that the cluster is given is one ValidatingWebhookConfiguration, which is taken out again; the certificate stays here, in files.
"""

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path

from hoss.certificates import issue, new_authority
from hoss.kube.access import load_access
from hoss.kube.api import KubeApi
from hossctl.eventloop import run_async
from hossctl.kube_guard import register_local, remove_local, url_of

LOOPBACK = "127.0.0.1"

_LIFETIME = timedelta(days=365)  # `hoss up` makes a new one each time
_PATIENCE_SECONDS = 5.0


def make_certificate(directory: Path) -> bytes:
    """Write tls.crt and tls.key for a webhook on loopback; gives the authority's certificate, PEM. Nobody keeps its key."""
    now = datetime.now(timezone.utc)
    authority = new_authority("hoss local binding guard", now=now, lifetime=_LIFETIME)
    serving = issue(authority, [LOOPBACK], now=now, lifetime=_LIFETIME)
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in (("tls.crt", serving.certificate), ("tls.key", serving.key)):
        path = directory / name
        path.unlink(missing_ok=True)
        path.touch(mode=0o600)
        path.write_bytes(content)
    return authority.certificate


def register(kubeconfig: Path, port: int, authority: bytes) -> None:
    """Return once the API server asks. Raises HossError, with what to do."""
    _with_api(kubeconfig, lambda api: register_local(api, url_of(port), authority))


def remove(kubeconfig: Path) -> None:
    """Undo it. Raises HossError while the API server does not answer."""
    _with_api(kubeconfig, lambda api: remove_local(api, patience_seconds=_PATIENCE_SECONDS))


def _with_api(kubeconfig: Path, act: Callable[[KubeApi], Awaitable[None]]) -> None:
    async def run() -> None:
        api = KubeApi(load_access(kubeconfig), user_agent="hoss")
        try:
            await act(api)
        finally:
            await api.close()

    run_async(run())
