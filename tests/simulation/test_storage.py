"""Volumes and devices of simulated clusters: the judge finds each thing that it is for, and the controllers
do what real ones do. Nothing of HOSS runs here."""

import random

import pytest

from tools.simulation.api_model import CLAIM, DEVICE_CLAIM, POD, SLICE, VOLUME, ApiModel
from tools.simulation.storage import CLAIMS_PATH, DEVICE_CLAIMS_PATH, VOLUMES_PATH, Storage
from tools.simulation.storage_judge import StorageJudge, StoredObjects

PODS = "/api/v1/namespaces/default/pods"


class Story:
    """A cluster of two nodes with local volumes and devices, and a pod with a claim of each kind."""

    def __init__(self, **options):
        self.model = ApiModel(random.Random(1))
        self.judge = StorageJudge([])
        self.model.on_change = self.judge.see
        self.storage = Storage(self.model, random.Random(2), self.do)
        self.storage.create_classes()
        for node in ("n1", "n2"):
            self.do("POST", "/api/v1/nodes", {"metadata": {"name": node}, "spec": {}})
            self.storage.node_came(node)
        self.uids = {name: self.pod(name, options) for name in ("a", "b")}

    def do(self, method, path, body=None):
        reply = self.model.answer(method, path, body, {})
        assert reply.done, reply.message
        return reply.json()

    def pod(self, name, options):
        spec = {"schedulerName": "hoss", "containers": [{"name": "c"}]}
        claims = self.storage.claims_of("job", name, options)
        made = self.do("POST", PODS, {"metadata": {"name": name}, "spec": {**spec, **claims}})
        return made["metadata"]["uid"]

    def bind(self, name, node):
        self.do("POST", f"{PODS}/{name}/binding", {"metadata": {"name": name}, "target": {"name": node}})

    def reserve(self, volume, claim):
        uid = self.model.find(CLAIM, "default", claim)["metadata"]["uid"]
        self.do("PATCH", f"{VOLUMES_PATH}/{volume}", {"spec": {"claimRef": {"name": claim, "uid": uid}}})

    def give(self, claim, *devices, users=()):
        results = [dict(zip(("pool", "device"), device.split("/"), strict=True)) for device in devices]
        users = [{"resource": "pods", "name": name, "uid": self.uids[name]} for name in users]
        allocation = {"devices": {"results": results}} if results else None
        body = {"status": {"allocation": allocation, "reservedFor": users or None}}
        self.do("PATCH", f"{DEVICE_CLAIMS_PATH}/{claim}/status", body)

    def look(self):
        for _ in range(20):
            self.storage.look()

    def at_rest(self):
        objects = StoredObjects(*map(self.model.objects, (CLAIM, VOLUME, DEVICE_CLAIM, SLICE)))
        return self.judge.at_rest(self.model.objects(POD), objects), objects


def test_a_claim_gets_the_volume_that_was_reserved_for_it_and_its_pod_keeps_every_promise():
    story = Story(volume="local")
    story.reserve("local-n1-0", "a-data")
    story.look()
    story.bind("a", "n1")
    claim = story.model.find(CLAIM, "default", "a-data")
    assert claim["spec"]["volumeName"] == "local-n1-0"
    found, objects = story.at_rest()
    assert (found, story.judge.problems) == ([], [])
    pods = {pod["metadata"]["name"]: pod for pod in story.model.objects(POD)}
    assert [objects.takes(pods["a"], node) for node in ("n1", "n2")] == [True, False]
    story.reserve("local-n2-0", "b-data")
    story.reserve("local-n2-1", "b-data")
    assert story.at_rest()[1].takes(pods["b"], "n1")  # its other volume is free


