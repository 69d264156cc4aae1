"""`hoss demo`: what HOSS is for. Two schedulers race for the same nodes without the ledger, and with it. Then
a whole cluster places a mixed load, loses a worker meanwhile, is audited, loses a job, and is audited
again."""

import tempfile
from dataclasses import dataclass
from pathlib import Path

from hoss.client.dispatcher import submission
from hoss.errors import counted
from hossctl import auditing
from hossctl.console import Document, announced
from hossctl.endpoints import Clients
from hossctl.load import report
from hossctl.load.generated import mixed
from hossctl.load.nodes import simulated_nodes
from hossctl.load.progress import counting, placing
from hossctl.load.race import NODES, PODS, Race, race
from hossctl.load.report import Usage
from hossctl.load.runner import Tracker
from hossctl.local.platform import PlatformOptions
from hossctl.local.platform_state import PlatformState, WorkerOptions

# Accelerators first: pods that request cards go to the worker for accelerators, whatever their owner.
POLICY = """\
apiVersion: hoss.dev/v1alpha1
kind: SchedulingPolicy
rules:
  - name: accelerators
    match: { resources: [nvidia.com/gpu, hoss.dev/gpu-milli] }
    workers: { matchLabels: { accelerator: gpu } }
    fallback: AnyWorker
  - name: services
    match: { ownerKinds: [Deployment, ReplicaSet, StatefulSet] }
    workers: { matchLabels: { tier: service } }
    fallback: AnyWorker
  - name: everything-else
    workers: { matchLabels: { tier: batch } }
    balance: { algorithm: PowerOfTwoChoices }
    fallback: AnyWorker
"""
_ALONE, _WITH_HOSS = "on their own", "with HOSS"
# What people are told of the resources in use.
_FILLED = {"cpu": "CPU", "memory": "memory", report.CARDS: "GPU cards"}
_LABELS = (("tier", "batch"), ("tier", "service"), ("accelerator", "gpu"), ("tier", "batch"))


@dataclass(frozen=True, slots=True)
class DemoResult:
    """The figures of the demo."""

    races: tuple[Race, Race]  # without the ledger, and with it
    killed_worker: str  # "" where there was only one
    placement: report.Placement
    used: Usage
    used_after: Usage
    audit: auditing.AuditResult
    audit_after: auditing.AuditResult
    deleted_job: str
    deleted_pods: int

    @property
    def late_bound(self) -> int:
        """Pods that had to wait and were bound after the job was deleted."""
        return self.audit_after.bound - (self.placement.bound - self.deleted_pods)

    @property
    def failures(self) -> list[str]:
        """Why the demo has not passed; empty when it has."""
        failures = []
        if self.races[1].oversold_nodes:
            failures.append("the race through the ledger oversold nodes")
        if self.placement.unaccounted:
            failures.append(f"{self.placement.unaccounted} pods are in no final state")
        if self.placement.bound != self.audit.bound:
            failures.append(f"{self.placement.bound} pods were reported bound, {self.audit.bound} are")
        for when, audit in (("before", self.audit), ("after", self.audit_after)):
            if audit.exit_code:
                failures.append(f"the audit {when} the deletion: {audit.verdict}")
        if self.used.overcommitted or self.used_after.overcommitted:
            failures.append("nodes are overcommitted")
        if self.late_bound < 0 or self.used_after.requested.get("pods", 0) != self.audit_after.bound:
            failures.append("the accounts after the deletion are not those of the pods that stay")
        return failures

    def sections(self) -> list[tuple[str, list[tuple[str, object]]]]:
        """What people read: a title, and names and values below it, for each part of the demo."""
        nodes = counted(self.used.nodes, "node")
        pods = counted(self.placement.pods, "pod")
        workers = counted(len(self.placement.bound_by_worker), "scheduler")
        return [
            (f"1. Two schedulers race: {PODS:,} pods for {NODES} nodes with room for all", self._race()),
            (f"2. A cluster of {nodes} places {pods} with {workers}", self._cluster()),
            ("3. What is promised is checked on the running cluster", self._promises()),
        ]

    def _race(self) -> list[tuple[str, object]]:
        alone, together = self.races
        return [(_ALONE, alone.line()), (_WITH_HOSS, together.line())]

    def _cluster(self) -> list[tuple[str, object]]:
        placed = self.placement
        rate = f"{placed.seconds:.1f} s, {placed.pods_per_second:,.0f} a second"
        lines: list[tuple[str, object]] = [("placed", f"{counted(placed.bound, 'pod')} in {rate}")]
        if self.killed_worker:
            when = f"scheduler {self.killed_worker} after a third of the pods, as by a crash"
            lines.append(("killed", f"{when}; the others got its pods"))
        if placed.conflicts:
            lines.append(("refused", f"{counted(placed.conflicts, 'placement')}, and tried again"))
        lines += [("waits", f"{counted(count, 'pod')}: {reason}") for reason, count in placed.reasons.items()]
        filled = ", ".join(
            f"{_FILLED[name]} {used:.0%}" for name, used in self.used.shares().items() if name in _FILLED
        )
        return [
            *lines,
            ("filled", filled or "nothing"),
            ("oversold", f"{len(self.used.overcommitted):,} of {counted(self.used.nodes, 'node')}"),
            *(("", text) for text in self.used.overcommitted[:5]),
        ]

    def _promises(self) -> list[tuple[str, object]]:
        freed = f"job {self.deleted_job}: {counted(self.deleted_pods, 'pod')} gave back their room"
        if self.late_bound > 0:
            freed += f", and {counted(self.late_bound, 'pod')} that waited got some"
        return [
            *report.audit_lines(self.audit),
            ("deleted", freed),
            ("audit again", self.audit_after.verdict),
            ("result", "; ".join(self.failures) or "every pod is accounted for, and every promise was kept"),
        ]

    def as_json(self) -> Document:
        unchecked, checked = self.races
        return {
            "race": {"withoutLedger": unchecked.as_json(), "withLedger": checked.as_json()},
            "killedWorker": self.killed_worker,
            "placement": self.placement.as_json(),
            "usage": report.usage_json(self.used),
            "audit": report.audit_json(self.audit),
            "deletion": {
                "job": self.deleted_job,
                "pods": self.deleted_pods,
                "boundAfterwards": self.late_bound,
                "usage": report.usage_json(self.used_after),
                "audit": report.audit_json(self.audit_after),
            },
            "failures": self.failures,
        }


