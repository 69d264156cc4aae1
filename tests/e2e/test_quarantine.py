"""A node whose account in the ledger is wrong, as who runs the platform meets it: out with the reason,
mended, and back."""

import asyncio

import numpy as np
from waiting import until, wait_until

from hoss.client.dispatcher import submission
from hoss.model.pod import PodSpec, PodTemplate, Workload
from hoss.wire.columns import account_dtype
from hossctl.endpoints import clients_of, of_state
from hossctl.local.platform_state import load_state

WORKERS = ["w1", "w2", "w3"]
LATE = """\
apiVersion: v1
kind: Pod
metadata: {name: late}
spec: {containers: [{name: c, image: i, resources: {requests: {cpu: 100m}}}]}
"""


def fill_account(hoss):
    """Somebody writes into the ledger by hand that all cpu of the first node is requested; nobody is told."""
    with hoss.redis() as connection:
        field = bytes(4)
        record = bytearray(connection.hget("{hoss:0}:accounts", field))
        amounts = np.frombuffer(record, account_dtype(6), 1)["amounts"]
        amounts[0, 0, 1] = amounts[0, 0, 0]
        connection.hset("{hoss:0}:accounts", field, bytes(record))


async def refused_by_each_worker(hoss):
    """Each worker in its turn believes in the room once, and is refused: within a minute, in which commands
    may be too slow."""
    async with clients_of(of_state(load_state(hoss.home))) as clients:
        for name in WORKERS:
            await clients.dispatcher.set_worker_state(name, "Cordoned")
        for name in WORKERS:
            await clients.dispatcher.set_worker_state(name, "Ready")
            await submit_and_await_refusal(clients, name)
            await clients.dispatcher.set_worker_state(name, "Cordoned")


async def submit_and_await_refusal(clients, name):
    template = PodTemplate(PodSpec(requests=(("cpu", 100),)), owner_kind="Job")
    for request in submission([Workload(f"for-{name}", template, 4)]):
        await clients.dispatcher.submit(request)

    async def refused():
        return {job.name: job for job in await clients.dispatcher.list_jobs()}[
            f"for-{name}"
        ].unschedulable == 4

    await until(refused, f"the pods of {name} to be refused")


def jobs(hoss):
    return hoss.json("get", "jobs")["items"]


def node(hoss):
    return hoss.json("describe", "node", "node-00000")


def test_a_wrong_account_quarantines_its_node_with_the_reason_and_its_pods_are_placed_once_it_is_mended(hoss):
    hoss("up", "--nodes", "1", "--workers", str(len(WORKERS)))
    fill_account(hoss)
    asyncio.run(refused_by_each_worker(hoss))

    told = wait_until(lambda: node(hoss)["quarantine"])
    assert (
        "cpu 32, 32 more than its reservations ask for; `hoss audit --repair` repairs that" in told["reason"]
    )
    assert told["untilUnixMs"] - told["sinceUnixMs"] == 300_000
    assert "Quarantined" in hoss("get", "nodes").stdout
    assert "QUARANTINED UNTIL" in hoss("get", "nodes", "-o", "wide").stdout
    status = hoss("status", code=1).stdout
    assert "node-00000: refused 3 proposals that its account has room for; published again" in status
    assert "node-00000: taken out of scheduling for 300 s" in status
    assert "node node-00000 gets nothing until" in status
    assert "node(s) were unschedulable" in hoss("explain", "pod", "for-w1-0").stdout

    assert "now 0" in hoss("audit", "--repair").stdout
    assert node(hoss)["quarantine"], "mended is not trusted yet"
    for name in WORKERS:
        hoss("uncordon", "worker", name)
    hoss("submit", "-f", "-", stdin=LATE)
    # As the only node is closed.
    wait_until(lambda: hoss.json("get", "pod", "late")["phase"] == "Unschedulable")
    hoss("uncordon", "node", "node-00000")
    wait_until(lambda: hoss.json("get", "pod", "late")["phase"] == "Bound")
    wait_until(lambda: all(job["bound"] == 4 for job in jobs(hoss)))
    assert node(hoss)["quarantine"] is None
    assert "node-00000: back in scheduling: by hand" in hoss("status").stdout
    hoss("audit")
