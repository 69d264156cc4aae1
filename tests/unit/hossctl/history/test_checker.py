"""Each promise with a history that breaks it, which is found with the lines that show it, and one beside it
that keeps it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from histories import SmallPlatform

from hossctl.history.checker import check
from hossctl.history.checker_judgement import Judgement, Promise
from hossctl.history.events import ACCOUNTS, Event, History

_Steps = Callable[[SmallPlatform], None]


@dataclass(frozen=True)
class Case:
    """`breaks` and `keeps`: steps on two nodes, n0 (shard 0) and n1 (shard 1), of 1000 cpu. `text`: what the
    violation says."""

    promise: Promise
    breaks: _Steps
    keeps: _Steps
    text: str


def steps(*calls: tuple[Any, ...]) -> _Steps:
    """Steps of a small platform: name, arguments, and keywords as a dictionary at the end."""

    def run(platform: SmallPlatform) -> None:
        for name, *arguments in calls:
            keywords = arguments.pop() if arguments and isinstance(arguments[-1], dict) else {}
            target = platform if hasattr(platform, name) else platform.history
            getattr(target, name)(*arguments, **keywords)

    return run


def submitted_and_bound(*places: tuple[str, str], **fields: Any) -> list[tuple[Any, ...]]:
    return [
        ("submit", "r", len(places), fields),
        *(("bind", uid, node) for uid, node in places),
    ]


ONE = submitted_and_bound(("r-0", "n0"))
BIG = {"cpu": 600}
PORT = {"ports": [{"port": 80}]}


def told(uid: str, state: str, node: str = "", **fields: Any) -> tuple[Any, ...]:
    row = {"uid": uid, "state": state, **({"node": node} if node else {})}
    return ("append", "told", {"by": "watcher", "pods": [row], **fields})


def ledger(platform: SmallPlatform, shard: int, **fields: Any) -> None:
    platform._change("ledger", shard, **fields)


def with_successor(platform: SmallPlatform, cpu: int) -> None:
    """A pod of 600 is to move to n0, which shrinks to 500, and a successor of so much gets its place."""
    steps(
        *submitted_and_bound(("r-0", "n1"), cpu=600),
        ("reserve_target", "r-0", "n0"),
        ("node", "n0", 500),
        ("submit", "s", 1, {"cpu": cpu}),
        ("give_target", "r-0", "s-0", "n0"),
        ("move", "s-0", "Bound"),
        ("confirm", "s-0"),
    )(platform)


CASES = {
    "more cpu is reserved than the node has": Case(
        Promise.NO_OVERCOMMIT,
        steps(("submit", "r", 2, BIG), ("bind", "r-0", "n0"), ("bind", "r-1", "n0")),
        steps(("submit", "r", 2, BIG), ("bind", "r-0", "n0"), ("bind", "r-1", "n1")),
        "node n0: 1200 of cpu are held and 1000 are allocatable",
    ),
    "a terminating pod gives away room that nobody takes": Case(
        Promise.NO_OVERCOMMIT,
        steps(*submitted_and_bound(("r-0", "n0"), cpu=600), ("terminate", "r-0", {"cpu": 500})),
        steps(*submitted_and_bound(("r-0", "n0"), cpu=600), ("terminate", "r-0", {"cpu": 600})),
        "node n0: terminating pods gave away cpu=100, and nobody took it",
    ),
    "room of a terminating pod is given to another": Case(
        Promise.NO_OVERCOMMIT,
        steps(
            *submitted_and_bound(("r-0", "n0"), cpu=600),
            ("submit", "s", 1, BIG),
            ("terminate", "r-0", {"cpu": 600}),
            ("bind", "s-0", "n0"),
            ("delete", "r-0"),
        ),
        steps(
            *submitted_and_bound(("r-0", "n0"), cpu=600),
            ("submit", "s", 1, BIG),
            ("terminate", "r-0", {"cpu": 600}),
            ("delete", "r-0"),
            ("bind", "s-0", "n0"),
        ),
        "node n0: 1200 of cpu are held and 1000 are allocatable",
    ),
    "a pod shares its room that is not terminating": Case(
        Promise.STATES,
        steps(*ONE, ("share", "r-0", 10)),
        steps(*ONE, ("terminate", "r-0", {"cpu": 100})),
        "pod r-0 shares its room and is not terminating",
    ),
    "more pods are on a node than it takes": Case(
        Promise.NO_OVERCOMMIT,
        steps(*submitted_and_bound(*((f"r-{i}", "n0") for i in range(11)), cpu=1)),
        steps(*submitted_and_bound(*((f"r-{i}", "n0") for i in range(10)), cpu=1)),
        "node n0: 11 of pods are held and 10 are allocatable",
    ),
    "a node that shrank gets more": Case(
        Promise.NO_OVERCOMMIT,
        steps(*ONE, ("node", "n0", 50), ("submit", "s"), ("bind", "s-0", "n0")),
        steps(*ONE, ("node", "n0", 50), ("submit", "s"), ("bind", "s-0", "n1")),
        "node n0: 200 of cpu are held and 50 are allocatable",
    ),
    "two pods hold one port": Case(
        Promise.NO_OVERCOMMIT,
        steps(*submitted_and_bound(("r-0", "n0"), ("r-1", "n0"), **PORT)),
        steps(*submitted_and_bound(("r-0", "n0"), ("r-1", "n1"), **PORT)),
        "node n0: r-1 and r-0 hold port TCP/80",
    ),
    "two pods hold one card": Case(
        Promise.NO_OVERCOMMIT,
        lambda platform: with_cards(platform, first=0, second=0),
        lambda platform: with_cards(platform, first=0, second=1),
        "node n0: 1500 thousandths of card 0 are held and there are 1000",
    ),
    "a successor gets more than the target had on a node that shrank": Case(
        Promise.NO_OVERCOMMIT,
        lambda platform: with_successor(platform, cpu=700),
        lambda platform: with_successor(platform, cpu=600),
        "node n0: 700 of cpu are held and 500 are allocatable",
    ),
    "a pod is reserved on a removed node": Case(
        Promise.NO_OVERCOMMIT,
        steps(("submit", "r"), ("append", "node-removed", {"by": "ledger", "name": "n0"}),
            ("bind", "r-0", "n0")),
        steps(("submit", "r"), ("append", "node-removed", {"by": "ledger", "name": "n0"}),
            ("bind", "r-0", "n1")),
        "reserved on node n0, which was removed",
    ),
    "the ledger's account grows beyond what the node has": Case(
        Promise.NO_OVERCOMMIT,
        lambda platform: account(platform, requested=1200, reserved=1200),
        lambda platform: account(platform, requested=900, reserved=900),
        "the ledger's account went from 0 to 1200 of cpu, and 1000 are allocatable",
    ),
    "a pod has reservations on two shards": Case(
        Promise.ONE_NODE,
        steps(*ONE, ("reserve", ("r-0", "n1"))),
        steps(*ONE, ("evict", "r-0"), ("bind", "r-0", "n1")),
        "two live reservations: on n0 (shard 0) and on n1 (shard 1)",
    ),
    "a prepared reservation is committed beside a live one": Case(
        Promise.ONE_NODE,
        steps(("submit", "r"), ("prepare", ("r-0", "n0")), ("bind", "r-0", "n1"), ("node", "n2"),
            ("commit_on", 0)),
        steps(("submit", "r"), ("prepare", ("r-0", "n0")), ("abort_on", 0), ("bind", "r-0", "n1")),
        "two live reservations: on n1 (shard 1) and on n0 (shard 0)",
    ),
    "a watcher is told two nodes": Case(
        Promise.ONE_NODE,
        steps(*ONE, told("r-0", "Bound", "n1"), told("r-0", "Queued"), told("r-0", "Bound", "n0")),
        steps(*ONE, told("r-0", "Queued"), told("r-0", "Bound", "n1"), told("r-0", "Queued"),
            told("r-0", "Bound", "n0")),
        "watcher was told that pod r-0 is bound to n0, then to n1, and nothing between",
    ),
    "a watcher is told that an evicted pod was moved in one step": Case(
        Promise.ONE_NODE,
        steps(
            *(*ONE, ("node", "n2"), ("terminate", "r-0", {"cpu": 100})),
            *(("move_at_once", "r-0", "n2"), ("tell", "r-0")),
        ),
        steps(*ONE, ("node", "n2"), ("move_at_once", "r-0", "n2"), ("tell", "r-0")),
        "watcher was told that pod r-0 is bound to n0, then to n2, and nothing between",
    ),
    "a worker takes a bound pod to another node": Case(
        Promise.ONE_NODE,
        steps(*ONE, ("node", "n2"), ("move_at_once", "r-0", "n2", {"worker": "w1"}), ("tell", "r-0")),
        steps(*ONE, ("node", "n2"), ("move_at_once", "r-0", "n2"), ("tell", "r-0")),
        "pod r-0 is taken from n0 to n2 by who makes no moves (w1)",
    ),
    "a pod is moved in one step that was released before": Case(
        Promise.ONE_NODE,
        steps(
            *(*ONE, ("node", "n2"), ("release", "r-0")),
            *(("move_at_once", "r-0", "n2", {"gives_up": False}), ("tell", "r-0")),
        ),
        steps(*ONE, ("node", "n2"), ("evict", "r-0"), ("bind", "r-0", "n2")),
        "pod r-0 is moved to n2 and gives nothing up for it (hoss-rebalance)",
    ),
    "a pod keeps both places in one step": Case(
        Promise.ONE_NODE,
        steps(*ONE, ("node", "n2"), ("move_at_once", "r-0", "n2", {"gives_up": False}), ("tell", "r-0")),
        steps(*ONE, ("node", "n2"), ("move_at_once", "r-0", "n2"), ("tell", "r-0")),
        "pod r-0 is reserved on n2 while it is reserved on n0",
    ),
    "a pod that was released gets the target of a move": Case(
        Promise.STATES,
        steps(
            *(*ONE, ("node", "n2"), ("reserve_target", "r-0", "n2"), ("evict", "r-0")),
            *(("take_target", "r-0", "n2", {"released": False}), ("move", "r-0", "Bound")),
        ),
        steps(
            *(*ONE, ("node", "n2"), ("reserve_target", "r-0", "n2")),
            *(("take_target", "r-0", "n2"), ("move", "r-0", "Bound")),
        ),
        "pod r-0 is moved to n2 and does not give up its source on n0",
    ),
    "a pod is moved while it terminates": Case(
        Promise.STATES,
        steps(
            *(*ONE, ("node", "n2"), ("reserve_target", "r-0", "n2"), ("terminate", "r-0", {"cpu": 100})),
            *(("take_target", "r-0", "n2"), ("move", "r-0", "Bound")),
        ),
        steps(
            *(*ONE, ("node", "n2"), ("reserve_target", "r-0", "n2")),
            *(("take_target", "r-0", "n2"), ("move", "r-0", "Bound")),
        ),
        "pod r-0 is moved to n2 while it is terminating on n0",
    ),
    "a move frees the source and reserves no target": Case(
        Promise.ONE_NODE,
        steps(*ONE, ("node", "n2"), ("release", "r-0"), ("bind_silently", "r-0", "n2"), ("tell", "r-0")),
        steps(*ONE, ("node", "n2"), ("move_at_once", "r-0", "n2"), ("tell", "r-0")),
        "watcher was told that pod r-0 is bound to n0, then to n2, and nothing between",
    ),
    "a move is undone twice": Case(
        Promise.ONE_NODE,
        steps(
            *(*ONE, ("node", "n2"), ("move_at_once", "r-0", "n2"), ("tell", "r-0")),
            *(("move_at_once", "r-0", "n0"), ("tell", "r-0")),
            *(told("r-0", "Bound", "n2"), told("r-0", "Bound", "n0")),
        ),
        steps(
            *(*ONE, ("node", "n2"), ("move_at_once", "r-0", "n2"), ("tell", "r-0")),
            *(("move_at_once", "r-0", "n0"), ("tell", "r-0")),
        ),
        "watcher was told that pod r-0 is bound to n0, then to n2, and nothing between",
    ),
    "a prepared reservation is confirmed": Case(
        Promise.STATES,
        steps(("submit", "r"), ("prepare", ("r-0", "n0")), ("confirm", "r-0"), ("move", "r-0", "Bound")),
        steps(("submit", "r"), ("prepare", ("r-0", "n0")), ("commit", "r-0"), ("confirm", "r-0"),
            ("move", "r-0", "Bound")),
        "is confirmed while its reservation on n0 is prepared",
    ),
    "a fenced worker places a pod": Case(
        Promise.FENCING,
        steps(("submit", "r"), ("grant", "w1"), ("reserve", ("r-0", "n0"), {"epoch": 1}), ("confirm", "r-0"),
            ("move", "r-0", "Bound")),
        steps(("submit", "r"), ("reserve", ("r-0", "n0"), {"epoch": 1}), ("grant", "w1"), ("confirm", "r-0"),
            ("move", "r-0", "Bound")),
        "worker w1 placed pods on shard 0 with epoch 1, and only 3 and later were allowed",
    ),
    "a deposed dispatcher confirms": Case(
        Promise.FENCING,
        steps(("append", "term", {"by": "ledger", "term": 2}), *ONE),
        steps(*ONE, ("append", "term", {"by": "ledger", "term": 2})),
        "shard 0 was changed in term 1 after term 2 had begun",
    ),
    "a pod of half a gang is told bound": Case(
        Promise.GANGS,
        steps(("submit", "g", 2, {"gang": 2}), ("bind", "g-0", "n0"), ("bind", "g-1", "n1")),
        steps(("submit", "g", 2, {"gang": 2}), ("bind_gang", [("g-0", "n0"), ("g-1", "n1")])),
        "its gang g never had its minimum of 2 reserved; now it has 1",
    ),
    "an acknowledged pod is lost": Case(
        Promise.NOTHING_LOST,
        steps(("submit", "r", 2), ("bind", "r-0", "n0"), ("lose", "r-1")),
        steps(("submit", "r", 2), ("bind", "r-0", "n0"), ("delete", "r-1")),
        "pod r-1 is lost: it was acknowledged, and nobody deleted it",
    ),
    "a deleted pod comes back": Case(
        Promise.NOTHING_LOST,
        steps(*ONE, ("resurrect", "r-0")),
        steps(*ONE, ("delete", "r-0")),
        "pod r-0 is Queued: its deletion was acknowledged",
    ),
    "a pod that was submitted again under the same id is lost": Case(
        Promise.NOTHING_LOST,
        steps(("submit", "r"), ("delete", "r-0"), ("submit", "r"), ("lose", "r-0")),
        steps(("submit", "r"), ("delete", "r-0"), ("submit", "r"), ("bind", "r-0", "n0")),
        "pod r-0 is lost: it was acknowledged, and nobody deleted it",
    ),
    "a pod failed without a reason": Case(
        Promise.NOTHING_LOST,
        steps(("submit", "r"), ("fail", "r-0", "")),
        steps(("submit", "r"), ("fail", "r-0", "five workers were lost with it")),
        "pod r-0 is Failed, without a reason",
    ),
    "a refused pod is told": Case(
        Promise.REFUSED,
        steps(("submit", "r", {"answer": "refused"}), told("r-0", "Queued"), told("r-0", "Deleted")),
        steps(("submit", "s", {"answer": "refused"}), ("submit", "r", {"answer": "unknown"}),
            told("r-0", "Queued"), told("r-0", "Deleted")),
        "pod r-0 was refused, and exists",
    ),
    "a reservation belongs to nobody": Case(
        Promise.OWNERS,
        steps(*ONE, ("submit", "s"), ("reserve", ("s-0", "n1")), ("disown", "s-0")),
        steps(*ONE, ("submit", "s"), ("bind", "s-0", "n1")),
        "pod s-0 has a reservation on n1 (assumed), and is Unschedulable",
    ),
    "a watcher was not told the end": Case(
        Promise.WATCHERS,
        steps(*ONE, ("move_silently", "r-0", "Queued"), ("release", "r-0"), ("bind_silently", "r-0", "n1")),
        steps(*ONE, ("evict", "r-0"), ("bind", "r-0", "n1")),
        "watcher was told last that pod r-0 is bound to n0, and pod r-0 is bound to n1",
    ),
    "a bound pod has no reservation": Case(
        Promise.AGREEMENT,
        steps(*ONE, ("release", "r-0")),
        steps(*ONE),
        "pod r-0 is bound to n0, and it has no reservation",
    ),
    "a bound pod's lease still runs": Case(
        Promise.AGREEMENT,
        steps(("submit", "r"), ("reserve", ("r-0", "n0")), ("move", "r-0", "Bound")),
        steps(*ONE),
        "its reservation was never confirmed",
    ),
    "the ledger's feed has a gap": Case(
        Promise.AGREEMENT,
        lambda platform: ledger(platform, 0) or platform.seqs.update({0: 7}) or ledger(platform, 0),
        lambda platform: ledger(platform, 0) or ledger(platform, 0),
        "shard 0 has a gap: change 8 follows",
    ),
    "an account is not the sum of its reservations": Case(
        Promise.AGREEMENT,
        lambda platform: account(platform, requested=500, reserved=400),
        lambda platform: account(platform, requested=400, reserved=400),
        "node n0: the ledger's account is cpu=500, pods=1, and its reservations sum up to cpu=400, pods=1",
    ),
    "a pod waits beside room": Case(
        Promise.LIVENESS,
        steps(("submit", "r", BIG), ("move", "r-0", "Unschedulable")),
        steps(("submit", "r", {"cpu": 1100}), ("move", "r-0", "Unschedulable")),
        "pod r-0 is Unschedulable (no node has room), and has room on n0",
    ),
    "a gang waits beside room": Case(
        Promise.LIVENESS,
        steps(("submit", "g", 2, {"gang": 2, "cpu": 600}), ("move", "g-0", "Unschedulable")),
        steps(("submit", "g", 3, {"gang": 3, "cpu": 600}), ("move", "g-0", "Unschedulable")),
        "gang g waits for 2 more pods, and they have room on n0, n1",
    ),
}  # fmt: skip


def account(platform: SmallPlatform, *, requested: int, reserved: int) -> None:
    """A change whose account is written beside it."""
    platform.submit("r", cpu=reserved)
    said = [{"node": "n0", "requested": {"cpu": requested, "pods": 1}}]
    platform.reserve(("r-0", "n0"), accounts=said)
    platform.move("r-0", "Bound")
    platform.confirm("r-0")


def with_cards(platform: SmallPlatform, *, first: int, second: int) -> None:
    """Two pods with cards: a whole one, and half of one."""
    platform.node("n0", cards=2)
    platform.submit("r", 2)
    for uid, card, milli in (("r-0", first, 1000), ("r-1", second, 500)):
        row = {**platform._row(uid, "n0"), "cards": {str(card): milli}}
        ledger(platform, 0, reserved=[row])
        platform.move(uid, "Bound")
        platform.confirm(uid)


class Faulty(SmallPlatform):
    """What no platform should do."""

    def commit_on(self, shard: int) -> None:
        ledger(self, shard, committed=["r-0"])

    def share(self, uid: str, cpu: int) -> None:
        shard = self.nodes[self.pods[uid].node].shard
        ledger(self, shard, shared=[{"uid": uid, "requests": {"cpu": cpu, "pods": 1}}])

    def abort_on(self, shard: int) -> None:
        ledger(self, shard, released=["r-0"])

    def lose(self, uid: str) -> None:
        del self.pods[uid]

    def resurrect(self, uid: str) -> None:
        pod = self.pods[uid]
        self.delete(uid)
        self.pods[uid] = pod
        self.move(uid, "Queued")

    def fail(self, uid: str, reason: str) -> None:
        self.move(uid, "Failed")
        self.reasons[uid] = reason

    def disown(self, uid: str) -> None:
        self.move(uid, "Unschedulable")
        self.node("n0", 100)
        self.node("n1", 100)

    def move_silently(self, uid: str, state: str) -> None:
        self.pods[uid].state = state

    def bind_silently(self, uid: str, node: str) -> None:
        self.reserve((uid, node))
        self.confirm(uid)
        self.move_silently(uid, "Bound")

    def __post_init__(self) -> None:
        self.reasons: dict[str, str] = {}
        super().__post_init__()

    def _state(self, pod: Any) -> Event:
        row = super()._state(pod)
        return row | {"reason": self.reasons[pod.uid]} if pod.uid in self.reasons else row


def judged(run: _Steps) -> tuple[Judgement, list[Event]]:
    platform = Faulty()
    platform.node("n0")
    platform.node("n1")
    run(platform)
    events = platform.end()
    return check(events), events


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_a_broken_promise_is_found_with_the_lines_that_show_it(case: Case) -> None:
    judgement, events = judged(case.breaks)
    found = [each for each in judgement.violations if each.promise is case.promise]
    assert any(case.text in each.text for each in found), judgement.violations
    assert judgement.exit_code == 1
    for each in found:
        assert each.lines
        assert each.at == events[each.lines[-1] - 1]["at"]


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_the_history_beside_it_keeps_every_promise_and_is_judged(case: Case) -> None:
    judgement, _ = judged(case.keeps)
    assert judgement.violations == []
    assert judgement.judged[case.promise] > 0
    assert judgement.exit_code == 0


def test_every_promise_has_a_case() -> None:
    assert {case.promise for case in CASES.values()} == set(Promise)


def platform_with(**pod: Any) -> tuple[SmallPlatform, str]:
    """A pod that waits; there is a node with room."""
    platform = SmallPlatform()
    platform.node("n0", labels={"zone": "a"}, taints=[{"key": "gpu", "effect": "NoSchedule"}])
    (uid,) = platform.submit("r", **pod)
    platform.move(uid, "Unschedulable")
    return platform, uid


TOLERATES = {"tolerations": [{"key": "gpu", "operator": "Exists"}]}


@pytest.mark.parametrize(
    ("pod", "waits_for_nothing"),
    [
        ({}, False),  # the taint keeps it away
        (TOLERATES, True),
        ({**TOLERATES, "selector": {"zone": "a"}}, True),
        ({**TOLERATES, "selector": {"zone": "b"}}, False),
        ({**TOLERATES, "node": "n0"}, True),
        ({**TOLERATES, "node": "n9"}, False),
        ({**TOLERATES, "cards": {"count": 1, "milli": 1000}}, False),
    ],
)
def test_selectors_taints_and_cards_are_true_reasons_to_wait(
    pod: dict[str, Any], waits_for_nothing: bool
) -> None:
    platform, _ = platform_with(**pod)
    found = [each.promise for each in check(platform.end()).violations]
    assert found == [Promise.LIVENESS] * waits_for_nothing


def test_a_pod_with_rules_that_are_not_modelled_is_counted_as_not_judged() -> None:
    platform, _ = platform_with(**TOLERATES, rules=["podAffinity"])
    judgement = check(platform.end())
    assert judgement.violations == []
    assert judgement.not_judged[Promise.LIVENESS] == {"rules that are not modelled: podAffinity": 1}


def test_without_quiet_the_end_is_not_judged_but_a_lost_pod_is_found() -> None:
    platform = SmallPlatform()
    platform.submit("r")
    del platform.pods["r-0"]
    events = [event for event in platform.end() if event["event"] != "quiet"]
    judgement = check(events)
    assert [each.promise for each in judgement.violations] == [Promise.NOTHING_LOST]
    assert Promise.LIVENESS in judgement.not_judged
    assert not judgement.judged[Promise.WATCHERS]


def test_a_fault_after_quiet_takes_quiet_back() -> None:
    platform = SmallPlatform()
    platform.history.append("quiet", by="test")
    platform.history.append("fault", by="test", kind="kill", target="w1")
    events = [event for event in platform.end() if event["event"] != "quiet"]
    assert not check(events).judged[Promise.OWNERS]


def test_a_watcher_with_a_gap_is_judged_by_the_listing_after_it() -> None:
    platform = SmallPlatform()
    platform.node("n0")
    platform.node("n1")
    platform.submit("r")
    platform.bind("r-0", "n0")
    platform.history.append("gap", by="watcher", of="watch", text="the stream broke")
    platform.pods["r-0"].state = "Queued"
    platform.release("r-0")
    platform.reserve(("r-0", "n1"))
    platform.confirm("r-0")
    row = {"uid": "r-0", "state": "Bound", "node": "n1"}
    platform.history.append("told", by="watcher", pods=[row], listing=True)
    platform.pods["r-0"].state = "Bound"
    assert check(platform.end()).violations == []


def test_a_list_of_reservations_is_compared_with_accounts_of_the_same_moment_alone() -> None:
    """A recorder of a live platform sees accounts of every change, and lists of reservations now and then."""

    def judgement(seq: int | None, listed: int) -> Judgement:
        history = History(lambda: 1.0, source="test", sees=["accounts"])
        history.append("node", by="ledger", name="n0", shard=0, seq=1, allocatable={"cpu": 1000})
        said = [{"node": "n0", "requested": {"cpu": 300, "pods": 1}}]
        history.append("ledger", by="ledger", shard=0, seq=2, accounts=said)
        row = {"uid": "p", "node": "n0", "shard": 0, "requests": {"cpu": listed}}
        seqs = {} if seq is None else {"0": seq}
        history.append("reservations", by="ledger", rows=[row], seqs=seqs)
        return check(history.events)

    assert [each.promise for each in judgement(2, 400).violations] == [Promise.AGREEMENT]
    assert judgement(2, 300).violations == []
    for seq in (1, 3, None):
        assert judgement(seq, 400).violations == []
        reasons = judgement(seq, 400).not_judged[Promise.AGREEMENT]
        assert sum(why.startswith("a list of reservations") for why in reasons) == 1


def test_a_snapshot_that_differs_from_the_changes_is_found_unless_a_fault_took_them() -> None:
    def violations(**fields: Any) -> list[Promise]:
        platform = SmallPlatform()
        platform.node("n0")
        platform.submit("r")
        platform.bind("r-0", "n0")
        ledger(platform, 0, snapshot=True, reserved=[], **fields)
        return [each.promise for each in check(platform.events).violations]

    assert violations() == [Promise.AGREEMENT]
    assert violations(lost=True) == []


def test_a_reservation_that_a_snapshot_tells_again_is_still_the_source_of_a_move() -> None:
    platform = SmallPlatform()
    steps(("node", "n0"), ("node", "n1"), *ONE, ("reserve_target", "r-0", "n1"))(platform)
    (held,) = (row for event in platform.events for row in event.get("reserved", ()) if row["uid"] == "r-0")
    ledger(platform, 0, snapshot=True, lost=True, reserved=[{**held, "state": "confirmed"}])
    steps(("take_target", "r-0", "n1"), ("move", "r-0", "Bound"))(platform)
    assert check(platform.events).violations == []


def test_a_node_that_lost_its_cards_still_takes_pods_without_cards() -> None:
    platform = SmallPlatform()
    platform.node("n0", cards=1)
    platform.submit("r", 2)
    row = {**platform._row("r-0", "n0"), "cards": {"0": 1000}}
    ledger(platform, 0, reserved=[row])
    platform.move("r-0", "Bound")
    platform.confirm("r-0")
    platform.node("n0", cards=0)
    platform.bind("r-1", "n0")
    assert check(platform.end()).violations == []


@pytest.mark.parametrize(
    ("told", "listed_first", "found"),
    [
        (["a", "b"], False, []),  # it was whole, and lost a pod
        (["a"], False, [Promise.GANGS]),
        (["a"], True, []),  # who knows what was before
    ],
)
def test_a_gang_of_a_live_platform_was_whole_once_its_minimum_was_told_bound(
    told: list[str], listed_first: bool, found: list[Promise]
) -> None:
    history = History(lambda: 1.0, source="test", sees=["accounts"])
    history.append("watch", by="w")
    rows = [{"uid": uid, "state": "Queued"} for uid in ("a", "b")]
    history.append("told", by="w", pods=rows, listing=listed_first)
    bound = [{"uid": uid, "state": "Bound", "node": "n0"} for uid in told]
    history.append("told", by="w", pods=bound)
    pods = {"uids": ["a", "b"], "requests": {"cpu": 1}, "gang": "g", "minimum": 2}
    history.append("accepted", by="d", pods=[pods])
    waits = {"uid": "b", "state": "Unschedulable", "reason": "0/0 nodes are available"}
    history.append("told", by="w", pods=[waits])
    history.append("quiet", by="test")
    history.append("table", by="d", pods=[{"uid": "a", "state": "Bound", "node": "n0"}, waits], final=True)
    row = {"uid": "a", "node": "n0", "state": "confirmed", "requests": {"cpu": 1}}
    history.append("reservations", by="ledger", rows=[row], seqs={"0": 1}, final=True)
    judgement = check(history.events)
    assert [each.promise for each in judgement.violations] == found
    assert bool(judgement.not_judged[Promise.GANGS]) is listed_first


def test_a_node_that_a_later_snapshot_leaves_out_has_no_room_for_anybody() -> None:
    """It was removed while nobody looked."""
    history = History(lambda: 1.0, source="test", sees=["accounts"])
    place = {"by": "ledger", "shard": 0}
    history.append("node", name="n0", seq=1, allocatable={"cpu": 1000}, **place)
    history.append("ledger", seq=2, accounts=[{"node": "n0", "requested": {}}], **place)
    history.append("ledger", seq=9, snapshot=True, accounts=[], **place)
    history.append("accepted", by="d", pods=[{"uids": ["p"], "requests": {"cpu": 1}}])
    history.append("quiet", by="test")
    row = {"uid": "p", "state": "Unschedulable", "reason": "0/0 nodes are available"}
    history.append("table", by="d", pods=[row], final=True)
    history.append("reservations", by="ledger", rows=[], seqs={"0": 9}, final=True)
    judgement = check(history.events)
    assert judgement.violations == []
    assert judgement.judged[Promise.LIVENESS] == 1


def test_a_history_that_can_judge_nothing_is_not_clean() -> None:
    assert check(History(lambda: 0.0, source="test").events).exit_code == 2


def test_clients_that_are_not_seen_may_have_deleted_what_somebody_was_told_is_deleted() -> None:
    def judgement(*, told_gone: bool, gap: bool = False) -> Judgement:
        history = History(lambda: 1.0, source="test", sees=["accounts"])
        history.append("watch", by="w")
        history.append("accepted", by="d", pods=[{"uids": ["p"], "requests": {"cpu": 1}}])
        if gap:
            history.append("gap", by="w", of="watch")
        if told_gone:
            history.append("told", by="w", pods=[{"uid": "p", "state": "Deleted"}])
        history.append("table", by="d", pods=[], final=True)
        return check(history.events)

    assert [each.promise for each in judgement(told_gone=False).violations] == [Promise.NOTHING_LOST]
    assert judgement(told_gone=True).violations == []
    assert judgement(told_gone=False, gap=True).violations == []
    assert judgement(told_gone=True).not_judged[Promise.NOTHING_LOST].total() == 1


def test_the_caches_of_workers_have_to_reach_the_ledger_and_agree_with_it() -> None:
    def violations(seq: int, digest: str) -> list[str]:
        platform = SmallPlatform()
        platform.node("n0")
        events = platform.end()
        for event in events:
            if event["event"] == "cache" and (event["by"], event["shard"]) == ("w1", 0):
                event.update(seq=seq, digest=digest)
        return [each.text for each in check(events).violations]

    assert violations(1, f"{1:016x}") == []
    assert violations(1, "ffff") == ["shard 0: the cache of w1 and the ledger differ at the same change 1"]
    assert violations(0, "ffff") == ["shard 0: the cache of w1 is at change 0, and the ledger at 1"]


def moved(*steps_of_move: str, to: str = "n1", **fields: Any) -> list[str]:
    """What is found in a history of a pod on n0 (shard 0) of which these steps are made. n1 is on shard 1,
    and n2 on shard 0."""
    platform = SmallPlatform()
    for name in ("n0", "n1", "n2"):
        platform.node(name)
    platform.submit("r")
    platform.bind("r-0", "n0")
    made: dict[str, Callable[[], None]] = {
        "reserve": lambda: platform.reserve_target("r-0", to),
        "take": lambda: platform.take_target("r-0", to, **fields),
        "release": lambda: platform.release_on(0, "r-0"),
        "reserve elsewhere": lambda: platform._change("ledger", 1, reserved=[platform._row_at("r-0", "n1")]),
        "move at once": lambda: platform.move_at_once("r-0", to),
        "undo": lambda: platform.release_on(platform.nodes[to].shard, "target-of-r-0"),
        "tell": lambda: platform.tell("r-0"),
    }
    for step in steps_of_move:
        made[step]()
    return [each.promise.value for each in check(platform.end()).violations]


def test_a_pod_that_is_moved_has_one_reservation_that_counts_and_its_watcher_is_told_at_once() -> None:
    assert moved("reserve", "take", "tell", "release") == []  # between shards
    assert moved("reserve", "take", "tell", to="n2") == []
    assert moved("reserve", "undo") == []


def test_a_move_in_one_step_has_nothing_between_and_only_on_one_shard() -> None:
    assert moved("move at once", "tell", to="n2") == []
    # On another shard it would leave what the pod holds.
    assert Promise.ONE_NODE.value in moved("move at once", "tell", to="n1")


def test_a_move_that_leaves_two_reservations_is_found() -> None:
    assert Promise.ONE_NODE.value in moved("reserve", "take", "tell", to="n2", released=False)
    assert Promise.ONE_NODE.value in moved("reserve", "release", "reserve elsewhere", "take", "tell", to="n2")
    assert Promise.OWNERS.value in moved("reserve", "take", "tell")  # the source stays


def test_the_source_of_a_move_is_what_the_step_names_and_not_what_was_held_before() -> None:
    """A pod lost its place, and got another one, while its target was reserved. Then it is moved from there."""

    def found(node: str, seq: int) -> list[str]:
        platform = SmallPlatform()
        for name in ("n0", "n1", "n2"):
            platform.node(name)
        platform.submit("r")
        platform.bind("r-0", "n1")
        platform.reserve_target("r-0", "n0")
        platform.release_on(1, "r-0")
        row = {**platform._row_at("r-0", "n1"), "seq": 7}
        platform._change("ledger", 1, reserved=[row])
        sources = [{"uid": "r-0", "node": node, "seq": seq}]
        platform._change("ledger", 0, moved=["target-of-r-0"], sources=sources)
        platform.release_on(1, "r-0")
        return [each.text for each in check(platform.end()).violations if "not its source" in each.text]

    assert found("n1", 7) == []
    assert len(found("n1", 3)) == 1  # a former place on that node
    assert len(found("n2", 7)) == 1


def test_a_target_that_nobody_ends_and_one_that_was_never_reserved_are_found() -> None:
    assert Promise.OWNERS.value in moved("reserve")
    assert Promise.STATES.value in moved("take", "tell", "release")


def test_a_watcher_is_told_of_another_node_without_a_state_between_only_after_a_move() -> None:
    def tell_twice() -> list[str]:
        platform = SmallPlatform()
        platform.node("n0")
        platform.node("n1")
        platform.submit("r")
        platform.bind("r-0", "n0")
        platform.release("r-0")
        platform.bind("r-0", "n1")
        return [each.promise.value for each in check(platform.end()).violations]

    assert tell_twice() == [Promise.ONE_NODE.value]


@pytest.mark.parametrize("moving", [False, True])
def test_a_history_without_reservations_that_says_that_pods_are_moved_is_no_witness_of_two_nodes(
    moving: bool,
) -> None:
    """It says so when the recorder has asked, which may be after watchers were told."""
    history = History(lambda: 1.0, source="test", sees=[ACCOUNTS])
    for node in ("n0", "n1"):
        row = {"uid": "r-0", "state": "Bound", "node": node}
        history.append("told", by="watcher", pods=[row])
    if moving:
        history.append("moving", by="dispatcher")
    judgement = check(history.events)
    assert len(judgement.violations) == (not moving)
    row = next(row for row in judgement.as_json()["promises"] if row["promise"] == Promise.ONE_NODE.value)
    why = {"pods were moved, and the history does not say which": 1}
    assert row["notJudged"] == (why if moving else {})
