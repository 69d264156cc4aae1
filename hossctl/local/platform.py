"""The local platform: Redis, resolvers, dispatchers and workers, each a process of its own on loopback.

Every process is in the state file from the moment it runs. So `hoss down` finds all of them, even if the
command that started them was killed."""

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote, urlsplit

from hoss.contexts import LOCAL, Context, load_contexts, save_contexts
from hoss.errors import HossError
from hoss.host import THIS_HOST
from hoss.redis.accounts import DISPATCHER, RESOLVER, RedisAccount, password_in
from hoss.security.identity import CallerKind, Identity, Role
from hossctl.local.platform_state import (
    WORKER_PREFIX,
    PlatformState,
    WorkerOptions,
    remove_state,
    save_state,
)
from hossctl.local.ports import check_loopback
from hossctl.local.process import (
    READY_SECONDS,
    ProcessRecord,
    ServiceProcess,
    private_directory,
    record_of,
    stop_all,
)
from hossctl.local.redis_server import RedisServer

SECURITY_DIRECTORY = "security"  # the platform's authority; see hoss/security/authority.py
WORKERS_DIRECTORY = "workers"  # documents of workers whose flags do not say all; removed with them
OPERATOR = Identity(CallerKind.CLIENT, "operator", Role.ADMIN)  # who started the platform
_REBALANCER = Identity(CallerKind.CLIENT, "rebalance-controller", Role.OPERATE)
_DASHBOARD_CLIENT = Identity(CallerKind.CLIENT, "dashboard", Role.OPERATE)
_VIEWER = Identity(CallerKind.CLIENT, "operator", Role.OPERATE)  # who follows a link to the dashboard
CONTROLLER = "rebalance-controller"  # its process
DASHBOARD = "dashboard"  # likewise
_CONTROLLER_POLICY = "rebalance.yaml"  # the copy of its policy that it was started with
TRACE_FILE = "trace.jsonl"


@dataclass(frozen=True, slots=True)
class PlatformOptions:
    """The parts of a platform and their settings."""

    workers: tuple[WorkerOptions, ...]
    resolvers: int = 1
    dispatchers: int = 1  # one is active, the others stand by
    port: int = 0  # of the first dispatcher; 0: a free port. Other dispatchers always take free ports
    redis_url: str = ""  # empty: start a Redis
    policy: Path | None = None
    rebalance: str = ""  # the text of a RebalancePolicy; empty: no rebalance controller
    kubeconfig: Path | None = None  # Kubernetes mode, for the cluster of this file
    webhook_port: int = 0  # of the first resolver's binding webhook, on loopback; 0: no webhook
    webhook_certificates: Path | None = None  # with tls.crt and tls.key; None: resolvers make their own
    dashboard_listen: str = ""  # host:port of the dashboard; empty: none
    dashboard_token_file: Path | None = None
    append_only: bool = False  # keep the ledger on disk, beyond the platform's end
    unchecked: bool = False  # workers commit without validation, for comparisons
    trace_ratio: float | None = None  # share of work batches whose traces are kept; None: no tracing
    insecure: bool = False  # no TLS, no password of Redis: for measurements of what these cost
    metrics: bool = False  # every service serves metrics for Prometheus, on a port of its own
    seed: int = 1  # worker i breaks ties by seed + i


