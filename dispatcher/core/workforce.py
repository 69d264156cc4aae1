"""What workers say and what becomes of them: registered, heard, answering, lost, and fenced before others get their pods."""

from collections import Counter
from collections.abc import Callable

import numpy as np

from dispatcher.core import messages as m
from dispatcher.core.cluster_objects import ClusterObjects
from dispatcher.core.estimates import Estimates
from dispatcher.core.guidance import Guidance
from dispatcher.core.membership import Membership, Worker, WorkerState
from dispatcher.core.outcomes import Outcomes
from dispatcher.core.podtable import Phase
from dispatcher.core.registry import PodRegistry
from dispatcher.core.settlement import Settlement
from hoss.wire.columns import NONE_U32


class Workforce:
    """Handlers of events about workers; `handlers` names them all."""

    def __init__(
        self,
        members: Membership,
        registry: PodRegistry,
        settlement: Settlement,
        estimates: Estimates,
        guidance: Guidance,
        *,
        outcomes: Outcomes,
        objects: ClusterObjects,
        counters: Counter[str],
        unix_ms: Callable[[float], int],
    ) -> None:
        self._members = members
        self._registry = registry
        self._settlement = settlement
        self._outcomes = outcomes
        self._estimates = estimates
        self._guidance = guidance
        self._objects = objects
        self._counters = counters
        self._unix_ms = unix_ms
        self.handlers: m.Handlers = {
            m.Registered: self._registered,
            m.EpochGranted: self._epoch_granted,
            m.Heard: self._heard,
            m.Leaving: self._leaving,
            m.LinkClosed: self._link_closed,
            m.LedgerLost: self._ledger_lost,
            m.OutcomesArrived: self._outcomes_arrived,
            m.Fenced: self._fenced,
            m.StateWanted: self._state_wanted,
        }

    def _registered(self, event: m.Registered, now: float) -> list[m.Instruction]:
        worker = self._members.join(
            event.name,
            event.labels,
            incarnation=event.incarnation,
            window=event.window,
            link=event.link,
            now=now,
        )
        if worker is None:
            return [m.Refuse(event.link, f"worker {event.name!r} is registered and alive; give this one another name")]
        # Fencing grants an epoch too. It must be the older one, so the new life waits for it.
        return [] if worker.unfenced is not None else [m.GrantEpoch(worker.name, worker.link)]

    def _epoch_granted(self, event: m.EpochGranted, now: float) -> list[m.Instruction]:
        worker = self._members.on_link(event.link)
        if worker is None or worker.state is not WorkerState.JOINING:
            return []
        self._members.welcome(worker, event.epoch, now)
        self._guidance.conflicts.granted(event.epoch, worker.name)
        welcome = m.Welcome(worker.link, worker.epoch)
        return [welcome, m.SendSurroundings(worker.link, self._objects.surroundings)]

    def _heard(self, event: m.Heard, now: float) -> list[m.Instruction]:
        worker = self._members.on_link(event.link)
        if worker is not None:
            self._guidance.heard(worker, event.vitals, event.refusals)
            self._members.heard(worker, event.vitals, now)
            self._estimates.learn(worker, event.costs)
        return []

    def _leaving(self, event: m.Leaving, now: float) -> list[m.Instruction]:
        worker = self._members.on_link(event.link)
        if worker is not None:
            self._members.leaving(worker, now)
        return []

    def _link_closed(self, event: m.LinkClosed, now: float) -> list[m.Instruction]:
        worker = self._members.on_link(event.link)
        return [] if worker is None else self.lose(worker, now, "its stream ended")

    def _ledger_lost(self, event: m.LedgerLost, now: float) -> list[m.Instruction]:  # noqa: ARG002 - as all handlers
        out: list[m.Instruction] = []
        for worker in self._members.living():
            why = "Redis has lost the ledger"
            close = m.CloseLink(worker.link, f"{why}: register anew")
            out += [close, *self.lose(worker, now, why, blamed=False)]
        return out

    def lose(self, worker: Worker, now: float, why: str, *, blamed: bool = True) -> list[m.Instruction]:
        """Its link is over, or it is silent: its pods are its own until it is fenced. `blamed`: they may have been its end."""
        was_living = worker.living
        self._members.lose(worker, now, why)
        if not was_living:  # it never had an epoch in this life; its last life's fence, if any, goes on
            return []
        self._counters["workers_left" if worker.state is WorkerState.LEFT else "workers_lost"] += 1
        pods = self._registry.pods
        worker.unfenced = np.concatenate(
            [b.rows[pods.batch[b.rows] == b.serial] for b in worker.batches.values()] or [np.empty(0, np.uint32)]
        )
        worker.drop_batches()
        worker.blames = blamed
        return [m.Fence(worker.name, pods.uid[worker.unfenced])]

    def _fenced(self, event: m.Fenced, now: float) -> list[m.Instruction]:
        worker = self._members.get(event.worker)
        if worker is None or worker.unfenced is None:
            return []
        rows, worker.unfenced = worker.unfenced, None
        pods = self._registry.pods
        pods.batch[rows] = 0
        reserved = event.nodes != NONE_U32
        placed = int(reserved.sum())
        had = f": of the pods it had in hand {placed} have a place, {len(rows) - placed} have none" if len(rows) else ""
        worker.note(now, f"fenced{had}")
        out: list[m.Instruction] = []
        if reserved.any():
            kept = rows[reserved]
            self._settlement.nominations.found_reserved(kept, now)
            out += self._settlement.bound(kept, event.nodes[reserved], now, self._unix_ms(now))
            kept = kept[pods.phase[kept] != Phase.BACKOFF]
            out.append(m.Confirm(event.commits, kept, pods.uid[kept]))
        self._settlement.lost(worker, rows[~reserved], now, self._unix_ms(now))
        if worker.state is WorkerState.JOINING:
            out.append(m.GrantEpoch(worker.name, worker.link))
        return out

    def _outcomes_arrived(self, event: m.OutcomesArrived, now: float) -> list[m.Instruction]:
        worker = self._members.on_link(event.link)
        if worker is None:  # of a link already over: its pods were or will be looked up
            self._counters["ignored_outcomes"] += len(event.positions)
            return []
        worker.last_seen = now
        out = self._outcomes.answer(worker, event, now, self._unix_ms(now))
        if (event.codes == m.OutcomeCode.FENCED).any() and worker.living:
            # Its epoch is not the ledger's any more, so nothing it does will count until it registers anew.
            why = "the ledger has fenced this epoch"
            out += [m.CloseLink(worker.link, f"{why}: register anew"), *self.lose(worker, now, why, blamed=False)]
        return out

    def _state_wanted(self, event: m.StateWanted, now: float) -> list[m.Instruction]:
        worker = self._members.get(event.worker)
        if worker is None:
            return []
        self._members.set_wanted(worker, event.state, now)
        return [m.SendDrain(worker.link)] if worker.state is WorkerState.DRAINING else []
