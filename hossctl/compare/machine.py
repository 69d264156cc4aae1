"""What a comparison was measured on."""

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from hossctl.compare.document import Machine
from hossctl.kube_binaries import Binaries
from hossctl.redis_server import find_redis_server

_PACKAGES = ("hoss", "grpcio", "numpy", "protobuf", "redis", "uvloop")
_MIB = 2**20


def this_machine(redis_url: str = "", control_plane: Binaries | None = None) -> Machine:
    """The machine and the versions of what runs on it; of a Redis elsewhere nothing is known."""
    versions = {name: found for name in _PACKAGES if (found := _version(name))}
    if not redis_url:
        versions |= _server_version()
    if control_plane is not None:
        # They say "Kubernetes v1.36.3" and "etcd Version: 3.6.8".
        versions |= {
            name: _said(control_plane.path(name)).split()[-1] for name in ("kube-scheduler", "kube-apiserver", "etcd")
        }
    return Machine(
        cpu=_cpu(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory_mib=psutil.virtual_memory().total // _MIB,
        system=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        versions=versions,
    )


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _server_version() -> dict[str, str]:
    # It says "Redis server v=7.0.15 ..." or "Valkey server v=9.1.2 ...".
    name, *said = _said(find_redis_server()).split()
    return {f"{name.lower()}-server": next((word[2:] for word in said if word.startswith("v=")), " ".join(said))}


def _said(program: str | Path) -> str:
    """The first line of what it calls its version: "Kubernetes v1.36.3"."""
    said = subprocess.run(  # noqa: S603 - what is about to be started
        [program, "--version"], capture_output=True, text=True, check=True
    ).stdout
    return said.strip().partition("\n")[0]
