"""The Python of docs/python.md runs as it stands there, on a real platform with two dispatchers."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.cluster import Cluster
from e2e.loads import until_agreed
from waiting import DEADLINE_SECONDS

from hoss.model.node import NodeSpec
from hossctl.endpoints import clients_of
from hossctl.load.nodes import register

ROOT = Path(__file__).parents[2]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path, dispatchers=2) as cluster:
        yield cluster


async def test_the_examples_in_python_do_what_they_say(cluster: Cluster) -> None:
    examples = re.findall(
        r"```python\n(.*?)```", (ROOT / "docs" / "python.md").read_text(encoding="utf-8"), flags=re.DOTALL
    )
    assert len(examples) == 3
    cluster.start_worker("w1")
    async with clients_of(cluster.endpoints) as clients:
        allocatable = (("cpu", 64_000), ("memory", 2**38), ("pods", 250))
        await register(clients.resolver, [NodeSpec(f"node-{i}", allocatable=allocatable) for i in range(10)])
        await until_agreed(clients, 1)
        told = [_run(example, cluster.endpoints.dispatcher) for example in examples]
        assert told[1].count("nightly-") == 20
        assert told[2] == ""


def _run(script: str, dispatcher: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HOSS_DISPATCHER": dispatcher}
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT, capture_output=True, text=True, env=environment, timeout=DEADLINE_SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout
