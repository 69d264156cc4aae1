"""What the three services' configuration documents and flags have in common about telemetry."""

import argparse
from pathlib import Path
from typing import Any

from hoss.config import Document


class TelemetryConfig(Document):
    """Part of every service's document."""

    # host:port of the endpoint that Prometheus reads, http://host:port/metrics; port 0 takes a free one. Empty: none.
    metrics_listen: str = ""

    # Traces are appended to this file, OTLP/JSON, an export a line. Services may share one. They also go to the collector whose HTTP address
    # is in OTEL_EXPORTER_OTLP_ENDPOINT. With neither nothing is traced.
    trace_file: Path | None = None


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Flags for these fields."""
    parser.add_argument(
        "--metrics-listen",
        metavar="HOST:PORT",
        help="for Prometheus, http://HOST:PORT/metrics; port 0 takes a free one",
    )
    parser.add_argument("--trace-file", type=Path, metavar="FILE", help="append traces to it, OTLP/JSON")


def given(flags: argparse.Namespace) -> dict[str, Any]:
    """What the flags say, None for what they do not."""
    return {"metrics_listen": flags.metrics_listen, "trace_file": flags.trace_file}
