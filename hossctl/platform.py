"""The local platform: Redis, resolvers, dispatcher and workers, each a process of its own on loopback.

Every process stands in the state file from the moment it runs, so that `hoss down` finds all of them, whatever
became of the command that started them.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson

from hoss.errors import HossError, InvalidInput
from hossctl.process import READY_SECONDS, ProcessRecord, Service, record_of, stop_all
from hossctl.redis_server import RedisServer

STATE_FILE = "platform.json"
TRACE_FILE = "trace.jsonl"


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """A scheduler worker to start."""

    name: str
    labels: tuple[tuple[str, str], ...] = ()
    flags: tuple[str, ...] = ()  # more of the service's own


@dataclass(frozen=True, slots=True)
class PlatformOptions:
    """What a platform is made of."""

    workers: tuple[WorkerOptions, ...]
    resolvers: int = 1
    dispatchers: int = 1  # one is active, the others stand by
    port: int = 0  # of the first dispatcher; 0: a free one, as the others take
    redis_url: str = ""  # empty: a Redis of its own
    policy: Path | None = None
    kubeconfig: Path | None = None  # Kubernetes mode, for the cluster of this file
    webhook_port: int = 0  # on loopback, where the first resolver guards the cluster's bindings; 0: none does
    webhook_certificates: Path | None = None  # with tls.crt and tls.key; None: resolvers make their own
    dashboard_listen: str = ""  # host:port; of several dispatchers the others take the ports after it. Empty: none
    dashboard_token_file: Path | None = None
    append_only: bool = False  # keep the ledger on disk; without it a stopped platform leaves nothing
    unchecked: bool = False  # workers commit without validation, for comparisons
    trace_ratio: float | None = None  # share of work batches whose traces are kept; None: nothing is traced
    metrics: bool = False  # every service shows Prometheus how it does, on a port of its own
    seed: int = 1  # worker i breaks ties by seed + i


@dataclass(frozen=True, slots=True)
class PlatformState:
    """A running platform as written to its state file."""

    redis_url: str = ""
    dispatcher: str = ""  # of several, all addresses with commas
    resolvers: tuple[str, ...] = ()
    processes: tuple[ProcessRecord, ...] = ()
    guarded: str = ""  # the kubeconfig of the cluster that may have been told to ask our guard

    @property
    def dashboards(self) -> tuple[str, ...]:
        """URLs, one for each dispatcher that shows one; of several all but the active one's say which that is."""
        return tuple(record.dashboard for record in self.processes if record.dashboard)

    def living(self) -> list[ProcessRecord]:
        """The processes that still run."""
        return [record for record in self.processes if record.find() is not None]

    def with_process(self, record: ProcessRecord) -> "PlatformState":
        """The same with one process more, or with its newer record."""
        others = tuple(known for known in self.processes if known.name != record.name)
        return replace(self, processes=(*others, record))


def home() -> Path:
    """Where the platform of this user lives: $HOSS_HOME, $XDG_STATE_HOME/hoss, or ~/.hoss."""
    if given := os.environ.get("HOSS_HOME"):
        return Path(given)
    state_home = os.environ.get("XDG_STATE_HOME")
    return Path(state_home) / "hoss" if state_home else Path.home() / ".hoss"


