"""The schedulers of a comparison: what decides in the workers of a cell, by name.

    default              HOSS's workers as they are: the profile spread
    spread, fgd, ...     the same with another preset profile
    FILE.yaml            a document of kind WorkerConfig: a profile with plugins, an algorithm, both
    module:Class,        an algorithm inside HOSS's workers (ADR 70); also an entry point of the group
    FILE.py:Class        hoss.algorithms
    algorithm=NAME       an algorithm that has the name of a profile: algorithm=best-fit
    sdk=FILE.py:Class    a scheduler of your own beside HOSS, run by hoss.sdk

Every scheduler is checked before anything is measured."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Final

from hoss.config import parse_document, read_text
from hoss.errors import ConfigError, HossError, InvalidInput, quoted
from hoss.imports import named_object
from hoss.model.placing import PlacementAlgorithm
from hossctl.choices import DEFAULT_SCHEDULER
from hossctl.local.platform_state import WorkerOptions
from scheduler_worker.config import (
    ALGORITHM_GROUP,
    KIND,
    PLUGIN_GROUP,
    WorkerConfig,
    chosen_algorithm,
    chosen_profile,
    factories,
    factory,
)
from scheduler_worker.core.placement.algorithms import ALGORITHMS
from scheduler_worker.core.plugins import REGISTRY
from scheduler_worker.core.plugins.profiles import PRESETS

_ALGORITHM, _SDK = "algorithm=", "sdk="
_WHERE: Final = "--schedulers"


@dataclass(frozen=True, slots=True)
class ComparedScheduler:
    """How the workers of a cell are started."""

    flags: tuple[str, ...] = ()
    document: str = ""  # of kind WorkerConfig
    sdk: str = ""  # the class that hoss.sdk runs instead of HOSS's worker

    def worker(self, name: str, flags: tuple[str, ...]) -> WorkerOptions:
        """A worker with further flags."""
        return WorkerOptions(name, flags=(*self.flags, *flags), document=self.document, scheduler=self.sdk)


def find_scheduler(name: str) -> ComparedScheduler:
    """The scheduler of this name. InvalidInput in one sentence where it is unknown, cannot be imported or
    made, or has no method place."""
    try:
        return _found(name)
    except InvalidInput as exc:
        place = f"{exc.where}: " if exc.where else ""
        raise InvalidInput(f"{name}: {place}{exc.text}" if exc.text else name, where=_WHERE) from exc


def scheduler_names() -> list[str]:
    """Those of HOSS, then entry points."""
    ours = [*_BUILT_IN, *(f"{_ALGORITHM}{name}" for name in ALGORITHMS)]
    return [*ours, *sorted(set(factories(entry_points(group=ALGORITHM_GROUP), ALGORITHM_GROUP)))]


def _preset(name: str) -> Callable[[], ComparedScheduler]:
    return lambda: ComparedScheduler(("--profile", name))


_BUILT_IN: Final[Mapping[str, Callable[[], ComparedScheduler]]] = {
    DEFAULT_SCHEDULER: ComparedScheduler,
    **{name: _preset(name) for name in PRESETS},
}


def _found(name: str) -> ComparedScheduler:
    if name in _BUILT_IN:
        return _BUILT_IN[name]()
    if name.endswith((".yaml", ".yml")):
        return _of_document(Path(name))
    if name.startswith(_SDK):
        return _of_sdk(name.removeprefix(_SDK))
    algorithm = name.removeprefix(_ALGORITHM)
    if ":" not in algorithm and algorithm not in ALGORITHMS and name not in scheduler_names():
        known = ", ".join(scheduler_names())
        raise InvalidInput(f"is none of {known}; or write FILE.py:Class, sdk=FILE.py:Class or FILE.yaml")
    chosen_algorithm(algorithm)
    return ComparedScheduler(("--algorithm", algorithm))


def _of_document(path: Path) -> ComparedScheduler:
    document = read_text(path)
    config = parse_document(document, KIND, WorkerConfig, where=str(path))
    chosen_profile(config, REGISTRY.extended(factories(entry_points(group=PLUGIN_GROUP))))
    chosen_algorithm(config.algorithm)
    return ComparedScheduler(document=document)


def _of_sdk(target: str) -> ComparedScheduler:
    if ":" not in target:
        raise InvalidInput(f"{quoted(target)} is no class; write sdk=FILE.py:Class or sdk=module:Class")
    try:
        made = factory(target, lambda: named_object(target))()
    except HossError:
        raise
    except Exception as exc:  # code of others may raise anything
        raise ConfigError(f"cannot be made: {type(exc).__name__}: {exc}") from exc
    if not isinstance(made, PlacementAlgorithm):
        raise ConfigError(f"is {type(made).__name__}, which has no method place(batch, snapshot, budget)")
    return ComparedScheduler(sdk=target)
