"""What `hoss describe node` tells: requests and limits against allocatable, pod by pod in the order they came, and who may be a noisy
neighbour.

Judged by what pods may use beyond what they request: no request speaks for that, so it is what all others on the node have to
do without when it is used. What pods really use is not known to HOSS.
"""

import time
from collections.abc import Iterator, Sequence

from hoss.model.resources import written_amount
from hossctl.cluster_objects import written_labels
from hossctl.console import Column, Document, print_lines, print_rows, print_summary
from hossctl.figures import share, written_duration

JUDGED_BY = (
    "what it may use beyond its request, of all that pods here may; without a limit, the whole node. "
    "Measured usage is not known to HOSS"
)
_RESOURCES = ("cpu", "memory", "ephemeral-storage")  # those of which pods may use more than they request
_NOISY_SHARE = 0.25  # of what all may use beyond their requests, on a node whose limits are oversubscribed
_MOST_NAMED = 5
_UNLIMITED = "-"


def story(node: Document, pods: Sequence[Document], *, most: int) -> Document:
    """What a node's document gets besides; `pods` as documents with their templates. At most `most` of them are listed."""
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


def print_story(node: Document) -> None:
    """For people."""
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
    print_rows(node["resources"], _RESOURCE_COLUMNS, wide=False)
    print_lines(_oversubscribed(told) for told in node["resources"] if told["oversubscribed"])
    if node["podResources"]:
        print_rows(node["podResources"], _POD_COLUMNS, wide=False)
    if node["podsNotListed"]:
        print_lines([f"and {node['podsNotListed']:,} more"])
    if node["noisyNeighbours"]:
        print_summary(
            "noisy neighbours",
            [
                *((told["pod"], _written_noise(told)) for told in node["noisyNeighbours"]),
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
    """Pods that have a large share in a resource's oversubscription."""
    for name in _RESOURCES:
        total = node["allocatable"].get(name, 0)
        beyond = [_beyond(pod["template"], name, total) for pod in pods]
        limits = sum(
            amount + pod["template"]["requests"].get(name, 0) for amount, pod in zip(beyond, pods, strict=True)
        )
        if limits <= total:
            continue  # everybody can use all that they may, at once
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
    """How much more than it requests a pod may use; without a limit, all there is."""
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


def _oversubscribed(told: Document) -> str:
    ratio = share(told["limits"], told["allocatable"])
    return f"limits of {told['resource']} are {ratio:.0%} of what is there: not everybody can use theirs at once"


def _written_noise(told: Document) -> str:
    amount = written_amount(told["resource"], told["beyondRequest"])
    limit = "" if told["limited"] else " (no limit)"
    return f"{amount} of {told['resource']} beyond its request{limit}, {told['share']:.0%} of it all; priority {told['priority']}"


def _part(key: str) -> Column:
    def cell(told: Document) -> str:
        amount = written_amount(told["resource"], told[key])
        return f"{amount} ({share(told[key], told['allocatable']):.0%})"

    return Column(key.upper(), cell)


def _without(told: Document) -> str:
    return str(told["podsWithoutLimit"]) if told["podsWithoutLimit"] else _UNLIMITED


def _use(name: str) -> Column:
    """A pod's request and limit."""

    def cell(pod: Document) -> str:
        limit = pod["limits"].get(name)
        return f"{written_amount(name, pod['requests'].get(name, 0))}/{_UNLIMITED if limit is None else written_amount(name, limit)}"

    return Column(f"{name.upper()} (REQUEST/LIMIT)", cell)


_RESOURCE_COLUMNS = (
    Column("RESOURCE", lambda told: told["resource"]),
    _part("requested"),
    _part("limits"),
    Column("WITHOUT LIMIT", _without),
    Column("ALLOCATABLE", lambda told: written_amount(told["resource"], told["allocatable"])),
)
_POD_COLUMNS = (
    Column("POD", lambda pod: pod["pod"]),
    Column("SINCE", lambda pod: written_duration(max(0.0, time.time() - pod["sinceUnixMs"] / 1000))),
    Column("PRIORITY", lambda pod: pod["priority"]),
    Column("QOS", lambda pod: pod["qosClass"]),
    _use("cpu"),
    _use("memory"),
)
