"""A collector's OTLP/HTTP receiver. It remembers requests as OTLP/JSON, with ids of spans in base64."""

import contextlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


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
        """The latest push of every service: service name -> metric name -> metric."""
        latest: dict[str, dict[str, dict[str, Any]]] = {}
        for posted in list(self.posted):
            for resource in posted.request.get("resourceMetrics", ()):
                service = attributes(resource["resource"])["service.name"]
                latest[service] = {
                    m["name"]: m for scope in resource["scopeMetrics"] for m in scope["metrics"]
                }
        return latest


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        headers = {name.lower(): value for name, value in self.headers.items()}
        kind = ExportTraceServiceRequest if self.path.endswith("traces") else ExportMetricsServiceRequest
        request = MessageToDict(kind.FromString(body), use_integers_for_enums=True)
        self.server.posted.append(Posted(self.path, headers, request))
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
