"""The binding webhook judges volumes and devices, on a ledger of one shard and of several."""

import asyncio
from typing import Any

import pytest
from webhook_in_memory import WebhookCluster, review_of

from hoss.model.devices import Allocation, DeviceId, DeviceResult, HeldClaim
from hoss.model.pod import PodGroup, PodSpec
from hoss.model.reserved_names import claim_for_one_pod, device
from hoss.model.reserved_names import counters as counters_of
from hoss.model.volumes import ClaimMount, PodVolumes
from hoss.v1 import resolver_pb2 as pb
from hoss.wire.convert_rules import definition_of, definition_taking, group_defined
from hoss.wire.uids import uid_from_text
from resolver.core.kubernetes.binding_review import proposal_for
from resolver.core.kubernetes.denials import REPEATED_SECONDS
from resolver.core.values import Verdict
from resolver.kubernetes.existing_pods import ExistingPodReservations
from resolver.messages.nodes import shard_of
from resolver.messages.proposals import group_of

ONE_POD, MANY_PODS = "ReadWriteOncePod", "ReadWriteOnce"
CLAIM_IN_USE = "ReadWriteOncePod access mode already in-use by another pod"
GPU = DeviceId("gpu.example.com", "n1", "gpu-0")


class VolumeCluster(WebhookCluster):
    """With volumes and devices, and a worker of HOSS that knows the ledger up to its last `look`."""

    def __init__(self, shards: int) -> None:
        super().__init__(shards)
        self._seen: tuple[int, ...] = (0,) * shards

    def volume(self, claim: str, *, mode: str = MANY_PODS, node: str = "", bound: bool = True) -> list[Any]:
        """spec.volumes with a claim that has a volume, which `node` alone reaches; "": every node."""
        bound_to = {"volumeName": f"pv-{claim}"} if bound else {}
        annotations = {"pv.kubernetes.io/bind-completed": "yes"} if bound else {}
        self.storage.put(
            "PersistentVolumeClaim",
            claim,
            metadata={"annotations": annotations},
            spec={"accessModes": [mode], **bound_to},
        )
        there = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
        affinity = {"required": {"nodeSelectorTerms": [{"matchExpressions": [there]}]}} if node else {}
        csi = {"driver": "disks.example.com", "volumeHandle": claim}
        self.storage.put("PersistentVolume", f"pv-{claim}", spec={"csi": csi, "nodeAffinity": affinity})
        return [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}]

    def limit(self, node: str, count: int, driver: str = "disks.example.com") -> None:
        drivers = [{"name": driver, "allocatable": {"count": count}}]
        self.storage.put("CSINode", node, spec={"drivers": drivers})

    def give(self, claim: str, device: str = "gpu-0", *, user: str = "", **result: Any) -> list[Any]:
        """spec.resourceClaims with a claim to which its scheduler has given a device of node n1. `user`: the
        UID of the pod that the claim is reserved for."""
        given = {"request": "one", "driver": GPU.driver, "pool": "n1", "device": device, **result}
        at = {"key": "metadata.name", "operator": "In", "values": ["n1"]}
        allocation = {
            "devices": {"results": [given]},
            "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [at]}]},
        }
        users = [{"resource": "pods", "name": claim, "uid": user}] if user else []
        self.storage.put("ResourceClaim", claim, status={"allocation": allocation, "reservedFor": users})
        return [{"name": "gpu", "resourceClaimName": claim}]

    def publish(self, *devices: Any, **spec: Any) -> None:
        """The slice of node n1's pool."""
        pool = {"name": "n1", "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": GPU.driver, "nodeName": "n1", "pool": pool, "devices": list(devices), **spec}
        self.storage.put("ResourceSlice", "n1", spec=spec)

    async def ask(self, pod: Any, node: str = "n1") -> str:
        """The verdict and what it says."""
        answer = await self.guard.review(review_of(pod, node))
        return f"{answer.verdict} {answer.message}".strip()

    async def look(self) -> None:
        self._seen = tuple([await self.ledger.seq(shard) for shard in range(self.ledger.shards)])

    async def place(self, node: str, group: PodGroup, *names: str, uid: bytes = b"w" * 16) -> Verdict:
        """The worker's proposal of a pod that takes these names on the node."""
        shard = shard_of(node, self.ledger.shards)
        proposal = proposal_for(
            uid,
            int((await self.ledger.node_indexes(shard, [node]))[0]),
            [0] * len(await self.ledger.schema()),
            spec=PodSpec(),
            group=group_of(definition_taking(definition_of(group), names)),
            worker="w1",
            epoch=await self.ledger.grant("w1"),
            dry_run=False,
            shards=self.ledger.shards,
            known=2**40,
            seen=self._seen,
        )
        return Verdict(int((await self.decide(shard, proposal)).verdicts[0]))

    async def held_claims(self, pod: Any) -> list[str]:
        """The resource claims whose devices the ledger holds for the pod."""
        shard = shard_of("n1", self.ledger.shards)
        column = self.uids(pod)
        (definition,) = await self.ledger.definitions(shard, column)
        return [held.name for held in group_defined(definition).held_claims]


