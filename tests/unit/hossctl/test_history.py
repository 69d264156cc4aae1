"""The history that `hoss describe` prints, of invented documents."""

import json

from hoss.v1 import dispatcher_pb2 as pb
from hossctl.views import history
from hossctl.views.history import Line

BEGAN = 1_700_000_000_000
FULL = "0/5 nodes are available: 5 Insufficient cpu."


def step(after_ms, phase, event="", **fields):
    return {
        "atUnixMs": BEGAN + after_ms,
        "phase": phase,
        "event": event,
        "worker": "",
        "node": "",
        "reason": "",
        **fields,
    }


def pod(*steps, **fields):
    return {
        "kind": "Pod", "namespace": "default", "name": "web-0", "job": "web", "rule": "default",
        "phase": "Bound", "node": "n1",
        "worker": "w1", "reason": "", "nominatedNode": "", "submittedUnixMs": BEGAN,
        "phaseSinceUnixMs": BEGAN + 20,
        "steps": list(steps), "stepsSinceUnixMs": BEGAN - 5000, **fields,
    }  # fmt: skip


def decision(after_ms, verdict="COMMITTED", worker="w1", **fields):
    return {
        "atUnixMs": BEGAN + after_ms, "worker": worker, "snapshotSeq": 8, "shard": 0, "choice": "n1",
        "alternates": ["n2", "n3"],
        "verdict": verdict, "node": "n1", **fields,
    }  # fmt: skip


def texts(lines):
    return [line.text for line in lines]


def test_a_pods_transitions_from_submission_to_its_node_are_listed_in_order():
    steps = [step(2, "Scheduling", worker="w1"), step(10, "Bound", node="n1"), step(20, "Bound", "Confirmed")]
    lines = history.pod_lines(pod(*steps, decisions=[decision(9)]), BEGAN + 60_020)
    assert texts(lines) == [
        "accepted, of job web; routed by rule default",
        "given to worker w1 after 2ms in the queue",
        "w1 reserves n1; alternates n2, n3 (its view at 8 of shard 0)",
        "bound on n1",
        "confirmed: its reservation stands until it is released",
        "on n1 for 1m",
    ]
    assert [line.at_ms for line in lines[:-1]] == [BEGAN + after for after in (0, 2, 9, 10, 20)]
    assert lines[-1].at_ms is None


def test_each_attempt_has_its_own_decisions_also_of_a_worker_whose_clock_is_behind():
    steps = [
        step(10, "Scheduling", worker="w1"),
        step(20, "Queued", "ScheduleAttemptFailure"),
        step(30, "Scheduling", worker="w2"),
        step(40, "Bound", node="n2"),
    ]
    decisions = [decision(3, "CONFLICT_RESOURCE"), decision(35, worker="w2", choice="n1", node="n2")]
    lines = texts(history.pod_lines(pod(*steps, decisions=decisions), BEGAN + 50))
    assert lines[2].startswith("w1 wants n1 and is refused: CONFLICT_RESOURCE; alternates")
    assert lines[3] == "queued again"
    assert lines[4] == "given to worker w2 after 10ms in the queue"
    assert lines[5].startswith("w2 reserves n2, as n1 had no room any more; alternates")


def test_a_reason_that_stays_the_same_is_written_once():
    refused = {"phase": "Unschedulable", "event": "ScheduleAttemptFailure", "reason": FULL}
    steps = [step(5, **refused), step(300_000, "Queued", "UnschedulableTimeout"), step(300_010, **refused)]
    lines = texts(history.pod_lines(pod(*steps, phase="Unschedulable"), BEGAN + 300_010))
    assert lines[1] == f"no node fits: {FULL}"
    assert lines[3] == "no node fits: as before"


