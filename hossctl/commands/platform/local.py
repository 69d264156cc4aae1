"""demo, up, down: a platform on this machine."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from hoss import contexts
from hoss.errors import HossError, InvalidInput, counted
from hossctl.cli import EXIT_FAILED, run_async
from hossctl.console import Format, announced, print_document, print_lines, print_summary, say, warn
from hossctl.endpoints import Endpoints, clients_of, of_state
from hossctl.options import (
    MAX_PROCESSES,
    MAX_SIMULATED_NODES,
    Output,
    RedisUrl,
    Seed,
    read_workers,
)

if TYPE_CHECKING:
    from hoss.model.node import NodeSpec
    from hossctl.local import platform, platform_state


app = typer.Typer()

DEFAULT_NODES = 1000
DEFAULT_WORKERS = 2


@app.command()
def demo(
    *,
    nodes: Annotated[int, typer.Option(min=1, help="Simulated nodes.")] = 1000,
    pods: Annotated[int, typer.Option(min=1, help="Pods of a mixed load.")] = 50_000,
    workers: Annotated[
        int, typer.Option(min=1, max=MAX_PROCESSES, help="Scheduler workers; their labels differ.")
    ] = 4,
    redis_url: RedisUrl = "",
    seed: Seed = 1,
    output: Output = Format.TABLE,
) -> None:
    """What HOSS is for. Two schedulers race without the ledger and with it; then a cluster places a mixed
    load, loses a worker meanwhile, is audited, loses a job, and is audited again. Exit 0 only if everything
    held."""
    from hossctl.load import demo as load

    quiet = not output.for_people
    if not quiet:
        say(
            f"two races, then a cluster of {counted(nodes, 'simulated node')}, all on this machine with "
            f"{counted(os.cpu_count() or 1, 'core')}; nothing of it stays"
        )
    result = load.run(nodes=nodes, pods=pods, workers=workers, redis_url=redis_url, seed=seed, quiet=quiet)
    if quiet:
        print_document(result.as_json(), output)
    else:
        for title, lines in result.sections():
            print_lines([""])
            print_summary(title, lines)
    if result.failures:
        raise typer.Exit(EXIT_FAILED)


@app.command()
def up(
    *,
    nodes: Annotated[
        int | None,
        typer.Option(
            min=0, max=MAX_SIMULATED_NODES, help="Simulated nodes; 1,000 when the ledger holds none."
        ),
    ] = None,
    nodes_file: Annotated[
        Path | None, typer.Option(help="Nodes from manifests, or from the openb trace (.csv).")
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(min=0, max=MAX_PROCESSES, help="Workers without labels; 2 where no --worker is given."),
    ] = None,
    worker: Annotated[
        list[str] | None, typer.Option(metavar="NAME:K=V,K=V", help="A worker with labels; may be repeated.")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Pools of workers and a policy: a Platform document, or a directory with platform.yaml.",
        ),
    ] = None,
    resolvers: Annotated[
        int, typer.Option(min=1, max=MAX_PROCESSES, help="Resolvers; any of them answers.")
    ] = 1,
    dispatchers: Annotated[
        int,
        typer.Option(min=1, max=MAX_PROCESSES, help="Dispatchers; one is active, the others stand by."),
    ] = 1,
    policy: Annotated[Path | None, typer.Option(help="A SchedulingPolicy document.")] = None,
    rebalance: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A RebalancePolicy document: move pods by itself, as it says."),
    ] = None,
    kubeconfig: Annotated[
        Path | None,
        typer.Option(
            help="Schedule the Kubernetes cluster of this file: its nodes, and its pods of scheduler hoss."
        ),
    ] = None,
    guard: Annotated[
        bool,
        typer.Option(
            "--guard", help="With --kubeconfig: validate every scheduler's bindings there, until `hoss down`."
        ),
    ] = False,
    dashboard_listen: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT", help="Where the web dashboard is; port 0 takes a free one, empty: none."
        ),
    ] = "127.0.0.1:0",
    dashboard_token_file: Annotated[
        Path | None,
        typer.Option(help="A file with a token; with it, users of the dashboard may cordon and drain."),
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
    """Start the local platform and leave it running; `hoss down` stops it. Its ledger is kept between starts,
    with its logs, in $HOSS_HOME, else $XDG_STATE_HOME/hoss, else ~/.hoss."""
    from dispatcher.policy.documents import parse_policy
    from hoss.config import read_text
    from hossctl.load import nodes as pool
    from hossctl.local import platform, platform_state
    from hossctl.local.ports import check_free, free_ports
    from hossctl.views.status import state_document

    _check_options(nodes, nodes_file, kubeconfig, guard=guard)
    kubeconfig = kubeconfig and kubeconfig.resolve()
    named = worker or []
    home = contexts.home()
    if config is None:
        chosen = read_workers(workers if workers is not None else 0 if named else DEFAULT_WORKERS, named)
    else:
        chosen, policy, rebalance = _read_config(
            config, policy, rebalance, named=workers is not None or bool(named)
        )
    options = platform.PlatformOptions(
        workers=chosen,
        resolvers=resolvers,
        dispatchers=dispatchers,
        redis_url=redis_url,
        policy=policy,
        rebalance=_checked_rebalancing(rebalance),
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
        parse_policy(read_text(policy), where=str(policy))
    given = pool.read_nodes_file(nodes_file) if nodes_file else None
    if kubeconfig is not None:
        given = []
    elif nodes is not None:
        given = pool.simulated_nodes(nodes, seed=seed)
    with platform.exclusive(home):
        state = platform_state.load_state(home)
        if state is not None and (living := state.living()):
            raise HossError(
                f"a platform runs already ({len(living)} of {len(state.processes)} processes, "
                f"dispatcher {state.dispatcher}); stop it with `hoss down`"
            )
        check_free(port, where="--port")
        if guard:
            from hossctl.local import binding_webhook  # only hoss[kubernetes] installs what it needs

            authority = binding_webhook.make_certificate(home / "guard")
        with announced("starting the platform"):
            state = platform.start(home, options)
        try:
            if guard and kubeconfig:
                binding_webhook.register(kubeconfig, options.webhook_port, authority, home / "guard")
            run_async(_fill(of_state(state), given, seed, len(options.workers), quiet=not output.for_people))
        except BaseException:
            _remove_webhook(state)
            platform.stop(home, state)
            raise
    if output.for_people:
        _say_up(state, options, home, guarded=guard)
    else:
        print_document(state_document(state), output)


def _say_up(
    state: "platform_state.PlatformState", options: "platform.PlatformOptions", home: Path, *, guarded: bool
) -> None:
    redis = urlsplit(state.redis_url).netloc.rpartition("@")[2] or state.redis_url  # without the account
    kept = "logs" if options.redis_url else "data and logs"
    say(
        f"up: dispatcher {state.dispatcher}, resolver {', '.join(state.resolvers)}, redis {redis}, "
        f"{counted(len(options.workers), 'worker')}; {kept} in {home}"
    )
    from hossctl.local import platform

    for link in platform.dashboard_links(home, state):
        say(f"dashboard: {link}")
    if guarded:
        say(
            "guard: bindings of every scheduler are judged, but those in kube-system; `hoss down` takes it "
            "out of the cluster again"
        )
    of_cluster = options.kubeconfig is not None
    submit = "kubectl apply -f FILE (pods of schedulerName: hoss)" if of_cluster else "hoss submit -f FILE"
    say(f"try: hoss get nodes | {submit} | hoss status | hoss down")


def _check_options(
    nodes: int | None, nodes_file: Path | None, kubeconfig: Path | None, *, guard: bool
) -> None:
    if nodes is not None and nodes_file is not None:
        raise InvalidInput("and --nodes were both given; choose one", where="--nodes-file")
    if kubeconfig is not None and (nodes is not None or nodes_file is not None):
        raise InvalidInput(
            "was given beside --nodes or --nodes-file; a cluster has nodes of its own", where="--kubeconfig"
        )
    if guard and kubeconfig is None:
        raise InvalidInput(
            "was given without --kubeconfig; say whose bindings are to be judged", where="--guard"
        )


def _read_config(
    config: Path, policy: Path | None, rebalance: Path | None, *, named: bool
) -> "tuple[tuple[platform_state.WorkerOptions, ...], Path | None, Path | None]":
    """The workers and the policies of a Platform document. `named`: flags name workers, too."""
    from hossctl.local.pools import read_platform

    if named:
        raise InvalidInput(
            "and --workers or --worker were both given; put the workers into a pool", where="--config"
        )
    document = read_platform(config)
    if policy is not None and document.policy is not None:
        raise InvalidInput(f"and the policy of {config} were both given; choose one", where="--policy")
    if rebalance is not None and document.rebalance is not None:
        raise InvalidInput(f"and that of {config} were both given; choose one", where="--rebalance")
    return document.workers, policy or document.policy, rebalance or document.rebalance


def _checked_rebalancing(file: Path | None) -> str:
    """The text of a RebalancePolicy; "" without one."""
    if file is None:
        return ""
    from hossctl.rebalance.policy import read_policy

    return read_policy(file)[1]


async def _fill(
    endpoints: Endpoints, given: "list[NodeSpec] | None", seed: int, workers: int, *, quiet: bool
) -> None:
    """Register the nodes; without any given, DEFAULT_NODES simulated ones where the ledger has none."""
    from hossctl.load import nodes as pool
    from hossctl.load import report
    from hossctl.load.progress import counting

    async with clients_of(endpoints) as clients:
        if given is None:
            held = (await clients.resolver.status()).nodes
            given = [] if held else pool.simulated_nodes(DEFAULT_NODES, seed=seed)
        with counting("nodes", len(given), quiet=quiet) as registered:
            await report.prepare(clients, given, workers, registered)


def _remove_webhook(state: "platform_state.PlatformState") -> None:
    if not state.webhook_kubeconfig:
        return
    from hossctl.local import binding_webhook

    try:
        binding_webhook.remove(Path(state.webhook_kubeconfig))
    except HossError as exc:
        warn(
            f"the guard stays registered ({exc}); it harms nobody, bindings pass without it; to take it out: "
            f"kubectl --kubeconfig {state.webhook_kubeconfig} delete validatingwebhookconfiguration "
            f"{binding_webhook.LOCAL_NAME}"
        )


@app.command()
def down(
    *,
    purge: Annotated[
        bool, typer.Option("--purge", help="Remove the ledger's data and the logs, too.")
    ] = False,
    output: Output = Format.TABLE,
) -> None:
    """Stop every process of the local platform. The ledger's data stays for the next `hoss up`."""
    from hossctl.local import platform, platform_state

    home = contexts.home()
    with platform.exclusive(home):
        state = platform_state.load_state(home)
        if state is not None:
            _remove_webhook(state)  # first: the API server must not wait for a webhook that has ended
        stopped = [record.name for record in state.living()] if state else []
        with announced("stopping the platform"):
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
