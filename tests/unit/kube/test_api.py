"""Requests to an API server: what is repeated and what is not, and what becomes of answers that are none."""

import asyncio
import time

import pytest
from aiohttp import web
from unit.kube.server import answering, saying
from waiting import DEADLINE_SECONDS

from hoss.errors import ConfigError, TransportError
from hoss.kube.access import Access, CachedToken, load_access
from hoss.kube.api import KubeApi, Refused


async def test_what_is_busy_or_broken_is_asked_again_until_it_answers():
    async with answering(saying(503), saying(429), saying(200, {"kind": "Node"})) as api:
        assert await api.get("/api/v1/nodes/n1") == {"kind": "Node"}


async def test_the_server_s_wish_to_be_left_alone_is_heeded():
    async with answering(saying(429, Retry_After="1"), saying(200, {"kind": "Node"})) as api:
        begun = time.monotonic()
        await api.get("/api/v1/nodes/n1")
        assert time.monotonic() - begun >= 1


async def test_a_request_that_hangs_is_given_up_and_asked_again():
    async def hang(_request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(60)
        return web.Response()

    async with answering(hang, saying(200, {"kind": "Node"})) as api:
        assert await api.get("/api/v1/nodes/n1", timeout_seconds=0.1) == {"kind": "Node"}


async def test_a_refusal_stays_and_says_why():
    status = {"kind": "Status", "reason": "Forbidden", "message": "nodes is forbidden"}
    async with answering(saying(403, status), saying(200, {})) as api:
        with pytest.raises(Refused, match="403 Forbidden: nodes is forbidden") as refused:
            await api.get("/api/v1/nodes")
        assert refused.value.reply.status == 403


async def test_send_tries_once():
    async with answering(saying(503), saying(201)) as api:
        assert (await api.send("POST", "/api/v1/namespaces/a/pods/b/binding", {})).status == 503


async def test_patience_ends():
    async with answering(saying(500, {"message": "etcd is away"})) as api:
        with pytest.raises(TransportError, match="500: etcd is away"):
            await api.get("/api/v1/nodes", patience_seconds=0.2)


async def test_who_is_not_there_is_named():
    api = KubeApi(Access("http://127.0.0.1:9", None))
    with pytest.raises(TransportError, match=r"127\.0\.0\.1:9 cannot be reached \(GET /x\)"):
        await api.send("GET", "/x")
    await api.close()


async def test_the_token_is_asked_for_at_every_request():
    seen = []

    async def note(request: web.Request) -> web.StreamResponse:
        seen.append(request.headers["Authorization"])
        return web.json_response({})

    async with answering(note, token="Bearer made-up") as api:
        await api.get("/x")
    assert seen == ["Bearer made-up"]


async def test_lines_longer_than_a_chunk_come_whole_and_what_was_cut_off_does_not():
    async def write(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for part in (b'{"a":', b'"' + b"x" * 300_000 + b'"}\n{"b":1}\n', b'{"cut":'):
            await response.write(part)
        return response

    async with answering(write) as api, api.stream("/watch", {}, silence_seconds=DEADLINE_SECONDS) as lines:
        found = [line async for line in lines]
    assert [len(line) for line in found] == [300_008, 7]


async def test_a_stream_that_falls_silent_is_taken_for_broken():
    async def silent(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await asyncio.sleep(60)
        return response

    async with answering(silent) as api:
        with pytest.raises(TransportError, match="no answer in time"):
            async with api.stream("/watch", {}, silence_seconds=0.1) as lines:
                [line async for line in lines]


def test_a_kubeconfig_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere\.yaml: there is no such file"):
        load_access(tmp_path / "nowhere.yaml")


def test_a_broken_kubeconfig_is_named(tmp_path):
    path = tmp_path / "config"
    path.write_text("clusters: 3")
    with pytest.raises(ConfigError, match="config: cannot be used"):
        load_access(path)


def test_outside_of_a_cluster_the_flag_is_named():
    with pytest.raises(ConfigError, match=r"in-cluster configuration: cannot be used.*give --kubeconfig"):
        load_access()


async def test_server_and_token_come_from_the_kubeconfig(tmp_path):
    path = tmp_path / "config"
    path.write_text(
        """
apiVersion: v1
kind: Config
current-context: here
clusters: [{name: c, cluster: {server: "https://10.0.0.1:6443/", insecure-skip-tls-verify: true}}]
users: [{name: u, user: {token: made-up}}]
contexts: [{name: here, context: {cluster: c, user: u}}]
"""
    )
    access = load_access(path)
    assert (access.server, await access.authorization()) == ("https://10.0.0.1:6443", "Bearer made-up")


async def test_a_token_is_asked_for_again_once_it_is_a_second_old():
    now, tokens = 100.0, iter(["first", "second"])
    token = CachedToken(lambda: next(tokens), lambda: now)
    assert [await token(), await token()] == ["first", "first"]
    now += 1.0
    assert await token() == "second"
