"""Tenants on a real platform: one floods it, the other has a single pod."""

import asyncio

import orjson

from hoss.client.dispatcher import submission
from hoss.model.pod import PodSpec, PodTemplate, Workload
from hoss.v1 import dispatcher_pb2 as pb
from hossctl import auditing, platform, report
from hossctl.endpoints import clients_of, of_state
from hossctl.nodes import UNIFORM, simulated
from hossctl.platform import PlatformOptions, WorkerOptions

FLOOD_PODS = 300_000


def job(name: str, namespace: str, replicas: int) -> pb.SubmitRequest:
    spec = PodSpec(namespace=namespace, requests=(("cpu", 10), ("memory", 1)))
    (request,) = submission([Workload(name, PodTemplate(spec, owner_kind="Job"), replicas)])
    return request


async def bound(clients) -> dict[str, int]:
    return {tenant.name: tenant.bound for tenant in await clients.dispatcher.list_tenants()}


async def test_a_flood_of_one_tenant_does_not_hold_up_anothers_single_pod():
    nodes = simulated(1000, shapes=UNIFORM)
    with platform.temporary(PlatformOptions(workers=(WorkerOptions("w1"), WorkerOptions("w2")))) as starter:
        async with clients_of(of_state(starter.state)) as clients:
            await report.prepare(clients, nodes, 2)
            await clients.dispatcher.submit(job("flood", "red", FLOOD_PODS))
            while not (await bound(clients)).get("red"):  # noqa: ASYNC110 - of a process, which signals nobody
                await asyncio.sleep(0.001)
            reply = await clients.dispatcher.submit(job("lone", "blue", 1))
            before = (await bound(clients))["red"]
            async for events in clients.dispatcher.watch(reply.revision):
                if reply.sets[0].uid_prefix in events.uids:
                    break
            after = (await bound(clients))["red"]
            # Two windows of 2,000 were with the workers already; the rest is what was bound while we looked.
            assert before < FLOOD_PODS / 2
            assert after - before < 20_000
            result = await auditing.audit(clients.dispatcher, clients.resolver)
            assert result.exit_code == 0, result


def test_the_policys_weights_show_in_get_tenants(hoss, tmp_path):
    policy = tmp_path / "policy.yaml"
    policy.write_text(
        "apiVersion: hoss.dev/v1alpha1\nkind: SchedulingPolicy\nrules: [{name: all}]\n"
        "tenants: {by: {label: team}, weights: {red: 3}}\n"
    )
    manifest = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "web", "labels": {"team": "red"}},
        "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]},
    }
    hoss("up", "--nodes", "4", "--policy", str(policy))
    hoss("submit", "-f", "-", "--wait", stdin=orjson.dumps(manifest).decode())
    (tenant,) = hoss.json("get", "tenants")["items"]
    assert (tenant["name"], tenant["weight"], tenant["bound"]) == ("red", 3.0, 1)
    assert 0 < tenant["share"] < 1
