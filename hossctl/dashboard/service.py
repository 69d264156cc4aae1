"""The process of `hoss dashboard --listen`: composed from its options, and served until it is asked to
end."""

import contextlib
from dataclasses import dataclass
from pathlib import Path

from hoss import telemetry
from hoss.host import Host
from hoss.kube.config import KubernetesConfig
from hoss.kube.token_review import service_accounts_reviewed
from hoss.security.options import (
    SecurityConfig,
    check_insecure,
    door_source,
    host_of,
    metrics_door,
    of_loopback,
    verifier_of,
)
from hoss.serving import announce_ready
from hoss.tasks import background
from hoss.telemetry.endpoint import metrics_endpoint
from hoss.telemetry.metrics import LoopDelay, Metrics, process_source
from hossctl.dashboard.access import DashboardAccess, read_token
from hossctl.dashboard.server import Dashboard
from hossctl.dashboard.view_model import ViewModel
from hossctl.endpoints import Endpoints, clients_of

_SERVICE = "dashboard"


@dataclass(frozen=True, slots=True)
class DashboardOptions:
    """`listen`: host:port, port 0 takes a free one. `https`: on loopback, too, where `endpoints` have a
    certificate. `token_file`: with a token that lets viewers cordon and drain. `hosts`: names by which
    browsers may reach it. `authentication`: an AuthenticationConfig document. `cluster`: whose API server is
    asked about tokens of ServiceAccounts. `insecure`: listen beyond loopback without a certificate.
    `metrics_listen`: where Prometheus reads metrics; "": nowhere."""

    listen: str
    endpoints: Endpoints
    https: bool = False
    token_file: Path | None = None
    hosts: tuple[str, ...] = ()
    authentication: Path | None = None
    cluster: KubernetesConfig | None = None
    insecure: bool = False
    metrics_listen: str = ""


async def serve(options: DashboardOptions, ready_file: Path | None) -> None:
    """Serve until SIGTERM. Raises ConfigError for options that cannot be used."""
    telemetry.configure(_SERVICE)
    # Browsers get the certificate that it calls with. So viewers of a platform with TLS have to log in,
    # whoever started the dashboard.
    tls_dir = options.endpoints.certificate_directory()
    config = SecurityConfig(tls_dir=tls_dir, insecure=options.insecure)
    host = host_of(config, options.listen, options.authentication, metrics_listen=options.metrics_listen)
    reviews = service_accounts_reviewed(options.cluster, "hoss-dashboard", host=host)
    dashboard = _dashboard(options, config, host)
    try:
        port = await dashboard.start(options.listen)
        async with contextlib.AsyncExitStack() as stack:
            clients = await stack.enter_async_context(clients_of(options.endpoints))
            view_model = ViewModel(
                clients.dispatcher,
                clients.resolver,
                clock=host.monotonic,
                unix_clock=host.unix,
                rng=host.rng,
            )
            await stack.enter_async_context(dashboard.showing(view_model))
            delay = LoopDelay()
            doors = door_source(_SERVICE, host, dashboard.table_sizes)
            metrics = Metrics(process_source(_SERVICE), delay, doors)
            door = metrics_door(options.metrics_listen, False, config, host)
            metrics_port = await stack.enter_async_context(
                metrics_endpoint(options.metrics_listen, metrics, door)
            )
            await stack.enter_async_context(background(delay.run()))
            announce_ready(
                ready_file,
                dashboard_port=port,
                dashboard_tls=int(dashboard.speaks_tls),
                metrics_port=metrics_port,
                service=_SERVICE,
            )
            await host.until_stopped()
    finally:
        await dashboard.stop()
        if reviews is not None:
            await reviews.close()


def _dashboard(options: DashboardOptions, config: SecurityConfig, host: Host) -> Dashboard:
    check_insecure(config, options.listen, "--listen")
    tls = None
    if config.tls_dir is not None and (options.https or not of_loopback(options.listen)):
        from hoss.security.transport import TlsFiles, server_context  # noqa: PLC0415 - for TLS alone

        tls = server_context(TlsFiles(config.tls_dir), clients_certified=False)
    access = DashboardAccess(
        read_token(options.token_file) if options.token_file else "",
        verifier_of(host),
        hosts=options.hosts,
        secure=tls is not None,
        clock=host.monotonic,
        rng=host.rng,
    )
    return Dashboard(access, tls)
