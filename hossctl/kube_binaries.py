"""The programs of a Kubernetes control plane: found, or built once from source. `python -m hossctl.kube_binaries` builds them.

The convention is envtest's: $KUBEBUILDER_ASSETS names a directory that has them. Without it they are built from the Go module
in tests/e2e/controlplane, which pins their versions, into a cache outside the tree, one directory for each state of that module.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from hoss.errors import ConfigError, HossError

SOURCE = Path(__file__).parents[1] / "tests" / "e2e" / "controlplane"
ASSETS_VARIABLE = "KUBEBUILDER_ASSETS"
CACHE_VARIABLE = "HOSS_CONTROLPLANE_CACHE"

_PACKAGES = {
    "etcd": "go.etcd.io/etcd/server/v3",
    "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
    "kube-scheduler": "k8s.io/kubernetes/cmd/kube-scheduler",
}
_VERSION_PACKAGE = "k8s.io/component-base/version"


@dataclass(frozen=True, slots=True)
class Binaries:
    """A directory that has them all."""

    directory: Path

    def path(self, name: str) -> Path:
        """Of "etcd", "kube-apiserver" or "kube-scheduler"."""
        return self.directory / name

    def missing(self) -> list[str]:
        """Names of those that are not there."""
        return [name for name in _PACKAGES if not os.access(self.path(name), os.X_OK)]


def find_binaries() -> Binaries:
    """Those of $KUBEBUILDER_ASSETS, else those that were built. Raises ConfigError that says how to get them."""
    if given := os.environ.get(ASSETS_VARIABLE):
        binaries = Binaries(Path(given))
        if missing := binaries.missing():
            raise ConfigError(
                f"{given} has no {', '.join(missing)}; unset it to have them built, or fill it (setup-envtest brings all "
                "but kube-scheduler)",
                where=f"${ASSETS_VARIABLE}",
            )
        return binaries
    binaries = Binaries(_cache_directory())
    if binaries.missing():
        raise ConfigError(
            f"there is none in {binaries.directory}; `make controlplane` builds it, in some minutes and once"
            + ("" if shutil.which("go") else f", when Go {_go_version()} or newer is installed (https://go.dev/dl)")
            + f"; or set ${ASSETS_VARIABLE} to a directory with {', '.join(_PACKAGES)}",
            where="Kubernetes control plane",
        )
    return binaries


def build_binaries() -> Binaries:
    """Build what is missing. Raises ConfigError where there is no Go, HossError with the end of what a failed build said."""
    if os.environ.get(ASSETS_VARIABLE):
        return find_binaries()
    binaries = Binaries(_cache_directory())
    missing = binaries.missing()
    if not missing:
        return binaries
    if shutil.which("go") is None:
        raise ConfigError(
            f"the control plane of the end-to-end tests is built from source and there is no `go` on PATH: install Go "
            f"{_go_version()} or newer (https://go.dev/dl, or your system's package golang), or set ${ASSETS_VARIABLE} to a "
            f"directory with {', '.join(_PACKAGES)}",
            where="Go",
        )
    try:
        binaries.directory.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise ConfigError(
            f"{binaries.directory} cannot be made ({exc.strerror}); name a directory of yours with {CACHE_VARIABLE}",
            where="Kubernetes control plane",
        ) from exc
    for name in missing:
        sys.stderr.write(f"building {name} {_version(_PACKAGES[name])} into {binaries.directory}\n")
        _build(name, binaries.path(name))
    return binaries


def _build(name: str, target: Path) -> None:
    fresh = target.with_suffix(f".{os.getpid()}")  # so that a build that is cut off leaves nothing that looks whole
    version = _version(_PACKAGES[name])
    major, minor = version.removeprefix("v").split(".")[:2]
    stamps = {"gitVersion": version, "gitMajor": major, "gitMinor": minor}
    flags = " ".join(["-s", "-w", *(f"-X {_VERSION_PACKAGE}.{field}={value}" for field, value in stamps.items())])
    command = ["go", "build", "-mod=readonly", "-trimpath", "-ldflags", flags, "-o", str(fresh), _PACKAGES[name]]
    done = subprocess.run(  # noqa: S603 - our arguments, and the user's go
        command, cwd=SOURCE, env={**os.environ, "CGO_ENABLED": "0"}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        fresh.unlink(missing_ok=True)
        raise HossError(f"building {name} failed: " + "\n".join(done.stderr.splitlines()[-12:]))
    fresh.replace(target)


def _cache_directory() -> Path:
    given = os.environ.get(CACHE_VARIABLE)
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    base = Path(given) if given else home / "hoss" / "controlplane"
    sums = SOURCE / "go.sum"
    if not sums.is_file():
        raise ConfigError(
            f"{SOURCE} is not there: it comes with the source tree, not with an installed package; set ${ASSETS_VARIABLE}",
            where="Kubernetes control plane",
        )
    state = hashlib.sha256(sums.read_bytes()).hexdigest()[:12]
    return base / f"{_version('k8s.io/kubernetes')}-{state}"


def _version(package: str) -> str:
    """That go.mod requires of the module which has the package."""
    required: list[tuple[str, str]] = re.findall(r"^\s+(\S+) (v\S+)", (SOURCE / "go.mod").read_text(), re.MULTILINE)
    return next(version for module, version in required if package.startswith(module))


def _go_version() -> str:
    found = re.search(r"^go (\d+\.\d+)", (SOURCE / "go.mod").read_text(), re.MULTILINE)
    return found[1] if found else ""


def main() -> None:
    """Build what is missing and print the directory; exit 1 with the reason where that fails."""
    try:
        sys.stdout.write(f"{build_binaries().directory}\n")
    except HossError as exc:
        sys.stderr.write(f"{exc}\n")
        sys.exit(1)


if __name__ == "__main__":
    main()
