"""The dispatcher as a state machine: events in, instructions out, and not one await.

It owns every pod from admission until it is bound or deleted. Invariants, checked by `check`: a pod that is SCHEDULING is
unanswered in exactly one batch of one worker; a pod that is QUEUED, in BACKOFF or UNSCHEDULABLE is with no worker;
no worker has more in hand than its window, or one gang, and its estimated work is that of its batches; and of a gang
that is not complete no pod is bound.
"""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dispatcher.core import messages as m
from dispatcher.core.balance import Chance
from dispatcher.core.changes import Changes
from dispatcher.core.cluster_objects import ClusterObjects, Surroundings
from dispatcher.core.dispatch import DEFAULT_BATCH_RULES, BatchRules, Dispatch
from dispatcher.core.estimates import Estimates
from dispatcher.core.eventlog import EventLog
from dispatcher.core.membership import Membership, Worker, WorkerState
from dispatcher.core.podsets import Submission
from dispatcher.core.podtable import Phase, Rows
from dispatcher.core.policy import ClassFacts, Policy
from dispatcher.core.queues import Queues
from dispatcher.core.registry import PodRegistry
from dispatcher.core.residence import Residence
from dispatcher.core.routing import Routing
from dispatcher.core.settlement import Settlement
from dispatcher.core.stealing import DEFAULT_STEAL_RULES, Stealing, StealRules
from hoss.errors import InvariantViolation
from hoss.model.pod import PodSpec
from hoss.wire.columns import NONE_U32

# A tick this late means that the dispatcher itself did not run; heartbeats may lie unread.
LATE_TICK_SECONDS = 0.5
SWEEP_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Settings:
    """`unix_offset_seconds` + the monotonic `now` of events is Unix time; `first_revision` begins the event log."""

    batches: BatchRules = DEFAULT_BATCH_RULES
    stealing: StealRules = DEFAULT_STEAL_RULES
    worker_timeout_seconds: float = 2.0
    event_log_pods: int = 1_000_000
    unix_offset_seconds: float = 0.0
    first_revision: int = 1


