"""What ListReservations tells of leases and workers, over real gRPC from a real ledger."""

import time

import numpy as np
import pytest
from integration.test_resolver_feed import node, proposal, propose

from hoss.client.resolver import ResolverClient
from hoss.wire.columns import I64, U64, decode
from hossctl.history.events import History
from hossctl.history.recorder_ledger import LedgerRecorder


@pytest.fixture
async def client(redis_server, start_resolver):
    client = ResolverClient([start_resolver(redis_server.url)])
    await client.upsert_nodes([node("a"), node("b")])
    await client.grant_epoch("w1")
    yield client
    await client.close()


async def details(client):
    (chunk,) = [chunk async for chunk in client.reservations(details=True)]
    since, ends = (
        decode(chunk.assumed_since_ms, I64, name="since"),
        decode(chunk.lease_ends_ms, I64, name="ends"),
    )
    return chunk, since, ends


async def test_assumed_ones_tell_their_lease_and_confirmed_ones_none_and_all_who_proposed_them(client):
    begun_ms = time.time() * 1000
    (first,) = await propose(client, proposal(1, [0, 1]))
    (second,) = await propose(client, proposal(2, [1]))
    await client.confirm({0: np.array([first.seq], np.uint64)})
    chunk, since, ends = await details(client)
    standing = decode(chunk.seqs, U64, name="seqs") == first.seq
    assert (since[standing].tolist(), ends[standing].tolist()) == ([0, 0], [0, 0])
    assert (ends - since)[~standing].tolist() == [30_000]
    assert begun_ms - 1 <= since[~standing][0] <= time.time() * 1000
    assert [(entry.epoch, entry.worker) for entry in chunk.workers] == [(1, "w1")]
    assert second.seq != first.seq


async def test_who_proposed_is_still_known_once_the_worker_has_a_new_epoch(client):
    await propose(client, proposal(1, [0]))
    assert await client.grant_epoch("w1") == 2
    chunk, _, _ = await details(client)
    assert [(entry.epoch, entry.worker) for entry in chunk.workers] == [(1, "w1")]


async def test_nobody_else_pays_for_it(client):
    await propose(client, proposal(1, [0]))
    (chunk,) = [chunk async for chunk in client.reservations()]
    assert (chunk.assumed_since_ms, chunk.lease_ends_ms, list(chunk.workers)) == (b"", b"", [])


async def test_a_recorder_takes_a_list_for_exact_only_if_it_is_from_the_history_that_the_feed_is_from(client):
    """One resolver may still read a master that was replaced, and has gone on differently."""
    await propose(client, proposal(1, [0, 1]))
    history = History(lambda: 0.0, source="test", sees=["accounts"])
    chunks = [chunk async for chunk in client.reservations(details=True)]
    assert [bool(chunk.nonce) for chunk in chunks] == [True]
    recorder = LedgerRecorder(client, history, lambda: None)
    assert (await recorder.list_reservations())["seqs"] == {"0": chunks[0].seq}
    chunks[0].nonce = "of another history"

    async def other(*, details):
        for chunk in chunks:
            yield chunk

    client.reservations = other
    listed = await recorder.list_reservations()
    assert (len(listed["rows"]), listed["seqs"]) == (2, {})
