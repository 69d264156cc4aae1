"""A worker's core that preempts, against answers that the test gives."""

from dataclasses import replace

import numpy as np
import pytest

from hoss.model.cluster import DeviceUpdate
from hoss.model.devices import (
    ClaimRequest,
    ClaimUse,
    Device,
    DeviceClass,
    ExactRequest,
    NodeReach,
    PodClaims,
    ResourceClaim,
    ResourceSlice,
)
from hoss.model.pod import DeviceRequest, PodAffinity, PodAffinityTerm, group_of
from hoss.model.selectors import LabelSelector, Requirement
from hoss.model.volumes import InlineDisk, PodVolumes
from hoss.wire.columns import numbered_uids
from scheduler_worker.core.cycle.scheduler import Scheduler
from scheduler_worker.core.framework.extension_points import Permission, PermitPlugin
from scheduler_worker.core.framework.registry import Weighted
from scheduler_worker.core.messages import Outcome, PodRun, PreemptionAnswer
from scheduler_worker.core.plugins import DEFAULT_PLUGINS, REGISTRY

REFUSED = 3


@pytest.fixture
def full(make_ledger, harness_of, make_pod):
    """Two nodes of 4,000 milli cpu, each with two pods of 2,000 on it that the test knows by number."""
    ledger = make_ledger(2)
    harness = harness_of(ledger)
    request = np.array([2000, 2**28, 0, 1, 0, 0])
    harness.cache.apply_feed(ledger.reserve([0, 0, 1, 1], [request] * 4))
    return harness


def submit(harness, spec, count=1, lowest=0):
    harness.batches += 1
    harness.scheduler.define_class(0, spec)
    uids = numbered_uids(b"urgent pods.", 0, count)
    columns = np.zeros(1, np.uint32), np.array([count], np.uint32), np.zeros(1, np.uint16)
    harness.scheduler.accept(harness.batches, uids, *columns, lowest_priority=lowest)
    while harness.scheduler.step():
        pass


def occupants(question, spec, nodes=(0, 0, 1, 1), *, seen=0, grace_ms=0):
    """An answer with a pod of this spec on each of the nodes, the later ones bound later."""
    count = len(nodes)
    return PreemptionAnswer(
        id=question.id,
        nodes_seen=len(question.nodes),
        uids=numbered_uids(b"twelve bytes", 0, count),
        nodes=np.array(nodes, np.intp),
        classes=np.zeros(count, np.intp),
        since_ms=np.arange(count, dtype=np.int64) * 1000,
        grace_ms=np.full(count, grace_ms, np.uint32),
        specs=(spec,),
        budgets=(),
        seen={0: seen},
    )


def uid(pod):
    return numbered_uids(b"twelve bytes", pod, 1)[0].tobytes()


def test_what_fits_nowhere_is_asked_about_and_placed_with_its_victims(full, make_pod):
    submit(full, make_pod(cpu=2000, priority=10))
    (question,) = full.scheduler.take_questions()
    assert (question.priority, sorted(question.nodes.tolist())) == (10, [0, 1])
    assert not full.scheduler.idle
    full.scheduler.preempt(occupants(question, make_pod(cpu=2000), grace_ms=1500), 0.0)
    (columns,) = full.scheduler.take_proposals(0.0)
    assert columns.candidates.tolist() == [[1]]
    assert columns.victims == {0: (uid(3),)}
    assert full.cache.requested[0, :2].tolist() == [4000, 4000]
    verdicts, update = full.ledger.commit(columns)
    full.scheduler.settle(columns.batch_id, verdicts)
    (answered,) = full.scheduler.take_outcomes()
    assert (answered.codes.tolist(), answered.leaving_ms.tolist()) == ([Outcome.BOUND], [1500])
    full.ledger.requested[1] -= np.array([2000, 2**28, 0, 1, 0, 0])
    full.cache.apply_feed(full.ledger.delta([1]))
    assert full.cache.requested[0, :2].tolist() == [4000, 4000]
    assert (full.cache.assumed == 0).all()
    assert update.seq == full.ledger.seq


