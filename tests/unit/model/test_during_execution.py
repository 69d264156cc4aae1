"""The annotation for node affinity that is required during execution too."""

import pytest

from hoss.errors import InvalidInput
from hoss.manifests.workloads import read_workload
from hoss.model.pod import DuringExecution

CONTAINERS = [{"name": "c", "image": "i"}]
ANNOTATION = "hoss.dev/required-during-execution"


def job(word):
    pod = {"metadata": {"annotations": {ANNOTATION: word}}, "spec": {"containers": CONTAINERS}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"}, "spec": {"template": pod}}


def read(manifest):
    return read_workload(manifest, lambda: "x").workload.template.during_execution


@pytest.mark.parametrize("asked", ["report", "evict"])
def test_a_pod_template_asks_by_annotation(asked):
    assert read(job(asked)) is DuringExecution(asked)


def test_without_the_annotation_it_is_as_in_kubernetes():
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": CONTAINERS}}
    assert read(pod) is DuringExecution.IGNORE


@pytest.mark.parametrize(
    ("word", "problem"),
    [("Evict", "is 'Evict'; allowed: report, evict"), (True, "is true, where a string belongs")],
)
def test_another_word_is_refused_with_its_place(word, problem):
    with pytest.raises(InvalidInput, match=problem) as refused:
        read(job(word))
    assert str(refused.value).startswith("spec.template.metadata.annotations")
