"""`hoss up` on a laptop: what it prints, keeps and leaves, and what it says where it cannot be had."""

import contextlib
import os
import re
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from fork_server import FORK_SERVER
from waiting import DEADLINE_SECONDS, lives, wait_until

from dispatcher.leader.lease import LEASE
from hossctl.local.ports import free_ports

JOB = """\
apiVersion: batch/v1
kind: Job
metadata: {{name: {name}}}
spec: {{parallelism: 300, template: {{spec: {{containers: [{{name: c, image: i}}]}}}}}}
"""


def test_up_prints_its_ports_down_leaves_no_process_or_port_up_again_finds_its_data_and_a_purge_none(hoss):
    told = hoss("up", "--nodes", "12", "--workers", "1").stderr
    ports = [int(port) for port in re.findall(r"127\.0\.0\.1:(\d+)", told)]
    assert len(ports) == 4  # dispatcher, resolver, Redis, dashboard
    assert str(hoss.home) in told
    running = hoss.processes()
    hoss("down")
    assert not any(map(lives, running.values()))
    assert not any(_listening(port) for port in ports)
    assert {path.name for path in hoss.home.iterdir()} == {"lock", "logs", "redis", "security"}
    assert {path.suffix for path in (hoss.home / "logs").iterdir()} == {".log"}
    hoss("up", "--workers", "1")
    assert len(hoss.json("get", "nodes")["items"]) == 12
    hoss("down", "--purge")
    assert [path.name for path in hoss.home.iterdir()] == ["lock"]
    hoss("up", "--nodes", "4", "--workers", "1")
    assert len(hoss.json("get", "nodes")["items"]) == 4


def test_the_port_can_be_chosen_and_one_in_use_is_refused_before_anything_starts(hoss):
    with socket.socket() as taken:
        (port,) = free_ports(1)
        taken.bind(("127.0.0.1", port))
        taken.listen()
        refused = hoss("up", "--nodes", "3", "--port", str(port), code=2)
        assert refused.stderr == (
            f"error: --port: {port} is in use: stop what holds it, or leave the option out for a free one\n"
        )
        assert not (hoss.home / "platform.json").exists()
    told = hoss("up", "--nodes", "3", "--workers", "1", "--port", str(port)).stderr
    assert f"dispatcher 127.0.0.1:{port}," in told


@pytest.mark.parametrize("home", ["/proc/hoss", "/dev/null/hoss"])
def test_a_directory_that_cannot_be_written_is_named_with_the_way_out(home):
    done = FORK_SERVER.run("hossctl", ["up"], env={**os.environ, "HOSS_HOME": home}, timeout=DEADLINE_SECONDS)
    assert done.returncode == 1
    assert re.fullmatch(
        rf"error: the local platform cannot be kept in {home} \(.+\); name a directory of yours with"
        r" HOSS_HOME\n",
        done.stderr,
    )


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        (
            "apiVersion: hoss.dev/v1alpha0\nkind: SchedulingPolicy\n",
            "this release reads 'hoss.dev/v1alpha1': write that",
        ),
        ("kind: SchedulingPolicy\n", "apiVersion: is missing; write hoss.dev/v1alpha1"),
        (
            "apiVersion: hoss.dev/v1alpha1\nkind: WorkerConfig\n",
            "kind: is 'WorkerConfig'; this release reads",
        ),
    ],
)
def test_a_policy_of_another_version_or_kind_is_refused_before_anything_starts(
    hoss, tmp_path, document, problem
):
    policy = tmp_path / "policy.yaml"
    policy.write_text(document + "rules: [{name: all}]\n")
    refused = hoss("up", "--policy", str(policy), code=2).stderr
    assert refused.startswith(f"error: {policy}: ")
    assert problem in refused
    assert refused.count("\n") == 1
    assert not (hoss.home / "platform.json").exists()


def test_a_dispatcher_that_cannot_be_reached_is_named_with_the_cause(hoss):
    told = hoss("get", "pods", "--dispatcher", "127.0.0.1:1", code=3).stderr
    assert (
        told
        == "error: dispatcher 127.0.0.1:1 cannot be reached (Connection refused): see that it runs there and"
        " that the address is right\n"
    )


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of three megabytes, and `fill` to fill it."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(disk)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("this user may not mount a disk")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk_is_said_by_up_and_nothing_is_left_running(small_disk, hoss_at):
    hoss = hoss_at(small_disk / "home")
    _fill(small_disk)
    before = {p.pid for p in psutil.Process().children(recursive=True)}
    told = hoss("up", "--nodes", "3", code=None)
    assert told.returncode in (1, 3)
    assert "No space left on device" in told.stderr
    assert "fault in hoss" not in told.stderr
    assert (
        not {p.pid for p in psutil.Process().children(recursive=True)} - before
    )  # of whom some may have gone meanwhile


def test_a_disk_that_fills_up_refuses_work_kills_nobody_and_all_goes_on_when_there_is_room(
    small_disk, hoss_at, tmp_path
):
    for name in ("before", "during", "after"):
        (tmp_path / f"{name}.yaml").write_text(JOB.format(name=name))
    hoss = hoss_at(small_disk / "home")
    hoss("up", "--nodes", "20", "--workers", "1")
    try:
        hoss("submit", "-f", str(tmp_path / "before.yaml"), "--wait")
        _fill(small_disk)
        told = _until_refused(hoss, str(tmp_path / "during.yaml"))
        assert (
            "Redis cannot write to its disk: No space left on device; mend that, and all goes on by itself"
            in told
        )
        with hoss.redis() as connection:
            wait_until(lambda: not connection.exists(LEASE), "the lease to run out, as nobody can renew it")
        assert len(hoss.processes()) == 5
        (small_disk / "fill").unlink()
        _until_taken(hoss, str(tmp_path / "after.yaml"))
        # Leases that nobody could end while the disk was full are ended within a moment.
        wait_until(lambda: hoss("audit", code=None).returncode == 0, "a clean audit")
    finally:
        hoss("down", code=None)


def _fill(disk: Path) -> None:
    with contextlib.suppress(OSError), (disk / "fill").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def _until_refused(hoss, manifest: str) -> str:
    """What the first refusal says: some of what is written before Redis notices is taken."""

    def refusal() -> str:
        done = hoss("submit", "-f", manifest, code=None)
        return str(done.stderr) if done.returncode == 3 else ""

    return wait_until(refusal, "a refusal")


def _until_taken(hoss, manifest: str) -> None:
    wait_until(
        lambda: hoss("submit", "-f", manifest, "--wait", code=None).returncode == 0,
        "a submission to be taken",
    )


def _listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
