"""The end of a history: what became of every pod, who owns every reservation, whether all who keep a record
agree, and whether those that still wait have a reason.

What clients were acknowledged must be there whenever the last table was taken. Everything else is judged only
where the history says that faults were over (`quiet`) before the final states were taken."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from hossctl.history.checker_judgement import Findings, Promise
from hossctl.history.checker_pods import Fate, PodChecker, Watcher
from hossctl.history.checker_room import (
    ASSUMED,
    PREPARED,
    TERMINATING,
    HeldPod,
    NodeLoad,
    PodFacts,
    held_for,
    why_not,
)
from hossctl.history.events import BOUND, CLIENTS, DELETED, FAILED, SCHEDULING, UNSCHEDULABLE, Event

_WAITING = "waiting"
_ANTI_AFFINITY = "podAntiAffinity"
_NO_QUIET = "the history does not say that faults were over before its final states"


@dataclass(slots=True)
class _Final:
    """The final states, each with its line."""

    table: dict[str, Event] = field(default_factory=dict)  # row by UID
    table_line: int = 0
    journal: set[str] = field(default_factory=set)
    journal_line: int = 0
    ready: list[str] | None = None  # workers; None: nobody says
    caches: dict[tuple[str, int], tuple[Event, int]] = field(default_factory=dict)  # by worker and shard
    digests: dict[int, tuple[Event, int]] = field(default_factory=dict)  # by shard


class EndChecker:
    """Collects final states during the walk, and judges them at the end."""

    def __init__(self, findings: Findings, sees: list[str], pods: PodChecker) -> None:
        self._findings = findings
        self._sees_clients = CLIENTS in sees
        self._pods = pods
        self._ledger = pods.ledger
        self._final = _Final()
        self._quiet = 0
        self._watch_gap = 0
        self._held: list[HeldPod] | None = None
        self._loads: dict[str, NodeLoad] = {}

    def on_quiet(self, event: Event, line: int) -> None:
        """Faults are over; a later fault takes that back."""
        self._quiet = line if event["event"] == "quiet" else 0

    def on_gap(self, event: Event, line: int) -> None:
        """Watchers have missed something."""
        if event["of"] == "watch":
            self._watch_gap = line

    def on_state(self, event: Event, line: int) -> None:
        """What a service had in its record."""
        kind = event["event"]
        if kind in ("cache", "digest"):
            self._on_digest(event, line)
        if not event.get("final"):
            return
        if kind == "table":
            self._final.table = {row["uid"]: row for row in event["pods"] if row["state"] != DELETED}
            self._final.table_line = line
        elif kind == "journal":
            self._final.journal, self._final.journal_line = set(event["uids"]), line
        elif kind == "workers":
            self._final.ready = event["ready"]

    def _on_digest(self, event: Event, line: int) -> None:
        """Caches and the ledger at the same sequence number have the same digest, at every moment."""
        if event["event"] == "digest":
            self._final.digests[event["shard"]] = event, line
            return
        self._final.caches[event["by"], event["shard"]] = event, line
        digest, digest_line = self._final.digests.get(event["shard"], ({}, 0))
        if digest and "digest" in event and digest["seq"] == event["seq"]:
            self._findings.judged(Promise.AGREEMENT)
            if digest["digest"] != event["digest"]:
                text = (
                    f"shard {event['shard']}: the cache of {event['by']} and the ledger differ at the same "
                    f"change {event['seq']}"
                )
                self._findings.violated(Promise.AGREEMENT, text, digest_line, line)

    # -- at the end

    def finish(self) -> None:
        """Judge the end."""
        self._judge_fates()
        after_quiet = (Promise.WATCHERS, Promise.OWNERS, Promise.AGREEMENT, Promise.GANGS, Promise.LIVENESS)
        if not self._final.table_line or not self._quiet:
            why = _NO_QUIET if self._final.table_line else "there is no final table of pods"
            for promise in after_quiet:
                self._findings.unjudged(promise, why)
            return
        self._held = self._ledger.present()
        self._judge_watchers()
        self._judge_owners()
        self._judge_journal()
        self._judge_caches()
        self._judge_gangs()
        self._judge_waiting()

    def _judge_fates(self) -> None:
        known = self._pods.known()
        line = self._final.table_line
        if not line:
            self._findings.unjudged(Promise.NOTHING_LOST, "there is no final table of pods", len(known))
            return
        told = {uid for watcher in self._pods.watchers.values() for uid in watcher.told}
        why = "told of, and gone before the history described it"
        self._findings.unjudged(Promise.NOTHING_LOST, why, len(told - set(known)))
        for uid in known:
            row, fate = self._final.table.get(uid), self._pods.fate(uid)
            accepted, deleted = self._pods.accepted(uid), self._pods.deleted(uid)
            name = self._pods.name(uid)
            if fate is Fate.NEVER:
                continue  # judged as refused
            if row is None and fate is Fate.EXISTS and not self._sees_clients:
                self._judge_vanished(uid, accepted)
                continue
            if fate is Fate.EITHER:
                why = "it may exist or not: unanswered, or deleted and submitted again"
                self._findings.unjudged(Promise.NOTHING_LOST, why)
            else:
                self._findings.judged(Promise.NOTHING_LOST)
            if row is None and fate is Fate.EXISTS:
                lines = (accepted, self._pods.told_gone(uid), line)
                self._findings.violated(Promise.NOTHING_LOST, f"{name} is lost: {fate.value}", *lines)
            elif row is not None and fate is Fate.GONE:
                text = f"{name} is {row['state']}: {fate.value}"
                self._findings.violated(Promise.NOTHING_LOST, text, deleted, line)
            if row is not None:
                self._judge_reason(row, name)

    def _judge_vanished(self, uid: str, accepted: int) -> None:
        """A pod is not there any more, and the history does not hold what clients sent."""
        name, line = self._pods.name(uid), self._final.table_line
        if self._pods.told_gone(uid):
            why = "deleted, and the history does not hold what clients asked for"
            self._findings.unjudged(Promise.NOTHING_LOST, why)
        elif self._watch_gap > accepted or not any(
            watcher.open and watcher.since < accepted for watcher in self._pods.watchers.values()
        ):
            why = "gone, while nobody was told of changes"
            self._findings.unjudged(Promise.NOTHING_LOST, why)
        else:
            self._findings.judged(Promise.NOTHING_LOST)
            text = f"{name} is lost: it was accepted, and nobody was told that it was deleted"
            self._findings.violated(Promise.NOTHING_LOST, text, accepted, line)

    def _judge_reason(self, row: Event, name: str) -> None:
        if row["state"] in (FAILED, UNSCHEDULABLE) and not row.get("reason") and not row.get("gates"):
            text = f"{name} is {row['state']}, without a reason"
            self._findings.violated(Promise.NOTHING_LOST, text, self._final.table_line)
        if kept := self._pods.opened(row["uid"]) & set(row.get("gates", ())):
            text = f"{name} has the gate {min(kept)}, whose removal was acknowledged"
            self._findings.violated(Promise.NOTHING_LOST, text, self._final.table_line)

    # -- watchers

    def _judge_watchers(self) -> None:
        if not self._pods.watchers:
            self._findings.unjudged(Promise.WATCHERS, "there is no watcher in the history")
        for name, watcher in self._pods.watchers.items():
            if not watcher.open:
                self._findings.unjudged(Promise.WATCHERS, "a watcher that ended before the end")
                continue
            uids = list(dict.fromkeys((*watcher.told, *self._owed(watcher))))
            self._findings.judged(Promise.WATCHERS, len(uids))
            for uid in uids:
                self._compare_told(name, watcher, uid)

    def _owed(self, watcher: Watcher) -> Iterable[str]:
        """Pods of which a watcher must have been told something."""
        return [
            uid
            for uid in self._final.table
            if watcher.complete
            or ((facts := self._pods.facts.get(uid)) is not None and facts.line > watcher.since)
        ]

    def _compare_told(self, name: str, watcher: Watcher, uid: str) -> None:
        told, row = watcher.told.get(uid), self._final.table.get(uid)
        last = _summary(told.state, told.node) if told else _summary(DELETED)
        now = _summary(row["state"], row.get("node", "")) if row else _summary(DELETED)
        if last != now:
            heard = f"was told last that {self._pods.name(uid)} is {last}" if told else "was told nothing"
            text = f"{name} {heard}, and {self._pods.name(uid)} is {now}"
            line = told.line if told else watcher.since
            self._findings.violated(Promise.WATCHERS, text, line, self._final.table_line)

    # -- agreement

    def _judge_owners(self) -> None:
        """Every reservation belongs to a pod that is bound there, and every bound pod has one."""
        line = self._final.table_line
        if self._held is None:
            why = "the history has no reservations of its end"
            self._findings.unjudged(Promise.OWNERS, why)
            self._findings.unjudged(Promise.AGREEMENT, why)
            return
        reserved: dict[str, list[HeldPod]] = defaultdict(list)
        for pod in self._held:
            reserved[pod.uid].append(pod)
            if pod.uid in self._pods.foreign:
                continue
            self._findings.judged(Promise.OWNERS)
            row = self._final.table.get(pod.uid)
            text = f"{self._pods.name(pod.uid)} has a reservation on {pod.node} ({pod.state}), and "
            if pod.target_of or pod.left:
                text += f"no move of {self._pods.name(pod.target_of or pod.uid)} is under way"
                self._findings.violated(Promise.OWNERS, text, pod.line, line)
            elif pod.state == PREPARED:
                text += "whoever prepared it is long gone"
                self._findings.violated(Promise.OWNERS, text, pod.line, line)
            elif pod.state == TERMINATING:
                self._findings.unjudged(Promise.OWNERS, "its pod is terminating")
            elif row is None:
                self._findings.violated(Promise.OWNERS, text + "does not exist", pod.line, line)
            elif row["state"] != BOUND:
                self._findings.violated(Promise.OWNERS, text + f"is {row['state']}", pod.line, line)
        bound = [row for row in self._final.table.values() if row["state"] == BOUND]
        self._findings.judged(Promise.AGREEMENT, len(bound))
        for row in bound:
            self._judge_bound(row, reserved.get(row["uid"], []))

    def _judge_bound(self, row: Event, held: list[HeldPod]) -> None:
        name, node, line = self._pods.name(row["uid"]), row.get("node", ""), self._final.table_line
        lines = [pod.line for pod in held]
        if not any(pod.node == node for pod in held):
            where = f"its reservation is on {held[0].node}" if held else "it has no reservation"
            text = f"{name} is bound to {node}, and {where}"
            self._findings.violated(Promise.AGREEMENT, text, *lines, line)
        elif any(pod.state == ASSUMED for pod in held):
            text = f"{name} is bound to {node}, and its reservation was never confirmed: its lease will end"
            self._findings.violated(Promise.AGREEMENT, text, *lines, line)

    def _judge_journal(self) -> None:
        if not self._final.journal_line:
            self._findings.unjudged(Promise.AGREEMENT, "the history does not hold the journal")
            return
        lines = (self._final.journal_line, self._final.table_line)
        both = self._final.journal | self._final.table.keys()
        self._findings.judged(Promise.AGREEMENT, len(both))
        for uid in sorted(both):
            if uid not in self._final.table:
                text = f"{self._pods.name(uid)} is in the journal, and the dispatcher does not know it"
                self._findings.violated(Promise.AGREEMENT, text, *lines)
            elif uid not in self._final.journal:
                text = f"{self._pods.name(uid)} is not in the journal: the next dispatcher would not know it"
                self._findings.violated(Promise.AGREEMENT, text, *lines)

    def _judge_caches(self) -> None:
        """After quiet every cache that follows the ledger has reached it. Equal positions with other digests
        were judged before."""
        if not self._final.caches:
            self._findings.unjudged(Promise.AGREEMENT, "the history does not hold the workers' caches")
        told = {worker for worker, _ in self._final.caches}
        silent = len(set(self._final.ready or ()) - told) if told else 0
        self._findings.unjudged(Promise.AGREEMENT, "a ready worker whose cache is not told", silent)
        for (worker, shard), (cache, line) in self._final.caches.items():
            if not cache.get("follows", True) or not cache.get("final"):
                why = "a cache that does not follow the ledger, or was not compared at the end"
                self._findings.unjudged(Promise.AGREEMENT, why)
                continue
            digest, digest_line = self._final.digests.get(shard, ({}, 0))
            self._findings.judged(Promise.AGREEMENT)
            if digest and digest["seq"] != cache["seq"]:
                text = (
                    f"shard {shard}: the cache of {worker} is at change {cache['seq']}, and the ledger at "
                    f"{digest['seq']}"
                )
                self._findings.violated(Promise.AGREEMENT, text, digest_line, line)
            self._compare_cache(worker, shard, cache, line)

    def _compare_cache(self, worker: str, shard: int, cache: Event, line: int) -> None:
        if "accounts" not in cache or self._held is None:
            return
        sums: dict[str, Counter[str]] = defaultdict(Counter)
        for pod in self._held:
            if pod.shard == shard:
                sums[pod.node].update(pod.requests)
        said = {row["node"]: row["requested"] for row in cache["accounts"]}
        for node in sorted(sums.keys() | said.keys()):
            self._findings.judged(Promise.AGREEMENT)
            mine, others = +sums[node], +Counter(said.get(node, {}))
            if mine != others:
                text = (
                    f"node {node}: the cache of {worker} has {dict(others)}, and the reservations sum up to "
                    f"{dict(mine)}"
                )
                self._findings.violated(Promise.AGREEMENT, text, line)

    # -- gangs and those that wait

    def _judge_gangs(self) -> None:
        for gang, members in self._gangs().items():
            bound = [facts for facts in members if self._state(facts) == BOUND]
            needed = min(members[0].minimum, len(members))
            partial = 0 < len(bound) < needed and not self._ledger.was_whole(bound[0].uid)
            followed = all(self._pods.followed(facts.uid) for facts in members)
            if partial and not self._ledger.sees_reservations and not followed:
                why = "a part of a gang is bound, and it may have been whole while nobody looked"
                self._findings.unjudged(Promise.GANGS, why)
                continue
            self._findings.judged(Promise.GANGS)
            if partial:
                text = f"gang {gang} has {len(bound)} pods bound, needs {needed}, and never had them"
                lines = (bound[0].line, self._final.table_line)
                self._findings.violated(Promise.GANGS, text, *lines)

    def _gangs(self) -> Mapping[str, list[PodFacts]]:
        """The members of each gang that exist."""
        found: dict[str, list[PodFacts]] = defaultdict(list)
        for uid in self._final.table:
            facts = self._pods.facts.get(uid)
            if facts and facts.gang:
                found[facts.gang].append(facts)
        return found

    def _state(self, facts: PodFacts) -> str:
        return str(self._final.table[facts.uid]["state"])

    def _judge_waiting(self) -> None:
        waiting = [row for row in self._final.table.values() if row["state"] not in (BOUND, FAILED)]
        settled = len(self._final.table) - len(waiting)
        self._findings.judged(Promise.LIVENESS, settled)
        if not waiting:
            return
        if self._held is None or self._final.ready == []:
            why = "the reservations are not known" if self._held is None else "no worker was ready"
            self._findings.unjudged(Promise.LIVENESS, why, len(waiting))
            return
        self._loads = {name: NodeLoad() for name in self._ledger.nodes}
        for pod in self._held:
            self._loads.setdefault(pod.node, NodeLoad()).add(pod)
        gangs: dict[str, list[PodFacts]] = defaultdict(list)
        for row in waiting:
            facts = self._pods.facts.get(row["uid"])
            if set(row.get("gates", ())) - self._pods.opened(row["uid"]):
                self._findings.judged(Promise.LIVENESS)
            elif facts is None or facts.rules:
                why = f"rules that are not modelled: {', '.join(facts.rules)}" if facts else "unknown pods"
                self._findings.unjudged(Promise.LIVENESS, why)
            elif facts.gang:
                gangs[facts.gang].append(facts)
            else:
                self._judge_alone(facts, row)
        for gang, members in gangs.items():
            self._judge_waiting_gang(gang, members)

    def _judge_alone(self, facts: PodFacts, row: Event) -> None:
        node = self._room_for(facts)
        if node and self._hindered():
            self._findings.unjudged(Promise.LIVENESS, "the anti-affinity of other pods is not modelled")
            return
        if not node and row["state"] == SCHEDULING:
            self._findings.unjudged(Promise.LIVENESS, "it has no room, and a worker was trying")
            return
        self._findings.judged(Promise.LIVENESS)
        if node:
            text = f"{facts} is {row['state']} ({row.get('reason') or 'no reason'}), and has room on {node}"
            lines = (facts.line, self._ledger.nodes[node].line, self._final.table_line)
            self._findings.violated(Promise.LIVENESS, text, *lines)

    def _judge_waiting_gang(self, gang: str, waiting: list[PodFacts]) -> None:
        """A gang has room where its missing pods can be placed one after the other. That they cannot in this
        order proves something only for equal pods, which any order places alike."""
        members = self._gangs()[gang]
        bound = len(members) - len(waiting)
        missing = max(1, min(waiting[0].minimum, len(members)) - bound)
        placed: list[HeldPod] = []
        for facts in sorted(waiting, key=lambda each: sorted(each.requests.items()), reverse=True):
            if len(placed) < missing and (node := self._room_for(facts)):
                placed.append(held_for(facts, self._ledger.nodes[node], self._loads[node]))
                self._loads[node].add(placed[-1])
        for pod in placed:
            self._loads[pod.node].remove(pod)
        room = len(placed) >= missing
        equal = all(facts.equivalent(waiting[0]) for facts in waiting)
        if (room and self._hindered()) or (not room and not equal):
            why = "a gang of unequal pods, or beside pods with anti-affinity: no order was proven"
            self._findings.unjudged(Promise.LIVENESS, why, len(waiting))
            return
        self._findings.judged(Promise.LIVENESS, len(waiting))
        if room:
            text = f"gang {gang} waits for {missing} more pods, and they have room on " + ", ".join(
                sorted({pod.node for pod in placed})
            )
            self._findings.violated(Promise.LIVENESS, text, waiting[0].line, self._final.table_line)

    def _room_for(self, facts: PodFacts) -> str:
        """A node with room; empty: there is none."""
        return next(
            (n for n, node in self._ledger.nodes.items() if not why_not(facts, node, self._loads[n])), ""
        )

    def _hindered(self) -> bool:
        """Whether pods that are there may keep others away by rules that are not modelled."""
        held = (self._pods.facts.get(pod.uid) for pod in self._held or ())
        return any(facts is not None and _ANTI_AFFINITY in facts.rules for facts in held)


def _summary(state: str, node: str = "") -> str:
    """What watchers have to know last. Waiting pods go through their queues on and on."""
    if state == BOUND:
        return f"bound to {node}"
    return state if state in (FAILED, DELETED) else _WAITING
