"""Rules, selectors and fallbacks, and the reason that pods get while no worker may have them."""

from dataclasses import replace

import numpy as np
import pytest

from dispatcher.core import messages as m
from dispatcher.core.pods.table import Phase
from dispatcher.core.policy.index import RuleIndex
from dispatcher.core.policy.rules import Algorithm, Balance, Fallback, Match, Policy, Rule, Selector, facts_of
from dispatcher.workers.link import work_message
from hoss.model.conflicts import ConflictRule, Criteria
from hoss.model.pod import DeviceRequest, PodSpec, PodTemplate, QosClass
from hoss.model.selectors import NodeScope, Requirement
from hoss.model.slices import finished
from hoss.wire.convert import conflict_rule_from_proto


def labelled(**labels):
    return Selector(tuple(Requirement(key, "In", (value,)) for key, value in labels.items()))


GPU_POD = PodSpec(requests=(("cpu", 1), ("nvidia.com/gpu", 1)))
GPU_RULE = Rule("gpu", Match(resources=frozenset({"nvidia.com/gpu"})), labelled(role="gpu"))
REST = Rule("rest", workers=labelled(role="general"))


@pytest.mark.parametrize(
    ("match", "matches"),
    [
        (Match(), True),
        (Match(labels=labelled(app="web")), True),
        (Match(labels=labelled(app="db")), False),
        (Match(labels=Selector((Requirement("canary", "DoesNotExist"),))), True),
        (Match(namespaces=frozenset({"prod", "test"})), True),
        (Match(namespaces=frozenset({"test"})), False),
        (Match(priority_min=10, priority_max=10), True),
        (Match(priority_min=11), False),
        (Match(priority_max=9), False),
        (Match(priority_class_names=frozenset({"high"})), True),
        (Match(scheduler_names=frozenset({"other"})), False),
        (Match(qos_classes=frozenset({"Guaranteed"})), True),
        (Match(owner_kinds=frozenset({"Job"})), True),
        (Match(owner_kinds=frozenset({"Pod"})), False),
        (Match(resources=frozenset({"cpu"})), True),
        (Match(resources=frozenset({"memory"})), False),
        (Match(resources=frozenset({"hoss.dev/gpu-milli"})), True),
        (Match(namespaces=frozenset({"prod"}), priority_min=11), False),
    ],
)
def test_a_rule_matches_when_all_it_names_agrees(match, matches):
    spec = PodSpec(
        namespace="prod",
        labels=(("app", "web"),),
        priority=10,
        requests=(("cpu", 100), ("memory", 0)),
        devices=DeviceRequest(1, 500),
    )
    facts = facts_of(PodTemplate(spec, "hoss", "high", QosClass.GUARANTEED, "Job"))
    assert match.matches(facts) is matches
    assert RuleIndex(Policy((Rule("only", match),))).matching(facts) == int(matches)


def test_labels_come_first_then_load(new_bench):
    bench = new_bench(Policy((GPU_RULE, REST)))
    bench.join("idle", role="general")
    bench.join("busy", role="gpu")
    bench.job("first", 500, spec=GPU_POD)
    bench.job("second", 500, spec=GPU_POD)
    bench.job("third", 10)
    assert bench.in_hand("busy") == 1000
    assert bench.in_hand("idle") == 10


def test_pods_of_a_rule_that_no_worker_matches_wait_and_go_when_one_comes(new_bench):
    bench = new_bench(Policy((GPU_RULE, REST)))
    bench.join("general", role="general")
    rows = bench.job("job", 10, spec=GPU_POD)
    assert bench.all_are(rows, Phase.QUEUED)
    (sub_queue,) = bench.machine.queues.active.sub_queues()
    assert (
        bench.machine.routing.destination(sub_queue).problem
        == "no registered worker matches rule gpu: role=gpu"
    )
    bench.join("special", role="gpu")
    assert bench.in_hand("special") == 10


