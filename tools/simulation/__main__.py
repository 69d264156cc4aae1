"""Runs simulations: `python -m tools.simulation --seeds 200`; or one seed, made smaller and with its
timeline: `--seed 17 --out DIR`."""

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from hossctl.history.events import written
from tools.simulation import plan as p
from tools.simulation.cluster import OUTCOMES
from tools.simulation.cluster_plan import draw_kubernetes, draw_kubernetes_moves
from tools.simulation.loop import discarding
from tools.simulation.plan import Plan, draw, draw_moves
from tools.simulation.redis_backend import DrivenRedis
from tools.simulation.run import TOLD, Result, run
from tools.simulation.shrink import shrink

_FAULTS = tuple(dict.fromkeys((*p.KINDS, *p.LOSSES, p.KILL_AMID_MOVE, p.FREEZE_AMID_MOVE)))
_ANSWERS = (
    "acknowledged",
    "refused",
    "unknown",
    "target reserved",
    "moved in one step",
    "moved",
    "moved between shards",
    "moved by the controller",
)
_OF_PLATFORMS = (*_FAULTS, *_ANSWERS)
_OF_KUBERNETES = (*dict.fromkeys((*p.KINDS, *p.LOSSES, *p.OF_CLUSTERS)), *OUTCOMES)
_OF_MOVES = (p.KILL_AMID_MOVE, p.FREEZE_AMID_MOVE, "target reserved", *TOLD)

app = typer.Typer(add_completion=False, help=__doc__)


@app.command()
def simulate(
    *,
    seeds: Annotated[int, typer.Option(min=1, help="How many to run.")] = 200,
    first: Annotated[int, typer.Option(min=0, help="The first of them.")] = 0,
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
    _fix_hash_order()
    server = DrivenRedis.start()
    drawn = {
        (False, False): draw,
        (False, True): draw_moves,
        (True, False): draw_kubernetes,
        (True, True): draw_kubernetes_moves,
    }[kubernetes, moves]
    try:
        if plan:
            given = (Plan.from_json(json.loads(path.read_text())) for path in plan)
            broken = sum(_show(run(one, server, keep=out is not None), out) for one in given) > 0
        elif seed is not None:
            broken = _one(drawn(seed), server, out, as_drawn=as_drawn)
        else:
            plans = map(drawn, range(first, first + seeds))
            counted = (*_OF_KUBERNETES, *_OF_MOVES) if kubernetes and moves else _OF_KUBERNETES
            broken = _many(plans, server, counted if kubernetes else _OF_PLATFORMS)
    finally:
        server.close()
    sys.exit(int(broken))


def _fix_hash_order() -> None:
    """Begin again with a fixed hash seed: sets of texts would come in another order in each process."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        command = [sys.executable, "-m", "tools.simulation", *sys.argv[1:]]
        os.execve(sys.executable, command, {**os.environ, "PYTHONHASHSEED": "0"})  # noqa: S606 - this program


def _many(plans: Iterable[Plan], server: DrivenRedis, counted: Iterable[str]) -> bool:
    """Run the plans. Says how often each of what is `counted` was reached."""
    began, done, failed = time.process_time(), 0, 0
    reached: Counter[str] = Counter()
    with discarding():
        for plan in plans:
            result = run(plan, server)
            done += 1
            reached += result.reached
            if problems := result.problems():
                failed += 1
                _print(
                    f"seed {plan.seed}: {len(problems)} problems, the first: {problems[0].splitlines()[0]}"
                )
    spent = time.process_time() - began
    _print(f"{done} simulations in {spent:.1f} s of CPU time: {failed} broke a promise")
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
