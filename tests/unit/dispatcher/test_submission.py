"""How the client groups workloads into messages, and the selectors it may list by."""

import pytest

from hoss.client.dispatcher import WORKLOADS_PER_MESSAGE, submission
from hoss.errors import InvalidInput
from hoss.manifests.fields import parse_label_selector
from hoss.model.pod import PodSpec, PodTemplate, Workload
from hoss.wire.columns import U32, decode

BARE = PodTemplate(PodSpec())
OWNED = PodTemplate(PodSpec(), owner_kind="Deployment")
UID = "00112233-4455-6677-8899-aabbccddeeff"


def test_owned_and_replicated_workloads_are_jobs_and_the_others_listed_pods():
    (message,) = submission([Workload("a", OWNED), Workload("b", BARE, replicas=3), Workload("c", BARE)])
    assert [(job.name, job.replicas) for job in message.jobs] == [("a", 1), ("b", 3)]
    assert list(message.pods.names) == ["c"]


def test_equal_templates_travel_once():
    (message,) = submission([Workload(f"p{i}", BARE) for i in range(10)] + [Workload("j", OWNED, 5)])
    assert len(message.templates) == 2
    assert decode(message.pods.templates, U32, name="templates").tolist() == [0] * 10


def test_many_workloads_become_many_messages_each_with_an_id_of_its_own():
    messages = list(submission([Workload(f"p{i}", BARE) for i in range(WORKLOADS_PER_MESSAGE + 1)], "mine"))
    assert [(m.request_id, len(m.pods.names)) for m in messages] == [
        ("mine/0", WORKLOADS_PER_MESSAGE),
        ("mine/1", 1),
    ]


def test_pods_with_uids_are_listed_apart_from_those_without():
    first, second = submission([Workload("a", BARE), Workload("b", BARE, uid=UID)])
    assert (list(first.pods.names), first.pods.uids) == (["a"], b"")
    assert (list(second.pods.names), second.pods.uids.hex()) == (["b"], UID.replace("-", ""))


def test_a_workload_of_no_replicas_asks_for_nothing():
    assert list(submission([Workload("a", OWNED, replicas=0)])) == []


@pytest.mark.parametrize(
    ("text", "labels", "matches"),
    [
        ("", {}, True),
        ("app=web", {"app": "web"}, True),
        ("app == web, tier != db", {"app": "web"}, True),
        ("app=web,tier!=db", {"app": "web", "tier": "db"}, False),
        ("tier in (a, b),!canary", {"tier": "b"}, True),
        ("tier notin (a,b)", {"tier": "b"}, False),
        ("example.com/app", {"example.com/app": ""}, True),
        ("!app", {"app": "web"}, False),
        ("cores>8", {"cores": "16"}, True),
    ],
)
def test_label_selectors_select_as_kubectls_do(text, labels, matches):
    assert (
        all(requirement.matches(labels) for requirement in parse_label_selector(text, where="l")) is matches
    )


@pytest.mark.parametrize("text", ["a in b", "a=b=c", "a in (b", "-x", "a b"])
def test_a_bad_label_selector_is_refused_with_its_place(text):
    with pytest.raises(InvalidInput, match="label_selector"):
        parse_label_selector(text, where="label_selector")