@pytest.fixture(params=[1, 3], ids="{} shards".format)
async def cluster(request: pytest.FixtureRequest, make_node: Any) -> VolumeCluster:
    made = VolumeCluster(request.param)
    hostnames = {name: (("kubernetes.io/hostname", name),) for name in ("n1", "n2")}
    await made.add_nodes(*(make_node(name, labels=labels) for name, labels in hostnames.items()))
    return made


def _mounting(claim: str, **choice: Any) -> PodGroup:
    return PodGroup(volumes=PodVolumes((ClaimMount(claim, **choice),)))


def _holding(claim: str) -> PodGroup:
    return PodGroup(held_claims=(HeldClaim("default", claim, Allocation((DeviceResult("one", GPU),))),))


async def test_a_claim_for_one_pod_is_not_given_to_a_second_pod_on_any_node(cluster: VolumeCluster) -> None:
    volumes = cluster.volume("data", mode=ONE_POD)
    first, second = cluster.pod("first", volumes=volumes), cluster.pod("second", volumes=volumes)
    assert await cluster.ask(first, "n1") == "reserved"
    for node in ("n1", "n2"):
        refused = await cluster.ask(second, node)
        assert refused.startswith(
            f"conflict_volume node {node} cannot take pod default/second: node(s) unavail"
        )
        assert refused.endswith(CLAIM_IN_USE)
    assert await cluster.ask(first, "n1") == "standing"  # its own use is not in its way
    assert await cluster.reserved(second) == 0


async def test_a_volume_of_another_zone_is_refused(cluster: VolumeCluster, make_node: Any) -> None:
    zones = (("topology.kubernetes.io/zone", "b"),)
    await cluster.add_nodes(make_node("n3", labels=zones))
    pod = cluster.pod("zonal", volumes=cluster.volume("data"))
    metadata = {"labels": {"topology.kubernetes.io/zone": "a"}}
    csi = {"driver": "disks.example.com", "volumeHandle": "data"}
    cluster.storage.put("PersistentVolume", "pv-data", metadata=metadata, spec={"csi": csi})
    assert "node(s) had no available volume zone" in await cluster.ask(pod, "n3")
    assert await cluster.ask(pod, "n1") == "reserved"  # of no zone


async def test_disks_of_in_tree_plugins_take_attachments_of_their_drivers(cluster: VolumeCluster) -> None:
    cluster.limit("n1", 1, driver="ebs.csi.aws.com")
    first, same, other = (
        cluster.pod(
            name, volumes=[{"name": "d", "awsElasticBlockStore": {"volumeID": volume, "readOnly": True}}]
        )
        for name, volume in (("first", "vol-1"), ("same", "aws://z/vol-1"), ("other", "vol-2"))
    )
    assert await cluster.ask(first) == "reserved"
    assert await cluster.ask(same) == "reserved"
    assert "node(s) exceed max volume count" in await cluster.ask(other)


async def test_of_pods_that_are_bound_at_once_with_a_claim_for_one_pod_one_is_allowed(
    cluster: VolumeCluster,
) -> None:
    """By two webhooks, each asked for several."""
    volumes = cluster.volume("data", mode=ONE_POD)
    pods = [cluster.pod(f"p{number}", volumes=volumes) for number in range(6)]
    guards = [cluster.guard, cluster.another_guard("another")]
    asked = [guards[i % 2].review(review_of(pod, f"n{1 + i % 2}")) for i, pod in enumerate(pods)]
    verdicts = [answer.verdict for answer in await asyncio.gather(*asked)]
    assert sorted(verdicts) == ["conflict_volume"] * 5 + ["reserved"]


