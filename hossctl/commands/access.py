"""certs, redis, token, login, context: who may connect to a platform, and with what this user's commands
connect."""

import sys
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hoss import contexts
from hoss.errors import HossError, InvalidInput, NotFound
from hoss.host import THIS_HOST
from hoss.security.identity import CallerKind, Identity, Role
from hossctl.console import Column, Format, print_document, print_rows, say
from hossctl.endpoints import read_addresses
from hossctl.options import Output

if TYPE_CHECKING:
    from hoss.security.authority import Authority, Issued

app = typer.Typer()
certs = typer.Typer(
    no_args_is_help=True, help="The authority of a platform, and certificates that it issues."
)
token = typer.Typer(no_args_is_help=True, help="Bearer tokens of people and programs.")
redis = typer.Typer(no_args_is_help=True, help="The accounts of HOSS in Redis.")
context = typer.Typer(no_args_is_help=True, help="The platforms that this user's commands know.")
app.add_typer(certs, name="certs")
app.add_typer(redis, name="redis")
app.add_typer(token, name="token")
app.add_typer(context, name="context")

_SECONDS = {"m": 60, "h": 3600, "d": 86_400}
_LONGEST_DAYS = 3650

Directory = Annotated[
    Path | None,
    typer.Option("--authority", metavar="DIR", help="Of the authority; the local platform's if not given."),
]
RoleOption = Annotated[Role, typer.Option(help="What the client may do; each role includes those before it.")]
Tenant = Annotated[str, typer.Option(help="Show and change only this tenant's pods (view and submit).")]
Lifetime = Annotated[str, typer.Option("--ttl", metavar="TIME", help="90m, 12h, 30d.")]


@certs.command("init")
def init(*, directory: Directory = None, output: Output = Format.TABLE) -> None:
    """Make an authority: its key, and the key that signs tokens. All services of a platform trust one."""
    from hoss.security.authority import Authority

    made = Authority.create(_directory(directory), now=THIS_HOST.utc_now())
    if output.for_people:
        say(f"authority in {made.directory}; next: hoss certs issue dispatcher, resolver, worker/NAME")
    else:
        print_document({"directory": str(made.directory)}, output)


@certs.command("issue")
def issue(
    identity: Annotated[
        str, typer.Argument(metavar="IDENTITY", help="dispatcher, resolver, worker/NAME or client/NAME.")
    ],
    *,
    role: RoleOption = Role.NONE,
    tenant: Tenant = "",
    host: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Of a service: a further DNS name or address.")
    ] = None,
    lifetime: Lifetime = "365d",
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where to write ca.crt, tls.crt, tls.key and the token keys."),
    ] = None,
    directory: Directory = None,
    output: Output = Format.TABLE,
) -> None:
    """Write a directory for --tls-dir or HOSS_TLS_DIR: a certificate for this identity, and its key."""
    kind, _, name = identity.partition("/")
    if kind not in {known.value for known in CallerKind}:
        known_kinds = "dispatcher, resolver, worker/NAME or client/NAME"
        raise InvalidInput(f"{identity!r} is none of {known_kinds}", where="IDENTITY")
    issued = _authority(directory).issue(
        Identity(CallerKind(kind), name, role, tenant),
        now=THIS_HOST.utc_now(),
        lifetime=_lifetime(lifetime),
        hosts=tuple(host or ()),
        into=out,
    )
    _report([issued], output, f"certificate of {issued.identity} in {issued.directory}")


@certs.command("show")
def show(*, directory: Directory = None, output: Output = Format.TABLE) -> None:
    """The certificates that this authority has issued, wherever they were written, and what is revoked.

    Several for one identity: it was renewed, or issued more than once, and all are good until they end."""
    rows = [_row(record) for record in _authority(directory).known(now=THIS_HOST.utc_now())]
    if not output.for_people:
        print_document({"certificates": rows}, output)
        return
    columns = [
        Column("IDENTITY", _field("identity")),
        Column("ROLE", _field("role")),
        Column("TENANT", _field("tenant")),
        Column("NOT AFTER", _field("notAfter")),
        Column("REVOKED", _field("revoked")),
        Column("SERIAL", _field("serial")),
    ]
    print_rows(rows, columns)


@certs.command("renew")
def renew(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[IDENTITY...]", help="All that are issued if none is given."),
    ] = None,
    *,
    lifetime: Lifetime = "365d",
    directory: Directory = None,
    output: Output = Format.TABLE,
) -> None:
    """Issue certificates anew, for the same keys. Running services take them without a restart."""
    authority = _authority(directory)
    chosen = [authority.named(name) for name in names] if names else list(authority.issued())
    now = THIS_HOST.utc_now()
    renewed = [authority.renew(held, now=now, lifetime=_lifetime(lifetime)) for held in chosen]
    _report(renewed, output, f"renewed: {', '.join(str(held.identity) for held in renewed) or 'none'}")


