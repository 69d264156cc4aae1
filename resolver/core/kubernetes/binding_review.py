"""Reviews of bindings: what the API server asks about a scheduler's binding, what the webhook answers, and
how the outcome of a binding is read from the API server's replies.

The webhook checks room: amounts, cards and host ports, which a kubelet would refuse as well; and volumes and
devices, see volumes_and_devices. Rules about nodes and other pods are the business of the scheduler that made
the binding. Formats: admission.k8s.io/v1, Binding of core/v1.

The API server binds a pod if its UID is the given one, it has no node yet, and it is not being deleted.
Otherwise it replies 409. It also replies 409 if an earlier attempt succeeded and the reply was lost. So a 409
says nothing until the pod itself has been read."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np

from hoss.errors import InvalidInput, quoted
from hoss.manifests.fields import Object, boolean, mapping, text
from hoss.model.pod import DeviceRequest, PodSpec
from hoss.model.quantity import NANO, Notation, Quantity
from hoss.model.resources import MAX_AMOUNT, PODS
from hoss.wire.columns import U16
from hoss.wire.uids import uid_from_text
from resolver.core.values import Decision, Group, Proposal, Verdict


class BindResult(IntEnum):
    """Numbered as hoss.v1.BindResult."""

    UNKNOWN = 0
    DONE = 1
    ELSEWHERE = 2
    REFUSED = 3
    UNRESERVED = 4
    WAITS = 5
    VICTIMS = 6


@dataclass(frozen=True, slots=True)
class Bound:
    """The outcome for one pod. `text` is the reason if the result is REFUSED, UNKNOWN or
    WAITS."""

    result: BindResult
    text: str = ""


def binding_of(pod: str, uid: str, node: str) -> dict[str, Any]:
    """The Binding of a pod, "namespace/name". The UID keeps it from binding a later pod of that name."""
    namespace, _, name = pod.partition("/")
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"namespace": namespace, "name": name, "uid": uid},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    }


def read_binding_reply(status: int, message: str) -> Bound | None:
    """The outcome that an unsuccessful reply shows; None: it shows nothing, so read the pod."""
    if status == 404:
        return Bound(BindResult.ELSEWHERE)
    if status in (408, 409, 429) or status >= 500:
        return None
    return Bound(BindResult.REFUSED, f"the API server refuses the binding: {message}")


def read_bound_pod(pod: Mapping[str, Any] | None, uid: str, node: str) -> Bound | None:
    """The outcome that the pod shows; None: it may still be bound, so try again. `pod`: None if no pod has
    that name."""
    if pod is None or pod["metadata"]["uid"] != uid:
        return Bound(BindResult.ELSEWHERE)
    there = pod.get("spec", {}).get("nodeName", "")
    if there:
        return Bound(BindResult.DONE if there == node else BindResult.ELSEWHERE)
    return Bound(BindResult.ELSEWHERE) if pod["metadata"].get("deletionTimestamp") else None


API_VERSION = "admission.k8s.io/v1"
FORBIDDEN, CONFLICT, NOT_FOUND = 403, 409, 404

_REASONS = {FORBIDDEN: "Forbidden", CONFLICT: "Conflict", NOT_FOUND: "NotFound"}
_BINARY_RESOURCES = ("memory", "ephemeral-storage", "hugepages-")


@dataclass(frozen=True, slots=True)
class Review:
    """The question: may this pod be bound to this node?"""

    request: str  # the API server's UID of the question
    namespace: str
    pod: str
    pod_uid: bytes  # 16 bytes; empty if the binding has none
    node: str
    dry_run: bool = False

    @property
    def title(self) -> str:
        """The pod's name in messages."""
        return f"pod {self.namespace}/{self.pod}"


@dataclass(frozen=True, slots=True)
class ReviewAnswer:
    """Allowed, or denied with a message. `verdict` is the reason in one word, for counters and the audit
    log."""

    verdict: str
    allowed: bool = False
    code: int = FORBIDDEN
    message: str = ""


NO_ROOM = "conflict_resource"  # the verdict where an amount is too large
EXEMPT = ReviewAnswer("exempt", allowed=True)
ALREADY_RESERVED = ReviewAnswer("standing", allowed=True)
RESERVED = ReviewAnswer("reserved", allowed=True)
WOULD_FIT = ReviewAnswer("would_fit", allowed=True)


