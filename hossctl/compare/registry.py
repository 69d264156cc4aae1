"""What a comparison is made of, found by name: ways to coordinate workers, loads, and schedulers.

A name is one of HOSS, an entry point of the registry's group, or `module:Name` or `FILE.py:Name`. What comes
with HOSS is registered as what comes from elsewhere: a name, and what makes the object. An entry point is
loaded only when it is named, so a broken package that nobody uses does no harm."""

from collections.abc import Callable, Mapping
from functools import partial
from importlib.metadata import entry_points
from typing import Any, Generic, TypeVar

from hoss.errors import ConfigError, InvalidInput, did_you_mean, quoted
from hoss.imports import named_object
from scheduler_worker.config import factories, factory

PartT = TypeVar("PartT")


class PartRegistry(Generic[PartT]):
    """Parts of one kind by name. `kind`: the class that all of them have, or a protocol that can be checked.
    `shape`: what a part has to have, in words. `further`: other ways to name one, for the error."""

    def __init__(
        self, group: str, kind: type[PartT], shape: str, built_in: Mapping[str, Callable[[], PartT]]
    ) -> None:
        self.group = group
        self._kind = kind
        self._shape = shape
        self._built_in = built_in

    def find(self, name: str, *, where: str) -> PartT:
        """Make the part of this name. InvalidInput, with `where` as its place, for an unknown name, and where
        the part cannot be imported or made, or has another shape."""
        try:
            return self._checked(self._factory(name)(), name)
        except ConfigError as exc:
            raise InvalidInput(f"{name}: {exc.text}", where=where) from exc
        except InvalidInput as exc:
            raise exc.at(where) from exc
        except Exception as exc:  # code of others may raise anything
            raise InvalidInput(f"{name}: cannot be made: {type(exc).__name__}: {exc}", where=where) from exc

    def names(self) -> list[str]:
        """Those of HOSS, then entry points."""
        return [*self._built_in, *sorted(set(self._outside()) - set(self._built_in))]

    def _factory(self, name: str) -> Callable[[], Any]:
        if name in self._built_in:
            return self._built_in[name]
        if ":" in name:
            return factory(name, partial(named_object, name))
        outside = self._outside()
        if name not in outside:
            known = ", ".join(self.names())
            raise InvalidInput(
                f"{quoted(name)} is none of {known}; a class of your own is module:Name or FILE.py:Name"
                + did_you_mean(name, self.names())
            )
        return outside[name]

    def _outside(self) -> dict[str, Callable[..., Any]]:
        return factories(entry_points(group=self.group), self.group)

    def _checked(self, made: Any, name: str) -> PartT:
        if not isinstance(made, self._kind):
            raise InvalidInput(f"{name}: is {type(made).__name__}, which is no {self._shape}")
        return made
