"""Pods as clients and watchers saw them: what was asked for, what was answered, and what was told.

Judges while it walks: nobody is told that a pod is bound on two nodes without having been told in between
that it left the first, no refused pod is seen, and no pod of a gang is told bound before the gang had its
minimum. What must exist at the end follows from the operations, `fate`."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from hossctl.history.checker_judgement import Findings, Promise
from hossctl.history.checker_ledger import LedgerChecker
from hossctl.history.checker_room import PodFacts, pod_facts, whole_requests
from hossctl.history.events import BOUND, DELETED, Event


class Fate(Enum):
    """What the operations of clients say about a pod."""

    EXISTS = "it was acknowledged, and nobody deleted it"
    GONE = "its deletion was acknowledged"
    NEVER = "it was refused"
    EITHER = "it may exist or not"


@dataclass(slots=True)
class _Request:
    """An operation of a client, with everything that was sent and answered under its id."""

    kind: str
    uids: list[str] = field(default_factory=list)
    sent: list[int] = field(default_factory=list)  # lines
    acknowledged: list[int] = field(default_factory=list)
    refused: list[int] = field(default_factory=list)
    requests: Mapping[str, int] = field(default_factory=dict)  # of a resize

    @property
    def only_refused(self) -> bool:
        """Every attempt was refused, so nothing of it may have happened."""
        return len(self.refused) == len(self.sent)


@dataclass(slots=True)
class ToldState:
    """What a watcher was told last of a pod."""

    state: str
    node: str
    line: int


@dataclass(slots=True)
class Watcher:
    """One watcher: what it was told, and since when it has missed nothing."""

    since: int  # line
    told: dict[str, ToldState] = field(default_factory=dict)
    complete: bool = False  # it was told the state of every pod, so it knows also those that are older
    open: bool = True
    missed: int = 0  # line up to which it may have missed states in between


class PodChecker:
    """The clients' and the watchers' side of a history."""

    def __init__(self, findings: Findings, sees: list[str]) -> None:
        self._findings = findings
        self.facts: dict[str, PodFacts] = {}
        self.ledger = LedgerChecker(findings, sees, self.facts, self.gang_size)
        self.watchers: dict[str, Watcher] = {}
        self.foreign: set[str] = set()
        self._requests: dict[str, _Request] = {}
        self._submissions: dict[str, list[_Request]] = defaultdict(list)  # by UID
        self._deletions: dict[str, list[_Request]] = defaultdict(list)  # by UID
        self._ungated: dict[str, list[tuple[_Request, frozenset[str]]]] = defaultdict(list)
        self._listed: dict[str, int] = {}  # UID -> line where it was listed as accepted
        self._members: dict[str, set[str]] = defaultdict(set)  # by gang
        self._gone: dict[str, int] = {}  # UID -> line where somebody was first told that it is deleted
        self._reborn: dict[str, int] = {}  # UID -> line where it was told alive after that
        self._seen: dict[str, int] = {}  # UID -> line of the first sighting
        self._reported: set[str] = set()
        self._followed: set[str] = set()  # UIDs that were told from their first state on, without a gap
        self._moving = False  # the history says that pods were moved
        self._rebound: list[tuple[str, int, int]] = []  # told on two nodes: the violation, and both lines
        self._bindings: list[tuple[str, bool]] = []  # UIDs that were told bound, or bound no more, in order

    # -- clients

    def on_submit(self, event: Event, line: int) -> None:
        """A client sent pods."""
        request = self._sent(event, line)
        for pods in event["pods"]:
            uids = pods.get("uids", ())
            for number, uid in enumerate(uids):
                name = pods.get("name", "")
                self._learn(uid, pods, line, name if len(uids) == 1 or not name else f"{name}-{number}")
            self._belong(request, list(uids))
        if any("uids" not in pods for pods in event["pods"]):
            request.kind = "submit without UIDs"

    def on_operation(self, event: Event, line: int) -> None:
        """A client deletes, ungates, resizes or retries pods."""
        request = self._sent(event, line)
        request.uids += [uid for uid in event["uids"] if uid not in request.uids]
        for uid in event["uids"]:
            if event["event"] == "delete" and request not in self._deletions[uid]:
                self._deletions[uid].append(request)
            if event["event"] == "resize":
                self.ledger.loosen(uid)
                request.requests = whole_requests(event["requests"])
            if event["event"] == "ungate":
                self._ungated[uid].append((request, frozenset(event.get("gates", ()))))

    def on_answer(self, event: Event, line: int) -> None:
        """What a client was answered, or that it was answered nothing."""
        request = self._requests.get(event["request"])
        if request is None:
            text = f"request {event['request']} was answered and never sent"
            self._findings.violated(Promise.NOTHING_LOST, text, line)
        elif event["event"] == "acknowledged":
            request.acknowledged.append(line)
            for uids in event.get("uids", ()):
                self._belong(request, uids)
            for uid in request.uids if request.kind == "resize" else ():
                if uid in self.facts:
                    self.facts[uid] = replace(self.facts[uid], requests=request.requests)
        elif event["event"] == "refused":
            request.refused.append(line)

    def on_accepted(self, event: Event, line: int) -> None:
        """Pods that the dispatcher lists: it has accepted them, whoever sent them."""
        for pods in event["pods"]:
            for uid in pods.get("uids", ()):
                self._learn(uid, pods, line, pods.get("name", ""))
                self._listed.setdefault(uid, line)
                self._see(uid, line)

    def on_foreign(self, event: Event, line: int) -> None:
        """Pods that others placed: they own reservations, and no client of HOSS submitted them."""
        del line
        if event.get("gone"):
            self.foreign.difference_update(event["uids"])
        else:
            self.foreign.update(event["uids"])

    def on_moving(self, event: Event, line: int) -> None:
        """Pods are being moved, or were while this was recorded."""
        del event, line
        self._moving = True

    def _sent(self, event: Event, line: int) -> _Request:
        request = self._requests.setdefault(event["request"], _Request(event["event"]))
        request.sent.append(line)
        return request

    def _belong(self, request: _Request, uids: list[str]) -> None:
        for uid in uids:
            if request not in self._submissions[uid]:
                self._submissions[uid].append(request)
                request.uids.append(uid)

    def _learn(self, uid: str, pods: Event, line: int, name: str) -> None:
        if uid not in self.facts:
            self.facts[uid] = facts = pod_facts(pods, uid, line, name)
            if facts.gang:
                self._members[facts.gang].add(uid)

    def gang_size(self, gang: str) -> int:
        """How many members of a gang nobody has asked to delete."""
        return sum(not self.deleted(uid) for uid in self._members[gang])

    # -- watchers

    def on_watch(self, event: Event, line: int) -> None:
        """A watcher begins."""
        self.watchers[event["by"]] = Watcher(line)

    def on_unwatch(self, event: Event, line: int) -> None:
        """A watcher ends: what it was told is old from now on."""
        del line
        if event["by"] in self.watchers:
            self.watchers[event["by"]].open = False

    def on_gap(self, event: Event, line: int) -> None:
        """A watcher has missed something: it begins anew, or goes on without the states in between."""
        if event["of"] not in ("watch", "states") or event["by"] not in self.watchers:
            return
        if event["of"] == "watch":
            self.watchers[event["by"]] = Watcher(line)
        else:
            self.watchers[event["by"]].missed = line
        self._followed.clear()

    def on_told(self, event: Event, line: int) -> None:
        """A watcher was told changes, or with `listing` the state of every pod."""
        watcher = self.watchers.setdefault(event["by"], Watcher(line))
        if event.get("listing"):
            watcher.told, watcher.complete = {}, True
        for row in event["pods"]:
            uid, state, node = row["uid"], row["state"], row.get("node", "")
            before = watcher.told.get(uid)
            watcher.told[uid] = ToldState(state, node, line)
            if not event.get("listing") and uid not in self._seen:
                self._followed.add(uid)
            if state == DELETED:
                self._gone.setdefault(uid, line)
            else:
                self._see(uid, line)
                if uid in self._gone:
                    self._reborn.setdefault(uid, line)
            if state == BOUND:
                self._told_bound(event["by"], uid, node, before, line)
            if (state == BOUND) != (before is not None and before.state == BOUND):
                self._bindings.append((uid, state == BOUND))

    def _told_bound(self, by: str, uid: str, node: str, before: ToldState | None, line: int) -> None:
        self._findings.judged(Promise.ONE_NODE)
        name = self.name(uid)
        missed = self.watchers[by].missed
        rebound = before is not None and before.state == BOUND and before.node != node
        if rebound and self.ledger.moves[uid, node]:
            self.ledger.moves[uid, node] -= 1  # one step of the ledger, so nothing is between
        elif before is not None and rebound and before.line > missed:
            text = f"{by} was told that {name} is bound to {before.node}, then to {node}, and nothing between"
            self._rebound.append((text, before.line, line))
        facts = self.facts.get(uid)
        if facts and facts.gang and self.ledger.sees_reservations:
            self._findings.judged(Promise.GANGS)
            if not self.ledger.was_whole(uid):
                text = f"{by} was told that {name} is bound, and its gang {facts.gang} "
                self._findings.violated(Promise.GANGS, text + self.ledger.gang_text(uid), facts.line, line)

    def _note_whole_gangs(self) -> None:
        """Where the history does not name the reserved pods, a gang is whole once its minimum was told bound.
        What belongs to a gang may be described only after it was told."""
        bound: dict[str, set[str]] = defaultdict(set)
        for uid, binds in self._bindings:
            facts = self.facts.get(uid)
            if facts is None or not facts.gang:
                continue
            if binds:
                bound[facts.gang].add(uid)
            else:
                bound[facts.gang].discard(uid)
            if len(bound[facts.gang]) >= min(facts.minimum, self.gang_size(facts.gang)):
                self.ledger.whole.add(facts.gang)

    def followed(self, uid: str) -> bool:
        """Whether watchers were told every state of a pod."""
        return uid in self._followed

    def see_reserved(self, event: Event, line: int) -> None:
        """Reservations are sightings of their pods, too."""
        for row in (*event.get("reserved", ()), *event.get("rows", ())):
            self._see(row.get("target_of", row["uid"]), line)

    def _see(self, uid: str, line: int) -> None:
        """Somebody sees that a pod exists."""
        self._seen.setdefault(uid, line)
        if uid not in self._reported and self.fate(uid) is Fate.NEVER:
            self._report_refused(uid, line)

    def _report_refused(self, uid: str, line: int) -> None:
        self._reported.add(uid)
        refusals = [line for request in self._submissions[uid] for line in request.refused[:1]]
        text = f"{self.name(uid)} was refused, and exists"
        self._findings.violated(Promise.REFUSED, text, *refusals, line)

    # -- what must be at the end

    def accepted(self, uid: str) -> int:
        """The line that says that a pod was accepted; 0: none does."""
        lines = [line for request in self._submissions.get(uid, ()) for line in request.acknowledged]
        return min((*lines, *([self._listed[uid]] if uid in self._listed else ())), default=0)

    def deleted(self, uid: str) -> int:
        """The first line that says that a pod was to be deleted; 0: none does."""
        sent = [request.sent[0] for request in self._deletions.get(uid, ()) if not request.only_refused]
        return min((*sent, *([self._gone[uid]] if uid in self._gone else ())), default=0)

    def told_gone(self, uid: str) -> int:
        """The line where somebody was told that a pod is deleted; 0: nobody was."""
        return self._gone.get(uid, 0)

    def fate(self, uid: str) -> Fate:
        """What has to be of a pod, by what clients sent and were answered."""
        submissions = self._submissions.get(uid, [])
        accepted = self.accepted(uid)
        if submissions and not accepted and all(request.only_refused for request in submissions):
            return Fate.NEVER
        if not accepted:
            return Fate.EITHER
        deletions = [each for each in self._deletions.get(uid, ()) if not each.only_refused]
        if not deletions:
            return Fate.EXISTS
        first = min(request.sent[0] for request in deletions)
        again = max((line for request in submissions for line in request.sent), default=0) > first
        if again:  # the same request after the deletion: it is a new pod where somebody saw it come back
            born = self._reborn.get(uid, 0)
            later = born and not any(line > born for request in deletions for line in request.sent)
            return Fate.EXISTS if later else Fate.EITHER
        # A deletion that was sent before the pod was accepted may have come too early.
        done = any(request.acknowledged and request.sent[-1] > accepted for request in deletions)
        return Fate.GONE if done else Fate.EITHER

    def opened(self, uid: str) -> frozenset[str]:
        """The gates of a pod whose removal was acknowledged."""
        found: set[str] = set()
        for request, gates in self._ungated.get(uid, ()):
            if request.acknowledged:
                found |= gates or (self.facts[uid].gates if uid in self.facts else frozenset())
        return frozenset(found)

    def known(self) -> list[str]:
        """Every pod of which the history tells that somebody submitted it."""
        return list(dict.fromkeys((*self._submissions, *self._listed)))

    def finish(self) -> None:
        """Judge what was refused, when no answer can come any more, and the pods that were told on two nodes.
        The history may say only afterwards that pods are moved, and says which by reservations alone."""
        if not self.ledger.sees_reservations:
            self._note_whole_gangs()
        if self._moving and not self.ledger.sees_reservations:
            why = "pods were moved, and the history does not say which"
            self._findings.unjudged(Promise.ONE_NODE, why, len(self._rebound))
            self._rebound.clear()
        for text, before, line in self._rebound:
            self._findings.violated(Promise.ONE_NODE, text, before, line)
        for uid in self._submissions:
            if self.fate(uid) is Fate.NEVER:
                self._findings.judged(Promise.REFUSED)
                if uid in self._seen and uid not in self._reported:
                    self._report_refused(uid, self._seen[uid])
        nameless = sum(request.kind == "submit without UIDs" and request.only_refused and not request.uids
                       for request in self._requests.values())  # fmt: skip
        self._findings.unjudged(Promise.REFUSED, "the UIDs of a refused request are not known", nameless)

    def name(self, uid: str) -> str:
        """A pod in a sentence."""
        return str(self.facts.get(uid, f"pod {uid}"))
