"""Which resource claim gives its devices back for a pod that its claims keep from every node."""

import asyncio
import json
import random

import pytest

from dispatcher.core.kubernetes.conditions import WaitingPod
from dispatcher.core.pods.table import Phase
from dispatcher.kubernetes.claim_deallocation import DEALLOCATED, DELETED, ClaimDeallocation, is_idle
from hoss.kube.api import Reply
from hoss.model.cluster import StorageUpdate
from hoss.model.devices import (
    CLAIM_UNREACHABLE,
    EXTENDED_CLAIM_ANNOTATION,
    LEFT_OVER,
    ClaimUse,
    DeviceManifest,
    PodClaims,
)
from hoss.model.pod import PodSpec
from hoss.wire.uids import uid_text

UID = b"0123456789abcdef"
OTHER = {"resource": "pods", "name": "other", "uid": uid_text(b"another-pods-uid")}
SELF = {"resource": "pods", "name": "p", "uid": uid_text(UID)}
ON_ONE_NODE = {"nodeSelectorTerms": [{"matchFields": []}]}
UNREACHABLE = f"0/2 nodes are available: 2 {CLAIM_UNREACHABLE}."


def claim(name="gpus", *, users=(), nodes=ON_ONE_NODE, results=(), **metadata):
    allocation = {"devices": {"results": list(results)}, **({"nodeSelector": nodes} if nodes else {})}
    return {
        "metadata": {"namespace": "default", "name": name, "uid": name, "resourceVersion": "7", **metadata},
        "status": {"allocation": allocation, "reservedFor": list(users)},
    }


@pytest.mark.parametrize(
    ("found", "idle"),
    [
        (claim(), True),
        (claim(users=[SELF]), True),
        (claim(users=[OTHER]), False),
        (claim(users=[SELF, OTHER]), False),
        (claim(nodes=None), False),
        (claim(nodes=None, results=[{"bindingConditions": ["ready"]}]), True),
        (claim(deletionTimestamp="2026-11-24T05:00:00Z"), False),
        ({"metadata": {}, "status": {}}, False),
        ({"metadata": {}}, False),
    ],
)
def test_a_claim_is_idle_if_nobody_but_the_pod_uses_it_and_its_devices_bind_it_to_nodes(found, idle):
    assert is_idle(found, uid_text(UID)) == idle


class Writes:
    """Of an API server: the patches that it gets."""

    def __init__(self, status=200):
        self.status = status
        self.patches, self.deleted = {}, {}

    async def send(self, method, path, body, *, content_type=""):
        name = path.rpartition("resourceclaims/")[2]
        if method == "DELETE":
            self.deleted[name] = body
        else:
            self.patches[name] = body
        return Reply(self.status, b"{}")


class Blocked:
    """A pod with these claims that fits nowhere, for this reason."""

    def __init__(self, bench, *claims, status=200):
        self.bench = bench
        uses = tuple(
            ClaimUse(item["metadata"]["name"]) for item in claims if "annotations" not in item["metadata"]
        )
        [row] = bench.pods("p", spec=PodSpec(claims=PodClaims("p", uid_text(UID), uses)))
        self.row = int(row)
        bench.machine.registry.pods.phase[self.row] = Phase.UNSCHEDULABLE
        own = uid_text(bench.machine.registry.pods.uid[self.row].tobytes())  # UID stands for it in claims
        texts = [
            (item["metadata"]["name"], json.dumps(item).replace(uid_text(UID), own).encode())
            for item in claims
        ]
        manifests = tuple(DeviceManifest("ResourceClaim", "default", *text) for text in texts)
        bench.machine.storage.apply(StorageUpdate(manifests))
        self.writes, self.told = Writes(status), []
        tell = lambda _row, text: self.told.append(text)  # noqa: E731
        self.deallocation = ClaimDeallocation(bench.machine, self.writes, tell, rng=random.Random(1))

    async def consider(self, message=UNREACHABLE, refused_by=("DynamicResources",)):
        uid = self.bench.machine.registry.pods.uid[self.row].tobytes()
        self.deallocation.consider(self.row, WaitingPod(uid, "default", "p", message, refused_by))
        await self.run()

    async def run(self):
        running = asyncio.ensure_future(self.deallocation.run())
        for _ in range(5):
            await asyncio.sleep(0)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_one_idle_claim_gives_its_devices_back_in_the_state_in_which_it_is_known(bench):
    blocked = Blocked(bench, claim("used", users=[OTHER]), claim("idle"), claim("anywhere", nodes=None))
    await blocked.consider()
    assert blocked.writes.patches == {
        "idle/status": {
            "metadata": {"uid": "idle", "resourceVersion": "7"},
            "status": {"allocation": None, "devices": None, "reservedFor": None},
        }
    }
    assert blocked.told == [f"{DEALLOCATED}: default/idle"]
    assert bench.machine.counters["claims_deallocated"] == 1
    assert len(blocked.deallocation) == 0


