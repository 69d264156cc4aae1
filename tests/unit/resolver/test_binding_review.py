"""What the API server asks and what it is told, as documents."""

from typing import Any

import pytest

from hoss.errors import InvalidInput
from hoss.model.pod import PodSpec
from hoss.model.resources import BASE_RESOURCES
from resolver.core.kubernetes.binding_review import (
    ReviewAnswer,
    amount_text,
    amounts_row,
    answer_document,
    obstacle,
    read_review,
)

_UID = "00000000-0000-0000-0000-000000000001"


def _document(**request: Any) -> dict[str, Any]:
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "p", "namespace": "team", "uid": _UID},
        "target": {"kind": "Node", "name": "n1"},
    }
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {"uid": "question-1", "namespace": "team", "name": "p", "object": binding, **request},
    }


def test_a_review_names_pod_node_and_whether_it_is_a_dry_run() -> None:
    review = read_review(_document(dryRun=True))
    assert (review.request, review.namespace, review.pod, review.node) == ("question-1", "team", "p", "n1")
    assert review.pod_uid == bytes(15) + b"\1"
    assert review.dry_run


def test_a_binding_without_a_uid_is_one_for_whatever_goes_by_the_name() -> None:
    document = _document()
    del document["request"]["object"]["metadata"]["uid"]
    assert read_review(document).pod_uid == b""


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (
            {"object": {"kind": "Pod"}},
            "request.object: is a 'Pod'; the webhook's rules may name pods/binding",
        ),
        (
            {"object": {"kind": "Binding", "metadata": {"name": "p"}}},
            "request.object.target.name: is missing",
        ),
        ({"object": {"kind": "Binding", "metadata": {"name": "p", "uid": "x"}}}, "'x' is no UID"),
        ({"object": None}, "request.object: is a None"),
        ({"uid": ""}, "request.uid: is missing"),
        ({"dryRun": "yes"}, "request.dryRun"),
    ],
)
def test_what_is_no_question_about_a_binding_is_refused_with_its_place(
    broken: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        read_review(_document(**broken))
    assert said in str(refused.value)


def test_another_version_of_the_question_is_refused() -> None:
    with pytest.raises(
        InvalidInput, match=r"'admission.k8s.io/v1beta1' 'AdmissionReview'; this is a webhook for"
    ):
        read_review({"apiVersion": "admission.k8s.io/v1beta1", "kind": "AdmissionReview"})


def test_an_answer_repeats_the_question_s_name_and_gives_the_reason_of_a_no() -> None:
    review = read_review(_document())
    yes = answer_document(review, ReviewAnswer("reserved", allowed=True))["response"]
    assert yes == {"uid": "question-1", "allowed": True, "auditAnnotations": {"verdict": "reserved"}}
    no = answer_document(review, ReviewAnswer("conflict_port", message="taken"))["response"]
    assert no["status"] == {"code": 403, "reason": "Forbidden", "message": "taken"}


@pytest.mark.parametrize(
    ("metadata", "spec", "said"),
    [
        ({"uid": _UID.replace("1", "2")}, {}, "is another pod now"),
        ({"deletionTimestamp": "2026-01-01T00:00:00Z"}, {}, "is being deleted"),
        ({}, {"nodeName": "n2"}, "is bound to node n2 already"),
    ],
)
def test_a_binding_that_cannot_succeed_is_told_why(
    metadata: dict[str, Any], spec: dict[str, Any], said: str
) -> None:
    answer = obstacle(read_review(_document()), {"metadata": {"uid": _UID, **metadata}, "spec": spec})
    assert answer is not None
    assert (answer.allowed, answer.code) == (False, 409)
    assert answer.message.startswith("pod team/p ")
    assert said in answer.message


def test_a_pod_counts_as_one_and_a_resource_that_nobody_offers_is_named() -> None:
    schema = list(BASE_RESOURCES)
    assert amounts_row(PodSpec(requests=(("cpu", 5),)), schema) == ([5, 0, 0, 1, 0, 0], "")
    assert amounts_row(PodSpec(requests=(("example.com/fpga", 2),)), schema) == (
        [0, 0, 0, 1, 0, 0],
        "example.com/fpga",
    )


@pytest.mark.parametrize(
    ("resource", "amount", "text"),
    [
        ("cpu", 1500, "1500m"),
        ("cpu", 2000, "2"),
        ("memory", 3 * 2**30, "3Gi"),
        ("memory", 1000, "1k"),
        ("hugepages-2Mi", 2**21, "2Mi"),
        ("pods", 1, "1"),
    ],
)
def test_amounts_are_written_as_in_manifests(resource: str, amount: int, text: str) -> None:
    assert amount_text(resource, amount) == text
