"""The part of the three services' configuration documents and flags that is about telemetry."""

import argparse
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hoss.config import Document
from hoss.telemetry.collector import collector_url, resource_of

if TYPE_CHECKING:
    from hoss.telemetry.tracing import Tracer


class TelemetryConfig(Document):
    """Part of every service's document."""

    # host:port of the endpoint that Prometheus reads, /metrics there; port 0 takes a free one. Empty: none.
    # Beyond loopback it speaks mutual TLS by the files in `tls_dir`, to clients with the role metrics or a
    # higher one. Without `tls_dir` it is beyond loopback only if the service is told `insecure`.
    metrics_listen: str = ""

    # Speak mutual TLS on loopback, too.
    metrics_tls: bool = False

    # Traces are appended to this file, OTLP/JSON, an export a line. Services may share one. They also go to
    # the collector whose HTTP address is in OTEL_EXPORTER_OTLP_ENDPOINT. With neither nothing is traced.
    trace_file: Path | None = None


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Flags for these fields."""
    parser.add_argument(
        "--metrics-listen",
        metavar="HOST:PORT",
        help="for Prometheus, /metrics there, beyond loopback over mutual TLS; port 0 takes a free one",
    )
    parser.add_argument(
        "--metrics-tls",
        action="store_true",
        default=None,
        help="serve the metrics over mutual TLS on loopback, too, by the files of --tls-dir",
    )
    parser.add_argument("--trace-file", type=Path, metavar="FILE", help="append traces to it, OTLP/JSON")


def given(flags: argparse.Namespace) -> dict[str, Any]:
    """The fields' values by the flags; None for a flag that is not given."""
    listening = {"metrics_listen": flags.metrics_listen, "metrics_tls": flags.metrics_tls}
    return {**listening, "trace_file": flags.trace_file}


@contextlib.contextmanager
def tracing(
    service: str, trace_file: Path | None, *, instance: str = "", ratio: float = 0.0
) -> Iterator["Tracer | None"]:
    """A tracer within the block if there is somewhere to export to: `trace_file`, or a collector that the
    environment names. Otherwise None. Raises ConfigError as `tracing.exporters` does."""
    if trace_file is None and not collector_url("traces"):
        yield None
        return
    from hoss.telemetry.tracing import Tracer, exporters  # noqa: PLC0415 - most services are not traced

    tracer = Tracer(exporters(trace_file), resource_of(service, instance), ratio=ratio)
    try:
        yield tracer
    finally:
        tracer.close()
