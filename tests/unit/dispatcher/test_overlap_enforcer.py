"""How a stance reaches routing and workers, and what workers report of conflicts."""

import numpy as np
import pytest
from pydantic import ValidationError

from dispatcher.config import DispatcherConfig
from dispatcher.core import messages as m
from dispatcher.core.dispatch.overlap_control import OverlapControlRules, OverlapSetting, Pair
from dispatcher.core.machine import Settings
from dispatcher.core.pods.sets import NewJob, NewTemplate, Order
from dispatcher.core.pods.table import Phase
from dispatcher.core.pods.templates import TemplateKind
from dispatcher.core.policy.rules import Match, Policy, Rule, Selector
from dispatcher.core.workers.reports import AGE_STEPS, ConflictReport, Heartbeat
from dispatcher.workers.link import read_heartbeat
from dispatcher.workers.overlap_control import conflicts_message, read_overlap, read_workers
from hoss.errors import ColumnError, InvalidInput
from hoss.model.conflicts import Overlap, Preference
from hoss.model.pod import PodSpec, QosClass
from hoss.model.selectors import Requirement
from hoss.v1 import workerlink_pb2 as pb
from hoss.wire.columns import U8, U32, U64, encode

SOFT = Overlap.SOFT_PARTITION
RESOURCE, TOPOLOGY = 3, 6


def preferences(bench):
    """What each worker was told last."""
    told = {}
    for sent in bench.instructions(m.SendPreference):
        worker = bench.machine.members.on_link(sent.link)
        if worker is not None:
            told[worker.name] = sent.preference
    return told


@pytest.fixture
def three(bench):
    for name in ("w1", "w2", "w3"):
        bench.join(name)
    return bench


def test_nobody_is_told_what_everybody_does_anyway(three):
    three.pass_time(1)
    assert preferences(three) == {}


def test_in_a_soft_partition_every_worker_has_a_share_of_its_own(three):
    three.handle(m.OverlapRequested(SOFT, None))
    assert preferences(three) == {f"w{n + 1}": Preference(SOFT, n, 3) for n in range(3)}


def test_a_worker_that_comes_or_goes_changes_the_shares(three):
    three.handle(m.OverlapRequested(SOFT, None))
    link = three.join("w4")
    three.pass_time(0.1)
    assert preferences(three)["w4"] == Preference(SOFT, 3, 4)
    three.handle(m.LinkClosed(link))
    three.pass_time(0.1)
    assert preferences(three)["w3"] == Preference(SOFT, 2, 3)


def test_a_worker_that_registers_anew_is_told_again(three):
    three.handle(m.OverlapRequested(Overlap.SHARED, None))
    worker = three.machine.members.get("w2")
    three.handle(m.LinkClosed(worker.link))
    three.handle(m.Fenced("w2", np.zeros(0, np.uint32), {}))
    three.emitted.clear()
    three.join("w2")
    three.pass_time(0.1)
    assert preferences(three) == {"w2": Preference(Overlap.SHARED, 0, 1)}


def test_only_so_many_workers_get_work_at_once(three):
    three.handle(m.OverlapRequested(None, 2))
    three.job("many", 3000)
    assert set(three.sent) == {"w1", "w2"}


def test_another_worker_steps_in_for_one_that_is_gone(three):
    three.handle(m.OverlapRequested(None, 1))
    three.handle(m.LinkClosed(three.machine.members.get("w1").link))
    three.job("many", 100)
    assert set(three.sent) == {"w2"}


def test_every_rule_keeps_a_worker_of_its_own_whatever_the_number(new_bench):
    gpu = Selector((Requirement("tier", "In", ("gpu",)),))
    late = Rule("late", Match(resources=frozenset({"nvidia.com/gpu"})), gpu)
    bench = new_bench(Policy((late, Rule("rest"))))
    for name, tier in (("w1", "cpu"), ("w2", "gpu"), ("w3", "gpu")):
        bench.join(name, tier=tier)
    bench.handle(m.OverlapRequested(None, 1))
    bench.job("early", 100)
    bench.job("late", 100, spec=PodSpec(requests=(("nvidia.com/gpu", 1),)))
    assert set(bench.sent) == {"w1", "w2"}


