"""The containers of deploy/docker-compose.yml as processes: with the credentials that its first service
makes, its very commands, and Redis behind its ACL file. tests/e2e/test_compose.py runs them in an engine,
where there is one."""

import asyncio
import contextlib
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import redis
import yaml
from fork_server import FORK_SERVER
from waiting import DEADLINE_SECONDS, wait_until

from hoss.client.access import ClientAccess
from hoss.client.dispatcher import DispatcherClient
from hoss.errors import HossError
from hoss.host import THIS_HOST
from hoss.redis.accounts import DISPATCHER
from hoss.security.authority import Authority
from hoss.security.transport import server_name
from hossctl.local.deployment import Deployment
from hossctl.local.ports import free_ports
from hossctl.local.process import ServiceProcess, stop_all
from hossctl.local.redis_server import find_redis_server

DEPLOY = Path(__file__).parents[2] / "deploy"
SERVICES = yaml.safe_load((DEPLOY / "docker-compose.yml").read_text())["services"]
VOLUMES = "/var/lib/hoss"
JOB = """\
apiVersion: batch/v1
kind: Job
metadata: {name: j}
spec: {parallelism: 100, template: {spec: {containers: [{name: c, image: i}]}}}
"""


class Composed:
    """Redis, one resolver, the dispatcher and one worker of the compose file, on loopback."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.credentials = directory / "credentials"
        self.ports = dict(zip(("redis", "resolver", "dispatcher"), free_ports(3), strict=True))
        self._services: list[ServiceProcess] = []
        self._redis: subprocess.Popen[bytes] | None = None

    def command(self, name: str) -> list[str]:
        """Of a service, with the volumes, files and addresses of this machine."""
        replaced = {
            VOLUMES: str(self.credentials),
            "/etc/redis": str(self.credentials / "redis"),
            "/etc/hoss": str(DEPLOY),
            "0.0.0.0:9464": "127.0.0.1:0",
            "0.0.0.0:7071": "127.0.0.1:0",
            "0.0.0.0:7090": "127.0.0.1:0",
            "0.0.0.0:7080": f"127.0.0.1:{self.ports['resolver']}",
            "0.0.0.0:7070": f"127.0.0.1:{self.ports['dispatcher']}",
            "resolver:7080": f"127.0.0.1:{self.ports['resolver']}",
            "dispatcher:7070": f"127.0.0.1:{self.ports['dispatcher']}",
            "@redis:6379": f"@127.0.0.1:{self.ports['redis']}",
        }
        words: list[str] = SERVICES[name]["command"]
        for old, new in replaced.items():
            words = [word.replace(old, new) for word in words]
        return words

    def make_credentials(self) -> None:
        module, *arguments = self.command("credentials")
        done = FORK_SERVER.run(module, arguments, timeout=DEADLINE_SECONDS)
        assert done.returncode == 0, done.stderr

    def start(self) -> None:
        (self.directory / "data").mkdir()
        self._start_redis()
        for name in ("resolver", "dispatcher"):
            self._start(name)
        module, *arguments = self.command("nodes")
        environment = {"HOSS_TLS_DIR": str(self.credentials / "operator")}
        done = FORK_SERVER.run(module, arguments, env=environment, timeout=DEADLINE_SECONDS)
        assert done.returncode == 0, done.stderr
        self._start("dashboard")
        self._start("worker")

    def restart(self, name: str) -> None:
        """As an engine does after the end of a container: the same command, with the same volumes. Services
        are killed; Redis is asked to end, as whoever updates its image does."""
        if name == "redis":
            assert self._redis is not None
            self._redis.terminate()
            self._redis.wait(DEADLINE_SECONDS)
            self._start_redis()
            return
        (old,) = (service for service in self._services if service.record.name == name)
        with contextlib.suppress(ProcessLookupError):
            os.kill(old.record.pid, signal.SIGKILL)
        stop_all([old.record])
        self._services.remove(old)
        self._start(name)

    def _start_redis(self) -> None:
        _, *arguments = self.command("redis")
        place = ["--port", str(self.ports["redis"]), "--dir", str(self.directory / "data")]
        self._redis = subprocess.Popen(
            [str(find_redis_server()), *arguments, *place], stdout=subprocess.DEVNULL
        )
        wait_until(self._redis_answers, "Redis to answer")

    def healthy(self, name: str, port: int) -> bool:
        """By the service's own health check."""
        *_, module, address, directory = SERVICES[name]["healthcheck"]["test"]
        arguments = [f"127.0.0.1:{port}", directory.replace(VOLUMES, str(self.credentials))]
        assert address.startswith("127.0.0.1:")
        command = [sys.executable, "-m", module, *arguments]
        return subprocess.run(command, timeout=DEADLINE_SECONDS, check=False).returncode == 0

    @property
    def worker_port(self) -> int:
        return int(self._services[-1].record.address.rpartition(":")[2])

    def metrics(self, name: str) -> str:
        """Where a service shows its metrics."""
        return next(service.record.metrics for service in self._services if service.record.name == name)

    def scraped(self, job: Mapping[str, Any]) -> str:
        """What Prometheus reads by a job of its configuration."""
        tls, port = job["tls_config"], int(self.metrics(job["job_name"]).rpartition(":")[2])
        ca, certificate, key = (
            tls[file].replace(VOLUMES, str(self.credentials)) for file in ("ca_file", "cert_file", "key_file")
        )
        context = ssl.create_default_context(cafile=ca)
        context.load_cert_chain(certificate, key)
        with (
            socket.create_connection(("127.0.0.1", port), DEADLINE_SECONDS) as plain,
            context.wrap_socket(plain, server_hostname=tls["server_name"]) as connection,
        ):
            connection.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            return connection.makefile("rb").read().decode()

    def stop(self) -> None:
        stop_all([service.record for service in reversed(self._services)])
        if self._redis is not None:
            self._redis.kill()
            self._redis.wait()

    def _start(self, name: str) -> None:
        module, *arguments = self.command(name)
        # Where the compose file has them listen, and not on loopback, metrics are behind this by themselves.
        arguments += [] if name == "dashboard" else ["--metrics-tls"]
        service = ServiceProcess(name, module, arguments, self.directory / "logs")
        self._services.append(service)
        service.wait_ready(time.monotonic() + DEADLINE_SECONDS)

    def _redis_answers(self) -> bool:
        with redis.Redis(port=self.ports["redis"]) as stranger:
            try:
                stranger.ping()
            except redis.AuthenticationError:
                return True
            except redis.RedisError:
                return False
        raise AssertionError("Redis answers whoever has no account")


