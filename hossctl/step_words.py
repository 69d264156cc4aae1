"""What each move of a pod is in words, of one pod and of many: by phase and event, as hoss.v1.PodStep has them."""

from typing import NamedTuple

from hossctl.console import Document


class _Words(NamedTuple):
    one: str  # may name {worker}, {node} and {reason}
    many: str  # after how many


_WORDS = {
    ("Scheduling", ""): _Words("given to worker {worker}", "given to workers"),
    ("Bound", ""): _Words("bound on {node}", "bound"),
    ("Bound", "Confirmed"): _Words("confirmed: its reservation stands until it is released", "confirmed"),
    ("Bound", "Assigned"): _Words("is on {node}, as the API server has it", "on nodes, as the API server has it"),
    ("Bound", "VictimsLeft"): _Words("those that had to go for it have left", "free of those that had to go for them"),
    ("Bound", "Evicted"): _Words("has to leave {node}: {reason}", "told to leave their nodes"),
    ("Queued", "ScheduleAttemptFailure"): _Words("queued again", "queued again after a refusal"),
    ("Queued", "BackoffComplete"): _Words("queued again: its backoff is over", "queued again after their backoff"),
    ("Queued", "UnschedulableTimeout"): _Words(
        "queued again: no change came for five minutes", "queued again after five minutes without a change"
    ),
    ("Queued", "ClusterChange"): _Words("queued again: a change may help it", "queued again after a change"),
    ("Queued", "PolicyChange"): _Words("queued again: another policy is in force", "queued again under another policy"),
    ("Queued", "PodUpdate"): _Words("queued again: the pod was changed", "queued again because they were changed"),
    ("Queued", "Returned"): _Words("given back by {worker} before its turn; queued again", "given back untried"),
    ("Queued", "WorkerLost"): _Words("worker {worker} was lost with it in hand; queued again", "queued again because their worker was lost"),
    ("Queued", "Evicted"): _Words("lost its place and is queued again: {reason}", "evicted and queued again"),
    ("Queued", "ReservationLost"): _Words(
        "its reservation is gone; queued again: {reason}", "queued again because their reservation was gone"
    ),
    ("Queued", "GatesRemoved"): _Words("its last gate was removed; queued", "queued after their last gate was removed"),
    ("Queued", "GangUpdate"): _Words("queued with others of its gang", "queued with others of their gang"),
    ("Queued", "Retried"): _Words("hoss retry: queued again, its faults forgiven", "queued again by hoss retry"),
    ("Backoff", "ScheduleAttemptFailure"): _Words("waits before the next attempt: {reason}", "sent to wait for a while"),
    ("Backoff", "ClusterChange"): _Words("a change may help it, once its backoff is over", "near a change, in backoff"),
    ("Backoff", "PodUpdate"): _Words("was changed; waits for the end of its backoff", "changed, in backoff"),
    ("Backoff", "GivenBack"): _Words("had room and gives it back: {reason}", "given room that they gave back"),
    ("Backoff", "BindingRefused"): _Words("the API server did not bind it: {reason}", "not bound by the API server"),
    ("Unschedulable", "ScheduleAttemptFailure"): _Words("no node fits: {reason}", "found to fit on no node"),
    ("Unschedulable", "Gated"): _Words("{reason}", "held back by scheduling gates"),
    ("Unschedulable", "Gathering"): _Words("{reason}", "held until more pods of their gang were there"),
    ("Failed", "GivenUp"): _Words("failed: {reason}", "given up"),
    ("Deleted", ""): _Words("deleted", "deleted"),
}  # fmt: skip


def of_one(step: Document, *, same_reason: bool = False) -> str:
    """A pod's step. `same_reason`: it was told with the step before already."""
    words = _WORDS.get((step["phase"], step["event"]))
    if words is None:  # of a newer dispatcher
        return ": ".join(filter(None, (step["phase"].lower(), step["event"], step["reason"])))
    reason = "as before" if same_reason and step["reason"] else step["reason"]
    text = words.one.format(worker=step["worker"] or "unknown", node=step["node"] or "its node", reason=reason)
    return text.removesuffix(": ")


def of_many(step: Document) -> str:
    """The same step of many pods."""
    words = _WORDS.get((step["phase"], step["event"]))
    return words.many if words is not None else " ".join(filter(None, (step["phase"].lower(), step["event"])))
