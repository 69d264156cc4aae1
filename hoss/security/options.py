"""The part of the three services' configuration documents and flags that is about who may connect."""

import argparse
import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hoss import rpc
from hoss.config import Document, load_document
from hoss.errors import ConfigError, InvariantViolation
from hoss.host import THIS_HOST, Host
from hoss.security.identity import CallerKind
from hoss.security.users import KIND as AUTHENTICATION_KIND
from hoss.security.users import AuthenticationConfig
from hoss.serving import Server
from hoss.telemetry import logger
from hoss.telemetry.metrics import GAUGE, Family, Metric, Source, TableSizes, tables_source

if TYPE_CHECKING:
    import grpc.aio

    from hoss.security.access import Authenticator
    from hoss.security.tokens import TokenVerifier
    from hoss.telemetry.endpoint import MetricsDoor


CERTIFICATE_ENDS = Metric(
    "hoss_certificate_not_after_seconds",
    GAUGE,
    "Until when the service's certificate is valid, Unix seconds; of a service that speaks TLS.",
)
METRICS = (CERTIFICATE_ENDS,)


class SecurityConfig(Document):
    """Part of every service's document."""

    # A directory with ca.crt, tls.crt and tls.key, as a Secret of Kubernetes has them; `hoss certs issue`
    # makes one. With it the service speaks mutual TLS alone. It also takes bearer tokens if there is a
    # tokens.pem, and refuses what the file `revoked` lists. Changed files are taken without a restart.
    tls_dir: Path | None = None

    # Listen beyond loopback without TLS: whoever reaches the port may do anything.
    insecure: bool = False

    # Describe the service to whoever may ask by gRPC reflection, as grpcurl does. `hoss up` has it on.
    reflection: bool = False


def add_security_flags(parser: argparse.ArgumentParser) -> None:
    """Flags for these fields."""
    parser.add_argument(
        "--tls-dir",
        type=Path,
        metavar="DIR",
        help="ca.crt, tls.crt and tls.key for mutual TLS; `hoss certs issue` makes them",
    )
    parser.add_argument(
        "--insecure",
        action="store_true",
        default=None,
        help="listen beyond loopback without TLS: whoever reaches the port may do anything",
    )
    parser.add_argument(
        "--reflection",
        action="store_true",
        default=None,
        help="describe the service by gRPC reflection, as grpcurl asks for it",
    )


def add_authentication_flag(parser: argparse.ArgumentParser) -> None:
    """The flag for the field `authentication` of services that people and programs call."""
    parser.add_argument(
        "--authentication",
        type=Path,
        metavar="FILE",
        help=(
            f"an {AUTHENTICATION_KIND} document: OpenID Connect issuers, ServiceAccounts, roles of their"
            " users"
        ),
    )


def security_given(flags: argparse.Namespace) -> dict[str, Any]:
    """The fields' values by the flags; None for a flag that is not given."""
    return {"tls_dir": flags.tls_dir, "insecure": flags.insecure, "reflection": flags.reflection}


class SecuredHost(Host):
    """This machine, with mutual TLS on every server and channel, and access control in every server. `tokens`
    says who bears a token, and `authenticator` who calls, for every door of the service."""

    def __init__(
        self,
        directory: Path,
        authentication: AuthenticationConfig | None = None,
        *,
        kind: CallerKind | None = None,
    ) -> None:
        """`kind`: of the service; None: a client's. Raises ConfigError for a directory without usable files,
        for the certificate of another kind of service, and for an unusable file of an issuer."""
        from hoss.security.tokens import REVOKED_FILE, RevocationList  # noqa: PLC0415 - for TLS alone
        from hoss.security.transport import TlsFiles  # noqa: PLC0415 - for TLS alone

        super().__init__()
        self._files: TlsFiles = TlsFiles(directory, kind=kind, utc_now=self.utc_now)
        self._files.check_times(self.utc_now())
        if problem := self._files.exposed_key():
            logger().warning("key_exposed", problem=problem)
        self._revoked = RevocationList(directory / REVOKED_FILE)
        self.authentication = authentication or AuthenticationConfig()
        self.tokens = self._verifier()
        self.authenticator: Authenticator = self._asking()

    def channel(
        self, addresses: Sequence[str], *, kind: str = "", service: str = "", retried: Sequence[str] = ()
    ) -> "grpc.aio.Channel":
        return rpc.channel(addresses, kind=kind, service=service, retried=retried, connect=self._connect)

    def server(self, interceptors: "Sequence[grpc.aio.ServerInterceptor]" = ()) -> Server:
        from hoss.security.access import AccessControl  # noqa: PLC0415 - for TLS alone
        from hoss.security.transport import server_credentials  # noqa: PLC0415 - for TLS alone

        guarded = [interceptor for interceptor in interceptors if hasattr(interceptor, "guard_by")]
        if not guarded:
            raise InvariantViolation("a server with TLS has no interceptor that asks for rights")
        for interceptor in guarded:
            interceptor.guard_by(AccessControl(self.authenticator))
        return Server(credentials=server_credentials(self._files), interceptors=interceptors)

    def certificate_ends(self) -> float:
        """Until when the present certificate is valid, Unix seconds."""
        from hoss.security.transport import validity  # noqa: PLC0415 - for TLS alone

        return validity(self._files.latest().certificate)[1].timestamp()

    def table_sizes(self) -> Mapping[str, int]:
        """The entries of what is remembered of callers, their certificates and tokens."""
        return self.authenticator.table_sizes()

    def metrics_door(self) -> "MetricsDoor":
        """Mutual TLS before the endpoint of metrics, and who may read."""
        from hoss.security.access import MetricsReaders  # noqa: PLC0415 - for TLS alone
        from hoss.security.transport import server_context  # noqa: PLC0415 - for TLS alone
        from hoss.telemetry.endpoint import MetricsDoor  # noqa: PLC0415 - for TLS alone

        readers = MetricsReaders(self.authenticator)
        return MetricsDoor(server_context(self._files, clients_certified=True), readers.refusal)

    def _asking(self) -> "Authenticator":
        from hoss.security.access import Authenticator  # noqa: PLC0415 - for TLS alone

        return Authenticator(self._revoked, self.tokens, unix_clock=self.unix)

    def _verifier(self) -> "TokenVerifier":
        from hoss.security.tokens import PUBLIC_KEYS_FILE, TokenVerifier  # noqa: PLC0415 - for TLS alone

        keys = self._files.directory / PUBLIC_KEYS_FILE
        verifier = TokenVerifier(
            keys, self._revoked, unix_clock=self.unix, authentication=self.authentication
        )
        for issuer in self.authentication.oidc:
            from hoss.security.oidc import IssuerKeys, OidcTokens  # noqa: PLC0415 - with an issuer alone

            issued_by = IssuerKeys(issuer, clock=self.monotonic, beside_the_loop=self.beside_the_loop)
            verifier.also_ask(OidcTokens(issuer, issued_by, unix_clock=self.unix))
        return verifier

    def _connect(self, kind: str, target: str, options: Sequence[tuple[str, Any]]) -> "grpc.aio.Channel":
        from hoss.security.transport import secure_channel  # noqa: PLC0415 - for TLS alone

        return secure_channel(self._files, CallerKind(kind), target, options)


