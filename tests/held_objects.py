"""How much objects hold: the entries of every table that is reachable from a root, by the path to it.

A test of growth needs no list of tables with this. A table that nobody thought of is found as well."""

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Any

import numpy as np

_OURS = ("dispatcher.", "scheduler_worker.", "resolver.", "hoss.")
_NOT_OURS = ("hoss.v1.",)
_PLAIN = (str, bytes, int, float, complex, bool, type(None), type)


def entries_held(roots: Mapping[str, object]) -> dict[str, int]:
    """The number of entries of each table. Tables with the same path count as one: `a.b[].c` are the tables
    `c` of all elements of `a.b`."""
    found: dict[str, int] = {}
    seen: dict[int, object] = {}  # the objects as well, so that no id is used twice
    queue: deque[tuple[str, object]] = deque(roots.items())
    while queue:
        path, item = queue.popleft()
        if isinstance(item, _PLAIN) or id(item) in seen:
            continue
        seen[id(item)] = item
        if isinstance(item, np.ndarray):
            found[path] = found.get(path, 0) + len(np.atleast_1d(item))
        elif isinstance(item, Mapping):
            found[path] = found.get(path, 0) + len(item)
            queue.extend((f"{path}[]", part) for pair in list(item.items()) for part in pair)
        elif isinstance(item, list | tuple | deque | AbstractSet):
            if not isinstance(item, tuple):
                found[path] = found.get(path, 0) + len(item)
            queue.extend((f"{path}[]", part) for part in _parts(item))
        elif _is_ours(item):
            queue.extend((f"{path}.{name}", value) for name, value in _fields(item))
    return found


def _parts(item: Collection[Any]) -> Iterable[Any]:
    return list(item)


def _is_ours(item: object) -> bool:
    module = type(item).__module__ + "."
    return module.startswith(_OURS) and not module.startswith(_NOT_OURS)


def _fields(item: object) -> Iterator[tuple[str, Any]]:
    yield from getattr(item, "__dict__", {}).items()
    for kind in type(item).__mro__:
        slots = getattr(kind, "__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name != "__weakref__" and hasattr(item, name):
                yield name, getattr(item, name)
