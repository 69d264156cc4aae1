"""What the tests need of a machine: where it lacks something, which tests that concerns, in one line each."""

import importlib.util
import os
import shutil
import subprocess
import tempfile
from collections.abc import MutableMapping
from functools import cache
from pathlib import Path

from e2e.kubernetes.kubelet import no_kubelet

from hoss.errors import HossError
from hossctl.local.control_plane import find_binaries
from hossctl.local.ports import check_loopback, free_ports
from hossctl.local.redis_server import find_redis_server
from tools.faults.catalogue import BY_NAME
from tools.faults.machines import no_network
from tools.model import no_checker

DRIVER = shutil.which("chromedriver")
BROWSER = shutil.which("chromium")
TESTS = Path(__file__).parent
OPENB = Path(__file__).parents[2] / "shared" / "data"
OPENB_FILES = (OPENB / "openb_node_list_all_node.csv", OPENB / "openb_pod_list_default.csv")


# Variables that are meant for the tests.
_FOR_TESTS = ("HOSS_TEST", "HOSS_BUILD_OPTIONS", "HOSS_CONTROLPLANE_CACHE", "HOSS_FAKETIME")
_OF_USERS = ("HOSS_", "_HOSS_", "OTEL_")


def forget_users_settings(environment: MutableMapping[str, str]) -> None:
    """Of whoever runs the tests: where his platform is, his certificate and token, his contexts, his
    collector. Tests, and the processes that they start, would call his platform, or be refused by their
    own."""
    for name in [*environment]:
        if name.startswith(_OF_USERS) and not name.startswith(_FOR_TESTS):
            del environment[name]
    # Where nothing is. Without it contexts are those of the user's home.
    environment["HOSS_HOME"] = str(Path(tempfile.gettempdir()) / f"hoss-tests-{os.getpid()}" / "no-home")


def needs() -> str:
    """Why no test can run here, with the way out; "" where they can."""
    try:
        find_redis_server()
        free_ports(1)
        check_loopback()
    except HossError as exc:
        return str(exc)
    try:
        with tempfile.TemporaryDirectory():
            pass
    except OSError as exc:
        return f"temporary files cannot be written ({exc}): name a directory of yours with TMPDIR"
    return ""


@cache
def lacking() -> tuple[str, ...]:
    """What is not here and what is not tested for it."""
    found = (
        (no_browser(), "the dashboard in a browser (tests/e2e/test_dashboard.py)"),
        (no_docker(), "the compose file on an engine (tests/e2e/test_compose.py)"),
        (no_go(), "the scheduler in Go (tests/e2e/test_go_scheduler.py, in make test-all)"),
        (no_checker(), "the models of the ledger protocol (tests/integration/test_model.py)"),
        (no_network(), "faults of the network (tests/faults)"),
        (BY_NAME["clock-redis"].missing(), "clocks that jump, on real processes (tests/faults)"),
        (no_openb(), "replays of the whole openb trace (make test-all); a small one is in tests/traces"),
        (no_control_plane(), "Kubernetes (make e2e)"),
        (no_kubelet(), "nodes with a real kubelet (make kubelet)"),
    )
    return tuple(f"{reason}; not tested for it: {untested}" for reason, untested in found if reason)


def no_browser() -> str:
    """Why there can be no browser here; "" where there can."""
    if DRIVER is None or BROWSER is None:
        return "no chromium and chromedriver on PATH (Debian: apt-get install chromium chromium-driver)"
    return "" if importlib.util.find_spec("selenium") else "selenium is not installed (pip install selenium)"


@cache
def no_docker() -> str:
    """Why no container can be run here; "" where they can."""
    if shutil.which("docker") is None:
        return "no Docker engine: no docker on PATH"
    asked = subprocess.run(["docker", "info"], capture_output=True, timeout=60, check=False)
    return "no Docker engine answers `docker info`" if asked.returncode else ""


def no_go() -> str:
    """Why no Go can be compiled here; "" where it can."""
    return "" if shutil.which("go") else "no Go on PATH"


def no_openb() -> str:
    """Where the trace is not; "" where it is."""
    return (
        "" if all(os.access(file, os.R_OK) for file in OPENB_FILES) else f"the openb trace is not in {OPENB}"
    )


def no_control_plane() -> str:
    """Why there can be no control plane here; "" where there can."""
    try:
        find_binaries()
    except HossError as exc:
        return str(exc)
    return ""
