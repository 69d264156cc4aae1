"""The OpenTelemetry collector that the environment names, and the metrics pushed to it.

The variables are OpenTelemetry's (specification, "OTLP Exporter Configuration"). The SDK's exporters read
most of them; this module decides whether there is a collector at all, and refuses one that HOSS cannot speak
to. The SDK takes long to import, so `otlp` is imported only where there is a collector.
"""

import asyncio
import contextlib
import os
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator

from hoss import version
from hoss.errors import ConfigError
from hoss.tasks import end_tasks
from hoss.telemetry.metrics import Metrics

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
PROTOCOL = "OTEL_EXPORTER_OTLP_PROTOCOL"
INTERVAL = "OTEL_METRIC_EXPORT_INTERVAL"

_DEFAULT_INTERVAL_MS = 60_000

# How long a service that ends retries exports; the exporters themselves would for 10 s.
_CLOSE_SECONDS = 1.0


def collector_url(signal: str) -> str:
    """Where a signal, "traces" or "metrics", goes; "" where the environment names no collector for it.

    Raises ConfigError for an address or a protocol other than OTLP over HTTP.
    """
    if _of_signal(signal, "OTEL_{}_EXPORTER") == "none":
        return ""
    own = f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT"
    where = own if os.environ.get(own) else ENDPOINT
    endpoint = os.environ.get(where, "")
    if not endpoint:
        return ""
    protocol = (
        _of_signal(signal, "OTEL_EXPORTER_OTLP_{}_PROTOCOL") or os.environ.get(PROTOCOL) or "http/protobuf"
    )
    if not (protocol.startswith("http/") and endpoint.startswith(("http://", "https://"))):
        raise ConfigError(
            f"{endpoint} with protocol {protocol}: HOSS speaks OTLP over HTTP alone; "
            "give the collector's HTTP address, as in http://localhost:4318",
            where=where,
        )
    return endpoint if where == own else f"{endpoint.rstrip('/')}/v1/{signal}"


def resource_of(service: str, instance: str = "") -> dict[str, str]:
    """Attributes of this process, by OpenTelemetry's names. `instance`: host name and process id unless
    given."""
    return {
        "service.name": f"hoss-{service}",
        "service.instance.id": instance or f"{socket.gethostname()}-{os.getpid()}",
        "service.version": version(),
    }


@contextlib.asynccontextmanager
async def metrics_pushed(service: str, metrics: Metrics, *, instance: str = "") -> AsyncIterator[None]:
    """Push within the block, every OTEL_METRIC_EXPORT_INTERVAL and at its end, if the environment names a
    collector.

    A reading is taken on the event loop, so it is of one moment, and sent on another thread. The SDK's
    periodic reader is not used: it reads on a thread of its own while the loop writes. Raises ConfigError.
    """
    url = collector_url("metrics")
    if not url:
        yield
        return
    interval_seconds = _interval_seconds()
    from hoss.telemetry.otlp import CollectorMetrics, metrics_data  # noqa: PLC0415

    exporter, resource = CollectorMetrics(url), resource_of(service, instance)

    async def push() -> None:
        data = metrics_data(metrics.readings(), resource, now_ns=time.time_ns())
        await asyncio.to_thread(exporter.export, data)

    async def push_for_ever() -> None:
        while True:
            await asyncio.sleep(interval_seconds)
            await push()

    pushing = asyncio.ensure_future(push_for_ever())
    try:
        yield
    finally:
        await end_tasks((pushing,))
        with shut_down_in_time(exporter.shutdown):
            await push()


@contextlib.contextmanager
def shut_down_in_time(*shutdowns: Callable[[], None]) -> Iterator[None]:
    """Shut exporters down after the block, or after a second of it, which ends their retries."""
    timers = [threading.Timer(_CLOSE_SECONDS, shutdown) for shutdown in shutdowns]
    for timer in timers:
        timer.start()
    try:
        yield
    finally:
        for timer, shutdown in zip(timers, shutdowns, strict=True):
            timer.cancel()
            shutdown()


def _of_signal(signal: str, variable: str) -> str:
    return os.environ.get(variable.format(signal.upper()), "")


def _interval_seconds() -> float:
    text = os.environ.get(INTERVAL, "") or str(_DEFAULT_INTERVAL_MS)
    if not text.isdecimal() or not int(text):
        raise ConfigError(
            f"{text!r} is no number of milliseconds, such as {_DEFAULT_INTERVAL_MS}", where=INTERVAL
        )
    return int(text) / 1000
