"""A scheduler's binding as the API server asks about it, and what is answered: questions in, answers out.

The guard judges room and nothing else: amounts, cards and host ports, which a kubelet would refuse as well. Rules about nodes
and other pods are the business of the scheduler that made the binding. Formats: admission.k8s.io/v1, Binding of core/v1.
"""

from dataclasses import dataclass

import numpy as np

from hoss.errors import InvalidInput
from hoss.model.fields import Object, boolean, mapping, text
from hoss.model.pod import DeviceRequest, PodSpec
from hoss.model.quantity import NANO, Notation, Quantity
from hoss.model.resources import MAX_AMOUNT, PODS
from hoss.wire.columns import U16, uid_from_text
from resolver.core.values import Decision, Group, Proposal, Verdict

API_VERSION = "admission.k8s.io/v1"
FORBIDDEN, CONFLICT, NOT_FOUND = 403, 409, 404

_REASONS = {FORBIDDEN: "Forbidden", CONFLICT: "Conflict", NOT_FOUND: "NotFound"}
_BINARY_RESOURCES = ("memory", "ephemeral-storage", "hugepages-")


@dataclass(frozen=True, slots=True)
class Review:
    """May this pod be bound to this node?"""

    request: str  # the API server's own name for the question
    namespace: str
    pod: str
    pod_uid: bytes  # 16 bytes; empty where the binding does not say
    node: str
    dry_run: bool = False

    @property
    def title(self) -> str:
        """The pod, as sentences name it."""
        return f"pod {self.namespace}/{self.pod}"


@dataclass(frozen=True, slots=True)
class Answer:
    """Yes, or no with a sentence. `verdict` is the reason in one word, for counters and the audit log."""

    verdict: str
    allowed: bool = False
    code: int = FORBIDDEN
    message: str = ""


EXEMPT = Answer("exempt", allowed=True)
STANDING = Answer("standing", allowed=True)
RESERVED = Answer("reserved", allowed=True)
WOULD_FIT = Answer("would_fit", allowed=True)


def read_review(document: Object) -> Review:
    """The question of an AdmissionReview. Raises InvalidInput for what is none, or is about anything but a binding."""
    if document.get("apiVersion") != API_VERSION or document.get("kind") != "AdmissionReview":
        given = f"{document.get('apiVersion')!r} {document.get('kind')!r}"
        raise InvalidInput(f"is {given}; this is a webhook for AdmissionReview of {API_VERSION}", where="body")
    request = mapping(document, "request", "body")
    binding = mapping(request, "object", "request")
    if binding.get("kind") != "Binding":
        raise InvalidInput(
            f"is a {binding.get('kind')!r}; the webhook's rules may name pods/binding and bindings only",
            where="request.object",
        )
    metadata, target = mapping(binding, "metadata", "request.object"), mapping(binding, "target", "request.object")
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


def answer_document(review: Review, answer: Answer) -> Object:
    """The AdmissionReview that goes back."""
    response: Object = {
        "uid": review.request,
        "allowed": answer.allowed,
        "auditAnnotations": {"verdict": answer.verdict},
    }
    if not answer.allowed:
        response["status"] = {
            "code": answer.code,
            "reason": _REASONS[answer.code],
            "message": answer.message,
        }
    return {"apiVersion": API_VERSION, "kind": "AdmissionReview", "response": response}


def no_such_pod(review: Review) -> Answer:
    """Nothing goes by the pod's name."""
    return Answer("no_such_pod", code=NOT_FOUND, message=f"there is no {review.title}")


def obstacle(review: Review, pod: Object) -> Answer | None:
    """Why the API server will refuse this binding anyway, so that nothing is reserved for it; None: it may well succeed.

    `pod` is what goes by the name now.
    """
    metadata, spec = mapping(pod, "metadata", "pod"), mapping(pod, "spec", "pod")
    if review.pod_uid and uid_from_text(text(metadata, "uid", "pod.metadata")) != review.pod_uid:
        said = f"{review.title} is another one by now (UID {metadata.get('uid')}) than the binding is for"
        return Answer("another_pod", code=CONFLICT, message=said)
    if metadata.get("deletionTimestamp"):
        return Answer("deleting", code=CONFLICT, message=f"{review.title} is being deleted")
    if bound := text(spec, "nodeName", "pod.spec"):
        return Answer("bound", code=CONFLICT, message=f"{review.title} is bound to node {bound} already")
    return None


