"""Proposals as a worker sends them, for tests that talk to a real resolver."""

import asyncio

import numpy as np
from waiting import DEADLINE_SECONDS, until

from hoss.model.node import NodeSpec
from hoss.v1 import resolver_pb2 as pb
from hoss.wire.columns import numbered_uids

NODES = [NodeSpec(f"n{i}", allocatable=(("cpu", 1000), ("memory", 2**30), ("pods", 10))) for i in range(4)]


def batch(batch_id, nodes, *, cpu=100, first=0, **fields):
    """A proposal of one pod for each of `nodes`, all in one slot."""
    requests = np.array([cpu, 0, 0, 1, 0, 0], "<i8")
    count = len(nodes)
    columns = {
        "worker": "w1",
        "epoch": 1,
        "batch_id": batch_id,
        "snapshot_seq": 2**40,
        "resources": 6,
        "uids": numbered_uids(b"test-prefix-", first, count).tobytes(),
        "slots": bytes(2 * count),
        "candidates": 1,
        "nodes": np.array(nodes, "<u4").tobytes(),
        "requests": requests.tobytes(),
        "priorities": bytes(4),
        "attempts": bytes(2),
    }
    return pb.ProposalBatch(**(columns | fields))


class Stream:
    """A Propose stream, one query at a time."""

    def __init__(self, client):
        self._call = client.stub.Propose()

    async def ask(self, message):
        await self._call.write(message)
        return await asyncio.wait_for(self._call.read(), DEADLINE_SECONDS)

    async def ask_until(self, message, accepts):
        """Ask again, as workers do, until the answer is accepted."""
        answers = []

        async def accepted():
            answers.append(await self.ask(message))
            return accepts(answers[-1])

        await until(accepted, lambda: f"another answer than {answers[-1]}")
        return answers[-1]
