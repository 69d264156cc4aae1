"""Cluster objects that clients apply, remove and list. They are in the journal before they are
acknowledged."""

import asyncio
from dataclasses import fields
from typing import NoReturn

from dispatcher.core import messages as m
from dispatcher.core.bound.disruption_budgets import PodCounts
from dispatcher.core.cluster.objects import Applied
from dispatcher.runtime import Runtime
from hoss.errors import AccessDenied, InvalidInput
from hoss.manifests.fields import check_name, check_namespace
from hoss.model.cluster import ClusterObject, ObjectKey, PodDisruptionBudget, PriorityClass, key_of
from hoss.model.slices import Steps
from hoss.v1 import dispatcher_pb2 as pb
from hoss.wire.convert_objects import object_from_proto, object_to_proto
from hoss.wire.pages import first_page, key_before, not_from_a_reply

# What entries of lists take, by estimate.
_OBJECT_MICROS = 30.0
_TEMPLATE_MICROS = 5.0  # and of a budget, each template that pods may have


class ClusterObjectStore:
    """The one writer of the machine's cluster objects."""

    def __init__(self, runtime: Runtime, *, follows_cluster: bool = False) -> None:
        """`follows_cluster`: objects come and go with those of the API server only."""
        self._runtime = runtime
        self._follows_cluster = follows_cluster
        self._known = runtime.machine.objects
        self._writing = asyncio.Lock()  # the journal and the machine get changes in the same order

    async def apply(self, request: pb.ApplyObjectsRequest) -> pb.ApplyObjectsReply:
        """Raises InvalidInput or LedgerUnavailable; then nothing was applied. Raises OutcomeUnknown."""
        if self._follows_cluster:
            refuse_changes("apply objects")
        items = [_checked(object_from_proto(message)) for message in request.objects]
        async with self._writing:
            results = [self._known.compare(item) for item in items]
            new = {
                key_of(i): i
                for i, result in zip(items, results, strict=True)
                if result is not Applied.UNCHANGED
            }
            if new:
                messages = {str(key): object_to_proto(item).SerializeToString() for key, item in new.items()}
                await self._runtime.journal.put_objects(messages)
                self._runtime.handle(m.ObjectsApplied(tuple(new.values())))
        return pb.ApplyObjectsReply(results=[result.value for result in results])

    async def remove(self, request: pb.DeleteObjectsRequest) -> pb.DeleteObjectsReply:
        """Raises InvalidInput or LedgerUnavailable; then nothing was removed. Raises OutcomeUnknown."""
        if self._follows_cluster:
            refuse_changes("delete objects")
        keys = [ObjectKey(ref.kind, ref.namespace, ref.name) for ref in request.objects]
        async with self._writing:
            known = [key for key in keys if key in self._known]
            if known:
                await self._runtime.journal.drop_objects([str(key) for key in known])
                self._runtime.handle(m.ObjectsRemoved(tuple(known)))
        missing = [
            pb.ObjectRef(kind=key.kind, namespace=key.namespace, name=key.name)
            for key in keys
            if key not in known
        ]
        return pb.DeleteObjectsReply(not_found=missing)

    def listed(self, request: pb.ListObjectsRequest) -> Steps[pb.ListObjectsReply]:
        """One page of the objects of a kind and namespace, or of all; disruption budgets with their present
        status. Raises InvalidInput."""
        after = _key_before(request.page_token)
        left = [
            item
            for item in self._known
            if request.kind in ("", key_of(item).kind)
            and (not key_of(item).namespace or request.namespace in ("", key_of(item).namespace))
            and (after is None or key_of(item) > after)
        ]
        page, token = first_page(left, request.limit, _page_key)
        reply = pb.ListObjectsReply(next_page_token=token)
        counts: PodCounts | None = None
        for item in page:
            reply.objects.append(object_to_proto(item))
            if isinstance(item, PodDisruptionBudget):
                if counts is None:
                    machine = self._runtime.machine
                    counts = PodCounts(machine.registry, machine.taint_eviction.leaving())
                status = counts.status(item, item.covers)
                reply.budgets.add(
                    expected_pods=status.expected,
                    current_healthy=status.healthy,
                    desired_healthy=status.desired,
                    disruptions_allowed=status.allowed,
                )
                yield counts.templates * _TEMPLATE_MICROS
            yield _OBJECT_MICROS
        return reply

    def resolve_priorities(self, message: pb.SubmitRequest) -> None:
        """Set every template's priority to that of its class, in place. Raises InvalidInput for a template
        with another priority. As in Kubernetes, later changes of the class do not change accepted pods."""
        classes = self._known.priority_classes
        if not classes:
            return
        default = self._default_class()
        for number, template in enumerate(message.templates):
            named = classes.get(template.priority_class_name)
            if named is not None:
                _give(template, named, number)
            elif default is not None and not template.priority_class_name and not template.spec.priority:
                _give(template, default, number)

    def check_priorities(self, message: pb.SubmitRequest, tenant: str) -> None:
        """Raises AccessDenied for a priority that a client of this tenant may not give; "": it may give
        any."""
        if not tenant:
            return
        default = self._default_class()
        most = self._runtime.machine.tenants.sharing.max_priority(tenant)
        most = most if default is None else max(most, default.value)
        for number, template in enumerate(message.templates):
            if template.spec.priority > most:
                raise AccessDenied(
                    f"templates[{number}]: priority {template.spec.priority} is over {most}, the highest that"
                    f" clients of tenant {tenant[:100]!r} may give; the policy says so (tenants.maxPriority)"
                )

    def _default_class(self) -> PriorityClass | None:
        found = (c for c in self._known.priority_classes.values() if c.global_default)
        return min(found, key=lambda c: c.value, default=None)


def _page_key(item: ClusterObject) -> str:
    key = key_of(item)
    return f"{key.kind}/{key.namespace}/{key.name}"


def _key_before(page_token: str) -> ObjectKey | None:
    after = key_before(page_token)
    if after is None:
        return None
    parts = after.split("/")
    if len(parts) != len(fields(ObjectKey)):
        raise not_from_a_reply(page_token)
    return ObjectKey(*parts)


def _give(template: pb.PodTemplate, priority_class: PriorityClass, number: int) -> None:
    if template.spec.priority not in (0, priority_class.value):
        raise InvalidInput(
            f"is {template.spec.priority}, but priority class {priority_class.name} stands for "
            f"{priority_class.value}; leave the number out",
            where=f"templates[{number}].spec.priority",
        )
    template.priority_class_name = priority_class.name
    template.spec.priority = priority_class.value
    template.spec.never_preempts |= priority_class.never_preempts


def _checked(item: ClusterObject) -> ClusterObject:
    key = key_of(item)
    check_name(key.name, f"{key.kind}.name")
    if key.namespace or key.kind in ("Service", "PodDisruptionBudget"):
        check_namespace(key.namespace, f"{key.kind}.namespace")
    if isinstance(item, PodDisruptionBudget):
        limits = [limit for limit in (item.min_available, item.max_unavailable) if limit is not None]
        if len(limits) > 1:
            raise InvalidInput(
                f"of {key} stands beside min_available; give one of the two", where="max_unavailable"
            )
        if any(limit.percent and limit.value > 100 for limit in limits):
            raise InvalidInput(f"of {key} is {limits[0]}; a percentage goes from 0 to 100", where="budget")
    return item


def refuse_changes(what: str) -> NoReturn:
    """Raises InvalidInput: changes have to be made at the API server."""
    raise InvalidInput(
        f"this platform schedules a Kubernetes cluster; {what} with kubectl, and it follows",
        where="Kubernetes mode",
    )