@pytest.fixture
def composed(tmp_path: Path) -> Iterator[Composed]:
    (tmp_path / "logs").mkdir()
    made = Composed(tmp_path)
    yield made
    made.stop()


def test_the_compose_file_runs_with_tls_and_accounts_and_refuses_strangers(composed, hoss, tmp_path) -> None:
    composed.make_credentials()
    composed.start()
    for name in ("resolver", "dispatcher"):
        assert composed.healthy(name, composed.ports[name])
    assert composed.healthy("worker", composed.worker_port)

    there = {kind: f"127.0.0.1:{composed.ports[kind]}" for kind in ("dispatcher", "resolver")}
    addresses = ("--dispatcher", there["dispatcher"], "--resolver", there["resolver"])
    hoss("login", "compose", *addresses, "--tls-dir", str(composed.credentials / "operator"))
    (tmp_path / "job.yaml").write_text(JOB)
    submitted = hoss.json("submit", "--wait", "-f", str(tmp_path / "job.yaml"), *addresses[:2])
    assert submitted["bound"] == 100
    assert hoss.json("audit", *addresses)["verdict"] == "clean"

    jobs = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())["scrape_configs"]
    for job in (job for job in jobs if job["job_name"] != "dashboard"):
        assert "hoss_build_info" in composed.scraped(job), job["job_name"]
        assert 'table="door_tokens"' in composed.scraped(job), job["job_name"]
    with urllib.request.urlopen(f"http://{composed.metrics('dashboard')}/metrics") as shown:
        assert 'table="dashboard_sessions"' in shown.read().decode()

    async def ask(access: ClientAccess) -> None:
        async with DispatcherClient([there["dispatcher"]], open_channel=access.channel) as client:
            await client.list_jobs()

    for stranger in (ClientAccess(), ClientAccess(composed.credentials / "worker")):
        with pytest.raises(HossError):
            asyncio.run(ask(stranger))
    password = (composed.credentials / "dispatcher" / "redis.password").read_text()
    account = {"username": DISPATCHER.name, "password": password}
    with redis.Redis(port=composed.ports["redis"], **account) as journal:
        assert journal.exists("{hoss}:journal:state")
        with pytest.raises(redis.exceptions.NoPermissionError):
            journal.get("{hoss}:epochs")


@pytest.mark.thorough
def test_each_service_of_the_compose_file_starts_again_and_takes_other_certificates(
    composed, hoss, tmp_path
) -> None:
    composed.make_credentials()
    composed.start()
    there = {kind: f"127.0.0.1:{composed.ports[kind]}" for kind in ("dispatcher", "resolver")}
    addresses = ("--dispatcher", there["dispatcher"], "--resolver", there["resolver"])
    hoss("login", "compose", *addresses, "--tls-dir", str(composed.credentials / "operator"))

    def works(after: str) -> None:
        path = tmp_path / f"{after}.yaml"
        path.write_text(JOB.replace("name: j", f"name: {after}"))
        assert hoss.json("submit", "--wait", "-f", str(path), *addresses[:2])["bound"] == 100

    for name in ("worker", "resolver", "dashboard", "dispatcher", "redis"):
        composed.restart(name)
        works(f"after-{name}")

    # Another key and certificate for each, as somebody makes them who fears that the old ones are known.
    authority = Authority(composed.credentials / "authority")
    before = authority.known(now=THIS_HOST.utc_now())
    for folder, identity in Deployment().identities().items():
        hosts = (server_name("dashboard"),) if folder == "dashboard" else ()
        authority.issue(identity, now=THIS_HOST.utc_now(), hosts=hosts, into=composed.credentials / folder)
    works("after-rotation")
    assert len(before) == len(Deployment().identities())
    assert len(authority.known(now=THIS_HOST.utc_now())) == 2 * len(before)
    for name in ("resolver", "dispatcher", "worker"):
        composed.restart(name)
    works("after-both")
    assert hoss.json("audit", *addresses)["verdict"] == "clean"


def test_made_again_the_credentials_stay_as_they_are(composed) -> None:
    def content() -> dict[str, bytes]:
        files = (path for path in composed.credentials.rglob("*") if path.is_file())
        return {str(path): path.read_bytes() for path in files}

    composed.make_credentials()
    first = content()
    composed.make_credentials()
    assert content() == first
    folders = {path.name: {file.name for file in path.iterdir()} for path in composed.credentials.iterdir()}
    assert folders.pop("redis") == {"users.acl"}
    assert not any({"ca.key", "token.key"} & files for name, files in folders.items() if name != "authority")
