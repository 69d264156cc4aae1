"""The guard's web server, over TLS as the API server comes to it."""

import asyncio
import gzip
import io
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from pods_in_memory import PodsInMemory
from storage_in_memory import StorageInMemory
from waiting import DEADLINE_SECONDS

from hoss.certificates import KeyPair, issue, new_authority
from hoss.limits import http_connections
from hoss.wire.columns import NONE_U32, decode_uids
from hoss.wire.uids import uid_from_text
from hossctl.local.binding_webhook import make_certificate
from resolver.core.values import LedgerNodeChange
from resolver.kubernetes.webhook.binding_webhook import BindingWebhook
from resolver.kubernetes.webhook.callers import PATH, WebhookCallers, path_with
from resolver.kubernetes.webhook.server import LiveCertificate, serve_webhook
from resolver.kubernetes.webhook.volumes_and_devices import VolumesAndDevices
from resolver.ledger.memory import MemoryLedger

REVIEW = b'{"apiVersion": "%s", "kind": "%s", "request": {"uid": "1"}}'


async def _no_decision(*_: Any) -> Any:
    pytest.fail("nothing is to be decided")


@pytest.mark.parametrize(
    ("asked", "body", "status", "said"),
    [
        ("GET /healthz", b"", 200, "ok"),
        (f"GET {PATH}", b"", 404, "POST an AdmissionReview to /bindings"),
        ("POST /", b"{}", 404, "POST an AdmissionReview to /bindings"),
        (f"POST {PATH}", b"nonsense", 400, "body: is no JSON"),
        (f"POST {PATH}", b"[]", 400, "body: is no object"),
        (f"POST {PATH}", b"{}", 400, "this is a webhook for AdmissionReview"),
        (f"POST {PATH}", b"x" * 10 * 2**20, 413, "the body is longer than 1048576 bytes"),
        (f"POST {PATH}", b"[" * 100_000, 400, "body: is no JSON"),
        (f"POST {PATH}", b'{"a":' * 500 + b"1" + b"}" * 500, 400, "body"),
        (f"POST {PATH}", b"\xff\xfe", 400, "body: is no JSON"),
        (
            f"POST {PATH}",
            REVIEW % (b"admission.k8s.io/v1", b"Pod"),
            400,
            "this is a webhook for AdmissionReview",
        ),
        (
            f"POST {PATH}",
            REVIEW % (b"v2", b"AdmissionReview"),
            400,
            "'v2' 'AdmissionReview'; this is a webhook",
        ),
        (f"PUT {PATH}", b"{}", 404, "POST an AdmissionReview"),
        (f"CONNECT {PATH}", b"", 404, "POST an AdmissionReview"),
    ],
)
async def test_what_is_no_question_is_answered_by_what_is_wrong_with_it(
    tmp_path: Path, asked: str, body: bytes, status: int, said: str
) -> None:
    trust = ssl.create_default_context(cadata=make_certificate(tmp_path).decode())
    own = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    own.load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")
    ledger = MemoryLedger(1, lambda: 0)
    held = VolumesAndDevices(ledger, StorageInMemory())
    guard = BindingWebhook(ledger, _no_decision, PodsInMemory(), held, name="guard")
    callers = WebhookCallers(clock=lambda: 0.0)
    async with serve_webhook(guard, "127.0.0.1:0", own, callers) as port, aiohttp.ClientSession() as session:
        method, path = asked.split()
        url = f"https://127.0.0.1:{port}{path}"
        async with session.request(method, url, data=io.BytesIO(body), ssl=trust) as response:
            assert response.status == status
            assert said in await response.text()


SECRET = "0123456789abcdef"
NOW = datetime.now(timezone.utc)


