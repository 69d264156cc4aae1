"""How it is noticed that nobody will make an evicted pod's successor."""

import asyncio

import pytest

from dispatcher.core.kubernetes.successors import PodController
from dispatcher.kubernetes.pod_moves import until_gone
from hoss.errors import TransportError
from hoss.kube.api import Refused, Reply


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
    """An API server that answers in turn, and then the last answer for ever."""

    def __init__(self, *answers):
        self._answers = list(answers)
        self.asked = 0

    async def find(self, path, **_):
        self.asked += 1
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


THERE = {"metadata": {"name": "web"}}
LEAVING = {"metadata": {"name": "web", "deletionTimestamp": "2026-01-01T00:00:00Z"}}
CONTROLLER = PodController.of(metadata())


@pytest.mark.parametrize("last", [None, LEAVING])
async def test_a_controller_that_is_deleted_or_on_its_way_out_is_noticed_also_after_errors(last):
    api = Answers(THERE, TransportError("away"), THERE, last)
    await asyncio.wait_for(until_gone(api, CONTROLLER, seconds=0), 10)
    assert api.asked == 4


async def test_one_that_may_not_be_read_is_asked_for_once_and_counts_as_there():
    api = Answers(Refused(Reply(403, b"{}"), "GET web"))
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(until_gone(api, CONTROLLER, seconds=0), 0.05)
    assert api.asked == 1
