"""`hoss get --watch` as people use it: a process that tells what changes, until Ctrl-C."""

import asyncio
import contextlib
import os
import queue
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.cluster import Cluster
from fork_server import FORK_SERVER
from waiting import DEADLINE_SECONDS, wait_until

from hoss.model.node import NodeSpec
from hossctl.endpoints import clients_of


class Watch:
    """A command that goes on, and the lines it writes."""

    def __init__(self, cluster: Cluster, *arguments: str) -> None:
        there = cluster.endpoints
        environment = {**os.environ, "HOSS_DISPATCHER": there.dispatcher, "HOSS_RESOLVER": there.resolver}
        reading, writing = os.pipe()
        command = ["get", *arguments, "--watch"]
        self.process = FORK_SERVER.start("hossctl", command, stdout=writing, stderr=writing, env=environment)
        os.close(writing)
        self._output = os.fdopen(reading)
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        with self._output as lines:
            for line in lines:
                self._lines.put(line.rstrip())

    def until(self, *words: str) -> list[str]:
        """What is written up to the line that has all of these."""
        lines: list[str] = []

        def written() -> bool:
            with contextlib.suppress(queue.Empty):
                lines.append(self._lines.get_nowait())
            return bool(lines) and set(words) <= set(lines[-1].split())

        wait_until(written, lambda: f"a line with {words}, after {lines}")
        return lines

    def interrupt(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(DEADLINE_SECONDS)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path, dispatchers=2)
    yield cluster
    cluster.stop()


def test_workers_are_watched_through_a_fail_over_until_ctrl_c(cluster: Cluster) -> None:
    cluster.start_worker("w1")
    watch = Watch(cluster, "workers")
    try:
        watch.until("NAME", "STATE")  # perhaps after a line that says that there are no workers yet
        watch.until("w1", "Ready")
        cluster.start_worker("w2")
        assert not any(line.startswith("NAME") for line in watch.until("w2", "Ready"))
        cluster.kill("dispatcher")
        cluster.start_worker("w3")
        watch.until("w3", "Ready")  # by the other dispatcher's word
        assert watch.interrupt() == 130
    finally:
        watch.close()


async def test_of_nodes_those_that_changed_are_told(cluster: Cluster) -> None:
    async def set_nodes(**cpus: int) -> None:
        nodes = [
            NodeSpec(name, allocatable=(("cpu", cpu * 1000), ("pods", 10))) for name, cpu in cpus.items()
        ]
        async with clients_of(cluster.endpoints) as clients:
            await clients.resolver.upsert_nodes(nodes)

    await set_nodes(n1=1, n2=1)
    watch = Watch(cluster, "nodes")
    try:
        assert len(await asyncio.to_thread(watch.until, "n2")) == 3
        await set_nodes(n1=1, n2=3)
        assert [line.split()[0] for line in await asyncio.to_thread(watch.until, "n2")] == ["n2"]
        assert await asyncio.to_thread(watch.interrupt) == 130
    finally:
        watch.close()
