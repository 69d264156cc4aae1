"""Optional imports: extras of HOSS, and packages that HOSS's dependencies import and HOSS does not use."""

import contextlib
import sys
from collections.abc import Iterator
from types import ModuleType
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


class _StandIn(ModuleType):
    """Has every attribute: an empty class of that name."""

    def __getattr__(self, name: str) -> Any:
        return type(name, (), {})
