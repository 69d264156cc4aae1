"""Broadcasts snapshots to viewers: the first one whole, then the differences."""

import asyncio
import base64
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from hoss.wire.columns import U8, U32, encode
from hossctl.dashboard.nodes import RESOURCES, Cells
from hossctl.dashboard.snapshot import DashboardSnapshot


def message(new: DashboardSnapshot, old: DashboardSnapshot | None) -> dict[str, Any]:
    """A snapshot for JSON, without the sections, points and nodes that are the same in `old`. Its fields are
    in docs/adr/0033-dashboard.md."""
    out: dict[str, Any] = {"at": new.at_ms, "whole": old is None}
    sections = {
        name: value for name, value in new.sections.items() if old is None or old.sections.get(name) != value
    }
    if sections:
        out["sections"] = sections
    last = old.points[-1].at_ms if old is not None and old.points else -1
    points = [tuple(point) for point in new.points if point.at_ms > last]
    if points:
        out["points"] = points
    nodes = _nodes(new.cells, None if old is None else old.cells)
    if nodes:
        out["nodes"] = nodes
    return out


def _nodes(new: Cells, old: Cells | None) -> dict[str, Any]:
    """For the same set of nodes, those whose values differ, by position; else all nodes with their names."""
    if old is None or old.generation != new.generation:
        return {"names": new.names, "resources": RESOURCES, "values": _packed(new.values, U8)}
    changed = np.flatnonzero((new.values != old.values).any(axis=1))
    if not len(changed):
        return {}
    return {"changed": _packed(changed, U32), "values": _packed(new.values[changed], U8)}


def _packed(values: Any, dtype: "np.dtype[Any]") -> str:
    return base64.b64encode(encode(values, dtype)).decode()


@dataclass(frozen=True, slots=True)
class Unavailable:
    """There is no snapshot."""

    reason: str


class Broadcaster:
    """Holds the latest value. A slow viewer misses values in between."""

    def __init__(self) -> None:
        self.latest: DashboardSnapshot | Unavailable | None = Unavailable("this dashboard is starting")
        self._viewers = 0
        self._replaced = asyncio.Event()
        self._viewed = asyncio.Event()

    @property
    def viewers(self) -> int:
        return self._viewers

    def show(self, value: DashboardSnapshot | Unavailable | None) -> None:
        """Replace the latest value. None: a snapshot follows when there is a viewer."""
        self.latest = value
        self._replaced.set()
        self._replaced = asyncio.Event()

    async def other_than(
        self, seen: DashboardSnapshot | Unavailable | None, seconds: float
    ) -> DashboardSnapshot | Unavailable | None:
        """The latest value as soon as it differs from `seen`; `seen` after so many seconds."""
        if self.latest is seen:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._replaced.wait(), seconds)
        return self.latest

    async def viewed(self, *, seconds: float) -> None:
        """Return once there is a viewer, or after so many seconds."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._viewed.wait(), seconds)

    @contextlib.contextmanager
    def viewer(self) -> Iterator[None]:
        """Count a viewer during the block."""
        self._viewers += 1
        self._viewed.set()
        try:
            yield
        finally:
            self._viewers -= 1
            if not self._viewers:
                self._viewed.clear()
                if isinstance(self.latest, DashboardSnapshot):  # too old for a later viewer
                    self.latest = None
