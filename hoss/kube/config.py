"""The section of a configuration document, and the flags, that put a service into Kubernetes mode."""

import argparse
import random
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from hoss.config import Document
from hoss.errors import ConfigError
from hoss.kube.access import load_access

if TYPE_CHECKING:
    from hoss.kube.api import KubeApi


class KubernetesConfig(Document):
    """The cluster and the account. A service with this section runs in Kubernetes mode."""

    # A kubeconfig and one of its contexts (empty: the current one). Without a file the service runs as a pod
    # of the cluster.
    kubeconfig: Path | None = None
    context: str = ""

    # The most requests under way at once, each on a connection of its own that stays open. An API server
    # takes about 1,750 bindings a second and answers each in 10 to 30 ms.
    connections: int = Field(default=64, ge=1, le=1000)

    def api(self, user_agent: str, *, clock: Callable[[], float], rng: random.Random) -> "KubeApi":
        """A client. Raises ConfigError."""
        from hoss.kube.api import KubeApi  # noqa: PLC0415 - most services do without aiohttp

        return KubeApi(
            load_access(self.kubeconfig, context=self.context, clock=clock),
            connections=self.connections,
            user_agent=user_agent,
            clock=clock,
            rng=rng,
        )


def add_kubernetes_flags(parser: argparse.ArgumentParser) -> None:
    """The flags that put a service into Kubernetes mode."""
    parser.add_argument(
        "--kubeconfig", type=Path, help="Kubernetes mode: work for the cluster of this kubeconfig"
    )
    parser.add_argument(
        "--kube-context", metavar="NAME", help="one of the kubeconfig's contexts; else its current one"
    )
    parser.add_argument(
        "--in-cluster",
        action="store_true",
        help="Kubernetes mode: work for the cluster that this is a pod of",
    )


def kubernetes_given(flags: argparse.Namespace, base: KubernetesConfig | None) -> dict[str, Any]:
    """The field `kubernetes` of a document: `base` with the flags. Empty without flags."""
    if not (flags.kubeconfig or flags.in_cluster or flags.kube_context):
        return {}
    if flags.in_cluster and (flags.kubeconfig or flags.kube_context):
        problem = "stands beside --kubeconfig or --kube-context; give one of the two"
        raise ConfigError(problem, where="--in-cluster")
    given = {} if flags.in_cluster else {"kubeconfig": flags.kubeconfig, "context": flags.kube_context}
    kept = base.model_dump() if base else {}
    cleared = {"kubeconfig": None, "context": ""} if flags.in_cluster else {}
    return {"kubernetes": {**kept, **cleared, **{name: value for name, value in given.items() if value}}}
