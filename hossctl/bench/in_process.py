"""One worker's core without services: a cache filled from a list of nodes, and pods placed one after the other."""

from collections.abc import Iterable, Sequence

import numpy as np

from hoss.model.node import NodeSpec
from hoss.model.pod import PodSpec
from hoss.model.resources import ResourceSchema
from hoss.wire.account import CARD_SLOTS, NO_CARD, account_dtype
from hoss.wire.columns import numbered_uids
from scheduler_worker.core.cache import NodeInfoCache
from scheduler_worker.core.messages import AccountBatch, FeedUpdate
from scheduler_worker.core.profile import Profile
from scheduler_worker.core.scheduler import Limits, Scheduler

_PREFIX = b"in process.."  # of UIDs: 12 bytes


def empty_pool(nodes: Sequence[NodeSpec]) -> FeedUpdate:
    """The snapshot a ledger would send that holds these nodes and no pods."""
    schema = ResourceSchema()
    for node in nodes:
        schema.extend(name for name, _ in node.allocatable)
    records = np.zeros(len(nodes), account_dtype(len(schema)))
    records["seq"] = 1
    cards = np.full((len(nodes), CARD_SLOTS), NO_CARD, np.uint16)
    for row, node in enumerate(nodes):
        for name, amount in node.allocatable:
            records["amounts"][row, schema.get(name), 0] = amount
        cards[row, : node.cards] = 0
    carded = np.array([row for row, node in enumerate(nodes) if node.cards], np.uint32)
    accounts = AccountBatch(np.arange(len(nodes), dtype=np.uint32), records, carded, cards[carded])
    return FeedUpdate(0, 1, accounts, tuple(enumerate(nodes)), snapshot=True, shards=1, schema=tuple(schema.names))


def place_one_by_one(
    nodes: Sequence[NodeSpec], pods: Iterable[PodSpec], profile: Profile, *, seed: int
) -> NodeInfoCache:
    """Place each pod before looking at the next; pods that fit nowhere are left out. The cache holds all the others."""
    scheduler = Scheduler(NodeInfoCache(), profile, np.random.default_rng(seed), Limits(alternates=0))
    scheduler.cache.apply_feed(empty_pool(nodes))
    numbers: dict[PodSpec, int] = {}
    one, first_attempt = np.ones(1, np.uint32), np.zeros(1, np.uint16)
    for arrival, pod in enumerate(pods):
        if pod not in numbers:
            numbers[pod] = len(numbers)
            scheduler.define_class(numbers[pod], pod)
        number = np.array([numbers[pod]], np.uint32)
        scheduler.accept(arrival, numbered_uids(_PREFIX, arrival, 1), number, one, first_attempt)
        scheduler.step()
        scheduler.take_proposals(now=0.0)
        scheduler.take_outcomes()
    return scheduler.cache
