"""Gives the resource claims of reserved pods their devices before the pods are bound, and takes them back
where a pod cannot be bound. Devices may have to become ready first. Nothing is waited for here: whoever asks,
asks again."""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta, timezone
from typing import Any, NamedTuple

from hoss.errors import TransportError
from hoss.kube.api import KubeApi, Object
from hoss.kube.paths import object_path, pod_path
from hoss.model.devices import BINDING_SECONDS, HeldClaim, extended_claim_name
from resolver.core.kubernetes.binding_review import BindResult, Bound, read_bound_pod
from resolver.core.kubernetes.claim_allocations import (
    FINALIZER,
    ClaimUser,
    DevicesRefused,
    check_extended,
    classes_of,
    devices_ready,
    extended_claim,
    extended_status_patch,
    finalizer_patch,
    idle_patch,
    is_over,
    releasing_patch,
    reserving_patch,
    unprotecting_patch,
    user_name,
)
from resolver.kubernetes.object_writer import ObjectWriter

_GROUP = "/apis/resource.k8s.io/v1"
_CLASSES_AGE = timedelta(seconds=1)
# Claims whose devices are being made ready, as this resolver left them; the one that was asked for longest
# ago is forgotten first. Of what is forgotten everything is asked anew.
_MOST_WAITING = 10_000
_END_SECONDS = 1.0  # for one request, of a call that is repeated


class _PodElsewhere(Exception):  # noqa: N818 - says what happened
    """The pod is gone, or on another node."""


def always() -> bool:
    """Of a choice that nothing takes back."""
    return True


class ClaimsRequest(NamedTuple):
    """The claims of a pod by name, and what was chosen for those that had no devices when it was placed on
    `node`. `is_current`: whether the ledger that has the choice is still the ledger. One that was rebuilt
    since may have given the devices to others."""

    namespace: str
    user: ClaimUser
    claims: tuple[str, ...]
    chosen: Mapping[str, HeldClaim]
    is_current: Callable[[], bool] = always
    node: str = ""
    ready_seconds: float = BINDING_SECONDS


