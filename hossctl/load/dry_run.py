"""What a submission would meet on a platform: names that are taken, objects and nodes that would change.

Names are looked up as the dispatcher checks them: a job's name among jobs, and a pod's among all pods, also
those of jobs, NAME-0 and on. Between the look and a submission others may submit."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
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
class DryRun:
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
) -> DryRun:
    """Look everything up and change nothing. Without nodes there need be no resolver."""
    known = {key_of(item): item for item in await dispatcher.list_objects()} if objects else {}
    held = {}
    if resolver is not None and nodes:
        held = {
            info.spec.name: node_from_proto(info.spec)
            for info in await resolver.list_nodes([node.name for node in nodes])
        }
    return DryRun(
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
    pods = await _taken(client, {name for workload in workloads for name in _pod_names(workload)})
    return [_refusal(workload, jobs, pods) for workload in workloads]


def _refusal(workload: Workload, jobs: Collection[_PodName], pods: Collection[_PodName]) -> str:
    if _is_job(workload) and (_space(workload), workload.name) in jobs:
        return "it is there already"  # and so are its pods
    taken = next((name for name in _pod_names(workload) if name in pods), None)
    if taken is None:
        return ""
    return f"pod {taken[1]} is there already" if _is_job(workload) else "it is there already"


async def _taken(client: "DispatcherClient", names: Collection[_PodName]) -> set[_PodName]:
    """Those that pods have."""
    if len(names) > _MOST_QUESTIONS:
        spaces = {space for space, _ in names}
        return {(pod.namespace, pod.name) for space in spaces async for pod in client.list_pods(space)}
    return {name for name in names if await _is_there(client, name)}


async def _is_there(client: "DispatcherClient", name: _PodName) -> bool:
    try:
        await client.get_pod(*name)
    except NotFound:
        return False
    return True


def _is_job(workload: Workload) -> bool:
    return bool(workload.template.owner_kind)


def _space(workload: Workload) -> str:
    return workload.template.spec.namespace


def _pod_names(workload: Workload) -> list[_PodName]:
    if not _is_job(workload):
        return [(_space(workload), workload.name)]
    return [(_space(workload), f"{workload.name}-{ordinal}") for ordinal in range(workload.replicas)]
