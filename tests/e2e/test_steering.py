"""Four workers that contend for few nodes: conflicts are told by pair, the dispatcher acts by itself, and
people can fix it."""

import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from e2e.cluster import Cluster
from e2e.loads import assert_clean, prepare
from waiting import DEADLINE_SECONDS, until

from hoss.client.dispatcher import submission
from hoss.model.pod import PodSpec, PodTemplate, Workload
from hoss.v1 import dispatcher_pb2 as pb
from hossctl.endpoints import Clients, clients_of

WORKERS = 4
NODES = 40
FITTING_PODS = 160  # at once
# While one decides, the others take what it has seen free: conflicts on a machine of any speed.
SLOW_DECISIONS = ("--decision-job-ms", "100")
CONFIG = """\
apiVersion: hoss.dev/v1alpha1
kind: DispatcherConfig
steering: {window_seconds: 0.5}
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A dispatcher that judges by half a second of work, so that a test need not contend for long."""
    with Cluster(tmp_path) as cluster:
        config = tmp_path / "dispatcher.yaml"
        config.write_text(CONFIG)
        cluster.kill("dispatcher")
        cluster.start_dispatcher("dispatcher", "--config", str(config))
        for number in range(WORKERS):
            cluster.start_worker(f"w{number}", options=SLOW_DECISIONS)
        yield cluster


async def test_conflicts_are_answered_by_a_soft_partition_and_nothing_is_lost(cluster: Cluster) -> None:
    async with clients_of(cluster.endpoints) as clients:
        await prepare(clients, workers=WORKERS, nodes=NODES)
        told = await _contend_until(clients, lambda: _answered(clients))
        begun = next(step for step in told.steering.steps if "conflicts are above" in step.reason)
        assert begun.overlap == "soft-partition"
        _assert_attributed(told)
        await _delete_all(clients)
        await assert_clean(clients, bound=0)


@pytest.mark.thorough
async def test_conflicts_are_fewer_with_a_soft_partition(cluster: Cluster) -> None:
    async with clients_of(cluster.endpoints) as clients:
        await prepare(clients, workers=WORKERS, nodes=NODES)
        shares = {}
        for overlap in ("shared", "soft-partition"):
            await clients.dispatcher.steer(overlap, "auto")
            before = await clients.dispatcher.conflicts()
            for turn in range(3):
                await _submit(clients, f"{overlap}-{turn}", pods=FITTING_PODS)
                await _delete_all(clients)
            after = await clients.dispatcher.conflicts()
            shares[overlap] = (after.refused - before.refused) / (after.proposed - before.proposed)
        assert shares["soft-partition"] < shares["shared"] / 2, shares


async def test_what_is_fixed_by_hand_stays_whatever_the_conflicts(cluster: Cluster) -> None:
    async with clients_of(cluster.endpoints) as clients:
        await prepare(clients, workers=WORKERS, nodes=NODES)
        fixed = await clients.dispatcher.steer("shared", "2")
        assert (fixed.overlap, fixed.workers, fixed.reason) == ("shared", 2, "by hand")
        told = await _contend_until(clients, lambda: _refused(clients, 100))
        assert [step.reason for step in told.steering.steps[1:]] == ["by hand"]
        _assert_attributed(told)
        assert {pair.loser for pair in told.pairs} <= {"w0", "w1"}, "others than the two at work were refused"
        assert {worker.name for worker in await clients.dispatcher.list_workers() if worker.bound} == {
            "w0",
            "w1",
        }
        free = await clients.dispatcher.steer("auto", "auto")
        assert (free.overlap_fixed, free.workers_fixed) == (False, False)
        await _delete_all(clients)
        await assert_clean(clients, bound=0)


async def _contend_until(
    clients: Clients, reached: Callable[[], Awaitable[pb.Conflicts | None]]
) -> pb.Conflicts:
    """Fill the nodes again and again."""
    deadline = time.monotonic() + 2 * DEADLINE_SECONDS
    turn = 0
    while time.monotonic() < deadline:
        turn += 1
        await _submit(clients, f"pod-{turn}", pods=4 * FITTING_PODS)
        if (conflicts := await reached()) is not None:
            return conflicts
        await _delete_all(clients)
    pytest.fail(f"not reached in {turn} turns: {await clients.dispatcher.conflicts()}")


async def _submit(clients: Clients, name: str, pods: int) -> None:
    """And wait until each is bound or told that there is no room. No two are alike, and few fit on a node."""
    specs = [PodSpec(requests=(("cpu", 6000 + 10 * i), ("memory", 2**30))) for i in range(pods)]
    workloads = [Workload(f"{name}-{i}", PodTemplate(spec)) for i, spec in enumerate(specs)]
    for request in submission(workloads):
        await clients.dispatcher.submit(request)
    await _until_settled(clients)


async def _until_settled(clients: Clients) -> None:
    async def nobody_is_under_way() -> bool:
        phases = (await clients.dispatcher.status()).pods_by_phase
        return not phases["QUEUED"] + phases["SCHEDULING"] + phases["BACKOFF"]

    await until(nobody_is_under_way, "all pods to be settled")


async def _delete_all(clients: Clients) -> None:
    names = [pod.name async for pod in clients.dispatcher.list_pods("default")]
    await clients.dispatcher.delete("default", pods=names)

    async def given_back() -> bool:
        return not (await clients.resolver.status()).reservations

    await until(given_back, "the reservations of deleted pods to go")


async def _answered(clients: Clients) -> pb.Conflicts | None:
    conflicts = await clients.dispatcher.conflicts()
    return conflicts if any("conflicts are above" in s.reason for s in conflicts.steering.steps) else None


async def _refused(clients: Clients, least: int) -> pb.Conflicts | None:
    conflicts = await clients.dispatcher.conflicts()
    return conflicts if conflicts.refused >= least else None


def _assert_attributed(conflicts: pb.Conflicts) -> None:
    """To pairs of different workers, nodes, reasons and ages."""
    names = {f"w{number}" for number in range(WORKERS)}
    pairs = [pair for pair in conflicts.pairs if pair.winner and pair.winner != pair.loser]
    assert {pair.loser for pair in pairs} | {pair.winner for pair in pairs} <= names
    assert (
        sum(pair.pods for pair in pairs) > 0
    )  # the others hit own pods that were moved out of each other's way, mostly
    assert {pair.reason for pair in pairs} == {"CONFLICT_RESOURCE"}
    assert all(node.node.startswith("node-") for node in conflicts.nodes)
    assert sum(conflicts.seqs_behind) == sum(conflicts.ages_ms) == sum(pair.pods for pair in conflicts.pairs)