@certs.command("revoke")
def revoke_certificate(
    identity: Annotated[str, typer.Argument(metavar="IDENTITY", help="As client/ana or worker/w1.")],
    *,
    directory: Directory = None,
) -> None:
    """Have services refuse all certificates of an identity, from the next call on: also those that were
    written elsewhere (--out), and those that were renewed since."""
    authority = _authority(directory)
    revoked = authority.revoke_identity(identity, now=THIS_HOST.utc_now())
    _say_revoked(f"{revoked} of {identity}", authority)


@certs.command("deployment")
def deployment(
    to: Annotated[
        Path | None,
        typer.Argument(metavar="[DIR]", help="A folder in it for each service; not with --secrets."),
    ] = None,
    *,
    secrets: Annotated[
        str, typer.Option(metavar="NAMESPACE", help="Make Secrets there: of the cluster this is a pod of.")
    ] = "",
    kubeconfig: Annotated[
        Path | None, typer.Option(metavar="FILE", help="With --secrets: of another cluster.")
    ] = None,
    workers: Annotated[
        str,
        typer.Option(metavar="NAME", help="Of the workers' certificate; * at its end stands for any name."),
    ] = "*",
    certificates: Annotated[
        bool, typer.Option(help="Also certificates; without, only accounts of Redis, as with cert-manager.")
    ] = True,
) -> None:
    """Make or renew all that a deployment's services need: certificates, and accounts of its Redis.

    It may run again at any time: it makes what is missing and renews what is due."""
    from hoss.kube.config import KubernetesConfig
    from hossctl.cli import run_async
    from hossctl.local.deployment import Deployment, fill, fill_secrets

    if bool(to) == bool(secrets):
        raise InvalidInput("give either a directory or --secrets NAMESPACE", where="DIR")
    asked, now = Deployment(workers, certificates), THIS_HOST.utc_now()
    if to is not None:
        fill(to, asked, now=now)
        say(f"certificates and accounts in {to}")
        return

    async def write_secrets() -> list[str]:
        config = KubernetesConfig(kubeconfig=kubeconfig)
        api = config.api("hoss-credentials", clock=THIS_HOST.monotonic, rng=THIS_HOST.rng)
        try:
            return await fill_secrets(api, secrets, asked, now=now)
        finally:
            await api.close()

    say(f"written in {secrets}: {', '.join(run_async(write_secrets())) or 'nothing, all is current'}")


@redis.command("accounts")
def redis_accounts(
    *,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write an ACL file and passwords instead.")
    ] = None,
    output: Output = Format.TABLE,
) -> None:
    """Print the commands that make the accounts of HOSS in Redis, with the keys and commands of each."""
    from hoss.redis.accounts import ACCOUNTS, written_accounts

    if out is not None:
        out.mkdir(mode=0o755, parents=True, exist_ok=True)
        say(f"for redis-server --aclfile: {written_accounts(out)}; the passwords are beside it")
    elif output.for_people:
        for account in ACCOUNTS:
            typer.echo(account.command)
    else:
        shown = [{"name": a.name, "keys": list(a.keys), "commands": list(a.commands)} for a in ACCOUNTS]
        print_document({"accounts": shown}, output)


@token.command("create")
def create_token(
    *,
    role: RoleOption,
    name: Annotated[str, typer.Option(help="Whose token it is, for the audit log.")] = "token",
    tenant: Tenant = "",
    lifetime: Lifetime = "30d",
    directory: Directory = None,
) -> None:
    """Print a token. It is kept nowhere else; `hoss token revoke` ends it before its time."""
    made = _authority(directory).create_token(
        Identity(CallerKind.CLIENT, name, role, tenant), now=THIS_HOST.utc_now(), lifetime=_lifetime(lifetime)
    )
    typer.echo(made)


@token.command("list")
def list_tokens(*, directory: Directory = None, output: Output = Format.TABLE) -> None:
    """The tokens that this authority has made: ids, bearers and expiries."""
    found = _authority(directory).tokens()
    if not output.for_people:
        print_document({"tokens": found}, output)
        return
    fields = ("id", "name", "role", "tenant", "expires", "revoked")
    print_rows(found, [Column(field.upper(), _field(field)) for field in fields])


@token.command("rotate-key")
def rotate_token_key(
    *,
    at_once: Annotated[
        bool, typer.Option("--at-once", help="End the tokens of the key before, too, as after a theft.")
    ] = False,
    directory: Directory = None,
) -> None:
    """Sign tokens by a new key. Those of the key before stay good until they expire, and older ones end."""
    authority = _authority(directory)
    authority.rotate_token_key(at_once=at_once)
    say(
        "tokens are signed by a new key; services elsewhere need the file"
        f" {authority.directory / 'tokens.pem'} before they take them"
    )


@token.command("revoke")
def revoke_token(
    token_id: Annotated[
        str,
        typer.Argument(
            metavar="ID", help="As `hoss token list` shows it; or a user of an issuer, as oidc:ana."
        ),
    ],
    *,
    directory: Directory = None,
) -> None:
    """Have services refuse a token, from the next call on."""
    authority = _authority(directory)
    authority.revoke_token(token_id, now=THIS_HOST.utc_now())
    _say_revoked(f"token {token_id}", authority)


