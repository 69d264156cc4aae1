"""The guard's web server, over TLS as the API server comes to it."""

import ssl
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from pods_in_memory import PodsInMemory

from hossctl.local.binding_webhook import make_certificate
from resolver.kubernetes.binding_webhook import BindingWebhook
from resolver.kubernetes.webhook_server import PATH, serve_webhook
from resolver.ledger.memory import MemoryLedger


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
        (f"POST {PATH}", b"x" * 2**21, 413, ""),
    ],
)
async def test_what_is_no_question_is_answered_by_what_is_wrong_with_it(
    tmp_path: Path, asked: str, body: bytes, status: int, said: str
) -> None:
    trust = ssl.create_default_context(cadata=make_certificate(tmp_path).decode())
    own = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    own.load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")
    guard = BindingWebhook(MemoryLedger(1, lambda: 0), _no_decision, PodsInMemory(), name="guard")
    async with serve_webhook(guard, "127.0.0.1:0", own) as port, aiohttp.ClientSession() as session:
        method, path = asked.split()
        url = f"https://127.0.0.1:{port}{path}"
        async with session.request(method, url, data=body, ssl=trust) as response:
            assert response.status == status
            assert said in await response.text()
