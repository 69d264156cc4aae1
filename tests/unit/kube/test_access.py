"""Where a kubeconfig says that the API server is: directly, behind a proxy, under another name."""

import asyncio
import contextlib
import ssl
import sys
from collections.abc import AsyncIterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from aiohttp import web
from waiting import until

from hoss.certificates import issue, new_authority
from hoss.errors import ConfigError, TransportError
from hoss.kube.access import CachedToken, load_access
from hoss.kube.api import KubeApi

NAME = "api.cluster.internal"  # no such host; the certificate is for it alone


def kubeconfig(directory: Path, server: str, **cluster: str) -> Path:
    path = directory / "config"
    more = "".join(f", {key.replace('_', '-')}: {value!r}" for key, value in cluster.items())
    path.write_text(
        f"""
apiVersion: v1
kind: Config
current-context: here
clusters: [{{name: c, cluster: {{server: "{server}"{more}}}}}]
users: [{{name: u, user: {{token: made-up}}}}]
contexts: [{{name: here, context: {{cluster: c, user: u}}}}]
"""
    )
    return path


@contextlib.asynccontextmanager
async def api_server(directory: Path) -> AsyncIterator[int]:
    """HTTPS with a certificate for `NAME`, whose authority is in the file `ca.pem`; gives the port."""
    now = datetime.now(timezone.utc)
    authority = new_authority("test", now=now, lifetime=timedelta(days=1))
    pair = issue(authority, [NAME], now=now, lifetime=timedelta(days=1))
    (directory / "ca.pem").write_bytes(authority.certificate)
    (directory / "pair.pem").write_bytes(pair.certificate + pair.key)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(directory / "pair.pem")

    async def answer(_request: web.Request) -> web.Response:
        return web.json_response({"kind": "Status"})

    app = web.Application()
    app.router.add_get("/version", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def proxy(target_port: int) -> AsyncIterator[tuple[int, list[str]]]:
    """An HTTP proxy that tunnels every CONNECT to a port of this machine; gives its port and what it was
    asked for."""
    asked: list[str] = []
    tunnels: list[asyncio.Task[None] | None] = []

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def tunnel(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tunnels.append(asyncio.current_task())
        head = await reader.readuntil(b"\r\n\r\n")
        asked.append(head.split(b"\r\n")[0].decode())
        to, back = await asyncio.open_connection("127.0.0.1", target_port)
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await asyncio.gather(copy(reader, back), copy(to, writer))

    server = await asyncio.start_server(tunnel, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], asked
    finally:
        server.close()
        await asyncio.gather(*filter(None, tunnels))  # else a connection may outlive the loop


async def test_a_proxy_of_the_kubeconfig_is_used(tmp_path):
    async with api_server(tmp_path) as port, proxy(port) as (proxy_port, asked):
        path = kubeconfig(
            tmp_path,
            f"https://{NAME}:6443",
            proxy_url=f"http://127.0.0.1:{proxy_port}",
            certificate_authority=str(tmp_path / "ca.pem"),
        )
        api = KubeApi(load_access(path))
        assert await api.get("/version", patience_seconds=60) == {"kind": "Status"}
        await api.close()
    assert asked == [f"CONNECT {NAME}:6443 HTTP/1.1"]


async def test_the_servers_certificate_is_checked_for_the_name_that_the_kubeconfig_gives(tmp_path):
    async with api_server(tmp_path) as port:
        server, authority = f"https://127.0.0.1:{port}", str(tmp_path / "ca.pem")
        named = load_access(
            kubeconfig(tmp_path, server, tls_server_name=NAME, certificate_authority=authority)
        )
        api = KubeApi(named)
        assert await api.get("/version", patience_seconds=60) == {"kind": "Status"}
        await api.close()
        api = KubeApi(load_access(kubeconfig(tmp_path, server, certificate_authority=authority)))
        with pytest.raises(TransportError, match="certificate"):
            await api.send("GET", "/version")
        await api.close()


def test_a_proxy_of_the_environment_is_used_but_for_hosts_that_need_none(tmp_path, monkeypatch):
    path = kubeconfig(tmp_path, "https://10.0.0.1:6443")
    monkeypatch.setenv("https_proxy", "http://proxy:3128")
    monkeypatch.delenv("no_proxy", raising=False)
    assert load_access(path).proxy == "http://proxy:3128"
    monkeypatch.setenv("no_proxy", "10.0.0.1")
    assert load_access(path).proxy is None


def test_a_proxy_of_another_kind_is_refused(tmp_path):
    path = kubeconfig(tmp_path, "https://10.0.0.1:6443", proxy_url="socks5://127.0.0.1:1080")
    with pytest.raises(ConfigError, match=r"socks5://127.0.0.1:1080.*give an http:// or https:// proxy"):
        load_access(path)


# A credential plugin whose first token has expired before it is used. Afterwards it hangs until the file `go`
# is there, or until it has waited in vain.
_PLUGIN = """#!{python}
import json, pathlib, time
here = pathlib.Path("{here}")
token = "first"
if (here / "asked").exists():
    (here / "asked again").touch()
    deadline = time.monotonic() + 60
    while not (here / "go").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    token = "second" if (here / "go").exists() else "in-vain"
(here / "asked").touch()
status = {{"token": token, "expirationTimestamp": "2020-01-01T00:00:00Z"}}
print(json.dumps({{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status}}))
"""


async def test_a_credential_plugin_that_hangs_holds_up_requests_and_not_the_event_loop(tmp_path):
    plugin = tmp_path / "plugin"
    plugin.write_text(_PLUGIN.format(python=sys.executable, here=tmp_path))
    plugin.chmod(0o700)
    asked: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(request.headers["Authorization"])
        return web.json_response({"kind": "Status"})

    app = web.Application()
    app.router.add_get("/version", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    path = kubeconfig(tmp_path, f"http://127.0.0.1:{runner.addresses[0][1]}")
    user = f'{{apiVersion: client.authentication.k8s.io/v1, command: "{plugin}", interactiveMode: Never}}'
    path.write_text(path.read_text().replace("{token: made-up}", f"{{exec: {user}}}"))
    api = KubeApi(load_access(path))
    requests = [asyncio.ensure_future(api.send("GET", "/version")) for _ in range(3)]
    await until((tmp_path / "asked again").exists, "the plugin to be asked again")
    assert not any(request.done() for request in requests)
    (tmp_path / "go").touch()
    assert [reply.status for reply in await asyncio.gather(*requests)] == [200] * 3
    assert asked == ["Bearer second"] * 3
    await api.close()
    await runner.cleanup()


async def test_a_token_that_cannot_be_had_fails_the_request_and_is_asked_for_again(tmp_path):
    tokens = iter([OSError("no such file"), "found"])

    def fetch() -> str:
        token = next(tokens)
        if isinstance(token, OSError):
            raise TransportError("no token now") from token
        return token

    token = CachedToken(fetch, lambda: 100.0)
    with pytest.raises(TransportError, match="no token now"):
        await token()
    assert await token() == "found"