def load_state(directory: Path) -> PlatformState | None:
    """The platform that was started in `directory`, or None. Raises InvalidInput for a damaged state file."""
    path = directory / STATE_FILE
    try:
        raw = orjson.loads(path.read_bytes())
        return PlatformState(
            redis_url=raw["redis_url"],
            dispatcher=raw["dispatcher"],
            resolvers=tuple(raw["resolvers"]),
            processes=tuple(ProcessRecord(**record) for record in raw["processes"]),
            guarded=raw.get("guarded", ""),
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise InvalidInput(f"is no state file ({exc}); remove it if no platform runs", where=str(path)) from exc


@contextlib.contextmanager
def exclusive(directory: Path) -> Iterator[None]:
    """Let one `up` or `down` at a time work on a directory. Raises HossError while another does, and where it cannot be used."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock_file = (directory / "lock").open("w")
    except OSError as exc:
        raise HossError(
            f"the local platform cannot be kept in {directory} ({exc.strerror}); name a directory of yours with HOSS_HOME"
        ) from exc
    with lock_file as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            raise HossError(
                f"another hoss command is starting or stopping the platform in {directory}; wait for it"
            ) from exc
        yield


class Starter:
    """Starts a platform process by process. What was started is in `state` and in the state file at every moment."""

    def __init__(self, directory: Path, options: PlatformOptions) -> None:
        self.state = PlatformState(guarded=str(options.kubeconfig) if options.webhook_certificates else "")
        self._directory = directory
        self._options = options
        self._deadline = time.monotonic() + READY_SECONDS

    def start(self) -> PlatformState:
        """Start everything, in the order of dependence; workers at once. Raises HossError if anything does not serve."""
        (self._directory / "logs").mkdir(parents=True, exist_ok=True)
        redis_url = self._options.redis_url or self._start_redis()
        self._note(replace(self.state, redis_url=redis_url))
        resolvers = [self._resolver(number, redis_url) for number in range(1, self._options.resolvers + 1)]
        addresses = tuple(self._ready(service) for service in resolvers)
        self._note(replace(self.state, resolvers=addresses))
        dispatchers = [self._dispatcher(number, redis_url) for number in range(1, self._options.dispatchers + 1)]
        address = ",".join([self._ready(service) for service in dispatchers])
        self._note(replace(self.state, dispatcher=address))
        workers = [self._worker(number, options) for number, options in enumerate(self._options.workers)]
        for worker in workers:
            self._ready(worker)
        return self.state

    def start_worker(self, number: int, options: WorkerOptions) -> ProcessRecord:
        """Start one more worker and wait until it serves."""
        self._deadline = time.monotonic() + READY_SECONDS
        worker = self._worker(number, options)
        self._ready(worker)
        return worker.record

    def lose_redis(self) -> None:
        """Kill the platform's own Redis, as a crash would, and start another at its address, which has nothing."""
        for record in self.state.processes:
            if record.name == "redis" and (process := record.find()) is not None:
                process.kill()
                process.wait()
        shutil.rmtree(self._directory / "redis")
        self._start_redis(port=urlsplit(self.state.redis_url).port)

    def _start_redis(self, port: int | None = None) -> str:
        server = RedisServer.start(self._directory / "redis", port=port, append_only=self._options.append_only)
        record = record_of("redis", server.pid, self._directory / "redis" / "redis.log", f"127.0.0.1:{server.port}")
        self._note(self.state.with_process(record))
        return server.url

    def _resolver(self, number: int, redis_url: str) -> Service:
        arguments = ["--listen", "127.0.0.1:0", "--redis-url", redis_url]
        if self._options.unchecked:
            arguments.append("--allow-unchecked")
        arguments += self._cluster_flags()
        if self._options.webhook_port and number == 1:
            arguments += ["--webhook-listen", f"127.0.0.1:{self._options.webhook_port}", "--webhook-host", "127.0.0.1"]
            if self._options.webhook_certificates is not None:
                arguments += ["--webhook-cert-dir", str(self._options.webhook_certificates)]
        return self._service(f"resolver-{number}", "resolver", arguments)

    def _dispatcher(self, number: int, redis_url: str) -> Service:
        port = self._options.port if number == 1 else 0
        arguments = [
            "--listen",
            f"127.0.0.1:{port}",
            "--redis-url",
            redis_url,
            "--resolver",
            ",".join(self.state.resolvers),
        ]
        if self._options.policy is not None:
            arguments += ["--policy", str(self._options.policy)]
        arguments += self._cluster_flags()
        if self._options.dashboard_listen:
            arguments += ["--dashboard-listen", _nth_address(self._options.dashboard_listen, number)]
        if self._options.dashboard_token_file is not None:
            arguments += ["--dashboard-token-file", str(self._options.dashboard_token_file)]
        if self._options.trace_ratio is not None:
            arguments += ["--trace-ratio", str(self._options.trace_ratio)]
        name = "dispatcher" if self._options.dispatchers == 1 else f"dispatcher-{number}"
        return self._service(name, "dispatcher", arguments)

    def _cluster_flags(self) -> list[str]:
        return [] if self._options.kubeconfig is None else ["--kubeconfig", str(self._options.kubeconfig.resolve())]

    def _worker(self, number: int, options: WorkerOptions) -> Service:
        arguments = ["--name", options.name, "--dispatcher", self.state.dispatcher]
        arguments += ["--resolver", ",".join(self.state.resolvers), "--seed", str(self._options.seed + number)]
        for key, value in options.labels:
            arguments += ["--label", f"{key}={value}"]
        arguments += options.flags
        if self._options.unchecked:
            arguments.append("--unchecked")
        return self._service(f"worker-{options.name}", "scheduler_worker", arguments)

    def _service(self, name: str, module: str, arguments: list[str]) -> Service:
        if self._options.trace_ratio is not None:
            arguments = [*arguments, "--trace-file", str(self._directory / TRACE_FILE)]
        if self._options.metrics:
            arguments = [*arguments, "--metrics-listen", "127.0.0.1:0"]
        service = Service(name, module, arguments, self._directory / "logs")
        self._note(self.state.with_process(service.record))
        return service

    def _ready(self, service: Service) -> str:
        record = service.wait_ready(self._deadline)
        self._note(self.state.with_process(record))
        return record.address

    def _note(self, state: PlatformState) -> None:
        self.state = state
        document: dict[str, Any] = {
            "redis_url": state.redis_url,
            "dispatcher": state.dispatcher,
            "resolvers": list(state.resolvers),
            "processes": [record.as_json() for record in state.processes],
            "guarded": state.guarded,
        }
        fresh = _fresh(self._directory)
        fresh.write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2))
        fresh.replace(self._directory / STATE_FILE)


