"""Prints an explanation for people: every node with its scores or reasons; of a large cluster only the best
nodes, and the others grouped by reason."""

from typing import Any

from hossctl.console import Column, Document, print_rows, say

_EACH = 20  # with up to so many nodes, each has a row
_BEST = 10  # nodes with a row of their own otherwise
_NAMED = 3  # nodes that a group names

_COLUMNS = (
    Column("NODE", lambda row: row["node"]),
    Column("TOTAL", lambda row: row["total"]),
    Column("SCORES OR REASONS", lambda row: row["says"]),
)


def print_nodes(document: Document, *, all_nodes: bool) -> None:
    """Print the feasible nodes, the best first, then the others."""
    nodes = len(document["feasible"]) + len(document["reasons"])
    grouped = not all_nodes and nodes > _EACH
    print_rows(_grouped(document) if grouped else _each(document), _COLUMNS)
    if grouped:
        say(f"{nodes:,} nodes; --all-nodes shows each")
    _print_later_points(document)


def _print_later_points(document: Document) -> None:
    """What comes after scoring, for the best node."""
    for permit in document.get("permit", ()):
        reason = f": {permit['reason']}" if permit["reason"] else ""
        words = {"goes": "lets it go", "waits": "has it wait", "denied": "denies it"}[permit["answer"]]
        say(f"permit plugin {permit['plugin']} {words} on {permit['node']}{reason}")
    for plugin in document.get("preBind", ()):
        say(f"pre-bind plugin {plugin} was not asked: it prepares pods, once they are reserved")


def verdict(document: Document) -> str:
    """The explanation in one sentence."""
    feasible = len(document["feasible"])
    nodes = feasible + len(document["reasons"])
    return f"{feasible:,} of {nodes:,} nodes can take it" if feasible else str(document["message"])


def _each(document: Document) -> list[dict[str, Any]]:
    return [_feasible(document, node) for node in _by_total(document)] + [
        {"node": node, "total": "", "says": _says(refusal)} for node, refusal in document["reasons"].items()
    ]


def _grouped(document: Document) -> list[dict[str, Any]]:
    best = _by_total(document)
    rows = [_feasible(document, node) for node in best[:_BEST]]
    if len(best) > _BEST:
        lowest = document["totals"][best[-1]]
        says = f"can take it, with {lowest} and more"
        rows.append({"node": f"{len(best) - _BEST:,} more", "total": "", "says": says})
    refusing: dict[str, list[str]] = {}
    for node, refusal in document["reasons"].items():
        refusing.setdefault(_says(refusal), []).append(node)
    for says, nodes in sorted(refusing.items(), key=lambda entry: (-len(entry[1]), entry[0])):
        named = ", ".join(nodes[:_NAMED]) + (", ..." if len(nodes) > _NAMED else "")
        rows.append({"node": f"{len(nodes):,} nodes", "total": "", "says": f"{says} ({named})"})
    return rows


def _by_total(document: Document) -> list[str]:
    totals = document["totals"]
    return sorted(totals, key=lambda name: (-totals[name], name))


def _feasible(document: Document, node: str) -> dict[str, Any]:
    scores = ", ".join(f"{plugin} {value}" for plugin, value in document["scores"][node].items())
    return {"node": node, "total": document["totals"][node], "says": scores}


def _says(refusal: Document) -> str:
    return f"{refusal['plugin'] or 'NodeAffinity'}: {', '.join(refusal['reasons'])}"