def run(*, nodes: int, pods: int, workers: int, redis_url: str, seed: int, quiet: bool) -> DemoResult:
    """Run the demo on a platform of its own. Raises HossError when it cannot go on."""
    pool = simulated_nodes(nodes, seed=seed)
    requests = list(submission(mixed(pods, pool, seed=seed)))
    with counting("races", 2, quiet=quiet) as raced:
        races = []
        for checked in (False, True):
            races.append(race(checked=checked, redis_url=redis_url, seed=seed))
            raced(1)

    async def demo(clients: Clients, state: PlatformState) -> DemoResult:
        with counting("nodes", len(pool), quiet=quiet) as registered:
            await report.prepare(clients, pool, workers, registered)
        killer = _Killer(state, pods) if workers > 1 else None
        with placing("pods", pods, quiet=quiet) as progress:

            def followed(tracker: Tracker) -> None:
                progress(tracker)
                if killer is not None:
                    killer.look(tracker)

            placement = await report.place(clients, requests, followed)
        used = await report.usage(clients)
        with announced("auditing"):
            audit = await auditing.audit(clients.dispatcher, clients.resolver)
            job, deleted = await _delete_a_job(clients)
            audit_after = await auditing.audit(clients.dispatcher, clients.resolver)
        used_after = await report.usage(clients)
        killed = killer.killed if killer else ""
        return DemoResult(
            (races[0], races[1]), killed, placement, used, used_after, audit, audit_after, job, deleted
        )

    with tempfile.TemporaryDirectory(prefix="hoss-demo-") as directory:
        policy = Path(directory) / "policy.yaml"
        policy.write_text(POLICY, encoding="utf-8")
        with report.platform(_options(workers, redis_url, seed, policy)) as starter:
            return report.run_on(starter.state, lambda clients: demo(clients, starter.state))


class _Killer:
    """Kills the last worker as a crash would, once a third of the pods is settled."""

    def __init__(self, state: PlatformState, pods: int) -> None:
        self.killed = ""
        self._worker = state.workers[-1]
        self._record = state.process_of(self._worker)
        self._after = pods // 3

    def look(self, tracker: Tracker) -> None:
        if self.killed or tracker.settled < self._after or self._record is None:
            return
        process = self._record.find()
        if process is not None:
            process.kill()
            self.killed = self._worker.name


def _options(workers: int, redis_url: str, seed: int, policy: Path) -> PlatformOptions:
    # Labels repeat, so that any number of workers has some of each kind.
    named = tuple(WorkerOptions(f"w{i + 1}", (_LABELS[i % len(_LABELS)],)) for i in range(workers))
    return PlatformOptions(workers=named, redis_url=redis_url, policy=policy, seed=seed)


async def _delete_a_job(clients: Clients) -> tuple[str, int]:
    """Delete the job with the most bound pods; its name and the number of its bound pods."""
    job = max(await clients.dispatcher.list_jobs(), key=lambda job: job.bound, default=None)
    if job is None:
        return "", 0
    await clients.dispatcher.delete(job.namespace, jobs=[job.name])
    return job.name, job.bound
