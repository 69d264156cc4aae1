"""Builds the programs of a Kubernetes control plane, once, for the end-to-end tests and the comparisons:
`make controlplane`. hossctl/local/control_plane.py says where they go and how they are found."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
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
    build_programs(
        {name: _PACKAGES[name] for name in binaries.missing()},
        binaries.directory,
        source=SOURCE,
        otherwise=f", or set ${ASSETS_VARIABLE} to a directory with {', '.join(PROGRAMS)}",
    )
    return binaries


def build_programs(
    packages: Mapping[str, str], directory: Path, *, source: Path, otherwise: str = ""
) -> None:
    """Build these programs of the Go module in `source` into a directory. `otherwise` is what to do without
    Go. Raises as `build_binaries` does."""
    if not packages:
        return
    if shutil.which("go") is None:
        raise ConfigError(
            f"{', '.join(packages)} are built from source and there is no `go` on PATH: install Go "
            f"{go_version()} or newer (https://go.dev/dl, or your system's package golang){otherwise}",
            where="Go",
        )
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise ConfigError(
            f"{directory} cannot be made ({exc.strerror}); name a directory of yours with {CACHE_VARIABLE}",
            where="Kubernetes control plane",
        ) from exc
    for name, package in packages.items():
        sys.stderr.write(f"building {name} into {directory}\n")
        _build(package, directory / name, source)


def _build(package: str, target: Path, source: Path) -> None:
    # Built beside the target, so that an interrupted build leaves no incomplete program under its name.
    fresh = target.with_suffix(f".{os.getpid()}")
    flags = " ".join(["-s", "-w", *_stamps(package, source)])
    command = ["go", "build", "-mod=readonly", "-trimpath", "-ldflags", flags, "-o", str(fresh), package]
    done = subprocess.run(  # noqa: S603 - our arguments, and the user's go
        command,
        cwd=source,
        env={**os.environ, "CGO_ENABLED": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        fresh.unlink(missing_ok=True)
        raise HossError(f"building {target.name} failed: " + "\n".join(done.stderr.splitlines()[-12:]))
    fresh.replace(target)


def _stamps(package: str, source: Path) -> list[str]:
    """The linker's flags by which a program knows its version; none for a package of the module itself."""
    if package.startswith("."):
        return []
    version = version_of(package, source)
    major, minor = version.removeprefix("v").split(".")[:2]
    stamps = {"gitVersion": version, "gitMajor": major, "gitMinor": minor}
    return [f"-X {_VERSION_PACKAGE}.{field}={value}" for field, value in stamps.items()]


def main() -> None:
    """Build what is missing and print the directory; exit 1 with the reason where that fails."""
    try:
        sys.stdout.write(f"{build_binaries().directory}\n")
    except HossError as exc:
        sys.stderr.write(f"{exc}\n")
        sys.exit(1)


if __name__ == "__main__":
    main()
