"""Builds what nodes with a real kubelet take beside containerd and runc, once: kubelet, of the control
plane's version, and the program that runs in their containers. `make kubelet`."""

import os
import sys
from pathlib import Path

from hoss.errors import HossError
from hossctl.local.control_plane import cache_directory
from tools.controlplane import build_programs

SOURCE = Path(__file__).parents[1] / "tests" / "e2e" / "kubelet"
PROGRAMS = {"kubelet": "k8s.io/kubernetes/cmd/kubelet", "pause": "./pause"}


def built() -> Path:
    """Where the programs are, or are to be."""
    return cache_directory(SOURCE)


def missing() -> list[str]:
    """Those that are not there yet."""
    return [name for name in PROGRAMS if not os.access(built() / name, os.X_OK)]


def main() -> None:
    """Build what is missing and print the directory; exit 1 with the reason where that fails."""
    try:
        build_programs({name: PROGRAMS[name] for name in missing()}, built(), source=SOURCE)
        sys.stdout.write(f"{built()}\n")
    except HossError as exc:
        sys.stderr.write(f"{exc}\n")
        sys.exit(1)


if __name__ == "__main__":
    main()
