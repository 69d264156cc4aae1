"""Workers over WorkerLink that keep to no protocol: the dispatcher names them, no pod is lost and no node is sold
twice."""

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
from hossctl.endpoints import Clients, clients_of

PODS = 60


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    document = tmp_path / "dispatcher.yaml"
    document.write_text("apiVersion: hoss.dev/v1alpha1\nkind: DispatcherConfig\nwork_timeout_seconds: 2\n")
    cluster = Cluster(tmp_path, dispatcher_flags=("--config", str(document)))
    try:
        yield cluster
    finally:
        cluster.stop()


class LyingWorker:
    """Registers, beats, and answers work as it is told."""

    def __init__(self, answer: Callable[[pb.WorkBatch], list[pb.Outcomes]]) -> None:
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


@asynccontextmanager
async def lying(
    cluster: Cluster, answer: Callable[[pb.WorkBatch], list[pb.Outcomes]]
) -> AsyncIterator[LyingWorker]:
    worker = LyingWorker(answer)
    worker.link = DispatcherLink(
        cluster.endpoints.dispatcher.split(","), pb.Register(name="liar", window=1000), worker
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


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(lambda work: [outcomes(work, pb.OUTCOME_BOUND, 0)], id="bound-and-not-reserved"),
        pytest.param(lambda work: [outcomes(work, pb.OUTCOME_BOUND, NOT_THERE)], id="bound-on-no-node"),
        pytest.param(lambda work: [outcomes(work, pb.OUTCOME_BOUND, NONE_U32)], id="bound-nowhere"),
        pytest.param(
            lambda work: [
                outcomes(work, pb.OUTCOME_BOUND, 0, commits=[pb.CommitRef(shard=0, seq=10**9)])
            ],
            id="a-commit-that-is-not-there",
        ),
        pytest.param(lambda work: [outcomes(work, pb.OUTCOME_UNRESERVED, 0)], id="unreserved-and-not-reserved"),
        pytest.param(lambda work: [outcomes(work, 99, 0)], id="a-code-that-is-not-there"),
        pytest.param(
            lambda work: [outcomes(work, code, 0) for code in (pb.OUTCOME_CONFLICT, pb.OUTCOME_BOUND)],
            id="twice",
        ),
        pytest.param(lambda work: [of_another_batch(work)], id="for-another-batch"),
        pytest.param(lambda _work: [], id="never"),
    ],
)  # fmt: skip
async def test_a_worker_that_lies_loses_no_pod_and_sells_no_node_twice(
    cluster: Cluster, answer: Callable[[pb.WorkBatch], list[pb.Outcomes]]
) -> None:
    async with clients_of(cluster.endpoints) as clients:
        cluster.start_worker("honest")
        await prepare(clients, workers=1, nodes=20)
        await clients.dispatcher.set_worker_state("honest", "Cordoned")
        async with lying(cluster, answer) as liar:
            await submit(clients, jobs=1, replicas=PODS)
            await until(lambda: liar.work)
            await until(lambda: known_by_the_dispatcher(clients))
        await clients.dispatcher.set_worker_state("honest", "Ready")
        await until(lambda: all_bound(clients, PODS))
        await until(lambda: all_reserved(clients))
        await assert_clean(clients, bound=PODS)
    assert not cluster.events("dispatcher", "dispatcher_failed")


async def known_by_the_dispatcher(clients: Clients) -> bool:
    return any(worker.name == "liar" for worker in await clients.dispatcher.list_workers())


async def all_reserved(clients: Clients) -> bool:
    return (await clients.resolver.status()).reservations == PODS and await all_bound(clients, PODS)
