"""Pods as viewers find them: by name, each with its way from submission to its node."""

from typing import Any

from hoss.client.dispatcher import DispatcherClient
from hoss.errors import InvalidInput, NotFound
from hoss.v1 import dispatcher_pb2 as pb

MOST_SUGGESTIONS = 8

_DONE, _NOW, _AHEAD, _FAILED = "done", "now", "ahead", "failed"
_PLACES = {pb.SCHEDULING: 2, pb.BOUND: 3}  # the step of a phase; other phases wait in the queue, 1
_EVERY_PHASE = pb.PodPhase.keys()[1:]  # the first one is that of no pod


async def find_pods(client: DispatcherClient, text: str) -> dict[str, Any]:
    """`text` is a pod's name, or `namespace/name`. The pods of that name; without any, names with that
    prefix. Raises InvalidInput for an empty name."""
    namespace, _, name = text.strip().rpartition("/")
    if not name:
        raise InvalidInput("is empty; give a pod's name, or namespace/name", where="name")
    request = pb.ListPodsRequest(namespace=namespace, name=name, phases=_EVERY_PHASE, limit=MOST_SUGGESTIONS)
    found = [await _pod_history(client, pod) for pod in (await client.pods_page(request)).pods]
    histories = [history for history in found if history is not None]
    return {
        "stories": histories,
        "suggestions": [] if histories else await _suggestions(client, namespace, name),
    }


async def _suggestions(client: DispatcherClient, namespace: str, prefix: str) -> list[str]:
    request = pb.ListJobsRequest(namespace=namespace, name_prefix=prefix, limit=MOST_SUGGESTIONS)
    return [f"{job.namespace}/{job.name}-0" for job in (await client.jobs_page(request)).jobs]


async def _pod_history(client: DispatcherClient, listed: pb.PodInfo) -> dict[str, Any] | None:
    """None: it has gone meanwhile."""
    try:
        pod = await client.get_pod(uid=listed.uid, queue=True)
    except NotFound:
        return None
    return {
        "namespace": pod.namespace,
        "name": pod.name,
        "job": pod.job,
        "node": pod.node,
        "worker": pod.worker,
        "phase": pb.PodPhase.Name(pod.phase).capitalize(),
        "since": pod.phase_since_unix_ms,
        "reason": pod.reason,
        "attempts": pod.attempts,
        "steps": _steps(pod),
        "faults": [{"at": f.at_unix_ms, "text": f"{f.worker}: {f.text}"} for f in pod.faults],
    }


def _steps(pod: pb.PodInfo) -> list[dict[str, Any]]:
    """The steps Submitted, Queue, Worker and Node; `at` in Unix milliseconds, 0 if unknown."""
    place = _PLACES.get(pod.phase, 1)
    states = [_DONE] * place + [_DONE if pod.phase == pb.BOUND else _NOW] + [_AHEAD] * (3 - place)
    if pod.phase in (pb.FAILED, pb.DELETED):
        states = [_DONE, _DONE, _FAILED, _AHEAD]
    tried = f"tried {pod.attempts} times" if pod.attempts > 1 else "tried once" if pod.attempts else ""
    job = f"{pod.template.owner_kind or 'job'} {pod.job}" if pod.job else "a pod of its own"
    queue = " ".join(filter(None, [pod.queue.name, pod.queue.behind]))
    texts = [
        job,
        queue or (f"rule {pod.rule}" if pod.rule else "any worker may have it"),
        ", ".join(filter(None, [pod.worker, tried])) or "none yet",
        pod.node
        or (f"{pod.nominated_node}, once its victims have left" if pod.nominated_node else "none yet"),
    ]
    times = [pod.submitted_unix_ms, 0, 0, 0]
    if pod.phase in (pb.FAILED, pb.DELETED):
        times[2] = pod.phase_since_unix_ms
    elif place:
        times[place] = pod.phase_since_unix_ms
    names = ("Submitted", "Queue", "Worker", "Node")
    return [
        {"name": name, "state": state, "text": text, "at": at}
        for name, state, text, at in zip(names, states, texts, times, strict=True)
    ]
