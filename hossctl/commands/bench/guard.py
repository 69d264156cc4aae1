"""bench guard: two schedulers on the same nodes, without and with the binding webhook, and how long bindings
wait for it."""

from typing import TYPE_CHECKING, Annotated

import typer

from hossctl.cli import EXIT_FAILED
from hossctl.commands.bench.figures_file import JsonFile, check, publish
from hossctl.console import Column, Document, Format, say
from hossctl.options import MAX_PROCESSES, Output

if TYPE_CHECKING:
    from hossctl.bench import guard_latency


_COLUMNS = (
    Column("GUARD", lambda row: "yes" if row["guarded"] else "no"),
    Column("SECONDS", lambda row: f"{row['seconds']:.1f}"),
    Column("BY HOSS", lambda row: f"{row['boundByHoss']:,}"),
    Column("BY KUBE-SCHEDULER", lambda row: f"{row['boundByKubeScheduler']:,}"),
    Column("NOT BOUND", lambda row: f"{row['unbound']:,}"),
    Column("OVERCOMMITTED NODES", lambda row: f"{row['overcommittedNodes']:,}"),
    Column("DENIED", lambda row: f"{row['denied']:,}"),
    Column("WEBHOOK", lambda row: f"{row['webhookMeanMs']:.1f} ms" if row["guarded"] else ""),
)
_LATENCY_COLUMNS = (
    Column("ASKED", lambda row: row["asked"]),
    Column("PODS", lambda row: row["pods"]),
    Column("PER SECOND", lambda row: f"{row['perSecond']:,.0f}"),
    *(
        # mypy takes the default for an argument.
        Column(title, lambda row, field=field: f"{row[field]:.1f} ms")  # type: ignore[misc]
        for title, field in (
            ("P50", "p50Ms"),
            ("P90", "p90Ms"),
            ("P99", "p99Ms"),
            ("P99.9", "p999Ms"),
            ("MOST", "maxMs"),
        )
    ),
    Column(
        "CPU PER BINDING",
        lambda row: ", ".join(f"{name} {ms:.2f} ms" for name, ms in row["cpuMs"].items() if ms),
    ),
)


def guard(
    *,
    nodes: Annotated[int, typer.Option(min=1)] = 200,
    workers: Annotated[int, typer.Option(min=1, max=MAX_PROCESSES)] = 4,
    fill: Annotated[
        int, typer.Option(min=1, max=100, help="Per cent of all cpu that the pods request.")
    ] = 98,
    latency: Annotated[
        bool,
        typer.Option("--latency", help="Instead: how long bindings wait for the guard at a steady rate."),
    ] = False,
    rate: Annotated[int, typer.Option(min=1, help="With --latency: bindings per second.")] = 500,
    seconds: Annotated[
        float, typer.Option(min=0.1, help="With --latency: so long, each way of asking.")
    ] = 20.0,
    connections: Annotated[
        int, typer.Option(min=1, help="With --latency: to the webhook, as client-go keeps.")
    ] = 25,
    with_claims: Annotated[
        int,
        typer.Option(
            min=0, max=100, help="With --latency: per cent of the pods that have a volume and a device."
        ),
    ] = 0,
    json: JsonFile = None,
    output: Output = Format.TABLE,
) -> None:
    """HOSS and a real kube-scheduler fill the same nodes at once. Exit 1 if the guard lets any be
    overcommitted, or a pod waits."""
    from hossctl.bench import guard as guarding
    from hossctl.bench import guard_latency

    check(output, json)
    if latency:
        _latency(
            guard_latency.GuardLatencySetting(rate, seconds, connections, nodes, with_claims), json, output
        )
        return
    setting = guarding.GuardSetting(nodes, workers, fill / 100)
    cases = guarding.measure(setting, quiet=not output.for_people)
    document: Document = {
        "nodes": nodes,
        "pods": setting.pods,
        "workers": workers,
        "cases": [case.as_json() for case in cases],
    }
    publish(document, output, json, table=(document["cases"], _COLUMNS))
    if any(case.guarded and (case.overcommitted or case.unbound) for case in cases):
        raise typer.Exit(EXIT_FAILED)


def _latency(setting: "guard_latency.GuardLatencySetting", json: JsonFile, output: Format) -> None:
    from hossctl.bench import guard_latency

    document = guard_latency.measure(setting, quiet=not output.for_people)
    publish(document, output, json, table=(document["cases"], _LATENCY_COLUMNS))
    if output.for_people:
        waited = document["apiServer"]
        say(
            f"the API server itself waited {waited['meanMs']:.1f} ms for the webhook on average; "
            f"{waited['under5Ms']:.1%} of the answers "
            f"took under 5 ms, {waited['under25Ms']:.1%} under 25 ms"
        )
