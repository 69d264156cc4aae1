"""Workers over WorkerLink that keep to no protocol: the dispatcher names them, no pod is lost and no node is
sold twice."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
from e2e.cluster import Cluster
from e2e.loads import all_bound, assert_clean, prepare, submit
from waiting import until

from hoss.client.worker_link import DispatcherLink
from hoss.tasks import end_tasks
from hoss.v1 import workerlink_pb2 as pb
from hoss.wire.columns import NONE_U32, U8, U32, encode
from hossctl.endpoints import clients_of

PODS = 60


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    document = tmp_path / "dispatcher.yaml"
    document.write_text("apiVersion: hoss.dev/v1alpha1\nkind: DispatcherConfig\nwork_timeout_seconds: 2\n")
    with Cluster(tmp_path, dispatcher_flags=("--config", str(document))) as cluster:
        yield cluster


class LyingWorker:
    """Registers, beats, and answers work as it is told."""

    def __init__(self, answer: "Answer") -> None:
        self._answer = answer
        self.link: DispatcherLink
        self.work: list[pb.WorkBatch] = []

    def welcomed(self, welcome: pb.Welcome) -> None:
        pass

    def heartbeat(self) -> pb.Heartbeat:
        return pb.Heartbeat(ready=True)

    def received(self, message: pb.DispatcherMessage) -> None:
        if message.HasField("work"):
            self.work.append(message.work)
            for outcomes in self._answer(message.work):
                self.link.send(pb.WorkerMessage(outcomes=outcomes))


Answer = Callable[[pb.WorkBatch], list[pb.Outcomes]]


@asynccontextmanager
async def lying(cluster: Cluster, name: str, answer: Answer) -> AsyncIterator[LyingWorker]:
    worker = LyingWorker(answer)
    worker.link = DispatcherLink(
        cluster.endpoints.dispatcher.split(","), pb.Register(name=name, window=1000), worker
    )
    job = asyncio.create_task(worker.link.run())
    try:
        yield worker
    finally:
        await end_tasks((job,))


def outcomes(work: pb.WorkBatch, code: int, node: int, **fields: object) -> pb.Outcomes:
    pods = len(work.uids) // 16
    return pb.Outcomes(
        batch_id=work.batch_id,
        positions=encode(np.arange(pods), U32),
        codes=encode(np.full(pods, code), U8),
        nodes=encode(np.full(pods, node), U32),
        **fields,
    )


def of_another_batch(work: pb.WorkBatch) -> pb.Outcomes:
    message = outcomes(work, pb.OUTCOME_BOUND, 0)
    message.batch_id += 1000
    return message


NOT_THERE = 4_000_000
LIES: dict[str, Answer] = {
    "bound-and-not-reserved": lambda work: [outcomes(work, pb.OUTCOME_BOUND, 0)],
    "bound-on-a-node-that-is-not-there": lambda work: [outcomes(work, pb.OUTCOME_BOUND, NOT_THERE)],
    "bound-nowhere": lambda work: [outcomes(work, pb.OUTCOME_BOUND, NONE_U32)],
    "bound-by-a-commit-that-is-not-there": lambda work: [
        outcomes(work, pb.OUTCOME_BOUND, 0, commits=[pb.CommitRef(shard=0, seq=10**9)])
    ],
    "unreserved-and-not-reserved": lambda work: [outcomes(work, pb.OUTCOME_UNRESERVED, 0)],
    "of-a-code-that-is-not-there": lambda work: [outcomes(work, 99, 0)],
    "twice": lambda work: [outcomes(work, code, 0) for code in (pb.OUTCOME_CONFLICT, pb.OUTCOME_BOUND)],
    "for-another-batch": lambda work: [of_another_batch(work)],
    "never": lambda _work: [],
}
NAMED = ("twice", "for-another-batch")


def named(cluster: Cluster) -> set[str]:
    """Workers whose outcomes the dispatcher has ignored, and said so."""
    return {line["worker"] for line in cluster.events("dispatcher", "outcomes_ignored")}


@pytest.mark.parametrize(
    "lies",
    [
        pytest.param([lie for lie in LIES if lie.startswith("bound")], id="bound"),
        ["unreserved-and-not-reserved", "of-a-code-that-is-not-there"],
        ["twice", "for-another-batch", "never"],
    ],
    ids=" ".join,
)
async def test_workers_that_lie_lose_no_pod_and_sell_no_node_twice(cluster: Cluster, lies: list[str]) -> None:
    """One after the other, each with pods of its own and what others gave back; then one that is honest."""
    cluster.start_worker("honest")
    async with clients_of(cluster.endpoints) as clients:
        await prepare(clients, workers=1, nodes=20)
        await clients.dispatcher.set_worker_state("honest", "Cordoned")
        for name in lies:
            async with lying(cluster, name, LIES[name]) as liar:
                await submit(clients, jobs=1, replicas=PODS, name=name)
                await until(lambda: liar.work)
                if name in NAMED:  # while it is there: an answer that is under way may be lost with its link
                    await until(lambda name=name: name in named(cluster), f"{name} to be named")
        await clients.dispatcher.set_worker_state("honest", "Ready")
        pods = PODS * len(lies)

        async def all_reserved() -> bool:
            held = (await clients.resolver.status()).reservations
            return held == pods and await all_bound(clients, pods)

        await until(all_reserved)
        await assert_clean(clients, bound=pods)
    assert not cluster.events("dispatcher", "dispatcher_failed")