def _fresh(directory: Path) -> Path:
    """Where the next state file is written before it takes the present one's place."""
    return (directory / STATE_FILE).with_suffix(".new")


def _nth_address(address: str, number: int) -> str:
    """The address for the process of that number, from 1 on: each has the next port, where the port is not left to chance."""
    host, _, port = address.rpartition(":")
    return f"{host}:{int(port) + number - 1}" if port.isdecimal() and int(port) else address


def start(directory: Path, options: PlatformOptions) -> PlatformState:
    """Start a platform that stays. If anything fails, everything that was started is stopped again."""
    starter = Starter(directory, options)
    try:
        return starter.start()
    except BaseException:
        stop(directory, starter.state)
        raise


def stop(directory: Path, state: PlatformState) -> list[str]:
    """Stop every process of a platform, those first that use the others; remove the state file, keep the data.

    Returns the names of processes that had to be killed.
    """
    killed: list[str] = []
    for tier in ("worker-", "dispatcher", "resolver-", "redis"):
        killed += stop_all([record for record in state.processes if record.name.startswith(tier)])
    for left in (directory / STATE_FILE, _fresh(directory), *(directory / "logs").glob("*.ready")):
        left.unlink(missing_ok=True)
    return killed


def purge(directory: Path) -> None:
    """Remove what a stopped platform keeps for its next start: the ledger, the journal and the logs."""
    for folder in ("redis", "logs"):
        shutil.rmtree(directory / folder, ignore_errors=True)


@contextlib.contextmanager
def temporary(options: PlatformOptions) -> Iterator[Starter]:
    """A platform for the length of a with block, in a directory of its own that goes with it."""
    directory = Path(tempfile.mkdtemp(prefix="hoss-"))
    starter = Starter(directory, options)
    try:
        starter.start()
        yield starter
    finally:
        stop(directory, starter.state)
        shutil.rmtree(directory, ignore_errors=True)
