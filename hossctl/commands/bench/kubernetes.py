"""bench kubernetes: HOSS and kube-scheduler on the same API server, in turns."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from hoss.errors import InvalidInput
from hossctl.choices import Claim, Peer
from hossctl.cli import EXIT_FAILED
from hossctl.commands.bench.figures_file import JsonFile, check, publish
from hossctl.console import Column, Document, Format
from hossctl.options import MAX_PROCESSES, Output

if TYPE_CHECKING:
    from hossctl.bench import kubernetes_startup


_COLUMNS = (
    Column("SCHEDULER", lambda row: row["scheduler"]),
    Column("PODS/S", lambda row: f"{row['podsPerSecond']:,.0f}"),
    Column("SECONDS", lambda row: f"{row['seconds']:.1f}"),
    Column("NOT BOUND", lambda row: f"{row['unbound']:,}"),
    Column("CPU/POD", lambda row: _millis(row["millisPerPod"]["scheduler"])),
    Column("API SERVER", lambda row: _millis(row["millisPerPod"]["kubeApiserver"])),
    Column("ETCD", lambda row: _millis(row["millisPerPod"]["etcd"])),
    Column("CLIENT", lambda row: _millis(row["millisPerPod"]["client"])),
    Column("BINDINGS/POD", lambda row: f"{row['writesPerPod']['bindings']:.2f}"),
    Column("EVENTS/POD", lambda row: f"{row['writesPerPod']['events']:.2f}"),
    Column("OTHER WRITES/POD", lambda row: f"{row['writesPerPod']['others']:.2f}"),
)

_STARTUP_COLUMNS = (
    Column("SECONDS", lambda row: f"{row['seconds']:.1f}"),
    Column(
        "CPU SECONDS", lambda row: ", ".join(f"{who} {used:.1f}" for who, used in row["cpuSeconds"].items())
    ),
    Column(
        "PEAK MEMORY", lambda row: ", ".join(f"{who} {mib:.0f} MiB" for who, mib in row["peakMib"].items())
    ),
    Column("NOT RESERVED YET", lambda row: f"{row['unreserved']:,}"),
)


def kubernetes(
    *,
    peer: Annotated[Peer, typer.Option(help="Whose turn comes beside HOSS's.")] = Peer.KUBE_SCHEDULER,
    nodes: Annotated[int, typer.Option(min=1)] = 500,
    initial_pods: Annotated[int, typer.Option(min=0, help="Bound before each turn begins.")] = 100,
    pods: Annotated[int, typer.Option(min=1)] = 1000,
    workers: Annotated[int, typer.Option(min=1, max=MAX_PROCESSES)] = 1,
    resolvers: Annotated[int, typer.Option(min=1, max=MAX_PROCESSES)] = 1,
    repeat: Annotated[int, typer.Option(min=1, help="Turns of each; figures are medians.")] = 1,
    ceiling: Annotated[
        bool,
        typer.Option(
            "--ceiling", help="Turns of a bare client, too, that binds what it creates: the most there is."
        ),
    ] = False,
    claim: Annotated[
        Claim,
        typer.Option(help="Of each pod: a volume that waits for its first consumer, or a device."),
    ] = Claim.NOTHING,
    startup: Annotated[
        bool,
        typer.Option(
            "--startup",
            help="Instead: HOSS started on a cluster with so many pods on nodes, until it places one.",
        ),
    ] = False,
    json: JsonFile = None,
    output: Output = Format.TABLE,
) -> None:
    """Pods created and bound at a real API server, by HOSS and by kube-scheduler in turns. Exit 1 if a pod
    was not bound.

    The full comparison: --nodes 5000 --initial-pods 1000 --pods 10000. Of starts: --startup --nodes 5000
    --pods 50000."""
    from hossctl.bench import kubernetes as measuring
    from hossctl.bench import kubernetes_startup

    check(output, json)
    if startup and claim is not Claim.NOTHING:
        raise InvalidInput("claims are no part of a start: leave out --claim or --startup", where="--claim")
    if startup:
        _startup(kubernetes_startup.StartupSetting(nodes, pods, repeat), json, output)
        return
    setting = measuring.KubernetesSetting(
        nodes, initial_pods, pods, workers, resolvers, peer, repeat, ceiling, claim
    )
    turns = measuring.measure(setting, quiet=not output.for_people)
    document = measuring.summary(setting, turns)
    publish(document, output, json, table=(document["turns"], _COLUMNS), lines=_lines(document))
    if any(turn.unbound for turn in turns):
        raise typer.Exit(EXIT_FAILED)


def _startup(setting: "kubernetes_startup.StartupSetting", json: JsonFile, output: Format) -> None:
    from hossctl.bench import kubernetes_startup

    document = kubernetes_startup.summary(
        setting, kubernetes_startup.measure(setting, quiet=not output.for_people)
    )
    publish(document, output, json, table=(document["turns"], _STARTUP_COLUMNS))


def _lines(document: Document) -> Iterator[tuple[str, object]]:
    latest = next(turn for turn in reversed(document["turns"]) if turn["scheduler"] == "hoss")
    services = latest["millisPerPodByService"].items()
    yield "CPU/pod of HOSS", ", ".join(f"{name} {_millis(value)}" for name, value in services)
    if document["ratio"] is not None:
        rates = document["podsPerSecond"]
        both = f"{rates['hoss']:,.0f} against {rates['kubeScheduler']:,.0f} pods/s"
        yield "HOSS", f"{both}: {document['ratio']:.2f} times"
    if "ofCeiling" in document:
        reached = ", ".join(f"{name} {of:.0%}" for name, of in document["ofCeiling"].items())
        yield "of the bare client's rate", reached


def _millis(value: float) -> str:
    return f"{value:.2f} ms"
