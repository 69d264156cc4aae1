"""Imports that depend on what is installed or named: extras of HOSS, packages that HOSS's dependencies import
and HOSS does not use, and classes of others by `module:Name` or `FILE.py:Name`, which may raise anything or
hang.
"""

import contextlib
import faulthandler
import importlib
import importlib.util
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, cast

from hoss.errors import ConfigError


@contextlib.contextmanager
def extra(name: str) -> Iterator[None]:
    """For imports of packages of the extra `hoss[name]`. Raises ConfigError where it is not installed."""
    try:
        yield
    except ModuleNotFoundError as exc:
        raise ConfigError(f"is not installed; pip install 'hoss[{name}]'", where=exc.name or name) from exc


@contextlib.contextmanager
def without(*packages: str, stand_ins: bool = False) -> Iterator[None]:
    """The block's imports do not find these packages, unless they are imported already.

    With `stand_ins` they find modules of empty classes, for importers that need the names and never use them.
    """
    absent = [package for package in packages if package not in sys.modules]
    modules = cast("dict[str, ModuleType | None]", sys.modules)
    # None in sys.modules makes the import raise ModuleNotFoundError.
    modules.update({package: _StandIn(package) if stand_ins else None for package in absent})
    try:
        yield
    finally:
        for package in absent:
            del sys.modules[package]


LOADING_SECONDS = 30.0  # large libraries take some seconds from a cold disk


class _LoadingInterrupted(BaseException):
    """Raised in code that is loaded, to end it. No Exception, which the code may catch."""


@contextlib.contextmanager
def loading(target: str) -> Iterator[None]:
    """The block imports and makes a class of others. Raises ConfigError where that does not end, and where it
    exits; any other exception is passed on.

    An end by force needs the main thread; on others nothing is limited. Code that cannot be interrupted ends
    the process after a second limit, and its traceback is on stderr."""
    watched = threading.current_thread() is threading.main_thread()
    try:
        with _interrupted_after(LOADING_SECONDS) if watched else contextlib.nullcontext():
            yield
    except _LoadingInterrupted as exc:
        raise ConfigError(
            f"cannot be loaded from {target}: its import and its constructor did not end within "
            f"{LOADING_SECONDS:g} s; let them wait for nothing"
        ) from exc
    except SystemExit as exc:
        raise ConfigError(f"cannot be loaded from {target}: SystemExit: {exc}") from exc


@contextlib.contextmanager
def _interrupted_after(seconds: float) -> Iterator[None]:
    main_thread, over = threading.get_ident(), False

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        if not over:
            raise _LoadingInterrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    # Not the process's own timer, which others may use.
    timer = threading.Timer(seconds, lambda: signal.pthread_kill(main_thread, signal.SIGALRM))
    timer.daemon = True
    timer.start()
    try:
        # A thread outside of Python: it also ends what keeps the interpreter's lock.
        faulthandler.dump_traceback_later(2 * seconds, exit=True, file=sys.__stderr__ or sys.stderr)
        yield
    finally:
        over = True
        timer.cancel()
        timer.join()
        faulthandler.cancel_dump_traceback_later()
        signal.signal(signal.SIGALRM, before)


def named_object(target: str) -> Any:
    """What `module:Name` or `FILE.py:Name` names. ConfigError where it is not there; what the import raises
    is passed on."""
    place, _, name = target.partition(":")
    module = module_of_file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
    return attribute_of(module, name, place)


def module_of_file(path: Path) -> ModuleType:
    """The module of a file, executed anew. ConfigError where it is no file."""
    if not path.is_file():
        raise ConfigError("is no file", where=str(path))
    # A name that no import has: the file may be called like a library.
    name = f"hoss_file_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError("is no module of Python", where=str(path))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def attribute_of(module: ModuleType, name: str, where: str) -> Any:
    """An attribute by its dotted name. ConfigError where it is not there."""
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            raise ConfigError(f"has no {name}", where=where)
        found = getattr(found, part)
    return found


class _StandIn(ModuleType):
    """Has every attribute: an empty class of that name."""

    def __getattr__(self, name: str) -> Any:
        return type(name, (), {})
