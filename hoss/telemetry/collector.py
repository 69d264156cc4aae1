"""The OpenTelemetry collector that services send to, as the environment names it (OpenTelemetry specification, "OTLP Exporter Configuration")."""

import os
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass, field

import orjson

from hoss.errors import ConfigError
from hoss.telemetry.logs import logger

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
PROTOCOL = "OTEL_EXPORTER_OTLP_PROTOCOL"
HEADERS = "OTEL_EXPORTER_OTLP_HEADERS"

_POST_SECONDS = 5.0


@dataclass(slots=True)
class Collector:
    """Where one signal, "traces" or "metrics", goes. What cannot be sent is lost, and said once until it can be again."""

    signal: str
    url: str
    headers: dict[str, str] = field(default_factory=dict)
    _failing: bool = False

    def post(self, request: object) -> bool:
        """Send an export request as OTLP's JSON; blocks for seconds at most. Whether it arrived."""
        headers = {**self.headers, "Content-Type": "application/json"}
        message = urllib.request.Request(self.url, orjson.dumps(request), headers)  # noqa: S310 - as configured
        try:
            with urllib.request.urlopen(message, timeout=_POST_SECONDS):  # noqa: S310 - as configured
                pass
        except (OSError, urllib.error.HTTPError) as exc:
            if not self._failing:
                logger().warning(f"{self.signal}_not_sent", to=self.url, error=str(exc))
            self._failing = True
            return False
        self._failing = False
        return True


def collector_of(signal: str) -> Collector | None:
    """None: the environment names none for this signal. Raises ConfigError where it is to be spoken to in a way that HOSS does not."""
    if _of_signal(signal, "OTEL_{}_EXPORTER") == "none":
        return None
    own = f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT"
    where = own if os.environ.get(own) else ENDPOINT
    endpoint = os.environ.get(where, "")
    if not endpoint:
        return None
    protocol = _of_signal(signal, "OTEL_EXPORTER_OTLP_{}_PROTOCOL") or os.environ.get(PROTOCOL) or "http/json"
    if not (protocol.startswith("http/") and endpoint.startswith(("http://", "https://"))):
        raise ConfigError(
            f"{endpoint} with protocol {protocol}: HOSS speaks OTLP over HTTP alone; give the collector's HTTP address, as in "
            "http://localhost:4318",
            where=where,
        )
    url = endpoint if where == own else f"{endpoint.rstrip('/')}/v1/{signal}"
    told = _of_signal(signal, "OTEL_EXPORTER_OTLP_{}_HEADERS") or os.environ.get(HEADERS, "")
    return Collector(signal, url, _headers(told))


def _of_signal(signal: str, variable: str) -> str:
    return os.environ.get(variable.format(signal.upper()), "")


def _headers(text: str) -> dict[str, str]:
    """As in "api-key=secret,other=value", values percent-encoded."""
    pairs = [part.partition("=") for part in text.split(",") if "=" in part]
    return {name.strip(): urllib.parse.unquote(value.strip()) for name, _, value in pairs}
