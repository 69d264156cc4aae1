"""Kubernetes mode: follows the PodGroups of a cluster, and writes their status.

A cluster may have any of the kinds, get one later, or not let us read it. Nothing else depends on them,
so neither stops anything but the pods that name such a group."""

import asyncio
import random
from collections.abc import Callable
from datetime import datetime
from functools import partial

from dispatcher.core import messages as m
from dispatcher.core.kubernetes.conditions import RateLimiter
from dispatcher.core.kubernetes.pod_group_status import DueStatus, PodGroupStatuses
from dispatcher.core.kubernetes.pod_groups import GroupKind, GroupRef, PodGroups, read_group, read_workload
from dispatcher.core.pods.table import NO_REASON
from dispatcher.kubernetes.event_recorder import EventRecorder
from dispatcher.runtime import Runtime
from hoss.errors import TransportError
from hoss.kube.api import MERGE_PATCH, KubeApi, Object, Reply
from hoss.kube.paths import object_path
from hoss.kube.reflector import Change, KindAvailability, ObjectGone, Reflector
from hoss.telemetry import logger

API_VERSIONS = {
    GroupKind.COSCHEDULING: "scheduling.x-k8s.io/v1alpha1",
    GroupKind.VOLCANO: "scheduling.volcano.sh/v1beta1",
    GroupKind.WORKLOAD: "scheduling.k8s.io/v1alpha2",  # since 1.36, with the gate GenericWorkload
    GroupKind.IN_WORKLOAD: "scheduling.k8s.io/v1alpha1",  # 1.35, with that gate
}

_POLL_SECONDS = 0.5
_CONCURRENT_REQUESTS = 4  # few, because bindings matter more
_WRITES_PER_SECOND = 20.0
_NOT_FOUND, _CONFLICT = 404, 409


class PodGroupInformers:
    """Its `reflectors` must be running. Changes are collected until `take`."""

    def __init__(
        self,
        api: KubeApi,
        *,
        clock: Callable[[], float],
        changed: Callable[[], object],
        rng: random.Random,
    ) -> None:
        """`changed` is called when there is something to take."""
        self.groups = PodGroups()
        self._changed = changed
        reflector = partial(Reflector, api, optional=True, required=False, clock=clock, rng=rng)
        self._reflectors = {
            kind: reflector(f"/apis/{version}/{kind.value.partition('.')[0]}", self._handler(kind))
            for kind, version in API_VERSIONS.items()
        }

    @property
    def reflectors(self) -> list[Reflector]:
        return list(self._reflectors.values())

    def take(self, runtime: Runtime) -> None:
        """Have the machine handle the changes since the last call."""
        for kind, reflector in self._reflectors.items():
            self.groups.set_unread(kind, _why_unread(kind, reflector.availability))
        rules = self.groups.take_rules()
        if rules:
            runtime.handle(m.GangRulesChanged(rules))

    def _handler(self, kind: GroupKind) -> Callable[[list[Change]], None]:
        def handle(changes: list[Change]) -> None:
            for change in changes:
                if kind is GroupKind.IN_WORKLOAD:
                    self._workload_changed(change)
                elif isinstance(change, ObjectGone):
                    self.groups.remove(GroupRef(kind, change.namespace, change.name))
                else:
                    self.groups.apply(read_group(kind, change.object))
            self._changed()

        return handle

    def _workload_changed(self, change: Change) -> None:
        if isinstance(change, ObjectGone):
            self.groups.apply_workload(change.namespace, change.name, ())
        else:
            metadata = change.object["metadata"]
            self.groups.apply_workload(metadata["namespace"], metadata["name"], read_workload(change.object))


def _why_unread(kind: GroupKind, availability: KindAvailability) -> str:
    """For the pods that name a group of this kind."""
    if availability is KindAvailability.NOT_SERVED:
        return f"the cluster has no {kind.value} ({API_VERSIONS[kind]})"
    if availability is KindAvailability.FORBIDDEN:
        return f"the dispatcher may not list {kind.value}"
    return ""


