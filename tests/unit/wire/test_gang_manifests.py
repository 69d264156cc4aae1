"""Gangs in manifests, and how they become messages."""

import numpy as np
import pytest

from hoss.client.dispatcher import submission
from hoss.errors import InvalidInput
from hoss.manifests.documents import read_manifest
from hoss.model.pod import GangSpec

POD = "spec: {containers: [{name: c, image: i, resources: {requests: {cpu: 1}}}]}"
VOLCANO = f"""\
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {{name: train, namespace: ml}}
spec:
  minAvailable: 3
  schedulerName: volcano
  tasks:
  - {{name: ps, replicas: 1, template: {{{POD}}}}}
  - {{name: worker, replicas: 4, template: {{{POD}}}}}
"""


def batch_job(annotation: str, replicas: int = 4) -> str:
    return f"""\
apiVersion: batch/v1
kind: Job
metadata: {{name: j, annotations: {{hoss.dev/min-available: {annotation}}}}}
spec: {{parallelism: {replicas}, template: {{{POD}}}}}
"""


def group(version: str, minimum: int) -> str:
    return (
        f"apiVersion: {version}\nkind: PodGroup\nmetadata: {{name: g}}\nspec: {{minMember: {minimum}}}\n---\n"
    )


def member(name: str, metadata: str, pod: str = POD) -> str:
    return f"apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, {metadata}}}\n{pod}\n---\n"


VOLCANO_MEMBER = "annotations: {scheduling.k8s.io/group-name: g}"
COSCHEDULING_MEMBER = "labels: {scheduling.x-k8s.io/pod-group: g}"


def test_a_volcano_jobs_tasks_are_one_gang_and_its_pods_have_volcanos_names():
    manifest = read_manifest(VOLCANO, where="f")
    gang = GangSpec("ml", "train", 3)
    assert [(w.name, w.replicas, w.gang) for w in manifest.workloads] == [
        ("train-ps", 1, gang),
        ("train-worker", 4, gang),
    ]


def test_a_volcano_job_without_a_minimum_needs_all_its_pods():
    manifest = read_manifest(VOLCANO.replace("  minAvailable: 3\n", ""), where="f")
    assert manifest.workloads[0].gang == GangSpec("ml", "train", 5)


def test_a_minimum_over_the_tasks_replicas_is_refused_with_both_numbers():
    with pytest.raises(InvalidInput, match=r"spec.minAvailable: is 6; the tasks have 5 replicas in all"):
        read_manifest(VOLCANO.replace("minAvailable: 3", "minAvailable: 6"), where="f")


def test_the_annotation_makes_a_job_a_gang():
    (workload,) = read_manifest(batch_job('"3"'), where="f").workloads
    assert workload.gang == GangSpec("default", "j", 3)


@pytest.mark.parametrize(
    ("annotation", "message"),
    [('"5"', "is 5; there are 4 replicas"), ('"x"', "a whole number"), ("3", "a string belongs")],
)
def test_an_annotation_that_cannot_be_is_refused(annotation, message):
    with pytest.raises(InvalidInput, match=message):
        read_manifest(batch_job(annotation), where="f")


@pytest.mark.parametrize(
    ("version", "metadata"),
    [
        ("scheduling.volcano.sh/v1beta1", VOLCANO_MEMBER),
        ("scheduling.volcano.sh/v1beta1", "annotations: {scheduling.volcano.sh/group-name: g}"),
        ("scheduling.x-k8s.io/v1alpha1", COSCHEDULING_MEMBER),
    ],
)
def test_pods_that_name_a_pod_group_of_the_same_input_are_its_gang(version, metadata):
    text = member("a", metadata) + group(version, 2) + member("b", metadata) + member("c", "labels: {}")
    manifest = read_manifest(text, where="f")
    assert [w.gang for w in manifest.workloads] == [GangSpec("default", "g", 2)] * 2 + [None]


KUBERNETES_GROUP = """\
apiVersion: scheduling.k8s.io/v1alpha2
kind: PodGroup
metadata: {name: g}
spec: {schedulingPolicy: POLICY}
---
"""
OF_KUBERNETES = POD.replace("{", "{schedulingGroup: {podGroupName: g}, ", 1)


@pytest.mark.parametrize(("policy", "minimum"), [("{gang: {minCount: 2}}", 2), ("{basic: {}}", 1)])
def test_pods_that_name_a_pod_group_of_kubernetes_in_their_spec_are_its_gang(policy, minimum):
    text = KUBERNETES_GROUP.replace("POLICY", policy)
    text += member("a", "labels: {}", OF_KUBERNETES) + member("b", COSCHEDULING_MEMBER, OF_KUBERNETES)
    gang = GangSpec("default", "g", minimum)
    assert [w.gang for w in read_manifest(text, where="f").workloads] == [gang, gang]


def test_a_minimum_of_a_pod_group_of_kubernetes_that_cannot_be_is_refused_with_its_place():
    with pytest.raises(InvalidInput, match=r"spec.schedulingPolicy.gang.minCount: is 0; it must lie between"):
        read_manifest(KUBERNETES_GROUP.replace("POLICY", "{gang: {minCount: 0}}"), where="f")


def test_a_job_whose_pods_name_a_pod_group_is_its_member():
    job = batch_job('""').replace("template: {", f"template: {{metadata: {{{COSCHEDULING_MEMBER}}}, ")
    (workload,) = read_manifest(group("scheduling.x-k8s.io/v1alpha1", 4) + job, where="f").workloads
    assert workload.gang == GangSpec("default", "g", 4)


def test_a_pod_group_of_more_than_its_pods_is_refused():
    with pytest.raises(InvalidInput, match=r"spec.minMember: is 3; 1 pods name the group"):
        read_manifest(group("scheduling.volcano.sh/v1beta1", 3) + member("a", VOLCANO_MEMBER), where="f")


def test_pods_of_a_group_that_is_elsewhere_are_placed_one_by_one_and_the_user_is_told():
    manifest = read_manifest(member("a", VOLCANO_MEMBER), where="f")
    assert manifest.workloads[0].gang is None
    assert manifest.warnings == (
        "a names PodGroup default/g, which is not here: its pods are placed one by one",
    )


def test_a_gang_comes_in_one_message_however_many_workloads_it_has():
    members = "".join(member(f"m{i}", VOLCANO_MEMBER) + member(f"o{i}", "labels: {}") for i in range(600))
    manifest = read_manifest(group("scheduling.volcano.sh/v1beta1", 600) + members, where="f")
    messages = list(submission(manifest.workloads, "r"))
    assert sum(len(message.pods.names) for message in messages) == 1200
    (whole,) = [message for message in messages if message.gangs]
    assert whole.gangs[0].min_available == 600
    assert int((np.frombuffer(whole.pods.gangs, "<u4") == 1).sum()) == 600


def test_a_volcano_job_is_one_message_with_a_gang_of_its_jobs():
    (message,) = submission(read_manifest(VOLCANO, where="f").workloads, "r")
    assert [(job.name, job.gang) for job in message.jobs] == [("train-ps", 1), ("train-worker", 1)]
    assert [(gang.namespace, gang.name, gang.min_available) for gang in message.gangs] == [("ml", "train", 3)]