@pytest.mark.parametrize(
    ("fallback", "goes_to"),
    [(Fallback.WAIT, None), (Fallback.NEXT_RULE, "general"), (Fallback.ANY_WORKER, "other")],
)
def test_the_fallback_says_what_happens_while_no_worker_matches(new_bench, fallback, goes_to):
    bench = new_bench(Policy((Rule("gpu", GPU_RULE.match, GPU_RULE.workers, fallback=fallback), REST)))
    bench.join("general", role="general")
    bench.join("other", role="other", window=4000)
    bench.job("blocker", 500)  # makes the general worker the busier one
    rows = bench.job("job", 10, spec=GPU_POD)
    bench.now += 0.01
    bench.pump()
    if goes_to is None:
        assert bench.all_are(rows, Phase.QUEUED)
    else:
        assert bench.all_are(rows, Phase.SCHEDULING)
        worker = bench.machine.registry.pods.worker[rows[0]]
        assert bench.machine.members.name_of(worker) == goes_to


def test_when_the_last_matching_worker_dies_the_fallback_takes_over(new_bench):
    bench = new_bench(
        Policy((Rule("gpu", GPU_RULE.match, GPU_RULE.workers, fallback=Fallback.NEXT_RULE), REST))
    )
    special = bench.join("special", role="gpu")
    bench.join("general", role="general")
    bench.handle(m.LinkClosed(special))
    bench.job("job", 10, spec=GPU_POD)
    assert bench.in_hand("general") == 10


def test_pods_that_no_rule_matches_wait_and_say_so(new_bench):
    bench = new_bench(Policy((GPU_RULE,)))
    bench.join("special", role="gpu")
    rows = bench.job("job", 10)
    assert bench.all_are(rows, Phase.QUEUED)
    sub_queue = bench.machine.registry.templates.sub_queue[bench.machine.registry.pods.template[rows[0]]]
    assert bench.machine.routing.destination(int(sub_queue)).problem == "no rule of the policy matches"


def test_a_new_policy_applies_to_pods_that_wait_and_keeps_their_order(new_bench):
    bench = new_bench(Policy((GPU_RULE, REST)))
    first = bench.job("first", 10, spec=GPU_POD)
    second = bench.job("second", 10)
    bench.join("special", role="special")
    bench.set_policy(Rule("all"))
    (work,) = bench.sent["special"]
    assert work.uids.tobytes() == bench.machine.registry.pods.uid[[*first, *second]].tobytes()


def test_a_policy_that_treats_all_pods_alike_never_decodes_a_template(bench):
    bench.machine.registry.templates._decode = None
    bench.join("w1")
    bench.job("job", 10)
    assert bench.in_hand("w1") == 10


def test_a_class_stays_with_its_worker_under_consistent_hash(new_bench):
    bench = new_bench(Policy((Rule("hash", balance=Balance(Algorithm.CONSISTENT_HASH)),)))
    for name in ("w1", "w2", "w3"):
        bench.join(name, window=10_000)
    homes = {}
    for number in range(60):
        spec = PodSpec(labels=(("class", str(number % 20)),))
        rows = bench.job(f"job-{number}", 5, spec=spec)
        bench.now += 0.01
        bench.pump()
        homes.setdefault(number % 20, set()).update(bench.machine.registry.pods.worker[rows].tolist())
    assert all(len(workers) == 1 for workers in homes.values())
    assert len(set.union(*homes.values())) == 3


