"""What a screen reader is given of a page: Chromium's accessibility tree, and what is wrong with it."""

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from e2e.dashboard_page import Page

_ONCE = ("banner", "main", "contentinfo")
_LANDMARKS = ("navigation", "region", "search")
_NAMED = (
    *_LANDMARKS, "button", "link", "searchbox", "textbox", "combobox", "checkbox", "option", "image",
    "application",
    "table", "columnheader", "DisclosureTriangle", "heading",
)  # fmt: skip


def faults(page: Page) -> list[str]:
    """A sentence for each: landmarks that are missing or alike, controls, tables and pictures without a name,
    tables without headers, headings that skip a level."""
    page.driver.execute_cdp_cmd("Accessibility.enable", {})
    all_nodes = page.driver.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    by_id = {node["nodeId"]: node for node in all_nodes}
    nodes = [node for node in all_nodes if not node["ignored"]]
    roles = Counter(map(_role, nodes))
    found = [f"{roles[role]} of {role}" for role in _ONCE if roles[role] != 1]
    found += [f"{_role(node)} without a name" for node in nodes if _role(node) in _NAMED and not _name(node)]
    landmarks = Counter((_role(node), _name(node)) for node in nodes if _role(node) in _LANDMARKS)
    found += [f"{count} times {role} {name!r}" for (role, name), count in landmarks.items() if count > 1]
    for table in nodes:
        if _role(table) == "table" and "columnheader" not in map(_role, _below(table, by_id)):
            found.append(f"table {_name(table)!r} without headers of its columns")
    levels = [_property(node, "level") for node in _in_order(all_nodes, by_id) if _role(node) == "heading"]
    if levels.count(1) != 1:
        found.append(f"{levels.count(1)} headings of level 1")
    found += [
        f"a heading of level {after} follows one of level {before}"
        for before, after in pairwise(levels)
        if after > before + 1
    ]
    return found


def _in_order(nodes: list[dict[str, Any]], by_id: dict[str, dict[str, Any]]) -> Iterator[dict[str, Any]]:
    yield from (node for node in _below(nodes[0], by_id) if not node["ignored"])


def _below(node: dict[str, Any], by_id: dict[str, dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for child in node.get("childIds", ()):
        if child in by_id:
            yield by_id[child]
            yield from _below(by_id[child], by_id)


def _role(node: dict[str, Any]) -> str:
    return str(node.get("role", {}).get("value", ""))


def _name(node: dict[str, Any]) -> str:
    return str(node.get("name", {}).get("value", "")).strip()


def _property(node: dict[str, Any], name: str) -> int:
    return next(int(each["value"]["value"]) for each in node["properties"] if each["name"] == name)
