"""submit: manifests in."""

import contextlib
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from hoss.errors import AccessDenied, InvalidInput, Overloaded, TransportError, counted
from hossctl.cli import EXIT_FAILED, run_async
from hossctl.console import (
    Document,
    Format,
    announced,
    complain,
    on_interrupt,
    print_document,
    say,
    warn,
)
from hossctl.endpoints import Endpoints, dispatcher_of, resolver_of
from hossctl.options import Dispatcher, Output, Resolver, read_input

if TYPE_CHECKING:
    from hoss.client.dispatcher import DispatcherClient
    from hoss.model.cluster import ClusterObject
    from hoss.model.node import NodeSpec
    from hoss.model.pod import Workload
    from hossctl.load.dry_run import SubmissionDryRun
    from hossctl.load.runner import Tracker

    _Given = tuple[list[Workload], list[NodeSpec], list[ClusterObject]]


_MOST_TOLD = 20  # workloads

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
        bool,
        typer.Option(
            "--dry-run", help="Check everything, look names up where a platform is known, and change nothing."
        ),
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

    given = workloads, nodes, objects = _read(file)
    requests = list(submission(workloads, request_id or None))
    endpoints = Endpoints(dispatcher, resolver)
    if dry_run:
        _check(endpoints, given, request_id, output)
        return

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
                with announced("submitting"):
                    for request in requests:
                        await client.submit(request)
        return result

    with on_interrupt(
        "what was submitted before stays so: `hoss get jobs` lists it, and `hoss delete job` takes it back"
    ):
        result = run_async(run())
    if output.for_people:
        _say_result(result)
    else:
        print_document(result, output)
    if wait and result["bound"] < result["pods"]:
        raise typer.Exit(EXIT_FAILED)


def _read(files: list[str]) -> "_Given":
    """What the files hold, with a warning for what is passed over. Raises InvalidInput."""
    manifests = [read_input(name) for name in files]
    for warning in (warning for manifest in manifests for warning in manifest.warnings):
        warn(warning)
    workloads = [workload for manifest in manifests for workload in manifest.workloads]
    nodes = [node for manifest in manifests for node in manifest.nodes]
    objects = [item for manifest in manifests for item in manifest.objects]
    if not (workloads or nodes or objects):
        raise InvalidInput("there is nothing to submit in it", where=", ".join(files))
    _check_names(workloads)
    _check_objects(objects)
    return workloads, nodes, objects


def _check(endpoints: Endpoints, given: "_Given", request_id: str, output: Format) -> None:
    """A dry run. Exit code 1 where anything would be refused."""
    found = _checked(endpoints, given)
    if output.for_people:
        _say_checked(found, request_id)
    else:
        print_document(found, output)
    if any("refused" in workload for workload in found["workloads"]):
        raise typer.Exit(EXIT_FAILED)


def _checked(endpoints: Endpoints, given: "_Given") -> Document:
    """What would be submitted, and what would become of it on the platform. `unchecked` says why nothing was
    looked up there."""
    from hoss.model.cluster import key_of

    workloads, nodes, objects = given
    found: Document = {
        "dryRun": True,
        "nodes": len(nodes),
        "pods": sum(workload.replicas for workload in workloads),
        "workloads": _summary(workloads),
        "objects": [{"object": str(key_of(item)), "result": "valid"} for item in objects],
    }
    try:
        with announced("looking names up"):
            met = run_async(_met(endpoints, given))
    except (TransportError, AccessDenied) as exc:
        return {**found, "unchecked": str(exc)}
    for workload, refusal in zip(found["workloads"], met.refusals, strict=True):
        if refusal:
            workload["refused"] = refusal
    for item, result in zip(found["objects"], met.objects, strict=True):
        item["result"] = result
    return {**found, "nodeResults": dict(Counter(met.nodes))}


async def _met(endpoints: Endpoints, given: "_Given") -> "SubmissionDryRun":
    from hossctl.load import dry_run

    workloads, nodes, objects = given
    async with contextlib.AsyncExitStack() as stack:
        client = await stack.enter_async_context(dispatcher_of(endpoints))
        ledger = await stack.enter_async_context(resolver_of(endpoints)) if nodes else None
        met = await dry_run.dry_run(client, ledger, workloads, objects, nodes)
        await _warn_of_missing_objects(client, workloads, objects)
        return met


def _say_checked(found: Document, request_id: str) -> None:
    for item in found["objects"]:
        result = item["result"]
        say(f"{item['object']} {result if result in ('valid', 'unchanged') else f'would be {result}'}")
    for workload in found["workloads"]:
        if refusal := workload.get("refused"):
            complain(
                f"{_title(workload)} would be refused: {refusal}; delete it first, or submit"
                " under another name"
            )
    _say_workloads([one for one in found["workloads"] if "refused" not in one], "valid")
    words = {"created": "would be added", "configured": "would be changed", "unchanged": "unchanged"}
    for result, count in found.get("nodeResults", {}).items():
        say(f"{counted(count, 'node')} {words[result]}")
    if "unchecked" in found:
        if found["nodes"]:
            say(f"{counted(found['nodes'], 'node')} valid")
        say(f"names were not looked up: {found['unchecked']}")
    elif request_id:
        say(
            f"what was submitted under the request id {request_id} before would be accepted, and"
            " change nothing"
        )
    say("dry run: nothing was sent")


async def _apply(client: "DispatcherClient", objects: "Sequence[ClusterObject]") -> list[Document]:
    from hoss.model.cluster import key_of

    results = await client.apply_objects(objects) if objects else []
    return [
        {"object": str(key_of(item)), "result": result} for item, result in zip(objects, results, strict=True)
    ]


async def _warn_of_missing_objects(
    client: "DispatcherClient", workloads: "Sequence[Workload]", coming: "Sequence[ClusterObject]" = ()
) -> None:
    from hossctl.views.documents.cluster_objects import missing_objects, refers_to_objects

    if not refers_to_objects(workloads):
        return
    try:
        objects = await client.list_objects()
    except AccessDenied:  # a tenant's client may not list them
        return
    for warning in missing_objects(workloads, [*objects, *coming]):
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


def _say_result(result: Document) -> None:
    for applied in result["objects"]:
        say(f"{applied['object']} {applied['result']}")
    _say_workloads(result["workloads"], "submitted")
    if result["nodes"]:
        say(f"{counted(result['nodes'], 'node')} added or changed")
    if "bound" in result:
        say(f"{result['bound']:,} of {counted(result['pods'], 'pod')} bound")
        for reason, count in result["reasons"].items():
            say(f"  {count:,} not bound: {reason}")


def _say_workloads(workloads: Sequence[Document], done: str) -> None:
    for workload in workloads[:_MOST_TOLD]:
        say(f"{_title(workload)} {done} ({counted(workload['replicas'], 'pod')})")
    if len(workloads) > _MOST_TOLD:
        pods = sum(workload["replicas"] for workload in workloads)
        say(f"... and {len(workloads) - _MOST_TOLD:,} more; {counted(pods, 'pod')} in all")


def _title(workload: Document) -> str:
    return f"{workload['kind'].lower()}/{workload['name']}"
