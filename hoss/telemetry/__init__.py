"""What a service shows of itself: logs, metrics and traces."""

from hoss.telemetry.logs import configure, logger

__all__ = ["configure", "logger"]
