"""The same loads on a real kube-scheduler and on HOSS in Kubernetes mode: `python -m tools.peers --help`.

Two modes are added to a comparison of `hoss bench compare`: kube-scheduler and HOSS, each on an API server
and etcd of its own. `hoss bench report` shows the documents. By default the cells are few and small, with the
same load in process beside them: an API server binds some hundred pods a second, and HOSS without one a
hundred thousand."""

import shlex
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated

import typer
from typer.main import get_command

from hoss.errors import InvalidInput
from hossctl.__main__ import run
from hossctl.choices import BASE_WORKERS, ON_KUBERNETES, Load, Mode
from hossctl.commands.bench.compare import Fills, Loads, Modes, Nodes, Out, Workers, read_axes, run_comparison
from hossctl.compare import running
from hossctl.compare.cells import Axes, Plan
from hossctl.compare.document import Cell, ComparisonRun
from hossctl.compare.measuring import Measuring, this_machine, version_line
from hossctl.compare.report.publishing import ReportOptions
from hossctl.compare.report.summary import mode_title
from hossctl.compare.running import Stop
from hossctl.console import Format
from hossctl.local.control_plane import find_binaries
from hossctl.options import Output, RedisUrl, Seed
from tools.peers.kubernetes import measure_on_kubernetes
from tools.peers.objects import WITHOUT_FORM

LOADS = tuple(load.value for load in Load if load.value not in WITHOUT_FORM)
NODES = 100

app = typer.Typer()


@app.command()
def compare(
    *,
    quick: Annotated[bool, typer.Option("--quick", help="One load.")] = False,
    modes: Modes = "",
    loads: Loads = "",
    workers: Workers = "",
    fills: Fills = "",
    nodes: Nodes = "",
    repeat: Annotated[int, typer.Option(min=1, help="Runs of each cell.")] = 3,
    redis_url: RedisUrl = "",
    seed: Seed = 1,
    out: Out = None,
    output: Output = Format.TABLE,
) -> None:
    """kube-scheduler and HOSS, each on a control plane of its own (`make controlplane` builds it), beside
    HOSS's own modes under the same loads."""
    binaries = find_binaries()
    if any((modes, loads, workers, fills, nodes)):
        if quick:
            raise InvalidInput("is a matrix of its own; leave out the lists, or --quick", where="--quick")
        cells = peer_cells(read_axes(modes, loads, workers, fills, nodes))
    else:
        cells = default_cells(quick=quick)
    plan = Plan(cells, repeat, seed, redis_url)
    machine = this_machine(redis_url)
    # They print "Kubernetes v1.36.3" and "etcd Version: 3.6.8".
    versions = {
        name: version_line(binaries.path(name)).split()[-1]
        for name in ("kube-scheduler", "kube-apiserver", "etcd")
    }
    machine = machine.model_copy(update={"versions": machine.versions | versions})
    notes = list(notes_on(plan))
    command = shlex.join(["python", "-m", "tools.peers", *sys.argv[1:]])
    run_comparison(
        Measuring(plan, machine, command, notes=notes, one_run=measure), ReportOptions(out=out), output
    )


def peer_cells(axes: Axes) -> list[Cell]:
    """The cells of the axes, and those of both modes on Kubernetes for the loads that have a form there.
    InvalidInput where there are none of these."""
    cells = [
        cell
        for cell in replace(axes, modes=(*axes.modes, *ON_KUBERNETES)).cells()
        if cell.mode not in ON_KUBERNETES or cell.load in LOADS
    ]
    if not any(cell.mode in ON_KUBERNETES for cell in cells):
        reasons = "; ".join(f"{load}: {_reason(load)}" for load in axes.loads)
        raise InvalidInput(f"kube-scheduler has nothing to do here: {reasons}", where="--loads")
    return cells


def default_cells(*, quick: bool) -> list[Cell]:
    """One load, or all loads that have a form on Kubernetes, in a small setting."""
    loads = LOADS[:1] if quick else LOADS
    return peer_cells(Axes((Mode.SINGLE, Mode.HOSS), loads, (1, BASE_WORKERS), nodes=(NODES,)))


def measure(cell: Cell, repetition: int, plan: Plan, stop: Stop) -> ComparisonRun:
    """One run, on Kubernetes or in process as its mode demands."""
    where = measure_on_kubernetes if cell.mode in ON_KUBERNETES else running.measure
    return where(cell, repetition, plan, stop)


def notes_on(plan: Plan) -> Iterator[str]:
    """Remarks on the modes on Kubernetes that a reader needs before comparing figures."""
    titles = " and ".join(f"'{mode_title(mode)}'" for mode in ON_KUBERNETES)
    yield (
        f"{titles} pay for an API server and etcd, at which their pods are created one by one and bound, "
        "and the "
        "other modes do not: compare these two with one another"
    )
    left_out = dict.fromkeys(cell.load for cell in plan.cells if cell.load not in LOADS)
    missing = [f"{load} ({_reason(load)})" for load in left_out]
    if missing:
        yield f"not measured on Kubernetes: {', '.join(missing)}"


def _reason(load: str) -> str:
    """Why a load is not measured on Kubernetes."""
    return WITHOUT_FORM.get(load, "only loads of HOSS have a form there")


def main() -> None:
    """Run the comparison; a problem is one line and an exit code, as with `hoss`."""
    run(get_command(app), "python -m tools.peers")


if __name__ == "__main__":
    main()