def test_a_claim_that_names_a_node_gets_a_volume_there_sooner_or_later():
    story = Story(volume="disks")
    for _ in range(10):  # a provisioner may give up
        if story.model.find(CLAIM, "default", "a-data")["spec"].get("volumeName"):
            break
        annotations = {"volume.kubernetes.io/selected-node": "n2"}
        story.do("PATCH", f"{CLAIMS_PATH}/a-data", {"metadata": {"annotations": annotations}})
        story.look()
    assert story.at_rest()[1].node_of_claim("a-data") == "n2"
    assert story.judge.problems == []


def test_devices_are_free_again_when_the_last_pod_that_used_them_is_gone():
    story = Story(devices=1, shared=True)
    story.give("job-gpu", "n1/gpu-0", users=("a", "b"))
    story.do("DELETE", f"{PODS}/a")
    story.look()
    assert story.at_rest()[1].node_of_devices("job-gpu") == "n1"
    story.do("DELETE", f"{PODS}/b")
    story.look()
    assert story.at_rest()[1].node_of_devices("job-gpu") == ""
    assert story.judge.problems == []


def second_claim_of_a_volume(story):
    story.reserve("local-n1-0", "a-data")
    story.reserve("local-n1-0", "b-data")


def second_volume_of_a_claim(story):
    for volume in ("local-n1-0", "local-n1-1"):
        story.do("PATCH", f"{CLAIMS_PATH}/a-data", {"spec": {"volumeName": volume}})


def device_twice(story):
    for claim in ("a-gpu", "b-gpu"):
        story.give(claim, "n1/gpu-0", users=(claim[0],))


def other_devices_under_a_pod(story):
    for device in ("n1/gpu-0", "n1/gpu-1"):
        story.give("a-gpu", device, users=("a",))


@pytest.mark.parametrize(
    ("break_it", "options", "problem"),
    [
        (second_claim_of_a_volume, {"volume": "local"}, "volume given twice: local-n1-0"),
        (second_volume_of_a_claim, {"volume": "local"}, "claim a-data had volume local-n1-0"),
        (device_twice, {"devices": 1}, "device given twice: n1/gpu-0"),
        (other_devices_under_a_pod, {"devices": 1}, "claim a-gpu had ['n1/gpu-0'] and has ['n1/gpu-1']"),
    ],
)
def test_what_is_given_twice_is_found_at_once(break_it, options, problem):
    story = Story(**options)
    break_it(story)
    assert [found[: len(problem)] for found in story.judge.problems] == [problem]


def on_the_wrong_node(story):
    story.give("a-gpu", "n2/gpu-0", users=("a",))
    story.bind("a", "n1")


def without_its_pod(story):
    story.give("a-gpu", "n1/gpu-0")
    story.bind("a", "n1")


def for_a_pod_on_no_node(story):
    story.give("a-gpu", "n1/gpu-0", users=("a",))


@pytest.mark.parametrize(
    ("break_it", "problems"),
    [
        (on_the_wrong_node, ["pod a is on n1, and the devices of its claim a-gpu n2"]),
        (
            without_its_pod,
            [
                "claim a-gpu is reserved for [], and ['A'] use it",
                "claim a-gpu has devices, and nobody uses it",
            ],
        ),
        (for_a_pod_on_no_node, ["claim a-gpu is reserved for ['A'], and [] use it"]),
    ],
)
def test_claims_that_disagree_with_the_bindings_are_found_at_rest(break_it, problems):
    story = Story(devices=1)
    break_it(story)
    found, _ = story.at_rest()
    assert [text.replace(story.uids["a"], "A") for text in found] == problems


def test_a_pod_that_waits_keeps_devices_on_the_node_that_its_volume_is_on_and_on_no_other():
    story = Story(volume="local", devices=1)
    story.reserve("local-n1-0", "a-data")
    story.look()
    story.give("a-gpu", "n1/gpu-0", users=("a",))
    assert story.at_rest()[0] == []
    story.give("a-gpu")
    story.give("a-gpu", "n2/gpu-0", users=("a",))
    found, _ = story.at_rest()
    assert [text.replace(story.uids["a"], "A") for text in found] == [
        "claim a-gpu is reserved for ['A'], and [] use it"
    ]
