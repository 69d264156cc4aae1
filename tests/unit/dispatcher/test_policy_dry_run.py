"""What a trial says is what would happen, and nothing remembers it."""

import pytest

from dispatcher.core.dispatch.balance import make_balancer
from dispatcher.core.policy.rules import Algorithm, Balance, Fallback, Match, Policy, Rule, Selector
from dispatcher.core.workers.membership import Worker, WorkerState
from dispatcher.core.workers.reports import Heartbeat
from dispatcher.policy.dry_run import dry_run
from hoss.model.conflicts import ConflictRule, Criteria
from hoss.model.pod import PodSpec, PodTemplate
from hoss.model.selectors import NodeScope, Requirement
from hoss.wire.convert import conflict_rule_from_proto

GOLD = Selector((Requirement("tier", "In", ("gold",)),))
POD = PodTemplate(PodSpec(namespace="prod"))


def worker(name, outstanding=0, state=WorkerState.READY, ready=True, window=100, **labels):
    return Worker(
        name,
        0,
        labels=labels,
        window=window,
        state=state,
        outstanding=outstanding,
        work_micros=10.0 * outstanding,
        heartbeat=Heartbeat(ready=ready),
    )


def trial(rules, workers, **known):
    (found,) = dry_run(Policy(tuple(rules)), [POD], workers, **known)
    return found


def test_every_rule_before_the_deciding_one_says_on_which_field_it_differs():
    found = trial(
        [Rule("test", Match(namespaces=frozenset({"test"}))), Rule("all"), Rule("more")], [worker("w1")]
    )
    assert [(r.rule, r.matches, r.reason) for r in found.rules] == [
        ("test", False, "namespaces: prod is not test"),
        ("all", True, ""),
    ]
    assert (found.rule, found.worker, found.reason) == (
        "all",
        "w1",
        "the only one that fits and takes pods now",
    )


@pytest.mark.parametrize(
    ("fallback", "rule", "chosen", "said"),
    [
        (Fallback.WAIT, "gold", "", "its pods wait"),
        (Fallback.NEXT_RULE, "rest", "w1", "next rule"),
        (Fallback.ANY_WORKER, "gold", "w1", "any worker"),
    ],
)
def test_a_rule_without_a_worker_says_what_its_fallback_does(fallback, rule, chosen, said):
    found = trial([Rule("gold", workers=GOLD, fallback=fallback), Rule("rest")], [worker("w1")])
    assert (found.rule, found.worker) == (rule, chosen)
    assert found.rules[0].reason == f"no registered worker matches tier=gold: {said}"


def test_workers_that_cannot_have_the_pod_say_why():
    workers = [
        worker("a", tier="gold"),
        worker("b"),
        worker("c", state=WorkerState.CORDONED, tier="gold"),
        worker("d", ready=False, tier="gold"),
        worker("e", outstanding=100, tier="gold"),
    ]
    found = trial([Rule("gold", workers=GOLD)], workers)
    assert [(w.worker, w.eligible, w.reason) for w in found.workers] == [
        ("a", True, ""),
        ("b", False, "does not match tier=gold"),
        ("c", False, "is Cordoned"),
        ("d", False, "is filling its cache"),
        ("e", False, "has as many pods as it takes at once"),
    ]


def test_the_least_loaded_worker_is_named_with_the_loads():
    found = trial([Rule("all")], [worker("a", 30), worker("b", 10), worker("c", 20)])
    assert (found.worker, found.reason) == ("b", "LeastOutstanding: the least estimated work in front of it")
    assert [w.outstanding for w in found.workers] == [30, 10, 20]


def test_who_stands_by_while_only_so_many_work_is_told_that():
    found = trial([Rule("all")], [worker("w1", outstanding=50), worker("w2")], worker_limit=1)
    assert found.worker == "w1"
    assert [w.reason for w in found.workers] == [
        "",
        "stands by: 1 workers of a rule get work at once, see `hoss get conflicts`",
    ]


def test_a_pod_that_no_rule_matches_waits():
    found = trial([Rule("test", Match(namespaces=frozenset({"test"})))], [worker("w1")])
    assert (found.rule, found.worker, found.reason) == ("", "", "no rule of the policy matches")


def test_the_nodes_of_the_rule_are_told():
    found = trial([Rule("all", nodes=NodeScope("all", GOLD.requirements, required=False))], [worker("w1")])
    assert (found.scope.rule, found.scope.required) == ("all", False)


def test_how_conflicts_of_its_pods_are_decided_is_told_of_the_rule_that_decides():
    strict = ConflictRule(Criteria.STRICT, all_or_nothing=True)
    found = trial([Rule("all", conflicts=strict)], [worker("w1")])
    assert conflict_rule_from_proto(found.conflicts) == strict
    nobody = trial([Rule("test", Match(namespaces=frozenset({"test"})))], [worker("w1")])
    assert not nobody.HasField("conflicts")


@pytest.mark.parametrize("algorithm", list(Algorithm))
def test_asking_again_gives_the_same_answer_and_takes_nobodys_turn(algorithm):
    balance = Balance(algorithm)
    balancers = [make_balancer(balance)]
    workers = [worker(name) for name in "abc"]
    answers = {trial([Rule("all", balance=balance)], workers, balancers=balancers).worker for _ in range(4)}
    assert len(answers) == 1