class Denies(PermitPlugin):
    """The first pod that it is asked about, and no other."""

    def __init__(self):
        self.denied = False

    def permit(self, pods):
        denied = np.zeros(len(pods.classes), np.bool_)
        denied[0], self.denied = not self.denied, True
        return Permission("not this one", denied)


def test_a_preemptor_that_a_plugin_denies_keeps_its_victims_and_the_others_ask_again(full, make_pod):
    registry = REGISTRY.extended({"Denies": Denies})
    profile = registry.profile((*DEFAULT_PLUGINS, Weighted("Denies")))
    full.scheduler = Scheduler(full.cache, profile, np.random.default_rng(1))
    submit(full, make_pod(cpu=2000, priority=10), count=2)
    (question,) = full.scheduler.take_questions()
    full.scheduler.preempt(occupants(question, make_pod(cpu=2000)), 0.0)
    assert full.scheduler.take_proposals(0.0) == []
    assert full.cache.requested[0, :2].tolist() == [4000, 4000]
    assert (full.cache.assumed == 0).all()
    assert [(code, reason) for code, _, reason in full.outcomes()] == [
        (Outcome.UNSCHEDULABLE, "not this one")
    ]
    while full.scheduler.step():
        pass
    (question,) = full.scheduler.take_questions()
    full.scheduler.preempt(occupants(question, make_pod(cpu=2000)), 0.0)
    (columns,) = full.scheduler.take_proposals(0.0)
    assert columns.victims == {0: (uid(3),)}


def test_a_pod_that_needs_no_victims_any_more_leaves_nothing_undecided(full, make_pod):
    """Found by simulation: the worker called itself busy for two minutes."""
    submit(full, make_pod(cpu=2000, priority=10))
    (question,) = full.scheduler.take_questions()
    full.ledger.requested[1] -= np.array([2000, 2**28, 0, 1, 0, 0])
    full.cache.apply_feed(full.ledger.delta([1]))
    full.scheduler.preempt(occupants(question, make_pod(cpu=2000), nodes=(0, 0, 1)), 0.0)
    (columns,) = full.scheduler.take_proposals(0.0)
    assert (columns.candidates.tolist(), columns.victims) == ([[1]], {})
    verdicts, update = full.ledger.commit(columns)
    full.scheduler.settle(columns.batch_id, verdicts)
    full.cache.apply_feed(update)
    (answered,) = full.scheduler.take_outcomes()
    assert answered.codes.tolist() == [Outcome.BOUND]
    assert full.scheduler.idle


def test_one_question_is_asked_for_a_class_and_each_pod_reckons_with_those_before_it(full, make_pod):
    submit(full, make_pod(cpu=2000, priority=10), count=5)
    (question,) = full.scheduler.take_questions()
    assert full.scheduler.preemption_attempts == 5
    full.scheduler.preempt(occupants(question, make_pod(cpu=2000)), 0.0)
    (columns,) = full.scheduler.take_proposals(0.0)
    assert columns.victims == {0: (uid(3),), 1: (uid(2),), 2: (uid(1),), 3: (uid(0),)}
    (answered,) = full.scheduler.take_outcomes()
    assert answered.codes.tolist() == [Outcome.UNSCHEDULABLE]
    (text,) = answered.reason_texts
    assert text == (
        "0/2 nodes are available: 2 Insufficient cpu. "
        "preemption: 0/2 nodes are available: 2 No preemption victims found for incoming pod."
    )


def test_a_victim_on_its_way_out_is_not_chosen_again_until_the_dispatcher_has_heard_of_it(full, make_pod):
    low = make_pod(cpu=2000)
    submit(full, make_pod(cpu=2000, priority=10))
    (first,) = full.scheduler.take_questions()
    full.scheduler.preempt(occupants(first, low), 0.0)
    (columns,) = full.scheduler.take_proposals(0.0)
    submit(full, make_pod(cpu=2000, priority=11))
    (second,) = full.scheduler.take_questions()
    full.scheduler.preempt(occupants(second, low), 0.0)
    (again,) = full.scheduler.take_proposals(0.0)
    assert (columns.victims, again.victims) == ({0: (uid(3),)}, {0: (uid(2),)})
    verdicts, _ = full.ledger.commit(columns)
    full.scheduler.settle(columns.batch_id, verdicts)
    for seen, victim in ((full.ledger.seq - 1, 1), (full.ledger.seq, 3)):
        submit(full, make_pod(cpu=2000, priority=12 + seen))
        (third,) = full.scheduler.take_questions()
        full.scheduler.preempt(occupants(third, low, seen=seen), 0.0)
        (later,) = full.scheduler.take_proposals(0.0)
        assert later.victims == {0: (uid(victim),)}
        full.scheduler.settle(later.batch_id, full.ledger.answer(later, REFUSED))
        full.scheduler.drain()