class AskedWebhook:
    """A webhook with room for one pod on node n1, behind a real TLS server. The API server is
    `kube-apiserver` of one authority; others have certificates of theirs."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.ledger = MemoryLedger(1, lambda: 0)
        self.pods = PodsInMemory()
        held = VolumesAndDevices(self.ledger, StorageInMemory())
        self.webhook = BindingWebhook(self.ledger, self._decide, self.pods, held, name="guard")
        self._trust = make_certificate(directory).decode()
        self.authority = new_authority("cluster", now=NOW, lifetime=timedelta(days=1))
        self.port = 0

    async def _decide(self, shard: int, proposal: Any) -> Any:
        (decision,) = await self.ledger.commit(shard, [proposal])
        return decision

    @asynccontextmanager
    async def serving(self, callers: WebhookCallers) -> AsyncIterator["AskedWebhook"]:
        await self.ledger.upsert_nodes(
            0, [LedgerNodeChange("n1", b"", (1000, 2**33, 0, 110, 0, 0), False, 0)]
        )
        live = LiveCertificate()
        (self._directory / "cluster.crt").write_bytes(self.authority.certificate)
        live.trust(self._directory / "cluster.crt")
        live.use(KeyPair(*((self._directory / name).read_bytes() for name in ("tls.crt", "tls.key"))))
        async with serve_webhook(self.webhook, "127.0.0.1:0", live.context, callers) as self.port:
            yield self

    async def ask(
        self, name: str, path: str, *, cpu: str = "600m", shows: KeyPair | None = None, **changed: Any
    ) -> tuple[int, bool, Any]:
        """The status, whether it was allowed, and the pod that was asked about. `changed`: of the request."""
        resources = {"requests": {"cpu": cpu}}
        pod = self.pods.add(name, containers=[{"name": "c", "image": "i", "resources": resources}])
        trust = ssl.create_default_context(cadata=self._trust)
        if shows is not None:
            file = self._directory / "shown.pem"
            file.write_bytes(shows.certificate + shows.key)
            trust.load_cert_chain(file)
        request = {
            "uid": "1",
            "operation": "CREATE",
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "subResource": "binding",
            "name": name,
            "namespace": "default",
            "object": {
                "kind": "Binding",
                "metadata": {"name": name, "uid": pod["metadata"]["uid"]},
                "target": {"kind": "Node", "name": "n1"},
            },
            **changed,
        }
        body = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
        url = f"https://127.0.0.1:{self.port}{path}"
        async with (
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trust, force_close=True)) as session,
            session.post(url, json=body) as answer,
        ):
            if answer.status != 200:
                return answer.status, False, pod
            return 200, (await answer.json())["response"]["allowed"], pod

    async def exchange(self, text: bytes) -> bytes:
        """All that is answered to these bytes until the connection ends."""
        trust = ssl.create_default_context(cadata=self._trust)
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=trust)
        writer.write(text)
        try:
            return await asyncio.wait_for(reader.read(), DEADLINE_SECONDS)
        finally:
            writer.close()

    async def holds(self, pod: Any) -> bool:
        uids = decode_uids(uid_from_text(pod["metadata"]["uid"]))
        (found,) = await self.ledger.lookup(0, uids)
        return bool(found["node"] != NONE_U32)

    def certificate(self, *hosts: str, authority: KeyPair | None = None, now: datetime = NOW) -> KeyPair:
        """Of a client."""
        return issue(
            authority or self.authority,
            hosts,
            now=now,
            lifetime=timedelta(hours=1),
            uri="spiffe://cluster/client",
        )


async def test_only_who_knows_the_path_is_answered_and_a_stranger_reserves_nothing(tmp_path: Path) -> None:
    callers = WebhookCallers(clock=lambda: 0.0)
    callers.use_secret(SECRET)
    async with AskedWebhook(tmp_path).serving(callers) as asked:
        for wrong in (PATH, path_with("0" * 16), path_with(SECRET) + "/", path_with(SECRET.upper())):
            status, _, pod = await asked.ask("stranger", wrong)
            assert (status, await asked.holds(pod)) == (403, False)
        status, allowed, pod = await asked.ask("p", path_with(SECRET))
        assert (status, allowed, await asked.holds(pod)) == (200, True, True)
    assert callers.counters == {"guard_stranger": 4}


async def test_only_who_shows_the_api_servers_certificate_is_answered(tmp_path: Path) -> None:
    callers = WebhookCallers(certificate_names=["kube-apiserver"], clock=lambda: 0.0)
    async with AskedWebhook(tmp_path).serving(callers) as asked:
        another = asked.certificate("kubelet")
        for shown in (None, another):
            status, _, pod = await asked.ask("stranger", PATH, shows=shown)
            assert (status, await asked.holds(pod)) == (403, False)
        day = timedelta(days=1)
        unusable = {
            "foreign": asked.certificate(
                "kube-apiserver", authority=new_authority("foreign", now=NOW, lifetime=day)
            ),
            "self-signed": new_authority("kube-apiserver", now=NOW, lifetime=day),
            "expired": asked.certificate("kube-apiserver", now=NOW - day),
            "not yet valid": asked.certificate("kube-apiserver", now=NOW + day),
        }
        for name, shown in unusable.items():
            with pytest.raises(aiohttp.ClientError):  # the handshake fails
                await asked.ask(name, PATH, shows=shown)
        status, allowed, pod = await asked.ask("p", PATH, shows=asked.certificate("kube-apiserver"))
        assert (status, allowed, await asked.holds(pod)) == (200, True, True)


async def test_a_question_that_is_denied_leaves_nothing_in_the_ledger(tmp_path: Path) -> None:
    callers = WebhookCallers(clock=lambda: 0.0)
    callers.use_secret(SECRET)
    async with AskedWebhook(tmp_path).serving(callers) as asked:
        status, allowed, pod = await asked.ask("greedy", path_with(SECRET), cpu="1200m")
        assert (status, allowed, await asked.holds(pod)) == (200, False, False)
        assert (await asked.ask("fits", path_with(SECRET), cpu="1000m"))[:2] == (200, True)


async def test_questions_of_an_address_have_a_rate(tmp_path: Path) -> None:
    callers = WebhookCallers(per_second=0.3, clock=lambda: 0.0)
    callers.use_secret(SECRET)
    async with AskedWebhook(tmp_path).serving(callers) as asked:
        statuses = [(await asked.ask(f"p{i}", path_with(SECRET), cpu="1m"))[0] for i in range(5)]
    assert statuses == [200, 200, 200, 429, 429]
    assert callers.counters == {"guard_rate": 2}


async def test_a_dry_run_is_answered_and_reserves_nothing_and_a_review_without_a_uid_is_none(
    tmp_path: Path,
) -> None:
    callers = WebhookCallers(clock=lambda: 0.0)
    async with AskedWebhook(tmp_path).serving(callers) as asked:
        status, allowed, pod = await asked.ask("dry", PATH, dryRun=True)
        assert (status, allowed, await asked.holds(pod)) == (200, True, False)
        for wrong in ({"uid": ""}, {"uid": 7}, {"object": None}, {"dryRun": "yes"}):
            status, _, pod = await asked.ask(f"wrong-{len(wrong)}", PATH, **wrong)
            assert (status, await asked.holds(pod)) == (400, False)


async def test_one_who_sends_slowly_is_cut_and_one_of_http_1_0_is_answered(
    tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(http_connections, "BODY_SECONDS", 0.2)
    callers = WebhookCallers(clock=lambda: 0.0)
    async with AskedWebhook(tmp_path).serving(callers) as asked:
        head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n"
        assert b"408 Request Timeout" in await asked.exchange(head.encode() + b"{")
        assert (await asked.exchange(b"GET /healthz HTTP/1.0\r\n\r\n")).endswith(b"ok")
        assert b"400 Bad Request" in await asked.exchange(b"nonsense\r\n\r\n")
        long = b"GET /healthz HTTP/1.1\r\nx: " + b"x" * 100_000 + b"\r\n\r\n"
        assert b"400 Bad Request" in await asked.exchange(long)


async def test_a_body_without_an_end_is_refused_and_cut_and_a_compressed_one_is_not_taken(
    tmp_path: Path,
) -> None:
    callers = WebhookCallers(clock=lambda: 0.0)
    async with AskedWebhook(tmp_path).serving(callers) as asked:
        head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\n".encode()
        endless = b"Transfer-Encoding: chunked\r\n\r\n" + b"10000\r\n" + b" " * 65_536 + b"\r\n"
        said = await asked.exchange(head + endless + 16 * endless.partition(b"\r\n\r\n")[2])
        assert b"413 Request Entity Too Large" in said
        assert b"the body is longer than 1048576 bytes" in said
        bomb = gzip.compress(b"[" * 2**20)
        packed = b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(bomb)
        said = await asked.exchange(head + b"Connection: close\r\n" + packed + bomb)
        assert b"415 Unsupported Media Type" in said
        assert b"the body is compressed; send it as it is" in said


async def test_a_refused_stranger_keeps_no_connection(tmp_path: Path) -> None:
    callers = WebhookCallers(clock=lambda: 0.0)
    callers.use_secret(SECRET)
    async with AskedWebhook(tmp_path).serving(callers) as asked:
        head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"
        assert b"403 Forbidden" in await asked.exchange(head.encode())  # to the end of the connection
