"""A real control plane for the whole run. Every test finds it without nodes, pods and webhooks, and leaves as
it likes."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e.kubernetes.api import Api
from e2e.kubernetes.guarded import Guarded

from hoss.errors import ConfigError
from hossctl.local.binding_webhook import NAMESPACE
from hossctl.local.control_plane import WORKLOAD_API, ControlPlane, find_binaries


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """etcd and kube-apiserver that serve the whole run: do not stop them, see `own_control_plane`."""
    plane = _start(tmp_path_factory)
    yield plane
    plane.stop()


@pytest.fixture
def own_control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane of this test alone, for tests that stop or freeze its parts, or start a
    kube-scheduler."""
    plane = _start(tmp_path_factory)
    yield plane
    plane.stop()


@pytest.fixture
def api(control_plane: ControlPlane) -> Api:
    """The API server of the whole run, emptied of what earlier tests made."""
    api = Api(control_plane)
    api.clear()
    return api


@pytest.fixture
def make_guarded(control_plane: ControlPlane, api: Api, tmp_path: Path) -> Iterator[Callable[..., Guarded]]:
    """Starts the guard: `make_guarded(failure_policy="Fail", flags=["--webhook-cert-dir", "x"])`."""
    made: list[Guarded] = []

    def make(**options: Any) -> Guarded:
        made.append(Guarded(tmp_path, control_plane, api, **options))
        return made[0]

    yield make
    for guarded in made:
        guarded.stop()


@pytest.fixture
def guarded(make_guarded: Callable[..., Guarded]) -> Guarded:
    """One node `n1` of 1,000 milli of cpu."""
    guarded = make_guarded()
    guarded.add_node("n1", cpu=1000)
    return guarded


def _start(directories: pytest.TempPathFactory) -> ControlPlane:
    try:
        binaries = find_binaries()
    except ConfigError as exc:
        pytest.skip(str(exc))
    return ControlPlane.start(
        directories.mktemp("control-plane"),
        binaries=binaries,
        audited=NAMESPACE,
        apiserver_flags=WORKLOAD_API,
    )
