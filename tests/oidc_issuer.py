"""An OpenID Connect issuer: a real HTTPS server with keys of its own, which signs what it is asked to."""

import base64
import json
import ssl
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jwt
import trustme
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

AUDIENCE = "hoss"
DISCOVERY, KEYS = "/.well-known/openid-configuration", "/keys"


class Issuer:
    """`url` is its name. Tests change `keys` (by kid), `answers` (what it serves at a path) and `silent`."""

    def __init__(self, directory: Path) -> None:
        self.asked: Counter[str] = Counter()
        self.keys: dict[str, Any] = {}
        self.answers: dict[str, bytes] = {}  # instead of its own
        self.silent = False
        self.server: ThreadingHTTPServer
        self._authority = trustme.CA()
        self.ca_file = directory / "issuer-ca.crt"
        self._authority.cert_pem.write_to_path(str(self.ca_file))
        self.port = 0
        self.rotate("first")

    @property
    def url(self) -> str:
        return f"https://localhost:{self.port}"

    def rotate(self, kid: str, algorithm: str = "RS256") -> None:
        """Sign with a new key from now on, and say nothing of those before it."""
        make = {
            "RS256": lambda: rsa.generate_private_key(65537, 2048),
            "ES256": lambda: ec.generate_private_key(ec.SECP256R1()),
        }
        self.keys = {kid: make[algorithm]()}

    def start(self) -> None:
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            timeout = 10

            def do_GET(self) -> None:
                issuer.asked[self.path] += 1
                body = issuer.answers.get(self.path) or issuer.document(self.path)
                self.send_response(503 if issuer.silent else 200 if body else 404)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Nobody reads it."""

        self.server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self.port = self.server.server_port
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._authority.issue_cert("localhost").configure_cert(context)
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self) -> None:
        """Whoever asks now is refused the connection. `start` serves at the same port again."""
        self.server.shutdown()
        self.server.server_close()

    def document(self, path: str) -> bytes:
        if path == DISCOVERY:
            return json.dumps({"issuer": self.url, "jwks_uri": self.url + KEYS}).encode()
        if path == KEYS:
            return json.dumps({"keys": [jwk_of(kid, key) for kid, key in self.keys.items()]}).encode()
        return b""

    def token(self, *, kid: str = "", key: Any = None, now: float | None = None, **claims: Any) -> str:
        """Of ana, who is in the group research, for an hour. A claim of None is left out."""
        now = time.time() if now is None else now
        (latest,) = self.keys
        named = {"iss": self.url, "aud": AUDIENCE, "sub": "ana", "groups": ["research"]}
        given = {**named, "iat": int(now), "exp": int(now) + 3600, **claims}
        signing = key or self.keys[latest]
        algorithm = "ES256" if isinstance(signing, ec.EllipticCurvePrivateKey) else "RS256"
        body = {name: value for name, value in given.items() if value is not None}
        return jwt.encode(body, signing, algorithm=algorithm, headers={"kid": kid or latest})

    def settings(self, **more: Any) -> dict[str, Any]:
        """For `authentication.oidc` of a service."""
        return {"issuer": self.url, "audience": AUDIENCE, "ca_file": str(self.ca_file), **more}


def jwk_of(kid: str, key: Any) -> dict[str, Any]:
    algorithm: Any = RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else ECAlgorithm
    made: dict[str, Any] = json.loads(algorithm.to_jwk(key.public_key()))
    return {**{name: value for name, value in made.items() if name != "key_ops"}, "kid": kid, "use": "sig"}


def unsigned(token: str) -> str:
    """The same claims, by the algorithm none."""
    head = base64.urlsafe_b64encode(json.dumps({"alg": "none", "typ": "JWT"}).encode()).decode().rstrip("=")
    return f"{head}.{token.split('.')[1]}."


def tampered(token: str, **claims: Any) -> str:
    """Other claims with the same signature. A claim of None is left out."""
    head, body, signature = token.split(".")
    read = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    kept = {name: value for name, value in {**read, **claims}.items() if value is not None}
    changed = base64.urlsafe_b64encode(json.dumps(kept).encode()).decode().rstrip("=")
    return f"{head}.{changed}.{signature}"


@contextmanager
def serving(directory: Path) -> Iterator[Issuer]:
    issuer = Issuer(directory)
    issuer.start()
    try:
        yield issuer
    finally:
        issuer.stop()
