"""Whether the ledger says of pods what the API server says."""

import asyncio
import os
from collections import Counter
from pathlib import Path
from typing import Any

from e2e.cluster import Cluster
from e2e.kubernetes.api import Api
from fork_server import FORK_SERVER
from waiting import DEADLINE_SECONDS, wait_until

from hoss.client.resolver import ResolverClient
from hoss.wire.columns import U32, decode, decode_uids
from hoss.wire.uids import uid_text


def assigned(api: Api) -> dict[str, str]:
    """Nodes by UID, of the pods that take room."""
    pods = api("GET", "/api/v1/pods")["items"]
    there = [
        p
        for p in pods
        if p["spec"].get("nodeName") and p["status"].get("phase") not in ("Succeeded", "Failed")
    ]
    return {pod["metadata"]["uid"]: pod["spec"]["nodeName"] for pod in there}


def reserved(cluster: Cluster) -> dict[str, str]:
    """Nodes by UID, of what the ledger holds."""
    return asyncio.run(_reserved(cluster.endpoints.resolver_addresses()))


async def _reserved(addresses: list[str]) -> dict[str, str]:
    client = ResolverClient(addresses)
    found: dict[str, str] = {}
    names: dict[int, str] = {}
    try:
        async for chunk in client.reservations():
            names.update((named.index, named.name) for named in chunk.node_names)
            nodes: Any = decode(chunk.nodes, U32, name="nodes")
            uids = decode_uids(chunk.uids)
            found.update((uid_text(u.tobytes()), names[int(n)]) for u, n in zip(uids, nodes, strict=True))
    finally:
        await client.close()
    return found


# Pods with the label `for` go to the workers with the same one.
_POLICY = """\
apiVersion: hoss.dev/v1alpha1
kind: SchedulingPolicy
rules:
  - {name: deaf, match: {labels: {matchLabels: {for: deaf}}}, workers: {matchLabels: {for: deaf}}}
  - {name: others, workers: {matchExpressions: [{key: for, operator: DoesNotExist}]}}
"""
FOR_DEAF = {"labels": {"for": "deaf"}}


def start_deaf_worker(cluster: Cluster, directory: Path) -> None:
    """A worker that is told of no placement of others before the ledger refuses it something, or it has its
    first pod with names that only one pod may have. It gets the pods with the metadata FOR_DEAF and no
    others. It knows the nodes that HOSS knows now."""
    policy = directory / "deaf.yaml"
    policy.write_text(_POLICY)
    run_hoss(cluster, "policy", "set", "-f", str(policy))
    cluster.start_worker("deaf", "for=deaf", options=("--sync", "refusal", "--pull-interval-ms", "1000"))


def counted(cluster: Cluster, counter: str) -> int:
    """One of the resolver's counters."""
    return asyncio.run(_counted(cluster.address("resolver"), counter))


async def _counted(address: str, counter: str) -> int:
    client = ResolverClient([address])
    try:
        return int((await client.status()).counters.get(counter, 0))
    finally:
        await client.close()


def requested(cluster: Cluster, node: str) -> dict[str, int]:
    """What the ledger has as requested on a node, in schema units; nothing on one that it has not (yet)."""
    return asyncio.run(_requested(cluster.address("resolver"), node))


async def _requested(address: str, node: str) -> dict[str, int]:
    client = ResolverClient([address])
    try:
        found = await client.list_nodes([node])
    finally:
        await client.close()
    return {amount.resource: amount.amount for info in found for amount in info.requested}


def overcommitted(api: Api) -> dict[str, int]:
    """Thousandths of a core by which pods on a node ask for more than it has."""
    used: Counter[str] = Counter()
    for pod in api("GET", "/api/v1/pods")["items"]:
        for container in pod["spec"]["containers"]:
            used[pod["spec"].get("nodeName", "")] += _milli(container["resources"]["requests"]["cpu"])
    offered = {
        n["metadata"]["name"]: _milli(n["status"]["allocatable"]["cpu"])
        for n in api("GET", "/api/v1/nodes")["items"]
    }
    return {name: used[name] - milli for name, milli in offered.items() if used[name] > milli}


def _milli(cpu: str) -> int:
    return int(cpu[:-1]) if cpu.endswith("m") else int(cpu) * 1000


def run_hoss(cluster: Cluster, *arguments: str) -> str:
    """What a command says about this platform, on whichever stream."""
    where = {"HOSS_DISPATCHER": cluster.endpoints.dispatcher, "HOSS_RESOLVER": cluster.endpoints.resolver}
    environment = {**os.environ, **where, "COLUMNS": "200"}
    done = FORK_SERVER.run("hossctl", arguments, env=environment, timeout=DEADLINE_SECONDS)
    return done.stdout + done.stderr


def await_placed(api: Api, cluster: Cluster, pods: int) -> None:
    """So many pods are on nodes, for the API server and for the ledger."""
    wait_until(lambda: len(assigned(api)) == pods, "they are bound")
    wait_until(lambda: reserved(cluster) == assigned(api), "the ledger says what the API server says")
    assert "clean" in run_hoss(cluster, "audit")
