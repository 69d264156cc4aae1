"""What makes manifests of deploy/: `kubectl kustomize` or kustomize, and helm. Found on PATH, or built once
by `python renderers.py`, which needs Go, into the cache in which the control plane is."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

_VERSIONED = {
    "kustomize": "sigs.k8s.io/kustomize/kustomize/v5@v5.7.1",
    "helm": "helm.sh/helm/v3/cmd/helm@v3.19.0",
}
# A helm that `go install` built does not know its own version and takes the cluster's to be an old one.
_KUBERNETES = "v1.36.0"

Objects = dict[tuple[str, str], Any]

DEPLOY = Path(__file__).parents[3] / "deploy"


def missing() -> str:
    """What is not there, and how to get it; "" where all is."""
    lacking = [name for name, found in (("kustomize", _kustomize()), ("helm", _helm())) if not found]
    return (
        f"no {' and no '.join(lacking)}: `make controlplane` builds them where Go is installed"
        if lacking
        else ""
    )


def kustomized(overlay: str) -> str:
    """One of deploy/kustomize/overlays."""
    return _output([*_kustomize(), str(DEPLOY / "kustomize" / "overlays" / overlay)])


def templated(*flags: str, namespace: str = "hoss-system", chart: Path = DEPLOY / "helm" / "hoss") -> str:
    """The chart as a release of that namespace."""
    command = [
        *_helm(),
        "template",
        "hoss",
        str(chart),
        "--kube-version",
        _KUBERNETES,
        "--namespace",
        namespace,
        *flags,
    ]
    return _output(command)


def values(overlay: str) -> str:
    """Of the chart, for what the overlay of that name makes."""
    return str(DEPLOY / "helm" / "hoss" / f"values-{overlay}.yaml")


def objects_of(text: str) -> Objects:
    """What was rendered, by kind and name."""
    found = [document for document in yaml.safe_load_all(text) if document]
    named = {(document["kind"], document["metadata"]["name"]): document for document in found}
    assert len(named) == len(found)
    return named


def _kustomize() -> list[str]:
    if found := _find("kustomize"):
        return [found, "build"]
    return [kubectl, "kustomize"] if (kubectl := shutil.which("kubectl")) else []


def _helm() -> list[str]:
    return [found] if (found := _find("helm")) else []


def _find(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path=str(_directory(name)))


def _directory(name: str) -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "hoss" / "renderers" / f"{name}-{_VERSIONED[name].rpartition('@')[2]}"


def _output(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def main() -> int:
    """Build what is missing."""
    for name, found in (("kustomize", _kustomize()), ("helm", _helm())):
        if found:
            continue
        if shutil.which("go") is None:
            sys.stderr.write(f"there is no {name}, and no Go to build it with: its tests will be skipped\n")
            continue
        sys.stderr.write(f"building {_VERSIONED[name]}\n")
        environment = {
            **os.environ,
            "GOBIN": str(_directory(name)),
            "CGO_ENABLED": "0",
            "GOFLAGS": "-trimpath",
        }
        built = subprocess.run(["go", "install", _VERSIONED[name]], env=environment, check=False)
        if built.returncode:
            return built.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
