"""A running platform's nodes and pods as its workers see them: what the judge stands on when it is asked about one.

The same feed, read to its end as of now, fills the same cache as a worker's.
"""

from dataclasses import dataclass

import numpy as np

from hoss.model.cluster import Service
from hoss.model.cluster_objects import Namespace
from hoss.model.pod import PodSpec
from hoss.model.pod_groups import group_of
from hoss.wire.account import CARD_SLOTS, account_dtype
from hossctl.endpoints import Clients
from hossctl.remedies import NodeNow
from scheduler_worker.core.cache import NodeInfoCache
from scheduler_worker.core.classes import DemandTable, compile_demand
from scheduler_worker.core.messages import AccountBatch, FeedUpdate, PodRun
from scheduler_worker.messages import feed_update

_CARD_BITS = np.arange(CARD_SLOTS)


@dataclass(frozen=True, slots=True)
class LiveGround:
    """See scheduler_worker.core.judge.Footing."""

    cache: NodeInfoCache
    demands: DemandTable

    def nodes(self) -> list[NodeNow]:
        """All nodes, with what is requested on them."""
        cache, names = self.cache, self.cache.schema.names
        return [
            NodeNow(spec, dict(zip(names, cache.requested[:, index].tolist(), strict=True)))
            for index, spec in enumerate(cache.catalogue.specs)
            if spec is not None
        ]

    def without(self, spec: PodSpec, node: str, card_mask: int = 0) -> None:
        """As if one such pod, which is bound there and holds these cards, had been released just now; it may have been."""
        cache, group = self.cache, group_of(spec)
        found = (i for i, known in enumerate(cache.catalogue.specs) if known is not None and known.name == node)
        index = next(found, None)
        if index is None or not cache.census.counts(group, np.array((index,), np.intp))[0]:
            return
        shard = index % max(cache.shards, 1)
        demand = compile_demand(spec, cache.schema)
        record = np.zeros(1, account_dtype(len(cache.schema)))
        record["seq"], record["flags"] = cache.seqs[shard] + 1, cache.accounts.flags[index]
        record["amounts"][0, :, 0] = cache.accounts.allocatable[:, index]
        record["amounts"][0, :, 1] = cache.accounts.committed[:, index] - demand.request
        cards = cache.cards.committed[index].copy()
        if demand.devices is not None:
            cards[(card_mask >> _CARD_BITS) & 1 == 1] -= demand.devices.milli
        indexes = np.array([index], np.uint32)
        cache.apply_feed(
            FeedUpdate(
                shard=shard,
                seq=cache.seqs[shard] + 1,
                accounts=AccountBatch(indexes, record, indexes, cards[None, :]),
                pods=(PodRun(group, np.array([index], np.intp), gone=True),),
            )
        )


async def live_ground(clients: Clients) -> LiveGround:
    """The platform as of now. Raises TransportError or LedgerUnavailable."""
    objects = await clients.dispatcher.list_objects()
    cache = NodeInfoCache()
    async for message in clients.resolver.feed_as_of_now("hoss explain"):
        cache.apply_feed(feed_update(message))
    cache.census.set_namespaces({item.name: item.all_labels for item in objects if isinstance(item, Namespace)})
    demands = DemandTable(cache.schema, cache.catalogue.images, cache.census)
    demands.set_services(item for item in objects if isinstance(item, Service))
    return LiveGround(cache, demands)
