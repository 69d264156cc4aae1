"""What a viewer is told of a look: everything at first, then what differs from the look it was told last."""

import base64
from typing import Any

import numpy as np

from dispatcher.dashboard.nodes import RESOURCES, Cells
from dispatcher.dashboard.picture import Look
from hoss.wire.columns import U8, U32, encode


def message(look: Look, told: Look | None) -> dict[str, Any]:
    """For JSON. Left out: sections, points and nodes that are as in `told`. See docs/adr/0033-dashboard.md for its fields."""
    out: dict[str, Any] = {"at": look.at_ms, "whole": told is None}
    sections = {
        name: value for name, value in look.sections.items() if told is None or told.sections.get(name) != value
    }
    if sections:
        out["sections"] = sections
    last = told.points[-1].at_ms if told is not None and told.points else -1
    points = [tuple(point) for point in look.points if point.at_ms > last]
    if points:
        out["points"] = points
    nodes = _nodes(look.cells, None if told is None else told.cells)
    if nodes:
        out["nodes"] = nodes
    return out


def _nodes(cells: Cells, told: Cells | None) -> dict[str, Any]:
    """The same nodes as were told: those whose values differ, by position; else all with their names."""
    if told is None or told.generation != cells.generation:
        return {"names": cells.names, "resources": RESOURCES, "values": _packed(cells.values, U8)}
    changed = np.flatnonzero((cells.values != told.values).any(axis=1))
    if not len(changed):
        return {}
    return {"changed": _packed(changed, U32), "values": _packed(cells.values[changed], U8)}


def _packed(values: Any, dtype: "np.dtype[Any]") -> str:
    return base64.b64encode(encode(values, dtype)).decode()