@pytest.mark.parametrize(
    ("match", "told"),
    [
        (Match(namespaces=frozenset({"b", "a"})), "namespaces: prod is not a or b"),
        (Match(priority_class_names=frozenset({"high"})), "priorityClassNames: none given is not high"),
        (Match(priority_min=11), "priority: 10 is below 11"),
        (Match(resources=frozenset({"x.io/y"})), "resources: it asks for cpu, not for x.io/y"),
        (Match(labels=labelled(app="db")), "labels: not app=db"),
        (Match(owner_kinds=frozenset({"Job"})), "ownerKinds: Pod is not Job"),
    ],
)
def test_a_rule_that_does_not_match_says_on_which_field(match, told):
    spec = PodSpec(namespace="prod", labels=(("app", "web"),), priority=10, requests=(("cpu", 100),))
    assert match.mismatch(facts_of(PodTemplate(spec))) == told


GPU_NODES = NodeScope("gpu", labelled(pool="gpu").requirements)
NARROWED = Rule("gpu", GPU_RULE.match, nodes=GPU_NODES)


def test_a_rules_nodes_go_with_its_work_batches_and_no_others(new_bench):
    bench = new_bench(Policy((NARROWED, Rule("rest"))))
    bench.join("w1")
    bench.job("a", 3, spec=GPU_POD)
    bench.job("b", 3)
    bench.now += 0.01
    bench.pump()
    first, second = bench.sent["w1"]
    assert (first.scope, second.scope) == (GPU_NODES, None)


def test_how_a_rule_decides_conflicts_goes_with_its_work_batches_and_no_others(new_bench):
    rule = ConflictRule(Criteria.STRICT, displace_gap=100)
    bench = new_bench(Policy((Rule("gpu", GPU_RULE.match, conflicts=rule), Rule("rest"))))
    bench.join("w1")
    bench.job("a", 3, spec=GPU_POD)
    bench.job("b", 3)
    bench.now += 0.01
    bench.pump()
    first, second = bench.sent["w1"]
    told = work_message(replace(first, classes=())).work
    assert conflict_rule_from_proto(told.conflicts) == rule
    assert not work_message(replace(second, classes=())).work.HasField("conflicts")


def test_unschedulable_pods_follow_a_new_policy_at_once(new_bench):
    bench = new_bench(Policy((NARROWED, Rule("rest"))))
    bench.join("w1")
    narrowed, other = bench.job("a", 3, spec=GPU_POD), bench.job("b", 3)
    bench.now += 0.01
    bench.pump()
    for _ in range(2):
        bench.answer("w1", m.OutcomeCode.UNSCHEDULABLE, reason="0/1 nodes", refused_by=("PolicyNodes",))
    bench.set_policy(Rule("gpu", GPU_RULE.match), Rule("rest"))
    assert bench.all_are(narrowed, Phase.SCHEDULING)
    assert bench.all_are(other, Phase.UNSCHEDULABLE)  # nothing changed for them


def test_pods_in_backoff_follow_a_new_policy_at_once(new_bench):
    bench = new_bench(Policy((NARROWED, Rule("rest"))))
    bench.join("w1")
    rows = bench.job("a", 3, spec=GPU_POD)
    for _ in range(4):
        bench.answer("w1", m.OutcomeCode.CONFLICT)
    assert bench.all_are(rows, Phase.BACKOFF)
    bench.set_policy(Rule("all"))
    assert bench.all_are(rows, Phase.SCHEDULING)


@pytest.mark.parametrize("wait", ["unschedulable", "in backoff"])
def test_very_many_waiting_pods_follow_a_new_policy_in_parts(new_bench, monkeypatch, wait):
    monkeypatch.setattr("dispatcher.core.queue.queues._WOKEN_AT_ONCE", 4)
    bench = new_bench(Policy((NARROWED, Rule("rest"))))
    link = bench.join("w1", window=2)
    rows = bench.job("a", 10, spec=GPU_POD)
    while bench.sent["w1"]:
        if wait == "in backoff":
            bench.answer("w1", m.OutcomeCode.CONFLICT)
        else:
            bench.answer("w1", m.OutcomeCode.UNSCHEDULABLE, reason="0/1 nodes", refused_by=("PolicyNodes",))
    assert bench.all_are(rows, Phase.BACKOFF if wait == "in backoff" else Phase.UNSCHEDULABLE)
    bench.handle(m.LinkClosed(link))
    bench.set_policy(Rule("gpu", GPU_RULE.match), Rule("rest"))
    queued = [bench.phases(rows).count(Phase.QUEUED)]
    for _ in range(2):
        bench.pass_time(0.01)
        queued.append(bench.phases(rows).count(Phase.QUEUED))
    assert queued == [4, 8, 10]


