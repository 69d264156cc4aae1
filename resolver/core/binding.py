"""What an API server's answers say of a binding: it was made, or not, or one has to look.

The API server binds a pod that has the UID named, has no node yet and is not on its way to its end; else it answers 409, which also
comes when an earlier attempt of ours was done and its answer lost. So a 409 says nothing until the pod itself has been read.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any


class BindResult(IntEnum):
    """Numbered as hoss.v1.BindResult."""

    UNKNOWN = 0
    DONE = 1
    ELSEWHERE = 2
    REFUSED = 3
    UNRESERVED = 4


@dataclass(frozen=True, slots=True)
class Bound:
    """What became of one pod; `text` says why where it is REFUSED or UNKNOWN."""

    result: BindResult
    text: str = ""


def body_of(pod: str, uid: str, node: str) -> dict[str, Any]:
    """The Binding of a pod, "namespace/name", that is this one by its UID and no later one of that name."""
    namespace, _, name = pod.partition("/")
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"namespace": namespace, "name": name, "uid": uid},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    }


def judge_answer(status: int, message: str) -> Bound | None:
    """What an answer other than success says; None: nothing, so the pod is to be read."""
    if status == 404:
        return Bound(BindResult.ELSEWHERE)
    if status in (408, 409, 429) or status >= 500:
        return None
    return Bound(BindResult.REFUSED, f"the API server refuses the binding: {message}")


def judge_pod(pod: Mapping[str, Any] | None, uid: str, node: str) -> Bound | None:
    """What the pod, as it was read, says of its binding; None: it may be bound still, so ask again. `pod`: None where there is
    none of that name."""
    if pod is None or pod["metadata"]["uid"] != uid:
        return Bound(BindResult.ELSEWHERE)
    there = pod.get("spec", {}).get("nodeName", "")
    if there:
        return Bound(BindResult.DONE if there == node else BindResult.ELSEWHERE)
    return Bound(BindResult.ELSEWHERE) if pod["metadata"].get("deletionTimestamp") else None
