"""A real control plane for the whole run. Every test finds it without nodes, pods and webhooks, and leaves as
it likes."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e.kubernetes import renderers
from e2e.kubernetes.api import Api
from e2e.kubernetes.guarded import Guarded, apply, kubeconfig_of
from e2e.kubernetes.storage import Storage
from fork_server import FORK_SERVER
from waiting import DEADLINE_SECONDS

from hoss.errors import ConfigError
from hossctl.local.binding_webhook import NAMESPACE
from hossctl.local.control_plane import WORKLOAD_API, ControlPlane, find_binaries
from hossctl.local.deployment import ACCOUNTS_SECRET, AUTHORITY_SECRET, Deployment, secret_of

# Of the Job that makes certificates and accounts of Redis.
SECRETS_OF_THE_JOB = {
    AUTHORITY_SECRET,
    ACCOUNTS_SECRET,
    *map(secret_of, Deployment().identities()),
}
_RIGHTS = ("Namespace", "ServiceAccount", "Role", "RoleBinding")


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
def storage(api: Api) -> Iterator[Storage]:
    """Volumes, claims and classes of the API server of the whole run; none at first, and none afterwards."""
    made = Storage(api)
    made.clear()
    yield made
    made.clear()


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


@pytest.fixture
def run_job(control_plane: ControlPlane, api: Api, tmp_path: Path) -> Callable[..., str]:
    """Runs the command of the Job `hoss-credentials` as its service account, in a namespace without its
    Secrets; what it says."""
    objects = renderers.objects_of(renderers.kustomized("guard"))
    for (kind, _), document in objects.items():
        if kind in _RIGHTS:
            apply(api, document)
    for name in SECRETS_OF_THE_JOB:
        api.request("DELETE", f"/api/v1/namespaces/{NAMESPACE}/secrets/{name}")
    kubeconfig = tmp_path / "credentials.kubeconfig"
    kubeconfig.write_text(kubeconfig_of(api, control_plane, "hoss-credentials"))
    (container,) = objects["Job", "hoss-credentials"]["spec"]["template"]["spec"]["containers"]
    module, *arguments = container["args"]

    def run(*flags: str) -> str:
        command = [*arguments, "--kubeconfig", str(kubeconfig), *flags]
        done = FORK_SERVER.run(module, command, timeout=DEADLINE_SECONDS)
        assert done.returncode == 0, done.stderr
        return str(done.stderr + done.stdout)

    return run


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