def test_what_a_worker_refuses_under_the_old_policy_is_tried_again_under_the_new(new_bench):
    bench = new_bench(Policy((NARROWED,)))
    bench.join("w1")
    rows = bench.job("a", 3, spec=GPU_POD)
    bench.set_policy(Rule("all"))
    assert bench.all_are(rows, Phase.SCHEDULING)  # the worker keeps them
    bench.answer("w1", m.OutcomeCode.UNSCHEDULABLE, reason="0/1 nodes", refused_by=("PolicyNodes",))
    assert bench.all_are(rows, Phase.BACKOFF)
    bench.pass_time(1.0)
    (work,) = bench.sent["w1"]
    assert work.scope is None


def test_a_policy_with_the_same_rules_moves_nobody(new_bench):
    bench = new_bench(Policy((NARROWED, Rule("rest"))))
    bench.join("w1")
    rows = bench.job("a", 3, spec=GPU_POD)
    bench.answer("w1", m.OutcomeCode.UNSCHEDULABLE, reason="0/1 nodes", refused_by=("PolicyNodes",))
    bench.set_policy(NARROWED, Rule("another for the rest"))
    assert bench.all_are(rows, Phase.UNSCHEDULABLE)


def test_gated_pods_stay_gated_under_a_new_policy(new_bench):
    bench = new_bench(Policy((NARROWED,)))
    bench.join("w1")
    rows = bench.job("a", 2, spec=GPU_POD, gates=("wait",))
    bench.set_policy(Rule("all"))
    assert bench.all_are(rows, Phase.UNSCHEDULABLE)
    assert not bench.sent


def classes(bench, count):
    """So many queued pods, each of a class of its own; returns their rows."""
    specs = [PodSpec(labels=(("pod", str(number)),)) for number in range(count)]
    return np.concatenate([bench.pods(f"pod-{number}", spec=spec) for number, spec in enumerate(specs)])


def test_templates_that_come_and_go_while_a_policy_is_prepared_are_routed_by_it(bench):
    rows = classes(bench, 20)
    policy = Policy((Rule("labelled", match=Match(labels=labelled(app="web"))), Rule("rest")), version=2)
    setting = bench.machine.setting_policy(policy, lambda: bench.now)
    for _ in range(10):
        next(setting)
    bench.handle(m.Deleted(rows[:15]))
    for _ in range(3):
        bench.pass_time(10)
    web = bench.pods("web", spec=PodSpec(labels=(("app", "web"),)))  # gets the number of a template that went
    bench._take(finished(setting))
    templates, pods = bench.machine.registry.templates, bench.machine.registry.pods
    routes = templates.sub_queue[pods.template[np.concatenate([rows[15:], web])]].tolist()
    assert len(set(routes[:-1])) == 1
    assert routes[-1] != routes[0]
    assert bench.machine.routing.policy is policy
    assert bench.phases(rows[15:]) == [Phase.QUEUED] * 5


def test_while_a_policy_is_prepared_the_former_one_is_in_force(bench):
    classes(bench, 20)
    before = bench.machine.routing.policy
    setting = bench.machine.setting_policy(Policy((Rule("new"),), version=2), lambda: bench.now)
    assert sum(1 for _ in setting) == 20  # one template each
    assert bench.machine.routing.policy is not before
    setting = bench.machine.setting_policy(before, lambda: bench.now)
    for _ in range(20):
        next(setting)
        assert bench.machine.routing.policy is not before