def read_review(document: Object) -> Review:
    """The question of an AdmissionReview. Raises InvalidInput for any other document, and for a review of
    anything but a binding."""
    if document.get("apiVersion") != API_VERSION or document.get("kind") != "AdmissionReview":
        given = f"{quoted(document.get('apiVersion'))} {quoted(document.get('kind'))}"
        raise InvalidInput(
            f"is {given}; this is a webhook for AdmissionReview of {API_VERSION}", where="body"
        )
    request = mapping(document, "request", "body")
    binding = mapping(request, "object", "request")
    if binding.get("kind") != "Binding":
        raise InvalidInput(
            f"is a {quoted(binding.get('kind'))}; the webhook's rules may name pods/binding and bindings"
            " only",
            where="request.object",
        )
    metadata, target = (
        mapping(binding, "metadata", "request.object"),
        mapping(binding, "target", "request.object"),
    )
    uid = text(metadata, "uid", "request.object.metadata")
    review = Review(
        request=text(request, "uid", "request"),
        namespace=text(request, "namespace", "request"),
        pod=text(metadata, "name", "request.object.metadata") or text(request, "name", "request"),
        pod_uid=uid_from_text(uid) if uid else b"",
        node=text(target, "name", "request.object.target"),
        dry_run=boolean(request, "dryRun", "request"),
    )
    for value, where in (
        (review.request, "request.uid"),
        (review.pod, "request.object.metadata.name"),
        (review.node, "request.object.target.name"),
    ):
        if not value:
            raise InvalidInput("is missing", where=where)
    return review


def answer_document(review: Review, answer: ReviewAnswer) -> Object:
    """The AdmissionReview to reply with."""
    response: Object = {
        "uid": review.request,
        "allowed": answer.allowed,
        "auditAnnotations": {"verdict": answer.verdict},
    }
    if not answer.allowed:
        response["status"] = {"code": answer.code, "reason": _REASONS[answer.code], "message": answer.message}
    return {"apiVersion": API_VERSION, "kind": "AdmissionReview", "response": response}


def no_such_pod(review: Review) -> ReviewAnswer:
    return ReviewAnswer("no_such_pod", code=NOT_FOUND, message=f"there is no {review.title}")


def obstacle(review: Review, pod: Object) -> ReviewAnswer | None:
    """Why the API server will refuse this binding anyway, so that nothing is reserved for it; None: it may
    succeed.

    `pod` is the pod that has the name now."""
    metadata, spec = mapping(pod, "metadata", "pod"), mapping(pod, "spec", "pod")
    if review.pod_uid and uid_from_text(text(metadata, "uid", "pod.metadata")) != review.pod_uid:
        message = f"{review.title} is another pod now (UID {metadata.get('uid')}) than the binding is for"
        return ReviewAnswer("another_pod", code=CONFLICT, message=message)
    if metadata.get("deletionTimestamp"):
        return ReviewAnswer("deleting", code=CONFLICT, message=f"{review.title} is being deleted")
    if bound := text(spec, "nodeName", "pod.spec"):
        return ReviewAnswer(
            "bound", code=CONFLICT, message=f"{review.title} is bound to node {bound} already"
        )
    return None


def unreadable(review: Review, error: InvalidInput) -> ReviewAnswer:
    """The pod's requests cannot be read."""
    message = f"{review.title} cannot be counted, so it is unknown whether it fits: {error}"
    return ReviewAnswer("unreadable", message=message)


def unknown_node(review: Review) -> ReviewAnswer:
    """The ledger does not know the node, so nothing on it is known and the binding cannot be allowed. A new
    node is known within a second, long before schedulers give up."""
    message = (
        f"node {review.node} is not among the nodes that HOSS knows; if it is new, the next "
        "attempt will find it"
    )
    return ReviewAnswer("unknown_node", message=message)


def unknown_resource(review: Review, resource: str, asked: int) -> ReviewAnswer:
    """No node has ever offered the resource."""
    return _no_room(review, resource, asked, 0)


def reserved_elsewhere(review: Review, node: str) -> ReviewAnswer:
    """The pod has a reservation on another node. The scheduler that made it may still bind the pod there, so
    the pod cannot have a second one."""
    message = (
        f"room is reserved for {review.title} on node {node}, where it may be bound at this "
        f"moment; it can go to {review.node} once that reservation is released or has ended"
    )
    return ReviewAnswer("reserved_elsewhere", code=CONFLICT, message=message)


def not_given(review: Review, verdict: str, reason: str) -> ReviewAnswer:
    """The pod does not get its volumes or devices there. `reason`: in kube-scheduler's words."""
    return ReviewAnswer(verdict, message=f"node {review.node} cannot take {review.title}: {reason}")


