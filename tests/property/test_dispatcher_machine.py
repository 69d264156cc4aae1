"""Whatever happens in whatever order, the dispatcher loses no pod and gives none to two workers.

A random history of submissions, deletions, workers that come, answer, lie, die and are fenced, against a
model of the ledger that remembers which reservations stand."""

import random

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from property.profiles import examples

from dispatcher.core import messages as m
from dispatcher.core.machine import Machine, Settings
from dispatcher.core.pods.sets import NO_RULE, GangRule, NewGang, NewJob, NewPods, NewTemplate, Order
from dispatcher.core.pods.table import Phase
from dispatcher.core.pods.templates import TemplateKind
from dispatcher.core.policy.rules import Algorithm, Balance, Fallback, Match, Policy, Rule, Selector
from dispatcher.core.workers.reports import CostReport, Heartbeat
from hoss.model.pod import PodSpec, QosClass
from hoss.model.selectors import NodeScope, Requirement

NONE = 0xFFFFFFFF
RESERVED = (m.OutcomeCode.BOUND, m.OutcomeCode.UNRESERVED)
NAMES = ("w1", "w2", "w3")
POLICY = Policy(
    (
        Rule(
            "urgent",
            Match(priority_min=5),
            Selector((Requirement("role", "In", ("fast",)),)),
            Balance(Algorithm.CONSISTENT_HASH),
            Fallback.NEXT_RULE,
        ),
        Rule("rest", balance=Balance(Algorithm.POWER_OF_TWO_CHOICES)),
    )
)
POLICIES = (
    POLICY,
    Policy(),
    Policy((Rule("fast", workers=Selector((Requirement("role", "In", ("fast",)),))),)),
    Policy(
        (
            Rule("low", Match(priority_max=4), balance=Balance(Algorithm.RANDOM)),
            Rule("nobody", Match(priority_min=99)),
        )
    ),
    Policy((Rule("few", nodes=NodeScope("few", (Requirement("pool", "Exists"),))),)),
)


