"""What pods really use, from a file in the form of metrics.k8s.io (PodMetricsList, as
`kubectl get --raw /apis/metrics.k8s.io/v1beta1/pods` prints it), and which nodes are noisy by it.

The document of `hoss rebalance noisy` (camel case; shares of a node's allocatable):

    kind            "NodeUsage"
    pods, known     bound pods, and of how many the use is known
    nodes[]         the noisiest first: name, noisy, measured (whether the use of any of its pods is known, or
                    it has none), cpuUsed, cpuRequested, memoryUsed, memoryRequested, and loudest (the pod
                    that uses most beyond its requests)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from hoss.errors import InvalidInput
from hoss.manifests import guarded
from hoss.model.quantity import parse_quantity
from hossctl.console import Column, Document
from hossctl.rebalance.gathering import Gathered
from scheduler_worker.core.framework.profile import Profile
from scheduler_worker.core.rebalance.movable_pods import PlacedPods, PlanLimits
from scheduler_worker.core.rebalance.plan_state import PlanState
from scheduler_worker.core.rebalance.quiet_goal import NodeLoads, PodUsage

MAX_AGE_SECONDS = 600.0
# 100,000 pods of two containers have some 50 MB.
_MOST_BYTES = 128 * 1024 * 1024
# Far more than any pod uses, and the sum of a thousand such pods is exact in int64.
_MOST_USED = 2**53


@dataclass(frozen=True, slots=True)
class UsageFile:
    """Use by "namespace/name": thousandths of a cpu, bytes of memory."""

    amounts: Mapping[str, tuple[int, int]]

    def of(self, pods: PlacedPods) -> PodUsage:
        """The use of these pods."""
        known = np.array([name in self.amounts for name in pods.names], np.bool_)
        rows = [self.amounts.get(name, (0, 0)) for name in pods.names]
        return PodUsage(np.array(rows, np.int64).reshape(-1, 2).T, known)


def read_usage(path: Path, *, now: datetime, max_age_seconds: float = MAX_AGE_SECONDS) -> UsageFile:
    """Read a file. Pods that were measured longer ago, or whose time is so far ahead, are left out. Raises
    InvalidInput for a file that cannot be read or is of another form, and where nothing in it is recent."""
    where = str(path)
    document = guarded.read_json(path, most_bytes=_MOST_BYTES)
    items = document.get("items") if isinstance(document, dict) else None
    if not isinstance(items, list):
        raise InvalidInput(
            "is no list of pods' metrics; write one with "
            "`kubectl get --raw /apis/metrics.k8s.io/v1beta1/pods`",
            where=where,
        )
    amounts: dict[str, tuple[int, int]] = {}
    youngest: float | None = None
    for number, item in enumerate(items):
        try:
            name, age, used = _read_item(item, now)
        except InvalidInput as exc:
            raise exc.at(f"{where}: items.{number}") from None
        except (KeyError, TypeError, AttributeError, ValueError) as exc:
            raise InvalidInput(f"is no metrics of a pod: {exc!r}", where=f"{where}: items.{number}") from exc
        youngest = age if youngest is None else min(youngest, age, key=abs)
        if abs(age) <= max_age_seconds:
            amounts[name] = used
    if youngest is None:
        raise InvalidInput("holds no pods: usage is missing", where=where)
    if not amounts and youngest < 0:
        raise InvalidInput(
            f"is dated {-youngest:.0f} seconds ahead of this machine's clock, and {max_age_seconds:.0f} are "
            "allowed; set the clocks",
            where=where,
        )
    if not amounts:
        raise InvalidInput(
            f"is too old: its youngest measurement is {youngest:.0f} seconds old, and {max_age_seconds:.0f} "
            "are allowed; measure again",
            where=where,
        )
    return UsageFile(amounts)


def _read_item(item: Any, now: datetime) -> tuple[str, float, tuple[int, int]]:
    metadata = item["metadata"]
    measured = datetime.fromisoformat(item["timestamp"].replace("Z", "+00:00"))
    used = [container["usage"] for container in item["containers"]]
    cpu = sum(parse_quantity(str(each.get("cpu", "0"))).milli for each in used)
    memory = sum(parse_quantity(str(each.get("memory", "0"))).value for each in used)
    if not (0 <= cpu <= _MOST_USED and 0 <= memory <= _MOST_USED):
        raise InvalidInput(f"uses {cpu} thousandths of a cpu and {memory} bytes, which no pod can")
    return f"{metadata['namespace']}/{metadata['name']}", (now - measured).total_seconds(), (cpu, memory)


def noisy_document(gathered: Gathered, profile: Profile, usage: UsageFile) -> Document:
    """See the module's docstring."""
    state = PlanState(gathered.snapshot, profile, gathered.pods, PlanLimits(0))
    of_pods = usage.of(gathered.pods)
    loads = NodeLoads(state, of_pods)
    requested, excess, noisy, unmeasured = loads.requested, loads.excess, loads.noisy, loads.unmeasured
    nodes = np.flatnonzero(state.cache.present)
    order = nodes[np.argsort(-excess[:, nodes].max(axis=0), kind="stable")].tolist()
    return {
        "kind": "NodeUsage",
        "pods": len(gathered.pods),
        "known": int(of_pods.known.sum()),
        "nodes": [
            {
                "name": state.name(node),
                "noisy": bool(noisy[node]),
                "measured": not unmeasured[node],
                **{
                    key: round(float(value), 4)
                    for row, resource in enumerate(("cpu", "memory"))
                    for key, value in (
                        (f"{resource}Used", requested[row, node] + excess[row, node]),
                        (f"{resource}Requested", requested[row, node]),
                    )
                },
                "loudest": next((gathered.pods.names[row] for row in loads.largest_first(node)), ""),
            }
            for node in order
        ],
    }


NOISY_COLUMNS: Sequence[Column] = (
    Column("NODE", lambda row: row["name"]),
    Column("NOISY", lambda row: "unknown" if not row["measured"] else "yes" if row["noisy"] else "no"),
    Column("CPU USED", lambda row: f"{row['cpuUsed']:.0%}"),
    Column("REQUESTED", lambda row: f"{row['cpuRequested']:.0%}"),
    Column("MEMORY USED", lambda row: f"{row['memoryUsed']:.0%}"),
    Column("REQUESTED", lambda row: f"{row['memoryRequested']:.0%}"),
    Column("LOUDEST POD", lambda row: row["loudest"] or "-"),
)


def missing_usage(document: Document) -> str:
    """What is not known, as a sentence; "" if everything is."""
    missing = document["pods"] - document["known"]
    if not missing:
        return ""
    return (
        f"the use of {missing} of {document['pods']} pods is missing or old; they count with their requests"
    )
