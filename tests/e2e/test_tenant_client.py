"""A tenant's client on a platform that is full of another tenant's pods: it can do its work, and learns
nothing of the other."""

import asyncio
import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from e2e.conftest import Hoss
from google.protobuf.message import Message
from waiting import until

from hoss.client.access import ClientAccess
from hoss.client.dispatcher import DispatcherClient, submission
from hoss.host import THIS_HOST
from hoss.model.pod import PodSpec, PodTemplate, Workload
from hoss.security.authority import Authority
from hoss.security.identity import CallerKind, Identity, Role
from hoss.security.rights import refusal
from hoss.v1 import dispatcher_pb2 as pb
from hoss.wire.uids import uid_text
from hossctl.endpoints import Endpoints, clients_of, of_state
from hossctl.kinds import Kind
from hossctl.load.nodes import simulated_nodes
from hossctl.local import platform, platform_state
from hossctl.views.listing import Query
from hossctl.views.watching import follow_pods

# In the names of everything that is red's.
SECRET = "crimson"
RED_PODS = 5
# Of the same length, in the names of what does not exist.
ABSENT, ABSENT_UID = "magenta", b"x" * 16
USED = "ALREADY_EXISTS: request_id: somebody else has used this request_id: choose another one"
MINE = Identity(CallerKind.CLIENT, "blue", Role.SUBMIT, "blue")
SERVICE = pb.DESCRIPTOR.services_by_name["Dispatcher"]
MAY = [method.name for method in SERVICE.methods if not refusal(f"/{SERVICE.full_name}/{method.name}", MINE)]


class Shared:
    """A platform with one full node: blue's pods have been preempted there by red's, which wait, too."""

    def __init__(self, starter: platform.Starter) -> None:
        self.state = starter.state
        self.home = starter.directory
        authority = Authority(self.home / platform.SECURITY_DIRECTORY)
        self.directory = authority.current(MINE, now=THIS_HOST.utc_now()).directory
        self.uids: set[bytes] = set()  # red's
        self.mine: list[pb.PodInfo] = []
        self.node = ""
        self.began = 0  # the revision before the first pod

    def client(self) -> DispatcherClient:
        return DispatcherClient([self.state.dispatcher], open_channel=ClientAccess(self.directory).channel)

    async def fill(self) -> None:
        async with clients_of(of_state(self.state)) as clients:
            await clients.resolver.upsert_nodes(simulated_nodes(1, seed=1))
            operator = clients.dispatcher
            self.began = (await operator.status()).revision
            await operator.submit(job("mine", "blue", 200))

            async def settled() -> bool:
                told = {tenant.name: tenant for tenant in await operator.list_tenants()}
                return not any(tenant.queued + tenant.scheduling for tenant in told.values())

            await until(settled, "blue's pods to be placed")
            red = job(f"{SECRET}-job", "red", RED_PODS, labels=((SECRET, SECRET),), priority=10)
            red.request_id = f"{SECRET}-request"
            await operator.submit(red)

            async def preempted() -> bool:
                self.mine = [info async for info in operator.list_pods("blue")]
                return sum(SECRET in info.eviction for info in self.mine) == RED_PODS and await settled()

            await until(preempted, "red's pods to take their places")
            (self.node,) = {info.node for info in self.mine if info.node}
            self.uids = {info.uid async for info in operator.list_pods("red")}

    def leaks(self, answer: Message | str) -> list[str]:
        """What an answer says of red."""
        found = [word for word in (SECRET, *map(uid_text, self.uids)) if word in str(answer)]
        if isinstance(answer, Message):
            written = answer.SerializeToString()
            found += [uid_text(uid) for uid in self.uids if uid in written]
        return found


def job(name: str, namespace: str, replicas: int, **spec: Any) -> pb.SubmitRequest:
    template = PodTemplate(PodSpec(namespace=namespace, requests=(("cpu", 1000),), **spec), owner_kind="Job")
    (request,) = submission([Workload(name, template, replicas)])
    return request


@pytest.fixture(scope="module")
def shared() -> Iterator[Shared]:
    with platform.temporary(
        platform.PlatformOptions(workers=(platform_state.WorkerOptions("w1"),))
    ) as starter:
        made = Shared(starter)
        asyncio.run(made.fill())
        yield made