@contextlib.contextmanager
def exclusive(directory: Path) -> Iterator[None]:
    """Lock a directory against other `up` and `down` commands. Raises HossError where another holds the lock,
    and where the directory cannot be used."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock_file = (directory / "lock").open("w")
        os.fchmod(lock_file.fileno(), 0o600)  # whoever may read a file may also lock it
    except OSError as exc:
        raise HossError(
            f"the local platform cannot be kept in {directory} ({exc.strerror}); name a directory of yours "
            "with HOSS_HOME"
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
    """Starts a platform process by process. `state` and the state file contain every process that was
    started, at every moment."""

    def __init__(self, directory: Path, options: PlatformOptions, state: PlatformState | None = None) -> None:
        registers = options.webhook_certificates is not None
        self.state = state or PlatformState(
            webhook_kubeconfig=str(options.kubeconfig) if registers else "",
            traced=options.trace_ratio is not None,
            metrics=options.metrics,
            unchecked=options.unchecked,
        )
        self.directory = directory
        self._options = options
        self._deadline = time.monotonic() + READY_SECONDS

    @classmethod
    def of_running(cls, directory: Path, state: PlatformState) -> "Starter":
        """Starts and stops workers of a platform that runs already."""
        first_seed = min((worker.seed for worker in state.workers if worker.seed is not None), default=1)
        options = PlatformOptions(
            workers=(),
            trace_ratio=1.0 if state.traced else None,  # only dispatchers need the share itself
            metrics=state.metrics,
            unchecked=state.unchecked,
            insecure=not state.tls_dir,
            seed=first_seed,
        )
        return cls(directory, options, state)

    def start(self) -> PlatformState:
        """Start everything in the order of dependence, workers at the same time. Raises HossError where a
        part does not serve."""
        check_loopback()
        private_directory(self.directory / "logs")
        self._note(replace(self.state, tls_dir=self._tls_dir(OPERATOR)))
        redis_url = self._options.redis_url or self._start_redis()
        self._note(replace(self.state, redis_url=redis_url))
        resolvers = [self._resolver(number, redis_url) for number in range(1, self._options.resolvers + 1)]
        addresses = tuple(self._ready(service) for service in resolvers)
        self._note(replace(self.state, resolvers=addresses))
        dispatchers = [
            self._dispatcher(number, redis_url) for number in range(1, self._options.dispatchers + 1)
        ]
        address = ",".join([self._ready(service) for service in dispatchers])
        self._note(replace(self.state, dispatcher=address))
        workers = [self._worker(number, options) for number, options in enumerate(self._options.workers)]
        dashboard = self._dashboard() if self._options.dashboard_listen else None
        self._all_ready([*workers, *([] if dashboard is None else [dashboard])])
        self.set_rebalancing(self._options.rebalance)
        return self.state

    def set_rebalancing(self, policy: str) -> None:
        """Have a rebalance controller with this RebalancePolicy, in place of one that runs; "": have none."""
        self._deadline = time.monotonic() + READY_SECONDS
        stop_all([record for record in self.state.processes if record.name == CONTROLLER])
        others = tuple(record for record in self.state.processes if record.name != CONTROLLER)
        self._note(replace(self.state, processes=others))
        document = self.directory / _CONTROLLER_POLICY
        document.unlink(missing_ok=True)
        if not policy:
            return
        document.write_text(policy, encoding="utf-8")
        arguments = ["rebalance", "controller", "--file", str(document)]
        arguments += ["--dispatcher", self.state.dispatcher, "--resolver", ",".join(self.state.resolvers)]
        arguments += self._metrics_flags()
        self._ready(self._process(CONTROLLER, "hossctl", arguments, _REBALANCER))

    def rebalancing(self) -> str:
        """The RebalancePolicy of the controller that runs; "": none does."""
        running = any(record.name == CONTROLLER and record.find() for record in self.state.processes)
        return (self.directory / _CONTROLLER_POLICY).read_text(encoding="utf-8") if running else ""

    def start_worker(self, number: int, options: WorkerOptions) -> ProcessRecord:
        """Start one more worker and wait until it serves."""
        self._deadline = time.monotonic() + READY_SECONDS
        worker = self._worker(number, options)
        self._ready(worker)
        return worker.record

    def start_workers(self, workers: Sequence[WorkerOptions]) -> None:
        """Start more workers at the same time and wait until all serve. A worker that does not is stopped and
        forgotten again; raises HossError."""
        self._deadline = time.monotonic() + READY_SECONDS
        known = {worker.name for worker in self.state.workers}
        try:
            first = len(self.state.workers)
            self._all_ready([self._worker(first + i, options) for i, options in enumerate(workers)])
        except BaseException:
            for options in workers:
                if options.name not in known:
                    self.stop_worker(options.name)
            raise

    def stop_worker(self, name: str, *, forget: bool = True) -> bool:
        """Ask a worker to give back what it has not started, and to end. Returns whether it had to be killed.
        `forget`: it shall not run again."""
        record = self.state.process_of(WorkerOptions(name))
        killed = record is not None and bool(stop_all([record]))
        if forget:
            self._note(self.state.without_worker(name))
            self._document_of(name).unlink(missing_ok=True)
            (self.directory / "logs" / f"{WorkerOptions(name).process}.ready").unlink(missing_ok=True)
        return killed

    def lose_redis(self) -> None:
        """Kill the platform's own Redis, as a crash would, and start an empty one at its address."""
        for record in self.state.processes:
            if record.name == "redis" and (process := record.find()) is not None:
                process.kill()
                process.wait()
        shutil.rmtree(self.directory / "redis")
        self._start_redis(port=urlsplit(self.state.redis_url).port)

    def _tls_dir(self, identity: Identity) -> str:
        """The directory with the certificate of an identity, which is made or renewed if it is due; ""
        without TLS."""
        if self._options.insecure:
            return ""
        from hoss.security.authority import Authority  # noqa: PLC0415 - cryptography takes long to import

        now = THIS_HOST.utc_now()
        authority = Authority.found_or_created(self.directory / SECURITY_DIRECTORY, now=now)
        return str(authority.current(identity, now=now).directory)

    def _start_redis(self, port: int | None = None) -> str:
        server = RedisServer.start(
            self.directory / "redis",
            port=port,
            append_only=self._options.append_only,
            password_file=None if self._options.insecure else self._redis_password(),
            accounts=None if self._options.insecure else self.directory / SECURITY_DIRECTORY,
        )
        record = record_of(
            "redis", server.pid, self.directory / "redis" / "redis.log", f"127.0.0.1:{server.port}"
        )
        self._note(self.state.with_process(record))
        return server.url

    def _redis_password(self) -> Path:
        """The file with the password of the platform's own Redis, which is made if it is not there."""
        path = self.directory / SECURITY_DIRECTORY / "redis.password"
        password_in(path)
        return path

    def _redis_url_of(self, account: RedisAccount, redis_url: str) -> str:
        """By which a service reaches Redis: the platform's own Redis has an account for each kind."""
        if self._options.redis_url or self._options.insecure:
            return redis_url
        file = self.directory / SECURITY_DIRECTORY / account.password_file
        return f"redis://{account.name}@{urlsplit(redis_url).netloc}/0?password_file={quote(str(file))}"

    def _resolver(self, number: int, redis_url: str) -> ServiceProcess:
        arguments = ["--listen", "127.0.0.1:0", "--redis-url", self._redis_url_of(RESOLVER, redis_url)]
        if self._options.unchecked:
            arguments.append("--allow-unchecked")
        arguments += self._cluster_flags()
        if self._options.webhook_port and number == 1:
            arguments += [
                "--webhook-listen",
                f"127.0.0.1:{self._options.webhook_port}",
                "--webhook-host",
                "127.0.0.1",
            ]
            if self._options.webhook_certificates is not None:
                arguments += ["--webhook-cert-dir", str(self._options.webhook_certificates)]
        return self._service(f"resolver-{number}", "resolver", arguments, Identity(CallerKind.RESOLVER))

    def _dispatcher(self, number: int, redis_url: str) -> ServiceProcess:
        port = self._options.port if number == 1 else 0
        arguments = [
            "--listen",
            f"127.0.0.1:{port}",
            "--redis-url",
            self._redis_url_of(DISPATCHER, redis_url),
            "--resolver",
            ",".join(self.state.resolvers),
        ]
        if self._options.policy is not None:
            arguments += ["--policy", str(self._options.policy)]
        arguments += self._cluster_flags()
        if self._options.trace_ratio is not None:
            arguments += ["--trace-ratio", str(self._options.trace_ratio)]
        name = "dispatcher" if self._options.dispatchers == 1 else f"dispatcher-{number}"
        return self._service(name, "dispatcher", arguments, Identity(CallerKind.DISPATCHER))

    def _dashboard(self) -> ServiceProcess:
        arguments = ["dashboard", "--listen", self._options.dashboard_listen, *self._metrics_flags()]
        arguments += ["--dispatcher", self.state.dispatcher, "--resolver", ",".join(self.state.resolvers)]
        if self._options.dashboard_token_file is not None:
            arguments += ["--token-file", str(self._options.dashboard_token_file)]
        return self._process(DASHBOARD, "hossctl", arguments, _DASHBOARD_CLIENT)

    def _cluster_flags(self) -> list[str]:
        return (
            []
            if self._options.kubeconfig is None
            else ["--kubeconfig", str(self._options.kubeconfig.resolve())]
        )

    def _document_of(self, worker: str) -> Path:
        return self.directory / WORKERS_DIRECTORY / f"{worker}.yaml"

    def _worker(self, number: int, options: WorkerOptions) -> ServiceProcess:
        seed = self._options.seed + number if options.seed is None else options.seed
        self._note(self.state.with_worker(replace(options, seed=seed)))
        identity = Identity(CallerKind.WORKER, options.name)
        arguments = ["--name", options.name, "--dispatcher", self.state.dispatcher]
        arguments += ["--resolver", ",".join(self.state.resolvers)]
        labels = [flag for key, value in options.labels for flag in ("--label", f"{key}={value}")]
        if options.scheduler:
            arguments = [options.scheduler, *arguments, *labels, *options.flags]
            return self._process(options.process, "hoss.sdk", arguments, identity)
        arguments += ["--seed", str(seed)]
        document = self._document_of(options.name)
        if options.document:
            private_directory(document.parent)
            document.write_text(options.document, encoding="utf-8")
            arguments += ["--config", str(document)]
        arguments += [*labels, *options.flags]
        if self._options.unchecked:
            arguments.append("--unchecked")
        return self._service(options.process, "scheduler_worker", arguments, identity)

    def _service(self, name: str, module: str, arguments: list[str], identity: Identity) -> ServiceProcess:
        arguments = [*arguments, "--reflection", *self._metrics_flags()]
        if self._options.trace_ratio is not None:
            arguments = [*arguments, "--trace-file", str(self.directory / TRACE_FILE)]
        return self._process(name, module, arguments, identity)

    def _metrics_flags(self) -> list[str]:
        return ["--metrics-listen", "127.0.0.1:0"] if self._options.metrics else []

    def _process(self, name: str, module: str, arguments: list[str], identity: Identity) -> ServiceProcess:
        if tls_dir := self._tls_dir(identity):
            arguments = [*arguments, "--tls-dir", tls_dir]
        service = ServiceProcess(name, module, arguments, self.directory / "logs")
        self._note(self.state.with_process(service.record))
        return service

    def _all_ready(self, services: Sequence[ServiceProcess]) -> None:
        for service in services:
            self._ready(service)

    def _ready(self, service: ServiceProcess) -> str:
        record = service.wait_ready(self._deadline)
        self._note(self.state.with_process(record))
        return record.address

    def _note(self, state: PlatformState) -> None:
        self.state = state
        save_state(self.directory, state)


