"""Pools of workers: read from a document of kind Platform, compared with the workers that run, and the
differences carried out.

The same document starts a platform (`hoss up --config`) and changes a running one (`hoss apply`). A worker of
a pool is named `<pool>-<number>`. Workers that a command named (`hoss worker add`, `hoss up --worker`) are of
no pool, and no document changes them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from importlib.metadata import entry_points
from itertools import pairwise
from pathlib import Path

import orjson
from pydantic import Field, field_validator, model_validator

from hoss.config import API_VERSION, Document, checked, parse_document, read_text, with_flags
from hoss.errors import ConfigError, InvalidInput, NotFound
from hoss.manifests.fields import check_key, check_label_value
from hossctl.local.platform import Starter
from hossctl.local.platform_state import PlatformState, WorkerOptions
from scheduler_worker.config import KIND as WORKER_KIND
from scheduler_worker.config import (
    PLUGIN_GROUP,
    PluginSection,
    WorkerConfig,
    chosen_algorithm,
    chosen_profile,
    factories,
    ineffective_strategy,
)
from scheduler_worker.core.plugins import REGISTRY

PLATFORM_KIND = "Platform"
DOCUMENT_NAME = "platform.yaml"  # in a directory that stands for its document
# The profile of a pool that lists plugins is named after the pool, and after no preset.
_PROFILE_SUFFIX = "-plugins"
_PROFILE_FLAG = "--profile"
_ALGORITHM_FLAG = "--algorithm"
_KUBE_SCHEDULER_FLAG = "--kube-scheduler-config"


class WorkerPool(Document):
    """Equal workers, named `<name>-1` and on."""

    # Begins the names of its workers.
    name: str = Field(
        pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$",
        max_length=50,
        description=(
            "a name of at most 50 lower-case letters, digits and '-', with a letter or digit at both ends"
        ),
    )

    # How many; with 0 the pool stays in the document and has no worker.
    count: int = Field(default=1, ge=0, le=1000)

    # Labels that policies match on.
    labels: dict[str, str] = Field(default_factory=dict)

    # Its workers use only nodes with these labels, whatever a policy says.
    node_labels: dict[str, str] = Field(default_factory=dict)

    # How nodes are chosen: the name of a preset profile. Left out: as in WorkerConfig.
    profile: str | None = None

    # A file of kind KubeSchedulerConfiguration, relative to this document; `profile` is a schedulerName of
    # it.
    kube_scheduler_config: Path | None = None

    # Plugins that score, and further filters, in place of a preset profile: of HOSS, or entry points of other
    # packages in the group hoss.plugins. All default filters apply as well.
    plugins: tuple[PluginSection, ...] = ()

    # What places the pods of a batch. Left out: as in WorkerConfig.
    algorithm: str | None = None

    @field_validator("labels", "node_labels")
    @classmethod
    def _valid_labels(cls, labels: dict[str, str]) -> dict[str, str]:
        return {checked(check_key, k): checked(check_label_value, v) for k, v in sorted(labels.items())}

    @model_validator(mode="after")
    def _one_way_to_choose(self) -> "WorkerPool":
        if self.profile is not None and self.plugins:
            raise ValueError("profile and plugins were both given; choose one")
        if self.kube_scheduler_config is not None and self.plugins:
            raise ValueError("kube_scheduler_config and plugins were both given; choose one")
        return self

    def workers(self) -> tuple[WorkerOptions, ...]:
        """Its workers. They differ in their names alone; each gets its own seed when it is started."""
        flags = [
            text for key, value in self.node_labels.items() for text in ("--node-label", f"{key}={value}")
        ]
        if self.profile is not None:
            flags += [_PROFILE_FLAG, self.profile]
        if self.algorithm is not None:
            flags += [_ALGORITHM_FLAG, self.algorithm]
        if self.kube_scheduler_config is not None:
            flags += [_KUBE_SCHEDULER_FLAG, str(self.kube_scheduler_config)]
        document = ""
        if self.plugins:
            profile = f"{self.name}{_PROFILE_SUFFIX}"
            plugins = [plugin.model_dump(mode="json") for plugin in self.plugins]
            own = {"profile": profile, "profiles": [{"name": profile, "plugins": plugins}]}
            # JSON is YAML.
            document = orjson.dumps({"apiVersion": API_VERSION, "kind": WORKER_KIND, **own}).decode()
        return tuple(
            WorkerOptions(
                f"{self.name}-{number}", tuple(self.labels.items()), tuple(flags), self.name, document
            )
            for number in range(1, self.count + 1)
        )


class PlatformDocument(Document):
    """The pools of workers of a platform, and its policies."""

    # At least one; their names differ.
    pools: tuple[WorkerPool, ...] = Field(min_length=1)

    # A file with a SchedulingPolicy, relative to this document. Left out: the policy stays as it is.
    policy: Path | None = None

    # A file with a RebalancePolicy, relative to this document, by which pods are moved. Left out: no
    # controller runs.
    rebalance: Path | None = None

    @field_validator("pools")
    @classmethod
    def _names_differ(cls, pools: tuple[WorkerPool, ...]) -> tuple[WorkerPool, ...]:
        names = [pool.name for pool in pools]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"pools must differ in name; given more than once: {', '.join(twice)}")
        return pools

    @property
    def workers(self) -> tuple[WorkerOptions, ...]:
        """The workers of all pools, in the order of the pools."""
        return tuple(worker for pool in self.pools for worker in pool.workers())


def read_platform(path: Path) -> PlatformDocument:
    """The document at `path`, or DOCUMENT_NAME in a directory. Raises ConfigError that names the file, the
    pool and the field; also for a profile or plugin that this installation does not have."""
    if path.is_dir():
        path = path / DOCUMENT_NAME
    document = parse_document(read_text(path), PLATFORM_KIND, PlatformDocument, where=str(path))
    pools = tuple(_beside(pool, path.absolute().parent) for pool in document.pools)
    document = document.model_copy(update={"pools": pools})
    for position, pool in enumerate(document.pools):
        for worker in pool.workers()[:1]:  # the others are equal
            check_worker(worker, where=f"{path}: pools[{position}]")
    beside = {
        name: path.parent / given
        for name in ("policy", "rebalance")
        if (given := getattr(document, name)) is not None
    }
    return document.model_copy(update=beside)


def _beside(pool: WorkerPool, directory: Path) -> WorkerPool:
    """The pool with its file's path, which is relative to the document's directory."""
    if pool.kube_scheduler_config is None:
        return pool
    return pool.model_copy(update={"kube_scheduler_config": directory / pool.kube_scheduler_config})


def check_worker(worker: WorkerOptions, *, where: str) -> str:
    """Raise ConfigError for a name, label, profile, plugin or algorithm that the worker's process would
    refuse. Returns what its user should know of a label `strategy` without effect, else ""."""
    try:
        document = worker.document and parse_document(worker.document, WORKER_KIND, WorkerConfig, where="")
        flags = dict(pairwise(worker.flags))
        given = {
            "name": worker.name,
            "labels": dict(worker.labels) or None,
            "profile": flags.get(_PROFILE_FLAG),
            "algorithm": flags.get(_ALGORITHM_FLAG),
            "kube_scheduler_config": flags.get(_KUBE_SCHEDULER_FLAG),
        }
        config = with_flags(document or WorkerConfig(), given)
        chosen_algorithm(config.algorithm)
        name, _ = chosen_profile(config, REGISTRY.extended(factories(entry_points(group=PLUGIN_GROUP))))
        strategy = ineffective_strategy(config, name)
    except ConfigError as exc:
        # The place in the document that was made of a pool is one of the pool's own fields.
        place = exc.where.removeprefix("flags").removeprefix("profiles[0].")
        raise ConfigError(exc.text, where=f"{where}.{place}" if place else where) from exc
    return f"label strategy={strategy} names no profile; it ranks nodes by {name}" if strategy else ""


class Action(str, Enum):
    """What is done to a worker."""

    ADD = "add"
    RESTART = "restart"
    REMOVE = "remove"


@dataclass(frozen=True, slots=True)
class WorkerChange:
    """One worker that differs from the document, and why."""

    action: Action
    worker: WorkerOptions  # as it shall be; of a worker that is removed, as it is
    reason: str


def changes(wanted: Sequence[WorkerOptions], state: PlatformState) -> list[WorkerChange]:
    """What makes the pools of a running platform those that are wanted: additions, then restarts, then
    removals. Raises InvalidInput where a worker of no pool has the name of one that is wanted."""
    running = {worker.name: worker for worker in state.workers}
    added, restarted = [], []
    for worker in wanted:
        present = running.get(worker.name)
        if present is None:
            added.append(WorkerChange(Action.ADD, worker, f"pool {worker.pool} has no such worker yet"))
            continue
        if not present.pool:
            raise InvalidInput(
                f"a worker of this name runs already and is of no pool; `hoss worker remove {worker.name}`,"
                " or name the pool otherwise",
                where=worker.name,
            )
        worker = replace(worker, seed=present.seed)  # noqa: PLW2901 - it keeps its seed
        record = state.process_of(present)
        if worker != present:
            restarted.append(WorkerChange(Action.RESTART, worker, _difference(present, worker)))
        elif record is None or record.find() is None:
            restarted.append(WorkerChange(Action.RESTART, worker, "its process has ended"))
    kept = {worker.name for worker in wanted}
    removed = [
        WorkerChange(Action.REMOVE, worker, f"it is no longer in pool {worker.pool}")
        for worker in state.workers
        if worker.pool and worker.name not in kept
    ]
    return [*added, *restarted, *removed]


def _difference(present: WorkerOptions, wanted: WorkerOptions) -> str:
    """Which settings change, in the words of the document."""
    differences = []
    if present.labels != wanted.labels:
        differences.append(f"labels: {_labels(present)} becomes {_labels(wanted)}")
    if present.document != wanted.document:
        differences.append("its plugins change")
    if present.flags != wanted.flags:
        flags = (" ".join(worker.flags) or "none" for worker in (present, wanted))
        differences.append(f"settings: {' becomes '.join(flags)}")
    return "; ".join(differences)


def _labels(worker: WorkerOptions) -> str:
    return ",".join(f"{key}={value}" for key, value in worker.labels) or "none"


def carry_out(
    starter: Starter,
    planned: Sequence[WorkerChange],
    registered: Callable[[Sequence[str]], None],
    done: Callable[[int], None] = lambda _: None,
) -> list[str]:
    """Carry out changes of workers. Returns the names of workers that had to be killed.

    New workers start at the same time. Others restart one after the other, so that a pool of several goes on
    placing. `registered` waits until the dispatcher gives work to workers of these names; `done` is called
    with the number of changes since the last call. Raises HossError where a worker does not serve; changes
    before it stay."""
    killed: list[str] = []
    additions = [change.worker for change in planned if change.action is Action.ADD]
    if additions:
        starter.start_workers(additions)
        registered([worker.name for worker in additions])
        done(len(additions))
    for change in planned:
        if change.action is Action.ADD:
            continue
        name = change.worker.name
        if starter.stop_worker(name, forget=change.action is Action.REMOVE):
            killed.append(name)
        if change.action is Action.RESTART:
            starter.start_workers([change.worker])
            registered([name])
        done(1)
    return killed


def named_worker(state: PlatformState, name: str) -> WorkerOptions:
    """The worker of this name that the local platform was told to run. Raises NotFound."""
    for worker in state.workers:
        if worker.name == name:
            return worker
    known = ", ".join(sorted(worker.name for worker in state.workers)) or "none"
    raise NotFound(f"is no worker of the local platform; there are {known}", where=name)