class DeviceBinder:
    """Serves any number of pods at a time."""

    def __init__(self, api: KubeApi, utc_now: Callable[[], datetime]) -> None:
        self._utc_now = utc_now
        self._objects = ObjectWriter(api, DevicesRefused)
        self._ending = ObjectWriter(api, DevicesRefused, _END_SECONDS)
        # By name, asked for since then; forgotten _CLASSES_AGE after the first.
        self._classes: dict[str, asyncio.Task[Object]] = {}
        self._classes_since = datetime.min.replace(tzinfo=timezone.utc)
        # By UID of the pod and name of the claim, the claim's resourceVersion after all was written.
        self._waiting: dict[tuple[str, str], str] = {}

    def __len__(self) -> int:
        """How many claims are remembered, whose devices are being made ready."""
        return len(self._waiting)

    async def bind(self, request: ClaimsRequest) -> Bound | None:
        """None: all claims have their devices, which are ready, and list the pod. Else WAITS while devices
        are made ready; REFUSED with the reason, after what was written is taken back; ELSEWHERE for a pod
        that is gone or on another node; or UNKNOWN if the API server did not answer."""
        try:
            claims = [
                await self._unchanged(request, name) or await self._bind_claim(request, name)
                for name in request.claims
            ]
            now = self._utc_now()
            if not all(devices_ready(claim, now, request.ready_seconds) for claim in claims):
                self._remember(request, claims)
                text = f"waiting for binding conditions for device on node {request.node}"
                return Bound(BindResult.WAITS, text)
        except DevicesRefused as refused:
            problem = await self.release(request)
            return problem or Bound(BindResult.REFUSED, str(refused))
        except _PodElsewhere:
            return Bound(BindResult.ELSEWHERE)
        except TransportError as exc:
            return Bound(BindResult.UNKNOWN, str(exc))
        return None

    async def _unchanged(self, request: ClaimsRequest, name: str) -> Object | None:
        """The claim, if nothing of it has changed since the pod had to wait: then nothing is to be
        written."""
        version = self._waiting.pop((request.user.uid, name), "")
        if not version or not request.is_current():
            return None
        with contextlib.suppress(DevicesRefused):  # it is gone
            claim = await self._objects.read(_path(request, name))
            return claim if claim["metadata"]["resourceVersion"] == version else None
        return None

    def _remember(self, request: ClaimsRequest, claims: Iterable[Object]) -> None:
        for claim in claims:
            metadata = claim["metadata"]
            self._waiting[request.user.uid, metadata["name"]] = metadata["resourceVersion"]
        while len(self._waiting) > _MOST_WAITING:
            del self._waiting[next(iter(self._waiting))]

    async def release(self, request: ClaimsRequest) -> Bound | None:
        """No claim lists the pod any more. None: done; else UNKNOWN."""
        try:
            for name in request.claims:
                self._waiting.pop((request.user.uid, name), None)
                await self._release_claim(request, name)
        except TransportError as exc:
            return Bound(BindResult.UNKNOWN, str(exc))
        return None

    async def _bind_claim(self, request: ClaimsRequest, name: str) -> Object:
        path, held = _path(request, name), request.chosen.get(name)
        chosen = None if held is None else held.allocation
        if held is None and _is_extended(request, name):
            # The ledger was rebuilt and knows no choice. What was begun is taken back, as after any refusal.
            raise DevicesRefused(f"claim {request.namespace}/{name} has no devices any more")
        claim = None
        if held is not None and held.mappings:
            claim = await self._objects.create(_claims(request), extended_claim(held, request.user), name)
            check_extended(claim, request.user)
        elif held is not None:
            claim = await self._objects.protect(path, FINALIZER)
        title = f"claim {request.namespace}/{name}"
        claim = await self._objects.write(
            path,
            lambda found: finalizer_patch(found, chosen),
            known=claim,
            doing=f"add finalizer to {title}",
        )
        classes = {of: await self._class(of) for of in classes_of(claim, chosen)}

        pod: Object | None = None

        def reserving(found: Object) -> dict[str, Any] | None:
            if finalizer_patch(found, chosen) is not None:
                raise TransportError("the claim was unprotected for another pod; ask again")
            return reserving_patch(found, chosen, request.user, classes, self._utc_now())

        async def still_chosen() -> None:
            nonlocal pod
            pod = await self._pod(request)
            if not request.is_current():
                raise TransportError("the ledger was lost since the devices were chosen; ask again")

        added = "reservation" if held is None else "allocation and reservation"
        claim = await self._objects.write(
            path, reserving, part="/status", known=claim, check=still_chosen, doing=f"add {added} to {title}"
        )
        if held is not None and held.mappings:
            await self._objects.write(
                pod_path(request.namespace, request.user.name),
                lambda found: extended_status_patch(found, held, request.user),
                part="/status",
                known=pod,
            )
        return claim

    async def _pod(self, request: ClaimsRequest) -> Object:
        """Raises _PodElsewhere if the pod cannot use its devices any more. The ledger may have given them to
        others by then, but not before `end` had changed the claim."""
        try:
            pod = await self._objects.read(pod_path(request.namespace, request.user.name))
        except DevicesRefused as exc:
            raise _PodElsewhere from exc
        bound = read_bound_pod(pod, request.user.uid, request.node)
        if bound is not None and bound.result is not BindResult.DONE:
            raise _PodElsewhere
        return pod

    async def end(self, uid: str, held: Iterable[HeldClaim]) -> None:
        """Before the ledger gives the devices that it holds for the pod to others: take back what a pod that
        is over has of them, and see to it that nothing that was begun for the pod is written afterwards. A
        write under way is of one state of the claim, and this changes the state; and nobody begins another
        one for a pod that is gone. Raises TransportError if that is not done; then ask again."""
        for claim in held:
            with contextlib.suppress(DevicesRefused):  # the claim is gone, or may not be changed
                await self._end_claim(uid, claim)

    async def _end_claim(self, uid: str, held: HeldClaim) -> None:
        path = object_path(object_path(f"{_GROUP}/namespaces", held.namespace, "resourceclaims"), held.name)
        claim = await self._ending.read(path)
        name = user_name(claim, uid)
        user = ClaimUser(name, uid)
        if name and await self._is_alive(held.namespace, user):
            return  # it was released for another reason: whoever binds it sees what it has
        if held.mappings:
            claim = await self._ending.write(path, lambda found: unprotecting_patch(found, user), known=claim)
            await self._ending.delete(path, claim["metadata"]["uid"])
            return

        def freeing(found: Object) -> dict[str, Any] | None:
            if user_name(found, uid) != name:
                raise TransportError(f"claim {held.namespace}/{held.name} has just changed; ask again")
            return releasing_patch(found, held.allocation, user)

        claim = await self._ending.write(path, freeing, part="/status", known=claim)
        await self._ending.write(path, idle_patch, known=claim)

    async def _is_alive(self, namespace: str, user: ClaimUser) -> bool:
        try:
            pod = await self._ending.read(pod_path(namespace, user.name))
        except DevicesRefused:
            return False
        return pod["metadata"]["uid"] == user.uid and not is_over(pod)

    async def _class(self, name: str) -> Object:
        """A device class as it was at most a second before it was asked for. Pods of the same moment mostly
        name the same few, and one question serves them all."""
        now = self._utc_now()
        if not timedelta(0) <= now - self._classes_since < _CLASSES_AGE:
            self._classes, self._classes_since = {}, now
        classes = self._classes  # of this second: others may begin the next one while this one is answered
        asked = classes.get(name)
        if asked is None:

            def forget_failed(task: asyncio.Task[Object]) -> None:
                if task.cancelled() or task.exception() is not None:
                    del classes[name]

            path = object_path(f"{_GROUP}/deviceclasses", name)
            asked = classes[name] = asyncio.ensure_future(self._objects.read(path))
            asked.add_done_callback(forget_failed)
        return await asyncio.shield(asked)  # who is cancelled leaves the answer to the others

    async def _release_claim(self, request: ClaimsRequest, name: str) -> None:
        if _is_extended(request, name):
            await self._delete_claim(request, name)
            return
        held = request.chosen.get(name)
        chosen = None if held is None else held.allocation
        with contextlib.suppress(DevicesRefused):  # the claim is gone, or may not be changed
            await self._objects.write(
                _path(request, name),
                lambda claim: releasing_patch(claim, chosen, request.user),
                part="/status",
            )

    async def _delete_claim(self, request: ClaimsRequest, name: str) -> None:
        path = _path(request, name)
        with contextlib.suppress(DevicesRefused):  # the claim is gone, or not the pod's
            claim = await self._objects.write(path, lambda found: unprotecting_patch(found, request.user))
            await self._objects.delete(path, claim["metadata"]["uid"])


def _is_extended(request: ClaimsRequest, name: str) -> bool:
    """Whether the claim is the one for the pod's extended resources."""
    return name == extended_claim_name(request.user.name, request.user.uid)


def _claims(request: ClaimsRequest) -> str:
    return object_path(f"{_GROUP}/namespaces", request.namespace, "resourceclaims")


def _path(request: ClaimsRequest, claim: str) -> str:
    return object_path(_claims(request), claim)