def start(directory: Path, options: PlatformOptions) -> PlatformState:
    """Start a platform that outlives this process. Where a part fails, everything is stopped again."""
    starter = Starter(directory, options)
    try:
        state = starter.start()
        context = Context(state.dispatcher, ",".join(state.resolvers), state.tls_dir)
        save_contexts(directory, load_contexts(directory).with_context(LOCAL, context))
    except BaseException:
        stop(directory, starter.state)
        raise
    return state


def dashboard_links(directory: Path, state: PlatformState) -> list[str]:
    """The link to the dashboard of a running platform. With TLS it logs in its first user, as operator,
    within some minutes; its token is in the part of the address that browsers send to nobody."""
    if not state.tls_dir:
        return list(state.dashboards)
    from hoss.security.authority import Authority  # noqa: PLC0415 - cryptography takes long to import

    authority, now = Authority(directory / SECURITY_DIRECTORY), THIS_HOST.utc_now()
    return [f"{url}#login={authority.create_login(_VIEWER, now=now)}" for url in state.dashboards]


def stop(directory: Path, state: PlatformState) -> list[str]:
    """Stop every process of a platform, users before what they use, and remove the state file; keep the data.
    Returns the names of the processes that had to be killed."""
    killed: list[str] = []
    for tier in (CONTROLLER, DASHBOARD, WORKER_PREFIX, "dispatcher", "resolver-", "redis"):
        killed += stop_all([record for record in state.processes if record.name.startswith(tier)])
    remove_state(directory)
    for left in (directory / _CONTROLLER_POLICY, *(directory / "logs").glob("*.ready")):
        left.unlink(missing_ok=True)
    shutil.rmtree(directory / WORKERS_DIRECTORY, ignore_errors=True)
    known = load_contexts(directory)
    if LOCAL in known.contexts:
        save_contexts(directory, known.with_context(LOCAL, None))
    return killed


def purge(directory: Path) -> None:
    """Remove what a stopped platform keeps for its next start: the ledger, the journal, the logs, and the
    authority with all certificates and tokens."""
    for folder in ("redis", "logs", SECURITY_DIRECTORY):
        shutil.rmtree(directory / folder, ignore_errors=True)


@contextlib.contextmanager
def temporary(options: PlatformOptions) -> Iterator[Starter]:
    """A platform for the length of a with block, in a temporary directory."""
    directory = Path(tempfile.mkdtemp(prefix="hoss-"))
    starter = Starter(directory, options)
    try:
        starter.start()
        yield starter
    finally:
        stop(directory, starter.state)
        shutil.rmtree(directory, ignore_errors=True)