def test_who_stands_by_does_not_take_started_work_away(three):
    three.handle(m.OverlapRequested(None, 1))
    three.job("many", 2000)
    link = three.machine.members.get("w1").link
    three.handle(
        m.HeartbeatReceived(link, Heartbeat(ready=True, backlog=2000, micros_per_pod=1e4, seen_micros=1e4))
    )
    three.pass_time(0.2)
    assert three.instructions(m.SendRecall) == []


def test_a_fixed_number_is_given_back_to_the_dispatcher(three):
    three.handle(m.OverlapRequested(None, 1))
    three.handle(m.OverlapRequested(None, None))
    assert three.machine.overlap.control.rules.workers is None


def test_every_step_is_in_the_log_with_its_reason(three):
    three.handle(m.OverlapRequested(SOFT, 2))
    (note,) = three.instructions(m.Note)
    assert note.event == "overlap_set"
    assert note.fields == {"overlap": "soft-partition", "workers": 2, "reason": "by hand"}


def test_heartbeats_of_conflicts_lead_to_a_step_by_itself(three):
    links = [three.machine.members.get(f"w{n}").link for n in (1, 2, 3)]
    three.job("many", 3000)
    for beat in range(1, 30):
        for link in links:
            three.handle(
                m.HeartbeatReceived(link, Heartbeat(ready=True, proposed=1000 * beat, conflicts=300 * beat))
            )
        three.pass_time(0.5)
    steps = three.machine.overlap.control.steps
    assert steps[1].setting == OverlapSetting(SOFT, 0)
    assert "30.0% conflicts" in steps[1].reason
    assert three.machine.counters["refused"] == 300 * 28 * 3 + 300 * 3


def test_what_a_worker_did_before_this_link_is_not_counted_again(bench):
    link = bench.register("w1")
    bench.handle(m.EpochGranted(link, epoch=1))
    bench.handle(m.HeartbeatReceived(link, Heartbeat(ready=True, proposed=5000, conflicts=4000)))
    bench.handle(m.HeartbeatReceived(link, Heartbeat(ready=True, proposed=5100, conflicts=4010)))
    assert (bench.machine.counters["proposed"], bench.machine.counters["refused"]) == (100, 10)


def test_refusals_are_laid_to_workers_by_their_epochs(three):
    first, second = (three.machine.members.get(name) for name in ("w1", "w2"))
    refusals = ConflictReport({(second.epoch, RESOURCE): 7, (0, TOPOLOGY): 2, (99, RESOURCE): 1}, {4: 10})
    three.handle(m.HeartbeatReceived(first.link, Heartbeat(ready=True), None, refusals))
    three.handle(m.HeartbeatReceived(first.link, Heartbeat(ready=True), None, refusals))
    assert three.machine.overlap.conflicts.pairs == {
        Pair("w1", "w2", RESOURCE): 14,
        Pair("w1", "", TOPOLOGY): 4,
        Pair("w1", "epoch 99", RESOURCE): 2,
    }
    assert three.machine.overlap.conflicts.nodes == {4: 20}


def test_an_epoch_of_a_former_life_is_still_that_worker_s(three):
    old = three.machine.members.get("w2")
    epoch = old.epoch
    three.handle(m.LinkClosed(old.link))
    three.handle(m.Fenced("w2", np.zeros(0, np.uint32), {}))
    three.join("w2")
    link = three.machine.members.get("w1").link
    three.handle(
        m.HeartbeatReceived(link, Heartbeat(ready=True), None, ConflictReport({(epoch, RESOURCE): 1}, {}))
    )
    assert list(three.machine.overlap.conflicts.pairs) == [Pair("w1", "w2", RESOURCE)]


def test_sums_stay_bounded_and_the_largest_stay(three):
    link = three.machine.members.get("w1").link
    for start in range(1, 20_000, 200):
        winners = {(epoch, RESOURCE): epoch for epoch in range(start, start + 200)}
        three.handle(
            m.HeartbeatReceived(
                link, Heartbeat(ready=True), None, ConflictReport(winners, {epoch: 1 for epoch, _ in winners})
            )
        )
    conflicts = three.machine.overlap.conflicts
    assert len(conflicts.pairs) <= 4096
    assert len(conflicts.nodes) <= 1024
    assert conflicts.pairs[Pair("w1", "epoch 20000", RESOURCE)] == 20_000


