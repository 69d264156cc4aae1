"""What --redis-url takes."""

import pytest
from redis.asyncio import Connection

from hoss.errors import ConfigError
from hoss.redis.access import reach
from hoss.redis.url import PASSWORD_VARIABLE, parse_redis_url, without_password


def test_one_server_by_host_port_and_database():
    url = parse_redis_url("redis://cache:7000/3", {})
    assert (url.form, url.hosts, url.options) == ("", (("cache", 7000),), {"db": 3})


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("redis://cache", (("cache", 6379),)),
        ("redis+cluster://a:1,b", (("a", 1), ("b", 6379))),
        ("redis+sentinel://a,b:2/main", (("a", 26379), ("b", 2))),
        ("redis://[::1]:7000", (("::1", 7000),)),
    ],
)
def test_ports_default_to_those_of_the_form(text, hosts):
    assert parse_redis_url(text, {}).hosts == hosts


def test_sentinel_names_the_service_and_has_an_account_of_its_own(tmp_path):
    (tmp_path / "secret").write_text("of-sentinel\n")
    query = f"sentinel_username=watch&sentinel_password_file={tmp_path}/secret"
    url = parse_redis_url(f"rediss+sentinel://hoss:pw@a:1/main/2?{query}", {})
    assert (url.service, url.options) == (
        "main",
        {"ssl": True, "username": "hoss", "password": "pw", "db": 2},
    )
    assert url.sentinel_options == {"ssl": True, "username": "watch", "password": "of-sentinel"}


def test_a_socket_by_its_path():
    assert parse_redis_url("unix:///run/redis.sock", {}).options == {"unix_socket_path": "/run/redis.sock"}


def test_a_password_comes_from_the_url_else_a_file_else_the_environment(tmp_path):
    (tmp_path / "secret").write_text("filed\n")
    environment = {PASSWORD_VARIABLE: "around"}
    named = f"password_file={tmp_path}/secret"
    assert parse_redis_url(f"redis://u:p%40ss@h?{named}", environment).options["password"] == "p@ss"
    assert parse_redis_url(f"redis://u@h?{named}", environment).options["password"] == "filed"
    assert parse_redis_url("redis://u@h", environment).options["password"] == "around"


def test_tls_options_reach_the_client():
    options = parse_redis_url("rediss://h?ssl_ca_certs=/ca.pem&ssl_check_hostname=false", {}).options
    assert options == {"db": 0, "ssl": True, "ssl_ca_certs": "/ca.pem", "ssl_check_hostname": False}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("http://h", "http: write redis://"),
        ("cache:6379", "write redis://"),
        ("redis+ring://h", r"redis\+ring: write"),
        ("redis://", "a host is missing"),
        ("redis://h:port", "h:port"),
        ("redis://h:99999", "h:99999"),
        ("redis://a,b", "several hosts"),
        ("redis://h/zero", "zero is no database"),
        ("redis+cluster://h/1", "database 0 alone"),
        ("redis+sentinel://h", "name of the master's service"),
        ("unix://", "path is missing"),
        ("redis://h?ssl_ca_certs=/ca.pem", "write rediss instead of redis"),
        ("redis://h?timeout=1", "unknown option timeout"),
        ("redis://u@h?password_file=/not/there", "/not/there cannot be read"),
    ],
)
def test_a_wrong_url_is_refused_with_the_part_that_is_wrong(text, message):
    with pytest.raises(ConfigError, match=message) as refused:
        parse_redis_url(text, {})
    assert refused.value.where == "redis_url"


@pytest.mark.parametrize(
    "written", ["secret/of@h", "secret?of@h", "secret#of@h", "of/secret@h", "of?secret@h"]
)
def test_a_password_that_ends_the_host_is_refused_with_how_to_write_it(written):
    with pytest.raises(ConfigError, match="write %2F for / in it") as refused:
        parse_redis_url(f"redis://u:{written}", {})
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        "redis://u:secret@h/x",
        "http://:secret@h",
        "redis://u:secret@h?what=1",
        "redis://h?password=secret",
        "redis+sentinel://h/main?sentinel_password=secret",
        "redis://u:[secret@h",
    ],
)
def test_no_message_shows_the_password(text):
    with pytest.raises(ConfigError) as refused:
        parse_redis_url(text, {})
    assert "secret" not in str(refused.value)
    assert "secret" not in repr(parse_redis_url("redis://u:secret@h", {}))


def test_the_password_is_taken_out_of_a_url():
    assert without_password("redis://u:p%40ss@h:1/2") == ("redis://u@h:1/2", "p@ss")
    assert without_password("redis://h:1/2") == ("redis://h:1/2", "")
    assert without_password("unix://:p@/run/redis.sock") == ("unix://@/run/redis.sock", "p")
    filed = "redis://h:1/2?password_file=/home/me@work/redis"
    assert without_password(filed) == (filed, "")


@pytest.mark.parametrize("connections", [None, 4])
@pytest.mark.parametrize("url", ["redis://a", "rediss://a", "unix:///a", "redis+sentinel://a/main"])
async def test_commands_are_packed_by_hiredis_in_one_piece_and_as_redis_py_would(url, connections):
    access = reach(url, timeout_seconds=1, connections=connections)
    connection = (await access.at("key")).connection_pool.make_connection()
    for command in (
        ("SCRIPT LOAD", "return 1"),
        ("EVALSHA", "00", 2, b"\0\r\n", "\u00e4", 1.5, b"x" * 10_000),
        (b"PING",),
    ):
        assert connection.pack_command(*command) == [b"".join(Connection().pack_command(*command))]
    await access.close()
