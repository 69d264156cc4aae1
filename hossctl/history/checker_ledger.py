"""The ledger as its changes say it is: nodes, reservations, accounts, and who was allowed to write.

Judges at every change: no overcommit, one node a pod, states in their order, and gangs whole. What the ledger
says of itself is judged by `checker_accounts`."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping

from hossctl.history.checker_accounts import AccountChecker
from hossctl.history.checker_fencing import FencingChecker
from hossctl.history.checker_judgement import Findings, Promise
from hossctl.history.checker_room import (
    ASSUMED,
    CONFIRMED,
    PREPARED,
    TERMINATING,
    HeldPod,
    NodeFacts,
    NodeLoad,
    PodFacts,
    amounts_text,
    node_facts,
    nonzero,
    ports_of,
    shortages,
    whole_requests,
)
from hossctl.history.events import RESERVATIONS, Event


class LedgerChecker:
    """The ledger's side of a history. `facts`: of pods, by UID. `gang_size`: how many members of a pod's gang
    have not been deleted."""

    def __init__(
        self,
        findings: Findings,
        sees: Iterable[str],
        facts: Mapping[str, PodFacts],
        gang_size: Callable[[str], int],
    ) -> None:
        self._findings = findings
        self.sees_reservations = RESERVATIONS in sees
        self._facts = facts
        self._gang_size = gang_size
        self.nodes: dict[str, NodeFacts] = {}
        self._removed: dict[str, int] = {}  # name -> line
        self.held: dict[str, dict[int, HeldPod]] = defaultdict(dict)  # UID -> shard -> reservation
        self.loads: dict[str, NodeLoad] = defaultdict(NodeLoad)
        self._resized: set[str] = set()
        self._gang_live: dict[str, set[str]] = defaultdict(set)
        self.whole: set[str] = set()  # gangs that had their minimum once
        self._fencing = FencingChecker(findings)
        self.moves: Counter[tuple[str, str]] = Counter()  # by pod and node, that watchers may be told
        self.accounts = AccountChecker(
            *(findings, self.nodes, self.held, self.loads),
            name=self._name,
            read=self._read,
            sees_reservations=self.sees_reservations,
        )

    # -- nodes

    def on_node(self, event: Event, line: int) -> None:
        """A node was added or changed."""
        self.accounts.advance(event, line)
        self.nodes[event["name"]] = node_facts(event, line)
        self._removed.pop(event["name"], None)

    def on_node_removed(self, event: Event, line: int) -> None:
        """A node was removed."""
        self.accounts.advance(event, line)
        self.nodes.pop(event["name"], None)
        self.accounts.forget_node(event["name"])
        self._removed[event["name"]] = line

    # -- changes

    def on_ledger(self, event: Event, line: int) -> None:
        """One change of a shard, or a snapshot of it."""
        self.accounts.advance(event, line)
        self._fencing.on_change(event, line)
        if event.get("snapshot"):
            self._on_snapshot(event, line)
        else:
            self._on_change(event, line)
        self.accounts.on_accounts(event, line)
        self.accounts.settle_lists(event["shard"], line)

    def _on_change(self, event: Event, line: int) -> None:
        shard = event["shard"]
        left = {uid: self.held[uid].get(shard) for uid in event.get("released", ())}
        for uid in left:
            self._release(uid, shard, line)
        for row in event.get("resized", ()):
            self._resize(row, shard, line)
        for uid in event.get("terminating", ()):
            self._move(uid, event, "terminating", (ASSUMED, CONFIRMED), TERMINATING)
        given = self._share(event.get("shared", ()), shard, line)
        added = [self._read(row, shard, line) for row in event.get("reserved", ())]
        self._judge_shares(given, added, line)
        for pod in added:
            self._reserve(pod, unchecked=event.get("unchecked", False))
            self._see_move(left.get(pod.uid), pod, event, line)
        if added and event.get("unchecked"):
            why = "reserved unchecked: the pods were on their nodes already"
            self._findings.unjudged(Promise.NO_OVERCOMMIT, why, len(added))
        elif added:
            targets = [pod for pod in left.values() if pod is not None and pod.target_of]
            self._judge_room(_without_heirs(added, targets), line, given)
        self._take_targets(event, left, line)
        for name, before, after in (
            ("committed", (PREPARED,), ASSUMED),
            ("confirmed", (ASSUMED, CONFIRMED), CONFIRMED),
        ):
            for uid in event.get(name, ()):
                self._move(uid, event, name, before, after)
        self._judge_gangs(event, line)

    def _on_snapshot(self, event: Event, line: int) -> None:
        """The whole shard anew. Without `lost` it has to be what the changes before have made of it."""
        shard = event["shard"]
        if "accounts" in event:
            for name in self.accounts.missing(shard, {row["node"] for row in event["accounts"]}):
                self.nodes.pop(name, None)  # removed meanwhile
                self.accounts.forget_node(name)
        if not self.sees_reservations:
            return
        new = {row["uid"]: self._read(row, shard, line) for row in event.get("reserved", ())}
        old = {uid: pod for uid, by_shard in self.held.items() if (pod := by_shard.get(shard))}
        if self.accounts.knows(shard) and not event.get("lost"):
            self.accounts.compare(old, new, line, f"the snapshot of shard {shard}")
        for uid in old:
            self._forget(uid, shard)
        for pod in new.values():
            pod.brought_back = bool(event.get("lost")) and pod.uid not in old
            pod.left = pod.uid in old and old[pod.uid].left
            self._hold(pod)
        # A reservation that was the source of a move is that still.
        for target in [pod for by_shard in self.held.values() for pod in by_shard.values() if pod.sources]:
            target.sources = tuple(
                new.get(source.uid, source) if source is old.get(source.uid) else source
                for source in target.sources
            )

    def _read(self, row: Event, shard: int, line: int) -> HeldPod:
        target_of = row.get("target_of", "")
        facts = self._facts.get(target_of or row["uid"])
        requests = facts.requests if facts else {}
        if "requests" in row:
            # A terminating pod may hold nothing of a resource any more.
            left = row.get("state") == TERMINATING
            requests = nonzero(row["requests"]) if left else whole_requests(row["requests"])
        ports = ports_of(row["ports"]) if "ports" in row else facts.ports if facts else ()
        cards = {int(card): milli for card, milli in row.get("cards", {}).items()}
        state = row.get("state", ASSUMED)
        sources = tuple(pod for pod in self.live(target_of) if not pod.left)
        return HeldPod(
            *(row["uid"], row["node"], shard, state, line, requests, ports, cards),
            seq=row.get("seq"),
            target_of=target_of,
            sources=sources,
        )

    def _reserve(self, pod: HeldPod, *, unchecked: bool) -> None:
        self._judgeamounts_text(pod)
        before = self.held[pod.uid].get(pod.shard)
        if before is not None:
            text = f"{self._name(pod.uid)} is reserved on {pod.node} while it is reserved on {before.node}"
            self._findings.judged(Promise.ONE_NODE)
            self._findings.violated(Promise.ONE_NODE, text, before.line, pod.line)
            self._forget(pod.uid, pod.shard)
        elif pod.target_of:
            pass  # beside what its pod holds
        elif pod.state != PREPARED and not unchecked:
            self._judge_alone(pod, pod.line)
        elif pod.state != PREPARED:
            why = "reserved unchecked: a pod may move between shards in two steps"
            self._findings.unjudged(Promise.ONE_NODE, why)
        self._hold(pod)

    def _judgeamounts_text(self, pod: HeldPod) -> None:
        """A pod is reserved with what it asks for; what cards add to that is not modelled."""
        facts = self._facts.get(pod.target_of or pod.uid)
        if not pod.requests:
            why = "what a reserved pod asks for is not in the history"
            self._findings.unjudged(Promise.NO_OVERCOMMIT, why)
        if facts and pod.uid not in self._resized and not facts.cards[0]:
            self._findings.judged(Promise.AGREEMENT)
            if facts.requests != pod.requests:
                asked, held = amounts_text(facts.requests), amounts_text(pod.requests)
                text = f"{facts} asks for {asked}, and its reservation is {held}"
                self._findings.violated(Promise.AGREEMENT, text, facts.line, pod.line)

    def _judge_alone(self, pod: HeldPod, line: int) -> None:
        """A reservation becomes live: no other one of the pod may be."""
        self._findings.judged(Promise.ONE_NODE)
        for other in self.held[pod.uid].values():
            if other.shard == pod.shard or other.state == PREPARED or other.left:
                continue
            text = (
                f"{self._name(pod.uid)} has two live reservations: on {other.node} (shard {other.shard}) "
                f"and on {pod.node} (shard {pod.shard})"
            )
            self._tell_second(pod, other, text, other.line, pod.line, line)

    def _tell_second(self, pod: HeldPod, other: HeldPod, text: str, *lines: int) -> None:
        """A pod has both reservations. That is no violation where one of them was released once."""
        if other.brought_back or pod.brought_back:
            why = "a loss of the ledger took the release of a reservation, and nobody can know of it at once"
            self._findings.unjudged(Promise.ONE_NODE, why)
        else:
            self._findings.violated(Promise.ONE_NODE, text, *lines)

    def _move(self, uid: str, event: Event, step: str, before: tuple[str, ...], after: str) -> None:
        shard = event["shard"]
        pod, line = self.held[uid].get(shard), self._findings.line
        self._findings.judged(Promise.STATES)
        if pod is None:
            text = f"{self._name(uid)} is {step} on shard {shard}, where it has no reservation"
            self._findings.violated(Promise.STATES, text, line)
            return
        if pod.state not in before:
            text = f"{self._name(uid)} is {step} while its reservation on {pod.node} is {pod.state}"
            self._findings.violated(Promise.STATES, text, pod.line, line)
        elif pod.state == PREPARED and not pod.target_of:
            self._judge_alone(pod, line)
        pod.state = after
        pod.seq = event["seq"] if step == "committed" else pod.seq
        pod.evicted = line if after == TERMINATING else 0
        self._count_gang(pod)

    def _take_targets(self, event: Event, left: Mapping[str, HeldPod | None], line: int) -> None:
        noted = {row["uid"]: (row["node"], row["seq"]) for row in event.get("sources", ())}
        for uid in event.get("moved", ()):
            self._take_target(uid, event, left, noted, line)

    def _take_target(
        self,
        uid: str,
        event: Event,
        left: Mapping[str, HeldPod | None],
        noted: Mapping[str, tuple[str, int]],
        line: int,
    ) -> None:
        """A target becomes its pod's reservation. What the pod held on this shard was released in the same
        line (`left`); its source on another shard counts no more. That is what the step has `noted` (node and
        seq), as whoever moves asks for the source again when a target is reserved already; in a history that
        does not tell it, what the pod held when the target was reserved."""
        shard = event["shard"]
        target = self.held[uid].get(shard)
        self._findings.judged(Promise.STATES)
        if target is None or not target.target_of or target.state != ASSUMED:
            what = (
                "is no target of a move" if target is None or not target.target_of else f"is {target.state}"
            )
            self._findings.violated(Promise.STATES, f"{uid} is moved on shard {shard}, and {what}", line)
            return
        self._forget(uid, shard)
        pod = target.target_of
        if pod not in noted:
            self._judge_source(target, left.get(pod), line)
        self._findings.judged(Promise.ONE_NODE)
        for other in self.live(pod):
            if pod in noted:
                is_source = (other.node, other.seq) in (noted[pod], (noted[pod][0], None))
            else:
                is_source = any(other is source for source in target.sources)
            if other.shard != shard and (other.left or is_source):
                other.left = True
            else:
                text = (
                    f"{self._name(pod)} is moved to {target.node} (shard {shard}) while it has a reservation"
                    f" on {other.node} (shard {other.shard}) that was not its source"
                )
                self._tell_second(target, other, text, target.line, other.line, line)
        if shard in self.held[pod]:
            self._forget(pod, shard)
        target.uid, target.target_of, target.sources = pod, "", ()
        target.state, target.line, target.seq = CONFIRMED, line, event["seq"]
        self._hold(target)
        self.moves[pod, target.node] += 1

    def _judge_source(self, target: HeldPod, left: HeldPod | None, line: int) -> None:
        """A pod that had its source on the target's shard gives up what it holds there in the line that moves
        it. One that lost it before is not moved, nor is one that terminates. Another shard's sources the step
        cannot see."""
        sources = [source for source in target.sources if source.shard == target.shard]
        if not sources or target.brought_back:
            return
        [source] = sources
        self._findings.judged(Promise.STATES)
        name = f"{self._name(target.target_of)} is moved to {target.node}"
        if left is None:
            text = f"{name} and does not give up its source on {source.node}"
        elif left.state == TERMINATING:
            text = f"{name} while it is terminating on {left.node}"
        else:
            return
        self._findings.violated(Promise.STATES, text, target.line, line)

    def _see_move(self, left: HeldPod | None, pod: HeldPod, event: Event, line: int) -> None:
        """`left`: what the pod gave up in the same change. On another node, that is a move in one step,
        unless the pod was evicted: what terminates is not moved. Nobody but the mover makes one, and it
        reserves nothing but targets for pods that give nothing up."""
        if pod.target_of or event.get("unchecked") or PREPARED in (pod.state, left and left.state):
            return
        if left is None:
            text = f"{self._name(pod.uid)} is moved to {pod.node} and gives nothing up for it"
            self._fencing.on_reserved(event, line, moves=True, text=text)
        elif left.node != pod.node and left.state != TERMINATING:
            self.moves[pod.uid, pod.node] += 1
            text = f"{self._name(pod.uid)} is taken from {left.node} to {pod.node} by who makes no moves"
            self._fencing.on_reserved(event, line, moves=False, text=text)

    def _release(self, uid: str, shard: int, line: int) -> None:
        if shard in self.held[uid]:
            self._forget(uid, shard)
        elif self.sees_reservations:
            text = f"{self._name(uid)} is released on shard {shard}, where it has no reservation"
            self._findings.violated(Promise.AGREEMENT, text, line)

    def _resize(self, row: Event, shard: int, line: int) -> None:
        pod = self.held[row["uid"]].get(shard)
        self._resized.add(row["uid"])
        if pod is not None:
            self._forget(pod.uid, shard)
            pod.requests, pod.line = whole_requests(row["requests"]), line
            self._hold(pod)
            self._findings.unjudged(Promise.NO_OVERCOMMIT, "resized on its node, which nobody can refuse")

    def _share(self, rows: Iterable[Event], shard: int, line: int) -> dict[str, Counter[str]]:
        """Terminating pods hold this now. Returns what they gave away, by node and resource."""
        given: dict[str, Counter[str]] = defaultdict(Counter)
        for row in rows:
            pod = self.held[row["uid"]].get(shard)
            self._findings.judged(Promise.STATES)
            if pod is None or pod.state != TERMINATING:
                text = f"{self._name(row['uid'])} shares its room and is not terminating"
                self._findings.violated(Promise.STATES, text, line)
                continue
            self.loads[pod.node].remove(pod)
            given[pod.node].update(pod.requests)
            pod.requests, pod.line = nonzero(row["requests"]), line
            given[pod.node].subtract(pod.requests)
            self._hold(pod)
        return given

    def _judge_shares(self, given: Mapping[str, Counter[str]], added: Iterable[HeldPod], line: int) -> None:
        """What terminating pods give away is taken in the same change by pods that come to their node: they
        run there until they have ended."""
        for name, amounts in given.items():
            taken: Counter[str] = Counter()
            for pod in added:
                taken.update(pod.requests if pod.node == name else {})
            self._findings.judged(Promise.NO_OVERCOMMIT)
            if lost := nonzero(amounts - taken):
                text = f"node {name}: terminating pods gave away {amounts_text(lost)}, and nobody took it"
                self._findings.violated(Promise.NO_OVERCOMMIT, text, line)

    def _hold(self, pod: HeldPod) -> None:
        self.held[pod.uid][pod.shard] = pod
        self.loads[pod.node].add(pod)
        self._count_gang(pod)

    def _forget(self, uid: str, shard: int) -> None:
        pod = self.held[uid].pop(shard)
        self.loads[pod.node].remove(pod)
        facts = self._facts.get(uid)
        if facts and facts.gang and not self.live(uid):
            self._gang_live[facts.gang].discard(uid)

    # -- what must hold

    def _judge_room(self, added: Iterable[HeldPod], line: int, given: Mapping[str, Counter[str]]) -> None:
        """What pods in this line hold must fit once those that are evicted for them in the same line have
        ended, and until then they hold no more than these gave away. `given`: that, by node."""
        by_node: dict[str, list[HeldPod]] = defaultdict(list)
        for pod in added:
            by_node[pod.node].append(pod)
        for name, pods in by_node.items():
            node, load = self.nodes.get(name), self.loads[name]
            if node is None and name not in self._removed:
                self._findings.unjudged(Promise.NO_OVERCOMMIT, "the node was never described", len(pods))
                continue
            self._findings.judged(Promise.NO_OVERCOMMIT, len(pods))
            last = tuple(pod.line for pod in load.pods.values())[-3:]
            if node is None:
                text = f"{self._name(pods[0].uid)} is reserved on node {name}, which was removed"
                self._findings.violated(Promise.NO_OVERCOMMIT, text, self._removed[name], line)
                continue
            wanted = [resource for pod in pods for resource, amount in pod.requests.items() if amount]
            cards = [card for pod in pods for card in pod.cards]
            evicted = [pod for pod in load.pods.values() if pod.evicted == line]
            others = load.without(evicted) if evicted else load
            found = [*shortages(node, others, wanted, cards)]
            if evicted:
                # A node that had shrunk before, or on which others had put pods, stays that full for a while.
                more = sum((Counter(pod.requests) for pod in pods), Counter())
                more.subtract(given[name])
                found += shortages(node, load, [r for r in wanted if more[r] > 0], ())
            for text in found:
                self._findings.violated(Promise.NO_OVERCOMMIT, f"node {name}: {text}", node.line, *last, line)
            for pod in pods:
                for port, other in others.others_on_ports(pod.ports, pod.uid):
                    text = f"node {name}: {pod.uid} and {other.uid} hold port {port[0]}/{port[1]}"
                    self._findings.violated(Promise.NO_OVERCOMMIT, text, other.line, line)

    def _count_gang(self, pod: HeldPod) -> None:
        facts = self._facts.get(pod.uid)
        if facts and facts.gang and pod.state != PREPARED:
            self._gang_live[facts.gang].add(pod.uid)

    def _judge_gangs(self, event: Event, line: int) -> None:
        """A gang whose minimum is reserved is whole. No pod of one that never was is confirmed."""
        for name in ("reserved", "committed"):
            for row in event.get(name, ()):
                uid = row if isinstance(row, str) else row["uid"]
                facts = self._facts.get(uid)
                if facts and self._has_minimum(facts):
                    self.whole.add(facts.gang)
        for uid in event.get("confirmed", ()):
            facts = self._facts.get(uid)
            if facts and facts.gang:
                self._findings.judged(Promise.GANGS)
                if not self.was_whole(uid):
                    text = f"{facts} is confirmed, and its gang {facts.gang} {self.gang_text(uid)}"
                    self._findings.violated(Promise.GANGS, text, facts.line, line)

    def was_whole(self, uid: str) -> bool:
        """Whether the gang of a pod had its minimum reserved at some moment."""
        facts = self._facts[uid]
        return facts.gang in self.whole or self._has_minimum(facts)

    def _has_minimum(self, facts: PodFacts) -> bool:
        return bool(facts.gang) and len(self._gang_live[facts.gang]) >= self._needed(facts)

    def gang_text(self, uid: str) -> str:
        """How far the gang of a pod got."""
        facts = self._facts[uid]
        live = len(self._gang_live[facts.gang])
        return f"never had its minimum of {self._needed(facts)} reserved; now it has {live}"

    def _needed(self, facts: PodFacts) -> int:
        return min(facts.minimum, self._gang_size(facts.gang))

    # -- who may write, and the end

    def on_epoch(self, event: Event, line: int) -> None:
        """An epoch or a term was granted, or is fenced."""
        self._fencing.on_grant(event, line)

    def loosen(self, uid: str) -> None:
        """Somebody asked for other amounts for a pod: its reservation may have either."""
        self._resized.add(uid)

    def finish(self) -> None:
        """Judge what needs the whole history."""
        self._fencing.finish()
        self.accounts.finish()

    def live(self, uid: str) -> list[HeldPod]:
        """The reservations of a pod that are not merely prepared."""
        return [pod for pod in self.held.get(uid, {}).values() if pod.state != PREPARED]

    def present(self) -> list[HeldPod] | None:
        """Every reservation at the end; None: the history does not tell."""
        if self.sees_reservations:
            return [pod for by_shard in self.held.values() for pod in by_shard.values()]
        return self.accounts.final_rows

    def _name(self, uid: str) -> str:
        return str(self._facts.get(uid, f"pod {uid}"))


def _without_heirs(added: Iterable[HeldPod], targets: list[HeldPod]) -> list[HeldPod]:
    """Those that take other room than the targets that went in the same step. The successor of an evicted pod
    takes what the target had, which was judged when that was reserved: the node may have shrunk since."""
    left, others = list(targets), []
    for pod in added:
        heir_of = next((target for target in left if _room_of(target) == _room_of(pod)), None)
        if heir_of is None:
            others.append(pod)
        else:
            left.remove(heir_of)
    return others


def _room_of(pod: HeldPod) -> tuple[object, ...]:
    return pod.node, pod.requests, pod.ports, pod.cards
