"""kube-scheduler's own answers (README.md in this folder), asked of a worker that learnt the cluster from the
feed."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conformance.live_path import live_worker
from conformance.test_scheduling import differences

from hoss.manifests.cluster import read_cluster, read_pending_pod
from hoss.model.cluster import BoundPod
from hoss.wire.columns import numbered_uids
from hoss.wire.convert import pod_spec_from_proto, pod_spec_to_proto
from hossctl.explain.offline import explanation_document
from scheduler_worker.core.offline.scheduler import examine, explain_placement
from scheduler_worker.core.plugins import default_profile

FOLDER = Path(__file__).parent
PARTS = 3
ABOUT_OTHER_THINGS = {"quantities.jsonl", "podrequests.jsonl"}


def cases_of(file, part):
    """Every PARTS-th case of a file, from one of the first on."""
    lines = (FOLDER / file).read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines[part::PARTS]]


# The rules themselves are held to every case in test_scheduling. Here the feed between is what may go wrong.
@pytest.mark.parametrize("part", [0, *(pytest.param(n, marks=pytest.mark.thorough) for n in range(1, PARTS))])
@pytest.mark.parametrize(
    "file", sorted(p.name for p in FOLDER.glob("*.jsonl") if p.name not in ABOUT_OTHER_THINGS)
)
def test_a_live_worker_decides_as_the_reference_does(file, part):
    cases = cases_of(file, part)
    wrong = {case["id"]: found for case in cases if not beyond_a_feed(case) and (found := wrong_in(case))}
    assert not wrong, f"{len(wrong)} of {len(cases)} cases differ"


def test_a_pod_that_cannot_be_scored_goes_where_it_has_no_choice():
    """kube-scheduler scores nothing where one node is feasible."""
    lines = (FOLDER / "rare-cases.jsonl").read_text(encoding="utf-8").splitlines()
    [case] = [c for c in map(json.loads, lines) if c["id"] == "a-preferred-term-without-a-number"]
    cluster = read_cluster({**case, "nodes": case["nodes"][:1]})
    scheduler, _ = live_worker(cluster)
    assert decided(scheduler, read_pending_pod(case["pod"], cluster)) == (cluster.nodes[0].name, "")


def test_a_bound_pod_is_judged_as_if_it_were_not_there():
    judged = 0
    for case in [case for case in cases_of("combined.jsonl", 0) if not beyond_a_feed(case)]:
        cluster = read_cluster(case)
        spec = read_pending_pod(case["pod"], cluster)
        if spec.devices is not None:
            continue
        node = cluster.nodes[-1].name
        placed = BoundPod("p", node, spec, spec.requests, spec.nonzero_cpu_milli, spec.nonzero_memory_bytes)
        _, ground = live_worker(replace(cluster, pods=[*cluster.pods, placed]))
        ground.cache.pod_index.set_namespaces(cluster.namespaces)
        ground.cache.storage.replace(cluster.storage)
        ground.without(spec, node)
        ground.without(spec, "a node that is gone")
        assert not differences(case["want"], judgement_of(spec, ground)), case["id"]
        judged += 1
    assert judged > 10


def beyond_a_feed(case):
    """Spreading leaves out pods that are being deleted. In a platform without kubelets there are none: they
    go at once."""
    spec = read_pending_pod(case["pod"], read_cluster(case))
    spreads = spec.spread or spec.default_spread is not None
    return spreads and any("deletionTimestamp" in pod["metadata"] for pod in case["pods"])


NOVEMBER_2026 = 1_793_500_000.0  # between the two times at which claims are allocated in cases


def wrong_in(case):
    cluster = read_cluster(case, read_at=NOVEMBER_2026)
    spec = pod_spec_from_proto(pod_spec_to_proto(read_pending_pod(case["pod"], cluster)))
    scheduler, ground = live_worker(cluster)
    scheduler.cache.pod_index.set_namespaces(cluster.namespaces)
    scheduler.cache.storage.replace(cluster.storage)
    scheduler.set_devices(cluster.devices, cluster.read_at)
    ground.demands.set_device_resources(frozenset(ground.cache.devices.extended_resources))
    want = {key: value for key, value in case["want"].items() if key != "preemption"}
    found = differences(want, judgement_of(spec, ground))
    chosen, message = decided(scheduler, spec)
    best = max(want["totals"].values(), default=None)
    if message != want.get("message", "") or (chosen is not None and want["totals"].get(chosen) != best):
        found["decided"] = (chosen, message)
    return found


def judgement_of(spec, ground):
    profile = default_profile()
    return json.loads(
        json.dumps(explanation_document(explain_placement(examine(spec, ground, profile), ground, profile)))
    )


def decided(scheduler, spec):
    """The node that a worker chooses for one pod, or why it finds none."""
    scheduler.define_class(1, spec)
    runs = np.array([1], np.uint32), np.array([1], np.uint32), np.zeros(1, np.uint16)
    scheduler.accept(1, numbered_uids(b"pending pod ", 0, 1), *runs)
    while scheduler.step():
        pass
    for columns in scheduler.take_proposals(now=0.0):
        return scheduler.cache.catalogue.name(int(columns.candidates[0, 0])), ""
    [outcome] = scheduler.take_outcomes()
    return None, outcome.reason_texts[0]