def test_what_came_between_question_and_answer_may_still_wake_those_for_whom_nobody_goes(full, make_pod):
    submit(full, make_pod(cpu=2000, priority=10))
    (question,) = full.scheduler.take_questions()
    asked_at = full.cache.seqs[0]
    full.cache.apply_feed(full.ledger.reserve([0], [np.zeros(6, np.int64)]))
    full.scheduler.preempt(occupants(question, make_pod(cpu=2000, priority=10), nodes=()), 0.0)
    (answered,) = full.scheduler.take_outcomes()
    assert answered.codes.tolist() == [Outcome.UNSCHEDULABLE]
    assert (asked_at, dict(answered.seen)) == (full.cache.seqs[0] - 1, {0: asked_at})


def test_a_refused_preemptor_gives_all_back_and_after_some_tries_waits_its_turn(full, make_pod):
    submit(full, make_pod(cpu=2000, priority=10))
    for _ in range(full.scheduler.limits.tries):
        while full.scheduler.step():
            pass
        (question,) = full.scheduler.take_questions()
        full.scheduler.preempt(occupants(question, make_pod(cpu=2000)), 0.0)
        (columns,) = full.scheduler.take_proposals(0.0)
        full.scheduler.settle(columns.batch_id, full.ledger.answer(columns, REFUSED))
    (answered,) = full.scheduler.take_outcomes()
    assert answered.codes.tolist() == [
        Outcome.CONFLICT
    ]  # it comes again after its backoff, whatever happens meanwhile
    assert answered.reason_texts == ("0/2 nodes are available: 2 Insufficient cpu.",)
    assert (full.cache.assumed == 0).all()
    assert full.scheduler.idle


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"priority": 0}, id="no pod is less urgent"),
        pytest.param({"priority": 10, "may_preempt": False}, id="preemptionPolicy Never"),
    ],
)
def test_nobody_is_asked_for_pods_that_may_not_preempt(full, make_pod, fields):
    submit(full, make_pod(cpu=2000, **fields))
    assert full.scheduler.take_questions() == []
    (answered,) = full.scheduler.take_outcomes()
    never = " preemption: not eligible due to preemptionPolicy=Never."
    assert answered.reason_texts[0].endswith(never) == ("may_preempt" in fields)


def test_nobody_is_asked_for_a_pod_that_a_plugin_cannot_judge(make_ledger, harness_of, make_pod):
    """As in kube-scheduler: an error is no lack of room."""
    harness = harness_of(make_ledger(1))
    broken = ClaimRequest("one", (ExactRequest("one", "gpu", selectors=("1 +",)),))
    devices = ResourceSlice("s", "d", "pool", 1, 1, NodeReach(node_name="node-0"), (Device("gpu-0"),))
    claim = ResourceClaim("default", "mine", (broken,))
    harness.scheduler.update_devices(DeviceUpdate((DeviceClass("gpu"), claim, devices)), 0.0)
    claims = PodClaims("p", "uid-1", (ClaimUse("mine"),), ())
    submit(harness, make_pod(cpu=100, priority=10, claims=claims))
    assert harness.scheduler.take_questions() == []
    (answered,) = harness.scheduler.take_outcomes()
    assert answered.failed == (True,)
    assert "preemption" not in answered.reason_texts[0]


