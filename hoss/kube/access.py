"""Where the API server is and as whom we come: from a kubeconfig, or from what a pod is given.

The `kubernetes` package reads both, with all the ways in which people log in; nothing else of it is used.
"""

import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hoss.errors import ConfigError

# How long a token is taken for the present one. To ask for it costs the package more than a request costs us.
_TOKEN_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Access:
    """`authorization` is asked before every request, because tokens are exchanged while we run; "": the certificate says who
    we are."""

    server: str  # https://host:port, without a slash at the end
    tls: ssl.SSLContext | None  # None: plain HTTP
    authorization: Callable[[], str] = lambda: ""


def load_access(kubeconfig: Path | None = None, *, context: str = "") -> Access:
    """By a kubeconfig and one of its contexts ("": the current one); without a kubeconfig as a pod of the cluster.

    Raises ConfigError naming the file, and what is wrong or missing.
    """
    # It takes 0.2 s and 34 MB to import, which only who talks to Kubernetes should pay for.
    from kubernetes import config as loader  # noqa: PLC0415
    from kubernetes.client import Configuration  # noqa: PLC0415

    read: Any = loader  # it has no types

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
    return Access(
        found.host.rstrip("/"),
        _tls(found, where) if found.host.startswith("https") else None,
        remembered(lambda: str(found.get_api_key_with_prefix("BearerToken", "authorization") or "")),
    )


def remembered(ask: Callable[[], str], clock: Callable[[], float] = time.monotonic) -> Callable[[], str]:
    """What `ask` answers, asked again once that is a second old. `clock`: seconds."""
    answer, asked_at = "", -_TOKEN_SECONDS

    def answered() -> str:
        nonlocal answer, asked_at
        if clock() - asked_at >= _TOKEN_SECONDS:
            answer, asked_at = ask(), clock()
        return answer

    return answered


def _tls(found: Any, where: str) -> ssl.SSLContext:
    try:
        tls = ssl.create_default_context(cafile=found.ssl_ca_cert)
        if found.cert_file:
            tls.load_cert_chain(found.cert_file, found.key_file)
    except (ssl.SSLError, OSError) as exc:
        raise ConfigError(f"holds certificates that cannot be used: {exc}", where=where) from exc
    if not found.verify_ssl:  # insecure-skip-tls-verify: the user's own word
        tls.check_hostname = False
        tls.verify_mode = ssl.CERT_NONE
    return tls
