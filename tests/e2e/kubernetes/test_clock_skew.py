"""A service whose clock is wrong: who leads, what is reserved and what is told do not go by it."""

import os
from pathlib import Path

import pytest
from e2e.cluster import Cluster
from e2e.kubernetes.agreement import assigned, overcommitted, reserved, run_hoss
from e2e.kubernetes.api import Api, events_of, find_events
from waiting import wait_until

from hossctl.local.control_plane import ControlPlane
from hossctl.local.process import ServiceProcess, launch_python

DAY = 86_400

# Imported by every Python process that has its directory on the path, before anything else. For our own
# modules alone: gRPC's Python half would hand a deadline by this clock to its other half, which goes by the
# machine's.
WRONG_CLOCK = """
import datetime, sys, time
right, right_ns = time.time, time.time_ns
def shift():
    name = sys._getframe(2).f_globals["__name__"].split(".")[0]
    if name not in ("hoss", "dispatcher", "resolver", "scheduler_worker", "__main__"):
        return 0
    open({asked!r}, "w").close()
    return {seconds}
def wrong():
    return right() + shift()
def wrong_ns():
    return right_ns() + shift() * 10**9
class Wrong(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return datetime_.fromtimestamp(right() + shift(), tz)
datetime_ = datetime.datetime
time.time, time.time_ns, datetime.datetime = wrong, wrong_ns, Wrong
"""


@pytest.mark.parametrize(
    ("part", "seconds"), [("dispatcher", -DAY), ("dispatcher", DAY), ("resolver", DAY), ("w1", -DAY)]
)
def test_pods_are_bound_told_and_taken_over_by_whoever_has_a_wrong_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, control_plane: ControlPlane, part: str, seconds: int
) -> None:
    api = Api(control_plane)
    api.clear()
    site = tmp_path / "site"
    site.mkdir()
    asked = tmp_path / "asked"
    (site / "sitecustomize.py").write_text(WRONG_CLOCK.format(seconds=seconds, asked=str(asked)))
    api.create_node("n1", cpu="1")
    with Cluster(tmp_path, kubeconfig=control_plane.kubeconfig) as cluster:
        cluster.start_worker("w1")
        api.create_pod("before", scheduler="hoss", cpu="300m")
        wait_until(lambda: len(assigned(api)) == 1, "it is bound")
        cluster.kill(part)
        with monkeypatch.context() as patched:
            # A fork has imported its clock already.
            patched.setattr(ServiceProcess, "launch", staticmethod(launch_python))
            patched.setenv(
                "PYTHONPATH", os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")]))
            )
            starts = {"dispatcher": cluster.start_dispatcher, "resolver": cluster.start_resolver}
            starts.get(part, lambda: cluster.start_worker("w1"))()
        for name in ("during", "waits"):
            api.create_pod(name, scheduler="hoss", cpu="600m")
        wait_until(lambda: len(assigned(api)) == 2, "one of them is bound")
        told = "0/1 nodes are available: 1 Insufficient cpu."
        wait_until(lambda: _told(api, told), "the other is told why it waits")
        if part == "dispatcher":
            (event, *_) = [event for name in ("during", "waits") for event in find_events(api, name)]
            assert event["firstTimestamp"][:10] != event["metadata"]["creationTimestamp"][:10], (
                "its clock is wrong"
            )
        assert asked.exists(), f"{part} has never looked at its wrong clock"
        api.delete_pod("before")
        wait_until(lambda: len(assigned(api)) == 1, "it is gone")
        cluster.kill("dispatcher")
        cluster.start_dispatcher()  # by the right clock again
        api.create_pod("after", scheduler="hoss", cpu="300m")
        wait_until(lambda: "nodeName" in api.pod("after")["spec"], "it is bound")
        wait_until(lambda: reserved(cluster) == assigned(api), "the ledger says what the API server says")
        assert overcommitted(api) == {}
        assert "clean" in run_hoss(cluster, "audit")


def _told(api: Api, message: str) -> bool:
    return any(("FailedScheduling", message) in events_of(api, name) for name in ("during", "waits"))
