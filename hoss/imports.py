"""Optional parts of other packages, left out where HOSS does not use them: services and commands start sooner."""

import contextlib
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import cast


@contextlib.contextmanager
def without(*packages: str) -> Iterator[None]:
    """What is imported in the block finds these not installed, as far as nobody has imported them before."""
    absent = [package for package in packages if package not in sys.modules]
    modules = cast("dict[str, ModuleType | None]", sys.modules)
    modules.update(dict.fromkeys(absent))  # None, by which Python knows what is not there
    try:
        yield
    finally:
        for package in absent:
            del sys.modules[package]