def test_a_pod_that_waits_ends_with_what_it_waits_for():
    queue = {"name": "unschedulable", "sinceUnixMs": BEGAN, "notBeforeUnixMs": 0,
    "atLatestUnixMs": BEGAN + 300_000, "refusedBy": ["NodeResourcesFit"]}  # fmt: skip
    waiting = pod(phase="Unschedulable", queue=queue, phaseSinceUnixMs=BEGAN)
    text = history.pod_lines(waiting, BEGAN + 60_000)[-1].text
    assert text == (
        "waits in queue unschedulable, for 1m: tried again after a change that may help (NodeResourcesFit), "
        "in 4m at the latest"
    )
    behind = pod(
        phase="Queued", queue={**queue, "name": "active"}, waitsBehind="tenant blue", phaseSinceUnixMs=BEGAN
    )
    assert (
        history.pod_lines(behind, BEGAN + 60_000)[-1].text
        == "waits in queue active, for 1m behind tenant blue"
    )


def test_a_claim_is_no_binding_before_the_victims_have_left():
    claimed = step(10, "Bound", node="n1")
    waits = pod(claimed, phase="Scheduling", nominatedNode="n1")
    assert texts(history.pod_lines(waits, BEGAN + 20))[1].startswith("has a claim on n1")
    there = pod(claimed, step(30, "Bound", "VictimsLeft"))
    assert texts(history.pod_lines(there, BEGAN + 40))[1:3] == [
        "has a claim on n1; pods that have to go for it are leaving",
        "those that had to go for it have left",
    ]


def test_forgotten_transitions_are_mentioned_and_faults_of_that_time_are_listed():
    fault = {
        "atUnixMs": BEGAN + 100,
        "worker": "w1",
        "text": "worker w1 was lost while it had this pod in hand",
        "final": False,
    }
    old = pod(step(900_000, "Scheduling", worker="w2"), stepsSinceUnixMs=BEGAN + 600_000, faults=[fault])
    assert texts(history.pod_lines(old, BEGAN + 900_001))[1:4] == [
        "worker w1 was lost while it had this pod in hand",
        "(what happened before is not known any more)",
        "given to worker w2",
    ]


def test_a_transition_of_a_newer_dispatcher_is_listed_by_its_phase_and_event():
    text = history.of_one(step(0, "Queued", "Unheard", reason="why"))
    assert text == "queued: Unheard: why"
    assert history.of_many({"phase": "Queued", "event": "Unheard"}) == "queued Unheard"


def test_a_job_lists_how_many_pods_made_each_transition_and_what_the_others_wait_for():
    job = {
        "submittedUnixMs": BEGAN, "stepsSinceUnixMs": 0, "replicas": 1200, "bound": 1000, "deleted": 0,
        "minAvailable": 0,
        "steps": [
            {"phase": "Scheduling", "event": "", "pods": 1300, "firstUnixMs": BEGAN + 3,
            "lastUnixMs": BEGAN + 2003},
            {"phase": "Bound", "event": "", "pods": 1000, "firstUnixMs": BEGAN + 10,
            "lastUnixMs": BEGAN + 10},
        ],
        "waiting": history.grouped(
            [("Unschedulable", "Insufficient cpu", BEGAN + 900)] * 50 + [("Unschedulable",
            "Insufficient cpu", BEGAN + 500)]
            + [("Queued", "", BEGAN + 1000)] * 149
        ),
    }  # fmt: skip
    assert texts(history.job_lines(job, BEGAN + 10_500)) == [
        "accepted: 1,200 pods",
        "1,300 pods given to workers, the last 2s after the first",
        "1,000 pods bound",
        "1,000 of 1,200 bound",
        "149 queued, for up to 9s",
        "51 unschedulable, for up to 10s: Insufficient cpu",
    ]


