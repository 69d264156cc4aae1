"""How pods, jobs and workers came where they are, told from what the machine has noted. Reads only."""

from dispatcher.core.membership import Worker
from dispatcher.core.podsets import PodSet
from dispatcher.nodes import NodeNames
from dispatcher.runtime import Runtime
from hoss.v1 import dispatcher_pb2 as pb
from hoss.wire.columns import NONE_U16, NONE_U32


class Stories:
    """Fills in what replies have of it."""

    def __init__(self, runtime: Runtime, names: NodeNames) -> None:
        self._runtime = runtime
        self._machine = runtime.machine
        self._journeys = runtime.machine.registry.journeys
        self._names = names

    def tell_pod(self, row: int, info: pb.PodInfo) -> None:
        """Every move of the pod in a row that is known."""
        after = self._machine.registry.set_of(row).submission.first_step
        for told in self._journeys.of(row, after):
            info.steps.add(
                at_unix_ms=told.at_ms,
                phase=pb.PodPhase.Name(told.phase),
                event=told.event,
                worker="" if told.worker == NONE_U16 else self._machine.members.numbered(told.worker).name,
                node="" if told.node == NONE_U32 else self._names.get(told.node),
                reason=told.reason,
            )
        info.steps_since_unix_ms = self._since_unix_ms

    def tell_job(self, job: PodSet, info: pb.JobInfo) -> None:
        """What its pods went through, as far as that is known."""
        passages = self._journeys.passages(job.rows, job.submission.first_step)
        for (phase, event), passage in passages.items():
            info.steps.add(
                phase=pb.PodPhase.Name(phase),
                event=event,
                pods=passage.pods,
                first_unix_ms=passage.first_ms,
                last_unix_ms=passage.last_ms,
            )
        info.steps_since_unix_ms = self._since_unix_ms

    def tell_worker(self, worker: Worker, info: pb.WorkerInfo) -> None:
        """What happened to it of late."""
        for step in worker.steps:
            info.steps.add(
                at_unix_ms=self._machine.unix_ms(step.at), state=step.state.value, epoch=step.epoch, text=step.text
            )

    @property
    def _since_unix_ms(self) -> int:
        """What happened to pods later than that is all known: nothing is handed over from one dispatcher to the next."""
        return max(self._machine.unix_ms(self._runtime.started_at), self._journeys.forgotten_ms)
