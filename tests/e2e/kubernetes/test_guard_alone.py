"""The guard alone: HOSS places nothing, and two resolvers behind a Service judge what others bind."""

import asyncio
import concurrent.futures
import contextlib
import json
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from e2e.cluster import Cluster
from e2e.kubernetes.agreement import assigned, reserved, run_hoss
from e2e.kubernetes.api import Api
from e2e.kubernetes.guarded import await_guard, install
from waiting import DEADLINE_SECONDS, wait_until

from hossctl.local.control_plane import ControlPlane
from hossctl.local.ports import free_ports

_PASSED = "apiserver_admission_webhook_fail_open_count"


class Service:
    """As the API server meets one: it listens on `port` of loopback, and a connection goes to one of the
    `endpoints`, ports of loopback, in turns. It goes to the next one where nobody listens."""

    def __init__(self, endpoints: Sequence[int]) -> None:
        self.port = 0
        self._endpoints = list(endpoints)
        self._loop = asyncio.new_event_loop()
        self._over = asyncio.Event()
        ready = threading.Event()
        serving = self._serve(ready)
        self._thread = threading.Thread(target=lambda: self._loop.run_until_complete(serving), daemon=True)
        self._thread.start()
        assert ready.wait(DEADLINE_SECONDS), "the Service does not start"

    def stop(self) -> None:
        """End it, with every connection."""
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(DEADLINE_SECONDS)
        self._loop.close()

    async def _serve(self, ready: threading.Event) -> None:
        server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        ready.set()
        await self._over.wait()
        server.close()
        connections = asyncio.all_tasks() - {asyncio.current_task()}
        for connection in connections:
            connection.cancel()
        await asyncio.gather(*connections, return_exceptions=True)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._endpoints.append(self._endpoints.pop(0))
        for port in list(self._endpoints):
            with contextlib.suppress(OSError):
                there, back = await asyncio.open_connection("127.0.0.1", port)
                await asyncio.gather(_pass_on(reader, back), _pass_on(there, writer))
                return
        writer.transport.abort()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Everything, and the end."""
    with contextlib.suppress(OSError):
        while part := await reader.read(2**16):
            writer.write(part)
            await writer.drain()
    writer.close()


@pytest.fixture
def alone(tmp_path: Path, api: Api, control_plane: ControlPlane) -> Iterator[Cluster]:
    """Two resolvers and a dispatcher, and the node `n1` of ten cores."""
    ports = free_ports(2)
    service = Service(ports)
    install(api, f"https://127.0.0.1:{service.port}/bindings", failure_policy="Ignore")
    document = tmp_path / "dispatcher.yaml"
    section = {"kubeconfig": str(control_plane.kubeconfig), "scheduler_names": []}
    kind = {"apiVersion": "hoss.dev/v1alpha1", "kind": "DispatcherConfig", "kubernetes": section}
    document.write_text(json.dumps(kind))
    cluster = Cluster(
        tmp_path,
        kubeconfig=control_plane.kubeconfig,
        resolvers=2,
        webhook_ports=ports,
        dispatcher_flags=("--config", str(document)),
    )
    await_guard(api)
    api.create_node("n1", cpu="10")
    wait_until(lambda: "n1" in run_hoss(cluster, "get", "nodes"), "HOSS knows the node")
    yield cluster
    cluster.stop()
    service.stop()


def passed(api: Api) -> int:
    """How many bindings the API server has let pass without an answer, since it was started."""
    lines = bytes(api("GET", "/metrics")).decode().splitlines()
    return sum(int(line.rpartition(" ")[2]) for line in lines if line.startswith(_PASSED))


def test_of_two_resolvers_the_living_one_answers_and_what_the_dead_one_was_asked_is_counted_once(
    alone: Cluster, api: Api
) -> None:
    before = passed(api)

    def bind(name: str) -> int:
        return api.bind(api.create_pod(name, cpu="100m"), "n1")[0]

    with concurrent.futures.ThreadPoolExecutor(4) as several:
        bound = several.map(bind, [f"p{number}" for number in range(60)])
        assert [next(bound) for _ in range(10)] == [201] * 10
        alone.kill("resolver")
        assert set(bound) == {201}  # those that the dead one was asked in its last moment pass by Ignore
    unanswered = passed(api) - before
    assert {bind(f"q{number}") for number in range(40)} == {201}
    assert bind("too-much") == 403
    assert passed(api) - before == unanswered, "the living one has answered"
    wait_until(lambda: reserved(alone) == assigned(api), "the ledger says what the API server says")
    assert "clean (1 node, 100 reservations" in run_hoss(alone, "audit")
    counters = json.loads(run_hoss(alone, "status", "-o", "json"))["dispatcher"]["counters"]
    assert "no worker" not in run_hoss(alone, "status"), "nothing waits for one"
    # The dead one may have reserved for some of them.
    assert counters.get("bindings_unreviewed", 0) <= unanswered