class PodGroupStatusWriter:
    """`run` must be running."""

    def __init__(
        self,
        runtime: Runtime,
        api: KubeApi,
        groups: PodGroups,
        recorder: EventRecorder,
        *,
        utc_now: Callable[[], datetime],
    ) -> None:
        self._runtime = runtime
        self._api = api
        self._recorder = recorder
        self._utc_now = utc_now
        self._groups = groups
        self._statuses = PodGroupStatuses(groups)
        self._rate_limiter = RateLimiter(_WRITES_PER_SECOND)
        self._refused: dict[GroupKind, tuple[GroupRef, str]] = {}  # the latest, and why
        self._without_subresource: set[GroupKind] = set()
        self._requests = asyncio.Semaphore(_CONCURRENT_REQUESTS)

    def table_sizes(self) -> dict[str, int]:
        """The entries of each table about PodGroups."""
        return {"pod_groups": len(self._groups), "pod_group_statuses": len(self._statuses)}

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            utc_now = self._utc_now().strftime("%Y-%m-%dT%H:%M:%SZ")
            due, overdue = self._statuses.due(self._why, self._runtime.now(), utc_now)
            for item in overdue:
                self._recorder.group_overdue(item, API_VERSIONS[item.group.ref.kind])
            await asyncio.gather(*map(self._write, due))
            self._update_problems()
            await asyncio.sleep(_POLL_SECONDS)

    def _why(self, ref: GroupRef) -> str:
        """The reason of a pod of the gang that waits; "" for none."""
        registry = self._runtime.machine.registry
        gang = registry.gangs.keyed(ref.key)
        if gang is None:
            return ""
        numbers = registry.pods.reason[gang.rows]
        numbers = numbers[numbers != NO_REASON]
        return registry.reasons.texts[int(numbers[0])] if len(numbers) else ""

    async def _write(self, due: DueStatus) -> None:
        ref = due.group.ref
        if not self._rate_limiter.take(self._runtime.now()):
            self._statuses.retry(ref, soon=True)
            return
        try:
            async with self._requests:
                reply = await self._patch(due)
        except TransportError:
            self._statuses.retry(ref, soon=True)
            return
        if reply.done:
            self._runtime.machine.counters["group_statuses_written"] += 1
            self._refused.pop(ref.kind, None)
        elif reply.passing or reply.status == _CONFLICT:
            self._statuses.retry(ref, soon=True)
        elif reply.status != _NOT_FOUND:  # else the group is gone
            self._statuses.retry(ref, soon=False)
            if ref.kind not in self._refused:
                logger().warning("group_status_refused", group=ref.key, error=reply.message)
            self._refused[ref.kind] = ref, reply.message

    def _update_problems(self) -> None:
        """A problem ends when a status of its kind is written, or with its group."""
        problems = self._runtime.problems
        for kind in GroupKind:
            name = f"status of {kind.value}"
            ref, message = self._refused.get(kind, (None, ""))
            if ref is None or self._groups.group(ref) is None:
                self._refused.pop(kind, None)
                problems.pop(name, None)
            else:
                problems[name] = (
                    f"the status of {kind.value} cannot be written, such as of {ref.namespace}/{ref.name}: "
                    f"{message}"
                )

    async def _patch(self, due: DueStatus) -> Reply:
        ref = due.group.ref
        groups = f"/apis/{API_VERSIONS[ref.kind]}/namespaces"
        path = object_path(groups, ref.namespace, "podgroups", ref.name)
        body: Object = {
            "metadata": {"uid": due.group.uid, "resourceVersion": due.group.version},
            "status": due.status,
        }
        reply = Reply(_NOT_FOUND, b"")
        if ref.kind not in self._without_subresource:
            reply = await self._api.send("PATCH", f"{path}/status", body, content_type=MERGE_PATCH)
        if reply.status == _NOT_FOUND and ref.kind is GroupKind.VOLCANO:
            # Some versions of Volcano have PodGroups without a status of their own right.
            reply = await self._api.send("PATCH", path, body, content_type=MERGE_PATCH)
            if reply.done:
                self._without_subresource.add(ref.kind)
        return reply
