"""delete, retry, ungate: pods and jobs, and cluster objects, by name or by manifests."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import typer

from hoss.errors import InvalidInput, counted
from hossctl.console import Document, Format, print_document, say, warn
from hossctl.endpoints import Endpoints, ask_dispatcher
from hossctl.kinds import ALL, NAMESPACED, OBJECT_KINDS, Kind, check_found, read_kind
from hossctl.options import (
    AllNamespaces,
    Dispatcher,
    Names,
    Namespace,
    OptionalNames,
    Output,
    complete_kinds,
    read_input,
)

if TYPE_CHECKING:
    from hoss.client.dispatcher import DispatcherClient
    from hoss.model.cluster import ObjectKey


app = typer.Typer()

_PODS_OR_JOBS = complete_kinds(Kind.PODS, Kind.JOBS)


@dataclass(slots=True)
class _Named:
    """What to delete: pods and jobs by namespace, and objects by key."""

    pods: dict[str, list[str]] = field(default_factory=dict)
    jobs: dict[str, list[str]] = field(default_factory=dict)
    objects: "list[ObjectKey]" = field(default_factory=list)


@app.command()
def delete(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="[KIND]",
            help="pod, job, namespace, service, pdb or priorityclass.",
            autocompletion=complete_kinds(Kind.PODS, Kind.JOBS, *OBJECT_KINDS),
        ),
    ] = "",
    names: OptionalNames = None,
    *,
    file: Annotated[
        list[str],
        typer.Option(
            "-f", "--file", metavar="FILE", help="Delete the objects of these manifests; - is stdin."
        ),
    ] = [],  # noqa: B006 - typer's way to say none
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be deleted.")] = False,
    namespace: Namespace = "default",
    dispatcher: Dispatcher = "",
    output: Output = Format.TABLE,
) -> None:
    """Delete pods, whole jobs, or objects such as namespaces. Queued pods leave the queue, bound ones give
    back what they held. Deleting a namespace takes its labels and none of its pods."""
    if bool(file) == bool(kind):
        raise InvalidInput("is missing; give it, or KIND and NAME, and not both", where="-f")
    if kind and not names:
        raise InvalidInput(f"is missing; write hoss delete {kind} NAME", where="NAME")
    named = _by_manifest(file) if file else _by_name(kind, names or [], namespace)

    act = _would_delete if dry_run else _delete
    result = ask_dispatcher(Endpoints(dispatcher), lambda client: act(client, named))
    if output.for_people:
        for text in result["deletedObjects"]:
            say(f"{text} {'would be ' if dry_run else ''}deleted")
        if named.pods or named.jobs:
            say(f"{'would delete' if dry_run else 'deleted'} {counted(result['deletedPods'], 'pod')}")
    else:
        print_document(result, output)
    listed = read_kind(kind) if kind else Kind.PODS
    check_found(result["notFound"], namespace if kind else "", listed)


def _by_name(kind: str, names: list[str], namespace: str) -> _Named:
    which = read_kind(kind, Kind.PODS, Kind.JOBS, *OBJECT_KINDS)
    if which in OBJECT_KINDS:
        from hoss.model.cluster import ObjectKey

        place = namespace if which in NAMESPACED else ""
        return _Named(objects=[ObjectKey(OBJECT_KINDS[which], place, name) for name in names])
    return _Named(jobs={namespace: names}) if which is Kind.JOBS else _Named(pods={namespace: names})


def _by_manifest(files: Sequence[str]) -> _Named:
    """What manifests name. Raises InvalidInput where that is nothing."""
    from hoss.model.cluster import key_of

    named, nodes = _Named(), 0
    for manifest in map(read_input, files):
        nodes += len(manifest.nodes)
        for workload in manifest.workloads:
            owned = workload.replicas > 1 or workload.template.owner_kind
            place = (named.jobs if owned else named.pods).setdefault(workload.template.spec.namespace, [])
            place.append(workload.name)
        named.objects += map(key_of, manifest.objects)
        for node in manifest.nodes:
            warn(f"node {node.name} stays; `hoss nodes remove {node.name}` removes it")
    if not (named.pods or named.jobs or named.objects or nodes):
        raise InvalidInput("there is nothing to delete in it", where=", ".join(files))
    return named


async def _delete(client: "DispatcherClient", named: _Named) -> Document:
    deleted = 0
    not_found: list[str] = []
    for namespace in dict.fromkeys((*named.pods, *named.jobs)):
        reply = await client.delete(
            namespace, pods=named.pods.get(namespace, ()), jobs=named.jobs.get(namespace, ())
        )
        deleted += reply.deleted_pods
        not_found += reply.not_found
    missing = await client.delete_objects(named.objects) if named.objects else []
    return {
        "deletedPods": deleted,
        "deletedObjects": [str(key) for key in named.objects if key not in missing],
        "notFound": [*not_found, *map(str, missing)],
    }


async def _would_delete(client: "DispatcherClient", named: _Named) -> Document:
    """As `_delete`, with nothing deleted."""
    from hoss.model.cluster import key_of

    deleted = 0
    not_found: list[str] = []
    for namespace in dict.fromkeys((*named.pods, *named.jobs)):
        asked = named.pods.get(namespace, ())
        present = {pod.name async for pod in client.list_pods(namespace)} if asked else set()
        deleted += len(present.intersection(asked))
        not_found += [f"pod {name}" for name in asked if name not in present]
        for name in named.jobs.get(namespace, ()):
            jobs = await client.list_jobs(namespace, name)
            deleted += sum(job.replicas - job.deleted for job in jobs)
            not_found += [] if jobs else [f"job {name}"]
    held = {key_of(item) for item in await client.list_objects()} if named.objects else set()
    return {
        "dryRun": True,
        "deletedPods": deleted,
        "deletedObjects": [str(key) for key in named.objects if key in held],
        "notFound": [*not_found, *(str(key) for key in named.objects if key not in held)],
    }


@app.command()
def retry(
    kind: Annotated[
        str, typer.Argument(metavar="[KIND]", help="pod or job.", autocompletion=_PODS_OR_JOBS)
    ] = "pod",
    names: OptionalNames = None,
    *,
    failed: Annotated[bool, typer.Option("--failed", help="Every failed pod of the namespace.")] = False,
    namespace: Namespace = "default",
    all_namespaces: AllNamespaces = False,
    dispatcher: Dispatcher = "",
    output: Output = Format.TABLE,
) -> None:
    """Put pods that were given up back in the queue, their faults forgiven. `hoss get pods --failed` lists
    them."""
    jobs = read_kind(kind, Kind.PODS, Kind.JOBS) is Kind.JOBS
    chosen = names or []
    if bool(chosen) is failed:
        raise InvalidInput(
            "give either names, as in `hoss retry pod NAME`, or --failed for all", where="NAME"
        )
    if all_namespaces and not failed:
        raise InvalidInput("a name belongs to one namespace; give -n instead", where="-A")

    reply = ask_dispatcher(
        Endpoints(dispatcher),
        lambda client: client.retry(
            ALL if all_namespaces else namespace,
            pods=() if jobs else chosen,
            jobs=chosen if jobs else (),
            every=failed,
        ),
    )
    result: Document = {"retriedPods": reply.retried_pods, "notFound": list(reply.not_found)}
    if output.for_people:
        others = "" if result["retriedPods"] or result["notFound"] else "; none of them has failed"
        say(f"put {counted(result['retriedPods'], 'failed pod')} back in the queue{others}")
    else:
        print_document(result, output)
    check_found(result["notFound"], namespace, Kind.JOBS if jobs else Kind.PODS)


@app.command()
def ungate(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="pod or job.", autocompletion=_PODS_OR_JOBS)],
    names: Names,
    *,
    gate: Annotated[
        list[str], typer.Option("--gate", metavar="GATE", help="Only this one; may be given several times.")
    ] = [],  # noqa: B006 - typer's way to say none
    namespace: Namespace = "default",
    dispatcher: Dispatcher = "",
    output: Output = Format.TABLE,
) -> None:
    """Take scheduling gates off pods or whole jobs, all of them or those named. Pods without any left are
    scheduled."""
    jobs = read_kind(kind, Kind.PODS, Kind.JOBS) is Kind.JOBS

    reply = ask_dispatcher(
        Endpoints(dispatcher),
        lambda client: client.remove_gates(
            namespace, pods=() if jobs else names, jobs=names if jobs else (), gates=gate
        ),
    )
    result: Document = {
        "changedPods": reply.changed_pods,
        "queuedPods": reply.queued_pods,
        "notFound": list(reply.not_found),
    }
    if output.for_people:
        say(
            f"took gates off {result['changedPods']:,} pods, of which {result['queuedPods']:,} have none left"
        )
    else:
        print_document(result, output)
    check_found(result["notFound"], namespace, Kind.JOBS if jobs else Kind.PODS)
