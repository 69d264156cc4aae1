"""Kubernetes mode as one thing: what a term of it needs beside what every term does (docs/adr/0028-kubernetes-mode.md)."""

import contextlib
from collections.abc import AsyncIterator, Awaitable

import numpy as np

from dispatcher.binding import Binding, unbound
from dispatcher.candidate import Term
from dispatcher.config import Cluster
from dispatcher.core import messages as m
from dispatcher.mirroring import Mirroring
from dispatcher.nodes import NodeNames
from dispatcher.noticing import Noticing
from dispatcher.preemption import Preemption
from dispatcher.removal import Removal
from dispatcher.runtime import Runtime
from dispatcher.standing import StandingPods
from hoss.client.resolver import ResolverClient
from hoss.kube.api import KubeApi

_CROWDED = "its room was not free yet when the dispatcher was started anew"


class KubernetesMode:
    """Of one term. First `following` and, within it, recovery by `mirroring`; then `jobs`."""

    def __init__(
        self,
        runtime: Runtime,
        api: KubeApi,
        resolver: ResolverClient,
        *,
        names: NodeNames,
        preemption: Preemption,
        term: Term,
        config: Cluster,
    ) -> None:
        self._runtime = runtime
        self._standing = StandingPods(runtime, resolver, term.certain)
        self.mirroring = Mirroring(runtime, api, resolver, config, term.number)
        self._binding = Binding(
            runtime,
            resolver,
            names,
            heard_of=preemption.seen,
            vanished=self.mirroring.vanished,
            certain=term.certain,
        )
        self._noticing = Noticing(runtime, api, self.mirroring.pods, events_per_second=config.events_per_second)
        self._binding.bound = self._noticing.bound
        runtime.confirmed = self._binding.take
        self._removal = Removal(runtime, api, names, self._noticing)

    @contextlib.asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        """The API server's news come in while the body runs."""
        async with self.mirroring.following():
            yield

    async def reserved(self) -> None:
        """Return once all that stands on nodes is in the ledger: who is served before sees room that there is not."""
        await self._standing.done()

    def jobs(self) -> tuple[Awaitable[None], ...]:
        """To be run for the rest of the term. What an earlier one reserved and did not bind is bound first; but not where pods
        stand that have no reservation: they may have lost it to just that pod, and be there still."""
        rows, uids = unbound(self._runtime)
        late = np.isin(self._runtime.machine.registry.pods.node[rows], list(self.mirroring.crowded))
        self._runtime.tell(m.BindingRefused(rows[late], (_CROWDED,) * int(late.sum())))
        self._binding.take(rows[~late], uids[~late], asked=True)
        return self.mirroring.run(), self._binding.run(), self._noticing.run()