class DispatcherHistory(RuleBasedStateMachine):
    @initialize(seed=st.integers(0, 1000))
    def start(self, seed: int) -> None:
        self.machine = Machine(
            Settings(worker_timeout_seconds=1e9, aging_seconds=2.0),
            POLICY,
            lambda b: PodSpec(priority=int(b)),
            random.Random(seed),
        )
        self.now = 0.0
        self.links = 0
        self.requests = 0
        self.living: dict[str, int] = {}
        self.inbox: dict[int, list[m.SendWork]] = {}  # by link
        self.fences: list[m.Fence] = []
        self.recalls: list[m.SendRecall] = []
        self.reserved: dict[bytes, int] = {}  # the ledger: UID -> node
        self.alive: set[bytes] = set()  # accepted and not deleted
        self.rules = {"x": NO_RULE, "y": NO_RULE}  # what the PodGroups say, by key

    def tell(self, event: m.Event) -> None:
        self.take(self.machine.handle(event, self.now))

    def take(self, instructions: list[m.Instruction]) -> None:
        released = []
        for instruction in instructions:
            match instruction:
                case m.SendWork():
                    self.inbox.setdefault(instruction.link, []).append(instruction)
                case m.Fence():
                    self.fences.append(instruction)
                case m.SendRecall():
                    self.recalls.append(instruction)
                case m.GrantEpoch():
                    released.append(m.EpochGranted(instruction.link, 1))
                    released.append(m.HeartbeatReceived(instruction.link, Heartbeat(ready=True)))
                case m.Verify():
                    nodes = [1 if uid.tobytes() in self.reserved else NONE for uid in instruction.uids]
                    released.append(
                        m.Verified(instruction.rows, instruction.uids, np.array(nodes, np.uint32))
                    )
                case m.Release():
                    for uid in instruction.uids:
                        self.reserved.pop(uid.tobytes(), None)
                    released.append(m.Released(instruction.rows, instruction.unreserved))
        for event in released:
            self.tell(event)

    @rule(
        replicas=st.integers(1, 700),
        priority=st.sampled_from([0, 0, 9]),
        listed=st.booleans(),
        needed=st.none() | st.floats(0, 1),
        namespace=st.sampled_from(["default", "other"]),
    )
    def submit(
        self, replicas: int, priority: int, listed: bool, needed: float | None, namespace: str
    ) -> None:
        """Pods, in a gang if a share of them is `needed`."""
        self.requests += 1
        gangs = () if needed is None else (NewGang(namespace, "g", max(1, int(needed * replicas))),)
        kind = TemplateKind(namespace, "", "", QosClass.BURSTABLE, "")
        templates = (NewTemplate(b"0", kind, 0), NewTemplate(b"%d" % priority, kind, priority))
        if listed:
            names = tuple(f"p{self.requests}x{i}" for i in range(replicas))
            mixed = np.arange(replicas, dtype=np.uint32) % 2
            listed_gangs = np.ones(replicas, np.uint32) if gangs else None
            order = Order(str(self.requests), templates, (), NewPods(names, mixed, None, listed_gangs), gangs)
        else:
            job = NewJob(f"j{self.requests}", 1, replicas, 0 if gangs else None)
            order = Order(str(self.requests), templates, (job,), None, gangs)
        submission = self.machine.registry.accept(order, 0)
        self.tell(m.Admitted(submission))
        for pod_set in submission.sets:
            self.alive |= {uid.tobytes() for uid in self.machine.registry.pods.uid[pod_set.range]}

    @rule(
        key=st.sampled_from("xy"),
        pods=st.integers(1, 3),
        needed=st.integers(0, 5),
        priority=st.sampled_from([0, 9]),
    )
    def gather(self, key: str, pods: int, needed: int, priority: int) -> None:
        """Pods of a gang that come without the others."""
        self.requests += 1
        kind = TemplateKind("default", "", "", QosClass.BURSTABLE, "")
        names = tuple(f"g{self.requests}x{i}" for i in range(pods))
        listed = NewPods(names, np.zeros(pods, np.uint32), None, np.ones(pods, np.uint32))
        gang = NewGang("default", key, needed, key, self.rules[key])
        template = NewTemplate(b"%d" % priority, kind, priority)
        submission = self.machine.registry.accept(
            Order(str(self.requests), (template,), (), listed, (gang,)), 0
        )
        self.tell(m.Admitted(submission))
        (pod_set,) = submission.sets
        self.alive |= {uid.tobytes() for uid in self.machine.registry.pods.uid[pod_set.range]}

    @rule(
        key=st.sampled_from("xy"),
        said=st.sampled_from([GangRule(missing="it is not there"), GangRule(1), GangRule(4)]),
    )
    def group_says(self, key: str, said: GangRule) -> None:
        """A PodGroup comes, changes or goes."""
        self.rules[key] = said
        self.tell(m.GangRulesChanged({key: said}))

    @precondition(lambda self: self.alive)
    @rule(share=st.floats(0, 1), seed=st.integers(0, 99))
    def delete(self, share: float, seed: int) -> None:
        chosen = [uid for uid in sorted(self.alive) if random.Random(uid + bytes([seed])).random() < share]
        if chosen:
            uids = np.frombuffer(b"".join(chosen), np.uint8).reshape(-1, 16)
            self.tell(m.Deleted(self.machine.registry.directory.rows_of_uids(uids)))
            self.alive -= set(chosen)

    @rule(name=st.sampled_from(NAMES), fast=st.booleans(), window=st.sampled_from([1, 7, 300, 2000]))
    def join(self, name: str, fast: bool, window: int) -> None:
        if name in self.living:
            return
        self.links += 1
        self.living[name] = self.links
        labels = {"role": "fast"} if fast else {}
        self.tell(m.Registered(self.links, name, labels, self.links, window))

    @precondition(lambda self: any(self.inbox.values()))
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        link = data.draw(st.sampled_from([link for link, work in self.inbox.items() if work]))
        work = self.inbox[link].pop(data.draw(st.integers(0, len(self.inbox[link]) - 1)))
        codes = data.draw(st.lists(st.sampled_from([1, 1, 1, 2, 3, 4, 5, 7]), min_size=1, max_size=4))
        self.answer_batch(link, work, np.resize(np.array(codes, np.uint8), len(work.uids)))

    def answer_batch(self, link: int, work: m.SendWork, codes: np.ndarray) -> None:
        for uid in work.uids[np.isin(codes, RESERVED)]:
            # Only a worker that is not fenced reaches the ledger.
            if link in self.living.values():
                assert uid.tobytes() not in self.reserved, "a pod was reserved twice"
                self.reserved[uid.tobytes()] = 1
        # In two messages; the second repeats the first one's pods with other codes, and names pods that are
        # not there. Only the first word about a pod counts.
        everyone = np.arange(len(work.uids) + 2, dtype=np.uint32)
        # What is bound of a gang is told at once.
        early = everyone[: len(work.uids) if work.gang_minimum else len(work.uids) // 2]
        self.tell(self.outcome_message(link, work.batch, early, codes[: len(early)]))
        late = np.append(codes, [1, 1]).astype(np.uint8)
        late[: len(early)] = m.OutcomeCode.CONFLICT
        self.tell(self.outcome_message(link, work.batch, everyone, late))

    @rule(
        link=st.integers(1, 6), batch=st.integers(0, 40), positions=st.lists(st.integers(0, 900), max_size=5)
    )
    def lie(self, link: int, batch: int, positions: list[int]) -> None:
        """Answers for pods the worker was never given; what it was given it may not answer wrongly here."""
        given = {work.batch for work in self.inbox.get(link, [])}
        if batch not in given:
            wrong = np.array(positions, np.uint32)
            self.tell(self.outcome_message(link, batch, wrong, np.ones(len(wrong), np.uint8)))

    @precondition(lambda self: self.living)
    @rule(data=st.data(), cost=st.sampled_from([1.0, 1e3, 1e6]))
    def hear(self, data: st.DataObject, cost: float) -> None:
        """A worker tells what its pods take it, and that it has started none."""
        link = self.living[data.draw(st.sampled_from(sorted(self.living)))]
        backlog = sum(len(work.uids) for work in self.inbox.get(link, []))
        told = CostReport(np.array([1, 2], np.uint32), np.full(2, cost))
        self.tell(m.HeartbeatReceived(link, Heartbeat(ready=True, backlog=backlog), told))

    @precondition(lambda self: self.recalls)
    @rule(share=st.floats(0, 1))
    def give_back(self, share: float) -> None:
        """A recalled worker gives back what it has not started, the last ones first; it may have started them
        all."""
        recall = self.recalls.pop(0)
        left = int(share * recall.pods)
        for work in reversed([w for w in self.inbox.get(recall.link, []) if w.batch in recall.batches]):
            whole = len(work.uids)
            if left <= 0 or (work.gang_minimum and left < whole):
                continue
            given = np.arange(max(0, whole - left), whole, dtype=np.uint32)
            left -= len(given)
            self.tell(self.outcome_message(recall.link, work.batch, given, np.full(len(given), 4, np.uint8)))
            self.inbox[recall.link].remove(work)
            if len(given) < whole:
                kept = np.ones(whole - len(given), np.uint8)
                for uid in work.uids[: len(kept)]:
                    if recall.link in self.living.values():
                        assert uid.tobytes() not in self.reserved, "a pod was reserved twice"
                        self.reserved[uid.tobytes()] = 1
                self.tell(
                    self.outcome_message(recall.link, work.batch, np.arange(len(kept), dtype=np.uint32), kept)
                )

    @precondition(lambda self: self.living)
    @rule(data=st.data(), committed=st.floats(0, 1))
    def die(self, data: st.DataObject, committed: float) -> None:
        name = data.draw(st.sampled_from(sorted(self.living)))
        link = self.living.pop(name)
        for work in self.inbox.pop(link, []):
            for uid in work.uids[: int(committed * len(work.uids))]:
                self.reserved[uid.tobytes()] = 1
        self.tell(m.LinkClosed(link))

    @precondition(lambda self: self.fences)
    @rule()
    def fence(self) -> None:
        wanted = self.fences.pop(0)
        nodes = np.array([self.reserved.get(uid.tobytes(), NONE) for uid in wanted.uids], np.uint32)
        self.tell(m.Fenced(wanted.worker, nodes, {}))

    @precondition(lambda self: self.reserved)
    @rule(share=st.floats(0, 0.5), seed=st.integers(0, 99), twice=st.booleans())
    def evict(self, share: float, seed: int, twice: bool) -> None:
        """The ledger takes places away, also of pods that nobody has said to be bound yet."""
        chosen = [uid for uid in sorted(self.reserved) if random.Random(uid + bytes([seed])).random() < share]
        if not chosen:
            return
        uids = np.frombuffer(b"".join(chosen), np.uint8).reshape(-1, 16)
        for uid in chosen:
            del self.reserved[uid]
        told = m.Evicted(uids, np.ones(len(uids), np.uint32), ("preempted",) * len(uids))
        for _ in range(1 + twice):
            self.tell(told)

    @rule(seconds=st.sampled_from([0.003, 0.2, 3.0, 20.0]), changed=st.booleans())
    def pass_time(self, seconds: float, changed: bool) -> None:
        self.now += seconds
        if changed:
            self.tell(m.ClusterChanged())
        self.tell(m.Tick())

    @rule(rules=st.sampled_from(POLICIES))
    def change_policy(self, rules: Policy) -> None:
        self.take(self.machine.set_policy(rules, self.now))

    @invariant()
    def promises_hold(self) -> None:
        self.machine.check()
        phases = self.phase_by_uid()
        assert self.alive <= phases.keys(), "an accepted pod is lost"
        bound = {uid for uid, phase in phases.items() if phase == Phase.BOUND}
        assert bound <= self.reserved.keys(), "a pod is called bound that holds nothing"

    def teardown(self) -> None:
        """Given honest workers, time, a policy that forgets nobody, and as many pods as gangs need, every
        accepted pod ends bound (or failed, if a worker said so)."""
        if not hasattr(self, "machine"):
            return
        self.change_policy(POLICY)
        for key in "xy":
            self.group_says(key, GangRule(2))
            self.gather(key, 5, 1, 0)
        while self.fences:
            self.fence()
        for name in NAMES:
            self.join(name, fast=True, window=2000)
        for _ in range(400):
            while any(self.inbox.values()):
                link = next(link for link, work in self.inbox.items() if work)
                work = self.inbox[link].pop(0)
                self.answer_batch(link, work, np.ones(len(work.uids), np.uint8))
            self.pass_time(1.0, changed=True)
        phases = self.phase_by_uid()
        ends = {phases[uid] for uid in self.alive}
        assert ends <= {Phase.BOUND, Phase.FAILED}, ends
        bound = {uid for uid in self.alive if phases[uid] == Phase.BOUND}
        assert bound == self.reserved.keys(), "deleted pods still hold reservations"

    def phase_by_uid(self) -> dict[bytes, int]:
        pods = self.machine.registry.pods
        rows = np.flatnonzero(pods.phase[: pods.size] != Phase.ABSENT)
        return dict(zip((u.tobytes() for u in pods.uid[rows]), pods.phase[rows].tolist(), strict=True))

    def outcome_message(
        self, link: int, batch: int, positions: np.ndarray, codes: np.ndarray
    ) -> m.OutcomesArrived:
        nodes = np.where(np.isin(codes, RESERVED), 1, NONE).astype(np.uint32)
        return m.OutcomesArrived(
            link, batch, positions, codes, nodes, None, (), {0: np.array([1], np.uint64)}
        )


DispatcherHistory.TestCase.settings = examples(60, stateful_step_count=30)
TestDispatcherHistory = DispatcherHistory.TestCase
