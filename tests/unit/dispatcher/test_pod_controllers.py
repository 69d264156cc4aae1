"""How it is noticed that nobody will make an evicted pod's successor: its controller is gone, or wants no
more pods."""

import asyncio

import pytest

from dispatcher.core.kubernetes.successors import PodController
from dispatcher.kubernetes.pod_moves import until_no_more
from hoss.errors import TransportError
from hoss.kube.api import Refused, Reply
from hoss.wire.uids import uid_from_text


def metadata(kind="ReplicaSet", version="apps/v1", **fields):
    owner = {"apiVersion": version, "kind": kind, "name": "web", "uid": "u", "controller": True}
    return {"namespace": "shop", "name": "web-a", "ownerReferences": [{**owner, **fields}]}


@pytest.mark.parametrize(
    ("of", "path"),
    [
        (metadata(), "/apis/apps/v1/namespaces/shop/replicasets/web"),
        (metadata("Job", "batch/v1"), "/apis/batch/v1/namespaces/shop/jobs/web"),
        (
            metadata("ReplicationController", "v1"),
            "/api/v1/namespaces/shop/replicationcontrollers/web",
        ),
    ],
)
def test_the_api_server_s_own_controllers_are_found(of, path):
    assert PodController.of(of).path == path


@pytest.mark.parametrize(
    "of",
    [
        metadata("RayCluster", "ray.io/v1"),
        metadata("ReplicaSet", "example.com/v1"),
        metadata(controller=False),
        {"namespace": "shop", "name": "bare"},
    ],
)
def test_of_other_owners_nothing_is_asked(of):
    assert PodController.of(of) is None


class Answers:
    """An API server that answers in turn, and then the last answer for ever; and the pods that it lists."""

    def __init__(self, *answers, pods=()):
        self._answers = list(answers)
        self._pods = list(pods)
        self.asked = 0

    async def find(self, path, **_):
        self.asked += 1
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def get(self, path, params, **_):
        assert (path, params) == ("/api/v1/namespaces/shop/pods", {"labelSelector": "app=web,tier=1"})
        return {"items": self._pods}


def there(*, wants=2, has=2, **fields):
    selector = {"matchLabels": {"tier": "1", "app": "web"}}
    return {
        "metadata": {"name": "web"},
        "spec": {"replicas": wants, "selector": selector, **fields},
        "status": {"replicas": has},
    }


def pod(number, *, phase="Running", **fields):
    uid = f"00000000-0000-0000-0000-{number:012d}"
    return {"metadata": {**metadata(), "uid": uid, **fields}, "status": {"phase": phase}}


LEAVING = {"metadata": {"name": "web", "deletionTimestamp": "2026-01-01T00:00:00Z"}}
CONTROLLER = PodController.of(metadata())
WANTS_MORE = there(has=1)


def until(api, known=(1, 2)):
    uids = {uid_from_text(pod(number)["metadata"]["uid"]) for number in known}
    return until_no_more(api, CONTROLLER, uids.__contains__, seconds=0)


async def goes_on(api, known=(1, 2)):
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(until(api, known), 0.05)


@pytest.mark.parametrize("last", [None, LEAVING])
async def test_a_controller_that_is_deleted_or_on_its_way_out_is_noticed_also_after_errors(last):
    api = Answers(WANTS_MORE, TransportError("away"), WANTS_MORE, last)
    assert await asyncio.wait_for(until(api), 10) == "its ReplicaSet web was deleted"
    assert api.asked == 4


async def test_one_that_may_not_be_read_is_asked_for_once_and_counts_as_there():
    api = Answers(Refused(Reply(403, b"{}"), "GET web"))
    await goes_on(api)
    assert api.asked == 1


@pytest.mark.parametrize(
    ("last", "why"),
    [
        (there(suspend=True), "is suspended"),
        ({**WANTS_MORE, "status": {"conditions": [{"type": "Complete", "status": "True"}]}}, "has ended"),
    ],
)
async def test_a_job_that_runs_no_more_pods_is_noticed(last, why):
    assert await asyncio.wait_for(until(Answers(last)), 10) == f"its ReplicaSet web {why}"


async def test_a_controller_that_was_scaled_down_is_noticed():
    """Of its pods one has ended and one is leaving; another one is not its own."""
    others = [
        pod(3, phase="Failed"),
        pod(4, deletionTimestamp="2026-01-01T00:00:00Z"),
        pod(5, ownerReferences=[]),
    ]
    api = Answers(WANTS_MORE, there(), pods=[pod(1), pod(2), *others])
    assert (
        await asyncio.wait_for(until(api), 10)
        == "its ReplicaSet web wants no more than the 2 pods that it has"
    )
    none = Answers(there(wants=0, has=0))
    assert "no more than the 0 pods" in await asyncio.wait_for(until(none), 10)


async def test_a_status_that_is_older_than_the_eviction_is_not_believed():
    await goes_on(Answers(there(), pods=[pod(1), pod(4, deletionTimestamp="2026-01-01T00:00:00Z")]))


async def test_a_pod_that_nobody_has_told_of_yet_may_be_the_successor():
    await goes_on(Answers(there(), pods=[pod(1), pod(2)]), known=(1,))


async def test_of_a_kind_without_a_number_of_pods_nothing_is_concluded():
    await goes_on(Answers({"metadata": {"name": "web"}, "spec": {}}))
