"""The clients of a platform under faults: they submit, delete and ungate, and write into the history what
they sent and what they were answered. A submission without an answer is sent again under its id."""

import asyncio
import random
import time
from collections import Counter
from dataclasses import dataclass

from dispatcher.core.pods.sets import uid_prefix
from hoss.client.dispatcher import submission
from hoss.errors import HossError, InvalidInput
from hoss.model.pod import GangSpec, PodSpec, PodTemplate, Workload
from hoss.v1 import dispatcher_pb2 as pb
from hoss.wire.uids import uid_text
from hossctl.endpoints import Clients
from hossctl.history.events import Event, History

CLIENTS = 4
GATE = "hold"
_PAUSE_SECONDS = (0.02, 0.25)
_CPUS = (50, 100, 200, 400)
_REPLICAS = (1, 1, 2, 4, 8, 12)
# Of the cluster's: together the clients want most of it.
_SHARE = 0.8 / CLIENTS
_AGAIN_SECONDS = 0.3
_NAMESPACE = "default"


@dataclass
class _Job:
    """A job of a client, as it may be at present."""

    name: str
    uids: list[str]
    cpu: int  # of all its pods
    gated: bool


class Load:
    """Clients that go on until they are stopped."""

    def __init__(
        self, clients: Clients, history: History, rng: random.Random, *, name: str, cpu: int
    ) -> None:
        """`name`: begins the names of its jobs. `cpu`: milli-cores of the cluster."""
        self.answers: Counter[str] = Counter()
        self._clients = clients
        self._history = history
        self._rng = rng
        self._name = name
        self._limit = int(cpu * _SHARE)
        self._over = asyncio.Event()
        self._numbers = Counter[str]()

    async def run(self) -> None:
        """Until `stop`, and until each client knows the outcome of what it sent."""
        seeds = [self._rng.random() for _ in range(CLIENTS)]
        await asyncio.gather(*(self._one(f"c{n + 1}", random.Random(seed)) for n, seed in enumerate(seeds)))

    def stop(self) -> None:
        """Nothing more is begun."""
        self._over.set()

    async def first_bound(self, since: float) -> float:
        """Submit a pod, and wait until it is bound: the seconds since that time, of the monotonic clock."""
        while True:
            job = _Job(self._new_name("probe"), [], 10, gated=False)
            await self._submit("prober", job, replicas=1, gang=0)
            while job.uids:
                try:
                    found = await self._clients.dispatcher.list_jobs(_NAMESPACE, job.name)
                    if found and found[0].bound:
                        return time.monotonic() - since
                except HossError:
                    pass
                await asyncio.sleep(0.05)

    async def _one(self, by: str, rng: random.Random) -> None:
        """A client. Nobody else changes its jobs, so it knows in which order things were asked for."""
        jobs: list[_Job] = []
        while not self._over.is_set():
            await asyncio.sleep(rng.uniform(*_PAUSE_SECONDS))
            used = sum(job.cpu for job in jobs)
            gated = [job for job in jobs if job.gated]
            if jobs and (used > self._limit or rng.random() < 0.25):
                job = jobs.pop(rng.randrange(len(jobs)))
                await self._delete(by, job)
            elif gated and rng.random() < 0.5:
                await self._ungate(by, rng.choice(gated))
            else:
                job, replicas, gang = self._draw(rng)
                await self._submit(by, job, replicas=replicas, gang=gang)
                if job.uids:
                    jobs.append(job)
        for job in jobs:
            if job.gated:
                await self._ungate(by, job)

    def _draw(self, rng: random.Random) -> tuple[_Job, int, int]:
        replicas = rng.choice(_REPLICAS)
        gang = rng.randint(2, replicas) if replicas > 1 and rng.random() < 0.25 else 0
        job = _Job(self._new_name("job"), [], replicas * rng.choice(_CPUS), rng.random() < 0.1)
        return job, replicas, gang

    def _new_name(self, kind: str) -> str:
        self._numbers[kind] += 1
        return f"{self._name}-{kind}-{self._numbers[kind]}"

    async def _submit(self, by: str, job: _Job, *, replicas: int, gang: int) -> None:
        """Until there is an answer. The job has UIDs afterwards, or was refused."""
        cpu = job.cpu // replicas
        gates = (GATE,) if job.gated else ()
        template = PodTemplate(PodSpec(requests=(("cpu", cpu),), scheduling_gates=gates), owner_kind="Job")
        minimum = GangSpec(_NAMESPACE, job.name, gang) if gang else None
        (request,) = submission([Workload(job.name, template, replicas, gang=minimum)], job.name)
        prefix = uid_prefix(request.request_id, 0)
        uids = [uid_text(prefix + number.to_bytes(4, "big")) for number in range(replicas)]
        pods: Event = {"uids": uids, "name": job.name, "requests": {"cpu": cpu}, "gates": list(gates)}
        if gang:
            pods |= {"gang": f"{_NAMESPACE}/{job.name}", "minimum": gang}
        while True:
            self._history.append("submit", by=by, request=request.request_id, pods=[pods])
            answer = await self._asked(by, request.request_id, request)
            if answer == "acknowledged":
                job.uids = uids
            if answer != "unknown":
                return
            await asyncio.sleep(_AGAIN_SECONDS)

    async def _asked(self, by: str, request_id: str, request: pb.SubmitRequest) -> str:
        try:
            await self._clients.dispatcher.submit(request)
        except InvalidInput as exc:
            return self._answered(by, request_id, "refused", str(exc))
        except HossError as exc:
            return self._answered(by, request_id, "unknown", str(exc))
        return self._answered(by, request_id, "acknowledged")

    async def _delete(self, by: str, job: _Job) -> None:
        request_id = f"delete {job.name}"
        for repeated in range(1_000):
            self._history.append("delete", by=by, request=request_id, uids=job.uids)
            try:
                missed = (await self._clients.dispatcher.delete(_NAMESPACE, jobs=[job.name])).not_found
            except HossError as exc:
                self._answered(by, request_id, "unknown", str(exc))
                await asyncio.sleep(_AGAIN_SECONDS)
                continue
            if missed and not repeated:
                self._history.append("fault", by=by, kind="client", text=f"{job.name} is not there to delete")
            # Who asks again finds nothing where the first call has done it. Then it is done as well.
            self._answered(by, request_id, "acknowledged")
            return

    async def _ungate(self, by: str, job: _Job) -> None:
        request_id = f"ungate {job.name}"
        while True:
            self._history.append("ungate", by=by, request=request_id, uids=job.uids, gates=[GATE])
            try:
                await self._clients.dispatcher.remove_gates(_NAMESPACE, jobs=[job.name], gates=[GATE])
            except HossError as exc:
                self._answered(by, request_id, "unknown", str(exc))
                await asyncio.sleep(_AGAIN_SECONDS)
                continue
            self._answered(by, request_id, "acknowledged")
            job.gated = False
            return

    def _answered(self, by: str, request_id: str, how: str, text: str = "") -> str:
        self.answers[how] += 1
        self._history.append(how, by=by, request=request_id, **({"text": text} if text else {}))
        return how
