"""Address and credentials of the API server: from a kubeconfig, or from the pod's service account.

The `kubernetes` package reads both, with all its ways to log in. HOSS uses nothing else of that package.
"""

import asyncio
import contextlib
import ssl
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from hoss.errors import ConfigError, TransportError
from hoss.host import THIS_HOST
from hoss.imports import extra

# How long a token is reused. To ask the package for it costs more CPU than a request.
_TOKEN_SECONDS = 1.0

# As long as a request to the API server may take.
_PATIENCE_SECONDS = 10.0


async def no_token() -> str:
    """The authorization of a client that has none."""
    return ""


@dataclass(frozen=True, slots=True)
class Access:
    """`authorization` is awaited for every request: tokens change. "": a client certificate authenticates. It
    raises TransportError where there is no token."""

    server: str  # https://host:port, without a slash at the end
    tls: ssl.SSLContext | None  # None: plain HTTP
    authorization: Callable[[], Awaitable[str]] = no_token
    proxy: str | None = None  # http://host:port, of an HTTP proxy
    tls_server_name: str | None = None  # the name that the server's certificate must have; None: the host


def load_access(
    kubeconfig: Path | None = None,
    *,
    context: str = "",
    clock: Callable[[], float] = THIS_HOST.monotonic,
) -> Access:
    """From a kubeconfig and one of its contexts ("": the current one). Without a kubeconfig: as a pod of the
    cluster.

    Raises ConfigError that names the file and what is wrong or missing.
    """
    # The import takes 0.2 s and 34 MB: only services in Kubernetes mode pay for it.
    with extra("kubernetes"):
        from kubernetes import config as loader  # noqa: PLC0415
        from kubernetes.client import Configuration  # noqa: PLC0415

    read: Any = loader  # the package has no types

    found = Configuration()
    where = str(kubeconfig) if kubeconfig else "in-cluster configuration"
    if kubeconfig is not None and not kubeconfig.is_file():
        raise ConfigError("there is no such file; give the kubeconfig that kubectl uses", where=where)
    try:
        if kubeconfig is None:
            read.load_incluster_config(client_configuration=found)
        else:
            read.load_kube_config(str(kubeconfig), context=context or None, client_configuration=found)
    except (loader.ConfigException, OSError, ValueError, KeyError, TypeError) as exc:
        remedy = "" if kubeconfig else "; outside of a cluster give --kubeconfig"
        raise ConfigError(f"cannot be used: {exc}{remedy}", where=where) from exc

    def token() -> str:
        # May read a file, or run the kubeconfig's credential plugin for as long as that takes.
        try:
            return str(found.get_api_key_with_prefix("BearerToken", "authorization") or "")
        except (loader.ConfigException, OSError) as exc:
            raise TransportError(f"{where} gives no token now: {exc}") from exc

    return Access(
        found.host.rstrip("/"),
        _tls(found, where) if found.host.startswith("https") else None,
        CachedToken(token, clock),
        _proxy(found, where),
        found.tls_server_name or None,
    )


class CachedToken:
    """The result of `fetch`, for a second. `fetch` runs on a thread of its own, because it may block for
    seconds; requests that come meanwhile wait for the same run. Calls raise what `fetch` raises, and
    TransportError after ten seconds without a token."""

    def __init__(self, fetch: Callable[[], str], clock: Callable[[], float]) -> None:
        """`clock`: seconds."""
        self._fetch = fetch
        self._clock = clock
        self._value = ""
        self._fetched_at = float("-inf")
        self._fetching: asyncio.Future[str] | None = None

    async def __call__(self) -> str:
        if self._clock() - self._fetched_at < _TOKEN_SECONDS:
            return self._value
        if self._fetching is None or self._fetching.done():
            self._fetching = _on_a_thread(self._fetch)
            self._fetching.add_done_callback(self._keep)
        try:
            # Shielded: a request that is given up does not end the run that others wait for.
            return await asyncio.wait_for(asyncio.shield(self._fetching), _PATIENCE_SECONDS)
        except asyncio.TimeoutError as exc:
            raise TransportError(
                f"no token after {_PATIENCE_SECONDS:g} s; see whether the kubeconfig's credential plugin"
                " hangs"
            ) from exc

    def _keep(self, fetched: "asyncio.Future[str]") -> None:
        if not fetched.cancelled() and fetched.exception() is None:
            self._value, self._fetched_at = fetched.result(), self._clock()


def _on_a_thread(fetch: Callable[[], str]) -> "asyncio.Future[str]":
    """The result of a call that may block. The thread is a daemon, so a call that hangs does not hold up the
    end of the process, as one of the event loop's executor would."""
    loop = asyncio.get_running_loop()
    result: asyncio.Future[str] = loop.create_future()

    def settle(value: str, error: Exception | None) -> None:
        if result.done():
            return
        if error is None:
            result.set_result(value)
        else:
            result.set_exception(error)

    def run() -> None:
        value, error = "", None
        try:
            value = fetch()
        except Exception as exc:  # noqa: BLE001 - raised where the token is awaited
            error = exc
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(settle, value, error)

    threading.Thread(target=run, name="kubernetes-token", daemon=True).start()
    return result


def _proxy(found: Any, where: str) -> str | None:
    """The proxy of the kubeconfig's `proxy-url`, or of HTTPS_PROXY, HTTP_PROXY and NO_PROXY."""
    target = urlsplit(found.host)
    proxy = found.proxy or getproxies().get(target.scheme)
    if not proxy or proxy_bypass(target.hostname or ""):
        return None
    if urlsplit(proxy).scheme not in ("http", "https"):
        raise ConfigError(f"proxy {proxy!r} is not supported; give an http:// or https:// proxy", where=where)
    return str(proxy)


def _tls(found: Any, where: str) -> ssl.SSLContext:
    try:
        tls = ssl.create_default_context(cafile=found.ssl_ca_cert)
        if found.cert_file:
            tls.load_cert_chain(found.cert_file, found.key_file)
    except (ssl.SSLError, OSError) as exc:
        raise ConfigError(f"holds certificates that cannot be used: {exc}", where=where) from exc
    if not found.verify_ssl:  # the kubeconfig has insecure-skip-tls-verify
        tls.check_hostname = False
        tls.verify_mode = ssl.CERT_NONE
    return tls
