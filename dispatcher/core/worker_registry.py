"""Handlers for events about workers: registration, heartbeats, outcomes, loss and fencing. The pods of a lost
worker go to others only after the worker is fenced."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dispatcher.core import messages as m
from dispatcher.core.bound.evictions import Evictions
from dispatcher.core.bound.outcomes import Outcomes
from dispatcher.core.bound.settlement import Settlement
from dispatcher.core.cluster.objects import ClusterObjects
from dispatcher.core.cluster.storage import StorageObjects
from dispatcher.core.dispatch.estimates import Estimates
from dispatcher.core.dispatch.overlap_control import OverlapEnforcer
from dispatcher.core.overdue_work import OverdueWork
from dispatcher.core.pods.registry import PodRegistry
from dispatcher.core.pods.table import Phase
from dispatcher.core.workers.membership import Membership, Worker, WorkerState
from hoss.wire.columns import NONE_U16, NONE_U32


@dataclass(frozen=True, slots=True, eq=False)
class WorkerRegistry:
    """`handlers` lists the handlers by event type."""

    members: Membership
    registry: PodRegistry
    settlement: Settlement
    estimates: Estimates
    overlap: OverlapEnforcer
    overdue: OverdueWork
    evictions: Evictions
    outcomes: Outcomes
    objects: ClusterObjects
    storage: StorageObjects
    counters: Counter[str]
    unix_ms: Callable[[float], int]

    @property
    def handlers(self) -> m.Handlers:
        return {
            m.Registered: self._registered,
            m.EpochGranted: self._epoch_granted,
            m.HeartbeatReceived: self._heartbeat_received,
            m.Leaving: self._leaving,
            m.LinkClosed: self._link_closed,
            m.LedgerLost: self._ledger_lost,
            m.LedgerProbed: self._ledger_probed,
            m.OutcomesArrived: self._outcomes_arrived,
            m.Fenced: self._fenced,
            m.WorkerStateRequested: self._state_requested,
        }

    def _registered(self, event: m.Registered, now: float) -> list[m.Instruction]:
        worker = self.members.join(
            event.name,
            event.labels,
            incarnation=event.incarnation,
            window=event.window,
            profile=event.profile,
            bind_seconds=event.bind_seconds,
            packs=event.packs,
            link=event.link,
            now=now,
        )
        if worker is None:
            known = self.members.get(event.name) is not None
            text = f"worker {event.name!r} is registered and alive; give this one another name"
            if not known:
                text = "the dispatcher has as many workers as it can number"
            return [m.Refuse(event.link, text)]
        # Fencing grants an epoch too. That epoch must be the older one, so the new registration waits for it.
        return [] if worker.unfenced is not None else [m.GrantEpoch(worker.name, worker.link)]

    def _epoch_granted(self, event: m.EpochGranted, now: float) -> list[m.Instruction]:
        worker = self.members.on_link(event.link)
        if worker is None or worker.state is not WorkerState.JOINING:
            return []
        self.members.welcome(worker, event.epoch, now)
        self.overlap.conflicts.granted(event.epoch, worker.name)
        welcome = m.Welcome(worker.link, worker.epoch)
        namespaces = m.SendNamespaces(worker.link, self.objects.namespace_snapshot)
        storage = [m.SendStorage(worker.link, self.storage.everything)] if self.storage else []
        return [welcome, namespaces, *storage]

    def _heartbeat_received(self, event: m.HeartbeatReceived, now: float) -> list[m.Instruction]:
        worker = self.members.on_link(event.link)
        if worker is not None:
            self.overlap.heartbeat(worker, event.heartbeat, event.refusals)
            self.members.heartbeat(worker, event.heartbeat, now)
            self.overdue.heartbeat(worker, now)
            costs = event.costs and event.costs.without(self.registry.templates.was_forgotten)
            self.estimates.learn(worker, costs)
        return []

    def _leaving(self, event: m.Leaving, now: float) -> list[m.Instruction]:
        worker = self.members.on_link(event.link)
        if worker is not None:
            self.members.leaving(worker, now, event.reason)
        return []

    def _link_closed(self, event: m.LinkClosed, now: float) -> list[m.Instruction]:
        worker = self.members.on_link(event.link)
        return [] if worker is None else self.lose(worker, now, "its stream ended")

    def _ledger_lost(self, _event: m.LedgerLost, now: float) -> list[m.Instruction]:
        """A rebuilt ledger knows of no preemption, so pods that wait for victims are placed anew."""
        preemptors = self.settlement.nominations.to_place_anew()
        out = self.evictions.unbound_by_ledger(preemptors, now, self.unix_ms(now))
        for worker in self.members.living():
            out += self._close(worker, now, "Redis has lost the ledger")
        return out

    def _ledger_probed(self, event: m.LedgerProbed, now: float) -> list[m.Instruction]:
        worker = self.members.on_link(event.link)
        if worker is None:
            return []
        pods = worker.outstanding
        why = self.overdue.probed(worker, now, answered=event.answered)
        if not why:
            return []
        return [
            m.Warn("worker_overdue", {"worker": worker.name, "pods": pods, "why": why}),
            m.CloseLink(worker.link, why),
            *self.lose(worker, now, why),
        ]

    def forget_gone(self, now: float) -> None:
        """Forget workers that are gone for long. Their pods in the table are nobody's from then on."""
        numbers = self.members.forget_gone(now)
        if numbers:
            pods = self.registry.pods
            of_gone = np.zeros(NONE_U16 + 1, np.bool_)
            of_gone[numbers] = True
            pods.worker[of_gone[pods.worker]] = NONE_U16

    def _close(self, worker: Worker, now: float, why: str) -> list[m.Instruction]:
        close = m.CloseLink(worker.link, f"{why}: register anew")
        return [close, *self.lose(worker, now, why, pods_suspect=False)]

    def lose(self, worker: Worker, now: float, why: str, *, pods_suspect: bool = True) -> list[m.Instruction]:
        """The worker's link is over, or it is silent. Its pods stay with it until it is fenced.
        `pods_suspect`: one of them may have killed it."""
        was_living = worker.living
        self.members.lose(worker, now, why)
        if not was_living:  # it had no epoch yet; a fence of its earlier registration goes on
            return []
        self.counters["workers_left" if worker.state is WorkerState.LEFT else "workers_lost"] += 1
        pods = self.registry.pods
        worker.unfenced = np.concatenate(
            [b.rows[pods.batch[b.rows] == b.serial] for b in worker.batches.values()]
            or [np.empty(0, np.uint32)]
        )
        worker.drop_batches()
        worker.pods_suspect = pods_suspect
        return [m.Fence(worker.name, pods.uid[worker.unfenced])]

    def _fenced(self, event: m.Fenced, now: float) -> list[m.Instruction]:
        worker = self.members.get(event.worker)
        if worker is None or worker.unfenced is None:
            return []
        rows, worker.unfenced = worker.unfenced, None
        pods = self.registry.pods
        pods.batch[rows] = 0
        reserved = event.nodes != NONE_U32
        placed = int(reserved.sum())
        had = f": of the pods it had in hand {placed} have a place, {len(rows) - placed} have none"
        worker.record(now, f"fenced{had if len(rows) else ''}")
        out: list[m.Instruction] = []
        if reserved.any():
            kept = rows[reserved]
            self.settlement.nominations.recovered(kept, now)
            out += self.settlement.bound(kept, event.nodes[reserved], now, self.unix_ms(now))
            kept = kept[pods.phase[kept] != Phase.BACKOFF]
            out.append(m.Confirm(event.commits, kept, pods.uid[kept]))
        self.settlement.lost(worker, rows[~reserved], now, self.unix_ms(now))
        if worker.state is WorkerState.JOINING:
            out.append(m.GrantEpoch(worker.name, worker.link))
        return out

    def _outcomes_arrived(self, event: m.OutcomesArrived, now: float) -> list[m.Instruction]:
        worker = self.members.on_link(event.link)
        if worker is None:  # of a closed link: its pods were or will be looked up
            self.counters["ignored_outcomes"] += len(event.positions)
            return []
        worker.last_seen = now
        outstanding = worker.outstanding
        out = self.outcomes.answer(worker, event, now, self.unix_ms(now))
        if worker.outstanding < outstanding:
            self.overdue.answered(worker, now)
        if (event.codes == m.OutcomeCode.FENCED).any() and worker.living:
            # The ledger has another epoch for it, so nothing it does counts until it registers anew.
            why = "the ledger has fenced this epoch"
            out += self._close(worker, now, why)
        return out

    def _state_requested(self, event: m.WorkerStateRequested, now: float) -> list[m.Instruction]:
        worker = self.members.get(event.worker)
        if worker is None:
            return []
        self.members.request_state(worker, event.state, now)
        if event.state is WorkerState.READY:
            self.overdue.forgive(worker, now)
        return [m.SendDrain(worker.link)] if worker.state is WorkerState.DRAINING else []