async def test_bindings_that_come_together_share_one_look_at_the_ledger(cluster: VolumeCluster) -> None:
    pods = [cluster.pod(f"p{n}", volumes=cluster.volume(f"v{n}", mode=ONE_POD)) for n in range(9)]
    assert await cluster.ask(pods.pop()) == "reserved"  # knows the node from now on
    looks = 0
    seq = cluster.ledger.seq

    async def counted(shard: int) -> int:
        nonlocal looks
        looks += 1
        return await seq(shard)

    cluster.ledger.seq = counted
    assert await asyncio.gather(*map(cluster.ask, pods)) == ["reserved"] * len(pods)
    assert looks <= 2 * cluster.ledger.shards, "those that came first, and all others"


async def test_a_pod_that_gets_no_room_does_not_keep_its_claim_from_another_of_the_same_moment(
    cluster: VolumeCluster,
) -> None:
    volumes = cluster.volume("data", mode=ONE_POD)
    large, small = cluster.pod("large", cpu="900", volumes=volumes), cluster.pod("small", volumes=volumes)
    refused, allowed = await asyncio.gather(cluster.ask(large), cluster.ask(small))
    assert refused.startswith("conflict_resource")
    assert allowed == "reserved"


async def test_a_turn_that_everybody_leaves_before_it_begins_does_not_stop_the_next(
    cluster: VolumeCluster,
) -> None:
    pods = [cluster.pod(f"p{n}", volumes=cluster.volume(f"v{n}", mode=ONE_POD)) for n in range(4)]
    gone = [asyncio.ensure_future(cluster.ask(pod)) for pod in pods[:2]]
    for _ in range(5):
        await asyncio.sleep(0)
    for asked in gone:
        asked.cancel()
    await asyncio.gather(*gone, return_exceptions=True)
    answers = await asyncio.wait_for(asyncio.gather(*map(cluster.ask, pods[2:])), 10)
    assert answers == ["reserved", "reserved"]


async def test_the_same_question_twice_at_once_is_answered_by_one_reservation(cluster: VolumeCluster) -> None:
    pod = cluster.pod("p", volumes=cluster.volume("data", mode=ONE_POD))
    answers = await asyncio.gather(*(cluster.ask(pod) for _ in range(3)))
    assert sorted(answers) == ["reserved", "standing", "standing"]


async def test_a_worker_that_has_not_seen_what_the_webhook_allowed_does_not_get_it(
    cluster: VolumeCluster,
) -> None:
    volumes, claims = cluster.volume("data", mode=ONE_POD), cluster.give("gpus")
    # A worker's first such pod teaches the ledger the rule, which is not what is tried here.
    await cluster.place("n2", PodGroup(), "something/else")
    await cluster.look()
    assert await cluster.ask(cluster.pod("p", volumes=volumes, resourceClaims=claims)) == "reserved"
    for group, name in (
        (_mounting("data"), claim_for_one_pod("default", "data")),
        (_holding("another"), device(GPU)),
    ):
        assert await cluster.place("n2", group, name) is Verdict.CONFLICT_TOPOLOGY
    await cluster.look()
    assert await cluster.place("n2", _holding("another"), device(GPU)) is Verdict.COMMITTED


async def test_what_a_worker_of_hoss_has_taken_is_refused_and_free_again_after_it(
    cluster: VolumeCluster,
) -> None:
    await cluster.look()
    names = claim_for_one_pod("default", "data"), device(GPU)
    both = PodGroup(volumes=_mounting("data").volumes, held_claims=_holding("theirs").held_claims)
    await cluster.place("n2", both, *names)  # teaches the ledger the rule
    await cluster.look()
    assert await cluster.place("n2", both, *names) in (Verdict.COMMITTED, Verdict.DUPLICATE)
    volumes, claims = cluster.volume("data", mode=ONE_POD), cluster.give("ours")
    mounting, claiming = cluster.pod("m", volumes=volumes), cluster.pod("c", resourceClaims=claims)
    assert (await cluster.ask(mounting)).endswith(CLAIM_IN_USE)
    assert await cluster.ask(claiming) == (
        "conflict_device_claim node n1 cannot take pod default/c: cannot allocate all claims: device "
        "gpu.example.com/n1/gpu-0 is given to claim default/theirs"
    )
    for shard in range(cluster.ledger.shards):
        await cluster.ledger.release(shard, cluster.uids(b"w" * 16))
    cluster.now += REPEATED_SECONDS
    assert [await cluster.ask(pod) for pod in (mounting, claiming)] == ["reserved", "reserved"]


