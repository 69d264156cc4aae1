"""The accounts of HOSS in Redis: which keys and commands each service needs, and no others. This is the one
place that says so; `hoss redis accounts`, `hoss up` and the manifests under deploy/ have it from here.

    hoss-dispatcher   the journal and the lease, under `{hoss}:journal:`
    hoss-resolver     the ledger: its shards `{hoss:N}:`, and what belongs to all of them
    hoss              everything of both, and to look for keys: for benchmarks and for a single account

Passwords are random and 256 bits long, so their SHA-256, which is all that Redis is told, gives nothing
away."""

import hashlib
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

USERS_FILE = "users.acl"
_PASSWORD_BYTES = 32

# What redis-py sends by itself, on one server, under Sentinel and on a Cluster. Every name is one of Redis
# 6.2: Redis refuses its whole configuration for a single command or subcommand that it does not know.
_CONNECTION = ("hello", "ping", "select", "command", "info", "cluster|slots")
_SCRIPTS = ("script|load", "evalsha")
_JOURNAL = (
    *("get", "set", "del", "incrby", "exists"),
    *("hget", "hset", "hmget", "hdel", "hlen", "hscan", "sadd", "smembers", "srem"),
)
_LEDGER = (
    *("multi", "exec", "time", "get", "getrange", "set", "setrange", "incrby"),
    *("del", "unlink", "exists", "rename"),
    *("hget", "hset", "hmget", "hmset", "hdel", "hsetnx", "hexists", "hgetall", "hincrby", "hkeys", "hlen"),
    *("hscan", "lrange", "rpush", "xadd", "xrange", "xread", "xlen", "zadd", "zcard", "zmscore"),
    *("zrangebyscore", "zrem"),
)
_SEARCH = ("scan",)


@dataclass(frozen=True, slots=True)
class RedisAccount:
    """A user of Redis. `keys`: patterns of Redis; `commands`: names, with `|` before a subcommand."""

    name: str
    keys: tuple[str, ...]
    commands: tuple[str, ...]

    @property
    def rights(self) -> str:
        """As ACL SETUSER takes them, after the password."""
        keys, commands = (f"~{key}" for key in self.keys), (f"+{command}" for command in self.commands)
        return " ".join((*keys, "resetchannels", "-@all", *commands))

    @property
    def password_file(self) -> str:
        """The name of the file with the password, in the directory of `written_accounts`."""
        return f"{self.name}.password"

    def acl_line(self, password: str) -> str:
        """Its line in an ACL file or in redis.conf. The line has a hash of the password."""
        digest = hashlib.sha256(password.encode()).hexdigest()
        return f"user {self.name} on #{digest} {self.rights}"

    @property
    def command(self) -> str:
        """The command that makes it on a running server, with PASSWORD for the password."""
        return f"ACL SETUSER {self.name} on >PASSWORD {self.rights}"


DISPATCHER = RedisAccount("hoss-dispatcher", ("{hoss}:journal:*",), (*_CONNECTION, *_SCRIPTS, *_JOURNAL))
RESOLVER = RedisAccount(
    "hoss-resolver",
    ("{hoss:*", "{hoss}:schema", "{hoss}:epochs", "{hoss}:grants"),
    (*_CONNECTION, *_SCRIPTS, *_LEDGER),
)
EVERYTHING = RedisAccount(
    "hoss", ("{hoss*",), tuple(dict.fromkeys((*_CONNECTION, *_SCRIPTS, *_JOURNAL, *_LEDGER, *_SEARCH)))
)
OF_SERVICES = (DISPATCHER, RESOLVER)
ACCOUNTS = (*OF_SERVICES, EVERYTHING)


def account_lines(directory: Path) -> list[str]:
    """Lines for redis.conf or an ACL file that make the services' accounts. Their passwords are in the
    directory, and are made where they are not there."""
    return [account.acl_line(password_in(directory / account.password_file)) for account in OF_SERVICES]


def written_accounts(directory: Path) -> Path:
    """Write the ACL file of a Redis that HOSS alone uses, and the services' passwords where they are not
    there; the path of the ACL file. Without a password one can do nothing: the user `default` is off."""
    lines = ["user default off", *account_lines(directory)]
    path = directory / USERS_FILE
    fresh = directory / f".{USERS_FILE}.new"
    # Redis runs as another user, and hashes give nothing away.
    fresh.write_text("".join(f"{line}\n" for line in lines), encoding="ascii")
    fresh.chmod(0o644)
    fresh.replace(path)
    return path


def password_in(path: Path) -> str:
    """The password in a file, which is made, for its user alone, if it is not there."""
    if not path.exists():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_urlsafe(_PASSWORD_BYTES))
    return path.read_text("ascii").strip()