async def test_of_several_idle_claims_one_is_freed_at_a_time(bench):
    blocked = Blocked(bench, claim("a"), claim("b"), claim("c"))
    await blocked.consider()
    assert len(blocked.writes.patches) == 1


async def test_a_claim_that_has_changed_meanwhile_is_left_alone_and_looked_at_again_as_it_is_then(bench):
    blocked = Blocked(bench, claim("idle"), status=409)
    await blocked.consider()
    assert list(blocked.writes.patches) == ["idle/status"]
    assert (blocked.told, len(blocked.deallocation)) == ([], 1)
    blocked.writes.patches.clear()
    now = json.dumps(claim("idle", users=[OTHER])).encode()
    bench.machine.storage.apply(StorageUpdate((DeviceManifest("ResourceClaim", "default", "idle", now),)))
    await blocked.run()
    assert (blocked.writes.patches, len(blocked.deallocation)) == ({}, 0)


@pytest.mark.parametrize(
    "reason",
    [
        ("0/2 nodes are available: 2 cannot allocate all claims.", ("DynamicResources",)),
        ("0/2 nodes are available: 2 Insufficient cpu.", ("NodeResourcesFit",)),
    ],
)
async def test_a_pod_that_waits_for_anything_else_frees_nothing(bench, reason):
    blocked = Blocked(bench, claim("idle"))
    await blocked.consider(*reason)
    assert blocked.writes.patches == {}


async def test_what_the_api_server_refused_is_tried_again_while_the_pod_waits(bench):
    blocked = Blocked(bench, claim("idle"), status=403)
    await blocked.consider()
    assert blocked.told == []
    assert len(blocked.deallocation) == 1
    blocked.writes.status = 200
    await blocked.run()
    assert blocked.told == [f"{DEALLOCATED}: default/idle"]
    assert len(blocked.deallocation) == 0


async def test_a_pod_that_waits_no_more_frees_nothing(bench):
    blocked = Blocked(bench, claim("idle"), status=403)
    await blocked.consider()
    blocked.writes.patches.clear()
    bench.machine.registry.pods.phase[blocked.row] = Phase.BOUND
    await blocked.run()
    assert blocked.writes.patches == {}
    assert len(blocked.deallocation) == 0


def extended(
    name,
    *,
    owner=UID,
    finalizers=("resource.kubernetes.io/delete-protection", "other"),
    users=(SELF,),
    **more,
):
    """A claim that a scheduler made for the extended resources of a pod."""
    metadata = {
        "annotations": {EXTENDED_CLAIM_ANNOTATION: "true"},
        "ownerReferences": [{"kind": "Pod", "uid": uid_text(owner), "controller": True}],
        "finalizers": list(finalizers),
    }
    return claim(name, users=users, **(metadata | more))


LEFT = f"0/2 nodes are available: 2 {LEFT_OVER}."


async def test_the_claim_that_was_left_over_for_extended_resources_is_deleted(bench):
    blocked = Blocked(
        bench,
        claim("mine"),
        extended("left"),
        extended("of-another-pod", owner=b"another-pods-uid", labels={"about": uid_text(UID)}),
        extended("going", deletionTimestamp="2026-11-24T05:00:00Z"),
        extended("not-marked", annotations={}),
        extended("used-by-another-pod", users=[SELF, OTHER]),
    )
    await blocked.consider(LEFT)
    same = {"uid": "left", "resourceVersion": "7"}
    assert blocked.writes.patches == {"left": {"metadata": same | {"finalizers": ["other"]}}}
    assert blocked.writes.deleted == {"left": {"preconditions": {"uid": "left"}}}
    assert blocked.told == [f"{DELETED}: default/left"]


async def test_a_claim_that_nothing_keeps_is_deleted_at_once(bench):
    blocked = Blocked(bench, extended("left", finalizers=(), users=()))
    await blocked.consider(LEFT)
    assert blocked.writes.patches == {}
    assert list(blocked.writes.deleted) == ["left"]


async def test_a_left_over_claim_that_changed_stays_and_one_that_may_not_be_deleted_is_tried_again(bench):
    blocked = Blocked(bench, extended("left"), status=409)
    await blocked.consider(LEFT)
    assert (blocked.writes.deleted, blocked.told, len(blocked.deallocation)) == ({}, [], 1)
    blocked.writes.status = 403
    await blocked.consider(LEFT)
    assert (blocked.writes.deleted, blocked.told, len(blocked.deallocation)) == ({}, [], 1)
    blocked.writes.status = 200
    await blocked.run()
    assert blocked.told == [f"{DELETED}: default/left"]