async def test_a_volume_that_the_node_does_not_reach_is_refused(cluster: VolumeCluster) -> None:
    pod = cluster.pod("p", volumes=cluster.volume("data", node="n2"))
    assert (await cluster.ask(pod, "n1")).endswith("node(s) didn't match PersistentVolume's node affinity")
    assert await cluster.ask(pod, "n2") == "reserved"


async def test_a_claim_whose_volume_a_worker_chose_is_not_bound_where_that_volume_is_not(
    cluster: VolumeCluster,
) -> None:
    """The claim waits for its first consumer, and another pod of HOSS is that."""
    provisioned, chosen = cluster.volume("new", bound=False), cluster.volume("old", bound=False, node="n2")
    await cluster.look()
    await cluster.place("n2", _mounting("new", provisioned=True))
    await cluster.look()
    for number, (claim, choice) in enumerate((("new", {"provisioned": True}), ("old", {"volume": "pv-old"}))):
        placed = await cluster.place("n2", _mounting(claim, **choice), uid=bytes([number]) * 16)
        assert placed is Verdict.COMMITTED
    for volumes in (provisioned, chosen):
        pod = cluster.pod(f"p-{volumes is chosen}", volumes=volumes)
        assert (await cluster.ask(pod, "n1")).startswith("conflict_volume")
        assert await cluster.ask(pod, "n2") == "reserved"


async def test_a_node_gets_no_more_volumes_than_its_driver_attaches_and_pods_share_attachments(
    cluster: VolumeCluster,
) -> None:
    cluster.limit("n1", 1)
    shared = cluster.volume("shared")
    assert await cluster.ask(cluster.pod("first", volumes=shared)) == "reserved"
    assert await cluster.ask(cluster.pod("second", volumes=shared)) == "reserved"
    third = cluster.pod("third", volumes=cluster.volume("own"))
    assert (await cluster.ask(third)).endswith("node(s) exceed max volume count")
    assert await cluster.ask(third, "n2") == "reserved"


async def test_a_volume_that_is_still_attached_for_a_pod_that_is_gone_takes_an_attachment(
    cluster: VolumeCluster,
) -> None:
    cluster.limit("n1", 1)
    left, other = cluster.volume("left"), cluster.volume("other")
    source = {"persistentVolumeName": "pv-left"}
    attachment = {"nodeName": "n1", "attacher": "disks.example.com", "source": source}
    cluster.storage.put("VolumeAttachment", "csi-1", spec=attachment)
    early = cluster.pod("early", volumes=other)
    assert (await cluster.ask(early)).endswith("node(s) exceed max volume count")
    assert await cluster.ask(cluster.pod("elsewhere", volumes=other), "n2") == "reserved"
    cluster.storage.remove("VolumeAttachment", "csi-1")
    assert await cluster.ask(cluster.pod("later", volumes=other)) == "reserved"
    cluster.storage.put("VolumeAttachment", "csi-1", spec=attachment | {"nodeName": "n2"})
    cluster.limit("n2", 2)
    assert await cluster.ask(cluster.pod("returning", volumes=left), "n2") == "reserved"  # it counts once


async def test_a_disk_that_pods_name_is_mounted_once_on_a_node(cluster: VolumeCluster) -> None:
    disk = [{"name": "d", "gcePersistentDisk": {"pdName": "disk-1"}}]
    assert await cluster.ask(cluster.pod("first", volumes=disk)) == "reserved"
    second = cluster.pod("second", volumes=disk)
    assert (await cluster.ask(second)).endswith("node(s) had no available disk")
    assert await cluster.ask(second, "n2") == "reserved"


async def test_a_device_is_one_claims_unless_all_its_claims_share_it(cluster: VolumeCluster) -> None:
    pods = {
        "first": cluster.give("first"),
        "same-claim": cluster.give("first"),
        "second": cluster.give("second"),
        "watching": cluster.give("watching", adminAccess=True),
        "part": cluster.give("part", device="gpu-1", shareID="a"),
        "other-part": cluster.give("other-part", device="gpu-1", shareID="b"),
        "whole": cluster.give("whole", device="gpu-1"),
    }
    answers = {name: await cluster.ask(cluster.pod(name, resourceClaims=of)) for name, of in pods.items()}
    assert [name for name, answer in answers.items() if answer != "reserved"] == ["second", "whole"]