@app.command("login")
def login(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What this platform is called here.")],
    *,
    dispatcher: Annotated[str, typer.Option(metavar="HOST:PORT[,...]", help="All there are.")],
    resolver: Annotated[str, typer.Option(metavar="HOST:PORT[,...]", help="Any of them answers.")] = "",
    tls_dir: Annotated[
        Path,
        typer.Option(metavar="DIR", help="ca.crt, tls.crt and tls.key, of `hoss certs issue client/NAME`."),
    ],
    token_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="With a token (-: standard input); else the certificate's role."),
    ] = None,
    token_command: Annotated[
        str,
        typer.Option(metavar="COMMAND", help="Prints a token, or an ExecCredential as kubectl's plugins do."),
    ] = "",
) -> None:
    """Remember a platform with its certificate and token, and use it from now on. The token is tried first.

    A command is run for each token that is needed, without a shell. A token may be the platform's own, an
    OpenID Connect issuer's, or a ServiceAccount's, as the platform is configured."""
    from hoss.client.access import ClientAccess
    from hoss.client.dispatcher import DispatcherClient
    from hossctl.cli import run_async

    addresses = read_addresses(dispatcher, "--dispatcher")
    if token_file and token_command:
        raise InvalidInput("give one of --token-file and --token-command", where="--token-command")
    bearer = _read_token(token_file) if token_file else ""
    access = ClientAccess(tls_dir.resolve(), bearer, token_command=token_command)

    async def try_it() -> None:
        async with DispatcherClient(addresses, open_channel=access.channel) as client:
            await client.list_jobs(name="hoss-login")

    run_async(try_it())
    known = contexts.load_contexts(contexts.home())
    made = contexts.Context(dispatcher, resolver, str(access.tls_dir), bearer, token_command)
    contexts.save_contexts(contexts.home(), known.with_context(name, made).using(name))
    say(f"logged in: commands use {name} from now on; `hoss context use local` goes back")


@context.command("list")
def list_contexts(*, output: Output = Format.TABLE) -> None:
    """The platforms that are known, and which one commands use."""
    known = contexts.load_contexts(contexts.home())
    rows = [
        {"name": name, "current": name == (known.current or "local"), "dispatcher": held.dispatcher}
        for name, held in known.contexts.items()
    ]
    if not output.for_people:
        print_document({"contexts": rows}, output)
        return
    columns = [
        Column("CURRENT", lambda row: "*" if row["current"] else ""),
        Column("NAME", _field("name")),
        Column("DISPATCHER", _field("dispatcher")),
    ]
    print_rows(rows, columns)


def _complete_contexts(incomplete: str) -> list[str]:
    try:
        known = contexts.load_contexts(contexts.home()).contexts
    except HossError:
        return []
    return [name for name in {contexts.LOCAL: None, **known} if name.startswith(incomplete)]


@context.command("use")
def use_context(
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="local: that of `hoss up`.", autocompletion=_complete_contexts),
    ],
) -> None:
    """Have commands without addresses use this platform."""
    known = contexts.load_contexts(contexts.home())
    if name != "local" and name not in known.contexts:
        raise NotFound(f"there is no context {name!r}; `hoss context list` lists them, `hoss login` adds one")
    contexts.save_contexts(contexts.home(), known.using("" if name == "local" else name))
    say(f"commands use {name} from now on")


def _read_token(file: Path) -> str:
    if str(file) == "-":
        return sys.stdin.read().strip()
    from hoss.client.access import token_of_file

    return token_of_file(file)()


def _directory(given: Path | None) -> Path:
    from hossctl.local.platform import SECURITY_DIRECTORY

    return given or contexts.home() / SECURITY_DIRECTORY


def _say_revoked(what: str, authority: "Authority") -> None:
    say(f"revoked: {what}; services elsewhere need the file {authority.directory / 'revoked'}")


def _authority(given: Path | None) -> "Authority":
    from hoss.security.authority import Authority

    return Authority(_directory(given))


def _lifetime(text: str) -> timedelta:
    number, unit = text[:-1], text[-1:]
    if not number.isdecimal() or unit not in _SECONDS or not int(number) * _SECONDS[unit] > 0:
        raise InvalidInput(f"{text!r} is no time; write it as 90m, 12h or 30d", where="--ttl")
    if int(number) * _SECONDS[unit] > _LONGEST_DAYS * _SECONDS["d"]:
        raise InvalidInput(f"{text!r} is longer than {_LONGEST_DAYS} days", where="--ttl")
    return timedelta(seconds=int(number) * _SECONDS[unit])


def _report(made: "list[Issued]", output: Format, text: str) -> None:
    if output.for_people:
        say(text)
        return
    rows = [
        _row({**held.record, "revoked": "yes" if held.revoked else "no", "directory": str(held.directory)})
        for held in made
    ]
    print_document({"certificates": rows}, output)


def _row(record: dict[str, str]) -> dict[str, Any]:
    return {
        "identity": record["identity"],
        "role": record["role"],
        "tenant": record["tenant"],
        "notAfter": record["expires"],
        "revoked": record["revoked"],
        "serial": record["serial"],
        "fingerprint": record["fingerprint"],
        "directory": record["directory"],
    }


def _field(name: str) -> Any:
    return lambda row: row[name]
