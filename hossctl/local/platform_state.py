"""What a local platform was started with and which processes it has, as its state file says it.

Every process is in the file from the moment it runs, so that `hoss down` finds all of them."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import orjson

from hoss.errors import InvalidInput
from hossctl.local.process import ProcessRecord

STATE_FILE = "platform.json"
WORKER_PREFIX = "worker-"  # of the names of workers' processes


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """A scheduler worker of a platform."""

    name: str
    labels: tuple[tuple[str, str], ...] = ()
    flags: tuple[str, ...] = ()  # further command-line flags of the service
    pool: str = ""  # of the Platform document that it is of; empty: it was named by a command
    document: str = ""  # a WorkerConfig document that the flags override; empty: none
    scheduler: str = ""  # FILE.py:Class or module:Class that hoss.sdk runs; empty: a worker of HOSS
    seed: int | None = None  # None: the platform's, plus the number of workers before it

    @property
    def process(self) -> str:
        """The name of its process."""
        return f"{WORKER_PREFIX}{self.name}"


@dataclass(frozen=True, slots=True)
class PlatformState:
    """A running platform, as in its state file."""

    redis_url: str = ""
    dispatcher: str = ""  # addresses of all dispatchers, separated by commas
    resolvers: tuple[str, ...] = ()
    processes: tuple[ProcessRecord, ...] = ()
    webhook_kubeconfig: str = ""  # of the cluster where our binding webhook may be registered
    tls_dir: str = ""  # the operator's certificate; empty: the platform speaks plain text
    # What later workers are started with: PlatformOptions has the meanings.
    workers: tuple[WorkerOptions, ...] = ()  # those that shall run, whether they do or not
    traced: bool = False
    metrics: bool = False
    unchecked: bool = False

    @property
    def dashboards(self) -> tuple[str, ...]:
        """The dashboard's URL; none without a dashboard."""
        return tuple(record.dashboard for record in self.processes if record.dashboard)

    def living(self) -> list[ProcessRecord]:
        """The processes that still run."""
        return [record for record in self.processes if record.find() is not None]

    def ended_process(self, service: str) -> ProcessRecord | None:
        """A process that has ended and without which this service ("dispatcher" or "resolver") cannot answer:
        the platform's Redis, or the last process of the service. None: it can."""
        for part in ("redis", service):
            records = [record for record in self.processes if record.name.startswith(part)]
            if records and all(record.find() is None for record in records):
                return records[-1]
        return None

    def with_process(self, record: ProcessRecord) -> "PlatformState":
        """The state with this process added, or its record replaced."""
        others = tuple(known for known in self.processes if known.name != record.name)
        return replace(self, processes=(*others, record))

    def with_worker(self, options: WorkerOptions) -> "PlatformState":
        """The state with this worker added, or its options replaced."""
        others = tuple(known for known in self.workers if known.name != options.name)
        return replace(self, workers=(*others, options))

    def without_worker(self, name: str) -> "PlatformState":
        """The state without this worker and its process."""
        gone = WorkerOptions(name).process
        return replace(
            self,
            workers=tuple(known for known in self.workers if known.name != name),
            processes=tuple(record for record in self.processes if record.name != gone),
        )

    def process_of(self, worker: WorkerOptions) -> ProcessRecord | None:
        """The record of a worker's process, which may have ended."""
        return next((record for record in self.processes if record.name == worker.process), None)


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
            webhook_kubeconfig=raw.get("guarded", ""),
            tls_dir=raw.get("tls_dir", ""),
            workers=tuple(map(_worker_of, raw.get("workers", ()))),
            traced=raw.get("traced", False),
            metrics=raw.get("metrics", False),
            unchecked=raw.get("unchecked", False),
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise InvalidInput(
            f"is no state file ({exc}); remove it if no platform runs", where=str(path)
        ) from exc


def _worker_of(raw: dict[str, Any]) -> WorkerOptions:
    labels = tuple((key, value) for key, value in raw.pop("labels"))
    return WorkerOptions(labels=labels, flags=tuple(raw.pop("flags")), **raw)


def save_state(directory: Path, state: PlatformState) -> None:
    """Replace the state file, which its user alone may read."""
    document: dict[str, Any] = {
        "redis_url": state.redis_url,
        "dispatcher": state.dispatcher,
        "resolvers": list(state.resolvers),
        "processes": [record.as_json() for record in state.processes],
        "guarded": state.webhook_kubeconfig,
        "tls_dir": state.tls_dir,
        "workers": [asdict(worker) for worker in state.workers],
        "traced": state.traced,
        "metrics": state.metrics,
        "unchecked": state.unchecked,
    }
    fresh = _fresh(directory)
    fresh.unlink(missing_ok=True)  # one that a killed command has left may have another mode
    fresh.touch(mode=0o600)
    fresh.write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2))
    fresh.replace(directory / STATE_FILE)


def remove_state(directory: Path) -> None:
    """Remove the state file: no platform runs here any more."""
    for path in (directory / STATE_FILE, _fresh(directory)):
        path.unlink(missing_ok=True)


def _fresh(directory: Path) -> Path:
    """The path of the next state file before it replaces the present one."""
    return (directory / STATE_FILE).with_suffix(".new")
