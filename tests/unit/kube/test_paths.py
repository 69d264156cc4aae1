"""Names in paths of an API server: none leads elsewhere than to an object of its collection."""

import re
from pathlib import Path

import pytest
from aiohttp import web
from unit.kube.server import answering

from dispatcher.core.kubernetes.successors import PodController
from hoss.kube.api import Refused
from hoss.kube.paths import nobodys_name, object_path, pod_path

_ROOT = Path(__file__).parents[3]

NOBODYS = ["a/status", "../../secrets/s", "..", ".", "", "100%", "%2e%2e", "a%2Fb", "/"]
STRANGE = ["a?dryRun=All", "a#b", "a b", "a\tb", "bücher", "system:node:n1", "a;b", "a&b=c", "...", ".a"]
PLAIN = ["web-0", "www.example.com", "n1"]


@pytest.mark.parametrize("name", PLAIN)
def test_a_usual_name_is_as_it_is_in_the_path(name) -> None:
    assert pod_path("default", name, "binding") == f"/api/v1/namespaces/default/pods/{name}/binding"
    assert nobodys_name(pod_path("default", name)) is None


@pytest.mark.parametrize("name", NOBODYS)
@pytest.mark.parametrize("method", ["GET", "POST", "PATCH", "DELETE"])
async def test_a_name_that_no_object_can_have_is_not_asked_for_and_answered_as_not_found(
    name, method
) -> None:
    asked = []

    async def note(request: web.Request) -> web.StreamResponse:
        asked.append(request.raw_path)
        return web.json_response({})

    async with answering(note) as api:
        for path in (pod_path("default", name), pod_path(name, "web-0"), pod_path("default", name, "status")):
            reply = await api.send(method, path, None)
            assert (reply.status, reply.reason) == (404, "NotFound")
            assert f"no object can have the name {name[:100]!r}" in reply.message
        assert await api.find(pod_path("default", name)) is None
        with pytest.raises(Refused, match="no object can have the name"):
            async with api.stream(pod_path("default", name), {}, silence_seconds=1):
                pass
    assert asked == []


@pytest.mark.parametrize("name", STRANGE)
async def test_any_other_name_reaches_the_server_as_one_part_of_the_path(name) -> None:
    seen = []

    async def note(request: web.Request) -> web.StreamResponse:
        seen.append((request.path, request.query_string))
        return web.json_response({})

    async with answering(note) as api:
        await api.send("GET", pod_path("default", name, "status"))
        async with api.stream(pod_path("default", name, "status"), {"watch": "1"}, silence_seconds=9):
            pass
    path = f"/api/v1/namespaces/default/pods/{name}/status"
    assert seen == [(path, ""), (path, "watch=1")]


@pytest.mark.parametrize("wrong", NOBODYS)
def test_an_owner_of_a_pod_is_read_where_its_kind_is_and_nowhere_else(wrong) -> None:
    """The API server does not check the name and the version that a pod gives for its owner."""

    def path(version: str, name: str) -> str:
        owner = {"apiVersion": version, "kind": "ReplicaSet", "name": name, "controller": True, "uid": "u"}
        controller = PodController.of({"namespace": "default", "ownerReferences": [owner]})
        assert controller is not None
        return controller.path

    assert path("apps/v1", "web") == "/apis/apps/v1/namespaces/default/replicasets/web"
    assert nobodys_name(path("apps/v1", wrong)) is not None
    # What is before the last slash of a version is its group, which has to be that of the kind.
    if "/" not in wrong:
        assert nobodys_name(path(f"apps/{wrong}", "web")) is not None


# A text that continues a path of the API server with a value: f"/api/v1/pods/{name}", f"{_PODS}/{name}".
_HAND_MADE = re.compile(
    r"""f["'][^"'\n]*(/namespaces/\{|/apis?/[a-z0-9./]*/[a-z]+/\{|\{_?[A-Z_]*(PODS|NODES|GROUP|CONFIGURATIONS)\}/\{)"""
)


def test_no_other_place_puts_names_into_paths() -> None:
    rooms = ("hoss/kube", "dispatcher/kubernetes", "dispatcher/core/kubernetes", "dispatcher/leader",
             "resolver/kubernetes", "hossctl/local")  # fmt: skip
    files = [path for room in rooms for path in (_ROOT / room).rglob("*.py")]
    assert len(files) > 40
    found = {str(path.relative_to(_ROOT)): _HAND_MADE.findall(path.read_text()) for path in files}
    assert {path: places for path, places in found.items() if places} == {}
    assert _HAND_MADE.search('path = f"/api/v1/namespaces/{namespace}/pods/{name}"')
    assert _HAND_MADE.search('path = f"/api/v1/nodes/{name}"')
    assert _HAND_MADE.search('path = f"{_PODS}/{name}"')


def test_a_part_of_an_object_is_not_quoted_away() -> None:
    assert object_path("/apis/batch/v1/namespaces", "a", "jobs", "b") == "/apis/batch/v1/namespaces/a/jobs/b"
