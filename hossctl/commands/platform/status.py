"""status, top, dashboard: how a platform does, at a glance, live, and in a browser."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from hoss import contexts
from hoss.errors import LedgerUnavailable, TransportError, printable
from hossctl.cli import EXIT_FAILED, EXIT_INTERRUPTED, run_async
from hossctl.console import Format, print_document, print_lines, print_summary, say
from hossctl.endpoints import Endpoints
from hossctl.options import Dispatcher, Output, OutputOrTemplate, Resolver, only, read_output

app = typer.Typer()


@app.command("status")
def show_status(
    dispatcher: Dispatcher = "", resolver: Resolver = "", output_or_template: OutputOrTemplate = "table"
) -> None:
    """What runs, how it does, and what waits for what. Exit code 1 while something needs attention."""
    from hossctl.views.status import fetch_status

    output, template = read_output(output_or_template)
    only(output)
    seen = run_async(fetch_status(Endpoints(dispatcher, resolver)))
    if output.for_people:
        print_summary("HOSS", seen.lines())
    else:
        print_document(seen.as_json(), output, template)
    if seen.problems:
        raise typer.Exit(EXIT_FAILED)


@app.command("dashboard")
def show_dashboard(
    *,
    listen: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            help="Serve a dashboard there, until it is ended; port 0 takes a free one. Empty: print links.",
        ),
    ] = "",
    dispatcher: Dispatcher = "",
    resolver: Resolver = "",
    tls_dir: Annotated[
        str,
        typer.Option(
            metavar="DIRECTORY",
            help=(
                "The certificate to connect with, of role operate, and to serve HTTPS with; else the"
                " context's."
            ),
        ),
    ] = "",
    https: Annotated[
        bool, typer.Option("--https", help="HTTPS on loopback, too. Beyond loopback it is HTTPS always.")
    ] = False,
    host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A name by which browsers may reach it, besides addresses and localhost; may be repeated.",
        ),
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(help="A file with a token; with it, viewers may cordon and drain.")
    ] = None,
    authentication: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="An AuthenticationConfig document, as the dispatcher's."),
    ] = None,
    kubeconfig: Annotated[
        Path | None, typer.Option(help="Of the cluster that checks tokens of ServiceAccounts.")
    ] = None,
    in_cluster: Annotated[
        bool, typer.Option("--in-cluster", help="The cluster that it runs in checks these tokens.")
    ] = False,
    insecure: Annotated[
        bool,
        typer.Option("--insecure", help="Listen beyond loopback without TLS: whoever reaches it may look."),
    ] = False,
    metrics_listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where Prometheus reads metrics; empty: nowhere.")
    ] = "",
    ready_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Written with the port once it serves.")
    ] = None,
    output: Output = Format.TABLE,
) -> None:
    """Print links to the local platform's dashboard: each logs in once, as operator, within ten minutes. With
    --listen: serve a dashboard of any platform."""
    if listen:
        from hoss.kube.config import KubernetesConfig
        from hoss.serving import run as run_service
        from hossctl.dashboard.service import DashboardOptions, serve

        options = DashboardOptions(
            listen,
            Endpoints(dispatcher, resolver, tls_dir),
            https=https,
            token_file=token_file,
            hosts=tuple(host or ()),
            authentication=authentication,
            cluster=KubernetesConfig(kubeconfig=kubeconfig) if kubeconfig or in_cluster else None,
            insecure=insecure,
            metrics_listen=metrics_listen,
        )
        run_service(lambda: serve(options, ready_file))
        return
    from hossctl.local import platform, platform_state

    home = contexts.home()
    state = platform_state.load_state(home)
    if state is None or not state.living():
        raise TransportError("no platform is running here: start one with `hoss up`")
    links = platform.dashboard_links(home, state)
    if not output.for_people:
        print_document({"dashboards": links}, output)
    elif links:
        print_lines(links)
    else:
        say("the platform was started without a dashboard; `hoss up` gives it one")


@app.command("top")
def show_top(
    *,
    interval: Annotated[
        float, typer.Option("--interval", min=0.1, help="Seconds between two updates.")
    ] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print once and end, as in a pipe.")] = False,
    dispatcher: Dispatcher = "",
    resolver: Resolver = "",
    output: Output = Format.TABLE,
) -> None:
    """Workers, queues and throughput, live until Ctrl-C (exit code 130); printed once where the output is no
    terminal."""
    from hossctl.views.status import TopView, fetch_status

    endpoints = Endpoints(dispatcher, resolver)
    if output.for_people and sys.stdout.isatty() and not once:
        try:
            run_async(_live(endpoints, interval))
        except KeyboardInterrupt:  # how a user ends it
            raise typer.Exit(EXIT_INTERRUPTED) from None
    seen = TopView.of(run_async(fetch_status(endpoints)))
    if output.for_people:
        print_lines(seen.lines())
    else:
        print_document(seen.as_json(), output)


async def _live(endpoints: Endpoints, interval_seconds: float) -> None:
    import asyncio

    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    from hossctl.views.status import TopView, fetch_status

    # The first request is outside of the loop: it fails at once where there is no platform.
    shown = TopView.of(await fetch_status(endpoints)).lines()
    with Live(console=Console(highlight=False), auto_refresh=False, screen=True) as screen:
        while True:
            screen.update(Text(printable("\n".join(shown)), no_wrap=True, overflow="ellipsis"), refresh=True)
            await asyncio.sleep(interval_seconds)
            try:
                shown = TopView.of(await fetch_status(endpoints)).lines()
            except (
                LedgerUnavailable,
                TransportError,
            ) as exc:  # a service restarts; the next request may succeed
                shown = [f"PROBLEM {exc}"]