def test_a_workers_registrations_are_listed_with_their_epochs():
    def happened(state, text="", epoch=4):
        return {"atUnixMs": BEGAN, "state": state, "epoch": epoch, "text": text}

    steps = [
        happened("Joining", epoch=0),
        happened("Ready"),
        happened("Cordoned"),
        happened("Ready"),
        happened("Lost", "no heartbeat for 2 s, with 10 pods in hand"),
        happened("Lost", "fenced: of the pods it had in hand 3 have a place, 7 have none"),
        happened("Joining"),
        happened("Cordoned", epoch=5),
    ]
    worker = {"steps": steps, "state": "Cordoned", "outstanding": 1200, "window": 2000,
    "estimatedWorkMs": 2500.0, "lastSeenMsAgo": 9}  # fmt: skip
    assert texts(history.worker_lines(worker)) == [
        "registers",
        "is given epoch 4",
        "cordoned: gets no new work",
        "takes work again",
        "lost: no heartbeat for 2 s, with 10 pods in hand",
        "fenced: of the pods it had in hand 3 have a place, 7 have none",
        "registers",
        "is given epoch 5; cordoned: gets no new work",
        "cordoned: 1,200 of 2,000 pods in hand, work for 2s",
    ]


def test_lines_fit_eighty_columns_stand_below_one_another_and_name_each_day_once():
    day = 86_400_000
    lines = [
        Line(BEGAN, "accepted"),
        Line(BEGAN + 12, "word " * 40),
        Line(BEGAN + 3 * day, "later"),
        Line(None, "so"),
    ]
    written = list(history.written(lines, BEGAN + 3 * day + 1000))
    assert max(map(len, written)) <= history.WIDTH
    assert sum(len(line) == len("2023-11-14") for line in written) == 2
    accepted = next(line for line in written if line.endswith("accepted"))
    column = accepted.index("accepted")
    assert all(line[column - 2 : column] == "  " for line in written if len(line) > len("2023-11-14"))
    assert written[-1].split() == ["now", "+3d", "so"]


def test_of_a_long_history_the_beginning_and_the_end_are_written():
    lines = [Line(BEGAN + i, f"step {i}") for i in range(500)]
    written = list(history.written(lines, BEGAN + 500))
    assert len(written) <= 62
    assert written[1].endswith("step 0")
    assert written[-1].endswith("step 499")
    assert any("... and 440 more, which -o json tells" in line for line in written)


def test_describe_pod_prints_the_history_below_the_fields_and_its_document_has_the_transitions(hoss, a_pod):
    found = a_pod(
        "web-0", node="n1", submitted_unix_ms=BEGAN, phase_since_unix_ms=BEGAN + 9, steps_since_unix_ms=1
    )
    found.steps.add(at_unix_ms=BEGAN + 2, phase=pb.SCHEDULING, worker="w1")
    found.steps.add(at_unix_ms=BEGAN + 9, phase=pb.BOUND, node="n1")
    hoss.dispatcher.pods = [found]
    out = hoss("describe", "pod", "web-0").stdout
    assert (
        out.index("phase")
        < out.index("accepted")
        < out.index("given to worker w1")
        < out.index("bound on n1")
    )
    document = json.loads(hoss("describe", "pod", "web-0", "-o", "json").stdout)
    assert [s["phase"] for s in document["steps"]] == ["Scheduling", "Bound"]
    assert document["phase"] == "Bound"


def test_describe_job_and_worker_tell_theirs(hoss, a_pod):
    job = pb.JobInfo(namespace="default", name="web", replicas=2, bound=1, submitted_unix_ms=BEGAN)
    job.steps.add(phase=pb.BOUND, pods=1, first_unix_ms=BEGAN + 5, last_unix_ms=BEGAN + 5)
    hoss.dispatcher.jobs = [job]
    hoss.dispatcher.pods = [
        a_pod("web-0", job="web"),
        a_pod("web-1", pb.UNSCHEDULABLE, job="web", reason=FULL),
    ]
    out = hoss("describe", "job", "web").stdout
    assert "1 pod bound" in out
    assert "1 unschedulable, for up to" in out
    worker = pb.WorkerInfo(name="w1", state="Ready", epoch=3)
    worker.steps.add(at_unix_ms=BEGAN, state="Joining")
    worker.steps.add(at_unix_ms=BEGAN, state="Ready", epoch=3)
    hoss.dispatcher.workers = [worker]
    assert "is given epoch 3" in hoss("describe", "worker", "w1").stdout
    assert json.loads(hoss("describe", "worker", "w1", "-o", "json").stdout)["steps"][1]["epoch"] == 3
