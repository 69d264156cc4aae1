"""What `hoss describe node` prints: requests and limits against allocatable, the pods in the order they came,
and possible noisy neighbours.

A noisy neighbour is found by what a pod may use beyond its request. Nothing is reserved for that amount, so
the other pods of the node lack it when it is used. HOSS does not know measured usage."""

from collections.abc import Iterator, Sequence

from hoss.model.resources import written_amount
from hossctl.console import Column, Document, print_lines, print_rows, print_summary
from hossctl.figures import share, written_since
from hossctl.views.documents.objects import written_labels

JUDGED_BY = (
    "what it may use beyond its request, of all that pods here may; without a limit, the whole node. "
    "Measured usage is not known to HOSS"
)
_RESOURCES = ("cpu", "memory", "ephemeral-storage")  # those of which pods may use more than they request
_NOISY_SHARE = 0.25  # of what all may use beyond their requests, on a node whose limits are oversubscribed
_MOST_NAMED = 5
_UNLIMITED = "-"


def node_details(node: Document, pods: Sequence[Document], *, most: int) -> Document:
    """What `describe` adds to a node's document. `pods` are documents with templates; the first `most` of
    them are listed."""
    pods = sorted(pods, key=lambda pod: (pod["phaseSinceUnixMs"], pod["namespace"], pod["name"]))
    names = [name for name in node["allocatable"] if node["requested"].get(name) or name in _RESOURCES]
    return {
        "utilisation": {
            name: f"{share(used, node['allocatable'].get(name, 0)):.1%}"
            for name, used in node["requested"].items()
            if used
        },
        "resources": [_resource(name, node, pods) for name in names],
        "noisyNeighbours": sorted(_noisy(node, pods), key=lambda n: (-n["share"], n["priority"], n["pod"]))[
            :_MOST_NAMED
        ],
        "pods": [_name(pod) for pod in pods[:most]],
        "podResources": [_pod(pod) for pod in pods[:most]],
        "podsNotListed": max(0, len(pods) - most),
    }


def print_node(node: Document) -> None:
    """A described node for people."""
    quarantine = node["quarantine"]
    print_summary(
        f"Node {node['name']}",
        [
            ("status", "Cordoned" if node["unschedulable"] else "Ready"),
            ("quarantine", quarantine["reason"] if quarantine else ""),
            ("labels", written_labels(node["labels"])),
            ("taints", ", ".join(f"{t['key']}={t['value']}:{t['effect']}" for t in node["taints"])),
            ("cards used", ", ".join(f"{milli / 10:g}%" for milli in node["cardsUsedMilli"])),
        ],
    )
    print_rows(node["resources"], _RESOURCE_COLUMNS)
    print_lines(_oversubscribed(usage) for usage in node["resources"] if usage["oversubscribed"])
    if node["podResources"]:
        print_rows(node["podResources"], _POD_COLUMNS)
    if node["podsNotListed"]:
        print_lines([f"and {node['podsNotListed']:,} more"])
    if node["noisyNeighbours"]:
        print_summary(
            "noisy neighbours",
            [
                *((noisy["pod"], _written_noise(noisy)) for noisy in node["noisyNeighbours"]),
                ("judged by", JUDGED_BY),
            ],
        )


def _resource(name: str, node: Document, pods: Sequence[Document]) -> Document:
    limits = [pod["template"]["limits"].get(name) for pod in pods]
    allocatable, given = node["allocatable"][name], sum(limit or 0 for limit in limits)
    without = sum(limit is None for limit in limits) if name in _RESOURCES else 0
    return {
        "resource": name,
        "requested": node["requested"].get(name, 0),
        "limits": given,
        "podsWithoutLimit": without,
        "allocatable": allocatable,
        "oversubscribed": given > allocatable,
    }


def _noisy(node: Document, pods: Sequence[Document]) -> Iterator[Document]:
    """Pods with a large share of what all may use beyond their requests, of oversubscribed resources."""
    for name in _RESOURCES:
        total = node["allocatable"].get(name, 0)
        beyond = [_beyond(pod["template"], name, total) for pod in pods]
        limits = sum(
            amount + pod["template"]["requests"].get(name, 0)
            for amount, pod in zip(beyond, pods, strict=True)
        )
        if limits <= total:
            continue  # all pods can use their limits at once
        for pod, amount in zip(pods, beyond, strict=True):
            part = share(amount, sum(beyond))
            if part >= _NOISY_SHARE:
                yield {
                    "pod": _name(pod),
                    "resource": name,
                    "beyondRequest": amount,
                    "share": round(part, 3),
                    "limited": name in pod["template"]["limits"],
                    "priority": pod["template"]["priority"],
                }


def _beyond(template: Document, name: str, total: int) -> int:
    """How much a pod may use beyond its request. Without a limit it may use the whole node."""
    limit: int = min(template["limits"].get(name, total), total)
    return max(0, limit - int(template["requests"].get(name, 0)))


def _pod(pod: Document) -> Document:
    template = pod["template"]
    return {
        "pod": _name(pod),
        "sinceUnixMs": pod["phaseSinceUnixMs"],
        "priority": template["priority"],
        "qosClass": template["qosClass"],
        "requests": template["requests"],
        "limits": template["limits"],
    }


def _name(pod: Document) -> str:
    return f"{pod['namespace']}/{pod['name']}"


def _oversubscribed(usage: Document) -> str:
    ratio = share(usage["limits"], usage["allocatable"])
    limits = f"limits of {usage['resource']} are {ratio:.0%} of what is there"
    return f"{limits}: not everybody can use theirs at once"


def _written_noise(noisy: Document) -> str:
    amount = written_amount(noisy["resource"], noisy["beyondRequest"])
    limit = "" if noisy["limited"] else " (no limit)"
    part = f"{noisy['share']:.0%} of it all"
    return f"{amount} of {noisy['resource']} beyond its request{limit}, {part}; priority {noisy['priority']}"


def _part(key: str) -> Column:
    def cell(usage: Document) -> str:
        amount = written_amount(usage["resource"], usage[key])
        return f"{amount} ({share(usage[key], usage['allocatable']):.0%})"

    return Column(key.upper(), cell)


def _use(name: str) -> Column:
    """A pod's request and limit."""

    def cell(pod: Document) -> str:
        limit = pod["limits"].get(name)
        written_limit = _UNLIMITED if limit is None else written_amount(name, limit)
        return f"{written_amount(name, pod['requests'].get(name, 0))}/{written_limit}"

    return Column(f"{name.upper()} (REQUEST/LIMIT)", cell)


_RESOURCE_COLUMNS = (
    Column("RESOURCE", lambda usage: usage["resource"]),
    _part("requested"),
    _part("limits"),
    Column("WITHOUT LIMIT", lambda usage: usage["podsWithoutLimit"] or _UNLIMITED),
    Column("ALLOCATABLE", lambda usage: written_amount(usage["resource"], usage["allocatable"])),
)
_POD_COLUMNS = (
    Column("POD", lambda pod: pod["pod"]),
    Column("SINCE", lambda pod: written_since(pod["sinceUnixMs"])),
    Column("PRIORITY", lambda pod: pod["priority"]),
    Column("QOS", lambda pod: pod["qosClass"]),
    _use("cpu"),
    _use("memory"),
)
