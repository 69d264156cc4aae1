"""Processes of HOSS without the second that Python takes to import it.

A fork server imports every service and command once and forks a child for each process that a test asks for.
It has no thread and no gRPC channel, so a child is as good as a new interpreter: it gets its own arguments,
environment, directory, standard streams and signal handlers before `main` of its module runs. What only a new
interpreter can show (the cost of imports, `python -m` itself, settings of the interpreter) is tested with
one; see `tests/unit/hossctl/test_launching.py`.

Used in two ways: `FORK_SERVER.start` and `.run` by tests, and as `ServiceProcess.launch`, in the tests' own
process and in the commands that they run, so that `hoss up` forks its services too. Linux and macOS."""

import array
import atexit
import contextlib
import gc
import importlib
import importlib.util
import json
import os
import pkgutil
import resource
import selectors
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any, NoReturn

# Where children find the server that made them, so that commands can have their services forked, too.
ADDRESS_VARIABLE = "HOSS_TESTS_FORK_SERVER"
HASH_SEED = "0"  # PYTHONHASHSEED of all forks
ROOT = Path(__file__).parents[1]
_PACKAGES = ("hoss", "dispatcher", "resolver", "scheduler_worker", "hossctl")
_OF_FEW_TESTS = ("hoss.telemetry.otlp", "hossctl.compare.report", "hossctl.simulate")  # and dear
# Of others, what services and commands import inside a function.
_WHEN_THEY_RUN = (
    "_strptime",
    "encodings.idna",
    "grpc_reflection.v1alpha.reflection",
    "jwt",
    "numpy.ma",
    "typer._adapters",
    "uvloop",
)
# Imported once as well, but only when a test asks for one of them: the tests of most files do not.
_WHEN_ASKED = ("tools.simulation", "simulation.planted")
_LENGTH = 8  # bytes of a message's length, little-endian
_POLL_SECONDS = 0.01
_EXIT = Callable[[], int | str | None]


class _Connection(socket.socket):
    """To the server. It closes itself where nobody waits for the process: a service may outlive who started
    it."""

    def __del__(self) -> None:
        self.close()


