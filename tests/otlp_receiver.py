"""A collector's OTLP/HTTP receiver, as far as it takes JSON and remembers it."""

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple


class Posted(NamedTuple):
    path: str
    headers: dict[str, str]  # names in lower case
    request: dict[str, Any]


class Receiver(ThreadingHTTPServer):
    """`posted`: everything so far; `arrived` is released with each."""

    def __init__(self) -> None:
        self.posted: list[Posted] = []
        self.arrived = threading.Semaphore(0)
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def metrics(self) -> dict[str, dict[str, dict[str, Any]]]:
        """What every service told last: service name -> metric name -> metric."""
        told: dict[str, dict[str, dict[str, Any]]] = {}
        for posted in list(self.posted):
            for resource in posted.request.get("resourceMetrics", ()):
                service = attributes(resource["resource"])["service.name"]
                told[service] = {m["name"]: m for scope in resource["scopeMetrics"] for m in scope["metrics"]}
        return told


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.posted.append(Posted(self.path, headers, json.loads(body)))
        self.server.arrived.release()
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def attributes(of: dict[str, Any]) -> dict[str, Any]:
    """Names and values of what has attributes."""
    return {pair["key"]: next(iter(pair["value"].values())) for pair in of["attributes"]}


@contextlib.contextmanager
def receiving() -> Iterator[Receiver]:
    """A receiver that listens within the block."""
    with Receiver() as receiver:
        thread = threading.Thread(target=receiver.serve_forever)
        thread.start()
        try:
            yield receiver
        finally:
            receiver.shutdown()
            thread.join()
