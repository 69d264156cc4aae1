"""All sources of pods, held to one contract: the API server asked and watched, and the dictionary that stands
in for it elsewhere."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio
from e2e.kubernetes.api import Api
from pods_in_memory import PodsInMemory
from waiting import DEADLINE_SECONDS, until

from hoss.errors import TransportError
from hoss.kube.access import load_access
from hoss.kube.api import KubeApi
from hoss.kube.reflector import Reflector
from hoss.tasks import background
from hoss.wire.uids import uid_from_text
from hossctl.local.control_plane import ControlPlane
from resolver.kubernetes.pod_source import KubePods, PodSource, WatchedPods, pods_of_other_schedulers


class Source:
    """A source, and how pods get into it."""

    def __init__(self, pods: PodSource, add: Callable[..., Any], remove: Callable[[str], None]) -> None:
        self.pods, self.add, self.remove = pods, add, remove


@pytest_asyncio.fixture(params=["API server", "watch", "memory"])
async def source(request: pytest.FixtureRequest) -> AsyncIterator[Source]:
    if request.param == "memory":
        pods = PodsInMemory()
        container = {"name": "c", "image": "none"}
        yield Source(pods, lambda name, **spec: pods.add(name, containers=[container], **spec), pods.remove)
        return
    api: Api = request.getfixturevalue("api")
    plane: ControlPlane = request.getfixturevalue("control_plane")
    client = KubeApi(load_access(plane.kubeconfig))
    asked = KubePods(client, patience_seconds=DEADLINE_SECONDS)
    if request.param == "watch":
        watched = WatchedPods(asked)
        async with background(
            Reflector(
                client, "/api/v1/pods", watched.on_changes, params=pods_of_other_schedulers(["hoss"])
            ).run()
        ):
            yield Source(watched, api.create_pod, api.delete_pod)
    else:
        yield Source(asked, api.create_pod, api.delete_pod)
    await client.close()


async def test_a_pod_is_found_the_moment_it_is_there(source: Source) -> None:
    for name in ("a", "b", "c"):
        pod = source.add(name)
        found = await source.pods.find("default", name, _uid(pod))
        assert found is not None
        assert found["metadata"]["uid"] == pod["metadata"]["uid"]
        assert found["spec"]["containers"][0]["name"] == "c"
        latest = await source.pods.latest("default", name)
        assert latest is not None
        assert latest["metadata"]["uid"] == pod["metadata"]["uid"]


async def test_what_is_not_there_is_not_found(source: Source) -> None:
    pod = source.add("gone")
    source.remove("gone")
    assert await source.pods.find("default", "gone", _uid(pod)) is None
    assert await source.pods.find("no-such-namespace", "gone", b"") is None
    assert await source.pods.latest("default", "gone") is None


async def test_another_pod_of_the_name_is_given_only_as_the_latest(source: Source) -> None:
    first = source.add("twice")
    source.remove("twice")
    second = source.add("twice")
    for expected in (_uid(first), _uid(second), b""):
        found = await source.pods.find("default", "twice", expected)
        assert found is not None
        assert found["metadata"]["uid"] == second["metadata"]["uid"]


async def test_a_node_has_the_pods_that_stand_on_it(source: Source) -> None:
    pods = [source.add(name, nodeName=node) for name, node in (("a", "n1"), ("b", "n2"), ("c", "n1"))]
    assert sorted(map(_uid, await source.pods.on_node("n1"))) == sorted([_uid(pods[0]), _uid(pods[2])])
    source.remove("a")
    assert list(map(_uid, await source.pods.on_node("n2"))) == [_uid(pods[1])]
    assert await source.pods.on_node("n3") == []


async def test_a_pod_that_was_told_of_is_not_asked_for_and_one_that_is_bound_is_forgotten(
    api: Api, control_plane: ControlPlane
) -> None:
    client, others = KubeApi(load_access(control_plane.kubeconfig)), PodsInMemory()
    api.create_node("n1")
    watched = WatchedPods(others)
    ours, theirs = api.create_pod("ours", scheduler="hoss"), api.create_pod("theirs")
    reflector = Reflector(
        client, "/api/v1/pods", watched.on_changes, params=pods_of_other_schedulers(["hoss"])
    )
    async with background(reflector.run()):
        await asyncio.wait_for(reflector.complete.wait(), DEADLINE_SECONDS)
        found = await watched.find("default", "theirs", _uid(theirs))
        assert found is not None
        assert found["spec"]["containers"][0]["resources"]["requests"]["cpu"] == "100m"
        assert watched.cached("default", "theirs", _uid(theirs)) == found
        assert watched.cached("default", "theirs", _uid(ours)) is None  # another one than is expected
        assert others.found == 0
        assert await watched.find("default", "ours", _uid(ours)) is None
        assert api.bind(theirs, "n1")[0] == 201

        async def forgotten() -> bool:
            return await watched.find("default", "theirs", _uid(theirs)) is None

        await until(forgotten)
    await client.close()


async def test_an_api_server_that_is_away_is_no_answer(own_control_plane: ControlPlane) -> None:
    own_control_plane.kill("kube-apiserver")
    client = KubeApi(load_access(own_control_plane.kubeconfig))
    with pytest.raises(TransportError):
        await KubePods(client, patience_seconds=0.3).find("default", "p", b"")
    await client.close()


def _uid(pod: Any) -> bytes:
    return uid_from_text(pod["metadata"]["uid"])