async def test_devices_are_not_bound_to_a_node_that_they_are_not_on(cluster: VolumeCluster) -> None:
    pod = cluster.pod("p", resourceClaims=cluster.give("gpus"))
    assert (await cluster.ask(pod, "n2")).endswith("resourceclaim not available on the node")


SHAREABLE = {"name": "gpu-0", "allowMultipleAllocations": True, "capacity": {"memory": {"value": "80Gi"}}}


def _taking(cluster: VolumeCluster, name: str, memory: str) -> Any:
    """A pod whose claim its scheduler has given so much of the device."""
    pod = cluster.pod(name, resourceClaims=[{"name": "gpu", "resourceClaimName": name}])
    cluster.give(name, consumedCapacity={"memory": memory}, shareID=name, user=pod["metadata"]["uid"])
    return pod


async def test_nobody_gets_more_of_a_shared_device_than_it_has_left(cluster: VolumeCluster) -> None:
    cluster.publish(SHAREABLE)
    pods = [_taking(cluster, name, memory) for name, memory in (("a", "50Gi"), ("b", "30Gi"), ("c", "10Gi"))]
    assert [await cluster.ask(pod) for pod in pods[:2]] == ["reserved"] * 2
    assert await cluster.ask(pods[2]) == (
        "conflict_device_claim node n1 cannot take pod default/c: cannot allocate all claims: device "
        "gpu.example.com/n1/gpu-0 has 0 and not 10Gi left of capacity memory"
    )
    assert await cluster.ask(pods[0]) == "standing"


async def test_of_two_schedulers_that_gave_the_last_of_a_device_to_two_pods_one_is_refused(
    cluster: VolumeCluster,
) -> None:
    """Both wrote it into their claims, so by the API server's record neither would fit."""
    cluster.publish(SHAREABLE)
    pods = [_taking(cluster, name, "60Gi") for name in ("a", "b")]
    guards = [cluster.guard, cluster.another_guard("another")]
    reviews = [guard.review(review_of(pod, "n1")) for guard, pod in zip(guards, pods, strict=True)]
    verdicts = [answer.verdict for answer in await asyncio.gather(*reviews)]
    assert sorted(verdicts) == ["conflict_device_claim", "reserved"]


async def test_what_a_claim_had_before_anybody_watched_counts_while_its_pod_is_bound(
    cluster: VolumeCluster,
) -> None:
    """The ledger has that pod without its devices: a dispatcher told of it."""
    cluster.publish(SHAREABLE)
    bound = _taking(cluster, "bound", "60Gi")
    uid = uid_from_text(bound["metadata"]["uid"])
    await cluster.place("n1", PodGroup(), uid=uid)
    late = _taking(cluster, "late", "60Gi")
    assert "has 20Gi and not 60Gi left of capacity memory" in await cluster.ask(late)
    await cluster.ledger.release(shard_of("n1", cluster.ledger.shards), cluster.uids(uid))
    cluster.now += REPEATED_SECONDS
    assert await cluster.ask(late) == "reserved"


async def test_partitions_of_a_device_get_no_more_of_its_counters_than_there_is(
    cluster: VolumeCluster,
) -> None:
    def part(name: str, memory: str) -> Any:
        used = {"counterSet": "gpu-0", "counters": {"memory": {"value": memory}}}
        return {"name": name, "consumesCounters": [used]}

    counters = [{"name": "gpu-0", "counters": {"memory": {"value": "80Gi"}}}]
    cluster.publish(
        part("half", "40Gi"), part("other-half", "40Gi"), part("whole", "80Gi"), sharedCounters=counters
    )
    await cluster.place("n2", PodGroup(), "something/else")  # teaches the ledger the rule
    await cluster.look()
    pods = {n: cluster.pod(n, resourceClaims=cluster.give(n, n)) for n in ("half", "whole", "other-half")}
    answers = {name: await cluster.ask(pod) for name, pod in pods.items()}
    assert answers["whole"].endswith(
        "cannot allocate all claims: 40Gi and not 80Gi of counter gpu-0/memory is left for device "
        "gpu.example.com/n1/whole"
    )
    assert (answers["half"], answers["other-half"]) == ("reserved", "reserved")
    # A worker that chose another partition knows nothing of these.
    name = counters_of(GPU.driver, "n1", "gpu-0")
    assert await cluster.place("n1", PodGroup(), name) is Verdict.CONFLICT_TOPOLOGY


