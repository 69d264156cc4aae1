"""Where the programs of a control plane come from, and what is said where they cannot."""

import re
import stat
from pathlib import Path

import pytest
from e2e.kubernetes.kubelet import no_kubelet
from run_report import EXPECTED_SKIPS

from hoss.errors import ConfigError
from hossctl.local import control_plane
from hossctl.local.control_plane import find_binaries, version_of
from tools import kubelet
from tools.controlplane import build_binaries


@pytest.fixture(autouse=True)
def _no_assets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(control_plane.ASSETS_VARIABLE, raising=False)
    monkeypatch.setenv(control_plane.CACHE_VARIABLE, str(tmp_path / "cache"))


def _fill(directory: Path, *names: str) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for name in names:
        (directory / name).touch()
        (directory / name).chmod(stat.S_IRWXU)


def test_a_given_directory_is_taken_as_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _fill(tmp_path, "etcd", "kube-apiserver", "kube-scheduler")
    monkeypatch.setenv(control_plane.ASSETS_VARIABLE, str(tmp_path))
    assert find_binaries().path("etcd") == tmp_path / "etcd" == build_binaries().path("etcd")


def test_a_given_directory_that_lacks_something_is_refused_with_its_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _fill(tmp_path, "etcd", "kube-apiserver")
    monkeypatch.setenv(control_plane.ASSETS_VARIABLE, str(tmp_path))
    with pytest.raises(ConfigError, match="has no kube-scheduler"):
        find_binaries()


def test_what_was_never_built_is_told_with_the_command_that_builds_it() -> None:
    with pytest.raises(ConfigError, match="`make controlplane` builds it"):
        find_binaries()


def test_without_go_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=r"install Go 1\.\d+ or newer \(https://go.dev/dl"):
        build_binaries()
    with pytest.raises(ConfigError, match=r"when Go 1\.\d+ or newer is installed"):
        find_binaries()


def test_another_state_of_the_module_is_another_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    source = tmp_path / "module"
    source.mkdir()
    (source / "go.mod").write_text("go 1.26.0\nrequire (\n\tk8s.io/kubernetes v1.36.3 // indirect\n)\n")
    monkeypatch.setattr(control_plane, "SOURCE", source)
    found = set()
    for sums in ("one", "other"):
        (source / "go.sum").write_text(sums)
        with pytest.raises(ConfigError) as refused:
            find_binaries()
        found.add(str(refused.value))
    assert len(found) == 2
    assert all("v1.36.3-" in text for text in found)


def test_the_kubelet_has_the_version_of_the_control_plane() -> None:
    package = "k8s.io/kubernetes"
    assert version_of(package, kubelet.SOURCE) == version_of(package)


def test_without_containerd_or_a_kubelet_its_tests_are_skipped_as_expected(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def reason() -> str:
        found = no_kubelet.__wrapped__()
        assert any(re.search(expected, found) for expected in EXPECTED_SKIPS), found
        return found

    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "apt-get install containerd runc" in reason()
    _fill(tmp_path, "containerd", "ctr", "runc", "unshare")
    assert "`make kubelet` builds" in reason()
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert "it takes root" in reason()
