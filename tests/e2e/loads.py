"""Loads for a platform of real processes, and what must hold once they are through."""

from collections import defaultdict

from waiting import DEADLINE_SECONDS, until

from hoss.client.dispatcher import submission
from hoss.model.cluster import key_of
from hoss.model.node import NodeSpec
from hoss.model.pod import GangSpec, PodSpec, PodTemplate, Workload
from hoss.v1 import dispatcher_pb2 as pb
from hossctl.auditing import AuditResult, audit, disagreements
from hossctl.endpoints import Clients
from hossctl.load.nodes import register

GIB = 2**30
NODES = 200

# After a pass at its start a rebalance controller with this policy plans for pods that wait before they
# preempt, and for nothing else. It is what ends their wait: ten minutes are longer than a test may last.
BEFORE_PREEMPTION = """\
apiVersion: hoss.dev/v1alpha1
kind: RebalancePolicy
goals: [{goal: fit-pending}]
passSeconds: 86400
restSeconds: 0
beforePreemption: {waitSeconds: 600}
"""


async def prepare(clients: Clients, *, workers: int, nodes: int = NODES, cpus: int = 64) -> None:
    allocatable = (("cpu", cpus * 1000), ("memory", 256 * GIB), ("pods", 250))
    await register(
        clients.resolver, [NodeSpec(f"node-{i:04d}", allocatable=allocatable) for i in range(nodes)]
    )
    await until_agreed(clients, workers)


async def until_agreed(clients: Clients, workers: int) -> None:
    """Until so many workers serve, and each knows the ledger as it is."""
    differing: list[str] = []

    async def agreed() -> bool:
        differing[:] = await disagreements(clients.dispatcher, clients.resolver, workers)
        return not differing

    await until(agreed, lambda: f"{workers} workers to agree with the ledger: {'; '.join(differing)}")


async def audited(clients: Clients) -> AuditResult:
    """What `hoss audit` finds; it waits for what is still moving."""
    return await until(lambda: audit(clients.dispatcher, clients.resolver, wait_seconds=DEADLINE_SECONDS))


async def submit(
    clients: Clients,
    *,
    jobs: int,
    replicas: int,
    name: str = "job",
    cpu_milli: int = 100,
    gang_minimum: int = 0,
) -> None:
    """Jobs of equal pods; with `gang_minimum` each is a gang that needs so many."""
    spec = PodSpec(requests=(("cpu", cpu_milli), ("memory", GIB // 8)))
    template = PodTemplate(spec, owner_kind="Job")
    names = [f"{name}-{i}" for i in range(jobs)]
    gangs = [GangSpec("default", name, gang_minimum) if gang_minimum else None for name in names]
    workloads = [Workload(n, template, replicas, gang=gang) for n, gang in zip(names, gangs, strict=True)]
    for request in submission(workloads):
        await clients.dispatcher.submit(request)


async def counts(clients: Clients) -> list[pb.JobInfo]:
    return await clients.dispatcher.list_jobs()


async def some_bound(clients: Clients, least: int) -> bool:
    return sum(job.bound for job in await counts(clients)) >= least


async def all_bound(clients: Clients, pods: int) -> bool:
    return sum(job.bound for job in await counts(clients)) == pods


async def healed(clients: Clients, reservations: int) -> bool:
    """The ledger is whole, holds so many, and nobody complains."""
    status = await clients.resolver.status()
    problems = (await clients.dispatcher.status()).problems
    return status.serving and status.reservations == reservations and not problems


async def clear(clients: Clients) -> None:
    """Leave a platform that several tests share as it was: no pods, no nodes, no objects."""
    for job in await counts(clients):
        await clients.dispatcher.delete(job.namespace, jobs=[job.name])
    left: dict[str, list[str]] = defaultdict(list)
    async for pod in clients.dispatcher.list_pods():
        left[pod.namespace].append(pod.name)
    for namespace, names in left.items():
        await clients.dispatcher.delete(namespace, pods=names)
    await clients.dispatcher.delete_objects(
        [key_of(found) for found in await clients.dispatcher.list_objects()]
    )

    async def given_back() -> bool:
        return not await counts(clients) and not (await clients.resolver.status()).reservations

    await until(given_back, "deleted pods and their reservations to go")
    await clients.resolver.remove_nodes([node.spec.name for node in await clients.resolver.list_nodes()])


async def assert_clean(clients: Clients, *, bound: int) -> None:
    result = await audited(clients)
    assert (result.findings, result.unchecked) == ([], [])
    assert result.bound == result.reservations == bound