@pytest.fixture
def wide(three):
    """Three workers, and as many nodes as a bulk needs."""
    three.handle(m.NodesSeen({index: m.KnownNode(f"n{index}", {}) for index in range(300)}))
    three.pass_time(0.1)
    return three


def bind_all(bench):
    """Workers bind whatever they have and get."""
    while any(bench.sent.values()):
        for name, batches in list(bench.sent.items()):
            if batches:
                bench.answer(name, m.OutcomeCode.BOUND)


def reasons(bench):
    return [step.reason for step in bench.machine.overlap.control.steps]


def test_workers_part_the_nodes_before_the_first_pod_of_a_bulk_is_sent(wide):
    template = NewTemplate(b"", TemplateKind("default", "hoss", "", QosClass.BURSTABLE, "Job"), 0)
    submission = wide.accept(Order("bulk", (template,), (NewJob("bulk", 0, 1000),), None))
    out = wide.machine.handle(m.Admitted(submission), wide.now)
    told = [type(i) for i in out if isinstance(i, (m.SendPreference, m.SendWork))]
    assert told == [m.SendPreference] * 3 + [m.SendWork] * 3
    assert [i.preference for i in out[1:4]] == [Preference(SOFT, n, 3) for n in range(3)]
    assert reasons(wide)[-1] == "1,000 pods for 300 nodes are in hand"


def test_a_bulk_may_come_in_many_messages(wide):
    for number in range(20):
        wide.job(f"job-{number}", 50)
    assert set(preferences(wide).values()) == {Preference(SOFT, n, 3) for n in range(3)}


@pytest.mark.parametrize(
    ("nodes", "pods", "workers"), [(300, 999, 3), (2000, 1999, 3), (299, 5000, 3), (300, 5000, 1)]
)
def test_few_pods_few_nodes_and_one_worker_have_no_partition(bench, nodes, pods, workers):
    for number in range(workers):
        bench.join(f"w{number + 1}")
    bench.handle(m.NodesSeen({index: m.KnownNode(f"n{index}", {}) for index in range(nodes)}))
    bench.pass_time(0.1)
    bench.job("many", pods)
    bench.pass_time(1)
    assert preferences(bench) == {}


@pytest.mark.parametrize(
    ("packing", "nodes", "pods", "parted"),
    [
        (3, 300, 200, True),
        (3, 300, 199, False),
        (3, 299, 5000, False),
        (2, 300, 999, False),
        (8, 800, 400, True),
        (8, 800, 399, False),
        (1, 300, 5000, False),
    ],
)
def test_workers_that_all_pack_part_the_nodes_for_few_pods(bench, packing, nodes, pods, parted):
    workers = max(packing, 3) if packing > 1 else 1
    for number in range(workers):
        bench.join(f"w{number + 1}", packs=number < packing)
    bench.handle(m.NodesSeen({index: m.KnownNode(f"n{index}", {}) for index in range(nodes)}))
    bench.pass_time(0.1)
    bench.job("many", pods)
    found = set(preferences(bench).values())
    assert found == ({Preference(SOFT, number, workers) for number in range(workers)} if parted else set())


def test_pods_that_no_worker_may_have_are_no_bulk(new_bench):
    gpu = Rule("gpu", Match(), Selector((Requirement("tier", "In", ("gpu",)),)))
    bench = new_bench(Policy((gpu,)))
    for name in ("w1", "w2"):
        bench.join(name, tier="cpu")
    bench.handle(m.NodesSeen({index: m.KnownNode(f"n{index}", {}) for index in range(300)}))
    bench.pass_time(0.1)
    bench.job("waits", 5000)
    assert preferences(bench) == {}


def test_the_partition_of_a_bulk_ends_once_little_has_been_in_hand_for_a_while(wide):
    rows = wide.job("bulk", 2000)
    wide.handle(m.Deleted(rows[1000:]))
    bind_all(wide)
    assert wide.all_are(rows[:1000], Phase.BOUND)
    wide.pass_time(2.5)
    assert set(preferences(wide).values()) == {Preference(SOFT, n, 3) for n in range(3)}
    wide.job("small", 50)
    wide.pass_time(1)
    assert set(preferences(wide).values()) == {Preference(Overlap.SHUFFLED, 0, 1)}
    assert reasons(wide)[-1] == "fewer than 100 pods are in hand"


