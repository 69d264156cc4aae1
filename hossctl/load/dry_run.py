"""What a submission would meet on a platform: names that are taken, objects and nodes that would change.

Names are looked up as the dispatcher checks them: a job's name among jobs, and a pod's among all pods, also
those of jobs, NAME-0 and on. Between the look and a submission others may submit."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hoss.errors import NotFound
from hoss.model.cluster import ClusterObject, key_of
from hoss.model.node import NodeSpec
from hoss.model.pod import Workload
from hoss.wire.convert import node_from_proto

if TYPE_CHECKING:
    from hoss.client.dispatcher import DispatcherClient
    from hoss.client.resolver import ResolverClient

# So many pods are asked for one by one; of more, all names of their namespaces are read.
_MOST_QUESTIONS = 500

CREATED, CONFIGURED, UNCHANGED = "created", "configured", "unchanged"  # as the dispatcher says of objects

_PodName = tuple[str, str]  # namespace and name


@dataclass(frozen=True, slots=True)
class SubmissionDryRun:
    """What would become of a submission. The lists are in the order of what was submitted."""

    refusals: Sequence[str]  # of workloads, one each; "" where it would be accepted
    objects: Sequence[str]  # what would become of each
    nodes: Sequence[str]  # likewise


async def dry_run(
    dispatcher: "DispatcherClient",
    resolver: "ResolverClient | None",
    workloads: Sequence[Workload],
    objects: Sequence[ClusterObject],
    nodes: Sequence[NodeSpec],
) -> SubmissionDryRun:
    """Look everything up and change nothing. Without nodes there need be no resolver."""
    known = {key_of(item): item for item in await dispatcher.list_objects()} if objects else {}
    held = {}
    if resolver is not None and nodes:
        held = {
            info.spec.name: node_from_proto(info.spec)
            for info in await resolver.list_nodes([node.name for node in nodes])
        }
    return SubmissionDryRun(
        await _refusals(dispatcher, workloads),
        [_change(known.get(key_of(item)), item) for item in objects],
        [_change(held.get(node.name), node) for node in nodes],
    )


def _change(present: object | None, wanted: object) -> str:
    if present is None:
        return CREATED
    return UNCHANGED if present == wanted else CONFIGURED


async def _refusals(client: "DispatcherClient", workloads: Sequence[Workload]) -> list[str]:
    spaces = {_space(workload) for workload in workloads if _is_job(workload)}
    jobs = {(job.namespace, job.name) for space in sorted(spaces) for job in await client.list_jobs(space)}
    pods = await _taken(client, workloads)
    return [_refusal(workload, jobs, pods) for workload in workloads]


def _refusal(workload: Workload, jobs: Collection[_PodName], pods: "_TakenNames") -> str:
    name = (_space(workload), workload.name)
    if not _is_job(workload):
        return "it is there already" if name in pods.names else ""
    if name in jobs:
        return "it is there already"  # and so are its pods
    ordinal = pods.least_ordinals.get(name, workload.replicas)
    return f"pod {workload.name}-{ordinal} is there already" if ordinal < workload.replicas else ""


@dataclass(slots=True)
class _TakenNames:
    """Names of living pods, of those that could be in the way."""

    names: set[_PodName] = field(default_factory=set)
    # Of names such as web-3, by namespace and stem: the least number.
    least_ordinals: dict[_PodName, int] = field(default_factory=dict)

    def add(self, space: str, name: str, bare: Collection[_PodName], jobs: Collection[_PodName]) -> None:
        """Note a pod's name if it is one of the bare pods, or of a pod of one of the jobs."""
        if (space, name) in bare:
            self.names.add((space, name))
        stem, _, digits = name.rpartition("-")
        job = (space, stem)
        if job in jobs and digits.isdecimal() and str(int(digits)) == digits:
            self.least_ordinals[job] = min(int(digits), self.least_ordinals.get(job, int(digits)))


async def _taken(client: "DispatcherClient", workloads: Sequence[Workload]) -> _TakenNames:
    bare = {(_space(workload), workload.name) for workload in workloads if not _is_job(workload)}
    jobs = {(_space(workload), workload.name) for workload in workloads if _is_job(workload)}
    taken = _TakenNames()
    if sum(workload.replicas for workload in workloads) > _MOST_QUESTIONS:
        for wanted in sorted({space for space, _ in bare | jobs}):
            async for pod in client.list_pods(wanted):
                taken.add(pod.namespace, pod.name, bare, jobs)
        return taken
    for workload in workloads:
        for name in _pod_names(workload):
            if await _is_there(client, _space(workload), name):
                taken.add(_space(workload), name, bare, jobs)
    return taken


async def _is_there(client: "DispatcherClient", namespace: str, name: str) -> bool:
    try:
        await client.get_pod(namespace, name)
    except NotFound:
        return False
    return True


def _is_job(workload: Workload) -> bool:
    return bool(workload.template.owner_kind)


def _space(workload: Workload) -> str:
    return workload.template.spec.namespace


def _pod_names(workload: Workload) -> Iterable[str]:
    if not _is_job(workload):
        return (workload.name,)
    return (f"{workload.name}-{ordinal}" for ordinal in range(workload.replicas))
