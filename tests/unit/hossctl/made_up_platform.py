"""A platform as plans and measures read it, made up for tests."""

import numpy as np

from hoss.model.pod import PodSpec, group_of
from hoss.model.resources import BASE_RESOURCES, DEVICE_RESOURCE
from hossctl.explain.live import LiveSnapshot
from hossctl.rebalance.gathering import REASONS, Fixed, Gathered
from scheduler_worker.core.cache.node_info import NodeInfoCache
from scheduler_worker.core.classes import DemandTable
from scheduler_worker.core.messages import AccountBatch, FeedUpdate, PodRun
from scheduler_worker.core.rebalance.movable_pods import PlacedPods


def amounts(cpu, **more):
    return tuple({"cpu": cpu, "memory": 1000, "pods": 10, **more}.items())


def spec(cpu, **fields):
    return PodSpec(requests=(("cpu", cpu),), nonzero_cpu_milli=cpu, **fields)


def gathered(nodes, pods=(), waiting=(), fixed=Fixed.NOT):
    """Pods given as (name, number of the node, spec)."""
    specs = list(dict.fromkeys(of for _, _, of in pods))
    placed = PlacedPods(
        names=[name for name, _, _ in pods],
        specs=specs,
        classes=np.array([specs.index(of) for _, _, of in pods], np.intp),
        nodes=np.array([on for _, on, _ in pods], np.intp),
        card_masks=np.array([1 if of.devices else 0 for _, _, of in pods], np.uint16),
        workloads=np.arange(len(pods)),
        fixed=np.full(len(pods), fixed, np.intp),
        reasons=REASONS,
        covered=np.zeros((len(specs), 0), np.bool_),
        allowed=np.zeros(0, np.int64),
    )
    return Gathered(snapshot_of(nodes, pods), placed, tuple(waiting), ())


def snapshot_of(nodes, pods):
    """The cluster as one shard's feed tells of it."""
    schema = (*BASE_RESOURCES, DEVICE_RESOURCE)
    accounts = AccountBatch.of_nodes(range(len(nodes)), nodes, schema, seq=1)
    for _, row, of in pods:
        for resource, amount in (*of.requests, ("pods", 1)):
            accounts.records["amounts"][row, schema.index(resource), 1] += amount
        if of.devices:
            accounts.cards[accounts.card_indexes == row, 0] += of.devices.milli
    cache = NodeInfoCache()
    cache.apply_feed(
        FeedUpdate(
            shard=0,
            seq=1,
            accounts=accounts,
            specs=tuple(enumerate(nodes)),
            snapshot=True,
            shards=1,
            schema=schema,
            pods=tuple(PodRun(group_of(of), np.array([row]), gone=False) for _, row, of in pods),
        )
    )
    return LiveSnapshot(cache, DemandTable(cache.schema, cache.catalogue.images, cache.pod_index))
