"""delete: pods, jobs and cluster objects, by name or as manifests name them."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import typer

from hoss.errors import InvalidInput
from hossctl import completing
from hossctl.console import Document, Format, print_document, say, warn
from hossctl.endpoints import Endpoints, dispatcher_of
from hossctl.eventloop import run_async
from hossctl.kinds import NAMESPACED, OBJECT_KINDS, Kind, check_found, read_kind
from hossctl.options import Dispatcher, Namespace, Output, only

if TYPE_CHECKING:
    from hoss.client.dispatcher import DispatcherClient
    from hoss.model.cluster_objects import ObjectKey
    from hoss.wire.manifests import Manifest


app = typer.Typer()


@dataclass(slots=True)
class _Named:
    """What is to go: pods and jobs by namespace, and objects by key."""

    pods: dict[str, list[str]] = field(default_factory=dict)
    jobs: dict[str, list[str]] = field(default_factory=dict)
    objects: "list[ObjectKey]" = field(default_factory=list)

    @property
    def namespaces(self) -> Iterable[str]:
        """Where pods or jobs are to go."""
        return dict.fromkeys((*self.pods, *self.jobs))


@app.command()
def delete(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="[KIND]",
            help="pod, job, namespace, service, pdb or priorityclass.",
            autocompletion=completing.kinds(Kind.PODS, Kind.JOBS, *OBJECT_KINDS),
        ),
    ] = "",
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", autocompletion=completing.names)] = None,
    *,
    file: Annotated[
        list[str], typer.Option("-f", "--file", metavar="FILE", help="Delete what these manifests name; - is stdin.")
    ] = [],  # noqa: B006 - typer's way to say none
    namespace: Namespace = "default",
    dispatcher: Dispatcher = "",
    output: Output = Format.TABLE,
) -> None:
    """Delete pods, whole jobs, or objects such as namespaces. Queued pods leave the queue, bound ones give back what they held.
    Deleting a namespace takes its labels and none of its pods."""
    from hossctl.input import read_input

    only(output, Format.TABLE, Format.JSON, Format.YAML)
    if bool(file) == bool(kind):
        raise InvalidInput("is wanted, or KIND and NAME; give one of the two", where="-f")
    if kind and not names:
        raise InvalidInput(f"is missing; write hoss delete {kind} NAME", where="NAME")
    named = _by_manifest([read_input(name) for name in file]) if file else _by_name(kind, names or [], namespace)

    async def run() -> Document:
        async with dispatcher_of(Endpoints(dispatcher)) as client:
            return await _delete(client, named)

    result = run_async(run())
    if output.for_people:
        for text in result["deletedObjects"]:
            say(f"{text} deleted")
        if named.pods or named.jobs:
            say(f"deleted {result['deletedPods']:,} pods")
    else:
        print_document(result, output)
    listed = read_kind(kind) if kind else Kind.PODS
    check_found(result["notFound"], namespace if kind and listed in NAMESPACED else "", listed)


def _by_name(kind: str, names: list[str], namespace: str) -> _Named:
    which = read_kind(kind, Kind.PODS, Kind.JOBS, *OBJECT_KINDS)
    if which in OBJECT_KINDS:
        from hoss.model.cluster_objects import ObjectKey

        place = namespace if which in NAMESPACED else ""
        return _Named(objects=[ObjectKey(OBJECT_KINDS[which], place, name) for name in names])
    return _Named(jobs={namespace: names}) if which is Kind.JOBS else _Named(pods={namespace: names})


def _by_manifest(manifests: "Iterable[Manifest]") -> _Named:
    from hoss.model.cluster_objects import key_of

    named = _Named()
    for manifest in manifests:
        for workload in manifest.workloads:
            owned = workload.replicas > 1 or workload.template.owner_kind
            place = (named.jobs if owned else named.pods).setdefault(workload.template.spec.namespace, [])
            place.append(workload.name)
        named.objects += map(key_of, manifest.objects)
        for node in manifest.nodes:
            warn(f"node {node.name} stays; `hoss nodes remove {node.name}` removes it")
    return named


async def _delete(client: "DispatcherClient", named: _Named) -> Document:
    deleted = 0
    not_found: list[str] = []
    for namespace in named.namespaces:
        reply = await client.delete(namespace, pods=named.pods.get(namespace, ()), jobs=named.jobs.get(namespace, ()))
        deleted += reply.deleted_pods
        not_found += reply.not_found
    missing = await client.delete_objects(named.objects) if named.objects else []
    return {
        "deletedPods": deleted,
        "deletedObjects": [str(key) for key in named.objects if key not in missing],
        "notFound": [*not_found, *map(str, missing)],
    }
