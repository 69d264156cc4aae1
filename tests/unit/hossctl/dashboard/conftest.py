"""Feed messages about nodes, as a resolver sends them."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from hoss.model.resources import BASE_RESOURCES
from hoss.v1 import resolver_pb2 as pb
from hoss.wire.columns import CARD_SLOTS, NO_CARD, account_dtype


@pytest.fixture
def feed() -> Callable[..., pb.FeedMessage]:
    """`feed({0: ("n0", 4000, 1000)}, snapshot=True)`: index -> name, allocatable and requested cpu; a name of
    None: removed."""

    def build(
        nodes: dict[int, tuple[str | None, int, int]],
        *,
        snapshot: bool = False,
        flags: int = 0,
        cards: dict[int, Sequence[int]] | None = None,
        shard: int = 0,
        shards: int = 1,
    ) -> pb.FeedMessage:
        message = pb.FeedMessage(shard=shard, shards=shards, snapshot=snapshot, schema=BASE_RESOURCES)
        records = np.zeros(len(nodes), account_dtype(len(BASE_RESOURCES)))
        for record, (index, (name, allocatable, requested)) in zip(records, nodes.items(), strict=True):
            entry = message.nodes.add(index=index, removed=name is None)
            if name is not None:
                entry.spec.name = name
                entry.spec.cards = len(cards.get(index, ())) if cards else 0
            record["amounts"][0] = allocatable, requested
            record["flags"] = flags
        message.accounts.resources = len(BASE_RESOURCES)
        message.accounts.indexes = np.array(list(nodes), "<u4").tobytes()
        message.accounts.records = records.tobytes()
        if cards:
            slots = np.full((len(cards), CARD_SLOTS), NO_CARD, "<u2")
            for row, used in zip(slots, cards.values(), strict=True):
                row[: len(used)] = used
            message.accounts.card_indexes = np.array(list(cards), "<u4").tobytes()
            message.accounts.cards = slots.tobytes()
        return message

    return build
