"""Kubernetes mode as one object: what a term has in that mode beside the parts of every term
(docs/adr/0028-kubernetes-mode.md)."""

import random
from collections.abc import Awaitable, Callable
from datetime import datetime

import numpy as np

from dispatcher.config import ClusterSection
from dispatcher.core import messages as m
from dispatcher.kubernetes.binder import PodBinder, unassigned
from dispatcher.kubernetes.claim_deallocation import ClaimDeallocation
from dispatcher.kubernetes.cluster_mirror import ClusterMirror
from dispatcher.kubernetes.event_recorder import EventRecorder
from dispatcher.kubernetes.evictor import Evictor
from dispatcher.kubernetes.existing_pods import ExistingPods
from dispatcher.kubernetes.informers import Informers
from dispatcher.kubernetes.pod_groups import PodGroupStatusWriter
from dispatcher.kubernetes.pod_moves import PodMoves
from dispatcher.kubernetes.unreviewed_bindings import UnreviewedBindings
from dispatcher.leader.leadership import Leadership
from dispatcher.ledger.nodes import ClusterNodes
from dispatcher.runtime import Runtime
from dispatcher.workers.preemption import PreemptionAnswers
from hoss.client.resolver import ResolverClient
from hoss.kube.api import KubeApi

_OVER_RESERVED = "its room was not free yet when the dispatcher was started anew"


class KubernetesMode:
    """Of one term. First recovery by `mirror`, then `reserved`, then `jobs`, while `informers` run."""

    def __init__(
        self,
        runtime: Runtime,
        api: KubeApi,
        resolver: ResolverClient,
        informers: Informers,
        *,
        nodes: ClusterNodes,
        preemption: PreemptionAnswers,
        leadership: Leadership,
        config: ClusterSection,
        utc_now: Callable[[], datetime],
        rng: random.Random,
    ) -> None:
        self._runtime = runtime
        self.mirror = ClusterMirror(
            runtime, api, resolver, informers, config, term=leadership.term, nodes=nodes
        )
        self._recorder = EventRecorder(
            runtime,
            api,
            self.mirror.pods,
            events_per_second=config.events_per_second,
            utc_now=utc_now,
            rng=rng,
        )
        self._deallocation = ClaimDeallocation(
            runtime.machine, api, self._recorder.claim_deallocated, rng=rng
        )
        self._recorder.on_unschedulable = self._deallocation.consider
        self._unreviewed = UnreviewedBindings(
            runtime,
            self._recorder,
            self.mirror.pods.nodes,
            schedulers=config.scheduler_names,
            exempt_namespaces=config.unguarded_namespaces,
            new_nodes=self.mirror.new_nodes,
        )
        self._existing_pods = ExistingPods(runtime, resolver, leadership, nodes, self._unreviewed)
        self.mirror.counted = self._existing_pods.done
        self._group_statuses = PodGroupStatusWriter(
            runtime, api, informers.pod_groups.groups, self._recorder, utc_now=utc_now
        )
        self._binder = PodBinder(
            runtime,
            resolver,
            nodes,
            leadership,
            evictions_read=preemption.high_watermark,
            node_deleted=self.mirror.node_deleted,
            on_bound=self._recorder.bound,
            on_volumes_refused=self._recorder.volumes_refused,
            on_devices_pending=self._recorder.devices_pending,
            volume_timeout_seconds=config.volume_bind_timeout_seconds,
        )
        self.moves = PodMoves(
            runtime,
            api,
            nodes,
            informers.reader,
            self.mirror.pods.nodes,
            timeout_seconds=config.move_timeout_seconds,
        )
        self.mirror.place_successors = self.moves.place
        runtime.on_confirmed = self._binder.add
        runtime.kubernetes_tables = self._table_sizes
        runtime.set_executor(m.Remove, Evictor(runtime, api, nodes, self._recorder).evict)

    def _table_sizes(self) -> dict[str, int]:
        return self._group_statuses.table_sizes() | self._existing_pods.table_sizes()

    async def reserved(self) -> None:
        """Return once the ledger has reservations for all existing pods, and the nodes that waited for these
        are open. A worker that is served earlier would see room that is not free."""
        await self._existing_pods.done()
        self.mirror.new_nodes.clear()
        await self.mirror.open_held()

    def jobs(self) -> tuple[Awaitable[None], ...]:
        """To be run for the rest of the term.

        Pods that an earlier term reserved and did not bind are bound first. Excepted are pods on
        over-reserved nodes: such a pod may have taken the reservation of a pod that is still there."""
        rows, uids = unassigned(self._runtime)
        over_reserved = list(self.mirror.over_reserved)
        refused = np.isin(self._runtime.machine.registry.pods.node[rows], over_reserved)
        self._binder.give_up(rows[refused], uids[refused], _OVER_RESERVED)
        self._binder.add(rows[~refused], uids[~refused], attempted=True)
        return (
            self.mirror.run(),
            self._binder.run(),
            self._recorder.run(),
            self._deallocation.run(),
            self._unreviewed.run(),
            self._group_statuses.run(),
        )