def requests(shared: Shared, word: str, uid: bytes) -> dict[str, list[Message]]:
    """For each method that blue may call: everything, and what is another's by name, by UID and by what it
    may have in common with blue's. `word`: in the names of what is asked for."""
    named = {"namespace": "red", "jobs": [f"{word}-job"], "pods": [f"{word}-job-0"], "uids": uid}
    of_pod = {"queue": True, "decisions": True, "steps": True}
    reused = job("reused", "blue", 1)
    reused.request_id = f"{word}-request"
    return {
        "Submit": [reused, job(f"{word}-job", "red", 1)],
        "SubmitStream": [reused, job(f"{word}-job", "red", 1)],
        "GetPod": [
            pb.GetPodRequest(namespace="red", name=f"{word}-job-0", **of_pod),
            pb.GetPodRequest(uid=uid, **of_pod),
            *(pb.GetPodRequest(uid=info.uid, **of_pod) for info in shared.mine),
        ],
        "ListPods": [
            pb.ListPodsRequest(templates=True),
            pb.ListPodsRequest(namespace="red", templates=True),
            pb.ListPodsRequest(job=f"{word}-job"),
            pb.ListPodsRequest(label_selector=f"{word}={word}"),
            pb.ListPodsRequest(node=shared.node),
            pb.ListPodsRequest(page_token="0", limit=1),
        ],
        "ListJobs": [
            pb.ListJobsRequest(steps=True),
            pb.ListJobsRequest(namespace="red"),
            pb.ListJobsRequest(name_prefix=word[:3]),
        ],
        "GetPodSummary": [pb.PodSummaryRequest()],
        "Watch": [pb.WatchRequest(states=True), pb.WatchRequest(since_revision=shared.began)],
        "Delete": [pb.DeleteRequest(**named)],
        "RemoveGates": [pb.RemoveGatesRequest(**named)],
        "Retry": [
            pb.RetryRequest(**named),
            pb.RetryRequest(every=True),
            pb.RetryRequest(namespace="red", every=True),
        ],
        "ListTenants": [pb.ListTenantsRequest(), pb.ListTenantsRequest(page_token="a")],
        "GetStatus": [pb.StatusRequest()],
    }


async def answers(client: DispatcherClient, name: str, request: Message) -> list[Message | str]:
    """The replies to a request; the error as text at the end. A watch is read until nothing more comes."""
    method = SERVICE.methods_by_name[name]
    call = getattr(client.stub, name)
    found: list[Message | str] = []
    try:
        if method.server_streaming:
            stream = call(iter([request]) if method.client_streaming else request)
            with contextlib.suppress(asyncio.TimeoutError):
                while (reply := await asyncio.wait_for(stream.read(), 2)) is not grpc.aio.EOF:
                    found.append(reply)
            stream.cancel()
        else:
            found.append(await call(request))
    except grpc.aio.AioRpcError as exc:
        found.append(f"{exc.code().name}: {exc.details()}")
    return found


def test_every_method_that_a_tenants_client_may_call_is_tried(shared: Shared) -> None:
    assert set(requests(shared, ABSENT, bytes(16))) == set(MAY)


@pytest.mark.parametrize("name", MAY)
async def test_what_is_anothers_is_answered_as_what_does_not_exist(shared: Shared, name: str) -> None:
    uid = min(shared.uids)
    async with shared.client() as client:
        for secret, absent in zip(
            requests(shared, SECRET, uid)[name], requests(shared, ABSENT, ABSENT_UID)[name], strict=True
        ):
            found = await answers(client, name, secret)
            asked_for = SECRET in str(secret) or uid in secret.SerializeToString()
            if asked_for and getattr(secret, "request_id", "").startswith(SECRET):
                assert found == [USED]  # and neither whose it is nor what it made
            elif asked_for:
                expected = [str(answer) for answer in await answers(client, name, absent)]
                said = [str(answer).replace(SECRET, ABSENT) for answer in found]
                assert [text.replace(uid_text(uid), uid_text(ABSENT_UID)) for text in said] == expected
            else:
                assert not [leak for answer in found for leak in shared.leaks(answer)]


async def test_a_tenant_that_was_preempted_is_told_so_and_not_by_whom(shared: Shared) -> None:
    async with shared.client() as client:
        victims = [info async for info in client.list_pods() if info.eviction]
        assert victims
        told = await client.get_pod(uid=victims[0].uid, steps=True)
        assert told.eviction == f"preempted by another pod on node {shared.node}"
        assert told.eviction in [step.reason for step in told.steps]


def test_a_tenants_user_submits_waits_watches_and_deletes(
    shared: Shared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a certificate and an address alone."""
    monkeypatch.setenv("HOSS_TLS_DIR", str(shared.directory))
    hoss, there = Hoss(tmp_path), ("-n", "blue", "--dispatcher", shared.state.dispatcher)
    container = {"name": "c", "resources": {"requests": {"memory": "1Mi"}}}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "small", "namespace": "blue"},
        "spec": {"containers": [container], "priorityClassName": "unknown"},
    }
    submitted = hoss("submit", "-f", "-", "--wait", *there[2:], stdin=json.dumps(pod))
    assert "1 of 1 pod bound" in submitted.stderr
    assert hoss.json("describe", "pod", "small", *there)["phase"] == "Bound"

    async def first_seen() -> str:
        query = Query(Kind.PODS, namespace="blue", names=("small",))
        async for document in follow_pods(Endpoints(shared.state.dispatcher), query):
            return str(document["name"])
        return ""

    assert asyncio.run(first_seen()) == "small"  # as `hoss get pods --watch`
    hoss("delete", "pod", "small", *there)
    assert "small" not in hoss("get", "pods", *there).stdout


async def test_a_tenants_program_watches_from_now(shared: Shared) -> None:
    async with shared.client() as client:
        watching = client.watch()
        first = asyncio.ensure_future(anext(watching))
        sent: set[bytes] = set()
        while not first.done():
            reply = await client.submit(job(f"later-{len(sent)}", "blue", 1))
            sent.add(reply.sets[0].uid_prefix)
            await asyncio.wait({first}, timeout=1)
        assert first.result().uids[:12] in sent
        await watching.aclose()
