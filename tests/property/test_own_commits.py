"""A cache that hears of refusals alone: whatever order verdicts and accounts come in, each own commit counts
exactly once.

The ledger here is a number per node. Accounts of any moment are delivered at any later one, verdicts
likewise."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hoss.model.node import NodeSpec
from hoss.model.resources import BASE_RESOURCES, PODS
from hoss.wire.columns import account_dtype
from scheduler_worker.core.cache.assumptions import Assumption
from scheduler_worker.core.cache.node_info import NodeInfoCache
from scheduler_worker.core.messages import AccountBatch, FeedUpdate

NODES = 3

nodes = st.lists(st.integers(0, NODES - 1), min_size=1, max_size=4)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("commit"), nodes),  # of this worker: its verdict is on its way
        st.tuples(st.just("others"), nodes),  # another worker's: only accounts tell of it
        st.tuples(st.just("verdict"), st.integers(0, 5)),
        st.tuples(st.just("look"), nodes),  # accounts that a refusal brings: on their way
        st.tuples(st.just("account"), st.integers(0, 5)),
    ),
    min_size=15,  # few short histories go wrong
    max_size=40,
)


class World:
    """The ledger's pods by node, and the cache of one worker."""

    def __init__(self):
        self.seq, self.pods, self.changed = 1, np.zeros(NODES, np.int64), np.ones(NODES, np.uint64)
        self.cache = NodeInfoCache()
        self.own = np.zeros(NODES, np.int64)  # assumed or committed by this worker
        self.verdicts, self.looks = [], []
        specs = tuple((index, NodeSpec(f"n{index}")) for index in range(NODES))
        accounts = self.accounts(range(NODES))
        self.cache.apply_feed(
            FeedUpdate(0, 1, accounts, specs, snapshot=True, shards=1, schema=BASE_RESOURCES)
        )

    def accounts(self, indexes):
        indexes = np.unique(np.array(indexes, np.uint32))
        records = np.zeros(len(indexes), account_dtype(len(BASE_RESOURCES)))
        records["seq"] = self.changed[indexes]
        records["amounts"][:, PODS, 0] = 1000
        records["amounts"][:, PODS, 1] = self.pods[indexes]
        empty = AccountBatch.empty()
        return AccountBatch(indexes, records, empty.card_indexes, empty.cards)

    def change(self, chosen):
        self.seq += 1
        np.add.at(self.pods, chosen, 1)
        self.changed[chosen] = self.seq

    def commit(self, chosen):
        requests = np.zeros((1, len(BASE_RESOURCES)), np.int64)
        requests[0, PODS] = 1
        count = len(chosen)
        pods = Assumption(
            nodes=np.array(chosen, np.intp),
            slots=np.zeros(count, np.intp),
            requests=requests,
            card_masks=np.zeros(count, np.uint16),
            card_millis=np.zeros(1, np.uint16),
            expires_at=1.0,
        )
        self.cache.vacate(pods)  # counts the amounts, which are positive here, and tracks them
        np.add.at(self.own, chosen, 1)
        self.change(chosen)
        self.verdicts.append((pods, self.seq))

    def hear(self, which):
        if self.verdicts:
            pods, seq = self.verdicts.pop(which % len(self.verdicts))
            self.cache.confirm(pods, 0, seq)
            self.cache.adopt()

    def see(self, which):
        if self.looks:
            self.cache.apply_fresh(self.looks.pop(which % len(self.looks)))

    def requested(self):
        cache = self.cache
        assert (cache.requested == cache.accounts.committed + cache.assumed).all()
        return cache.requested[PODS, :NODES]


@given(steps)
def test_own_commits_count_once_and_never_less_and_fresh_accounts_make_the_cache_the_ledgers(history):
    world = World()
    for step, value in history:
        match step:
            case "commit":
                world.commit(value)
            case "others":
                world.change(value)
            case "verdict":
                world.hear(value)
            case "look":
                world.looks.append(world.accounts(value))
            case "account":
                world.see(value)
        assert (world.requested() >= world.own).all()
        if not world.verdicts:  # an own pod counts twice while an account tells of it before its verdict does
            assert (world.requested() <= world.pods).all()
    while world.verdicts:
        world.hear(0)
    while world.looks:
        world.see(0)
    world.cache.apply_fresh(world.accounts(range(NODES)))
    assert (world.requested() == world.pods).all()
    assert not world.cache.assumed.any()
    assert world.cache.expire(now=1e9) == 0
