"""Runs simulations: `python -m tools.simulation --seeds 200`; or one seed, made smaller and with its
timeline: `--seed 17 --out DIR`."""

import json
import os
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from hossctl.history.events import written
from tools.simulation import plan as p
from tools.simulation.clients import REFUSED_BEYOND_SHARE, REFUSED_WHEN_FULL
from tools.simulation.cluster import OUTCOMES
from tools.simulation.plan import Plan
from tools.simulation.redis_backend import DrivenRedis
from tools.simulation.run import TOLD, Result, run
from tools.simulation.seeds import PlanKind, draw_of_kind, in_parts
from tools.simulation.shrink import shrink

_FAULTS = tuple(dict.fromkeys((*p.KINDS, *p.LOSSES, p.KILL_AMID_MOVE, p.FREEZE_AMID_MOVE)))
_REFUSALS = ("refused", REFUSED_WHEN_FULL, REFUSED_BEYOND_SHARE)
_MADE = ("target reserved", "moved in one step", "moved", "moved between shards", "moved by the controller")
_OF_KUBERNETES = (*dict.fromkeys((*p.KINDS, *p.LOSSES, *p.OF_CLUSTERS)), *OUTCOMES)
_OF_MOVES = (p.KILL_AMID_MOVE, p.FREEZE_AMID_MOVE, "target reserved", "moved by the controller", *TOLD)

app = typer.Typer(add_completion=False, help=__doc__)


@app.command()
def simulate(
    *,
    seeds: Annotated[int, typer.Option(min=1, help="How many to run.")] = 200,
    first: Annotated[int, typer.Option(min=0, help="The first of them.")] = 0,
    jobs: Annotated[int, typer.Option(min=1, help="How many processes share the seeds.")] = 1,
    seed: Annotated[
        int | None, typer.Option(help="Run this one; if it fails, make its plan smaller.")
    ] = None,
    as_drawn: Annotated[
        bool, typer.Option("--as-drawn", help="With --seed: do not make it smaller.")
    ] = False,
    moves: Annotated[
        bool, typer.Option("--moves", help="Pods are moved as well, and faults strike amid that.")
    ] = False,
    kubernetes: Annotated[
        bool,
        typer.Option("--kubernetes", help="Kubernetes mode, with an API server and another scheduler."),
    ] = False,
    short: Annotated[
        bool, typer.Option("--short", help="Plans with fewer services, jobs, faults and seconds.")
    ] = False,
    plan: Annotated[
        list[Path] | None,
        typer.Option(exists=True, help="Run a plan.json that an earlier run has left; several, one by one."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="With --seed or one --plan: a directory for timeline, history and plan."),
    ] = None,
) -> None:
    """Run whole platforms in one process, with faults drawn from seeds. Exit code 1: a promise was broken."""
    if short and (moves or kubernetes):
        raise typer.BadParameter("there are no short plans with --moves or --kubernetes")
    _fix_hash_order()
    kind = PlanKind(kubernetes, moves, short)
    if not plan and seed is None:
        sys.exit(int(_many(kind, first, seeds, jobs, _counted(kind))))
    server = DrivenRedis.start()
    try:
        if plan:
            given = (Plan.from_json(json.loads(path.read_text())) for path in plan)
            broken = sum(_show(run(one, server, keep=out is not None), out) for one in given) > 0
        else:
            broken = _one(draw_of_kind(kind, seed or 0), server, out, as_drawn=as_drawn)
    finally:
        server.close()
    sys.exit(int(broken))


def _counted(kind: PlanKind) -> Iterable[str]:
    """What plans of this kind are to reach."""
    if kind.kubernetes:
        return (*_OF_KUBERNETES, *(_OF_MOVES if kind.moves else ()))
    refusals = () if kind.short else _REFUSALS
    of_moves = (p.KILL_AMID_MOVE, p.FREEZE_AMID_MOVE, *_MADE) if kind.moves else ()
    return (*dict.fromkeys((*p.KINDS, *p.LOSSES)), "acknowledged", *refusals, "unknown", *of_moves)


def _fix_hash_order() -> None:
    """Begin again with a fixed hash seed: sets of texts would come in another order in each process."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        command = [sys.executable, "-m", "tools.simulation", *sys.argv[1:]]
        os.execve(sys.executable, command, {**os.environ, "PYTHONHASHSEED": "0"})  # noqa: S606 - this program


def _many(kind: PlanKind, first: int, seeds: int, jobs: int, counted: Iterable[str]) -> bool:
    """Run the seeds. Says how often each of what is `counted` was reached."""
    failed, spent = 0, 0.0
    reached: Counter[str] = Counter()
    for part in in_parts(kind, first, seeds, jobs):
        for line in part.problems:
            _print(line)
        failed += len(part.problems)
        spent += part.cpu_seconds
        reached += part.reached
    _print(f"{seeds} simulations in {spent:.1f} s of CPU time: {failed} broke a promise")
    for what in counted:
        _print(f"{reached[what]:8}  {what}" if reached[what] else f"   NEVER  {what}")
    return failed > 0


def _one(plan: Plan, server: DrivenRedis, out: Path | None, *, as_drawn: bool) -> bool:
    result = run(plan, server, keep=out is not None)
    if result.problems() and not as_drawn:
        smaller = shrink(result, lambda tried: run(tried, server)).plan
        _print(f"seed {plan.seed}, made smaller; with --as-drawn as it is")
        result = run(smaller, server, keep=out is not None)
    return _show(result, out)


def _show(result: Result, out: Path | None) -> bool:
    plan = result.plan
    names = f"{plan.nodes} nodes, {plan.shards} shards, {', '.join(plan.names)}"
    for line in (names, *map(str, plan.acts), *result.problems()):
        _print(line)
    struck = ", ".join(
        f"{what} {result.reached[what]}" for what in (*_FAULTS, *p.OF_CLUSTERS) if result.reached[what]
    )
    _print(f"faults that struck: {struck or 'none'}")
    _print(f"{result.steps} steps, {result.seconds:.2f} s of virtual time, {len(result.history)} events")
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        lines = [f"{e.at:10.5f} {e.who:13} {e.kind:8} {e.text}\n" for e in result.timeline]
        (out / "timeline.txt").write_text("".join(lines), encoding="utf-8")
        (out / "history.jsonl").write_text("".join(map(written, result.history)), encoding="utf-8")
        (out / "plan.json").write_text(json.dumps(plan.as_json(), indent=1), encoding="utf-8")
    return bool(result.problems())


def _print(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - a command's output


def main() -> None:
    """Run it."""
    app(prog_name="python -m tools.simulation")


if __name__ == "__main__":
    main()