def unreadable(review: Review, error: InvalidInput) -> Answer:
    """The pod asks for something that cannot be counted."""
    said = f"{review.title} cannot be counted, so nobody knows whether it fits: {error}"
    return Answer("unreadable", message=said)


def unknown_node(review: Review) -> Answer:
    """The ledger has no such node. Whatever stands on it is not known either, so it cannot be a yes; and a node that is new is
    known within a second, long before schedulers give up."""
    said = f"node {review.node} is not among the nodes that HOSS knows; if it is new, the next attempt will find it"
    return Answer("unknown_node", message=said)


def unknown_resource(review: Review, resource: str, asked: int) -> Answer:
    """No node has ever offered it."""
    return _no_room(review, resource, asked, 0)


def standing_elsewhere(review: Review, node: str) -> Answer:
    """The pod holds room on another node. Whoever got that may still bind it there, so it cannot have more."""
    said = (
        f"room is reserved for {review.title} on node {node}, where it may be bound at this moment; it can go to "
        f"{review.node} once that reservation is released or has ended"
    )
    return Answer("reserved_elsewhere", code=CONFLICT, message=said)


def amounts_row(spec: PodSpec, schema: list[str]) -> tuple[list[int], str]:
    """What a pod asks for by schema index, as far as the last resource it asks for and `pods` at least; and the first resource
    that the schema has not, if any."""
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
    guard: str,
    epoch: int,
    dry_run: bool,
    shards: int,
) -> Proposal:
    """The proposal that reserves the room, under a commit and so a lease of its own: bindings succeed and fail one by one.

    It is a gang that can never be complete where nothing may be reserved: judged alike, and given up.
    """
    return Proposal(
        worker=guard,
        epoch=epoch,
        # The scheduler's view is its own affair: nothing is refused for what it may not have seen.
        snapshot_seq=MAX_AMOUNT,
        seen=(MAX_AMOUNT,) * shards,
        uids=np.frombuffer(pod_uid, np.uint8).reshape(1, -1),
        slots=np.zeros(1, U16),
        nodes=np.array([[node]], np.uint32),
        requests=np.array([row], np.int64),
        priorities=np.array([spec.priority], np.int32),
        attempts=np.zeros(1, U16),
        devices=_devices(spec.devices),
        groups=(group,),
        gang_minimum=2 if dry_run else 0,
    )


def _devices(asked: DeviceRequest | None) -> "np.ndarray[tuple[int, ...], np.dtype[np.uint16]] | None":
    return None if asked is None else np.array([[asked.count, asked.milli]], U16)


def answer_of(review: Review, decision: Decision, schema: list[str]) -> Answer:
    """What the ledger's decision on the pod's proposal means. Not for DUPLICATE elsewhere, nor STALE_EPOCH."""
    verdict = Verdict(int(decision.verdicts[0]))
    if verdict is Verdict.COMMITTED:
        return RESERVED
    if verdict is Verdict.DUPLICATE:
        return STANDING
    if verdict is Verdict.GANG_ABORTED:
        return WOULD_FIT
    if verdict is Verdict.NODE_GONE:
        return unknown_node(review)
    _, _, resource, asked, free = decision.conflicts[0].tolist()
    if verdict is Verdict.CONFLICT_RESOURCE:
        return _no_room(review, schema[resource], asked, free)
    if verdict is Verdict.CONFLICT_PORT:
        said = f"node {review.node} cannot take {review.title}: its host port {asked} is taken there"
    elif verdict is Verdict.CONFLICT_DEVICE:
        said = (
            f"node {review.node} has no room for {review.title}: it asks for {asked} cards, and {free} have room for it"
        )
    else:
        said = f"node {review.node} does not take {review.title} now ({verdict.name})"
    return Answer(verdict.name.lower(), message=said)


def _no_room(review: Review, resource: str, asked: int, free: int) -> Answer:
    left = f"{amount_text(resource, free)} is free" if free > 0 else "none is free"
    if free < 0:
        left += f" ({amount_text(resource, -free)} more is requested there than it has)"
    said = (
        f"node {review.node} has no room for {review.title}: it asks for {amount_text(resource, asked)} of {resource}, "
        f"and {left}"
    )
    return Answer("conflict_resource", message=said)


def amount_text(resource: str, amount: int) -> str:
    """An amount in schema units as manifests write it."""
    if resource == "cpu":
        return Quantity(amount * NANO // 1000).normalized
    binary = resource.startswith(_BINARY_RESOURCES)
    return Quantity(amount * NANO, Notation.BINARY if binary else Notation.DECIMAL).normalized
