"""What a service shows of itself: logs, metrics and traces."""

from hoss.telemetry.logs import Logger, configure, logger

__all__ = ["Logger", "configure", "logger"]
