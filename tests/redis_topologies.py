"""Redis as it is run: one server, a master under Sentinel, a Cluster of three masters. Real processes on loopback."""

import contextlib
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import redis

from hossctl.redis_server import RedisServer, find_redis_server

SERVICE = "hoss"
MASTERS = 3
_SLOTS = 16384
_BUS_PORT_OFFSET = 10_000
_SECONDS = 30.0


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for it; what cannot be asked yet is not so yet."""
    deadline = time.monotonic() + _SECONDS
    while True:
        with contextlib.suppress(redis.RedisError, OSError):
            if condition():
                return
        assert time.monotonic() < deadline, f"not within {_SECONDS} s: {what}"
        time.sleep(0.05)


class SentinelSetup:
    """A master, its replica, and a Sentinel that promotes the replica when the master is silent for a second."""

    def __init__(self, directory: Path) -> None:
        self.master = RedisServer.start(directory / "master", append_only=True)
        self.replica = RedisServer.start(directory / "replica", append_only=True)
        with redis.Redis(port=self.replica.port) as client:
            client.replicaof("127.0.0.1", self.master.port)
        self.sentinel_port = _free_port()
        file = directory / "sentinel.conf"
        file.write_text(
            f"port {self.sentinel_port}\nbind 127.0.0.1\ndir {directory}\n"
            f"sentinel monitor {SERVICE} 127.0.0.1 {self.master.port} 1\n"
            f"sentinel down-after-milliseconds {SERVICE} 1000\nsentinel failover-timeout {SERVICE} 5000\n"
        )
        self._sentinel = subprocess.Popen(
            [str(find_redis_server()), str(file), "--sentinel"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self.url = f"redis+sentinel://127.0.0.1:{self.sentinel_port}/{SERVICE}/0"
        until(self._knows_the_replica, "Sentinel knows master and replica")

    def _knows_the_replica(self) -> bool:
        with redis.Redis(port=self.sentinel_port) as sentinel, redis.Redis(port=self.replica.port) as replica:
            linked = replica.info("replication")["master_link_status"] == "up"
            return linked and len(sentinel.execute_command("SENTINEL", "REPLICAS", SERVICE)) == 1

    def flush(self) -> None:
        """Empty it, scripts included."""
        with redis.Redis(port=self.master.port) as client:
            client.flushall()
            client.script_flush()

    def stop(self) -> None:
        """End every process."""
        self._sentinel.kill()
        self._sentinel.wait()
        self.replica.kill()
        self.master.kill()


class ClusterSetup:
    """Three masters that share the slots, and where asked a replica of the first."""

    def __init__(self, directory: Path, *, replica: bool = False) -> None:
        self.servers = [
            RedisServer.start(
                directory / f"server-{number}",
                port=_free_cluster_port(),
                append_only=True,
                options={"cluster-enabled": "yes", "cluster-node-timeout": "1000", "cluster-config-file": "nodes.conf"},
            )
            for number in range(MASTERS + replica)
        ]
        self.url = "redis+cluster://" + ",".join(f"127.0.0.1:{server.port}" for server in self.servers)
        clients = [redis.Redis(port=server.port) for server in self.servers]
        bounds = [_SLOTS * number // MASTERS for number in range(MASTERS + 1)]
        for number, client in enumerate(clients[:MASTERS]):
            client.execute_command("CLUSTER", "ADDSLOTS", *range(bounds[number], bounds[number + 1]))
            client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for server in self.servers[1:]:
            clients[0].execute_command("CLUSTER", "MEET", "127.0.0.1", server.port)
        until(lambda: all(_cluster_state(c, len(clients)) for c in clients), "the servers form a Cluster")
        if replica:
            first = clients[0].execute_command("CLUSTER", "MYID").decode()
            clients[-1].execute_command("CLUSTER", "REPLICATE", first)
            until(lambda: clients[-1].info("replication")["master_link_status"] == "up", "the replica follows")
        for client in clients:
            client.close()

    def flush(self) -> None:
        """Empty it, scripts included."""
        for server in self.servers[:MASTERS]:
            with redis.Redis(port=server.port) as client:
                client.flushall()
                client.script_flush()

    def stop(self) -> None:
        """End every process."""
        for server in self.servers:
            server.kill()


def _cluster_state(client: redis.Redis, servers: int) -> bool:
    said = client.execute_command("CLUSTER", "INFO")
    facts = said if isinstance(said, dict) else dict(line.split(":") for line in said.decode().split())
    return facts["cluster_state"] == "ok" and int(facts["cluster_known_nodes"]) == servers


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _free_cluster_port() -> int:
    """A port whose bus port is free too."""
    for port in _candidates():
        with contextlib.suppress(OSError), socket.socket() as bus:
            bus.bind(("127.0.0.1", port + _BUS_PORT_OFFSET))
            return port
    raise AssertionError("unreachable")


def _candidates() -> Iterator[int]:
    while True:
        port = _free_port()
        if port + _BUS_PORT_OFFSET < 2**16:
            yield port
