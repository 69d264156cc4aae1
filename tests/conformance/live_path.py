"""A cluster given as objects, told to a worker as a running platform tells it: through messages of proposals
and the feed."""

import asyncio
from dataclasses import replace

import numpy as np

from hoss.model.cluster import BoundPod, Cluster
from hoss.model.pod import group_of
from hoss.model.resources import ResourceSchema
from hoss.v1 import resolver_pb2 as pb
from hoss.wire.columns import NONE_U32, numbered_uids
from hoss.wire.convert import node_to_proto
from hossctl.explain.live import LiveSnapshot
from resolver.api.feed import ShardFeed
from resolver.ledger.memory import MemoryLedger
from resolver.messages.nodes import node_change, shard_of
from resolver.messages.proposals import read_proposal
from scheduler_worker import messages
from scheduler_worker.core.cache.node_info import NodeInfoCache
from scheduler_worker.core.classes import DemandTable, compile_demand
from scheduler_worker.core.cycle.scheduler import Scheduler
from scheduler_worker.core.messages import FeedUpdate, ProposalColumns
from scheduler_worker.core.plugins import default_profile

SHARDS = 2


def live_worker(cluster: Cluster) -> tuple[Scheduler, LiveSnapshot]:
    """A worker that heard of the cluster by two snapshots and, of half the pods, by entries after them."""
    ledger = MemoryLedger(SHARDS, lambda: 0)
    epoch = asyncio.run(ledger.grant("other"))
    indexes = _add_nodes(ledger, cluster)
    schema = asyncio.run(ledger.schema())
    pods = [pod for pod in cluster.pods if pod.node in indexes]
    _place(ledger, epoch, pods[::2], indexes, schema, first=0)
    feeds = [ShardFeed(ledger, shard) for shard in range(SHARDS)]
    cache = NodeInfoCache()
    for feed in feeds:
        cache.apply_feed(_received(asyncio.run(feed._read_snapshot())))
    _place(ledger, epoch, pods[1::2], indexes, schema, first=len(pods))
    for shard, feed in enumerate(feeds):
        for entry in asyncio.run(ledger.feed(shard, cache.seqs[shard], 0)) or []:
            cache.apply_feed(_received(asyncio.run(feed._message(entry))))
    ground = LiveSnapshot(cache, DemandTable(cache.schema, cache.catalogue.images, cache.pod_index))
    return Scheduler(cache, default_profile(), np.random.default_rng(1)), ground


def _add_nodes(ledger: MemoryLedger, cluster: Cluster) -> dict[str, int]:
    offered = dict.fromkeys(resource for node in cluster.nodes for resource, _ in node.allocatable)
    schema = asyncio.run(ledger.schema(list(offered)))
    indexes = {}
    for shard in range(SHARDS):
        here = [node for node in cluster.nodes if shard_of(node.name, SHARDS) == shard]
        upserted = asyncio.run(
            ledger.upsert_nodes(shard, [node_change(node_to_proto(node), schema) for node in here])
        )
        indexes |= {node.name: int(index) for node, index in zip(here, upserted.indexes, strict=True)}
    return indexes


def _place(
    ledger, epoch, pods: list[BoundPod], indexes: dict[str, int], schema: list[str], *, first: int
) -> None:
    """Another worker placed these, unchecked: some stand where no scheduler would put them."""
    for shard in range(SHARDS):
        here = [pod for pod in pods if indexes[pod.node] % SHARDS == shard]
        if here:
            proposal = read_proposal(
                _proposal(shard, epoch, here, indexes, schema, first=first),
                shards=SHARDS,
                schema=len(schema),
                allow_unchecked=True,
            )
            [decision] = asyncio.run(ledger.commit(shard, [proposal]))
            assert (decision.verdicts == 1).all()


def _proposal(shard, epoch, pods, indexes, schema, *, first) -> pb.ProposalBatch:
    specs = [
        replace(
            pod.spec,
            requests=pod.requests,
            nonzero_cpu_milli=pod.nonzero_cpu_milli,
            nonzero_memory_bytes=pod.nonzero_memory_bytes,
        )
        for pod in pods
    ]
    demands = [compile_demand(spec, ResourceSchema(list(schema))) for spec in specs]
    cards = [(d.devices.count, d.devices.milli) if d.devices is not None else (0, 0) for d in demands]
    columns = ProposalColumns(
        batch_id=1,
        shard=shard,
        snapshot_seq=2**40,  # it knows every node
        uids=numbered_uids(b"conformance%d" % shard, first, len(pods)),
        slots=np.arange(len(pods), dtype=np.uint16),
        candidates=np.array([(indexes[pod.node], NONE_U32) for pod in pods], np.uint32),
        requests=np.array([demand.request for demand in demands]),
        priorities=np.zeros(len(pods), np.int32),
        attempts=np.zeros(len(pods), np.uint16),
        devices=np.array(cards, np.uint16),
        groups=tuple(group_of(spec) for spec in specs),
    )
    batch = messages.proposal_batch(columns, worker="other", epoch=epoch, unchecked=True)
    return pb.ProposalBatch.FromString(batch.SerializeToString())


def _received(message: pb.FeedMessage) -> FeedUpdate:
    return messages.feed_update(pb.FeedMessage.FromString(message.SerializeToString()))