def amounts_row(spec: PodSpec, schema: list[str]) -> tuple[list[int], str]:
    """The pod's requests by schema index (at least up to `pods`), and the first requested resource that the
    schema lacks, if any."""
    asked = dict(spec.requests)
    missing = next((name for name in asked if name not in schema), "")
    row = [asked.get(name, 0) for name in schema]
    row[PODS] = 1
    return row, missing


def proposal_for(
    pod_uid: bytes,
    node: int,
    row: list[int],
    *,
    spec: PodSpec,
    group: Group,
    worker: str,
    epoch: int,
    dry_run: bool,
    shards: int,
    known: int,
    lease_ms: int = 0,
    existing: bool = False,
    seen: tuple[int, ...] = (),
) -> Proposal:
    """The proposal that reserves the room, unless the pod holds something elsewhere. It has a commit, and so
    a lease, of its own: bindings succeed and fail one by one. `known`: the seq at which the index was the
    node's. `lease_ms`: how long the lease lasts; 0: as usual. `existing`: the pod is on the node already, so
    its room is counted whether it fits or not. `seen`: by shard, up to where what the pod takes by name was
    judged; empty: it takes nothing so.

    For a dry run it is a gang that cannot reach its minimum: it is decided in the same way, and nothing is
    reserved."""
    return Proposal(
        worker=worker,
        epoch=epoch,
        snapshot_seq=known,
        # The scheduler's view is its own affair: nothing is refused for being unknown to it.
        seen=seen or (MAX_AMOUNT,) * shards,
        uids=np.frombuffer(pod_uid, np.uint8).reshape(1, -1),
        slots=np.zeros(1, U16),
        nodes=np.array([[node]], np.uint32),
        requests=np.array([row], np.int64),
        priorities=np.array([spec.priority], np.int32),
        attempts=np.zeros(1, U16),
        devices=_devices(spec.devices),
        groups=(group,),
        gang_minimum=2 if dry_run else 0,
        unchecked=existing,
        existing=existing,
        lease_ms=lease_ms,
        exclusive=not (existing or dry_run),
    )


def _devices(asked: DeviceRequest | None) -> "np.ndarray[tuple[int, ...], np.dtype[np.uint16]] | None":
    return None if asked is None else np.array([[asked.count, asked.milli]], U16)


def answer_of(review: Review, decision: Decision, schema: list[str]) -> ReviewAnswer:
    """The answer for the ledger's decision. Not for a DUPLICATE on another node, nor for STALE_EPOCH."""
    verdict = Verdict(int(decision.verdicts[0]))
    if verdict is Verdict.COMMITTED:
        return RESERVED
    if verdict is Verdict.DUPLICATE:
        return ALREADY_RESERVED
    if verdict is Verdict.GANG_ABORTED:
        return WOULD_FIT
    if verdict is Verdict.NODE_GONE:
        return unknown_node(review)
    _, _, resource, asked, free = decision.conflicts[0].tolist()
    if verdict is Verdict.CONFLICT_RESOURCE:
        return _no_room(review, schema[resource], asked, free)
    if verdict is Verdict.CONFLICT_PORT:
        message = f"node {review.node} cannot take {review.title}: its host port {asked} is taken there"
    elif verdict is Verdict.CONFLICT_DEVICE:
        message = (
            f"node {review.node} has no room for {review.title}: it asks for {asked} cards, and "
            f"{free} have room for it"
        )
    else:
        message = f"node {review.node} does not take {review.title} now ({verdict.name})"
    return ReviewAnswer(verdict.name.lower(), message=message)


def _no_room(review: Review, resource: str, asked: int, free: int) -> ReviewAnswer:
    left = f"{amount_text(resource, free)} is free" if free > 0 else "none is free"
    if free < 0:
        left += f" ({amount_text(resource, -free)} more is requested there than it has)"
    message = (
        f"node {review.node} has no room for {review.title}: it asks for "
        f"{amount_text(resource, asked)} of {resource}, and {left}"
    )
    return ReviewAnswer(NO_ROOM, message=message)


def amount_text(resource: str, amount: int) -> str:
    """An amount in schema units, as manifests write it."""
    if resource == "cpu":
        return Quantity(amount * NANO // 1000).normalized
    binary = resource.startswith(_BINARY_RESOURCES)
    return Quantity(amount * NANO, Notation.BINARY if binary else Notation.DECIMAL).normalized
