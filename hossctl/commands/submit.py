"""submit: manifests in."""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from hoss.errors import AccessDenied, InvalidInput, Overloaded
from hossctl.cli import EXIT_FAILED, run_async
from hossctl.console import Document, Format, print_document, say, warn
from hossctl.endpoints import Endpoints, dispatcher_of, resolver_of
from hossctl.options import Dispatcher, Output, Resolver, read_input

if TYPE_CHECKING:
    from hoss.client.dispatcher import DispatcherClient
    from hoss.model.cluster import ClusterObject
    from hoss.model.pod import Workload
    from hossctl.load.runner import Tracker


app = typer.Typer()


@app.command()
def submit(
    *,
    file: Annotated[
        list[str], typer.Option("-f", "--file", metavar="FILE", help="YAML or JSON manifests; - is stdin.")
    ],
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until every pod is bound or cannot be; exit 1 if any cannot.")
    ] = False,
    request_id: Annotated[str, typer.Option(help="Submitting again under the same id is harmless.")] = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything and send nothing; needs no platform.")
    ] = False,
    dispatcher: Dispatcher = "",
    resolver: Resolver = "",
    output: Output = Format.TABLE,
) -> None:
    """Submit manifests of Pod, Job (Volcano's too), Deployment, ReplicaSet, StatefulSet, PodGroup and List;
    and of objects that scheduling rules refer to: Node, Namespace, Service, PodDisruptionBudget,
    PriorityClass. Nothing is sent unless every manifest is valid."""
    from hoss.client.dispatcher import submission
    from hossctl.load import runner
    from hossctl.load.nodes import register
    from hossctl.load.progress import placing

    manifests = [read_input(name) for name in file]
    for warning in (warning for manifest in manifests for warning in manifest.warnings):
        warn(warning)
    workloads = [workload for manifest in manifests for workload in manifest.workloads]
    nodes = [node for manifest in manifests for node in manifest.nodes]
    objects = [item for manifest in manifests for item in manifest.objects]
    if not (workloads or nodes or objects):
        raise InvalidInput("there is nothing to submit in it", where=", ".join(file))
    _check_names(workloads)
    _check_objects(objects)
    requests = list(submission(workloads, request_id or None))
    if dry_run:
        _say_checked(len(nodes), runner.pods_of(requests), workloads, objects, output)
        return
    endpoints = Endpoints(dispatcher, resolver)

    async def run() -> Document:
        if nodes:
            async with resolver_of(endpoints) as ledger:
                await register(ledger, nodes)
        result: Document = {
            "nodes": len(nodes),
            "pods": runner.pods_of(requests),
            "workloads": _summary(workloads),
        }
        async with dispatcher_of(endpoints) as client:
            client.on_full = _say_full
            result["objects"] = await _apply(client, objects)  # before the pods, which are placed by them
            await _warn_of_missing_objects(client, workloads)
            if wait:
                with placing("placing", result["pods"], quiet=not output.for_people) as progress:
                    result |= _outcome(await runner.place(client, requests, progress=progress))
            else:
                for request in requests:
                    await client.submit(request)
        return result

    result = run_async(run())
    if output.for_people:
        _say_result(result)
    else:
        print_document(result, output)
    if wait and result["bound"] < result["pods"]:
        raise typer.Exit(EXIT_FAILED)


def _say_checked(
    nodes: int, pods: int, workloads: "Sequence[Workload]", objects: "Sequence[ClusterObject]", output: Format
) -> None:
    """What would be submitted."""
    from hoss.model.cluster import key_of

    found: Document = {
        "dryRun": True,
        "nodes": nodes,
        "pods": pods,
        "workloads": _summary(workloads),
        "objects": [{"object": str(key_of(item)), "result": "valid"} for item in objects],
    }
    if output.for_people:
        _say_result(found, done="valid")
        say("dry run: nothing was sent")
    else:
        print_document(found, output)


async def _apply(client: "DispatcherClient", objects: "Sequence[ClusterObject]") -> list[Document]:
    from hoss.model.cluster import key_of

    results = await client.apply_objects(objects) if objects else []
    return [
        {"object": str(key_of(item)), "result": result} for item, result in zip(objects, results, strict=True)
    ]


async def _warn_of_missing_objects(client: "DispatcherClient", workloads: "Sequence[Workload]") -> None:
    from hossctl.views.cluster_objects import missing_objects, refers_to_objects

    if not refers_to_objects(workloads):
        return
    try:
        objects = await client.list_objects()
    except AccessDenied:  # a tenant's client may not list them
        return
    for warning in missing_objects(workloads, objects):
        warn(warning)


def _say_full(error: Overloaded) -> None:
    say(f"the dispatcher is full, trying again in {error.retry_after_seconds:.1f} s: {error}")


def _check_names(workloads: "Sequence[Workload]") -> None:
    """Names and UIDs are unique over all files; the reader has checked each file."""
    seen: set[tuple[str, str, bool]] = set()
    uids: set[str] = set()
    for workload in workloads:
        namespace = workload.template.spec.namespace
        key = (namespace, workload.name, bool(workload.template.owner_kind))
        if key in seen:
            raise InvalidInput(
                "is in the files twice; names are unique in a namespace",
                where=f"{namespace}/{workload.name}",
            )
        if workload.uid and workload.uid in uids:
            raise InvalidInput(
                f"UID {workload.uid} is in the files twice", where=f"{namespace}/{workload.name}"
            )
        seen.add(key)
        uids.add(workload.uid)


def _check_objects(objects: "Sequence[ClusterObject]") -> None:
    """As `_check_names`, of cluster objects."""
    from hoss.model.cluster import key_of

    repeated = next((key for key, count in Counter(map(key_of, objects)).items() if count > 1), None)
    if repeated is not None:
        raise InvalidInput("is in the files twice", where=str(repeated))


def _summary(workloads: "Sequence[Workload]") -> list[Document]:
    return [
        {
            "kind": workload.template.owner_kind or "Pod",
            "namespace": workload.template.spec.namespace,
            "name": workload.name,
            "replicas": workload.replicas,
        }
        for workload in workloads
    ]


def _outcome(tracker: "Tracker") -> Document:
    from hoss.v1 import dispatcher_pb2 as pb

    return {
        "bound": tracker.count(pb.BOUND),
        "unschedulable": tracker.count(pb.UNSCHEDULABLE),
        "failed": tracker.count(pb.FAILED),
        "reasons": dict(tracker.reasons() + tracker.reasons(pb.FAILED)),
    }


def _say_result(result: Document, done: str = "submitted") -> None:
    for applied in result["objects"]:
        say(f"{applied['object']} {applied['result']}")
    for workload in result["workloads"][:20]:
        say(f"{workload['kind'].lower()}/{workload['name']} {done} ({workload['replicas']} pods)")
    if len(result["workloads"]) > 20:
        say(f"... and {len(result['workloads']) - 20} more; {result['pods']:,} pods in all")
    if result["nodes"]:
        say(f"{result['nodes']} nodes {'added or changed' if done == 'submitted' else done}")
    if "bound" in result:
        say(f"{result['bound']:,} of {result['pods']:,} pods bound")
        for reason, count in result["reasons"].items():
            say(f"  {count:,} not bound: {reason}")
