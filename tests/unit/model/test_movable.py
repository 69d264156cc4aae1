"""The annotation that says whether a plan of moves may move a pod."""

import pytest

from hoss.errors import InvalidInput
from hoss.manifests.pod import MOVABLE_ANNOTATION
from hoss.manifests.workloads import read_workload
from hoss.model.pod import Movable, PodSpec, PodTemplate
from hossctl.rebalance.gathering import Fixed, KnownPod, why_fixed


def job(word):
    pod = {
        "metadata": {"annotations": {MOVABLE_ANNOTATION: word}},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    }
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"}, "spec": {"template": pod}}


@pytest.mark.parametrize("word", ["true", "false", ""])
def test_a_pod_template_says_so_by_annotation(word):
    assert read_workload(job(word), lambda: "x").workload.template.movable is Movable(word)


@pytest.mark.parametrize(
    ("word", "problem"), [("yes", "is 'yes'; allowed"), (True, "is true, where a string belongs")]
)
def test_another_word_is_refused_with_its_place(word, problem):
    with pytest.raises(InvalidInput, match=problem) as refused:
        read_workload(job(word), lambda: "x")
    assert str(refused.value).startswith("spec.template.metadata.annotations")


@pytest.mark.parametrize(
    ("owner", "gang", "movable", "expected"),
    [
        ("Deployment", False, "", Fixed.NOT),
        ("Deployment", False, "false", Fixed.SAID_SO),
        ("Deployment", True, "", Fixed.GANG),
        ("Deployment", True, "true", Fixed.NOT),
        ("", False, "", Fixed.BARE),
        ("", False, "true", Fixed.NOT),
        ("DaemonSet", False, "true", Fixed.DAEMON),
    ],
)
def test_pods_without_a_controller_gangs_and_daemons_stay(owner, gang, movable, expected):
    template = PodTemplate(PodSpec(), owner_kind=owner, movable=Movable(movable))
    assert why_fixed(KnownPod(b"", "default/p", "default/j", template, gang)) is expected
