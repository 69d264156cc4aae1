"""The cluster of deploy/docker-compose.yml, where a docker engine answers and has or can get the base
images."""

import json
import os
import re
import shlex
import ssl
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from machine import no_docker
from waiting import wait_until

from hoss.security.transport import AUTHORITY_FILE
from hossctl.local.ports import free_ports

ROOT = Path(__file__).parents[2]
COMPOSE_FILE = ROOT / "deploy/docker-compose.yml"
STARTED_SECONDS = 600
JOB = """\
apiVersion: batch/v1
kind: Job
metadata: {{name: {name}}}
spec: {{parallelism: 500, template: {{spec: {{containers: [{{name: c, image: i}}]}}}}}}
"""

pytestmark = pytest.mark.timeout(1800)


class Compose:
    """`docker compose` on a project of its own, published on ports that were free."""

    def __init__(self) -> None:
        self.dispatcher = f"127.0.0.1:{free_ports(1)[0]}"
        first, dashboard = free_ports(2)
        self.dashboard = f"https://127.0.0.1:{dashboard}/"
        self.environment = {
            **os.environ,
            "HOSS_DASHBOARD_PORT": str(dashboard),
            "HOSS_DISPATCHER_PORT": self.dispatcher.rpartition(":")[2],
            "HOSS_RESOLVER_PORTS": f"{first}-{first + 9}",
        }

    def __call__(self, *arguments: str, seconds: float = STARTED_SECONDS) -> str:
        command = [
            "docker",
            "compose",
            "--project-name",
            f"hoss-test-{os.getpid()}",
            "--file",
            str(COMPOSE_FILE),
        ]
        done = subprocess.run(
            [*command, *arguments],
            capture_output=True,
            text=True,
            env=self.environment,
            timeout=seconds,
            check=False,
        )
        assert done.returncode == 0, f"{arguments}: {done.stdout}\n{done.stderr}"
        return done.stdout

    def containers(self) -> list[dict[str, str]]:
        return [json.loads(line) for line in self("ps", "--all", "--format", "json").splitlines()]

    @property
    def resolver(self) -> str:
        return self("port", "--index", "1", "resolver", "7080").strip()


@pytest.fixture
def compose() -> Iterator[Compose]:
    if why := no_docker():
        pytest.skip(why)
    if _docker("compose", "version"):
        pytest.skip("no Docker engine with compose answers here")
    base = re.search(r"^ARG PYTHON=(.+)$", (ROOT / "deploy/Dockerfile").read_text(), flags=re.MULTILINE)
    redis = re.search(r"image: (redis:.+)$", COMPOSE_FILE.read_text(), flags=re.MULTILINE)
    for image in (f"python:{base[1]}", redis[1]):
        if _docker("image", "inspect", image) and _docker("pull", "--quiet", image):
            pytest.skip(f"the base image {image} is not here and cannot be pulled")
    # Of options for it, as in HOSS_BUILD_OPTIONS="--network host": a proxy or registry of this machine is not
    # the project's.
    options = shlex.split(os.environ.get("HOSS_BUILD_OPTIONS", ""))
    dockerfile = str(ROOT / "deploy/Dockerfile")
    assert not _docker("build", "--quiet", *options, "--file", dockerfile, "--tag", "hoss:local", str(ROOT))
    compose = Compose()
    yield compose
    compose("down", "--volumes", "--timeout", "15")
    assert compose.containers() == []


def test_the_cluster_starts_takes_work_survives_a_workers_death_and_goes(compose, hoss, tmp_path):
    for name in ("before", "after"):
        (tmp_path / f"{name}.yaml").write_text(JOB.format(name=name))
    compose("up", "--detach", "--wait", "--no-build", "--scale", "worker=3")
    states = {c["Service"]: (c["State"], c["Health"], c["ExitCode"]) for c in compose.containers()}
    for ends in ("credentials", "nodes"):
        assert states.pop(ends) == ("exited", "", 0)
    assert set(states.values()) == {("running", "healthy", 0)}
    assert [c["Service"] for c in compose.containers()].count("resolver") == 2

    operator = tmp_path / "operator"
    compose("cp", "credentials:/var/lib/hoss/operator", str(operator))
    addresses = ("--dispatcher", compose.dispatcher, "--resolver", compose.resolver)
    hoss("login", "compose", *addresses, "--tls-dir", str(operator))
    there = ("--dispatcher", compose.dispatcher, "--resolver", compose.resolver)
    workers = hoss.json("get", "workers", *there)["items"]
    assert len(workers) == 6
    assert len({json.dumps(worker["labels"]) for worker in workers}) == 4
    assert len(hoss.json("get", "nodes", *there)["items"]) == 1000
    context = ssl.create_default_context(cafile=operator / AUTHORITY_FILE)
    context.check_hostname = False  # it is the dispatcher's, of which no machine's name is known
    with urllib.request.urlopen(compose.dashboard, timeout=60, context=context) as page:
        assert b"<title>HOSS" in page.read()
    assert hoss.json("submit", "--wait", "-f", str(tmp_path / "before.yaml"), *there[:2])["bound"] == 500

    compose("kill", "worker-service")
    wait_until(
        lambda: "Lost" in {w["state"] for w in hoss.json("get", "workers", *there)["items"]},
        "the loss to be seen",
    )
    assert hoss.json("submit", "--wait", "-f", str(tmp_path / "after.yaml"), *there[:2])["bound"] == 500
    assert hoss.json("audit", *there)["verdict"] == "clean"


def test_nothing_in_a_container_can_be_written_but_its_temporary_files(compose):
    told = compose(
        "run",
        "--rm",
        "--no-deps",
        "--entrypoint",
        "sh",
        "worker",
        "-c",
        "touch /opt/x /x || id -u; touch /tmp/x",
    )
    assert told.strip() == "65532"


def _docker(*arguments: str) -> str:
    """What went wrong, or nothing."""
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True, timeout=900, check=False)
    return "" if done.returncode == 0 else done.stderr or "failed"
