"""up, down, status: the local platform."""

from pathlib import Path
from typing import Annotated

import typer

from hoss.errors import HossError, InvalidInput
from hoss.model.node import NodeSpec
from hossctl import nodes as pool
from hossctl import platform, report, status
from hossctl.cli import EXIT_FAILED
from hossctl.console import Format, print_document, print_summary, say, warn
from hossctl.endpoints import Endpoints, clients_of, of_state
from hossctl.eventloop import run_async
from hossctl.options import Dispatcher, Output, RedisUrl, Resolver, Seed, only, read_workers
from hossctl.progress import counting

app = typer.Typer()

DEFAULT_NODES = 1000
DEFAULT_WORKERS = 2


@app.command()
def up(
    *,
    nodes: Annotated[int | None, typer.Option(min=0, help="Simulated nodes; 1,000 when the ledger holds none.")] = None,
    nodes_file: Annotated[
        Path | None, typer.Option(help="Nodes from manifests, or from the openb trace (.csv).")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=0, help="Workers without labels; 2 where no --worker is given.")
    ] = None,
    worker: Annotated[
        list[str] | None, typer.Option(metavar="NAME:K=V,K=V", help="A worker with labels; may be repeated.")
    ] = None,
    resolvers: Annotated[int, typer.Option(min=1, help="Resolvers; any of them answers.")] = 1,
    dispatchers: Annotated[int, typer.Option(min=1, help="Dispatchers; one is active, the others stand by.")] = 1,
    policy: Annotated[Path | None, typer.Option(help="A SchedulingPolicy document.")] = None,
    redis_url: RedisUrl = "",
    seed: Seed = 1,
    output: Output = Format.TABLE,
) -> None:
    """Start the local platform and leave it running; `hoss down` stops it. Its ledger is kept between starts."""
    only(output, Format.TABLE, Format.JSON, Format.YAML)
    if nodes is not None and nodes_file is not None:
        raise InvalidInput("and --nodes were both given; choose one", where="--nodes-file")
    named = worker or []
    options = platform.PlatformOptions(
        workers=read_workers(workers if workers is not None else 0 if named else DEFAULT_WORKERS, named),
        resolvers=resolvers,
        dispatchers=dispatchers,
        redis_url=redis_url,
        policy=policy,
        append_only=True,
        seed=seed,
    )
    given = (
        pool.read_nodes_file(nodes_file) if nodes_file else None if nodes is None else pool.simulated(nodes, seed=seed)
    )
    home = platform.home()
    with platform.exclusive(home):
        state = platform.load_state(home)
        if state is not None and (living := state.living()):
            raise HossError(
                f"a platform runs already ({len(living)} processes, dispatcher {state.dispatcher}); stop it with `hoss down`"
            )
        state = platform.start(home, options)
        try:
            run_async(_fill(of_state(state), given, seed, len(options.workers), quiet=not output.for_people))
        except BaseException:
            platform.stop(home, state)
            raise
    if output.for_people:
        say(
            f"up: dispatcher {state.dispatcher}, resolver {', '.join(state.resolvers)}, {len(options.workers)} workers; logs in {home / 'logs'}"
        )
        say("try: hoss get nodes | hoss submit -f FILE | hoss status | hoss down")
    else:
        print_document(status.state_json(state), output)


async def _fill(endpoints: Endpoints, given: list[NodeSpec] | None, seed: int, workers: int, *, quiet: bool) -> None:
    async with clients_of(endpoints) as clients:
        if given is None:
            held = (await clients.resolver.status()).nodes
            given = [] if held else pool.simulated(DEFAULT_NODES, seed=seed)
        with counting("nodes", len(given), quiet=quiet) as registered:
            await report.prepare(clients, given, workers, registered)


@app.command()
def down(output: Output = Format.TABLE) -> None:
    """Stop every process of the local platform. The ledger's data stays for the next `hoss up`."""
    only(output, Format.TABLE, Format.JSON, Format.YAML)
    home = platform.home()
    with platform.exclusive(home):
        state = platform.load_state(home)
        stopped = [record.name for record in state.living()] if state else []
        killed = platform.stop(home, state) if state else []
    if not output.for_people:
        print_document({"stopped": stopped, "killed": killed}, output)
    else:
        say(f"down: stopped {', '.join(stopped)}" if stopped else "down: nothing was running")
        if killed:
            warn(f"{', '.join(killed)} did not end when asked and had to be killed; see {home / 'logs'}")


@app.command("status")
def show_status(dispatcher: Dispatcher = "", resolver: Resolver = "", output: Output = Format.TABLE) -> None:
    """What runs, how it does, and what waits for what. Exit code 1 while something needs attention."""
    only(output, Format.TABLE, Format.JSON, Format.YAML)
    seen = run_async(status.look(Endpoints(dispatcher, resolver)))
    if output.for_people:
        print_summary("HOSS", seen.lines())
    else:
        print_document(seen.as_json(), output)
    if seen.problems:
        raise typer.Exit(EXIT_FAILED)
