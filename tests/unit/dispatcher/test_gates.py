"""Pods with scheduling gates: in no queue until the last gate is removed."""

import numpy as np

from dispatcher.api.intake import read_order
from dispatcher.core import messages as m
from dispatcher.core.pods.table import Phase
from hoss.model.pod import PodSpec, PodTemplate
from hoss.v1 import dispatcher_pb2 as pb
from hoss.wire.convert import template_to_proto

GATES = ("a.io/quota", "b.io/data")


def reason(bench, row):
    registry = bench.machine.registry
    return registry.reasons.texts[int(registry.pods.reason[row])]


def remove(bench, rows, *gates):
    bench.handle(m.GatesRemoved(rows, frozenset(gates)))


def test_a_gated_pod_waits_outside_the_queues_whatever_happens(bench):
    bench.join("w1")
    rows = bench.job("job", 5, gates=GATES)
    assert bench.all_are(rows, Phase.UNSCHEDULABLE)
    assert reason(bench, rows[0]) == "SchedulingGated: waits for gates a.io/quota, b.io/data"
    bench.handle(m.ClusterChanged())
    bench.pass_time(400.0)
    assert bench.in_hand("w1") == 0
    assert bench.all_are(rows, Phase.UNSCHEDULABLE)


def test_the_last_gate_that_goes_queues_the_pod(bench):
    bench.join("w1")
    rows = bench.job("job", 5, gates=GATES)
    remove(bench, rows, "a.io/quota")
    assert bench.all_are(rows, Phase.UNSCHEDULABLE)
    assert reason(bench, rows[0]) == "SchedulingGated: waits for gates b.io/data"
    remove(bench, rows[:2], "b.io/data")
    bench.pass_time(0.1)
    assert bench.phases(rows) == [Phase.SCHEDULING] * 2 + [Phase.UNSCHEDULABLE] * 3
    assert reason(bench, rows[0]) == ""


def test_a_gate_that_a_pod_does_not_have_changes_nothing(bench):
    rows = bench.job("job", 2, gates=GATES)
    before = bench.machine.registry.pods.template[rows].tolist()
    remove(bench, rows, "c.io/other")
    assert bench.machine.registry.pods.template[rows].tolist() == before
    assert bench.all_are(rows, Phase.UNSCHEDULABLE)


def test_a_pod_without_gates_is_left_alone(bench):
    bench.join("w1")
    free = bench.job("free", 2)
    bench.answer("w1", m.OutcomeCode.UNSCHEDULABLE, reason="full")
    remove(bench, free, *GATES)
    assert bench.all_are(free, Phase.UNSCHEDULABLE)
    assert reason(bench, free[0]) == "full"


def test_gated_and_free_pods_of_one_kind_are_one_class(bench):
    bench.job("gated", 2, gates=GATES)
    bench.job("free", 2)
    templates = bench.machine.registry.templates
    assert len(templates.specs) == 1
    rows = np.arange(2, dtype=np.uint32)
    remove(bench, rows, *GATES)
    assert len(templates.live_ids()) == 1, "the gated template is used by nobody any more"


def test_deleted_gated_pods_are_forgotten(bench):
    rows = bench.job("job", 2, gates=GATES)
    bench.handle(m.Deleted(rows))
    remove(bench, rows, *GATES)
    bench.pass_time(2.0)
    assert bench.machine.registry.pods.size == 0
    assert not bench.machine.registry.templates.specs


def test_intake_takes_gates_out_of_the_class_and_leaves_the_message_as_it_came():
    message = pb.SubmitRequest(
        templates=[template_to_proto(PodTemplate(PodSpec(scheduling_gates=gates))) for gates in (GATES, ())],
        jobs=[pb.Job(name="a", template=0, replicas=1), pb.Job(name="b", template=1, replicas=1)],
    )
    gated, free = read_order(message).templates
    assert gated.spec == free.spec
    assert (gated.kind.gates, free.kind.gates) == (GATES, ())
    assert list(message.templates[0].spec.scheduling_gates) == list(GATES)
