"""The binding webhook on a ledger in memory, with its pods and storage objects."""

import asyncio
from typing import Any

from pods_in_memory import PodsInMemory
from storage_in_memory import StorageInMemory

from hoss.wire.columns import decode_uids
from hoss.wire.uids import uid_from_text
from resolver.api.two_phase import decide_alone
from resolver.core.kubernetes.binding_review import Review
from resolver.core.values import ReservationState
from resolver.kubernetes.webhook.binding_webhook import BindingWebhook
from resolver.kubernetes.webhook.volumes_and_devices import VolumesAndDevices
from resolver.ledger.memory import MemoryLedger
from resolver.messages.nodes import shard_of


class WebhookCluster:
    """A guard, its ledger and its pods. `problem` is what availability says."""

    def __init__(self, shards: int) -> None:
        self.now = 0.0
        self.ledger = MemoryLedger(shards, lambda: int(self.now * 1000), lease_ms=30_000)
        self.pods = PodsInMemory()
        self.storage = StorageInMemory()
        self.problem = ""
        self.decided = 0  # proposals
        self.decision_seconds = 0.0  # what each takes
        self.guard = self.another_guard("guard")

    def another_guard(self, name: str) -> BindingWebhook:
        return BindingWebhook(
            self.ledger,
            self.decide,
            self.pods,
            VolumesAndDevices(self.ledger, self.storage),
            name=name,
            exempt=["kube-system"],
            problem=lambda: self.problem,
            clock=lambda: self.now,
        )

    async def decide(self, shard: int, proposal: Any) -> Any:
        """The decision, as a resolver makes it."""
        self.decided += 1
        self.now += self.decision_seconds

        async def commit(proposed: Any) -> Any:
            await asyncio.sleep(0)
            return (await self.ledger.commit(shard, [proposed]))[0]

        return await decide_alone(self.ledger, commit, shard, proposal)

    async def add_nodes(self, *nodes: Any) -> None:
        for node in nodes:
            await self.ledger.upsert_nodes(shard_of(node.name, self.ledger.shards), [node])

    def pod(
        self,
        name: str,
        *,
        cpu: str = "100m",
        namespace: str = "default",
        volumes: Any = (),
        resourceClaims: Any = (),  # noqa: N803 - the field's name
        **container: Any,
    ) -> Any:
        resources = {"requests": {"cpu": cpu}}
        return self.pods.add(
            name,
            namespace=namespace,
            containers=[{"name": "c", "image": "i", "resources": resources, **container}],
            volumes=list(volumes),
            resourceClaims=list(resourceClaims),
        )

    @staticmethod
    def uids(pod: Any) -> Any:
        """The pod's UID, of which 16 bytes may be given as well, as a column."""
        return decode_uids(pod if isinstance(pod, bytes) else uid_from_text(pod["metadata"]["uid"]))

    async def bind(self, name: str, node: str) -> Any:
        """A pod of another scheduler that the guard allows there, and the API server binds."""
        pod = self.pod(name, cpu="600m")
        assert (await self.guard.review(review_of(pod, node))).allowed
        pod["spec"]["nodeName"] = node
        return pod

    async def pass_without_dispatcher(self, seconds: int, *guards: BindingWebhook) -> None:
        """Leases end, and these resolvers look after theirs."""
        for _ in range(0, seconds, 2):
            self.now += 2  # lease time goes on by no more from one reaping to the next
            for guard in guards:
                await guard.under_way.renew()
                await guard.under_way.settle()
            for shard in range(self.ledger.shards):
                await self.ledger.reap(shard)

    async def requested_cpu(self) -> int:
        rows = [(await self.ledger.state(shard)).reservations.records for shard in range(self.ledger.shards)]
        return sum(int(records["requests"][:, 0].sum()) for records in rows)

    async def reserved(self, pod: Any, *, but: ReservationState = ReservationState.NONE) -> int:
        """How many reservations the pod has that are in another state than this."""
        uids = self.uids(pod)
        found = [await self.ledger.lookup(shard, uids) for shard in range(self.ledger.shards)]
        return sum(int(records["state"][0]) not in (ReservationState.NONE, but) for records in found)


def review_of(pod: Any, node: str, *, dry_run: bool = False, with_uid: bool = True) -> Review:
    metadata = pod["metadata"]
    uid = uid_from_text(metadata["uid"]) if with_uid else b""
    return Review("q", metadata["namespace"], metadata["name"], uid, node, dry_run)