_WEB = LabelSelector((Requirement("app", "In", ("web",)),))
_APART = PodAffinityTerm("kubernetes.io/hostname", _WEB, ("default",))


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"pod_affinity": PodAffinity(anti_required=(_APART,))}, id="anti-affinity"),
        pytest.param({"volumes": PodVolumes(disks=(InlineDisk("gcePersistentDisk", ("a",)),))}, id="volume"),
    ],
)
def test_on_several_shards_nobody_is_asked_for_a_pod_with_rules_for_which_the_ledger_evicts_nobody(
    full, make_pod, shards, fields
):
    full.cache.shards = shards
    submit(full, make_pod(cpu=2000, priority=10, **fields))
    assert len(full.scheduler.take_questions()) == (1 if shards == 1 else 0)
    answered = full.scheduler.take_outcomes()
    assert [o.codes.tolist() for o in answered] == ([] if shards == 1 else [[Outcome.UNSCHEDULABLE]])
    assert all("the ledger has several shards" in o.reason_texts[0] for o in answered)


def test_a_pod_that_fits_no_empty_node_asks_nothing(full, make_pod):
    submit(full, make_pod(cpu=9000, priority=10))
    assert full.scheduler.take_questions() == []
    (answered,) = full.scheduler.take_outcomes()
    assert answered.reason_texts[0].endswith(
        "preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling."
    )


def test_where_the_nodes_seen_do_not_help_the_others_are_asked_about(full, make_pod):
    submit(full, make_pod(cpu=2000, priority=10))
    (first,) = full.scheduler.take_questions()
    nobody = occupants(first, make_pod(), nodes=())
    full.scheduler.preempt(
        PreemptionAnswer(**{name: getattr(nobody, name) for name in nobody.__slots__} | {"nodes_seen": 1}),
        0.0,
    )
    (second,) = full.scheduler.take_questions()
    assert second.nodes.tolist() == first.nodes[1:].tolist()
    full.scheduler.preempt(occupants(second, make_pod(), nodes=()), 0.0)
    (answered,) = full.scheduler.take_outcomes()
    assert "2 No preemption victims found" in answered.reason_texts[0]


def test_a_question_names_one_of_the_pods_and_who_waits_for_moves_first_is_refused_with_these_words(
    full, make_pod
):
    submit(full, make_pod(cpu=2000, priority=10), count=2)
    (question,) = full.scheduler.take_questions()
    assert question.uid == numbered_uids(b"urgent pods.", 0, 1)[0].tobytes()
    held = replace(occupants(question, make_pod(), nodes=()), held="waits for moves")
    full.scheduler.preempt(held, 0.0)
    (answered,) = full.scheduler.take_outcomes()
    assert answered.codes.tolist() == [Outcome.UNSCHEDULABLE] * 2
    assert answered.reason_texts[0].endswith("2 Insufficient cpu. preemption: waits for moves")
    assert full.scheduler.take_proposals(0.0) == []
    assert full.scheduler.idle


def test_what_waits_for_an_answer_is_returned_when_the_worker_drains(full, make_pod):
    submit(full, make_pod(cpu=2000, priority=10), count=3)
    (question,) = full.scheduler.take_questions()
    full.scheduler.drain()
    full.scheduler.preempt(occupants(question, make_pod(cpu=2000)), 0.0)
    (answered,) = full.scheduler.take_outcomes()
    assert answered.codes.tolist() == [Outcome.RETURNED] * 3
    assert full.scheduler.idle


def test_whole_cards_are_taken_over_from_those_that_hold_them(make_ledger, harness_of, make_pod):
    ledger = make_ledger(1, cards=2, allocatable={"cpu": 4000, "memory": 2**33, "pods": 110})
    ledger.cards[0][:2] = 1000
    harness = harness_of(ledger)
    request = np.array([100, 2**28, 0, 1, 0, 0])
    card = DeviceRequest(1, 1000)
    holders = PodRun(group_of(make_pod(devices=card)), np.array([0, 0]))
    harness.cache.apply_feed(replace(ledger.reserve([0, 0], [request] * 2), pods=(holders,)))
    submit(harness, make_pod(priority=10, devices=card))
    (question,) = harness.scheduler.take_questions()
    harness.scheduler.preempt(occupants(question, make_pod(devices=card), nodes=(0, 0)), 0.0)
    (columns,) = harness.scheduler.take_proposals(0.0)
    assert columns.victims == {0: (uid(1),)}
    assert harness.cache.cards.used[0, :2].tolist() == [1000, 1000]
