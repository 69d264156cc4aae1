"""Bindings, whatever the API server answers: made once, and never guessed about."""

import asyncio

import orjson
import pytest
from aiohttp import web
from unit.kube.server import answering, saying
from waiting import DEADLINE_SECONDS

from resolver.core.kubernetes.binding_review import BindResult
from resolver.kubernetes.binder import Binder, BindingRequest

UID = "11111111-2222-3333-4444-555555555555"
WISH = BindingRequest("default/p", UID, "n1")
CONFLICT = saying(409, {"reason": "Conflict", "message": "pod p is already assigned to a node"})


def pod(node="", *, uid=UID, deleted=False):
    metadata = {"uid": uid} | ({"deletionTimestamp": "2026-01-01T00:00:00Z"} if deleted else {})
    return saying(200, {"metadata": metadata, "spec": {"nodeName": node} if node else {}})


async def bind(*handlers, patience_seconds=DEADLINE_SECONDS):
    async with answering(*handlers) as api:
        (bound,) = await Binder(api, patience_seconds=patience_seconds).bind([WISH])
        return bound


async def test_a_binding_names_the_pod_by_its_uid():
    asked = []

    async def note(request: web.Request) -> web.StreamResponse:
        asked.append((request.method, request.path, orjson.loads(await request.read())))
        return web.json_response({"kind": "Status", "status": "Success"}, status=201)

    assert (await bind(note)).result is BindResult.DONE
    ((method, path, body),) = asked
    assert (method, path) == ("POST", "/api/v1/namespaces/default/pods/p/binding")
    assert (body["metadata"]["uid"], body["target"]["name"]) == (UID, "n1")


@pytest.mark.parametrize(
    ("found", "result"),
    [
        (pod("n1"), BindResult.DONE),
        (pod("n2"), BindResult.ELSEWHERE),
        (pod("n1", uid="another"), BindResult.ELSEWHERE),
        (pod(deleted=True), BindResult.ELSEWHERE),
        (saying(404), BindResult.ELSEWHERE),
    ],
    ids=["ours", "another node", "another pod", "leaving", "gone"],
)
async def test_a_conflict_is_looked_into(found, result):
    assert (await bind(CONFLICT, found)).result is result


async def test_a_conflict_that_the_pod_does_not_explain_is_believed_after_some_times():
    bound = await bind(CONFLICT, pod(), CONFLICT, pod(), CONFLICT, pod())
    assert bound.result is BindResult.REFUSED
    assert "already assigned" in bound.text


async def test_a_pod_that_is_gone_needs_no_binding():
    assert (await bind(saying(404))).result is BindResult.ELSEWHERE


async def test_a_refusal_is_told_in_the_api_server_s_words():
    refusal = saying(
        403, {"reason": "Forbidden", "message": 'admission webhook "guard" denied the request: full'}
    )
    bound = await bind(refusal)
    assert bound.result is BindResult.REFUSED
    assert bound.text.endswith("denied the request: full")


async def test_an_answer_that_was_lost_is_found_in_the_pod():
    async def cut(request: web.Request) -> web.StreamResponse:
        request.transport.close()
        return web.Response()

    assert (await bind(cut, CONFLICT, pod("n1"))).result is BindResult.DONE


async def test_what_was_not_done_is_asked_for_again():
    assert (await bind(saying(500), pod(), saying(429), saying(201))).result is BindResult.DONE


async def test_after_an_answer_in_doubt_a_refusal_is_no_answer():
    bound = await bind(saying(504), pod(), saying(403, {"message": "no"}), patience_seconds=0.5)
    assert bound.result is BindResult.UNKNOWN


async def test_a_server_that_hangs_leaves_it_unknown():
    async def hang(_request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(60)
        return web.Response()

    async with answering(hang) as api:
        binder = Binder(api, patience_seconds=0.2, request_seconds=0.1)
        (bound,) = await binder.bind([WISH])
    assert bound.result is BindResult.UNKNOWN


async def test_an_answer_that_nobody_expects_keeps_no_other_pod_waiting():
    async def answer(request: web.Request) -> web.StreamResponse:
        # Of "p" a claim without metadata; of "q" what is due.
        return web.json_response({} if "claims" in request.path else {"kind": "Status"})

    async with answering(answer, answer) as api:
        wishes = [WISH._replace(claims=("c",)), WISH._replace(pod="default/q")]
        strange, fine = await Binder(api, patience_seconds=DEADLINE_SECONDS).bind(wishes)
    assert fine.result is BindResult.DONE
    assert strange.result is BindResult.UNKNOWN
    assert strange.text.startswith("binding default/p failed: KeyError")
