"""Builds the scheduler in Go, examples/go/bin/emptiestfirst, from the messages in proto/: `make go`."""

import shutil
import subprocess
import sys
from pathlib import Path

from hoss.errors import ConfigError, HossError

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "examples/go"
PROGRAM = SOURCE / "bin/emptiestfirst"

_MODULE = "hoss.dev/examples"
# What a scheduler speaks: the dispatcher's link and the resolvers.
_FILES = [f"hoss/v1/{name}.proto" for name in ("common", "objects", "resolver", "workerlink")]
_PLUGINS = ("go", "go-grpc")


def build() -> Path:
    """The program. Raises ConfigError without Go, and HossError with the end of what a step printed."""
    if shutil.which("go") is None:
        raise ConfigError("the scheduler in Go is built by `go`, which is not on PATH", where="Go")
    protoc = [sys.executable, "-m", "grpc_tools.protoc", "-I", str(ROOT / "proto")]
    for plugin in _PLUGINS:
        name = f"protoc-gen-{plugin}"
        protoc += [f"--plugin={name}={_run('go', 'tool', '-n', name).strip()}", f"--{plugin}_out=."]
        protoc += [f"--{plugin}_opt=M{file}={_MODULE}/hossv1" for file in _FILES]
        protoc += [f"--{plugin}_opt=module={_MODULE}"]
    _run(*protoc, *_FILES)
    _run("go", "vet", "./...")
    _run("go", "build", "-o", str(PROGRAM), "./emptiestfirst")
    return PROGRAM


def _run(*command: str) -> str:
    result = subprocess.run(  # noqa: S603 - fixed commands
        command, cwd=SOURCE, capture_output=True, text=True, check=False
    )
    if result.returncode:
        raise HossError(f"`{' '.join(command[:3])}` ended with {result.returncode}:\n{result.stderr[-2000:]}")
    return result.stdout


if __name__ == "__main__":
    try:
        print(build())  # noqa: T201 - for whoever called it
    except HossError as exc:
        sys.exit(str(exc))