class Machine:
    """`handle` is its one entrance for events; everything else reads."""

    def __init__(
        self,
        settings: Settings,
        policy: Policy,
        decode: Callable[[bytes], PodSpec],
        chance: Chance,
        read_facts: Callable[[bytes], ClassFacts] | None = None,
    ) -> None:
        """`read_facts`: what policies match on, where that can be read without decoding all of a class."""
        self._settings = settings
        self.counters: Counter[str] = Counter()
        self.members = Membership()
        self.objects = ClusterObjects()
        self.routing = Routing(policy, self.members)
        self.registry = PodRegistry(decode, lambda i: self.routing.assign(self.registry.templates, i), read_facts)
        self.residence = Residence(self.registry)
        self.queues = Queues(self.registry)
        self.log = EventLog(settings.event_log_pods, settings.first_revision)
        self.settlement = Settlement(self.registry, self.residence, self.queues, self.log, self.counters)
        self.estimates = Estimates()
        self.dispatch = Dispatch(
            self.registry, self.queues, self.routing, self.estimates, rules=settings.batches, chance=chance
        )
        self.stealing = Stealing(self.registry, self.routing, self.members, self.estimates, settings.stealing)
        self._emptied: list[Submission] = []
        self._namespaces_used = 0  # how many namespaces of pods the objects have been told of
        self._ticked_at: float | None = None
        self._swept_at = float("-inf")
        self._handlers: dict[type, Callable[..., list[m.Instruction]]] = {
            m.Admitted: self._admitted,
            m.Deleted: self._deleted,
            m.GatesRemoved: self._gates_removed,
            m.ObjectsApplied: self._objects_applied,
            m.ObjectsRemoved: self._objects_removed,
            m.Registered: self._registered,
            m.EpochGranted: self._epoch_granted,
            m.Heard: self._heard,
            m.Leaving: self._leaving,
            m.LinkClosed: self._link_closed,
            m.OutcomesArrived: self._outcomes_arrived,
            m.Fenced: self._fenced,
            m.Verified: self._verified,
            m.Released: self._released,
            m.Evicted: self._evicted,
            m.HistoryMissed: self._history_missed,
            m.ClusterChanged: self._cluster_changed,
            m.NodesSeen: self._nodes_seen,
            m.NodesGone: self._nodes_gone,
            m.StateWanted: self._state_wanted,
            m.Tick: self._tick,
        }

    def handle(self, event: m.Event, now: float) -> list[m.Instruction]:
        """Take in an event at monotonic time `now`; returns what is to be done, in this order."""
        return self._handlers[type(event)](event, now) + self.pump(now)

    def pump(self, now: float) -> list[m.Instruction]:
        """Send what may be sent at this moment; to be called when a lingering batch is due."""
        sent = self.dispatch.pump(now, self.unix_ms(now))
        self.counters["dispatched"] += sum(len(batch.uids) for batch in sent)
        return list(sent)

    def unix_ms(self, now: float) -> int:
        """The Unix time of a monotonic moment, milliseconds."""
        return int((now + self._settings.unix_offset_seconds) * 1000)

    def set_policy(self, policy: Policy, now: float) -> list[m.Instruction]:
        """Put a policy in force: pods not yet with a worker follow it from now on, those that wait and go another way by it at
        once. Pods with a worker stay there; what it refuses was refused under the old one, and is tried again."""
        moved = self.routing.replace(policy, self.registry.templates)
        self.queues.policy_changed(moved, now, self.unix_ms(now))
        return self.pump(now)

    def restore_bound(self, rows: Rows, nodes: NDArray[np.uint32], now: float) -> list[m.Instruction]:
        """While starting: the ledger holds reservations of these pods. Deleted ones are to give theirs back."""
        pods = self.registry.pods
        pods.node[rows] = nodes
        deleted = pods.phase[rows] == Phase.DELETED
        pods.move(rows[~deleted], Phase.BOUND, self.unix_ms(now))
        late = rows[deleted]
        return [m.Release(late, pods.uid[late], pods.node[late])] if len(late) else []

    def restore_gangs(self, assumed: Rows, now: float) -> list[m.Instruction]:
        """While starting, once all that is bound is known; `assumed` are those not confirmed. A gang that stopped half-way
        through its shards is to give back what it has; one that was confirmed has been complete."""
        gangs, pods = self.registry.gangs, self.registry.pods
        out: list[m.Instruction] = []
        for gang in gangs.every_incomplete():
            rows = gangs.in_phase(gang, Phase.BOUND)
            if len(rows) and np.isin(rows, assumed).all():
                pods.phase[rows] = Phase.ABSENT  # not counted as bound before it is decided
                out += self.settlement.bound(rows, pods.node[rows], now, self.unix_ms(now))
            elif len(rows):
                gangs.complete(gang)
        return out

    def check(self) -> None:
        """Raise InvariantViolation if the module's promises do not hold."""
        pods = self.registry.pods
        in_batches = [b.rows[pods.batch[b.rows] == b.serial] for w in self.members for b in w.batches.values()]
        unfenced = [w.unfenced for w in self.members if w.unfenced is not None]
        held = np.concatenate([*in_batches, *unfenced, np.empty(0, np.uint32)])
        if len(np.unique(held)) != len(held):
            raise InvariantViolation("a pod is with two workers")
        scheduling = np.flatnonzero(pods.phase[: pods.size] == Phase.SCHEDULING)
        if len(np.setdiff1d(scheduling, held)):
            raise InvariantViolation(f"pods are SCHEDULING with no worker: rows {np.setdiff1d(scheduling, held)[:5]}")
        if not np.isin(pods.phase[held], (Phase.SCHEDULING, Phase.DELETED)).all():
            raise InvariantViolation("a pod is with a worker and in a queue")
        for gang in self.registry.gangs.every_incomplete():
            if self.registry.gangs.bound(gang):
                raise InvariantViolation(f"{self.registry.gangs.bound(gang)} pods of {gang.name} are bound")
        for worker in self.members:
            unanswered = sum(int((pods.batch[b.rows] == b.serial).sum()) for b in worker.batches.values())
            within = unanswered <= worker.window or len(worker.batches) == 1  # a gang larger than the window
            left = sum(batch.micros_left for batch in worker.batches.values())
            if not math.isclose(worker.work_micros, left, rel_tol=1e-6, abs_tol=1e-3):
                raise InvariantViolation(f"{worker.name}: {worker.work_micros=}, and its batches sum up to {left}")
            if worker.living and not (worker.outstanding == unanswered and within):
                raise InvariantViolation(f"{worker.name}: {worker.outstanding=}, {unanswered=}, {worker.window=}")

    # --- pods ---

    def _admitted(self, event: m.Admitted, now: float) -> list[m.Instruction]:
        told = self._use_namespaces()
        for rows in self.registry.admit(event.submission, self.unix_ms(now)):
            gated = self.registry.gated(rows)
            if gated.any():
                self.settlement.gate(rows[gated], self.unix_ms(now))
                self.queues.enqueue(rows[~gated], now)
            else:
                self.queues.enqueue(rows, now)
            self.counters["accepted"] += len(rows)
        if event.submission.live == 0:
            self._emptied.append(event.submission)
        return told

    def _deleted(self, event: m.Deleted, now: float) -> list[m.Instruction]:
        pods = self.registry.pods
        rows = event.rows[~np.isin(pods.phase[event.rows], (Phase.DELETED, Phase.ABSENT))]
        if not len(rows):
            return []
        bound = rows[pods.phase[rows] == Phase.BOUND]
        self._emptied += self.registry.mark_deleted(rows, self.unix_ms(now))
        self.counters["deleted"] += len(rows)
        self.settlement.publish(rows)
        self.queues.gather(rows, now)
        return [m.Release(bound, pods.uid[bound], pods.node[bound])] if len(bound) else []

    def _gates_removed(self, event: m.GatesRemoved, now: float) -> list[m.Instruction]:
        waits = self.registry.pods.phase[event.rows] == Phase.UNSCHEDULABLE
        rows = event.rows[waits & self.registry.gated(event.rows)]
        self.settlement.gates_removed(rows, event.gates, now, self.unix_ms(now))
        return []

    def _released(self, event: m.Released, now: float) -> list[m.Instruction]:
        pods = self.registry.pods
        pods.node[event.rows] = NONE_U32
        partial = event.rows[pods.phase[event.rows] == Phase.BACKOFF]  # of gangs; deleted pods are DELETED
        self.queues.requeue(partial, now, self.unix_ms(now), front=False)
        self.queues.cluster_changed(Changes(left=self.registry.pod_specs(event.rows)), now, self.unix_ms(now))
        return []

    def _evicted(self, event: m.Evicted, now: float) -> list[m.Instruction]:
        return self.settlement.evicted(event, now, self.unix_ms(now))

    def _verified(self, event: m.Verified, now: float) -> list[m.Instruction]:
        pods = self.registry.pods
        still = (pods.phase[event.rows] == Phase.BOUND) & (pods.uid[event.rows] == event.uids).all(axis=1)
        rows, nodes = event.rows[still], event.nodes[still]
        there = nodes != NONE_U32
        pods.node[rows[there]] = nodes[there]
        self.settlement.unbound_by_ledger(rows[~there], now, self.unix_ms(now))
        return self.settlement.look(rows[there])

    # --- workers ---

    def _registered(self, event: m.Registered, now: float) -> list[m.Instruction]:
        worker = self.members.join(
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
        worker = self.members.on_link(event.link)
        if worker is None or worker.state is not WorkerState.JOINING:
            return []
        self.members.welcome(worker, event.epoch, now)
        welcome = m.Welcome(worker.link, worker.epoch)
        return [welcome, m.SendSurroundings(worker.link, self.objects.surroundings)]

    def _heard(self, event: m.Heard, now: float) -> list[m.Instruction]:
        worker = self.members.on_link(event.link)
        if worker is not None:
            self.members.heard(worker, event.vitals, now)
            self.estimates.learn(worker, event.costs)
        return []

    def _leaving(self, event: m.Leaving, now: float) -> list[m.Instruction]:
        worker = self.members.on_link(event.link)
        if worker is not None:
            self.members.leaving(worker, now)
        return []

    def _link_closed(self, event: m.LinkClosed, now: float) -> list[m.Instruction]:
        worker = self.members.on_link(event.link)
        return [] if worker is None else self._lose(worker, now)

    def _lose(self, worker: Worker, now: float) -> list[m.Instruction]:
        was_living = worker.living
        self.members.lose(worker, now)
        if not was_living:  # it never had an epoch in this life; its last life's fence, if any, goes on
            return []
        self.counters["workers_left" if worker.state is WorkerState.LEFT else "workers_lost"] += 1
        pods = self.registry.pods
        worker.unfenced = np.concatenate(
            [b.rows[pods.batch[b.rows] == b.serial] for b in worker.batches.values()] or [np.empty(0, np.uint32)]
        )
        worker.drop_batches()
        return [m.Fence(worker.name, pods.uid[worker.unfenced])]

    def _fenced(self, event: m.Fenced, now: float) -> list[m.Instruction]:
        worker = self.members.get(event.worker)
        if worker is None or worker.unfenced is None:
            return []
        rows, worker.unfenced = worker.unfenced, None
        pods = self.registry.pods
        pods.batch[rows] = 0
        reserved = event.nodes != NONE_U32
        out: list[m.Instruction] = []
        if reserved.any():
            kept = rows[reserved]
            out += self.settlement.bound(kept, event.nodes[reserved], now, self.unix_ms(now))
            kept = kept[pods.phase[kept] != Phase.BACKOFF]
            out.append(m.Confirm(event.commits, kept, pods.uid[kept]))
        self.settlement.lost(rows[~reserved], now, self.unix_ms(now))
        if worker.state is WorkerState.JOINING:
            out.append(m.GrantEpoch(worker.name, worker.link))
        return out

    def _outcomes_arrived(self, event: m.OutcomesArrived, now: float) -> list[m.Instruction]:
        worker = self.members.on_link(event.link)
        if worker is None:  # of a link already over: its pods were or will be looked up
            self.counters["ignored_outcomes"] += len(event.positions)
            return []
        worker.last_seen = now
        out = self.settlement.answer(worker, event, now, self.unix_ms(now))
        if (event.codes == m.OutcomeCode.FENCED).any() and worker.living:
            # Its epoch is not the ledger's any more, so nothing it does will count until it registers anew.
            out += [
                m.CloseLink(worker.link, "the ledger has fenced this epoch: register anew"),
                *self._lose(worker, now),
            ]
        return out

    def _state_wanted(self, event: m.StateWanted, now: float) -> list[m.Instruction]:
        worker = self.members.get(event.worker)
        if worker is None:
            return []
        self.members.set_wanted(worker, event.state, now)
        return [m.SendDrain(worker.link)] if worker.state is WorkerState.DRAINING else []

    # --- cluster and time ---

    def _objects_applied(self, event: m.ObjectsApplied, now: float) -> list[m.Instruction]:
        before = self.objects.surroundings
        self.objects.apply(event.objects)
        return self._surroundings_changed(before, now)

    def _objects_removed(self, event: m.ObjectsRemoved, now: float) -> list[m.Instruction]:
        before = self.objects.surroundings
        self.objects.remove(event.keys)
        return self._surroundings_changed(before, now)

    def _surroundings_changed(self, before: Surroundings, now: float) -> list[m.Instruction]:
        after = self.objects.surroundings
        relabelled = frozenset(namespace.name for namespace in {*before.namespaces} ^ {*after.namespaces})
        self.queues.cluster_changed(Changes(relabelled=relabelled), now, self.unix_ms(now))
        return self._told_of(before)

    def _use_namespaces(self) -> list[m.Instruction]:
        # A namespace that comes with its pods helps nobody before they are bound, and that is a change of its own.
        used = self.registry.templates.namespaces
        if len(used) == self._namespaces_used:
            return []
        self._namespaces_used = len(used)
        before = self.objects.surroundings
        for namespace in used:
            self.objects.use(namespace)
        return self._told_of(before)

    def _told_of(self, before: Surroundings) -> list[m.Instruction]:
        after = self.objects.surroundings
        if after is before:
            return []
        return [m.SendSurroundings(worker.link, after) for worker in self.members.living()]

    def _cluster_changed(self, event: m.ClusterChanged, now: float) -> list[m.Instruction]:
        self.queues.cluster_changed(event.changes, now, self.unix_ms(now), shard=event.shard, seq=event.seq)
        return []

    def _nodes_seen(self, event: m.NodesSeen, now: float) -> list[m.Instruction]:  # noqa: ARG002 - as all handlers
        return self.settlement.look(self.residence.learn(event.nodes))

    def _nodes_gone(self, event: m.NodesGone, now: float) -> list[m.Instruction]:  # noqa: ARG002 - as all handlers
        self.residence.forget(event.nodes.tolist())
        return self._verify_bound(np.isin(self.registry.pods.node, event.nodes))

    def _history_missed(self, event: m.HistoryMissed, now: float) -> list[m.Instruction]:  # noqa: ARG002 - as all handlers
        return self._verify_bound(self.registry.pods.node % np.uint32(max(event.shards, 1)) == event.shard)

    def _verify_bound(self, wanted: NDArray[np.bool_]) -> list[m.Instruction]:
        pods = self.registry.pods
        bound = (pods.phase[: pods.size] == Phase.BOUND) & wanted[: pods.size]
        rows = np.flatnonzero(bound).astype(np.uint32)
        return [m.Verify(rows, pods.uid[rows])] if len(rows) else []

    def _tick(self, event: m.Tick, now: float) -> list[m.Instruction]:  # noqa: ARG002 - as all handlers
        if self._ticked_at is not None and now - self._ticked_at > LATE_TICK_SECONDS:
            self.members.excuse(now - self._ticked_at)
        self._ticked_at = now
        self.queues.tick(now, self.unix_ms(now))
        self.settlement.tick(now)
        out: list[m.Instruction] = []
        timeout = self._settings.worker_timeout_seconds
        for worker in self.members.silent_since(now - timeout):
            out.append(m.CloseLink(worker.link, f"no heartbeat for {timeout:g} s"))
            out += self._lose(worker, now)
        recalls = self.stealing.recalls()
        self.counters["recalled"] += sum(recall.pods for recall in recalls)
        out += recalls
        if self._emptied and now - self._swept_at >= SWEEP_SECONDS:
            self._swept_at = now
            out += self._forget_emptied()
        self.registry.reasons.compact(self.registry.pods)
        return out

    def _forget_emptied(self) -> list[m.Instruction]:
        self.queues.sweep()
        done = [s for s in self._emptied if self.registry.forgettable(s)]
        self._emptied = [s for s in self._emptied if not self.registry.forgettable(s)]
        for submission in done:
            self.registry.forget(submission)
        return [m.Forget(submission) for submission in done]
