"""Lists and pages of single things, for JSON: jobs, pods, tenants, nodes, workers. Each list is one page,
with the token of the next one; nothing here is kept."""

from collections.abc import Mapping
from typing import Any

from hoss.client.dispatcher import DispatcherClient
from hoss.errors import InvalidInput, NotFound, quoted
from hoss.model.quantity import whole_number
from hoss.model.resources import written_amount
from hoss.v1 import dispatcher_pb2 as pb
from hossctl.dashboard.nodes import NodeTable
from hossctl.dashboard.snapshot import worker_row
from hossctl.views.history import of_many

PAGE_ROWS = 100
_NODE_STATES = ("cordoned", "quarantined", "shrunk", "open")

Filters = Mapping[str, str]  # of a request: the part of the address after "?"


async def list_jobs(client: DispatcherClient, filters: Filters) -> dict[str, Any]:
    """By `namespace`, `name` (how it begins) and `page`."""
    request = pb.ListJobsRequest(
        namespace=filters.get("namespace", ""),
        name_prefix=filters.get("name", ""),
        limit=PAGE_ROWS,
        page_token=filters.get("page", ""),
    )
    reply = await client.jobs_page(request)
    return {"rows": [_job(job) for job in reply.jobs], "next": reply.next_page_token}


async def list_pods(client: DispatcherClient, filters: Filters) -> dict[str, Any]:
    """By `namespace`, `name` (whole), `job`, `phase`, `node`, `labels` and `page`. Raises InvalidInput."""
    phase = filters.get("phase", "").upper()
    if phase and phase not in pb.PodPhase.keys():  # noqa: SIM118 - an enum of protobuf is no mapping
        raise InvalidInput(f"{quoted(phase)} is no phase", where="phase")
    request = pb.ListPodsRequest(
        namespace=filters.get("namespace", ""),
        name=filters.get("name", ""),
        job=filters.get("job", ""),
        phases=[phase] if phase else [],
        node=filters.get("node", ""),
        label_selector=filters.get("labels", ""),
        limit=PAGE_ROWS,
        page_token=filters.get("page", ""),
        templates=True,
        unplaceable=True,
    )
    reply = await client.pods_page(request)
    return {"rows": [_pod(pod) for pod in reply.pods], "next": reply.next_page_token}


async def list_tenants(client: DispatcherClient) -> dict[str, Any]:
    """All tenants that have pods."""
    return {"rows": [_tenant(tenant) for tenant in await client.list_tenants()], "next": ""}


def list_nodes(table: NodeTable, filters: Filters) -> dict[str, Any]:
    """By `name` (a part of it), `labels` (one, KEY=VALUE or KEY), `state` and `page`; the fullest first with
    `sort=full`. Raises InvalidInput."""
    state, sort = filters.get("state", ""), filters.get("sort", "")
    if state and state not in _NODE_STATES:
        raise InvalidInput(f"{quoted(state)} is none of {', '.join(_NODE_STATES)}", where="state")
    start = whole_number(filters.get("page", "") or "0")
    if start is None:
        raise InvalidInput("is no number", where="page")
    names = table.names_with(filters.get("name", ""), filters.get("labels", ""), state)
    if sort == "full":
        names.sort(key=lambda name: (-table.fullness(name), name))
    page = names[start : start + PAGE_ROWS]
    following = start + PAGE_ROWS
    return {
        "rows": [table.node(name) for name in page],
        "next": str(following) if following < len(names) else "",
        "total": len(names),
    }


async def show_job(client: DispatcherClient, namespace: str, name: str) -> dict[str, Any]:
    """One job with the transitions of its pods. Raises NotFound."""
    request = pb.ListJobsRequest(namespace=namespace, name=name, steps=True, limit=1)
    jobs = (await client.jobs_page(request)).jobs
    if not jobs:
        raise NotFound(f"there is no job {quoted(f'{namespace}/{name}')}")
    steps = [
        {
            "phase": (phase := pb.PodPhase.Name(step.phase).capitalize()),
            "text": of_many({"phase": phase, "event": step.event}),
            "pods": step.pods,
            "first": step.first_unix_ms,
            "last": step.last_unix_ms,
        }
        for step in jobs[0].steps
    ]
    return {**_job(jobs[0]), "steps": steps}


async def show_worker(client: DispatcherClient, name: str) -> dict[str, Any]:
    """One worker with its latest transitions, and with whom it is in conflict. Raises NotFound."""
    found = next((worker for worker in await client.list_workers(steps=True) if worker.name == name), None)
    if found is None:
        raise NotFound(f"there is no worker {quoted(name)}")
    conflicts = (await client.conflicts()).pairs
    return {
        **worker_row(found),
        "state": found.state,  # `since` is about this one; why it fails stands by itself
        "epoch": found.epoch,
        "since": found.state_since_unix_ms,
        "microsPerPod": round(found.micros_per_pod, 1),
        "proposed": found.proposed,
        "returned": found.returned,
        "lastSeenMs": found.last_seen_ms_ago,
        "distrustedUntil": found.distrusted_until_unix_ms,
        "profile": found.profile,
        "failing": found.failing,
        "steps": [
            {"at": step.at_unix_ms, "state": step.state, "text": step.text} for step in reversed(found.steps)
        ],
        "lost": [_pair(pair, pair.winner) for pair in conflicts if pair.loser == name],
        "won": [_pair(pair, pair.loser) for pair in conflicts if pair.winner == name],
    }


def _pair(pair: pb.ConflictPair, other: str) -> dict[str, Any]:
    return {"worker": other, "reason": pair.reason, "pods": pair.pods}


def _job(job: pb.JobInfo) -> dict[str, Any]:
    return {
        "namespace": job.namespace,
        "name": job.name,
        "kind": job.kind or "Pods",
        "replicas": job.replicas,
        "bound": job.bound,
        "queued": job.queued,
        "unschedulable": job.unschedulable,
        "failed": job.failed,
        "deleted": job.deleted,
        "submitted": job.submitted_unix_ms,
        "gang": job.gang,
        "minAvailable": job.min_available,
    }


def _pod(pod: pb.PodInfo) -> dict[str, Any]:
    return {
        "namespace": pod.namespace,
        "name": pod.name,
        "job": pod.job,
        "phase": pb.PodPhase.Name(pod.phase).capitalize(),
        "node": pod.node or pod.nominated_node,
        "worker": pod.worker,
        "since": pod.phase_since_unix_ms,
        "attempts": pod.attempts,
        "reason": pod.reason,
        "requests": {
            amount.resource: written_amount(amount.resource, amount.amount)
            for amount in pod.template.spec.requests
        },
    }


def _tenant(tenant: pb.TenantInfo) -> dict[str, Any]:
    return {
        "name": tenant.name,
        "weight": tenant.weight,
        "share": round(tenant.share, 4),
        "resource": tenant.resource,
        "queued": tenant.queued,
        "scheduling": tenant.scheduling,
        "bound": tenant.bound,
        "unschedulable": tenant.unschedulable,
    }
