"""The dispatcher's command line flags. Flags override the configuration document."""

import argparse
from pathlib import Path
from typing import Any

from dispatcher.config import KIND, DispatcherConfig
from hoss.config import load_document, with_flags
from hoss.errors import ConfigError
from hoss.kube.config import add_kubernetes_flags, kubernetes_given
from hoss.security.options import add_authentication_flag, add_security_flags, security_given
from hoss.telemetry import options


def parser() -> argparse.ArgumentParser:
    """All flags, for the reference pages too."""
    flags = argparse.ArgumentParser(
        prog="python -m dispatcher", description="Queues pods and gives them to workers."
    )
    flags.add_argument("--config", type=Path, help="a DispatcherConfig document; flags override it")
    flags.add_argument("--listen", help="host:port; port 0 takes a free one")
    options.add_flags(flags)
    add_security_flags(flags)
    add_authentication_flag(flags)
    flags.add_argument(
        "--trace-ratio", type=float, metavar="SHARE", help="of work batches whose traces are kept; 0.01"
    )
    flags.add_argument(
        "--advertise",
        metavar="HOST:PORT",
        help="where others reach this dispatcher; default: where it listens",
    )
    flags.add_argument(
        "--lease-seconds", type=float, help="a standby takes over after so long without a renewal"
    )
    flags.add_argument("--redis-url", help="the journal's Redis")
    flags.add_argument("--resolver", help="host:port of one resolver or several, separated by commas")
    flags.add_argument("--policy", type=Path, help="a SchedulingPolicy document")
    add_kubernetes_flags(flags)
    flags.add_argument(
        "--kube-lease",
        metavar="NAMESPACE/NAME",
        help="Kubernetes mode: hold this Lease of the cluster while active",
    )
    flags.add_argument("--ready-file", type=Path, help="written with the port once serving")
    flags.add_argument(
        "--log-level",
        default="info",
        choices=("debug", "info", "warning", "error"),
        help="least level that is logged",
    )
    return flags


def parse_flags() -> argparse.Namespace:
    """The command line. Exits with 2 for an invalid one."""
    return parser().parse_args()


def read_config(flags: argparse.Namespace) -> DispatcherConfig:
    """The configuration document, with the flags that override it. Raises ConfigError."""
    base = load_document(flags.config, KIND, DispatcherConfig)
    given: dict[str, Any] = {
        "listen": flags.listen,
        **options.given(flags),
        **security_given(flags),
        "authentication": flags.authentication,
        "trace_ratio": flags.trace_ratio,
        "advertise": flags.advertise,
        "lease_seconds": flags.lease_seconds,
        "redis_url": flags.redis_url,
        "resolvers": tuple(flags.resolver.split(",")) if flags.resolver else None,
        "policy": flags.policy,
    }
    given |= kubernetes_given(flags, base.kubernetes)
    if flags.kube_lease:
        section = given.get("kubernetes") or (base.kubernetes.model_dump() if base.kubernetes else None)
        if section is None:
            raise ConfigError(
                "needs Kubernetes mode; give --in-cluster or --kubeconfig too", where="--kube-lease"
            )
        given["kubernetes"] = {**section, "lease": flags.kube_lease}
    return with_flags(base, given)