def host_of(
    config: SecurityConfig,
    listen: str,
    authentication: Path | None = None,
    *,
    kind: CallerKind | None = None,
    metrics_listen: str = "",
) -> Host:
    """The host of a service of this kind (None: of a client) that listens there, and for Prometheus at
    `metrics_listen`. `authentication`: an AuthenticationConfig document, of a
    service that people and programs call. Raises ConfigError where it would listen beyond loopback without
    TLS and nobody said that it may."""
    if config.tls_dir is not None:
        document = load_document(authentication, AUTHENTICATION_KIND, AuthenticationConfig)
        return SecuredHost(config.tls_dir, document, kind=kind)
    if authentication is not None:
        raise ConfigError(
            "is about tokens, which travel over TLS alone: give --tls-dir too", where="authentication"
        )
    check_insecure(config, listen, "listen")
    check_insecure(config, metrics_listen, "metrics_listen")
    return THIS_HOST


def verifier_of(host: Host) -> "TokenVerifier | None":
    """What tells whose a token is, at every door of a service; None where nobody is asked for one."""
    return host.tokens if isinstance(host, SecuredHost) else None


def door_tables(host: Host) -> Mapping[str, int]:
    """The entries of what the doors of a service remember; none where nobody is asked who he is."""
    return host.table_sizes() if isinstance(host, SecuredHost) else {}


def door_source(service: str, host: Host, *owners: TableSizes) -> Source:
    """A metrics source of a service: until when its certificate is valid, and the tables of its doors and of
    these owners."""
    tables = tables_source(service, lambda: door_tables(host), *owners)

    def collect() -> Iterator[Family]:
        yield from tables()
        if isinstance(host, SecuredHost):
            yield CERTIFICATE_ENDS.single(host.certificate_ends())

    return collect


def check_insecure(config: SecurityConfig, listen: str, where: str) -> None:
    """Without TLS: raises ConfigError where an address is beyond loopback and nobody said that it may be."""
    if config.tls_dir is not None or of_loopback(listen):
        return
    if not listen.rpartition(":")[2].isdecimal():
        return  # it is no address, as whoever listens there says
    if not config.insecure:
        raise ConfigError(
            f"{listen!r} is reached from other machines, and without TLS whoever reaches it may do "
            "anything: give --tls-dir (`hoss certs issue` makes one), or --insecure if nobody else is "
            "on that network",
            where=where,
        )
    logger().warning("insecure", listen=listen, meaning="no TLS: whoever reaches this port may do anything")


def metrics_door(listen: str, metrics_tls: bool, config: SecurityConfig, host: Host) -> "MetricsDoor | None":
    """What the endpoint of metrics at `listen` is behind; None: nothing, which is for loopback alone, unless
    the service is told `insecure` (check_insecure). Raises ConfigError where there are no files for
    `metrics_tls`."""
    if not listen:
        return None
    if config.tls_dir is None:
        if metrics_tls:
            raise ConfigError("takes a certificate: give --tls-dir too", where="metrics_tls")
        return None
    if not metrics_tls and of_loopback(listen):
        return None
    secured = host if isinstance(host, SecuredHost) else SecuredHost(config.tls_dir)
    return secured.metrics_door()


def of_loopback(listen: str) -> bool:
    """Whether only this machine reaches "host:port"."""
    name = listen.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"