async def test_a_device_that_no_slice_offers_is_left_to_whoever_gave_it(cluster: VolumeCluster) -> None:
    assert await cluster.ask(_taking(cluster, "early", "900Gi")) == "reserved"
    cluster.publish(SHAREABLE, pool={"name": "n1", "generation": 2, "resourceSliceCount": 1})
    assert "has 0 and not 1Gi left" in await cluster.ask(_taking(cluster, "late", "1Gi"))


RESOURCE = "example.com/gpu"


def _made(claim: str) -> Any:
    """The status of a pod that has the devices of this claim for an extended resource."""
    mapping = {"containerName": "c", "resourceName": RESOURCE, "requestName": "one"}
    return {"extendedResourceClaimStatus": {"resourceClaimName": claim, "requestMappings": [mapping]}}


def _wanting(cluster: VolumeCluster, name: str) -> Any:
    return cluster.pod(name, resources={"requests": {"cpu": "100m", RESOURCE: "1"}})


async def test_an_extended_resource_that_a_pod_has_as_a_device_is_no_amount_of_the_node(
    cluster: VolumeCluster,
) -> None:
    first, second, third = (_wanting(cluster, name) for name in ("first", "second", "third"))
    for name, claim in (("first", "one"), ("second", "two")):
        cluster.give(claim)
        cluster.pods.patch_unseen(name, **_made(claim))
    assert await cluster.ask(first) == "reserved"
    assert await cluster.held_claims(first) == ["one"]
    assert "device gpu.example.com/n1/gpu-0 is given to claim default/one" in await cluster.ask(second)
    assert (
        await cluster.ask(third)
        == f"conflict_resource node n1 has no room for pod default/third: it asks for 1 of {RESOURCE}, and"
        " none is free"
    )


async def test_a_claim_that_an_earlier_attempt_left_in_the_status_gives_nothing(
    cluster: VolumeCluster,
) -> None:
    pod = _wanting(cluster, "p")
    pod["status"] = _made("gone")
    assert (await cluster.ask(pod)).startswith("conflict_resource")


async def test_a_pod_that_is_on_its_node_is_counted_with_its_devices_and_without_their_amount(
    cluster: VolumeCluster,
) -> None:
    existing = _wanting(cluster, "existing")
    existing["spec"]["nodeName"] = "n1"
    cluster.give("one")
    existing["status"] = _made("one")
    assert await cluster.ask(cluster.pod("p")) == "reserved"
    assert await cluster.held_claims(existing) == ["one"]
    assert RESOURCE not in await cluster.ledger.schema()


async def test_a_claim_that_no_scheduler_gave_devices_is_not_the_webhooks_business(
    cluster: VolumeCluster,
) -> None:
    cluster.storage.put("ResourceClaim", "idle")
    pod = cluster.pod("p", resourceClaims=[{"name": "gpu", "resourceClaimName": "idle"}])
    assert await cluster.ask(pod) == "reserved"
    assert await cluster.held_claims(pod) == []


async def test_devices_stay_held_when_a_dispatcher_tells_of_the_pod(cluster: VolumeCluster) -> None:
    """It knows the pod, and not what its claims have."""
    pod = cluster.pod("p", resourceClaims=cluster.give("gpus"))
    assert await cluster.ask(pod) == "reserved"
    shard = shard_of("n1", cluster.ledger.shards)
    (node,) = (await cluster.ledger.node_indexes(shard, ["n1"])).tolist()
    standing = ExistingPodReservations(cluster.ledger, None, reviews_bindings=True)
    kind = pb.PodKind(group=definition_of(PodGroup(labels=(("app", "web"),))))
    kind.requests.add(resource="pods", amount=1)
    columns = pb.PodColumns(
        uids=uid_from_text(pod["metadata"]["uid"]), nodes=node.to_bytes(4, "little"), kinds=bytes(4)
    )
    request = pb.UpsertPodsRequest(
        writer="mirror", epoch=await cluster.ledger.grant("mirror"), kinds=[kind], pods=columns
    )
    assert (await standing.upsert(request)).unreviewed == b"\0"
    assert await cluster.held_claims(pod) == ["gpus"]
    assert (await cluster.ask(cluster.pod("q", resourceClaims=cluster.give("others")))).startswith(
        "conflict_device_claim"
    )
