"""Tenants on a real platform: one floods it, the other has a single pod."""

import numpy as np
import orjson
from e2e.loads import audited
from waiting import until

from hoss.client.dispatcher import submission
from hoss.model.pod import PodSpec, PodTemplate, Workload
from hoss.v1 import dispatcher_pb2 as pb
from hoss.wire.columns import U8, decode, decode_uids, numbered_uids
from hossctl.endpoints import clients_of, of_state
from hossctl.load import report
from hossctl.load.nodes import UNIFORM, simulated_nodes
from hossctl.local import platform
from hossctl.local.platform import PlatformOptions
from hossctl.local.platform_state import WorkerOptions

FLOOD_PODS = 60_000


def job(name: str, namespace: str, replicas: int) -> pb.SubmitRequest:
    spec = PodSpec(namespace=namespace, requests=(("cpu", 10), ("memory", 1)))
    (request,) = submission([Workload(name, PodTemplate(spec, owner_kind="Job"), replicas)])
    return request


async def any_bound(clients, tenant: str) -> bool:
    return any(told.bound for told in await clients.dispatcher.list_tenants() if told.name == tenant)


async def test_a_flood_of_one_tenant_does_not_hold_up_anothers_single_pod():
    nodes = simulated_nodes(1000, shapes=UNIFORM)
    with platform.temporary(PlatformOptions(workers=(WorkerOptions("w1"),))) as starter:
        async with clients_of(of_state(starter.state)) as clients:
            await report.prepare(clients, nodes, 1)
            await clients.dispatcher.submit(job("flood", "red", FLOOD_PODS))
            await until(lambda: any_bound(clients, "red"), "a bound pod of the flood")
            reply = await clients.dispatcher.submit(job("lone", "blue", 1))
            (lone,) = numbered_uids(reply.sets[0].uid_prefix, 0, 1)
            before = 0  # pods of the flood that were bound from then on
            async for events in clients.dispatcher.watch(reply.revision):
                bound = decode_uids(events.uids)[decode(events.phases, U8, name="phases") == pb.BOUND]
                mine = np.flatnonzero((bound == lone).all(axis=1))
                before += int(mine[0]) if len(mine) else len(bound)
                if len(mine):
                    break
            # Windows of 2,000 were with the worker already; of what it was given afterwards, the lone pod is
            # among the first.
            assert before < 20_000
            result = await audited(clients)
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
