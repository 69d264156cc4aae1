"""Builds the programs of a Kubernetes control plane, once, for the end-to-end tests and the comparisons:
`make controlplane`. hossctl/local/control_plane.py says where they go and how they are found."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from hoss.errors import ConfigError, HossError
from hossctl.local.control_plane import (
    ASSETS_VARIABLE,
    CACHE_VARIABLE,
    PROGRAMS,
    SOURCE,
    Binaries,
    cache_directory,
    find_binaries,
    go_version,
    version_of,
)

_PACKAGES = {
    "etcd": "go.etcd.io/etcd/server/v3",
    "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
    "kube-scheduler": "k8s.io/kubernetes/cmd/kube-scheduler",
}
_VERSION_PACKAGE = "k8s.io/component-base/version"


def build_binaries() -> Binaries:
    """Build what is missing. Raises ConfigError where Go is not installed, HossError with the end of the
    compiler's output where a build fails."""
    if os.environ.get(ASSETS_VARIABLE):
        return find_binaries()
    binaries = Binaries(cache_directory())
    missing = binaries.missing()
    if not missing:
        return binaries
    if shutil.which("go") is None:
        raise ConfigError(
            "the control plane of the end-to-end tests is built from source and there is no `go` on PATH: "
            "install "
            f"Go {go_version()} or newer (https://go.dev/dl, or your system's package golang), or set "
            f"${ASSETS_VARIABLE} to a directory with {', '.join(PROGRAMS)}",
            where="Go",
        )
    try:
        binaries.directory.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise ConfigError(
            f"{binaries.directory} cannot be made ({exc.strerror}); name a directory of yours with "
            f"{CACHE_VARIABLE}",
            where="Kubernetes control plane",
        ) from exc
    for name in missing:
        sys.stderr.write(f"building {name} {version_of(_PACKAGES[name])} into {binaries.directory}\n")
        _build(name, binaries.path(name))
    return binaries


def _build(name: str, target: Path) -> None:
    # Built beside the target, so that an interrupted build leaves no incomplete program under its name.
    fresh = target.with_suffix(f".{os.getpid()}")
    version = version_of(_PACKAGES[name])
    major, minor = version.removeprefix("v").split(".")[:2]
    stamps = {"gitVersion": version, "gitMajor": major, "gitMinor": minor}
    flags = " ".join(
        ["-s", "-w", *(f"-X {_VERSION_PACKAGE}.{field}={value}" for field, value in stamps.items())]
    )
    command = [
        "go",
        "build",
        "-mod=readonly",
        "-trimpath",
        "-ldflags",
        flags,
        "-o",
        str(fresh),
        _PACKAGES[name],
    ]
    done = subprocess.run(  # noqa: S603 - our arguments, and the user's go
        command,
        cwd=SOURCE,
        env={**os.environ, "CGO_ENABLED": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        fresh.unlink(missing_ok=True)
        raise HossError(f"building {name} failed: " + "\n".join(done.stderr.splitlines()[-12:]))
    fresh.replace(target)


def main() -> None:
    """Build what is missing and print the directory; exit 1 with the reason where that fails."""
    try:
        sys.stdout.write(f"{build_binaries().directory}\n")
    except HossError as exc:
        sys.stderr.write(f"{exc}\n")
        sys.exit(1)


if __name__ == "__main__":
    main()
