"""up, down, status: the local platform."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from hoss.errors import HossError, InvalidInput
from hossctl.cli import EXIT_FAILED
from hossctl.console import Format, print_document, print_summary, say, warn
from hossctl.endpoints import Endpoints, clients_of, of_state
from hossctl.eventloop import run_async
from hossctl.options import Dispatcher, Output, RedisUrl, Resolver, Seed, only, read_workers

if TYPE_CHECKING:
    from hoss.model.node import NodeSpec
    from hossctl import platform


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
    kubeconfig: Annotated[
        Path | None,
        typer.Option(help="Schedule the Kubernetes cluster of this file: its nodes, and its pods of scheduler hoss."),
    ] = None,
    guard: Annotated[
        bool,
        typer.Option("--guard", help="With --kubeconfig: judge every scheduler's bindings there, until `hoss down`."),
    ] = False,
    dashboard_listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where the web dashboard is; port 0 takes a free one, empty: none.")
    ] = "127.0.0.1:0",
    dashboard_token_file: Annotated[
        Path | None, typer.Option(help="A file with a token; who shows it in the dashboard may cordon and drain.")
    ] = None,
    redis_url: RedisUrl = "",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Of the dispatcher (of several, the first); 0: a free one.")
    ] = 0,
    trace: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            metavar="SHARE",
            help="Keep traces of this share of work batches, for `hoss trace`; of conflicts, all.",
        ),
    ] = None,
    seed: Seed = 1,
    output: Output = Format.TABLE,
) -> None:
    """Start the local platform and leave it running; `hoss down` stops it. Its ledger is kept between starts, with its logs,
    in $HOSS_HOME, else $XDG_STATE_HOME/hoss, else ~/.hoss."""
    from dispatcher.policy_document import parse_policy, read_policy
    from hossctl import local_guard, platform, status
    from hossctl import nodes as pool
    from hossctl.ports import check_free, free_ports

    only(output, Format.TABLE, Format.JSON, Format.YAML)
    _check_ground(nodes, nodes_file, kubeconfig, guard=guard)
    kubeconfig = kubeconfig and kubeconfig.resolve()
    named = worker or []
    home = platform.home()
    options = platform.PlatformOptions(
        workers=read_workers(workers if workers is not None else 0 if named else DEFAULT_WORKERS, named),
        resolvers=resolvers,
        dispatchers=dispatchers,
        redis_url=redis_url,
        policy=policy,
        kubeconfig=kubeconfig,
        port=port,
        webhook_port=free_ports(1)[0] if guard else 0,
        webhook_certificates=home / "guard" if guard else None,
        dashboard_listen=dashboard_listen,
        dashboard_token_file=dashboard_token_file,
        append_only=True,
        metrics=True,
        trace_ratio=trace,
        seed=seed,
    )
    if policy is not None:
        parse_policy(read_policy(policy), where=str(policy))
    given = pool.read_nodes_file(nodes_file) if nodes_file else None
    if kubeconfig is not None:
        given = []
    elif nodes is not None:
        given = pool.simulated(nodes, seed=seed)
    with platform.exclusive(home):
        state = platform.load_state(home)
        if state is not None and (living := state.living()):
            raise HossError(
                f"a platform runs already ({len(living)} processes, dispatcher {state.dispatcher}); stop it with `hoss down`"
            )
        check_free(port, where="--port")
        authority = local_guard.make_certificate(home / "guard") if guard else b""
        state = platform.start(home, options)
        try:
            if guard and kubeconfig:
                local_guard.register(kubeconfig, options.webhook_port, authority)
            run_async(_fill(of_state(state), given, seed, len(options.workers), quiet=not output.for_people))
        except BaseException:
            _take_out_guard(state)
            platform.stop(home, state)
            raise
    if output.for_people:
        say(
            f"up: dispatcher {state.dispatcher}, resolver {', '.join(state.resolvers)}, redis {_place_of(state.redis_url)}, "
            f"{len(options.workers)} workers; {'' if redis_url else 'data and '}logs in {home}"
        )
        for url in state.dashboards:
            say(f"dashboard: {url}")
        submit = "hoss submit -f FILE" if kubeconfig is None else "kubectl apply -f FILE (pods of schedulerName: hoss)"
        if guard:
            say(
                "guard: bindings of every scheduler are judged, but those in kube-system; `hoss down` takes it out of the cluster again"
            )
        say(f"try: hoss get nodes | {submit} | hoss status | hoss down")
    else:
        print_document(status.state_json(state), output)


def _check_ground(nodes: int | None, nodes_file: Path | None, kubeconfig: Path | None, *, guard: bool) -> None:
    if nodes is not None and nodes_file is not None:
        raise InvalidInput("and --nodes were both given; choose one", where="--nodes-file")
    if kubeconfig is not None and (nodes is not None or nodes_file is not None):
        raise InvalidInput(
            "was given beside --nodes or --nodes-file; a cluster has nodes of its own", where="--kubeconfig"
        )
    if guard and kubeconfig is None:
        raise InvalidInput("was given without --kubeconfig; say whose bindings are to be judged", where="--guard")


async def _fill(endpoints: Endpoints, given: "list[NodeSpec] | None", seed: int, workers: int, *, quiet: bool) -> None:
    from hossctl import nodes as pool
    from hossctl import report
    from hossctl.progress import counting

    async with clients_of(endpoints) as clients:
        if given is None:
            held = (await clients.resolver.status()).nodes
            given = [] if held else pool.simulated(DEFAULT_NODES, seed=seed)
        with counting("nodes", len(given), quiet=quiet) as registered:
            await report.prepare(clients, given, workers, registered)


def _place_of(redis_url: str) -> str:
    """Without account, database and options."""
    return urlsplit(redis_url).netloc.rpartition("@")[2] or redis_url


def _take_out_guard(state: "platform.PlatformState") -> None:
    from hossctl import local_guard
    from hossctl.kube_guard import LOCAL_NAME

    if not state.guarded:
        return
    try:
        local_guard.remove(Path(state.guarded))
    except HossError as exc:
        warn(
            f"the guard stays registered ({exc}); it harms nobody, bindings pass without it; to take it out: kubectl --kubeconfig "
            f"{state.guarded} delete validatingwebhookconfiguration {LOCAL_NAME}"
        )


@app.command()
def down(
    *,
    purge: Annotated[bool, typer.Option("--purge", help="Remove the ledger's data and the logs, too.")] = False,
    output: Output = Format.TABLE,
) -> None:
    """Stop every process of the local platform. The ledger's data stays for the next `hoss up`."""
    from hossctl import platform

    only(output, Format.TABLE, Format.JSON, Format.YAML)
    home = platform.home()
    with platform.exclusive(home):
        state = platform.load_state(home)
        if state is not None:
            _take_out_guard(state)  # first: nobody is to wait for one that is gone
        stopped = [record.name for record in state.living()] if state else []
        killed = platform.stop(home, state) if state else []
        if purge:
            platform.purge(home)
    if not output.for_people:
        print_document({"stopped": stopped, "killed": killed}, output)
    else:
        say(f"down: stopped {', '.join(stopped)}" if stopped else "down: nothing was running")
        if killed:
            warn(f"{', '.join(killed)} did not end when asked and had to be killed; see {home / 'logs'}")
        if purge:
            say(f"data and logs in {home} are removed")


@app.command("status")
def show_status(dispatcher: Dispatcher = "", resolver: Resolver = "", output: Output = Format.TABLE) -> None:
    """What runs, how it does, and what waits for what. Exit code 1 while something needs attention."""
    from hossctl import status

    only(output, Format.TABLE, Format.JSON, Format.YAML)
    seen = run_async(status.look(Endpoints(dispatcher, resolver)))
    if output.for_people:
        print_summary("HOSS", seen.lines())
    else:
        print_document(seen.as_json(), output)
    if seen.problems:
        raise typer.Exit(EXIT_FAILED)