def test_a_bulk_changes_nothing_that_is_fixed_by_hand(wide):
    wide.handle(m.OverlapRequested(Overlap.SHARED, None))
    wide.job("bulk", 3000)
    wide.pass_time(10)
    assert set(preferences(wide).values()) == {Preference(Overlap.SHARED, 0, 1)}


def test_what_is_fixed_during_a_bulk_outlives_it(wide):
    wide.job("bulk", 1000)
    wide.handle(m.OverlapRequested(SOFT, None))
    bind_all(wide)
    wide.pass_time(10)
    assert set(preferences(wide).values()) == {Preference(SOFT, n, 3) for n in range(3)}


def heartbeat(**columns):
    return pb.Heartbeat(
        ready=True,
        refusal_winners=columns.get("winners", encode([7], U64)),
        refusal_verdicts=encode([RESOURCE], U8),
        refusal_counts=encode([5], U32),
        refusing_nodes=columns.get("nodes", encode([3, 5], U32)),
        refusal_seqs_behind=columns.get("ages", encode([0, 5, *[0] * 14], U32)),
    )


def test_a_heartbeat_s_columns_are_read():
    told = read_heartbeat(heartbeat(), 1).refusals
    assert told.winners == {(7, RESOURCE): 5}
    assert told.nodes == {3: 5}
    assert told.seqs_behind[1] == 5
    assert len(told.ages_ms) == 0
    assert read_heartbeat(pb.Heartbeat(ready=True), 1).refusals is None


@pytest.mark.parametrize(
    "columns", [{"winners": encode([7, 8], U64)}, {"nodes": encode([3], U32)}, {"ages": encode([1], U32)}]
)
def test_a_heartbeat_whose_columns_do_not_fit_is_refused(columns):
    with pytest.raises(ColumnError, match="heartbeat"):
        read_heartbeat(heartbeat(**columns), 1)


@pytest.mark.parametrize("text", ["", "Shared", "soft"])
def test_an_overlap_that_there_is_not_is_refused_with_the_choices(text):
    with pytest.raises(InvalidInput, match="auto, shared, shuffled, soft-partition"):
        read_overlap(text)


@pytest.mark.parametrize("text", ["0", "-1", "all", "1.5", "99999"])
def test_a_number_of_workers_that_cannot_be_is_refused(text):
    with pytest.raises(InvalidInput, match="number from 1"):
        read_workers(text)


def test_a_worker_of_a_newer_release_may_give_reasons_unknown_here(three):
    link = three.machine.members.get("w1").link
    three.handle(m.HeartbeatReceived(link, Heartbeat(ready=True), None, ConflictReport({(0, 77): 1}, {3: 1})))

    class Names:
        def name(self, index):
            return f"node-{index}"

    message = conflicts_message(three.machine, Names())
    assert [(pair.reason, pair.pods) for pair in message.pairs] == [("77", 1)]
    assert message.nodes[0].node == "node-3"
    assert len(message.seqs_behind) == AGE_STEPS


def test_the_document_says_what_is_fixed_and_what_is_chosen():
    rules = DispatcherConfig.model_validate(
        {"steering": {"overlap": "shared", "window_seconds": 5}}
    ).steering_rules()
    assert (rules.overlap, rules.workers, rules.window_seconds) == (Overlap.SHARED, None, 5)
    assert DispatcherConfig.model_validate({"steering": {"workers": 2}}).steering_rules().workers == 2
    with pytest.raises(ValidationError, match="overlap"):
        DispatcherConfig.model_validate({"steering": {"overlap": "hard"}})


def test_configuration_puts_a_choice_in_force_for_good(new_bench):
    rules = OverlapControlRules(overlap=Overlap.SHARED, workers=1)
    bench = new_bench(settings=Settings(worker_timeout_seconds=1e9, overlap_control=rules))
    bench.join("w1")
    bench.join("w2")
    bench.pass_time(0.1)
    bench.job("many", 3000)
    assert set(bench.sent) == {"w1"}
    assert preferences(bench)["w2"].overlap is Overlap.SHARED
