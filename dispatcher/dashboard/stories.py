"""A pod's way from submission to node, found by name, as steps that are behind it, under way, or ahead."""

from itertools import islice
from typing import Any

from dispatcher.answers import Answers
from dispatcher.core.podtable import Phase
from dispatcher.runtime import Runtime
from hoss.v1 import dispatcher_pb2 as pb

MOST_SUGGESTIONS = 8
_MOST_JOBS_LOOKED_AT = 20_000

_DONE, _NOW, _AHEAD, _FAILED = "done", "now", "ahead", "failed"
_PLACES = {pb.SCHEDULING: 2, pb.BOUND: 3}  # of the step a phase stands at; others wait in the queue


class Stories:
    """Looks pods up. Reads only."""

    def __init__(self, runtime: Runtime, answers: Answers) -> None:
        self._machine = runtime.machine
        self._answers = answers

    def find(self, asked: str) -> dict[str, Any]:
        """`asked` is a pod's name, or `namespace/name`. The pods of that name, as stories; without any, names that begin so."""
        namespace, _, name = asked.strip().rpartition("/")
        rows = [row for row in (self._row(space, name) for space in self._namespaces(namespace)) if row is not None]
        suggestions = [] if rows else self._suggestions(namespace, name)
        return {"stories": [self._story(row) for row in rows[:MOST_SUGGESTIONS]], "suggestions": suggestions}

    def _namespaces(self, asked: str) -> list[str]:
        return [asked] if asked else sorted(self._machine.objects.namespaces)

    def _row(self, namespace: str, name: str) -> int | None:
        row = self._machine.registry.directory.row_of_name(namespace, name)
        return row if row is not None and self._machine.registry.pods.phase[row] != Phase.ABSENT else None

    def _suggestions(self, namespace: str, begin: str) -> list[str]:
        jobs = (
            job
            for job in islice(self._machine.registry.directory.jobs(), _MOST_JOBS_LOOKED_AT)
            if job.submission.durable and namespace in {"", job.namespace} and job.name.startswith(begin)
        )
        return [f"{job.namespace}/{job.pod_name(job.first)}" for job in islice(jobs, MOST_SUGGESTIONS)]

    def _story(self, row: int) -> dict[str, Any]:
        pod = self._answers.pod(row, detail=True)
        return {
            "namespace": pod.namespace,
            "name": pod.name,
            "phase": pb.PodPhase.Name(pod.phase).capitalize(),
            "since": pod.phase_since_unix_ms,
            "reason": pod.reason,
            "attempts": pod.attempts,
            "steps": _steps(pod, self._answers.queue_standing(row)),
            "faults": [{"at": f.at_unix_ms, "text": f"{f.worker}: {f.text}"} for f in pod.faults],
        }


def _steps(pod: pb.PodInfo, standing: pb.QueueStanding | None) -> list[dict[str, Any]]:
    """Submitted, queue, worker, node; `at` in Unix milliseconds, 0 where it is not known."""
    place = _PLACES.get(pod.phase, 1)
    states = [_DONE] * place + [_DONE if pod.phase == pb.BOUND else _NOW] + [_AHEAD] * (3 - place)
    if pod.phase in (pb.FAILED, pb.DELETED):
        states = [_DONE, _DONE, _FAILED, _AHEAD]
    tried = f"tried {pod.attempts} times" if pod.attempts > 1 else "tried once" if pod.attempts else ""
    job = f"{pod.template.owner_kind or 'job'} {pod.job}" if pod.job else "a pod of its own"
    queue = " ".join(filter(None, [standing.name, standing.behind])) if standing else ""
    texts = [
        job,
        queue or (f"rule {pod.rule}" if pod.rule else "any worker may have it"),
        ", ".join(filter(None, [pod.worker, tried])) or "none yet",
        pod.node or (f"{pod.nominated_node}, once its victims have left" if pod.nominated_node else "none yet"),
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