class ForkedProcess:
    """A process that the server made, with what tests use of `subprocess.Popen`.

    The server is its parent and tells its exit code (negative: by which signal it ended).
    """

    def __init__(self, pid: int, connection: socket.socket) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._connection = connection

    def poll(self) -> int | None:
        """The exit code, once there is one."""
        return self._exit_code(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """The exit code; raises subprocess.TimeoutExpired where it does not come in time."""
        code = self._exit_code(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        """Nothing where it has ended, as Popen has it."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """As SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """As SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def _exit_code(self, timeout: float | None) -> int | None:
        if self.returncode is not None:
            return self.returncode
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            self._connection.settimeout(None if deadline is None else max(0.0, deadline - time.monotonic()))
            with contextlib.suppress(TimeoutError, BlockingIOError):
                ended = _receive(self._connection)
                self._connection.close()
                self.returncode = int(ended["code"])
                return self.returncode
            if deadline is not None and time.monotonic() >= deadline:
                return None


class ForkServer:
    """One a test process; it starts with its first use and ends with its parent."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._address = os.environ.get(ADDRESS_VARIABLE, "")

    @property
    def address(self) -> str:
        """Of the server's socket; the server runs from here on."""
        if not self._address:
            # Not in a test's own folder: the name of a socket may have no more than some hundred characters.
            self._address = str(Path(tempfile.mkdtemp(prefix="hoss-fork-")) / "s")
            self._process = subprocess.Popen(
                [sys.executable, __file__, self._address],
                stdin=subprocess.PIPE,
                start_new_session=True,
                # The linear algebra that NumPy brings has a thread for each core otherwise, and a fork has
                # none of them. Sets of texts have one order in all forks, as a simulation's seed needs it.
                env={
                    **os.environ,
                    "PYTHONPATH": str(ROOT),
                    "OPENBLAS_NUM_THREADS": "1",
                    "PYTHONHASHSEED": HASH_SEED,
                },
            )
        return self._address

    def start(
        self,
        module: str,
        arguments: Sequence[str],
        *,
        stdin: int | IO[Any] | None = None,
        stdout: int | IO[Any] | None = None,
        stderr: int | IO[Any] | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
    ) -> ForkedProcess:
        """As `subprocess.Popen([sys.executable, "-m", module, *arguments], start_new_session=True)`; streams
        that are not given are this process's own."""
        environment = {**(os.environ if env is None else env), ADDRESS_VARIABLE: self.address}
        request = {
            "module": module,
            "arguments": list(arguments),
            "env": environment,
            "cwd": str(cwd or Path.cwd()),
        }
        streams = [own if given is None else given for own, given in enumerate((stdin, stdout, stderr))]
        descriptors = [stream if isinstance(stream, int) else stream.fileno() for stream in streams]
        connection = self._connect()
        _send(connection, request, descriptors)
        return ForkedProcess(int(_receive(connection)["pid"]), connection)

    def ended_cpu_seconds(self) -> float:
        """CPU time of all processes that were started here and have ended, while the server, whose children
        they are, has not."""
        if self._process is None:
            return 0.0
        with self._connect() as connection:
            _send(connection, {"module": ""})
            return float(_receive(connection)["cpu_seconds"])

    def run(
        self,
        module: str,
        arguments: Sequence[str],
        *,
        stdin: str = "",
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        timeout: float | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """As `subprocess.run(..., capture_output=True, text=True, check=False)`."""
        with (
            tempfile.TemporaryFile() as given,
            tempfile.TemporaryFile() as out,
            tempfile.TemporaryFile() as err,
        ):
            given.write(stdin.encode())
            given.seek(0)
            process = self.start(module, arguments, stdin=given, stdout=out, stderr=err, env=env, cwd=cwd)
            try:
                code = process.wait(timeout)
            except BaseException:
                process.kill()
                raise
            out.seek(0)
            err.seek(0)
            return subprocess.CompletedProcess(
                [module, *arguments], code, out.read().decode(), err.read().decode()
            )

    def launch(self, module: str, arguments: Sequence[str], log: IO[bytes]) -> ForkedProcess:
        """What `hossctl.local.process.Service.launch` is in tests."""
        with Path(os.devnull).open("rb") as nothing:
            return self.start(module, arguments, stdin=nothing, stdout=log, stderr=log)

    def stop(self) -> None:
        """End the server, and whatever it has started that still runs."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            self._process.wait()
            self._process = None

    def _connect(self) -> socket.socket:
        while True:
            connection = _Connection(socket.AF_UNIX)
            try:
                connection.connect(self.address)
            except (FileNotFoundError, ConnectionRefusedError):
                connection.close()
                assert self._process is None or self._process.poll() is None, "the fork server has ended"
                time.sleep(_POLL_SECONDS)
            else:
                return connection


FORK_SERVER = ForkServer()


def _send(connection: socket.socket, message: Any, descriptors: Sequence[int] = ()) -> None:
    data = json.dumps(message).encode()
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
    connection.sendmsg([len(data).to_bytes(_LENGTH, "little")], rights)
    connection.sendall(data)


def _receive(connection: socket.socket, descriptors: list[int] | None = None) -> Any:
    """A message; the descriptors that came with it are added to the list."""
    head, ancillary, _, _ = connection.recvmsg(_LENGTH, socket.CMSG_SPACE(3 * array.array("i").itemsize))
    for _, _, rights in ancillary:
        if descriptors is not None:
            descriptors += array.array("i", rights)
    size = int.from_bytes(head, "little")
    data = b""
    while len(data) < size and (part := connection.recv(size - len(data))):
        data += part
    if len(data) < size or not size:
        raise EOFError("the fork server is gone")
    return json.loads(data)


class _Server:
    """Forks for whoever asks, until its standard input ends: then the tests are over, or were killed."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._running: dict[int, socket.socket] = {}  # who is told of its end, by process
        self._waking, self._woken = socket.socketpair()
        self._woken.setblocking(False)
        signal.set_wakeup_fd(self._woken.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._listener = socket.socket(socket.AF_UNIX)
        fresh = f"{address}.new"
        self._listener.bind(fresh)
        self._listener.listen(64)
        Path(fresh).rename(address)  # from here on it is found, and answers

    def serve(self) -> _EXIT | None:
        """Returns in each child too: with what the child is to do."""
        with selectors.DefaultSelector() as selector:
            for source in (sys.stdin, self._waking, self._listener):
                selector.register(source, selectors.EVENT_READ)
            while True:
                ready = {key.fileobj for key, _ in selector.select()}
                if sys.stdin in ready:
                    self._close()
                    return None
                if self._waking in ready:
                    self._waking.recv(4096)
                    self._reap()
                if self._listener in ready and (child := self._answer()):
                    return child

    def _answer(self) -> _EXIT | None:
        connection, _ = self._listener.accept()
        streams: list[int] = []
        request = _receive(connection, streams)
        if not request["module"]:
            usage = resource.getrusage(resource.RUSAGE_CHILDREN)
            _send(connection, {"cpu_seconds": usage.ru_utime + usage.ru_stime})
            connection.close()
            return None
        if request["module"] in _WHEN_ASKED and _main_of(request["module"]) not in sys.modules:
            importlib.import_module(_main_of(request["module"]))
            _keep_what_is_imported()
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            for held in (self._waking, self._woken, self._listener, connection, *self._running.values()):
                held.close()
            return _become(request, streams)
        for stream in streams:
            os.close(stream)
        self._running[pid] = connection
        _send(connection, {"pid": pid})
        return None

    def _reap(self) -> None:
        while self._running:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            with self._running.pop(pid) as connection, contextlib.suppress(OSError):
                # Whoever asked for it may have ended and not want to know.
                _send(connection, {"code": os.waitstatus_to_exitcode(status)})

    def _close(self) -> None:
        for pid in self._running:  # nobody else ends what killed tests have started
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        Path(self._address).unlink()
        Path(self._address).parent.rmdir()


def _become(request: Any, streams: Sequence[int]) -> _EXIT:
    """Make this child the process that was asked for; what remains is to run the module's `main`."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    sys.stdin, sys.stdout, sys.stderr = (
        open(number, mode, encoding="utf-8", errors=errors, closefd=False)  # noqa: SIM115 - stays open
        for number, mode, errors in ((0, "r", "strict"), (1, "w", "strict"), (2, "w", "backslashreplace"))
    )
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    # A test may have packages of its own, as plugins are.
    added = [
        entry
        for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep)
        if entry and entry not in sys.path
    ]
    sys.path[:0] = added
    importlib.invalidate_caches()
    module = importlib.import_module(_main_of(request["module"]))
    sys.argv = [str(module.__file__), *request["arguments"]]
    return partial(_run, module.main)


def _run(main: _EXIT) -> int | str | None:
    """Run it as `python -m` would; what it has written is out before the process ends, whatever ends it."""
    from hossctl.local.process import ServiceProcess  # noqa: PLC0415 - only the server's children need it

    ServiceProcess.launch = staticmethod(FORK_SERVER.launch)
    FORK_SERVER._address = os.environ[ADDRESS_VARIABLE]
    return main()


def _end(run: _EXIT) -> NoReturn:
    """End as an interpreter does, but for taking its modules apart: that would copy every page that the
    children share."""
    try:
        code = run()
    except SystemExit as exc:
        code = exc.code
    except KeyboardInterrupt:
        traceback.print_exc()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:  # noqa: BLE001 - an interpreter prints it and ends, whatever it is
        traceback.print_exc()
        code = 1
    if isinstance(code, str):
        print(code, file=sys.stderr)  # noqa: T201 - as sys.exit does
        code = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    gc.collect()  # says what was never awaited
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # nobody reads it any more, or it was closed
            stream.flush()
    os._exit(code or 0)


def _import_everything() -> None:
    """Also what services and commands import when they need it: most of them do, and each fork would
    again."""
    for name in _PACKAGES:
        package = importlib.import_module(name)
        for module in pkgutil.walk_packages(package.__path__, f"{name}."):
            if not module.name.startswith(_OF_FEW_TESTS):
                importlib.import_module(module.name)
    for name in _WHEN_THEY_RUN:
        with contextlib.suppress(
            ImportError
        ):  # of another version, or not for this system: it costs time only
            importlib.import_module(name)
    _keep_what_is_imported()


def _keep_what_is_imported() -> None:
    gc.collect()
    gc.freeze()  # a child that collects would copy every page of the modules that all share


def _main_of(name: str) -> str:
    """The module that `python -m name` runs: of a package its `__main__`."""
    found = importlib.util.find_spec(name)
    return f"{name}.__main__" if found and found.submodule_search_locations else name


def shell_command(module: str) -> str:
    """A shell script that is `python -m module` to whoever runs it, and is forked."""
    return f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -SE {shlex.quote(__file__)} --as {module} "$@"\n'


def main() -> None:
    """The server's own process, or with `--as MODULE ARGUMENT...` a command that it is asked for."""
    if sys.argv[1] == "--as":
        sys.exit(FORK_SERVER.start(sys.argv[2], sys.argv[3:]).wait())
    _import_everything()
    child = _Server(sys.argv[1]).serve()
    if child is not None:
        _end(child)


if __name__ == "__main__":
    main()
